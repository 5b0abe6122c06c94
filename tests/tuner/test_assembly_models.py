"""A model some of whose calls may run as one task: what is chosen, and that everybody says the same of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunewright.db.job import JobSpec
from tunewright.db.store import Store, open_store
from tunewright.graph.fusion import segments
from tunewright.search_space.measurement import Candidate, Measurement, Record
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.ladder import lookup_measured
from tunewright.tuner.lookup.lockfile import read_lock, write_lock
from tunewright.tuner.lookup.result import measured_times_s
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.models.reader import ModelTasks
from tunewright.tuner.models.reader import tasks as read_tasks
from tunewright.tuner.search.whole_model import time_sessions
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.settings import settings

from ..commands import Command
from .fake_pool import FAILED, TARGET, FakePool, job, spec_of, took
from .timings import takes

CALLS, WINDOW_PRODUCT, ALL = ["Transpose+Conv+Relu", "Conv+Relu", "Conv"], "Conv+Relu+Conv", "Conv+Relu+Conv+Relu+Conv"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SMALLEST_BYTES", 0)


def made(blocks: int = 2) -> onnx.ModelProto:
    """Blocks that expand 8 channels to 16, convolve each of these, and add what comes of it to what there was."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for n in range(blocks):
        shapes = {"a": (16, 8, 1, 1), "w": (16, 1, 3, 3), "c": (8, 16, 1, 1)}
        weights += [
            numpy_helper.from_array(0.3 * rng.standard_normal(s).astype(np.float32), f"{k}{n}")
            for k, s in shapes.items()
        ]
        result = "y" if n == blocks - 1 else f"x{n + 1}"
        nodes += [
            helper.make_node("Conv", [x, f"a{n}"], [f"e{n}"]),
            helper.make_node("Relu", [f"e{n}"], [f"f{n}"]),
            helper.make_node("Conv", [f"f{n}", f"w{n}"], [f"g{n}"], group=16, pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"g{n}"], [f"h{n}"]),
            helper.make_node("Conv", [f"h{n}", f"c{n}"], [f"i{n}"]),
            helper.make_node("Add", [f"i{n}", x], [result]),
        ]
        x = result
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, 6, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "blocks", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def network() -> Model:
    return open_model(made().SerializeToString())


def merged_keys(network: Model) -> list[str]:
    return [segment.call.task.key for chain in network.chains for segment in chain.segments]


def taking(network: Model, calls_s: float, pair_s: float, all_s: float) -> dict[str, float]:
    """Times of the tasks of a network: a call, a window with its product, all three."""
    times_s = dict.fromkeys(network.tasks, calls_s)
    for chain in network.chains:
        times_s |= {s.call.task.key: all_s if s.stop - s.start == 3 else pair_s for s in chain.segments}
    return times_s


def outputs(session: InferenceSession) -> list[np.ndarray]:
    return session.run(None, {"x": np.random.default_rng(1).standard_normal((1, 8, 6, 6)).astype(np.float32)})


def test_tasks_are_those_of_the_calls_and_of_the_segments(network: Model) -> None:
    assert [[(s.start, s.stop) for s in chain.segments] for chain in network.chains] == [[(0, 3), (1, 3)]] * 2
    assert set(merged_keys(network)) == set(list(network.tasks)[-len(set(merged_keys(network))) :])
    assert sum(network.assembly.separate_uses) == sum(1 for step in network.steps if hasattr(step, "task"))
    assert Model(network.label, network.sha256, network.graph, network.steps).tasks == {
        key: use for key, use in network.tasks.items() if key not in merged_keys(network)
    }


@pytest.mark.parametrize(
    ("times_s", "places"),
    [
        ((1.0, 3.0, 4.0), []),
        ((1.0, 1.5, 4.0), [(0, 1, 3), (1, 1, 3)]),
        ((1.0, 1.5, 2.0), [(0, 0, 3), (1, 0, 3)]),
    ],
    ids=["apart", "pairs", "all"],
)
def test_whatever_is_chosen_computes_the_same(
    network: Model, times_s: tuple[float, float, float], places: list[tuple[int, int, int]]
) -> None:
    chosen = network.fastest(taking(network, *times_s))
    assert list(chosen.places) == places
    assert chosen.chains == ()
    assert chosen.native_nodes == network.native_nodes
    uses = dict(zip(network.tasks, network.assembly.uses([*taking(network, *times_s).values()]), strict=True))
    assert {key: count for key, (_, count) in chosen.tasks.items()} == {k: n for k, n in uses.items() if n}
    with InferenceSession.of(chosen, TARGET, {}) as session, InferenceSession.of(network, TARGET, {}) as apart:
        assert session.coverage().untuned == len(chosen.tasks)
        np.testing.assert_allclose(outputs(session)[0], outputs(apart)[0], rtol=1e-4, atol=1e-5)


