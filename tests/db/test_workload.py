"""The contract of Workload, checked on every database."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from tunewright.db.job import EventKind, JobState, NewEvent, SearchBudget
from tunewright.db.workload import Shift, TargetQueue, Workload

HOUR_S = 3600.0


@pytest.fixture
def workload(filled):
    return Workload(filled.database)


@pytest.fixture
def submit(filled, samples):
    """Queue a job; its id."""
    numbers = iter(range(100))

    def submitted(threads=2):
        return filled.jobs.submit(samples.spec(next(numbers), threads), "", SearchBudget(1)).job.id

    return submitted


def test_nothing(workload, clock):
    shifts = workload.shifts(HOUR_S)
    assert (shifts.since, shifts.until) == (clock.now - timedelta(seconds=HOUR_S), clock.now)
    assert shifts.shifts == ()
    assert workload.queues() == []


def test_shifts_begin_and_end_with_events(filled, workload, submit, samples, clock):
    jobs, key = filled.jobs, samples.target().key
    first, second = submit(), submit()
    began = clock.now
    lease = jobs.lease([key], "a:1")
    clock.advance(10)
    jobs.give_back(lease)
    returned = clock.now
    clock.advance(10)
    again, other = jobs.lease([key], "b:2"), jobs.lease([key], "a:1\0")
    taken = clock.now
    clock.advance(10)
    jobs.finish(again, JobState.SUCCEEDED, result={"holder": "nobody"})
    jobs.renew(other, 1000)
    clock.advance(10)
    shifts = (
        Shift(first, "a:1", began, returned),
        Shift(first, "b:2", taken, taken + timedelta(seconds=10)),
        Shift(second, "a:1\ufffd", taken, None),
    )
    assert workload.shifts(HOUR_S).shifts == shifts
    assert workload.shifts(15).shifts == shifts[1:]
    assert workload.shifts(5).shifts == shifts[2:]
    clock.advance(500)
    assert workload.shifts(5).shifts == shifts[2:]  # nothing has happened for long: it is at work nevertheless


def test_what_was_read_is_not_read_again(filled, workload, submit, samples, clock):
    submit()
    lease = filled.jobs.lease([samples.target().key], "a:1")
    for second in range(5):
        filled.jobs.renew(lease, 1000, events=[NewEvent(EventKind.PROGRESS, {"trials": second})])
        (shift,) = workload.shifts(HOUR_S).shifts
        assert (shift.holder, shift.ended_at) == ("a:1", None)
    statements = []
    event.listen(filled.database.engine, "before_cursor_execute", lambda *about: statements.append(about[2]))
    assert workload.shifts(HOUR_S).shifts == (shift,)
    assert not [statement for statement in statements if "job_events" in statement]
    filled.jobs.finish(lease, JobState.SUCCEEDED, result={})
    submit()
    later = filled.jobs.lease([samples.target().key], "b:2")
    ended, begun = workload.shifts(HOUR_S).shifts
    assert (ended.holder, ended.ended_at, begun.job_id) == ("a:1", clock.now, later.job_id)
    assert Workload(filled.database).shifts(HOUR_S).shifts == (ended, begun)
    clock.advance(2 * HOUR_S)
    filled.jobs.renew(later, 1000)
    assert [shift.job_id for shift in workload.shifts(HOUR_S).shifts] == [later.job_id]
    assert list(workload._jobs) == [later.job_id]


def test_a_process_that_goes_away_was_at_work_until_its_lease_was_over(filled, workload, submit, samples, clock):
    job, began = submit(), clock.now
    filled.jobs.lease([samples.target().key], "a:1", 30)
    clock.advance(100)
    gone = Shift(job, "a:1", began, began + timedelta(seconds=30))
    assert workload.shifts(HOUR_S).shifts == (gone,)
    assert workload.shifts(60).shifts == ()
    filled.jobs.lease([samples.target().key], "b:2", 30)
    lost, taken = workload.shifts(HOUR_S).shifts
    assert (lost.holder, lost.ended_at) == ("a:1", clock.now)
    assert taken == Shift(job, "b:2", clock.now, None)


def test_a_pause_ends_a_shift(filled, workload, submit, samples, clock):
    submit()
    lease = filled.jobs.lease([samples.target().key], "a:1")
    clock.advance(5)
    filled.jobs.pause(lease.job_id)
    filled.jobs.pause_leased(lease)
    clock.advance(5)
    filled.jobs.resume(lease.job_id)
    (shift,) = workload.shifts(HOUR_S).shifts
    assert shift.ended_at == shift.begun_at + timedelta(seconds=5)


def test_queues(filled, workload, submit, samples, clock):
    jobs, two, four = filled.jobs, samples.target(2).key, samples.target(4).key
    *_, last = [submit() for _ in range(4)]
    submit(4)
    clock.advance(20)
    submit(4)
    done, _, lost = (jobs.lease([two], "h", lease_s) for lease_s in (90, 90, 9))
    jobs.finish(done, JobState.FAILED, error="x")
    jobs.pause(last)
    clock.advance(20)
    since = clock.now - timedelta(seconds=40)
    assert workload.queues() == [TargetQueue(four, 2, 0, 0, 0, since), TargetQueue(two, 0, 2, 1, 1, None)]
    jobs.renew(lost)
    jobs.resume(last)
    assert workload.queues()[1] == TargetQueue(two, 1, 2, 0, 0, clock.now)


def test_jobs_that_wait_for_any_device_are_a_queue_of_their_own(filled, workload, samples, clock):
    filled.jobs.submit(replace(samples.spec(0), target_key=""), "", SearchBudget(1))
    assert workload.queues() == [TargetQueue("", 1, 0, 0, 0, clock.now)]
