"""The contract of a Store, checked on every database."""

import dataclasses
import itertools
import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from tunewright.db import choice, transfer
from tunewright.db import store as store_module
from tunewright.db.best import TaskComparisons
from tunewright.db.errors import NotFound, StoreError
from tunewright.db.job import Lease, LeaseLost, SearchBudget
from tunewright.search_space.measurement import Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .conftest import in_threads

FAILED = Measurement(Status.CRASH, error="signal 11", build_s=0.5)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
times = st.floats(1e-9, 1e3)
measurements = st.one_of(
    st.builds(
        Measurement,
        st.just(Status.OK),
        st.lists(times, max_size=4).map(tuple),
        times,
        times | st.none(),
        times | st.none(),
        st.floats(0, math.inf) | st.none(),
        st.just(""),
        times,
        texts,
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        times | st.none(),
        times | st.none(),
    ),
    st.builds(
        Measurement,
        st.sampled_from([status for status in Status if status not in (Status.OK, Status.VOIDED)]),
        max_rel_err=st.floats(0, math.inf) | st.none(),
        error=texts,
        build_s=times,
    ),
)
schedules = st.builds(
    Schedule,
    texts,
    st.integers(0, 99),
    st.dictionaries(st.text(max_size=5), st.integers(-(2**70), 2**70), max_size=4).map(lambda d: tuple(d.items())),
)


class TestTasksAndTargets:
    def test_come_back_equal(self, filled, samples):
        assert filled.task(samples.task(8).key) == samples.task(8)
        assert filled.target(samples.target(4).key) == samples.target(4)

    def test_are_stored_once(self, store, samples):
        assert store.add_task(samples.task()) and not store.add_task(samples.task())
        assert store.add_target(samples.target()) and not store.add_target(samples.target())
        assert store.counts() == {"tasks": 1, "targets": 1, "jobs": 0, "trials": 0}

    def test_several_are_stored_in_one_transaction(self, store, samples):
        commits: list[object] = []
        inserts: list[str] = []
        event.listen(store.database.engine, "commit", commits.append)

        @event.listens_for(store.database.engine, "before_cursor_execute")
        def see(_connection, _cursor, statement, *_):
            if statement.startswith("INSERT"):
                inserts.append(statement)

        tasks = [samples.task(extent) for extent in range(1, 51)]
        store.add_task(tasks[7])
        commits.clear()
        inserts.clear()
        assert store.add_tasks(iter([*tasks, tasks[3]])) == 49
        assert (len(commits), len(inserts)) == (1, 1)
        assert store.tasks([task.key for task in tasks]) == {task.key: task for task in tasks}
        assert store.add_tasks(tasks) == store.add_tasks([]) == 0
        other = samples.task(99)
        assert store.add_tasks([other, dataclasses.replace(other, op="Other")]) == 1
        assert store.task(other.key).op == other.op

    def test_take_the_labels_of_a_model(self, store, samples):
        known, new = samples.task(7), samples.task(8)
        store.add_task(dataclasses.replace(known, op="Imported"))
        assert store.add_tasks([known, new]) == 1
        assert store.task(known.key).op == "Imported"
        assert store.add_tasks([known, new], relabel=True) == 0
        assert store.task(known.key) == known
        assert store.catalog.ops([known.key, new.key]) == {known.key: known.op, new.key: new.op}

    def test_several_writers_of_the_same_do_not_wait_for_each_other_for_ever(self, store, samples):
        tasks = [samples.task(extent) for extent in range(1, 21)]
        assert sum(in_threads(lambda n: store.add_tasks(tasks[::-1] if n % 2 else tasks), 4)) == len(tasks)

    def test_are_found_by_the_begin_of_their_key(self, filled, samples):
        keys = sorted(samples.task(extent).key for extent in (8, 9))
        assert filled.task_keys() == keys
        assert filled.task_keys(keys[0][:20]) == keys[:1]
        assert filled.task_keys(keys[1]) == keys[1:]
        for other in ("x", "%", "_" * 64, keys[0] + "0"):
            assert filled.task_keys(other) == []

    def test_the_first_label_stays(self, store, samples):
        store.add_task(samples.task())
        assert not store.add_task(dataclasses.replace(samples.task(), op="Other"))
        assert store.task(samples.task().key).op == "Relu"

    def test_unknown_keys_are_not_found(self, store):
        for find in (store.task, store.target):
            with pytest.raises(NotFound, match=r"no (task|target) 00"):
                find("00")

    def test_hostile_labels_are_only_text(self, store, samples):
        task = dataclasses.replace(samples.task(), op="'; DROP TABLE trials; --\n\0\ud800../")
        store.add_task(task)
        assert store.task(task.key).op == task.op
        assert store.counts()["trials"] == 0

    def test_are_found_by_kind(self, filled, samples):
        gpu = samples.target(kind="cuda")
        filled.add_target(gpu)
        both = sorted([samples.target(2), samples.target(4)], key=lambda target: target.key)
        assert filled.targets("cpu") == both
        assert filled.targets("cuda") == [gpu]
        assert filled.targets("abacus") == []
        assert sorted(filled.targets(), key=str) == sorted([*both, gpu], key=str)

    def test_many_are_found_at_once(self, filled, samples):
        tasks = {samples.task(extent).key: samples.task(extent) for extent in (8, 9)}
        assert filled.tasks(iter([*tasks, "00"])) == tasks
        assert filled.tasks([]) == {}