def test_segments_store_their_parts_where_they_belong() -> None:
    nodes, weights = list[onnx.NodeProto](), []
    for n, channels in enumerate((5, 3)):
        shapes = {"w": (8, 1, 3, 3), "c": (channels, 8, 1, 1)}
        weights += [numpy_helper.from_array(np.ones(s, np.float32) / 9 + n, f"{k}{n}") for k, s in shapes.items()]
        nodes += [
            helper.make_node("Conv", ["x", f"w{n}"], [f"g{n}"], group=8, pads=[1, 1, 1, 1]),
            helper.make_node("Conv", [f"g{n}", f"c{n}"], [f"i{n}"]),
        ]
    nodes.append(helper.make_node("Concat", ["i0", "i1"], ["y"], axis=1))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, 6, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "branches", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = open_model(model.SerializeToString())
    chosen = network.merge([(0, 0, 2), (1, 0, 2)])
    assert [task.op for task, _ in chosen.tasks.values()][-2:] == ["Conv+Conv+Concat+Transpose"] * 2
    assert chosen.native_nodes == network.native_nodes
    with InferenceSession.of(chosen, TARGET, {}) as session, InferenceSession.of(network, TARGET, {}) as apart:
        array = np.random.default_rng(1).standard_normal((1, 8, 6, 6)).astype(np.float32)
        results: Any = ReferenceEvaluator(model).run(None, {"x": array})
        np.testing.assert_allclose(outputs(session)[0], results[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(outputs(apart)[0], results[0], rtol=1e-4, atol=1e-5)


def test_segments_that_are_not_there_are_no_choice(network: Model) -> None:
    for places in ([(0, 0, 2)], [(2, 0, 3)], [(0, 0, 3), (0, 1, 3)]):
        with pytest.raises(KeyError):
            network.merge(places)
    assert network.merge(()).places == ()
    with pytest.raises(KeyError):
        network.merge(()).merge([(0, 0, 3)])


def told(network: Model, times_s: dict[str, float]) -> Callable[[Candidate], Measurement]:
    """Every schedule of a task takes its time, and later ones a little less."""
    return lambda candidate: took(times_s[candidate.task.key] * (1 - int(candidate.schedule.key[:4], 16) * 1e-9))


def test_a_job_chooses_and_a_session_runs_what_it_chose(network: Model, store: Store) -> None:
    timing = takes(default=7e-3, tuned=5e-3)
    report = job(network, store, FakePool(told(network, taking(network, 1e-3, 3e-3, 2e-3))), 60, timing=timing)
    assert report.default_s and report.tuned_s
    chosen = {task.key: task.chosen for task in report.tasks}
    assert sum(chosen[key] for key in set(merged_keys(network))) == 2
    assert all(task.occurrences >= task.chosen for task in report.tasks)
    found = lookup_measured(store, [task for task, _ in network.tasks.values()], TARGET)
    with InferenceSession.of_results(network, TARGET, found) as session:
        assert session.schedules.keys() == {key for key, count in chosen.items() if count}
        assert session.coverage().untuned == 0
    progress = store.jobs.get(report.job_id).progress
    assert progress is not None
    assert dict(zip(network.tasks, progress["chosen"], strict=True)) == chosen
    assert progress["speedup"] == pytest.approx(7 / 5, rel=1e-3)  # one moves the output's channels to the front


@pytest.mark.slow
def test_a_task_that_fails_and_is_not_run_does_no_harm(network: Model, store: Store) -> None:
    """Be it a segment, or a call that segments stand for everywhere."""
    timing = partial(time_sessions, network, TARGET, settings().objects)
    times_s = taking(network, 1e-3, 3e-3, 2e-3)
    failing = merged_keys(network)[1]
    assert times_s[failing] == 3e-3
    outcome = told(network, times_s)
    pool = FakePool(lambda candidate: FAILED if candidate.task.key == failing else outcome(candidate))
    assert job(network, store, pool, 60, timing=timing).tuned_s
    inside = network.chains[0].calls[1].task.key
    with open_store("sqlite://") as other:
        pool = FakePool(lambda candidate: FAILED if candidate.task.key == inside else outcome(candidate))
        report = job(network, other, pool, 60, timing=timing)
        assert (report.default_s, report.tuned_s is None) == (None, False)
        assert {task.key: task.chosen for task in report.tasks}[inside] == 0
        found = lookup_measured(other, [task for task, _ in network.tasks.values()], TARGET)
        with InferenceSession.of_results(network, TARGET, found) as session:
            assert inside not in session.schedules


@pytest.mark.slow
def test_little_is_spent_on_what_is_clearly_slower(network: Model, store: Store) -> None:
    report = job(network, store, FakePool(told(network, taking(network, 1e-3, 9e-3, 9e-3))), 200)
    trials = {task.key: task.trials for task in report.tasks}
    assert sum(trials[key] for key in set(merged_keys(network))) < 60 < 200 == sum(trials.values())


def test_nothing_is_held_against_times_of_other_targets(network: Model, store: Store) -> None:
    """What is known of another machine, or of other tasks, tells nothing of what is faster here."""
    sibling = type(TARGET).from_json(TARGET.to_json() | {"threads": TARGET.threads + 1})
    spec_of(network, store, target=sibling)
    for key, time_s in taking(network, 1e-3, 1e-3, 1e-3).items():
        schedule = default_schedule(network.tasks[key][0], sibling)
        store.record(Record(key, sibling.key, schedule, took(time_s)))
    store.add_target(TARGET)
    found = lookup_measured(store, [task for task, _ in network.tasks.values()], TARGET)
    assert measured_times_s(found) == {}
    with InferenceSession.of_results(network, TARGET, found) as session:
        assert not session.schedules.keys() & set(merged_keys(network))


def test_what_a_job_knows_is_what_the_model_is(network: Model, tmp_path: Path) -> None:
    """In the settings of its spec, and from the process that reads models for the service."""
    path = tmp_path / "m.onnx"
    path.write_bytes(made().SerializeToString())
    answer = json.loads(json.dumps(read_tasks(str(path), {}, None)))
    assert ModelTasks.from_json(answer).assembly == network.assembly
    wrong: tuple[Any, ...] = (None, [{}], [answer["chains"][0] | {"calls": [99]}])
    for chains in wrong:
        with pytest.raises((ValueError, TypeError, KeyError)):
            ModelTasks.from_json(answer | {"chains": chains})


def test_jobs_from_before_there_was_a_choice_go_on(network: Model, store: Store) -> None:
    from tunewright.tuner.search.job import _assembly

    spec = spec_of(network, store)
    assert isinstance(spec, JobSpec)
    before = JobSpec(spec.model_sha256, spec.target_key, spec.tasks, {"seed": 0})
    assert _assembly(before).uses([1.0] * len(spec.tasks)) == [task.occurrences for task in spec.tasks]


def known(network: Model, path: Path, *times_s: float) -> str:
    """A database that has these times; its URL."""
    url = f"sqlite:///{path / 'known.db'}"
    with open_store(url) as store:
        spec_of(network, store)
        for key, time_s in taking(network, *times_s).items():
            schedule = default_schedule(network.tasks[key][0], TARGET)
            store.record(Record(key, TARGET.key, schedule, took(time_s)))
    return url


def test_a_lock_pins_the_choice(network: Model, tmp_path: Path) -> None:
    model, path = tmp_path / "m.onnx", tmp_path / "m.lock.json"
    model.write_bytes(made().SerializeToString())
    url = known(network, tmp_path, 1e-3, 3e-3, 2e-3)
    prepared = ScheduleSource(url).prepare(model, threads=TARGET.threads)
    write_lock(path, prepared.model, prepared.target, {}, prepared.results)
    data = json.loads(path.read_text())
    assert data["segments"] == [[0, 0, 3], [1, 0, 3]]
    assert {entry["key"]: entry["occurrences"] for entry in data["tasks"]} == {
        key: count for key, (_, count) in prepared.fastest_model.tasks.items()
    }
    with (
        InferenceSession(model, lock=path) as session,
        InferenceSession(model, db=url, threads=TARGET.threads) as other,
    ):
        assert session.schedules == other.schedules
        assert session.coverage() == other.coverage()
        np.testing.assert_array_equal(outputs(session)[0], outputs(other)[0])
    path.write_text(json.dumps(data | {"segments": [[0, 0, 2]]}))
    with pytest.raises(Refused, match="it merges some that the model can't"):
        InferenceSession(model, lock=path)
    path.write_text(json.dumps(data | {"segments": []}))
    with pytest.raises(Refused, match="is of other tasks"):
        InferenceSession(model, lock=path)


def test_a_lock_from_before_there_was_a_choice_runs_apart(network: Model, tmp_path: Path) -> None:
    model, path = tmp_path / "m.onnx", tmp_path / "m.lock.json"
    model.write_bytes(made().SerializeToString())
    prepared = ScheduleSource(known(network, tmp_path, 1e-3, 9e-3, 9e-3)).prepare(model, threads=TARGET.threads)
    write_lock(path, prepared.model, prepared.target, {}, prepared.results)
    data = json.loads(path.read_text())
    del data["segments"]
    path.write_text(json.dumps(data))
    assert read_lock(path).places == ()
    with InferenceSession(model, lock=path) as session:
        assert not session.schedules.keys() & set(merged_keys(network))


def test_commands_say_what_is_run(network: Model, tmp_path: Path, command: Command) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(made().SerializeToString())
    url = known(network, tmp_path, 1e-3, 1.5e-3, 9e-3)
    options = ["--db", url, "--threads", str(TARGET.threads)]
    uses = dict(zip(network.tasks, network.assembly.uses([*taking(network, 1e-3, 1.5e-3, 9e-3).values()]), strict=True))
    for name in ("tasks", "lookup"):
        data = command(name, model, *options, "--json").data
        assert {task["key"]: task["chosen"] for task in data["tasks"]} == uses
        assert {task["key"]: task["occurrences"] for task in data["tasks"]} == {
            key: count for key, (_, count) in network.tasks.items()
        }
        assert "0 of " in command(name, model, *options).out
    assert command("lock", model, *options, "--json").data["tasks"] == sum(1 for count in uses.values() if count)
