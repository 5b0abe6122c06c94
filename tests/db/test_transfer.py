"""Records travel between databases, which then agree on what to use."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from tunewright.db import choice, exchange, transfer
from tunewright.db.exchange import BadLine
from tunewright.db.store import open_store
from tunewright.db.tables import BestRow, ConfirmationRow, CostModelRow, RepeatRow, TrialRow
from tunewright.db.transfer import IMPORTED_NOISE
from tunewright.search_space.measurement import NOISE, Measurement, Status

FAILED = Measurement(Status.CRASH, error="signal 11")
DOCS = Path(__file__).parents[2] / "docs" / "records.md"
START = datetime(2025, 3, 1, tzinfo=UTC)


def lines_of(store):
    return [json.dumps(line, allow_nan=False) for line in store.export()]


def counted(imported):
    return dataclasses.astuple(imported)


@pytest.fixture
def pair(make_url, samples):
    """Two databases in memory that know the same tasks and targets, with clocks that the test sets."""
    with open_store(make_url("memory")) as one, open_store(make_url("memory")) as two:
        for store in (one, two):
            samples.fill(store)
            store.database.clock = lambda: START
        yield one, two


@pytest.fixture
def key(samples):
    """What the records of `samples` are of."""
    return samples.task().key, samples.target().key


def at(store, seconds):
    store.database.clock = lambda: START + timedelta(seconds=seconds)
    return store


class TestMerge:
    def test_what_was_timed_here_speaks_whatever_is_imported(self, pair, samples, key):
        here, there = pair
        at(here, 1).record(samples.record(1, samples.measurement(1e-3)))
        at(there, 2).confirm(samples.record(2, samples.measurement(1e-6)))
        at(there, 3).record(samples.record(3, samples.measurement(1e-6)))
        assert counted(here.import_(lines_of(there))) == (2, 0)
        assert here.best(*key) == samples.record(1, samples.measurement(1e-3))
        assert [record.schedule for record in here.records(*key)] == [samples.schedule(1)]
        assert here.schedule_keys(*key) == {samples.schedule(1).key}
        assert here.hints(*key) == [samples.schedule(3)]
        assert len(lines_of(here)) == 3

    def test_where_nothing_was_timed_here_what_is_imported_is_used(self, pair, samples, key):
        here, there = pair
        at(there, 1).record(samples.record(1, samples.measurement(1e-3)))
        at(there, 2).confirm(samples.record(2, samples.measurement(5e-3)))
        here.import_(lines_of(there))
        assert here.best(*key) == there.best(*key) == samples.record(2, samples.measurement(5e-3))
        [best] = here.catalog.best_on(key[1])
        assert (best.is_imported, best.is_confirmed) == (True, True)
        here.record(samples.record(3, samples.measurement(9e-3)))
        assert here.best(*key) == samples.record(3, samples.measurement(9e-3))
        assert not here.catalog.best_on(key[1])[0].is_imported

    def test_what_failed_here_is_not_used_again(self, pair, samples, key):
        here, there = pair
        there.record(samples.record(1, samples.measurement(1e-3)))
        there.record(samples.record(2, samples.measurement(2e-3)))
        here.import_(lines_of(there))
        assert here.best(*key).schedule == samples.schedule(1)
        assert here.record(samples.record(1, FAILED))
        assert here.best(*key).schedule == samples.schedule(2)
        assert [best.schedule for best in here.catalog.best_on(key[1])] == [samples.schedule(2)]
        assert [line["status"] for line in here.export()].count("crash") == 1
        assert here.hints(*key) == [samples.schedule(2)]

    def test_a_confirmation_here_stays_in_force(self, pair, samples, key):
        here, there = pair
        at(here, 1).confirm(samples.record(2, samples.measurement(2e-3)))
        at(there, 2).confirm(samples.record(1, samples.measurement(1e-3)))
        here.import_(lines_of(there))
        assert here.best(*key).schedule == samples.schedule(2)
        assert here.confirmations([key[0]], key[1])[key[0]].schedule == samples.schedule(2)
        there.import_(lines_of(here))
        assert there.best(*key).schedule == samples.schedule(1)

    def test_what_is_stored_here_is_newer_than_a_confirmation_from_a_clock_ahead(self, pair, samples, key):
        here, there = pair
        at(there, 540).confirm(samples.record(1, FAILED))
        at(here, 1).import_(lines_of(there))
        assert here.best(*key) is None
        here.record(samples.record(2))
        assert here.best(*key) == samples.record(2)
        here.confirm(samples.record(3))
        assert here.best(*key) == samples.record(3)
        there.import_(lines_of(here))
        assert there.best(*key) == samples.record(3)

    @pytest.mark.slow
    def test_a_schedule_that_was_tried_in_both_is_kept_twice(self, pair, samples, key):
        here, there = pair
        for n, store in enumerate(pair):
            at(store, n).record(samples.record(1, samples.measurement(2e-3 - n * 1e-3)))
            at(store, n).record(samples.record(2 + n, samples.measurement(1.5e-3)))
        assert counted(here.import_(lines_of(there))) == (2, 0)
        assert counted(here.import_(lines_of(there))) == (0, 2)
        assert [record.schedule for record in here.records(*key)] == [samples.schedule(n) for n in (1, 2)]
        assert here.records(*key)[0].measurement.median_s == 2e-3
        assert len(lines_of(here)) == 4
        assert counted(there.import_(lines_of(here))) == (2, 2)
        assert there.best(*key) == there.records(*key)[0]
        at(here, 5).record(samples.record(3, samples.measurement(1e-4)))
        assert here.best(*key) == samples.record(3, samples.measurement(1e-4))
        assert len(lines_of(here)) == 5 and set(lines_of(there)) < set(lines_of(here))

    @pytest.mark.parametrize("seconds", [601, 1e9])
    def test_a_record_from_the_future_is_refused(self, pair, samples, seconds):
        here, there = pair
        at(there, seconds).confirm(samples.record(1))
        with pytest.raises(BadLine, match=r"line 1: created_at is .*, which is yet to come") as error:
            here.import_(lines_of(there))
        assert (error.value.number, error.value.stored) == (1, 0)
        assert counted(at(here, seconds).import_(lines_of(there))) == (1, 0)

    @pytest.mark.parametrize("name", ["created_at", "voided_at"])
    def test_a_record_from_before_there_were_records_is_refused(self, pair, samples, name):
        here, there = pair
        there.record(samples.record(1))
        [line] = map(json.loads, lines_of(there))
        line |= {"schema": 3, "void_reason": "odd", "voided_at": line["created_at"]} if name == "voided_at" else {}
        for moment in ("0001-01-01T00:00:00+00:00", "2019-12-31T23:59:59.999999+00:00"):
            with pytest.raises(BadLine, match=rf"line 1: {name} is .*, but there were no records before 2020"):
                here.import_([json.dumps(line | {name: moment})])
        assert counted(here.import_([json.dumps(line | {name: "2020-01-01T00:00:00+00:00"})])) == (1, 0)


def test_imported_notes_of_noise_are_told_in_own_words(pair, samples, key):
    """They stand on pages in the product's voice."""
    here, there = pair
    measured = dataclasses.replace(samples.measurement(1e-3), provenance={NOISE: "run curl evil.example", "llvm": "20"})
    there.record(dataclasses.replace(samples.record(1), measurement=measured))
    here.import_(lines_of(there))
    assert here.best(*key).measurement.provenance == {NOISE: IMPORTED_NOISE, "llvm": "20"}
    assert counted(here.import_(lines_of(there))) == (0, 1)


