"""The ladder: each rung, what is never offered, and how many queries it takes."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest
from onnx import TensorProto, helper
from sqlalchemy import event

from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds, spaces
from tunewright.tuner.lookup import ladder
from tunewright.tuner.lookup import result as result_module
from tunewright.tuner.lookup.ladder import Ladder, distances, lookup_measured, numbers, siblings
from tunewright.tuner.lookup.near_picks import work_ratio
from tunewright.tuner.lookup.result import Basis, Match, Pick, read
from tunewright.tuner.models.model import open_model

TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "+avx512f", 512, 32, 2, 49152, 1 << 20, 1 << 25)
CRASHED = Measurement(Status.CRASH, error="it crashed")


def took(median_s: float) -> Measurement:
    return Measurement(Status.OK, (median_s,) * 5, median_s, 0.9 * median_s, 1.1 * median_s, 0.0, provenance={"m": "1"})


def product(rows: int, inner: int, columns: int) -> Task:
    """The one task of x w."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [inner, columns], [0.3] * (inner * columns))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    [(task, _)] = open_model(model.SerializeToString()).tasks.values()
    return task


TASK = product(64, 64, 64)
NEAR, NEARER, FAR = product(64, 64, 256), product(64, 64, 128), product(64, 64, 2048)


@pytest.fixture
def store(store: Store) -> Store:
    for task in (TASK, NEAR, NEARER, FAR):
        store.add_task(task)
    store.add_target(TARGET)
    return store


def points(task: Task, count: int = 8) -> list[Schedule]:
    """Schedules that are legal for the task, the default not among them."""
    [space, *_] = spaces(task, TARGET)
    default = default_schedule(task, TARGET)
    return [one for one in map(space.schedule, space.points) if one != default][:count]


def shared(*tasks: Task) -> Schedule:
    """A schedule that is legal for all of them, and none's default."""
    return next(
        one
        for one in points(tasks[0], 10_000)
        if all(holds(task, TARGET, one) and one != default_schedule(task, TARGET) for task in tasks)
    )


def put(store: Store, task: Task, schedule: Schedule, target: Target = TARGET, median_s: float = 1e-3) -> None:
    store.add_task(task)
    store.add_target(target)
    store.record(Record(task.key, target.key, schedule, took(median_s)))


def find(store: Store, task: Task = TASK) -> result_module.LookupResult:
    return lookup_measured(store, [task], TARGET)[task.key]


def test_they_are_of_one_family() -> None:
    assert len({task.family for task in (TASK, NEAR, NEARER, FAR)}) == 1


class TestSiblings:
    @pytest.mark.parametrize(
        "changes",
        [
            {"kind": "cuda", "gpu": KNOWN["sm_80"]},
            {"triple": "aarch64-linux"},
            {"vector_bits": 256},
            {"vector_registers": 16},
        ],
        ids=str,
    )
    def test_other_kinds_are_none(self, changes, store) -> None:
        put(store, TASK, points(TASK)[0], replace(TARGET, **changes))
        assert find(store).match is Match.DEFAULT

    def test_the_nearest_comes_first(self) -> None:
        cache, threads = replace(TARGET, l3_bytes=1 << 26), replace(TARGET, threads=16)
        cpu = replace(TARGET, cpu="znver4")
        assert siblings(TARGET, [cpu, threads, TARGET, cache]) == [cache, threads, cpu]

    def test_the_time_is_that_of_the_sibling(self, store) -> None:
        sibling = replace(TARGET, threads=4)
        put(store, TASK, points(TASK)[0], sibling, 5e-4)
        one = find(store)
        assert (one.match, one.basis, one.confirmed) == (Match.SIBLING, Basis.SIBLING, False)
        assert one.expected_s == 5e-4
        assert one.interval_s == pytest.approx((4.5e-4, 5.5e-4))
        assert one.source == result_module.ResultSource(TASK.key, sibling.key, "cpu:znver5:4x512")

    def test_what_is_illegal_here_is_passed_over(self, store) -> None:
        put(store, TASK, Schedule("generic", 1, (("no_such_knob", 1),)), replace(TARGET, threads=4), 1e-9)
        put(store, TASK, points(TASK)[0], replace(TARGET, threads=16))
        assert find(store).source == result_module.ResultSource(
            TASK.key, replace(TARGET, threads=16).key, "cpu:znver5:16x512"
        )

    def test_a_record_of_the_target_comes_first(self, store) -> None:
        put(store, TASK, points(TASK)[0], replace(TARGET, threads=4), 1e-9)
        put(store, TASK, points(TASK)[1])
        assert (find(store).match, find(store).schedule) == (Match.EXACT, points(TASK)[1])


