"""What lookups ask: it agrees with what the trials and confirmations say, and takes a few queries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from tunewright.db import recorder
from tunewright.db.errors import Unreachable
from tunewright.db.job import SearchBudget
from tunewright.db.store import Store, open_store
from tunewright.search_space.measurement import Measurement, Record, Status

from .conftest import FROZEN, in_threads, plan, selected

CRASHED = Measurement(Status.CRASH, error="it crashed")


@pytest.fixture(scope="module")
def elsewhere(samples):
    """Another database."""
    with open_store("sqlite://") as opened:
        samples.fill(opened)
        yield opened


def agreed(store: Store, task_keys, target_key) -> bool:
    """Whether the table of bests says what `Store.best` finds."""
    bests = {key: best for (key, _), best in store.catalog.best(task_keys, [target_key]).items()}
    walked = store.best_many(task_keys, target_key)
    confirmed = store.confirmations(task_keys, target_key)
    assert {best.task_key: best for best in store.catalog.best_on(target_key)}.items() >= bests.items()
    return bests.keys() == walked.keys() and all(
        (best.schedule, best.median_s, best.samples, json.loads(best.provenance_json)) == of_record(walked[key])
        and (not best.is_confirmed or best.is_imported or walked[key] == confirmed[key])
        for key, best in bests.items()
    )


def of_record(record: Record) -> tuple[Any, ...]:
    measurement = record.measurement
    return record.schedule, measurement.median_s, len(measurement.samples_s), measurement.provenance


steps = st.tuples(
    st.sampled_from(["record", "confirm", "import"]), st.integers(0, 5), st.sampled_from([1e-3, 2e-3, 3e-3, None])
)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=10))
def test_the_best_is_always_what_trials_and_confirmations_say(filled, elsewhere, samples, steps):
    extent = 100 + filled.counts()["tasks"]  # a task of its own for every example
    filled.add_task(samples.task(extent))
    keys, target_key = [samples.task(extent).key, samples.task(8).key], samples.target().key
    for kind, number, median_s in steps:
        measurement = CRASHED if median_s is None else samples.measurement(median_s)
        record = samples.record(number, measurement, extent=extent)
        match kind:
            case "record":
                filled.record(record)
            case "confirm":
                filled.confirm(record)
            case "import":
                elsewhere.add_task(samples.task(extent))
                elsewhere.record(record)
                elsewhere.confirm(record)
                lines = [line for line in elsewhere.export() if line["task_key"] == keys[0]]
                filled.import_(map(json.dumps, lines))
        assert agreed(filled, keys, target_key)


def test_a_trial_that_a_confirmation_overtook_is_not_the_best(filled, samples, monkeypatch):
    key, target_key = samples.task().key, samples.target().key
    filled.record(samples.record(0))
    filled.confirm(samples.record(1))
    monkeypatch.setattr(recorder, "trial_created_at", lambda now, _confirmed_at: now - timedelta(seconds=9))
    filled.record(samples.record(2, samples.measurement(1e-6)))
    assert agreed(filled, [key], target_key)
    assert filled.catalog.best([key], [target_key])[key, target_key].schedule == samples.schedule(1)


def test_the_best_is_right_where_several_store_at_once(filled, samples):
    key, target_key = samples.task().key, samples.target().key

    def store(thread):
        for number in range(8):
            record = samples.record(10 * thread + number, samples.measurement((8 - number) * 1e-3))
            (filled.confirm if thread == 0 and number % 3 == 2 else filled.record)(record)

    in_threads(store, 4)
    assert agreed(filled, [key], target_key)


def test_storing_a_trial_takes_a_few_statements(filled, samples):
    lease = filled.jobs.open(samples.spec(), "", SearchBudget(10), "h")
    filled.confirm(samples.record(0))
    for number in (1, 2):
        with counted(filled) as statements:
            filled.record(samples.record(number, samples.measurement(5e-4 / number)), lease)
        assert len(statements) <= 8


def test_the_best_of_several_targets(filled, samples):
    two, four = samples.target(2).key, samples.target(4).key
    filled.record(samples.record(1))
    filled.record(samples.record(2, threads=4))
    filled.record(samples.record(3, extent=9))
    keys = [samples.task(extent).key for extent in (8, 9, 10)]
    best = filled.catalog.best(iter(keys), [two, four])
    assert {pair: record.schedule for pair, record in best.items()} == {
        (keys[0], two): samples.schedule(1),
        (keys[0], four): samples.schedule(2),
        (keys[1], two): samples.schedule(3),
    }
    assert {record.op for record in best.values()} == {"Relu"}
    assert filled.catalog.best([], [two]) == filled.catalog.best(keys, []) == {}


def test_the_bests_of_a_target_come_in_pages(filled, samples):
    for extent in range(10, 17):
        filled.add_task(samples.task(extent))
        filled.record(samples.record(extent, extent=extent))
    keys = sorted(samples.task(extent).key for extent in range(10, 17))
    target_key, page_keys, after = samples.target().key, [], ""
    while page := filled.catalog.best_on(target_key, after, 3):
        assert len(page) <= 3
        page_keys += [best.task_key for best in page]
        after = page[-1].task_key
    assert page_keys == keys
    assert filled.catalog.best_on(samples.target(4).key) == []


def labelled(store: Store, samples, op: str, extent: int) -> str:
    """Make a task known under a label. Its key."""
    task = replace(samples.task(extent), op=op)
    store.add_task(task)
    key: str = task.key
    return key


def test_what_tasks_are(filled, samples):
    key = labelled(filled, samples, "Conv\x1b", 21)
    keys = [key, samples.task(8).key, "ab" * 32]
    assert filled.catalog.ops(keys) == {key: "Conv\x1b", keys[1]: "Relu"}
    assert filled.catalog.shapes(keys) == {key: "21 -> 21", keys[1]: "8 -> 8"}


class TestSearch:
    def test_finds_the_newest_first(self, filled, samples, clock):
        for number, (extent, threads) in enumerate([(8, 2), (9, 2), (8, 4)]):
            clock.advance(1)
            filled.record(samples.record(number, extent=extent, threads=threads))
        start = clock.now - timedelta(seconds=2)
        hits = filled.catalog.search()
        keys = [(samples.task(extent).key, samples.target(threads).key) for extent, threads in [(8, 4), (9, 2), (8, 2)]]
        assert [(hit.best.task_key, hit.best.target_key) for hit in hits] == keys
        assert [hit.created_at - start for hit in hits] == [timedelta(seconds=n) for n in (2, 1, 0)]
        assert {hit.shape for hit in hits} == {"8 -> 8", "9 -> 9"}
        assert [hit.best for hit in hits] == [filled.catalog.best([key], [on])[key, on] for key, on in keys]
        assert filled.catalog.search(target_key=samples.target(2).key) == hits[1:]
        assert filled.catalog.search(since=hits[1].created_at) == hits[:2]
        clock.advance(1)
        filled.confirm(samples.record(0))
        newest, *_ = filled.catalog.search()
        assert (newest.created_at, newest.best.task_key, newest.best.is_confirmed) == (clock.now, keys[2][0], True)

    def test_finds_texts_in_whatever_letters_and_takes_them_as_they_are(self, filled, samples):
        ops = ["Conv+Relu", "100%", "a_b", "a/b", "axb", "'; DROP TABLE bests; --", "\ud800\0"]
        for number, op in enumerate(ops, 20):
            labelled(filled, samples, op, number)
            filled.record(samples.record(0, extent=number))

        def found(text: str) -> list[str]:
            return sorted(hit.best.op for hit in filled.catalog.search(op=text))

        assert found("conv") == found("+reL") == ["Conv+Relu"]
        assert found("0%") == ["100%"]
        assert found("a_b") == ["a_b"]
        assert found("a/b") == ["a/b"]
        assert found("drop table") == [ops[5]]
        assert len(found("\0")) == len(found("\ud800\0")) == 1
        assert len(found("")) == len(ops)
        assert found("\\") == found("x" * 9999) == []
        assert [hit.best.op for hit in filled.catalog.search(shape="23 -> 23")] == ["a/b"]
        assert [hit.best.op for hit in filled.catalog.search(shape="2", op="axb", limit=1)] == ["axb"]
        assert filled.catalog.search(shape="23", op="axb") == []

    @pytest.mark.parametrize("is_oldest_first", [False, True])
    def test_comes_in_pages(self, filled, samples, clock, is_oldest_first):
        for extent in range(10, 19):
            clock.advance(extent % 2)
            filled.add_task(samples.task(extent))
            filled.record(samples.record(extent, extent=extent))
        everything = filled.catalog.search(is_oldest_first=is_oldest_first)
        assert everything[::-1] == filled.catalog.search(is_oldest_first=not is_oldest_first)
        hits, after = [], None
        while page := filled.catalog.search(after=after, limit=2, is_oldest_first=is_oldest_first):
            assert len(page) <= 2
            hits += page
            after = page[-1].place
        assert hits == everything and len(hits) == 9
        among = {"op": "relu", "shape": "1", "is_oldest_first": is_oldest_first}
        some = filled.catalog.search(**among, after=everything[3].place, limit=2)
        assert some == everything[4:6]

    @pytest.mark.parametrize(
        "after",
        [
            "",
            "x",
            "{0} a",
            "{0} a b",
            "{0} {1:064x}",
            "2026-01-01 {1:064x} {1:064x}",
            "2026-01-01T00:00:00+14:00 {1:064x} {1:064x}",
            "2026-13-01T00:00:00+00:00 {1:064x} {1:064x}",
            "{0} {1:064x} {1:064x}\0",
        ],
    )
    def test_refuses_what_is_no_place(self, filled, after):
        with pytest.raises(ValueError, match=r"."):
            filled.catalog.search(after=after.format("2026-01-01T00:00:00+00:00", 7))

    def test_sorts_nothing(self, filled, samples):
        filled.record(samples.record(1))
        catalog = filled.catalog
        with selected(filled) as statements:
            (hit,) = catalog.search(target_key=samples.target().key, op="r", shape="8", limit=5)
            catalog.search(since=hit.created_at, after=hit.place, limit=5)
            catalog.search(limit=5)
            catalog.search(after=hit.place, is_oldest_first=True, limit=5)
        if filled.database.is_sqlite:  # PostgreSQL sorts a table as small as this one
            for query in statements:
                steps = plan(filled, query).splitlines()
                assert "ix_bests_created_at_target_key_task_key" in steps[0], steps
                assert len(steps) == 2 and steps[1].startswith("SEARCH tasks"), steps


class TestCoverage:
    def test_looks_at_the_newest_jobs_alone(self, filled, samples):
        filled.jobs.submit(samples.spec(0), "", SearchBudget(1))
        with selected(filled) as statements:
            assert len(filled.catalog.gaps()) == 2
        if filled.database.is_sqlite:  # PostgreSQL reads all of tables as small as these
            (query,) = statements
            steps = plan(filled, query)
            for name in ("job_tasks", "bests", "tasks"):
                assert f"SEARCH {name} " in steps and f"SCAN {name}" not in steps, steps

    def test_names_what_jobs_wanted_and_nobody_found(self, filled, samples):
        catalog, (eight, nine) = filled.catalog, (samples.task(8).key, samples.task(9).key)
        assert catalog.gaps() == [] and catalog.task_counts() == {}
        first = filled.jobs.submit(samples.spec(0), "", SearchBudget(1)).job.id
        second = filled.jobs.submit(samples.spec(1), "", SearchBudget(1)).job.id
        third = filled.jobs.submit(samples.spec(2, threads=4), "", SearchBudget(1)).job.id
        filled.jobs.submit(
            replace(samples.spec(3), target_key=""), "", SearchBudget(1)
        )  # it lacks nothing on any target yet
        filled.jobs.cancel(third)
        two, four = samples.target(2).key, samples.target(4).key
        gaps = catalog.gaps()
        assert [(gap.target_key, gap.job_id) for gap in gaps] == [(four, third)] * 2 + [(two, second)] * 2
        assert [gap.task_key for gap in gaps] == sorted([eight, nine]) * 2
        assert {(gap.op, gap.shape) for gap in gaps} == {("Relu", "8 -> 8"), ("Relu", "9 -> 9")}
        filled.record(samples.record(0, CRASHED))
        filled.record(samples.record(1, extent=9))
        filled.record(samples.record(1, threads=4))
        assert [(gap.task_key, gap.target_key) for gap in catalog.gaps()] == [(nine, four), (eight, two)]
        assert catalog.task_counts() == {two: (1, 0), four: (1, 0)}
        assert catalog.gaps(limit=1) == catalog.gaps(jobs=1) == catalog.gaps()[:1]
        assert first < second and catalog.gaps(jobs=0) == []


def test_failures_are_those_of_the_target(filled, samples):
    filled.record(samples.record(0, CRASHED))
    filled.record(samples.record(1))
    filled.record(samples.record(2, CRASHED, threads=4))
    filled.confirm(samples.record(3, CRASHED))
    key = samples.task().key
    failed = {samples.schedule(0).key, samples.schedule(3).key}
    assert filled.catalog.failures([key, samples.task(9).key], samples.target().key) == {key: failed}
    filled.confirm(samples.record(1))
    assert filled.catalog.failures([key], samples.target().key) == {key: {samples.schedule(0).key}}


def test_the_fastest_of_some_versions_of_sketches(filled, samples):
    for number in range(4):
        filled.record(samples.record(number))
    old = samples.record(9, samples.measurement(1e-6))
    filled.record(replace(old, schedule=replace(old.schedule, version=0)))
    filled.record(samples.record(8, CRASHED))
    key, target_key = samples.task().key, samples.target().key
    fastest = filled.catalog.fastest([key, samples.task(9).key], target_key, [("tiled", 1), ("other", 7)], limit=2)
    assert [best.schedule for best in fastest[key]] == [samples.schedule(0), samples.schedule(1)]
    assert fastest[key][0].median_s == samples.record(0).measurement.median_s and len(fastest) == 1
    assert filled.catalog.fastest([key], target_key, [("tiled", 5)]) == {}


def test_relatives_are_those_of_a_family_with_a_best(filled, samples):
    family = samples.task(8).family
    for extent in (10, 11, 12):
        filled.add_task(samples.task(extent))
    for number, extent in enumerate((8, 10, 9, 8)):
        filled.record(samples.record(number, extent=extent))
    filled.record(samples.record(0, CRASHED, extent=11))
    filled.record(samples.record(0, extent=12, threads=4))
    keys = {extent: samples.task(extent).key for extent in (8, 9, 10, 12)}
    two, four = samples.target(2).key, samples.target(4).key
    catalog = filled.catalog
    assert catalog.relatives([family], [two], 10) == {family: sorted(keys[extent] for extent in (8, 9, 10))}
    assert catalog.relatives([family, "00" * 32], [two, four], 3) == {family: sorted(keys.values())[:3]}
    assert catalog.relatives([family], [], 10) == catalog.relatives(["00" * 32], [two], 10) == {}
    assert catalog.definitions([*keys.values(), "00" * 32]) == {
        key: samples.task(extent).to_json() for extent, key in keys.items()
    }


def test_marks_tell_what_changed(filled, samples):
    marks = filled.catalog.marks()
    assert filled.catalog.marks() == marks and filled.catalog.changes(marks) == set()
    filled.record(samples.record(0, CRASHED))
    filled.confirm(samples.record(1, extent=9, threads=4))
    pairs = {(samples.task().key, samples.target().key), (samples.task(9).key, samples.target(4).key)}
    assert filled.catalog.changes(marks) == pairs
    assert filled.catalog.changes(filled.catalog.marks()) == set()


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", note)
    yield statements
    event.remove(store.database.engine, "before_cursor_execute", note)


def test_a_thousand_tasks_take_a_few_queries(filled, samples):
    filled.record(samples.record(0))
    keys = [samples.task().key, *(f"{number:064x}" for number in range(1023))]
    target_key = samples.target().key
    with counted(filled) as statements:
        assert len(filled.catalog.best(keys, [target_key])) == 1
    assert len([line for line in statements if line.startswith("SELECT")]) <= 3
    with counted(filled) as statements:
        filled.catalog.failures(keys, target_key)
        filled.catalog.relatives([f"{number:064x}" for number in range(100)], [target_key], 10)
    assert len([line for line in statements if line.startswith("SELECT")]) <= 13


def test_an_iterator_of_keys_survives_a_lost_connection(filled, samples, monkeypatch):
    record = samples.record(0)
    filled.record(record)
    filled.record(samples.record(1, CRASHED))
    filled.confirm(record)
    keys, target_key, family = [record.task_key], record.target_key, samples.task().family
    read, losses = filled.database.read, [0]

    @contextmanager
    def lose_connection_once():
        with read() as session:
            yield session
            losses[0] += 1
            if losses[0] == 1:
                raise Unreachable("the connection was lost")

    for ask in (
        lambda items: filled.catalog.best(items(keys), [target_key]),
        lambda items: filled.catalog.fastest(items(keys), target_key, [("tiled", 1)]),
        lambda items: filled.catalog.failures(task_keys=items(keys), target_key=target_key),
        lambda items: filled.catalog.relatives(items([family]), [target_key], 1),
        lambda items: filled.catalog.ops(items(keys)),
        lambda items: filled.best_many(items(keys), target_key),
        lambda items: filled.confirmations(items(keys), target_key),
    ):
        expected = ask(list)
        assert expected
        with monkeypatch.context() as patch:
            patch.setattr(filled.database, "patience_s", 5.0)
            patch.setattr(filled.database, "read", lose_connection_once)
            losses[0] = 0
            assert ask(iter) == expected
        assert losses[0] == 2


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_migration_finds_the_best_of_what_there_was(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        for target in store.targets():
            assert agreed(store, store.task_keys(), target.key)
            assert store.catalog.best_on(target.key)