class TestTrials:
    @pytest.mark.slow
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(schedules, measurements), max_size=6))
    def test_come_back_exactly_and_in_order(self, store, samples, trials):
        # A task of its own for every example, since the database is shared by all of them.
        extent = 100 + store.counts()["tasks"]
        store.add_task(samples.task(extent))
        store.add_target(samples.target())
        records: dict[str, Record] = {}
        for schedule, measurement in trials:
            record = Record(samples.task(extent).key, samples.target().key, schedule, measurement)
            assert store.record(record) == (schedule.key not in records)
            records.setdefault(schedule.key, record)
        key = samples.task(extent).key, samples.target().key
        assert store.records(*key) == list(records.values())
        assert store.schedule_keys(*key) == records.keys()
        timed = [
            (record.measurement.median_s, n) for n, record in enumerate(records.values()) if record.measurement.median_s
        ]
        best = list(records.values())[min(timed)[1]] if timed else None
        assert store.best(*key) == best

    def test_the_first_of_a_schedule_stays(self, filled, samples):
        assert filled.record(samples.record(1))
        assert not filled.record(samples.record(1, FAILED))
        assert filled.records(samples.task().key, samples.target().key) == [samples.record(1)]

    def test_belong_to_one_task_and_one_target(self, filled, samples):
        for extent, threads in itertools.product((8, 9), (2, 4)):
            assert filled.record(samples.record(extent * threads, extent=extent, threads=threads))
        assert filled.records(samples.task(8).key, samples.target(4).key) == [samples.record(32, threads=4)]
        assert filled.schedule_keys(samples.task(9).key, samples.target(2).key) == {samples.schedule(18).key}

    def test_can_be_chosen_by_status(self, filled, samples):
        filled.record(samples.record(1))
        filled.record(samples.record(2, FAILED))
        key = samples.task().key, samples.target().key
        assert filled.records(*key, [Status.CRASH]) == [samples.record(2, FAILED)]
        assert filled.records(*key, [Status.TIMEOUT, Status.OK]) == [samples.record(1)]
        assert filled.records(*key, []) == []

    def test_the_best_is_ok_and_the_first_of_equals(self, filled, samples):
        key = samples.task().key, samples.target().key
        assert filled.best(*key) is None
        filled.record(samples.record(1, FAILED))
        assert filled.best(*key) is None
        for number, median_s in ((2, 3e-3), (3, 2e-3), (4, 2e-3), (5, 4e-3)):
            filled.record(samples.record(number, samples.measurement(median_s)))
        assert filled.best(*key).schedule == samples.schedule(3)

    def test_best_of_many_tasks(self, filled, samples, monkeypatch):
        monkeypatch.setattr(choice, "KEYS_AT_ONCE", 3)
        for number in (2, 1):
            filled.record(samples.record(number, extent=8))
            filled.record(samples.record(number + 5, extent=9))
        keys = [samples.task(extent).key for extent in (9, 8, 7, 8, 6, 5)]
        best = filled.best_many(iter(keys), samples.target().key)
        assert best == {keys[0]: samples.record(6, extent=9), keys[1]: samples.record(1)}
        assert filled.best_many([], samples.target().key) == {}

    def test_of_unknown_things_are_refused(self, filled, samples):
        for record in (samples.record(extent=77), samples.record(threads=77)):
            with pytest.raises(NotFound):
                filled.record(record)
        with pytest.raises(LeaseLost):
            filled.record(samples.record(), Lease(5, 1, "nobody"))
        assert filled.counts()["trials"] == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"median_s": None},
            {"median_s": 0.0},
            {"median_s": math.nan},
            {"high_s": math.inf},
            {"samples_s": (1e-3, -1.0)},
            {"build_s": math.nan},
            {"incumbent_s": 0.0},
            {"incumbent_s": math.inf},
            {"warm_s": math.nan},
            {"warm_s": -1.0},
        ],
    )
    def test_that_contradict_themselves_are_refused(self, filled, samples, wrong):
        with pytest.raises(ValueError, match=r"time|median"):
            filled.record(samples.record(1, dataclasses.replace(samples.measurement(), **wrong)))
        assert filled.counts()["trials"] == 0

    def test_what_no_database_keeps_is_replaced(self, filled, samples):
        filled.record(samples.record(1, Measurement(Status.WRONG_RESULT, max_rel_err=math.nan, error="a\0b\ud800c")))
        (record,) = filled.records(samples.task().key, samples.target().key)
        assert record.measurement.max_rel_err == math.inf
        assert record.measurement.error == "a\N{REPLACEMENT CHARACTER}b?c"

    def test_numbers_of_numpy_are_numbers(self, filled, samples):
        value: Any = np.float32(0.125)
        measurement = Measurement(Status.OK, (value, value), value, value, value, value, build_s=value)
        assert filled.record(samples.record(1, measurement))
        assert filled.best(samples.task().key, samples.target().key).measurement == measurement

    def test_are_copied_in_and_out(self, filled, samples):
        record = samples.record(1)
        filled.record(record)
        record.measurement.provenance["machine"] = "changed"
        copy = filled.best(samples.task().key, samples.target().key)
        assert copy.measurement.provenance == {"machine": "m1"}
        copy.measurement.provenance["machine"] = "changed"
        assert filled.best(samples.task().key, samples.target().key).measurement.provenance == {"machine": "m1"}


