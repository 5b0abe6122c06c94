"""What is replayed is what was recorded, and a comparison of searches is the same each time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tunewright.bench import strategies
from tunewright.bench.entries import code_sha256
from tunewright.bench.replay.cases import Case, case
from tunewright.bench.replay.comparison import NEAR, Contender, Curve, searched, summary
from tunewright.bench.replay.contenders import SPREAD_SCALE, Elsewhere, Recorded, contenders
from tunewright.bench.replay.plot import draw_curves
from tunewright.bench.replay.pool import ReplayPool
from tunewright.bench.replay.recording import missing, record
from tunewright.bench.replay.thinning import thinned
from tunewright.bench.suite.network import Network
from tunewright.codegen.target import Target
from tunewright.costmodel.learned import Learned
from tunewright.costmodel.roofline import estimated_s
from tunewright.db.sql_store import open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.sketches import spaces
from tunewright.tuner.models.model import open_model

TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "made-up", "", 256, 16, 2, 32 << 10, 1 << 20, 16 << 20)
MOST = 120


def product(rows: int) -> Task:
    net = Network("product")
    model = open_model(net.onnx(net.gemm(net.input("x", (rows, 96)), 96, 128)))
    return next(task for task, _ in model.tasks.values())


def convolution() -> Task:
    net = Network("convolution")
    model = open_model(net.onnx(net.conv(net.input("x", (1, 32, 28, 28)), 32, 32, 3)))
    return max((task for task, _ in model.tasks.values()), key=lambda task: task.flops)


def made_up(given: Case) -> Recorded:
    """Times are the estimate, and something of each point's own."""
    records = []
    for space in given.spaces:
        estimates = estimated_s(given.task, given.target, space, space.points)
        own = np.random.default_rng(5).uniform(1.0, 1.5, len(estimates))
        for row, time_s in zip(space.points, estimates * own, strict=True):
            measured = Measurement(Status.OK, (float(time_s),), float(time_s))
            records.append(Record(given.task.key, given.target.key, space.schedule(row), measured))
    return Recorded(given, records)


@pytest.fixture(scope="module")
def recorded() -> list[Recorded]:
    given = {"product 48": product(48), "product 384": product(384), "convolution": convolution()}
    return [made_up(case(f"{name}, threads: 2", task, TARGET, MOST)) for name, task in given.items()]


def test_a_thinned_space_is_a_part_of_the_whole() -> None:
    for task in (product(48), convolution()):
        for space in spaces(task, TARGET):
            small = thinned(space, MOST)
            assert 0 < len(small.points) <= MOST
            assert small.default == space.default
            for row in small.points:
                space.row(small.schedule(row))  # raises if illegal there


def test_a_space_that_is_small_stays_whole() -> None:
    [space] = spaces(product(48), TARGET)
    small = thinned(space, MOST)
    assert thinned(small, MOST).knobs == small.knobs


def test_what_is_recorded_is_what_is_answered(recorded: Sequence[Recorded]) -> None:
    one = recorded[0]
    candidates = [Candidate(one.case.task, TARGET, each.schedule) for each in one.records[:5]]
    with ReplayPool(TARGET, one.records) as pool:
        assert [measurement for _, measurement in pool.measure(candidates)] == pool.compare(candidates)
        assert pool.compare(candidates) == [each.measurement for each in one.records[:5]]
        assert [state.target for state in pool.devices()] == [TARGET]
        other = Candidate(recorded[1].case.task, TARGET, recorded[1].records[0].schedule)
        with pytest.raises(LookupError):
            list(pool.measure([other]))
        with pytest.raises(ValueError, match="2 tasks"):
            pool.compare([candidates[0], other])


def test_the_fastest_of_several_records_counts(recorded: Sequence[Recorded]) -> None:
    one = recorded[0].records[0]
    failed = Record(one.task_key, one.target_key, one.schedule, Measurement(Status.CRASH, error="made up"))
    for records in ([one, failed], [failed, one]):
        [found] = ReplayPool(TARGET, records).compare([Candidate(recorded[0].case.task, TARGET, one.schedule)])
        assert found == one.measurement