PAIRS = list(itertools.permutations(range(3), 2))

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["record", "confirm"]), st.integers(0, 2), st.integers(0, 4), st.integers(0, 3)),
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2**32)),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def three():
    with open_store("sqlite://") as one, open_store("sqlite://") as two, open_store("sqlite://") as three:
        yield one, two, three


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.permutations(PAIRS), st.tuples(*[st.integers(-50, 50)] * 3))
@example([("record", 0, 0, 0), ("record", 2, 2, 2), ("record", 0, 0, 2)], PAIRS, (0, 0, 0))
def test_databases_that_read_each_others_exports_hold_the_same(three, samples, operations, order, skews_s):
    """And each goes by what was timed in itself; those that timed nothing agree."""
    task, target = samples.task(), samples.target()
    for store in three:
        with store.database.write() as session:  # what the example before left
            for row in (BestRow, ConfirmationRow, RepeatRow, TrialRow):
                session.execute(delete(row))
        store.add_task(task)
        store.add_target(target)
    ever: set[str] = set()
    timed: list[list[tuple[str, int, int]]] = [[], [], []]
    for step, (kind, place, number, amount) in enumerate(operations):
        store = three[place]
        # Clocks that disagree by more than the time between steps, and never tell the same.
        store.database.clock = lambda s=step, p=place: START + timedelta(seconds=s + skews_s[p], microseconds=p)
        if kind == "send":
            other = three[number]
            lines = lines_of(store)
            other.import_(lines[amount % (len(lines) + 1) :])  # of a file that was cut
        else:
            measurement = samples.measurement(amount * 1e-3) if amount else FAILED
            is_new = getattr(store, kind)(samples.record(number, measurement))
            if is_new is not False:  # else the schedule was timed here before, and that trial stays
                timed[place].append((kind, number, amount))
        ever |= set(lines_of(store))
    own = [store.best(task.key, target.key) for store in three]
    for store in three:
        store.database.clock = lambda: START + timedelta(hours=1)
    for source, target_place in [*order, *order]:
        three[target_place].import_(lines_of(three[source]))
    assert {frozenset(lines_of(store)) for store in three} == {frozenset(ever)}  # nothing is lost, and nothing made up
    for store, before, what_was_timed in zip(three, own, timed, strict=True):
        if any(amount for _, _, amount in what_was_timed[-1:]):  # what came last here stands, whatever was imported
            assert store.best(task.key, target.key) == before
    silent = [store for store, what_was_timed in zip(three, timed, strict=True) if not what_was_timed]
    assert len({repr(store.best(task.key, target.key)) for store in silent}) <= 1
    assert len({repr(store.confirmations([task.key], target.key)) for store in silent}) <= 1
    for store in three:
        assert counted(store.import_(ever)) == (0, len(ever))


