"""Rooflines: ceilings of machines, and where the trials of a task are below them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.costmodel.loops import Loops, split_by_vector_axis
from tunewright.db.store import Store
from tunewright.db.trial import TrialLine
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.explain.roofline import MEMORY, Ceilings, ceilings, roofline_points
from tunewright.tuner.explain.trial_points import trials_by_space
from tunewright.tuner.models.model import Model, open_model

from . import fake_pool
from .conftest import small_model
from .test_lookup import TARGET, TASK, product
from .trial_lines import convolution, line, points

LARGE = product(512, 2048, 2048)
"""Beyond the caches of a small machine."""


def lines(task: Task, count: int) -> list[TrialLine]:
    """Of points of all its spaces, which take one to two milliseconds."""
    rng = np.random.default_rng(1)
    found = points(task, TARGET, count)
    return [line(schedule, float(rng.uniform(1e-3, 2e-3)), n) for n, schedule in enumerate(found, start=1)]


def test_ceilings_by_hand() -> None:
    """Two threads, each two multiply-adds of sixteen elements a cycle."""
    found = ceilings(TASK, TARGET)
    assert found.peak_flops_s == 2 * 2 * 2 * 16 * 4.5e9
    assert [one.name for one in found.bandwidths] == ["L2", "L3", MEMORY]
    assert not found.is_measured
    assert (found.bandwidths[0].bytes_s, found.bandwidths[-1].bytes_s) == (2 * 32 * 4.5e9, 50e9)


def test_a_measured_peak_counts() -> None:
    assert ceilings(TASK, TARGET, 123.0) == replace(ceilings(TASK, TARGET), peak_flops_s=123e9, is_measured=True)


def test_a_machine_without_a_third_cache() -> None:
    small = replace(TARGET, l3_bytes=0)
    assert [one.name for one in ceilings(TASK, small).bandwidths] == ["L2", MEMORY]
    assert len(roofline_points(TASK, small, [line(default_schedule(TASK, small))]).points) == 1
    with pytest.raises(KeyError):
        roofline_points(TASK, small, [], "L3")


@given(st.integers(1, 512), st.sampled_from([64, 128, 256, 512]))
def test_ceilings_grow_with_the_machine(threads: int, bits: int) -> None:
    machine = replace(TARGET, threads=threads, vector_bits=bits)
    found = ceilings(TASK, machine)
    rates = [one.bytes_s for one in found.bandwidths]
    assert rates == sorted(rates, reverse=True)
    assert 0 < found.peak_flops_s <= ceilings(TASK, replace(machine, threads=threads + 1)).peak_flops_s


def alone(task: Task, schedule: Schedule, cache_bytes: float) -> float:
    """Bytes that pass into a cache, of one schedule by itself."""
    [space] = [one for one in spaces(task, TARGET) if (one.sketch, one.version) == (schedule.sketch, schedule.version)]
    rows = space.row(schedule)[None]
    [(axis, _, part)] = split_by_vector_axis(space.tiling(space.columns(rows)), 1)
    return float(np.broadcast_to(Loops(task, TARGET, part, axis).traffic_bytes(cache_bytes), 1)[0])


@pytest.mark.parametrize("task", [TASK, LARGE, convolution()], ids=["small", "large", "convolution"])
@pytest.mark.parametrize(("name", "cache_bytes"), [("L2", 49152), ("L3", 1 << 20), (MEMORY, 1 << 25)])
def test_spots_are_where_each_trial_is_by_itself(task: Task, name: str, cache_bytes: int) -> None:
    known = lines(task, 12)
    found = roofline_points(task, TARGET, known, name)
    assert found.left_out == 0
    assert {spot.schedule_key for spot in found.points} == {one.schedule.key for one in known}
    by_key = {one.schedule.key: one for one in known}
    for spot in found.points:
        one = by_key[spot.schedule_key]
        assert one.median_s is not None
        assert spot.flops_s == pytest.approx(task.flops / one.median_s)
        moved = max(alone(task, one.schedule, cache_bytes), task.traffic_bytes)
        assert spot.intensity == pytest.approx(task.flops / moved)


def test_nothing_is_moved_less_than_once() -> None:
    """It fits into the last cache: by the bytes that it must touch, all of its schedules are alike."""
    found = roofline_points(TASK, TARGET, lines(TASK, 20))
    assert {spot.intensity for spot in found.points} == {TASK.flops / TASK.traffic_bytes}
    near = roofline_points(LARGE, TARGET, lines(LARGE, 20), "L2")
    assert len({spot.intensity for spot in near.points}) > 5
    assert max(spot.intensity for spot in near.points) <= LARGE.flops / LARGE.traffic_bytes


def test_what_failed_is_no_spot_and_what_is_of_another_version_is_left_out() -> None:
    default = default_schedule(TASK, TARGET)
    older = [replace(default, version=default.version - 1), Schedule("forgotten", 1, (("tile", 2),))]
    failed = [line(default, None), line(older[0], None)]
    found = roofline_points(TASK, TARGET, [*map(line, older), *failed])
    assert (found.points, found.left_out) == ((), 2)
    assert roofline_points(TASK, TARGET, []).points == ()


def test_what_computes_nothing_has_no_place() -> None:
    x, y = Tensor("t0", (64, 64), DType.F32), Tensor("t1", (64, 64), DType.F32)
    axes = (Axis("i", 64), Axis("j", 64))
    copied = Task("Transpose", (x,), (y,), (), (Stage("t1", axes, Load("t0", (Var("j"), Var("i")), DType.F32)),))
    assert roofline_points(copied, TARGET, [line(default_schedule(copied, TARGET))]).points == ()


def test_trials_are_placed_by_space_with_what_was_measured() -> None:
    task = convolution()
    known = lines(task, 5)
    parts = trials_by_space(task, TARGET, [*known, line(Schedule("forgotten", 1, ()), 1.0)])
    assert len(parts) == len(spaces(task, TARGET)) > 1
    assert sum(len(part.lines) for part in parts) == len(known)
    for part in parts:
        assert [part.trials.space.schedule(row).key for row in part.trials.rows] == [
            one.schedule.key for one in part.lines
        ]
        assert part.trials.times_s.tolist() == [one.median_s for one in part.lines]


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


def test_the_roofline_of_a_job(network: Model, store: Store) -> None:
    report = fake_pool.job(network, store, fake_pool.FakePool(fake_pool.by_key), trials=16)
    machine: Ceilings = ceilings(TASK, fake_pool.TARGET, report.peak_gflops)
    assert machine.is_measured is (report.peak_gflops is not None)
    for task, _ in network.tasks.values():
        known = store.trials.sample(task.key, fake_pool.TARGET.key, 100)
        found = roofline_points(task, fake_pool.TARGET, known)
        assert found.left_out == 0
        reached = {spot.schedule_key: spot.flops_s for spot in found.points}
        default_flops_s = reached[default_schedule(task, fake_pool.TARGET).key]
        assert max(reached.values()) > default_flops_s == pytest.approx(task.flops / 1e-3)