class TestConfirmations:
    def confirm(self, store, samples, number, median_s, **where):
        store.confirm(samples.record(number, samples.measurement(median_s), **where))

    def test_supersede_the_trials_before_them(self, filled, samples):
        key = samples.task().key, samples.target().key
        for number in range(4):
            filled.record(samples.record(number))
        self.confirm(filled, samples, 2, 5e-3)
        assert filled.best(*key) == samples.record(2, samples.measurement(5e-3))
        assert len(filled.records(*key)) == 4

    def test_give_way_to_faster_trials_after_them(self, filled, samples):
        key = samples.task().key, samples.target().key
        filled.record(samples.record(0))
        self.confirm(filled, samples, 0, 2e-3)
        filled.record(samples.record(1, samples.measurement(3e-3)))
        filled.record(samples.record(2, samples.measurement(2e-3)))
        filled.record(samples.record(3, FAILED))
        assert filled.best(*key).schedule == samples.schedule(0)
        filled.record(samples.record(4, samples.measurement(1e-3)))
        assert filled.best(*key).schedule == samples.schedule(4)

    def test_the_newest_counts(self, filled, samples):
        key = samples.task().key, samples.target().key
        for number in range(3):
            filled.record(samples.record(number))
            self.confirm(filled, samples, number, (number + 1) * 1e-3)
        last = samples.record(2, samples.measurement(3e-3))
        assert filled.best(*key) == last
        assert filled.confirmations([key[0], "00"], key[1]) == {key[0]: last}

    def test_of_one_taken_back_is_known_what_it_tells_of_the_default(self, filled, samples):
        task, target = samples.task().key, samples.target().key
        for number in range(2):
            filled.record(samples.record(number))
            self.confirm(filled, samples, number, (number + 1) * 1e-3)
        older, newer = (samples.record(number, samples.measurement((number + 1) * 1e-3)) for number in range(2))
        assert filled.comparisons([task, "00"], target) == {task: TaskComparisons(newer, newer)}
        filled.voids.void(task, target, newer.schedule.key, "wrong on odd sizes")
        assert filled.comparisons([task], target) == {task: TaskComparisons(older, newer)}
        filled.voids.void(task, target, older.schedule.key, "wrong on odd sizes")
        assert filled.comparisons([task], target) == {task: TaskComparisons(None, newer)}
        filled.voids.lift(task, target, older.schedule.key)
        assert filled.comparisons([task], target) == {task: TaskComparisons(older, newer)}

    def test_one_is_known_again_by_its_time(self, filled, samples):
        """As a report in milliseconds tells it; of several the newest, and as it is by now."""
        task, target = samples.task().key, samples.target().key
        for number in range(3):
            filled.record(samples.record(number))
            self.confirm(filled, samples, number, (1 + number // 2) * 1e-3)
        first, last = (samples.record(n, samples.measurement((1 + n // 2) * 1e-3)) for n in (1, 2))
        assert filled.comparisons_by_time({task: 1e-3 * 1e3 / 1e3, "00": 1e-3}, target) == {task: first}
        assert filled.comparisons_by_time({task: 2e-3 * (1 + 1e-12)}, target) == {task: last}
        assert filled.comparisons_by_time({task: 2e-3 * (1 + 1e-6)}, target) == {}
        assert filled.comparisons_by_time({task: 1e-3}, "00") == filled.comparisons_by_time({}, target) == {}
        filled.voids.void(task, target, last.schedule.key, "wrong on odd sizes")
        [voided] = filled.comparisons_by_time({task: 2e-3}, target).values()
        assert (voided.schedule, voided.measurement.status) == (last.schedule, Status.VOIDED)

    def test_a_failed_one_leaves_nothing_before_it(self, filled, samples):
        key = samples.task().key, samples.target().key
        filled.record(samples.record(0))
        filled.confirm(samples.record(0, FAILED))
        assert filled.best(*key) is None
        assert filled.confirmations([key[0]], key[1])[key[0]].measurement == FAILED
        filled.record(samples.record(1))
        assert filled.best(*key) == samples.record(1)

    def test_belong_to_one_task_and_one_target(self, filled, samples, monkeypatch):
        monkeypatch.setattr(choice, "KEYS_AT_ONCE", 1)
        for extent, threads in itertools.product((8, 9), (2, 4)):
            filled.record(samples.record(1, extent=extent, threads=threads))
        self.confirm(filled, samples, 7, 9e-3, extent=8, threads=2)
        keys = [samples.task(extent).key for extent in (8, 9)]
        best = filled.best_many(keys, samples.target(2).key)
        assert [best[key].schedule for key in keys] == [samples.schedule(7), samples.schedule(1)]
        best = filled.best_many(keys, samples.target(4).key)
        assert [best[key].schedule for key in keys] == [samples.schedule(1)] * 2
        assert filled.confirmations(keys, samples.target(4).key) == {}

    def test_are_checked_as_trials_are(self, filled, samples):
        for record in (samples.record(extent=77), samples.record(threads=77)):
            with pytest.raises(NotFound):
                filled.confirm(record)
        with pytest.raises(ValueError, match="median"):
            filled.confirm(samples.record(0, Measurement(Status.OK)))
        assert filled.confirmations([samples.task().key], samples.target().key) == {}


class TestExamples:
    def test_are_every_trial_of_a_kind_of_target_newest_first(self, filled, samples, monkeypatch):
        monkeypatch.setattr(store_module, "EXAMPLES_OF_PAGE", 3)
        other = samples.target(kind="cuda")
        filled.add_target(other)
        filled.record(dataclasses.replace(samples.record(99), target_key=other.key))
        for number in range(8):
            measurement = FAILED if number == 3 else None
            filled.record(samples.record(number, measurement, extent=8 + number % 2, threads=2 + number // 4 * 2))
        examples = list(filled.examples("cpu"))
        assert [candidate.schedule["tile_m"] for candidate, _ in examples] == list(range(7, -1, -1))
        numbers = dataclasses.replace(samples.measurement(1e-3 + 7e-6), samples_s=(), object_sha256="", provenance={})
        assert examples[0] == (Candidate(samples.task(9), samples.target(4), samples.schedule(7)), numbers)
        assert examples[4][1] == dataclasses.replace(FAILED, error="")
        assert len({id(candidate.task) for candidate, _ in examples}) == len({id(c.target) for c, _ in examples}) == 2
        assert [candidate.target for candidate, _ in filled.examples("cuda")] == [other]
        assert list(filled.examples("abacus")) == []

    def test_begin_after_a_trial_and_end_with_one(self, filled, samples, monkeypatch):
        monkeypatch.setattr(store_module, "EXAMPLES_OF_PAGE", 2)
        assert filled.newest_trial() == 0
        marks = []
        for number in range(7):
            filled.record(samples.record(number, extent=8 + number % 2))
            marks.append(filled.newest_trial())

        def numbers(*bounds):
            return [candidate.schedule["tile_m"] for candidate, _ in filled.examples("cpu", *bounds)]

        assert numbers(0) == numbers() == [6, 5, 4, 3, 2, 1, 0]
        assert numbers(marks[2]) == [6, 5, 4, 3]
        assert numbers(marks[2], marks[4]) == [4, 3]
        assert numbers(marks[2], marks[2]) == numbers(marks[6]) == []
        assert numbers(0, marks[0]) == [0]

    def test_hold_no_lock_between_pages(self, filled, samples, monkeypatch):
        monkeypatch.setattr(store_module, "EXAMPLES_OF_PAGE", 1)
        for number in range(3):
            filled.record(samples.record(number))
        seen = []
        for candidate, _ in filled.examples("cpu"):
            seen.append(candidate.schedule["tile_m"])
            filled.record(samples.record(10 + len(seen)))  # on one connection, this would wait for itself
        assert seen == [2, 1, 0]


class TestExchange:
    def make(self, store, samples):
        samples.fill(store)
        for number in range(7):
            store.record(samples.record(number, extent=8 + number % 2, threads=2 + number // 4 * 2))
        store.record(samples.record(8, Measurement(Status.WRONG_RESULT, max_rel_err=math.inf, error="far off")))

    def test_an_exported_trial_stands_alone(self, filled, samples):
        filled.record(samples.record(1))
        (line,) = filled.export()
        assert line == {
            "schema": 2,
            "kind": "trial",
            "task_key": samples.task().key,
            "task": samples.task().to_json(),
            "target_key": samples.target().key,
            "target": samples.target().to_json(),
            "schedule": samples.schedule(1).to_json(),
            **samples.measurement(1e-3 + 1e-6).to_json(),
            "created_at": line["created_at"],
            "voided_at": None,
            "void_reason": "",
        }
        assert datetime.fromisoformat(line["created_at"]).tzinfo is UTC

    def test_an_import_restores_an_export(self, store, samples, make_url, monkeypatch):
        monkeypatch.setattr(transfer, "PAGE", 3)
        self.make(store, samples)
        lines = [json.dumps(line, allow_nan=False) for line in store.export()]
        assert len(lines) == 8
        with store_module.open_store(make_url("memory")) as other:
            assert dataclasses.astuple(other.import_([*lines, "\n", lines[0]])) == (8, 1)
            assert dataclasses.astuple(other.import_(lines)) == (0, 8)
            assert sorted(map(json.dumps, other.export())) == sorted(lines)
        assert dataclasses.astuple(store.import_(lines)) == (0, 8)

    def test_a_bad_line_is_named_and_the_lines_before_it_are_kept(self, store, samples, make_url):
        self.make(store, samples)
        lines = [json.dumps(line) for line in store.export()]
        with store_module.open_store(make_url("memory")) as other:
            with pytest.raises(StoreError, match=r"^line 4: "):
                other.import_([lines[0], "", lines[1], "{", lines[2]])
            assert other.counts()["trials"] == 2
            assert dataclasses.astuple(other.import_(lines)) == (6, 2)

    def test_imports_at_once_do_not_block_each_other(self, store, samples, make_url):
        with store_module.open_store(make_url("memory")) as other:
            self.make(other, samples)
            lines = [json.dumps(line) for line in other.export()]
        totals = in_threads(lambda n: store.import_(lines[::-1] if n % 2 else lines).added, 4)
        assert sum(totals) == 8


class TestThreads:
    def test_share_a_store(self, filled, samples):
        def write(thread):
            return sum(filled.record(samples.record(number)) for number in range(thread * 5, thread * 5 + 15))

        assert sum(in_threads(write, 4)) == 30
        assert len(filled.schedule_keys(samples.task().key, samples.target().key)) == 30

    def test_number_the_trials_of_a_job_without_gaps(self, filled, samples):
        lease = filled.jobs.open(samples.spec(), "", SearchBudget(10), "h")
        in_threads(lambda n: [filled.record(samples.record(10 * n + i), lease) for i in range(6)], 4)
        assert [trial.ordinal for trial in filled.jobs.trials(lease.job_id)] == list(range(24))
