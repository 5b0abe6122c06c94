"""Trials for people: pages and samples agree with what is stored, and no query goes through all of it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text

from tunewright.db import transfer, trials
from tunewright.db.job import SearchBudget
from tunewright.db.store import Store
from tunewright.db.tables import JobTaskRow, TrialRow
from tunewright.db.translate import measurement_values
from tunewright.db.trial import LONGEST_ERROR, TrialLine, TrialOrder
from tunewright.search_space.measurement import Measurement, Status

from .conftest import plan, selected

CRASHED = Measurement(Status.CRASH, error="it crashed", build_s=0.5)


@pytest.fixture
def leases(filled, samples):
    """Leases of two jobs for the same target."""
    return [filled.jobs.open(samples.spec(number), "", SearchBudget(99), "h") for number in range(2)]


@pytest.fixture
def of_task(samples):
    """What the records of `samples` are of."""
    return samples.task().key, samples.target().key


def rank(line: TrialLine, order: TrialOrder):
    """What an order sorts by."""
    moment = line.created_at.timestamp()
    match order:
        case TrialOrder.NEWEST:
            return -moment, -line.id
        case TrialOrder.OLDEST:
            return moment, line.id
    if line.median_s is None:
        return 1, -moment, -line.id
    return (0, line.median_s, line.id) if order is TrialOrder.FASTEST else (0, -line.median_s, -line.id)


def pages(store: Store, of_task, meanwhile: Callable[[], object] = lambda: None, **options) -> list[TrialLine]:
    """The trials of all pages; `meanwhile` is called behind each."""
    lines: list[TrialLine] = []
    cursor = None
    while True:
        page = store.trials.page(*of_task, cursor=cursor, **options)
        lines += page.trials
        assert len(page.trials) <= options["limit"]
        assert page.total >= len(lines)
        if page.next is None:
            return lines
        assert len(page.trials) == options["limit"]
        cursor = page.next
        meanwhile()


def test_a_line_tells_what_was_stored(filled, samples, leases, of_task, clock):
    record = samples.record(3)
    filled.record(record, leases[0])
    filled.record(samples.record(4, replace(CRASHED, error="\x1b[2J<script>" + "x" * LONGEST_ERROR)))
    crashed, line = filled.trials.page(*of_task).trials
    measurement = record.measurement
    assert line == TrialLine(
        id=line.id,
        job_id=leases[0].job_id,
        ordinal=0,
        schedule=record.schedule,
        status=Status.OK,
        median_s=measurement.median_s,
        low_s=measurement.low_s,
        high_s=measurement.high_s,
        samples=len(measurement.samples_s),
        max_rel_err=measurement.max_rel_err,
        error="",
        build_s=measurement.build_s,
        created_at=clock.now,
        is_imported=False,
        noise="",
        drift="",
    )
    assert (crashed.job_id, crashed.ordinal, crashed.median_s, crashed.samples) == (None, None, None, 0)
    assert crashed.error == ("\x1b[2J<script>" + "x" * LONGEST_ERROR)[:LONGEST_ERROR]


def test_counts_are_by_task_and_status(filled, samples, leases):
    for number in range(6):
        measurement = CRASHED if number % 3 == 2 else samples.measurement()
        filled.record(samples.record(number, measurement, extent=8 + number % 2), leases[number // 4])
    filled.record(samples.record(9))
    eight, nine = samples.task(8).key, samples.task(9).key
    assert filled.trials.counts(leases[0].job_id) == {eight: {Status.OK: 1, Status.CRASH: 1}, nine: {Status.OK: 2}}
    assert filled.trials.counts(leases[1].job_id) == {eight: {Status.OK: 1}, nine: {Status.CRASH: 1}}
    assert filled.trials.counts(99) == {}


made = st.tuples(
    st.sampled_from([1e-3, 2e-3, 1 / 3, None, Status.TIMEOUT]),  # of an OK trial, or how it failed; None: a crash
    st.integers(0, 2),  # by a job, or by none
    st.integers(0, 1),  # seconds since the one before
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(made, max_size=9),
    st.lists(made, max_size=5),
    st.sampled_from(TrialOrder),
    st.integers(1, 4),
    st.sampled_from([None, [Status.OK], [Status.CRASH, Status.TIMEOUT, Status.BUILD_ERROR]]),
    st.sampled_from([None, 0, 1]),
)
def test_pages_visit_each_trial_once_in_order(
    filled, samples, leases, clock, first, later, order, limit, statuses, of_job
):
    extent = 100 + filled.counts()["tasks"]  # a task of its own for every example
    filled.add_task(samples.task(extent))
    of_task = samples.task(extent).key, samples.target().key
    with filled.database.write() as session:
        for lease in leases:
            session.add(JobTaskRow(job_id=lease.job_id, position=extent, task_key=of_task[0], occurrences=1))
    numbers = iter(range(99))

    def store(trial):
        what, by, seconds = trial
        clock.advance(seconds)
        measurement = samples.measurement(what) if isinstance(what, float) else replace(CRASHED, status=what)
        if what is None:
            measurement = CRASHED
        filled.record(samples.record(next(numbers), measurement, extent=extent), [*leases, None][by])

    def wanted():
        """What is there and was asked for."""
        lines = filled.trials.sample(*of_task, 99)
        assert len(lines) == len(filled.records(*of_task))
        lines = [line for line in lines if statuses is None or line.status in statuses]
        return [line for line in lines if job_id is None or line.job_id == job_id]

    job_id = None if of_job is None else leases[of_job].job_id
    for trial in first:
        store(trial)
    before = wanted()
    options = {"job_id": job_id, "statuses": statuses, "order": order, "limit": limit}
    page = filled.trials.page(*of_task, **options)
    assert page.total == len(before)
    assert sum(page.counts.get(status, 0) for status in statuses or Status) == len(before)
    rest = iter(later)
    lines = pages(filled, of_task, lambda: [store(trial) for trial in [next(rest, None)] if trial], **options)
    assert all(
        rank(line, order) < rank(next_line, order) for line, next_line in itertools.pairwise(lines)
    )  # so each comes once, too
    assert {line.id for line in before} <= {line.id for line in lines} <= {line.id for line in wanted()}
    quiet = pages(filled, of_task, **options)
    assert quiet == sorted(wanted(), key=lambda line: rank(line, order))


def test_only_those_of_the_target_are_shown(filled, samples, leases, of_task):
    other = filled.jobs.open(samples.spec(2, threads=4), "", SearchBudget(9), "h")
    filled.record(samples.record(1), leases[0])
    filled.record(samples.record(2, threads=4), other)
    elsewhere = of_task[0], samples.target(4).key
    assert [line.schedule for line in filled.trials.page(*of_task).trials] == [samples.schedule(1)]
    for task_and_target, job_id, count in ((elsewhere, other.job_id, 1), (of_task, other.job_id, 0), (of_task, 99, 0)):
        for order in TrialOrder:
            page = filled.trials.page(*task_and_target, job_id=job_id, order=order)
            assert (len(page.trials), page.total, page.next) == (count, count, None)


@pytest.mark.parametrize("limit", [1, 3, 50])
@pytest.mark.parametrize("statuses", [tuple(Status), (Status.CRASH,), (Status.TIMEOUT,)])
def test_the_trials_of_a_job_come_in_pages_whatever_their_tasks(filled, samples, leases, clock, limit, statuses):
    """Also where several are of one moment."""
    for number in range(12):
        clock.advance(number % 3 // 2)
        measurement = CRASHED if number % 4 == 3 else samples.measurement()
        filled.record(samples.record(number, measurement, extent=8 + number % 2), leases[number // 8])
    job_id, keys = leases[0].job_id, [samples.task(extent).key for extent in (8, 9)]
    kinds = [(key, status) for key in keys for status in statuses]
    wanted = [
        (key, line)
        for key in keys
        for line in filled.trials.page(key, samples.target().key, job_id=job_id, statuses=statuses).trials
    ]
    found, cursor = [], None
    while True:
        page = filled.trials.page_of_job(job_id, kinds, cursor=cursor, limit=limit)
        found += [(trial.task_key, trial.line) for trial in page.trials]
        assert len(page.trials) == limit or page.next is None
        if (cursor := page.next) is None:
            break
    assert len(wanted) == (8 if Status.OK in statuses else 2 * (Status.CRASH in statuses))
    assert found == sorted(wanted, key=lambda item: rank(item[1], TrialOrder.NEWEST))
    assert filled.trials.page_of_job(job_id, kinds[:1]).trials != found or not found
    assert filled.trials.page_of_job(99, kinds).trials == filled.trials.page_of_job(job_id, []).trials == []


@pytest.mark.parametrize("cursor", ["", "fastest 0 1 1", "newest 1 1 1"])
def test_what_is_no_cursor_of_the_trials_of_a_job_is_refused(filled, cursor):
    with pytest.raises(ValueError, match="no place"):
        filled.trials.page_of_job(1, [], cursor=cursor)


def test_imported_trials_are_in_order_of_creation(filled, samples, of_task, clock, monkeypatch):
    monkeypatch.setattr(transfer, "FIRST_MOMENT", datetime.min.replace(tzinfo=UTC))  # older versions took any
    filled.record(samples.record(1))
    (line,) = filled.export()
    moments = [clock.now - timedelta(microseconds=n) for n in (1, 2)] + [datetime(1969, 7, 20, 20, 17, 40, 1, UTC)]
    for number, moment in zip((2, 3, 4), moments, strict=True):
        schedule = samples.schedule(number).to_json()
        filled.import_([json.dumps({**line, "schedule": schedule, "created_at": moment.isoformat()})])
    lines = pages(filled, of_task, order=TrialOrder.OLDEST, limit=1)
    assert [line.schedule["tile_m"] for line in lines] == [4, 3, 2, 1]
    assert [line.created_at for line in lines] == [*moments[::-1], clock.now]


HOSTILE = ["", "x", "newest 0 1 1 ", "oldest 0 1 1", "newest 1 1 1", "newest 0 1.5 1", "newest 0 9e999 1"]


@pytest.mark.parametrize(
    "cursor", [*HOSTILE, f"newest 0 {10**29} 1", f"newest 0 1 {10**18}", "newest 0 ٣ 1", "newest 0 1 1\0"]
)
def test_what_is_no_cursor_is_refused(filled, of_task, cursor):
    with pytest.raises(ValueError, match=r"."):
        filled.trials.page(*of_task, cursor=cursor)


@pytest.mark.parametrize("value", ["1e400", "-1e400", "0", "--1"])
def test_a_cursor_that_was_made_up_leads_somewhere_or_nowhere(filled, samples, of_task, value):
    filled.record(samples.record(1))
    try:
        page = filled.trials.page(*of_task, order=TrialOrder.SLOWEST, cursor=f"slowest 0 {value} 7")
    except ValueError:
        return
    assert len(page.trials) <= 1


def test_a_sample_is_of_the_least_keys(filled, samples, leases, of_task):
    for number in range(12):
        measurement = CRASHED if number % 4 == 3 else samples.measurement()
        filled.record(samples.record(number, measurement), leases[0 if number else 1])
    everything = sorted(filled.trials.page(*of_task).trials, key=lambda line: line.schedule.key)
    for count in (0, 1, 5, 12, 99):
        assert filled.trials.sample(*of_task, count) == everything[:count]


@pytest.mark.parametrize("most_sorted", [trials.MOST_SORTED, 3])
def test_a_sample_of_one_job_and_its_fastest(filled, samples, leases, of_task, monkeypatch, most_sorted):
    monkeypatch.setattr(trials, "MOST_SORTED", most_sorted)
    for number in range(12):
        filled.record(samples.record(number, samples.measurement((9 + number) * 1e-3)), leases[number % 2])
    for number, lease in enumerate(leases[:2]):
        own = [line for line in filled.trials.page(*of_task).trials if line.job_id == lease.job_id]
        by_key = sorted(own, key=lambda line: line.schedule.key)
        assert len(own) == 6
        for count in (0, 1, 5, 99):
            assert filled.trials.sample(*of_task, count, lease.job_id) == by_key[:count]
        fastest = filled.trials.fastest(*of_task, 2, lease.job_id)
        assert [line.schedule for line in fastest] == [samples.schedule(number), samples.schedule(number + 2)]
    assert filled.trials.sample(of_task[0], samples.target(4).key, 9, leases[0].job_id) == []


def test_the_fastest_come_first(filled, samples, of_task):
    for number in range(5):
        filled.record(samples.record(number, samples.measurement((9 - number) * 1e-3)))
    filled.record(samples.record(7, CRASHED))
    fastest = filled.trials.fastest(*of_task, 3)
    assert [line.schedule for line in fastest] == [samples.schedule(number) for number in (4, 3, 2)]
    assert len(filled.trials.fastest(*of_task, 99)) == 5
    assert filled.trials.fastest(of_task[0], samples.target(4).key, 3) == []


def test_those_within_a_range_of_times(filled, samples, leases, of_task):
    for number in range(8):
        measurement = CRASHED if number == 7 else samples.measurement((1 + number) * 1e-3)
        filled.record(samples.record(number, measurement), leases[number % 2])
    within: dict[str, Any] = {"time_s": (2e-3, 5e-3), "limit": 3}
    for order, numbers in ((TrialOrder.FASTEST, [1, 2, 3, 4]), (TrialOrder.SLOWEST, [4, 3, 2, 1])):
        lines = pages(filled, of_task, order=order, **within)
        assert [line.schedule for line in lines] == [samples.schedule(number) for number in numbers]
    page = filled.trials.page(*of_task, order=TrialOrder.FASTEST, **within)
    assert (page.total, page.counts) == (4, {Status.OK: 4})
    page = filled.trials.page(*of_task, order=TrialOrder.FASTEST, job_id=leases[0].job_id, **within)
    assert [line.schedule for line in page.trials] == [samples.schedule(number) for number in (2, 4)]
    assert page.total == 2
    assert filled.trials.page(*of_task, order=TrialOrder.FASTEST, time_s=(1.0, 2.0)).total == 0
    assert filled.trials.page(*of_task, order=TrialOrder.FASTEST, statuses=[Status.CRASH], time_s=(0.0, 2.0)).total == 0


def test_those_that_were_timed_here(filled, samples, leases, of_task):
    filled.record(samples.record(1, samples.measurement(1e-3)), leases[0])
    filled.record(samples.record(2, samples.measurement(2e-3)))  # of no job, and none of another machine
    line = next(iter(filled.export()))
    for number in (3, 4):
        filled.import_([json.dumps({**line, "schedule": samples.schedule(number).to_json()})])
    assert filled.trials.page(*of_task).total == 4
    for time_s in (None, (0.0, 1.0)):
        page = filled.trials.page(*of_task, order=TrialOrder.SLOWEST, is_own=True, time_s=time_s)
        assert [line.schedule for line in page.trials] == [samples.schedule(number) for number in (2, 1)]
        assert (page.total, page.counts) == (2, {Status.OK: 2})


def test_one_trial_has_all_that_was_measured(filled, samples, leases, of_task):
    for number in range(3):
        filled.record(samples.record(number), leases[0])
    detail = filled.trials.get(*of_task, samples.schedule(1).key)
    assert detail is not None
    assert detail.record == samples.record(1)
    assert detail.line == filled.trials.page(*of_task).trials[1]
    assert filled.trials.get(*of_task, "00" * 32) is None
    assert filled.trials.get(of_task[0], samples.target(4).key, samples.schedule(1).key) is None


def fill_many(store: Store, samples, leases, count: int) -> None:
    """Many trials of two tasks by two jobs, of which the second came later."""
    created_at = datetime(2026, 1, 1, tzinfo=UTC)
    timed, values = samples.measurement(), []
    for number in range(count):
        median_s = 1e-3 + number * 7919 % count * 1e-6
        measurement = replace(timed, median_s=median_s, samples_s=(median_s,) * 40) if number % 20 != 7 else CRASHED
        values.append(measurement_values(samples.record(number, measurement), created_at + timedelta(seconds=number)))
        if number // 3 % 2:
            values[-1]["task_key"] = samples.task(9).key
        values[-1] |= {"job_id": leases[number >= 0.7 * count].job_id, "ordinal": number}
    with store.database.write_core() as connection:
        connection.execute(insert(TrialRow), values)
    if not store.database.is_sqlite:  # it plans by what it knows of the table
        with store.database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM ANALYZE trials"))


WALKED = re.compile(r"SCAN \w+|Seq Scan on (trials|bests|tasks)")
"""What the plan says where all rows of a table are read."""

SORTED = re.compile(r"TEMP B-TREE|(?<!Incremental )Sort\b(?! Key)")
"""And where more rows are sorted than are equal in what the index sorts them by."""

ENTERED = re.compile(r"(\(|Index Cond:).*(created_at|median_s)[ )]*[<>]")
"""And where an index is entered behind the rows of the page before."""


def plans(store: Store, statements: list[tuple[str, Any]]) -> dict[str, str]:
    """Query -> how it is answered: not by reading, or sorting, all of the trials."""
    plans_by_query = {query[0]: plan(store, query) for query in statements}
    for steps in plans_by_query.values():
        assert not WALKED.search(steps) and not SORTED.search(steps), steps
    return plans_by_query


@pytest.mark.slow
def test_no_query_goes_through_all_trials(filled, samples, leases, of_task):
    # PostgreSQL uses no index where there is little to read.
    fill_many(filled, samples, leases, 4_000 if filled.database.is_sqlite else 12_000)
    log, jobs = filled.trials, [lease.job_id for lease in leases]
    filters = [{}, {"job_id": jobs[0]}, {"job_id": jobs[1]}, {"statuses": [Status.CRASH]}]
    with selected(filled) as statements:
        pages = [
            (order, some, log.page(*of_task, order=order, **some))
            for order, some in itertools.product(TrialOrder, filters)
        ]
        for some in ({}, {"job_id": jobs[0]}):
            log.page(*of_task, order=TrialOrder.SLOWEST, time_s=(1e-3, 2e-3), **some)
        log.sample(*of_task, 50)
        log.fastest(*of_task, 20)
        log.fastest(*of_task, 20, jobs[0])
        log.get(*of_task, samples.schedule(1).key)
        for job_id in jobs:
            log.counts(job_id)
    counting = [steps for query, steps in plans(filled, statements).items() if "count(" in query]
    assert len(counting) == 5
    assert all("COVERING INDEX" in steps or "Index Only Scan" in steps for steps in counting), counting
    with selected(filled) as statements:
        for order, some, page in pages:
            log.page(*of_task, order=order, cursor=page.next, **some)
    entered = [steps for query, steps in plans(filled, statements).items() if "LIMIT" in query]
    assert len(entered) >= 8
    assert all(ENTERED.search(steps) for steps in entered), entered