def test_recording_goes_on_where_it_ended(recorded: Sequence[Recorded], tmp_path: Path) -> None:
    given = recorded[0].case
    pool = ReplayPool(TARGET, recorded[0].records)
    with open_store(f"sqlite:///{tmp_path / 'replay.db'}") as store:
        wanted = missing(store, given)
        assert {schedule.key for schedule in wanted} == {schedule.key for schedule in given.points}
        assert record(store, pool, given, wanted, time.monotonic() - 1) == 0
        assert record(store, pool, given, wanted[:20], time.monotonic() + 60) == 20
        assert {s.key for s in missing(store, given)} == {s.key for s in wanted[20:]}


def test_every_contender_searches_alike_each_time(recorded: Sequence[Recorded], tmp_path: Path) -> None:
    curves, one = {}, recorded[0]
    for name, contender in contenders(recorded).items():
        curves[name], again = (searched(one.case, one.records, contender, seed=1, trials=17) for _ in range(2))
        assert np.array_equal(curves[name], again), name
        assert (np.diff(curves[name]) >= 0).all()
        assert 0 < curves[name][-1] <= 1
    draw_curves(tmp_path / "curves.svg", {name: curve.tolist() for name, curve in curves.items()})
    assert "taught elsewhere" in (tmp_path / "curves.svg").read_text()


def test_what_was_compared_is_kept_while_records_and_code_stay(
    recorded: list[Recorded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []

    def counted(given: Case, *rest: Any) -> Curve:
        searches.append(given.name)
        return searched(given, *rest)

    monkeypatch.setattr(strategies, "RESULTS", tmp_path)
    monkeypatch.setattr(strategies, "searched", counted)
    monkeypatch.setattr(strategies, "_recorded", lambda console: recorded[:1])
    console = Console(quiet=True)
    for names, count in ((["random"], 1), (["random"], 1), (["random", "estimate"], 2)):
        assert strategies._compare(console, names, 1, again=False) == 0
        assert len(searches) == count
    found = json.loads((tmp_path / "strategies.json").read_text())["contenders"]
    assert list(found) == ["random", "estimate"]
    strategies._compare(console, ["estimate"], 1, again=True)
    assert len(searches) == 3
    changes: list[tuple[str, Callable[..., str]]] = [
        ("code_sha256", lambda *folders: "another" if folders else code_sha256()),  # only what is compared with
        ("code_sha256", lambda *folders: "another"),
        ("base_model_sha256", lambda: "another"),
    ]
    for count, (name, changed) in enumerate(changes, 4):
        monkeypatch.setattr(strategies, name, changed)
        strategies._compare(console, ["estimate"], 1, again=False)
        assert len(searches) == count
        assert list(json.loads((tmp_path / "strategies.json").read_text())["contenders"]) == ["estimate"]


def test_what_is_taught_elsewhere_spreads_as_far_as_its_errors(recorded: Sequence[Recorded]) -> None:
    learned = Elsewhere(recorded).model(recorded[0].case, seed=0)._learned
    assert learned is not None
    assert (learned.scale, learned.spread_scale) == (Learned((), None).scale, SPREAD_SCALE)


def test_a_search_of_a_whole_space_finds_its_best(recorded: Sequence[Recorded]) -> None:
    one = recorded[0]
    chance: Contender = contenders(recorded)["random"]
    assert searched(one.case, one.records, chance, seed=0, trials=2 * MOST)[-1] == 1.0


def test_a_summary_counts_the_trials_until_the_best_is_near() -> None:
    found = summary({"one": [np.array([0.5, 0.96, 1.0]), np.array([0.5, 0.5, 0.5])]})
    assert NEAR == 0.95
    assert found["trials_by_case"] == {"one": 3.0}  # 2, and one more than the 3 there were
    assert found["median_trials"] == 3.0
    assert found["arrived"] == 0.5
    assert found["speed"]["1"] == 0.5