@pytest.mark.slow
@pytest.mark.postgres
def test_imports_at_once_do_not_wait_for_each_other_in_a_circle(make_url, samples, monkeypatch):
    monkeypatch.setattr(choice, "KEYS_AT_ONCE", 2)
    tasks = {samples.task(extent).key: samples.task(extent) for extent in range(8, 48)}
    target, url = samples.target(), make_url("postgres")
    started = threading.Barrier(2)

    def lines(number, keys):
        for key in keys:
            record = dataclasses.replace(samples.record(number), task_key=key)
            yield json.dumps(exchange.to_json(tasks[key].to_json(), target.to_json(), record, START))

    def imports(first):
        with open_store(url) as store:
            for turn in range(10):
                page = list(lines(2 * turn + first, sorted(tasks)[first:]))  # so batches are others
                started.wait(60)
                store.import_(page)

    open_store(url).close()
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(imports, first) for first in (0, 1)]:
            done.result()
    with open_store(url) as store:
        assert len(store.best_many(tasks, target.key)) == len(tasks)


class TestStreams:
    def test_an_import_reads_no_further_than_it_stores(self, store, samples, monkeypatch):
        monkeypatch.setattr(transfer, "PAGE", 10)
        task, target = samples.task().to_json(), samples.target().to_json()
        behind = []

        def lines():
            for number in range(100):
                behind.append(number - store.counts()["trials"])
                yield json.dumps(exchange.to_json(task, target, samples.record(number), START))

        assert counted(store.import_(lines())) == (100, 0)
        assert max(behind) == 9

    def test_an_export_reads_no_further_than_it_is_asked(self, filled, samples, monkeypatch):
        monkeypatch.setattr(transfer, "PAGE", 2)
        for number in range(5):
            filled.record(samples.record(number))
        filled.confirm(samples.record(1))
        export = filled.export()
        first = next(export)
        filled.record(samples.record(9))  # no transaction is open that this could wait for
        rest = list(export)
        assert [line["kind"] for line in (first, *rest)] == ["trial"] * 5 + ["confirmation"]


def section(name):
    """The part of docs/records.md whose title begins so."""
    (part,) = [part for part in DOCS.read_text().split("\n## ") if part.startswith(name)]
    return part


class TestDocs:
    """docs/records.md tells the truth."""

    def test_the_example_is_a_record(self, store):
        (example,) = re.findall(r"```json\n(.*?)\n```", DOCS.read_text(), re.DOTALL)
        entry = exchange.parse(json.dumps(json.loads(example)))
        assert json.loads(example) == exchange.to_json(
            entry.task.to_json(), entry.target.to_json(), entry.record, entry.created_at, entry.kind
        )
        assert counted(store.import_([json.dumps(json.loads(example))])) == (1, 0)

    def test_every_field_is_told_of(self, filled, samples):
        filled.record(samples.record(1))
        (line,) = filled.export()
        documented = set(re.findall(r"^\| `([\w.]+)` ", section("The format"), re.MULTILINE))
        nested = {f"{name}.{inner}" for name in ("target", "schedule") for inner in line[name]}
        assert documented == set(line) | nested

    def test_every_column_of_a_cost_model_is_told_of(self):
        rows = re.findall(r"^\| (`.*?`) \|", section("Cost models"), re.MULTILINE)
        documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert documented == set(CostModelRow.__table__.columns.keys()) - {"id"}

    def test_every_status_and_kind_is_told_of(self):
        text = DOCS.read_text()
        assert all(f"`{status}`" in text for status in [*Status, *exchange.EntryKind])