class TestNearest:
    def test_the_time_is_scaled(self, store) -> None:
        put(store, FAR, shared(TASK, FAR), median_s=1e-9)
        put(store, NEAR, shared(TASK, NEAR), median_s=3e-3)
        put(store, NEARER, shared(TASK, NEARER), median_s=2e-3)
        one = find(store)
        assert (one.match, one.basis, one.source and one.source.task_key) == (Match.NEAREST, Basis.SCALED, NEARER.key)
        assert one.expected_s == pytest.approx(1e-3) and one.interval_s is None

    def test_one_of_the_target_comes_before_a_nearer_one_of_a_sibling(self, store) -> None:
        put(store, NEARER, shared(TASK, NEARER), replace(TARGET, threads=4))
        put(store, NEAR, shared(TASK, NEAR))
        assert find(store).source == result_module.ResultSource(NEAR.key, TARGET.key, str(TARGET))

    def test_what_does_not_fit_is_passed_over(self, store) -> None:
        unfit = next(one for one in points(NEARER, 10_000) if not holds(TASK, TARGET, one))
        put(store, NEARER, unfit)
        assert find(store).match is Match.DEFAULT
        put(store, NEAR, shared(TASK, NEAR))
        assert find(store).source == result_module.ResultSource(NEAR.key, TARGET.key, str(TARGET))

    def test_what_is_too_far_is_none(self, store, monkeypatch) -> None:
        put(store, FAR, shared(TASK, FAR))
        assert find(store).match is Match.NEAREST
        monkeypatch.setattr(ladder, "FARTHEST", 0.5)
        assert find(store).match is Match.DEFAULT

    def test_distances(self) -> None:
        own = numbers(TASK.to_json())
        near, nearer, far, itself = distances(own, [numbers(task.to_json()) for task in (NEAR, NEARER, FAR, TASK)])
        assert 0 == itself < nearer < near < far
        assert distances(own, [own[:-1]]) == float("inf")
        assert work_ratio(NEARER, TASK) == 2.0

    def test_numbers_may_be_anything(self) -> None:
        data = {"op": 7, "a": [float("inf"), float("-inf"), float("nan"), -1, 0, 10**400, True, None], "b": {"c": 1.5}}
        assert len(numbers(data)) == 7 and all(map(isfinite, numbers(data)))


class TestFailures:
    def test_what_failed_here_is_not_offered(self, store) -> None:
        one = shared(TASK, NEARER)
        put(store, TASK, one, replace(TARGET, threads=4))
        put(store, NEARER, one)
        store.record(Record(TASK.key, TARGET.key, one, CRASHED))
        assert find(store).match is Match.DEFAULT

    def test_nor_what_failed_when_it_was_compared(self, store) -> None:
        one = points(TASK)[0]
        put(store, TASK, one)
        put(store, TASK, one, replace(TARGET, threads=4))
        store.confirm(Record(TASK.key, TARGET.key, one, CRASHED))
        assert find(store).match is Match.DEFAULT


def test_schedules_of_older_versions_are_passed_over(store) -> None:
    old = replace(points(TASK)[0], version=0)
    put(store, TASK, old, median_s=1e-9)
    assert find(store).match is Match.DEFAULT
    put(store, TASK, points(TASK)[1], median_s=2e-3)
    put(store, TASK, points(TASK)[2], median_s=1e-3)
    assert (find(store).match, find(store).schedule, find(store).expected_s) == (Match.EXACT, points(TASK)[2], 1e-3)


def test_a_pick_comes_last(store) -> None:
    class Picks:
        def pick(self, task, target, failed):
            assert failed == ({points(TASK)[1].key} if task == TASK else set())
            return Pick(points(task)[0], 2e-3) if task == TASK else None

        def better(self, task, target, failed, rival):
            raise AssertionError("nothing was taken over")

    store.record(Record(TASK.key, TARGET.key, points(TASK)[1], CRASHED))
    said = Ladder(store, Picks()).find([TASK, FAR], TARGET)
    assert [one.match for one in said.values()] == [Match.PREDICTED, Match.DEFAULT]
    assert (said[TASK.key].basis, said[TASK.key].expected_s) == (Basis.PREDICTED, 2e-3)


def test_what_the_model_expects_to_be_slower_is_not_taken_over(store) -> None:
    """After a short search the best of a near task is the best of a few."""

    class Picks:
        def pick(self, task, target, failed):
            raise AssertionError("nothing is left to be picked")

        def better(self, task, target, failed, rival):
            assert rival == shared(TASK, NEAR) and failed == {points(TASK)[1].key}
            return Pick(points(TASK)[0], 2e-3) if is_better else None

    put(store, NEAR, shared(TASK, NEAR))
    store.record(Record(TASK.key, TARGET.key, points(TASK)[1], CRASHED))
    for is_better in (False, True):
        [said] = Ladder(store, Picks()).find([TASK], TARGET).values()
        assert said.match is (Match.PREDICTED if is_better else Match.NEAREST)
        assert said.schedule == (points(TASK)[0] if is_better else shared(TASK, NEAR))


def test_no_more_queries_for_more_tasks(store) -> None:
    tasks = [product(rows, 8, 8) for rows in range(1, 40)]
    for task in tasks[::2]:
        put(store, task, default_schedule(task, TARGET), replace(TARGET, threads=4))
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    event.listen(store.database.engine, "before_cursor_execute", note)
    one = Ladder(store)
    one.find(tasks[:2], TARGET)
    few, count = count, 0
    one.find(tasks, TARGET)
    assert count <= few
    matches = [said.match for said in one.find(tasks, TARGET).values()]
    assert matches[::2] == [Match.SIBLING] * 20 and set(matches[1::2]) <= {Match.NEAREST, Match.DEFAULT}


def test_what_there_is_no_time_for_is_left_out(store) -> None:
    put(store, TASK, points(TASK)[0])
    assert Ladder(store).find([TASK, NEAR], TARGET, -1.0).keys() == {TASK.key}


def test_an_answer_can_be_read(store) -> None:
    put(store, NEARER, shared(TASK, NEARER), replace(TARGET, threads=4), 2e-3)
    for task in (TASK, NEARER, FAR):
        one = find(store, task)
        again = read(task, TARGET, one.to_json())
        assert again.to_json() == one.to_json()
        assert (again.match, again.schedule, again.source) == (one.match, one.schedule, one.source)
