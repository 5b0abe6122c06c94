"""The contract of Jobs, checked on every database."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from tunewright.db.errors import NotFound, StoreError, Unreachable
from tunewright.db.job import (
    ATTEMPTS,
    RETIME,
    THREADS,
    Conflict,
    EventKind,
    Idempotency,
    JobEdit,
    JobState,
    Lease,
    LeaseLost,
    NewEvent,
    NoSuchBound,
    QuotaExceeded,
    SearchBudget,
    SpecTask,
    Submission,
    Wish,
)
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.tables import JobTagRow
from tunewright.search_space.measurement import Measurement, Status

from .conftest import in_threads

FAILED = Measurement(Status.CRASH, error="signal 11")
BUDGET = SearchBudget(10)
FINAL = [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED]


@pytest.fixture
def jobs(filled):
    return filled.jobs


@pytest.fixture
def target(samples):
    return samples.target().key


def kinds(jobs, job_id):
    return [event.kind.value for event in jobs.events(job_id)]


def submit(jobs, samples, number=0, **options):
    return jobs.submit(samples.spec(number), f"model{number}.onnx", BUDGET, **options).job


class TestSubmit:
    def test_a_job_comes_back_equal(self, jobs, samples, clock):
        label = "dir/a'model\n<b>.onnx"
        submitted = jobs.submit(samples.spec(), label, SearchBudget(7, 1.5, 0.02), priority=3, owner="k1")
        job = submitted.job
        assert submitted.is_new
        assert (job.spec, job.label, job.state) == (samples.spec(), label, JobState.QUEUED)
        assert (job.budget, job.priority, job.owner, job.attached) == (SearchBudget(7, 1.5, 0.02), 3, "k1", False)
        assert job.created_at == job.updated_at == clock.now
        assert (job.wish, job.progress, job.result, job.error, job.holder) == (None, None, None, "", "")
        assert jobs.get(job.id) == job
        assert jobs.list() == [job]
        (event,) = jobs.events(job.id)
        assert (event.number, event.kind, event.created_at) == (1, EventKind.QUEUED, clock.now)
        budget = {"trials": 7, "seconds": 1.5, "until": 0.02, "before_s": 0.0}
        assert event.data == {"label": label, "priority": 3, "budget": budget}

    def test_a_graph_is_kept_with_a_new_job(self, jobs, samples):
        given, other = {"steps": [[0, 0]], "names": [["a'\u202e<b>"]]}, {"steps": [[1]]}
        job = submit(jobs, samples, graph=given)
        assert submit(jobs, samples, graph=other).id == job.id  # it joins: the graph is that of the same tasks
        assert jobs.graph(job) == given
        assert jobs.events(job.id)[0].data["graph"] == given
        lease = jobs.open(samples.spec(1), "m", BUDGET, "me", graph=other)
        assert jobs.graph(jobs.get(lease.job_id)) == other
        assert jobs.open(samples.spec(1), "m", BUDGET, "you", graph=given) is None

    def test_a_job_without_a_graph_has_that_of_another_of_its_model(self, jobs, samples):
        spec = samples.spec()
        older = jobs.submit(spec, "m", BUDGET, graph={"number": 1}).job
        newer = jobs.submit(replace(spec, settings={"seed": 1}), "m", BUDGET, graph={"number": 2}).job
        job = jobs.submit(replace(spec, settings={"seed": 2}), "m", BUDGET).job
        more = tuple(replace(task, occurrences=task.occurrences + 1) for task in spec.tasks)
        others = [replace(spec, tasks=more), replace(spec, model_sha256="cd" * 32), replace(spec, model_sha256="")]
        assert jobs.graph(job) == {"number": 2}
        assert (jobs.graph(older), jobs.graph(newer)) == ({"number": 1}, {"number": 2})
        assert [jobs.graph(jobs.submit(one, "m", BUDGET).job) for one in others] == [None, None, None]

    @pytest.mark.parametrize("budget", [SearchBudget(None, 120.0), SearchBudget(None, until=0.02), SearchBudget(5)])
    def test_a_bound_that_was_not_given_comes_back_as_none(self, jobs, samples, budget):
        assert jobs.submit(samples.spec(), "", budget).job.budget == budget
        json.dumps(budget.to_json(), allow_nan=False)

    def test_by_the_clock_of_the_database(self, jobs, samples):
        assert abs(time.time() - submit(jobs, samples).created_at.timestamp()) < 60

    def test_an_equal_spec_is_the_unfinished_job(self, jobs, samples, target):
        job = submit(jobs, samples)
        again = jobs.submit(samples.spec(), "elsewhere.onnx", SearchBudget(99), priority=5)
        assert (again.job, again.is_new) == (job, False)
        lease = jobs.lease([target], "h")
        assert jobs.submit(samples.spec(), "", BUDGET).job.id == job.id
        jobs.finish(lease, JobState.SUCCEEDED)
        assert jobs.submit(samples.spec(), "", BUDGET).is_new

    def test_another_spec_is_another_job(self, jobs, samples):
        spec = samples.spec()
        specs = [
            spec,
            samples.spec(1),
            samples.spec(threads=4),
            dataclasses.replace(spec, settings={**spec.settings, "seed": 2}),
            dataclasses.replace(spec, tasks=spec.tasks[:1]),
            dataclasses.replace(spec, tasks=(SpecTask(spec.tasks[0].task_key, 4), spec.tasks[1])),
        ]
        assert len({jobs.submit(spec, "", BUDGET).job.id for spec in specs}) == len(specs)

    def test_unknown_things_are_refused(self, jobs, samples):
        spec = samples.spec()
        for wrong in (
            dataclasses.replace(spec, target_key="00"),
            dataclasses.replace(spec, tasks=(SpecTask("00", 1),)),
        ):
            with pytest.raises(NotFound, match="the target or a task of the job is not stored"):
                jobs.submit(wrong, "", BUDGET)
            with pytest.raises(NotFound):
                jobs.open(wrong, "", BUDGET, "h")
        assert jobs.list() == []
        calls = (jobs.get, jobs.events, jobs.trials, jobs.statuses, jobs.pause, jobs.resume, jobs.cancel)
        for call in (*calls, lambda job_id: jobs.edit(job_id, JobEdit(priority=1))):
            with pytest.raises(NotFound, match="no job 7"):
                call(7)

    def test_what_is_no_json_is_refused(self, jobs, samples):
        with pytest.raises(ValueError, match="JSON"):
            jobs.submit(dataclasses.replace(samples.spec(), settings={"x": math.inf}), "", BUDGET)

    def test_an_idempotency_key_submits_once(self, jobs, samples, target):
        once = Idempotency("k1", "a b/c", "ab" * 32)
        job = submit(jobs, samples, idempotency=once)
        jobs.finish(jobs.lease([target], "h"), JobState.SUCCEEDED)
        again = jobs.submit(samples.spec(), "", BUDGET, idempotency=once)
        assert (again.job.id, again.job.state, again.is_new) == (job.id, JobState.SUCCEEDED, True)
        with pytest.raises(Conflict, match="idempotency"):
            submit(jobs, samples, 1, idempotency=dataclasses.replace(once, fingerprint="cd" * 32))
        for other in (dataclasses.replace(once, owner="k2"), dataclasses.replace(once, name="other")):
            assert submit(jobs, samples, 2, idempotency=other).id != job.id
        assert len(jobs.list()) == 2

    def test_a_submission_is_known_by_its_name(self, jobs, samples, target):
        once = Idempotency("k1", "a b/c", "ab" * 32)
        assert jobs.submission(once) is None
        job = submit(jobs, samples, idempotency=once)
        assert jobs.submission(once) == Submission(job, is_new=True)
        with pytest.raises(Conflict, match="idempotency"):
            jobs.submission(dataclasses.replace(once, fingerprint="cd" * 32))
        for other in (dataclasses.replace(once, owner="k2"), dataclasses.replace(once, name="other")):
            assert jobs.submission(other) is None
        done = jobs.finish(jobs.lease([target], "h"), JobState.SUCCEEDED)
        submit(jobs, samples)
        assert jobs.submission(once) == Submission(done, is_new=True)

    def test_a_submission_that_found_a_job_says_so_again(self, jobs, samples, clock):
        job = submit(jobs, samples)
        clock.advance(0.01)  # a job and a submission of one moment were made together
        once = Idempotency("k1", "later", "ab" * 32)
        for _ in range(2):
            assert jobs.submit(samples.spec(), "", SearchBudget(99), idempotency=once) == Submission(job, is_new=False)
        assert jobs.submission(once) == Submission(job, is_new=False)

    def test_an_owner_may_have_so_many_unfinished_jobs(self, jobs, samples, target):
        first = submit(jobs, samples, 0, owner="k1", most_unfinished=2)
        submit(jobs, samples, 1, owner="k1", most_unfinished=2)
        with pytest.raises(QuotaExceeded, match="2 unfinished jobs"):
            submit(jobs, samples, 2, owner="k1", most_unfinished=2)
        assert submit(jobs, samples, 0, owner="k1", most_unfinished=2) == first
        submit(jobs, samples, 3, owner="k2", most_unfinished=2)
        jobs.cancel(first.id)
        submit(jobs, samples, 2, owner="k1", most_unfinished=2)

    def test_a_job_that_a_command_left_is_queued(self, jobs, samples, target, clock):
        lease = jobs.open(samples.spec(), "", BUDGET, "command", 10)
        assert jobs.submit(samples.spec(), "", SearchBudget(5)).job.state is JobState.RUNNING
        clock.advance(11)
        submitted = jobs.submit(samples.spec(), "", SearchBudget(5), priority=2)
        job = submitted.job
        assert not submitted.is_new
        assert (job.id, job.state, job.attached) == (lease.job_id, JobState.QUEUED, False)
        assert (job.budget, job.priority) == (BUDGET, 0)  # its own
        assert kinds(jobs, job.id) == ["queued", "started", "lost", "resumed"]
        with pytest.raises(LeaseLost):
            jobs.renew(lease)
        assert jobs.lease([target], "h").job_id == job.id

    @pytest.mark.parametrize("how", ["submitted", "resumed"])
    def test_minutes_of_a_command_begin_anew_for_who_takes_its_job_over(self, jobs, samples, how):
        lease = jobs.open(samples.spec(), "", SearchBudget(9, 60.0, 0.02), "command")
        jobs.renew(lease, spent_s=60.0)
        jobs.pause_leased(lease)
        for _ in range(2):
            job = jobs.submit(samples.spec(), "", BUDGET).job if how == "submitted" else jobs.resume(lease.job_id)
            assert (job.state, job.budget) == (JobState.QUEUED, SearchBudget(9, 60.0, 0.02, before_s=60.0))
            jobs.pause(job.id)
            job = jobs.resume(job.id)
        assert kinds(jobs, job.id)[2:4] == ["paused", "resumed"]
        assert (job.budget.seconds_left(60.0), job.budget.seconds_left(100.0)) == (60.0, 20.0)

    def test_minutes_of_a_command_are_those_of_one_run(self, jobs, samples):
        lease = jobs.open(samples.spec(), "", SearchBudget(None, 60.0), "command")
        jobs.renew(lease, spent_s=61.0)
        jobs.pause_leased(lease, result={})
        again = jobs.get(jobs.open(samples.spec(), "", SearchBudget(None, 30.0), "command").job_id)
        assert (again.spent_s, again.budget) == (61.0, SearchBudget(None, 30.0, before_s=61.0))


class TestOpen:
    def test_makes_an_attached_job_and_has_it(self, jobs, samples, target, clock):
        lease = jobs.open(samples.spec(), "m.onnx", SearchBudget(7), "me")
        job = jobs.get(lease.job_id)
        assert (job.state, job.attached, job.holder, job.attempts) == (JobState.RUNNING, True, "me", 1)
        assert (lease.epoch, lease.holder) == (1, "me")
        assert kinds(jobs, job.id) == ["queued", "started"]
        assert jobs.events(job.id)[1].data == {"holder": "me", "attempt": 1}
        assert jobs.open(samples.spec(), "", BUDGET, "other") is None
        clock.advance(1000)
        assert jobs.lease([target], "h") is None and jobs.queued_targets() == []

    def test_takes_an_unfinished_job_up(self, jobs, samples):
        first = jobs.open(samples.spec(), "", BUDGET, "one")
        jobs.give_back(first)
        assert jobs.get(first.job_id).state is JobState.PAUSED
        second = jobs.open(samples.spec(), "", SearchBudget(99), "two")
        assert (second.job_id, second.epoch) == (first.job_id, 2)
        assert jobs.get(first.job_id).budget == SearchBudget(99)
        jobs.finish(second, JobState.SUCCEEDED)
        assert jobs.open(samples.spec(), "", BUDGET, "three").job_id != first.job_id

    def test_takes_a_queued_job_which_stays_for_all(self, jobs, samples):
        job = submit(jobs, samples)
        lease = jobs.open(samples.spec(), "", BUDGET, "me")
        assert lease.job_id == job.id
        jobs.give_back(lease)
        assert (jobs.get(job.id).state, jobs.get(job.id).attached) == (JobState.QUEUED, False)

    def test_takes_over_from_a_command_that_died(self, jobs, samples, clock):
        for attempt in range(1, ATTEMPTS + 3):
            lease = jobs.open(samples.spec(), "", BUDGET, f"h{attempt}", 10)
            assert lease.epoch > attempt - 1
            assert jobs.get(lease.job_id).attempts == 1
            clock.advance(11)
        assert kinds(jobs, lease.job_id)[:4] == ["queued", "started", "lost", "started"]

    def test_starts_anew_where_the_lost_one_was_cancelled(self, jobs, samples, clock):
        lost = jobs.open(samples.spec(), "", BUDGET, "h1", 10)
        jobs.cancel(lost.job_id)
        clock.advance(11)
        lease = jobs.open(samples.spec(), "", BUDGET, "h2", 10)
        assert lease.job_id != lost.job_id
        assert jobs.get(lost.job_id).state is JobState.CANCELLED


class TestTakeFrom:
    def test_who_died_has_no_job_from_then_on(self, jobs, samples, target):
        lost, other = (submit(jobs, samples, number) for number in (1, 2))
        leases = [jobs.lease([target], holder) for holder in ("vm:1", "vm:12")]
        jobs.take_from("vm:1")
        found = jobs.get(lost.id)
        assert (found.state, found.holder, found.attempts) == (JobState.QUEUED, "", 1)
        assert kinds(jobs, lost.id) == ["queued", "started", "lost"]
        assert (jobs.get(other.id).state, jobs.get(other.id).holder) == (JobState.RUNNING, "vm:12")
        with pytest.raises(LeaseLost):
            jobs.renew(leases[0])
        assert jobs.lease([target], "vm:3").job_id == lost.id

    def test_a_job_that_kills_them_all_fails(self, jobs, samples, target, clock):
        job = submit(jobs, samples)
        for _ in range(ATTEMPTS):
            clock.advance(300)  # behind any pause
            jobs.lease([target], "vm:1")
            jobs.take_from("vm:1")
        assert jobs.get(job.id).state is JobState.FAILED

    def test_the_job_of_a_command_is_left_alone(self, jobs, samples):
        lease = jobs.open(samples.spec(), "", BUDGET, "vm:1")
        jobs.take_from("vm:1")
        assert jobs.get(lease.job_id).holder == "vm:1"


class TestLease:
    def test_by_priority_then_age(self, jobs, samples, target):
        ids = [submit(jobs, samples, n, priority=p).id for n, p in enumerate((0, 5, -1, 5))]
        leased = [jobs.lease([target], f"h{n}").job_id for n in range(4)]
        assert leased == [ids[1], ids[3], ids[0], ids[2]]
        assert jobs.lease([target], "h") is None

    def test_of_these_targets_only(self, jobs, samples, target):
        job = jobs.submit(samples.spec(threads=4), "", BUDGET).job
        assert jobs.lease([target], "h") is jobs.lease([], "h") is None
        assert jobs.queued_targets() == [samples.target(4)]
        assert jobs.lease([target, samples.target(4).key, "00"], "h").job_id == job.id
        assert jobs.queued_targets() == []

    def test_one_that_waits_for_any_device(self, jobs, samples, target):
        spec = dataclasses.replace(samples.spec(), target_key="")
        job = jobs.submit(spec, "m", BUDGET).job
        assert (job.spec, job.state) == (spec, JobState.QUEUED)
        assert not jobs.submit(spec, "again", BUDGET).is_new
        assert jobs.queued_targets() == [None]
        assert jobs.lease([target], "h") is None
        device = samples.target(7)  # which the database does not know yet
        lease = jobs.lease([], "h", devices=[device])
        assert lease.job_id == job.id and jobs.queued_targets() == []
        placed = jobs.get(job.id)
        assert (placed.spec.target_key, placed.spec.settings) == (device.key, spec.settings)
        assert not jobs.submit(placed.spec, "", BUDGET).is_new  # it is that of anybody who names the target
        assert jobs.submit(spec, "", BUDGET).is_new
        jobs.give_back(lease)
        assert jobs.get(job.id).spec == placed.spec

    def test_the_first_device_that_will_do(self, jobs, samples):
        spec = dataclasses.replace(samples.spec(), target_key="")
        spec = dataclasses.replace(spec, settings=spec.settings | {THREADS: 3})
        job = jobs.submit(spec, "m", BUDGET).job
        assert jobs.lease([], "h", devices=[samples.target(2)]) is None
        assert jobs.get(job.id).spec == spec
        assert jobs.lease([], "h", devices=[samples.target(2), samples.target(4)]).job_id == job.id
        placed = jobs.get(job.id).spec
        assert placed.target_key == samples.target(3).key and THREADS not in placed.settings

    def test_one_that_waits_goes_on_waiting_for_an_equal_one(self, jobs, samples, target):
        other = submit(jobs, samples)
        waiting = jobs.submit(dataclasses.replace(samples.spec(), target_key=""), "", BUDGET, priority=5).job
        lease = jobs.lease([target], "h", devices=[samples.target()])
        assert lease.job_id == other.id
        assert jobs.lease([target], "h", devices=[samples.target()]) is None
        jobs.finish(lease, JobState.SUCCEEDED)
        assert jobs.lease([target], "h", devices=[samples.target()]).job_id == waiting.id

    def test_of_those_that_wait_for_any_device_each_goes_to_one(self, jobs, samples, store):
        spec = dataclasses.replace(samples.spec(), target_key="")
        ids = {jobs.submit(dataclasses.replace(spec, settings={"seed": n}), "", BUDGET).job.id for n in range(4)}
        leases = in_threads(lambda n: jobs.lease([], f"h{n}", devices=[samples.target(5 + n)]), 4)
        assert {lease.job_id for lease in leases} == ids
        for lease in leases:
            assert jobs.get(lease.job_id).spec.target_key == samples.target(5 + int(lease.holder[1:])).key

    def test_one_that_waits_can_be_steered(self, jobs, samples):
        job = jobs.submit(dataclasses.replace(samples.spec(), target_key=""), "", BUDGET).job
        assert jobs.pause(job.id).state is JobState.PAUSED
        assert jobs.lease([], "h", devices=[samples.target()]) is None
        assert jobs.resume(job.id).state is JobState.QUEUED
        assert jobs.cancel(job.id).state is JobState.CANCELLED
        assert jobs.queued_targets() == []

    def test_an_expired_one_is_taken_over(self, jobs, samples, target, clock):
        job = submit(jobs, samples)
        lost = jobs.lease([target], "first", 10)
        clock.advance(9.9)
        assert jobs.lease([target], "second") is None and jobs.queued_targets() == []
        clock.advance(0.1)
        assert jobs.queued_targets() == [samples.target()]
        lease = jobs.lease([target], "second", 10)
        assert lease.epoch > lost.epoch
        assert (jobs.get(job.id).holder, jobs.get(job.id).attempts) == ("second", 2)
        assert [(event.kind.value, event.data) for event in jobs.events(job.id, after=1)] == [
            ("started", {"holder": "first", "attempt": 1}),
            ("lost", {"holder": "first"}),
            ("started", {"holder": "second", "attempt": 2}),
        ]

    def test_renewing_keeps_it(self, jobs, samples, target, clock):
        submit(jobs, samples)
        lease = jobs.lease([target], "h", 10)
        for _ in range(5):
            clock.advance(9)
            assert jobs.renew(lease, 10).wish is None
            assert jobs.lease([target], "other") is None

    def test_one_that_is_over_can_be_renewed_until_it_is_taken(self, jobs, samples, target, clock):
        submit(jobs, samples)
        lease = jobs.lease([target], "h", 10)
        clock.advance(100)
        assert jobs.renew(lease, 10).wish is None
        assert jobs.lease([target], "other") is None

    def lose(self, jobs, target, clock, times):
        """Take the job up and lose it, waiting out the pauses between. The pauses in seconds."""
        pauses_s = []
        for n in range(times):
            start = clock.now
            self.take(jobs, target, clock, f"h{n}")
            pauses_s.append((clock.now - start).total_seconds())
            clock.advance(10)
        return pauses_s

    def take(self, jobs, target, clock, holder):
        while (lease := jobs.lease([target], holder, 10)) is None:
            clock.advance(0.5)
        return lease

    def test_a_job_that_nobody_survives_fails(self, jobs, samples, target, clock):
        job = submit(jobs, samples)
        pauses_s = self.lose(jobs, target, clock, ATTEMPTS)
        assert pauses_s[:2] == [0, 0]
        assert [bool(pause_s) for pause_s in pauses_s[2:]] == [True] * (ATTEMPTS - 2)
        assert sum(pauses_s) < 60
        assert jobs.get(job.id).state is JobState.RUNNING
        assert jobs.lease([target], "h") is None
        failed = jobs.get(job.id)
        error = f"{ATTEMPTS} processes in a row went away from it without a new trial, the last one h{ATTEMPTS - 1}"
        assert (failed.state, failed.error) == (JobState.FAILED, error)
        assert jobs.events(job.id)[-1].data == {"error": error}

    @pytest.mark.slow
    def test_a_new_trial_makes_up_for_the_losses(self, filled, jobs, samples, target, clock):
        job = submit(jobs, samples)
        self.lose(jobs, target, clock, ATTEMPTS - 1)
        lease = self.take(jobs, target, clock, "h")
        assert filled.record(samples.record(1), lease)
        assert jobs.get(job.id).attempts == 0
        clock.advance(10)
        self.lose(jobs, target, clock, ATTEMPTS - 1)
        assert jobs.get(job.id).state is JobState.RUNNING

    def test_giving_back_is_no_loss(self, jobs, samples, target):
        job = submit(jobs, samples)
        for _ in range(3 * ATTEMPTS):
            jobs.give_back(jobs.lease([target], "h"))
        assert (jobs.get(job.id).state, jobs.get(job.id).attempts) == (JobState.QUEUED, 0)
        assert kinds(jobs, job.id)[-2:] == ["started", "returned"]
        assert jobs.events(job.id)[-1].data == {"holder": "h", "state": "queued"}

    @pytest.mark.parametrize(("wish", "state"), [("cancel", "cancelled"), ("pause", "paused")])
    def test_who_gives_one_back_tells_what_it_is_then(self, jobs, samples, target, wish, state):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "h")
        getattr(jobs, wish)(job.id)
        jobs.give_back(lease)
        returned, last = jobs.events(job.id)[-2:]
        assert (returned.kind, returned.data, last.kind) == ("returned", {"holder": "h", "state": state}, state)

    @pytest.mark.parametrize(("wish", "state"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
    def test_an_expired_one_ends_as_was_wished(self, jobs, samples, target, clock, wish, state):
        job, other = submit(jobs, samples), submit(jobs, samples, 1)
        jobs.lease([target], "h", 10)
        getattr(jobs, wish)(job.id)
        clock.advance(11)
        assert jobs.lease([target], "h").job_id == other.id
        assert jobs.get(job.id).state is state
        assert kinds(jobs, job.id)[-2:] == ["lost", state.value]

    @pytest.mark.parametrize("wish", [None, "pause", "cancel"])
    def test_giving_back_obeys_what_was_wished(self, jobs, samples, target, wish):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "h")
        if wish:
            getattr(jobs, wish)(job.id)
        jobs.give_back(lease)
        expected = {None: JobState.QUEUED, "pause": JobState.PAUSED, "cancel": JobState.CANCELLED}[wish]
        assert (jobs.get(job.id).state, jobs.get(job.id).holder, jobs.get(job.id).wish) == (expected, "", None)

    @pytest.mark.parametrize("end", ["give_back", "pause_leased", "finish", "expire"])
    def test_nothing_is_written_under_a_lost_one(self, filled, jobs, samples, target, clock, end):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "old", 10)
        if end == "expire":
            clock.advance(11)
            assert jobs.lease([target], "new", 10)
        else:
            getattr(jobs, end)(lease, *([JobState.SUCCEEDED] if end == "finish" else []))
        before = jobs.get(job.id), jobs.events(job.id), filled.counts()
        event = NewEvent(EventKind.STAGE, {"stage": "late"})
        for write in (
            lambda: filled.record(samples.record(1), lease, [event]),
            lambda: filled.confirm(samples.record(1), lease, [event]),
            lambda: jobs.renew(lease, progress={"late": 1}, events=[event], spent_s=1.0),
            lambda: jobs.give_back(lease),
            lambda: jobs.pause_leased(lease),
            lambda: jobs.finish(lease, JobState.FAILED, error="late"),
            lambda: jobs.claim(lease, samples.task().key),
        ):
            with pytest.raises(LeaseLost, match=f"job {job.id} is no longer leased to old"):
                write()
        assert (jobs.get(job.id), jobs.events(job.id), filled.counts()) == before
        assert filled.confirmations([samples.task().key], target) == {}

    def test_of_no_job_is_lost(self, filled, jobs, samples):
        with pytest.raises(LeaseLost):
            jobs.renew(Lease(7, 1, "h"))
        with pytest.raises(LeaseLost):
            filled.record(samples.record(), Lease(7, 1, "h"))
        assert filled.counts()["trials"] == 0


class TestUnderALease:
    @pytest.fixture
    def lease(self, jobs, samples, target):
        submit(jobs, samples)
        return jobs.lease([target], "h")

    def test_progress_is_told(self, jobs, lease):
        events = [NewEvent(EventKind.STAGE, {"stage": "<b>search</b>\0"}), NewEvent(EventKind.PROGRESS, {"trials": 3})]
        jobs.renew(lease, progress={"trials": 3}, events=events, spent_s=1.5)
        jobs.renew(lease, spent_s=2.0)
        job = jobs.get(lease.job_id)
        assert (job.progress, job.spent_s) == ({"trials": 3}, 3.5)
        job_events = jobs.events(lease.job_id)
        assert [(event.number, event.kind, event.data) for event in job_events[2:]] == [
            (3, EventKind.STAGE, {"stage": "<b>search</b>\0"}),
            (4, EventKind.PROGRESS, {"trials": 3}),
        ]
        assert jobs.events(lease.job_id, after=2, limit=1) == [job_events[2]]
        assert jobs.events(lease.job_id, after=4) == []

    def test_what_the_machine_did_is_told(self, jobs, lease):
        span = {"elapsed_s": 10.01, "noisy_s": 0.0, "trials": 3, "steal": [0.0, 0.0125, 0.25], "clock_mhz": [2.6e3] * 3}
        jobs.renew(lease, events=[NewEvent(EventKind.MACHINE, span), NewEvent(EventKind.PROGRESS, {"trials": 3})])
        [event] = jobs.events(lease.job_id, kinds=[EventKind.MACHINE])
        assert (event.number, event.data) == (3, span)
        assert jobs.get(lease.job_id).progress is None

    def test_events_may_be_chosen(self, jobs, lease):
        """By their kind and, where there are many, some of them alone."""
        for trials in range(10):
            jobs.renew(lease, events=[NewEvent(EventKind.PROGRESS, {"trials": trials})])
            jobs.renew(lease, events=[NewEvent(EventKind.IMPROVED, {"trial": trials})])
        events = jobs.events(lease.job_id)
        assert jobs.newest_event(lease.job_id) == events[-1].number == len(events) == 22
        progress = [event for event in events if event.kind is EventKind.PROGRESS]
        assert jobs.events(lease.job_id, kinds={EventKind.PROGRESS}) == progress
        assert jobs.events(lease.job_id, progress[3].number, 2, kinds=[EventKind.PROGRESS]) == progress[4:6]
        some = [EventKind.QUEUED, EventKind.IMPROVED]
        assert jobs.events(lease.job_id, kinds=some) == [event for event in events if event.kind in some]
        assert jobs.events(lease.job_id, every=3, after=5) == events[5::3]
        assert [event.number for event in jobs.events(lease.job_id, kinds=some, every=5)] == [10, 20]
        assert jobs.events(lease.job_id, kinds=()) == []
        for ask in (jobs.events, jobs.newest_event):
            with pytest.raises(NotFound):
                ask(99)

    @pytest.mark.parametrize("number", [0, -1, 2**53, 2**63, 10**30, -(10**30)])
    def test_a_number_that_no_job_can_have_is_not_found(self, filled, jobs, number):
        """SQLite's driver raises OverflowError for it, which no caller expects."""
        asks = (jobs.get, jobs.events, jobs.newest_event, jobs.trials, jobs.statuses, jobs.orders, jobs.pause)
        for ask in (*asks, jobs.resume, jobs.cancel, lambda job: jobs.edit(job, JobEdit(priority=1))):
            with pytest.raises(NotFound, match=f"there is no job {number}$"):
                ask(number)

    def test_other_numbers_too_large_for_a_database_are_one_line(self, filled, jobs, samples):
        job, huge = submit(jobs, samples).id, 10**30
        for ask in (
            lambda: jobs.events(job, after=huge),
            lambda: jobs.events(job, limit=huge),
            lambda: jobs.trials(job, after=huge),
            lambda: jobs.list(before_id=huge),
            lambda: jobs.list(limit=huge),
            lambda: jobs.edit(job, JobEdit(priority=huge)),
            lambda: filled.trials.counts(huge),
            lambda: filled.statuses(after=huge),
        ):
            try:
                ask()  # PostgreSQL can compare with it
            except StoreError as error:
                assert str(error).endswith("a number is larger than any that it holds, which have at most 64 bits")
        assert jobs.get(job).priority == 0

    def test_trials_are_numbered_in_order(self, filled, jobs, samples, lease, clock):
        other = jobs.open(samples.spec(1), "", BUDGET, "h2")
        filled.record(samples.record(100))
        for number in (5, 3, 4):
            assert filled.record(samples.record(number), lease, [NewEvent(EventKind.IMPROVED, {"trial": number})])
            assert not filled.record(samples.record(number), other, [NewEvent(EventKind.IMPROVED, {"late": number})])
            filled.record(samples.record(number + 50), other)
        clock.advance(3)
        filled.record(samples.record(1, FAILED), lease)
        trials = jobs.trials(lease.job_id)
        assert [trial.ordinal for trial in trials] == [0, 1, 2, 3]
        assert [trial.record for trial in trials[:3]] == [samples.record(number) for number in (5, 3, 4)]
        assert jobs.trials(lease.job_id, after=1) == trials[2:]
        assert jobs.trials(lease.job_id, after=0, limit=2) == trials[1:3]
        assert jobs.statuses(lease.job_id) == {Status.OK: 3, Status.CRASH: 1}
        assert [trial.ordinal for trial in jobs.trials(other.job_id)] == [0, 1, 2]
        assert {job.id: job.trials for job in jobs.list()} == {lease.job_id: 4, other.job_id: 3}
        assert jobs.get(lease.job_id).updated_at == trials[-1].created_at == clock.now
        assert [event.data for event in jobs.events(lease.job_id, after=2)] == [{"trial": n} for n in (5, 3, 4)]
        assert kinds(jobs, other.job_id) == ["queued", "started"]

    def test_a_confirmation_comes_with_its_events(self, filled, jobs, samples, lease, target):
        filled.confirm(samples.record(1), lease, [NewEvent(EventKind.CONFIRMED, {"op": "Relu"})])
        assert filled.confirmations([samples.task().key], target) == {samples.task().key: samples.record(1)}
        assert jobs.events(lease.job_id)[-1].data == {"op": "Relu"}

    @pytest.mark.parametrize("state", FINAL)
    def test_the_end_is_the_end(self, jobs, samples, lease, clock, state):
        clock.advance(5)
        done = jobs.finish(lease, state, result={"tuned_ms": 1.5}, error="two\nlines\0")
        assert (done.state, done.result, done.updated_at, done.holder) == (state, {"tuned_ms": 1.5}, clock.now, "")
        assert done.error == ("two lines\N{REPLACEMENT CHARACTER}" if state is JobState.FAILED else "")
        event = jobs.events(done.id)[-1]
        assert event.kind.value == state.value
        assert (
            event.data
            == {
                JobState.SUCCEEDED: {"tuned_ms": 1.5},
                JobState.FAILED: {"error": done.error},
                JobState.CANCELLED: {},
            }[state]
        )
        for call in (jobs.pause, jobs.resume, lambda job_id: jobs.edit(job_id, JobEdit(priority=9))):
            with pytest.raises(Conflict, match=f"job {done.id} is {state} already"):
                call(done.id)
        if state is JobState.CANCELLED:
            assert jobs.cancel(done.id) == done
        else:
            with pytest.raises(Conflict):
                jobs.cancel(done.id)
        assert jobs.get(done.id) == done

    def test_only_final_states_are_an_end(self, jobs, lease):
        for state in set(JobState) - set(FINAL):
            with pytest.raises(ValueError, match=state.value):
                jobs.finish(lease, state)

    def test_wishes_are_heard(self, jobs, lease):
        assert jobs.orders(lease.job_id).wish is None
        assert jobs.pause(lease.job_id).wish is jobs.orders(lease.job_id).wish is Wish.PAUSE
        assert jobs.pause(lease.job_id).state is JobState.RUNNING
        assert jobs.renew(lease).wish is Wish.PAUSE
        assert jobs.resume(lease.job_id).wish is None
        assert jobs.renew(lease).wish is None
        assert jobs.cancel(lease.job_id).wish is Wish.CANCEL
        assert jobs.pause(lease.job_id).wish is jobs.resume(lease.job_id).wish is Wish.CANCEL
        assert jobs.renew(lease).wish is Wish.CANCEL
        assert [event.data for event in jobs.events(lease.job_id, after=2)] == [
            {"wish": "pause"},
            {"wish": None},
            {"wish": "cancel"},
        ]

    def test_pausing_and_resuming(self, jobs, lease, target):
        jobs.pause_leased(lease)
        assert jobs.lease([target], "h") is None
        assert jobs.pause(lease.job_id).state is JobState.PAUSED
        assert jobs.resume(lease.job_id).state is jobs.resume(lease.job_id).state is JobState.QUEUED
        again = jobs.lease([target], "h2")
        assert (again.job_id, jobs.get(again.job_id).attempts) == (lease.job_id, 1)
        assert kinds(jobs, lease.job_id) == ["queued", "started", "paused", "resumed", "started"]

    def test_a_job_to_be_cancelled_is_not_paused(self, jobs, lease):
        jobs.cancel(lease.job_id)
        jobs.pause_leased(lease)
        assert jobs.get(lease.job_id).state is JobState.CANCELLED


class TestClaims:
    def test_are_exclusive(self, jobs, samples):
        task = samples.task(8).key
        first, second = (jobs.open(samples.spec(n), "", BUDGET, f"h{n}") for n in range(2))
        assert jobs.claim(first, task) and jobs.claim(first, task)
        assert not jobs.claim(second, task)
        assert jobs.claim(second, samples.task(9).key)
        jobs.release_claims(first)
        assert jobs.claim(second, task) and not jobs.claim(first, task)
        jobs.release_claims(first)
        assert not jobs.claim(first, task)

    def test_of_another_target_do_not_meet(self, jobs, samples):
        task = samples.task(8).key
        first, second = (jobs.open(samples.spec(threads=threads), "", BUDGET, "h") for threads in (2, 4))
        assert jobs.claim(first, task) and jobs.claim(second, task)

    @pytest.mark.parametrize("end", ["give_back", "pause_leased", "finish", "expire"])
    def test_end_with_the_lease(self, jobs, samples, clock, end):
        task = samples.task(8).key
        first, second = (
            jobs.open(samples.spec(n), "", BUDGET, f"h{n}", lease_s) for n, lease_s in ((0, 10), (1, 1000))
        )
        assert jobs.claim(first, task)
        if end == "expire":
            clock.advance(11)
        else:
            getattr(jobs, end)(first, *([JobState.CANCELLED] if end == "finish" else []))
        assert jobs.claim(second, task)

    def test_of_the_next_epoch_are_its_own(self, jobs, samples, clock):
        task = samples.task(8).key
        old = jobs.open(samples.spec(), "", BUDGET, "old", 10)
        assert jobs.claim(old, task)
        clock.advance(11)
        new, other = (jobs.open(samples.spec(n), "", BUDGET, f"h{n}") for n in range(2))
        assert jobs.claim(other, task)
        assert not jobs.claim(new, task)
        assert jobs.claim(new, samples.task(9).key)
        jobs.release_claims(old)
        assert not jobs.claim(new, task) and not jobs.claim(other, samples.task(9).key)

    def test_of_unknown_tasks_are_refused(self, jobs, samples):
        lease = jobs.open(samples.spec(), "", BUDGET, "h")
        with pytest.raises(NotFound, match="no task 00"):
            jobs.claim(lease, "00")


class TestSteering:
    def test_a_job_that_nobody_has_obeys_at_once(self, jobs, samples, target, clock):
        job = submit(jobs, samples)
        assert jobs.pause(job.id).state is JobState.PAUSED
        assert jobs.lease([target], "h") is None
        assert jobs.resume(job.id).state is JobState.QUEUED
        jobs.lease([target], "h", 10)
        clock.advance(11)
        assert (jobs.pause(job.id).state, jobs.get(job.id).wish) == (JobState.PAUSED, None)
        assert jobs.cancel(job.id).state is JobState.CANCELLED
        assert jobs.lease([target], "h") is None
        story = ["queued", "paused", "resumed", "started", "lost", "paused", "cancelled"]
        assert kinds(jobs, job.id) == story

    def test_who_lost_it_meanwhile_hears_so(self, jobs, samples, target, clock):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "h", 10)
        clock.advance(11)
        jobs.pause(job.id)
        jobs.resume(job.id)
        for call in (jobs.renew, jobs.give_back, jobs.pause_leased):
            with pytest.raises(LeaseLost):
                call(lease)

    def test_a_resumed_job_is_for_all(self, jobs, samples, target):
        jobs.give_back(jobs.open(samples.spec(), "", BUDGET, "command"))
        (job,) = jobs.list([JobState.PAUSED])
        assert jobs.resume(job.id).attached is False
        assert jobs.lease([target], "h").job_id == job.id

    def test_priority(self, jobs, samples, target):
        ids = [submit(jobs, samples, n).id for n in range(3)]
        assert jobs.edit(ids[2], JobEdit(priority=1)).priority == 1
        jobs.edit(ids[2], JobEdit(priority=1))
        assert [jobs.lease([target], "h").job_id for _ in ids] == [ids[2], ids[0], ids[1]]
        assert [event.data for event in jobs.events(ids[2], after=1)][:1] == [{"priority": 1}]
        assert kinds(jobs, ids[2]) == ["queued", "changed", "started"]


class TestEdits:
    def test_a_job_is_submitted_with_tags_and_notes(self, jobs, samples, filled):
        job = submit(jobs, samples, tags=["team:a", "nightly", "team:a"], notes="<b>why\0</b>\n")
        assert job.tags == ("nightly", "team:a")
        assert job.notes == "<b>why\N{REPLACEMENT CHARACTER}</b>"
        assert jobs.get(job.id) == job and jobs.list() == [job]
        again = submit(jobs, samples, tags=["other"], notes="else")
        assert (again.id, again.tags, again.notes) == (job.id, job.tags, job.notes)  # one that is joined keeps its own

    @pytest.mark.parametrize("state", JobState)
    def test_names_of_a_job_in_any_state_may_be_changed(self, jobs, samples, target, state):
        number = submit(jobs, samples, tags=["a", "b"], notes="x").id
        if state is JobState.PAUSED:
            jobs.pause(number)
        elif state is not JobState.QUEUED:
            lease = jobs.lease([target], "h")
            if state is not JobState.RUNNING:
                jobs.finish(lease, state)
        before = jobs.get(number)
        after = jobs.edit(number, JobEdit(label=" new ", add_tags=("c", "a"), remove_tags=("b", "z"), notes="y\n"))
        assert after == dataclasses.replace(before, label="new", tags=("a", "c"), notes="y")
        assert (after.state, jobs.get(number)) == (state, after)
        event = jobs.events(number)[-1]
        assert (event.kind, event.data) == (EventKind.CHANGED, {"label": "new", "notes": "y", "tags": ["a", "c"]})

    def test_what_is_the_same_is_no_change(self, jobs, samples):
        job = submit(jobs, samples, tags=["a"], notes="x")
        edit = JobEdit(priority=0, label=job.label, tags=("a",), add_tags=("a",), remove_tags=("b",), notes="x")
        assert jobs.edit(job.id, edit) == jobs.edit(job.id, JobEdit()) == job
        assert kinds(jobs, job.id) == ["queued"]

    def test_tags_may_be_set_as_a_whole(self, jobs, samples):
        job = submit(jobs, samples, tags=["a", "b"])
        assert jobs.edit(job.id, JobEdit(tags=("c", "b"), add_tags=("d",), remove_tags=("c",))).tags == ("b", "d")
        assert jobs.edit(job.id, JobEdit(tags=())).tags == ()
        assert [event.data for event in jobs.events(job.id, after=1)] == [{"tags": ["b", "d"]}, {"tags": []}]

    @pytest.mark.parametrize("tag", ["", "A", "-a", "a b", "a\n", "\xe9", "a" * 65, "a\0", "a/b"])
    def test_what_is_no_tag(self, jobs, samples, tag):
        with pytest.raises(ValueError, match="is no tag: that is a word of 1 to 64 characters"):
            submit(jobs, samples, tags=[tag])
        job = submit(jobs, samples, tags=["a" * 64, "0._:-"])
        with pytest.raises(ValueError, match="is no tag"):
            jobs.edit(job.id, JobEdit(label="new", add_tags=(tag,)))
        assert jobs.get(job.id) == job

    def test_there_is_a_limit(self, jobs, samples):
        many = [f"t{number:02}" for number in range(17)]
        with pytest.raises(ValueError, match="at most 16 tags, not 17"):
            submit(jobs, samples, tags=many)
        job = submit(jobs, samples, tags=many[:16], notes="n" * 4096)
        with pytest.raises(ValueError, match="at most 16 tags, not 17"):
            jobs.edit(job.id, JobEdit(add_tags=("more",)))
        for change in (partial(submit, jobs, samples, 1), lambda notes: jobs.edit(job.id, JobEdit(notes=notes))):
            with pytest.raises(ValueError, match="at most 4,096 characters, not 4,097"):
                change(notes="n" * 4097)
        assert jobs.edit(job.id, JobEdit(add_tags=("more",), remove_tags=("t00",))).tags == ("more", *many[1:16])

    def test_all_of_an_edit_is_done_or_nothing(self, jobs, samples):
        job = jobs.cancel(submit(jobs, samples).id)
        with pytest.raises(Conflict, match=f"job {job.id} is cancelled already"):
            jobs.edit(job.id, JobEdit(priority=1, label="new", add_tags=("a",)))
        assert jobs.get(job.id) == job

    def test_tags_of_two_at_once_are_all_there(self, jobs, samples):
        number = submit(jobs, samples).id
        in_threads(lambda one: jobs.edit(number, JobEdit(add_tags=(f"t{one}", "same"))), 8)
        assert jobs.get(number).tags == ("same", *(f"t{one}" for one in range(8)))
        assert len(jobs.events(number)) == 9


class TestExtend:
    @pytest.fixture
    def extend(self, jobs):
        """The method with a name of its own for each call."""
        numbers = itertools.count()

        def call(job_id, **options):
            return jobs.extend(job_id, Idempotency("k2", f"n{next(numbers)}", "ab" * 32), **options)

        return call

    @pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.PAUSED])
    def test_the_budget_of_an_unfinished_job_grows(self, jobs, samples, target, extend, state):
        number = jobs.submit(samples.spec(), "", SearchBudget(10, 60.0, 0.02), owner="k1").job.id
        if state is JobState.PAUSED:
            jobs.pause(number)
        lease = jobs.lease([target], "h") if state is JobState.RUNNING else None
        before = jobs.get(number)
        after = extend(number, trials=5, seconds=600.0)
        budget = SearchBudget(15, 660.0, 0.02)
        assert after == Submission(dataclasses.replace(before, budget=budget), is_new=False)
        event = jobs.events(number)[-1]
        assert (event.kind, event.data) == (EventKind.CHANGED, {"trials": 15, "minutes": 11.0})
        if lease is not None:
            assert jobs.renew(lease).budget == jobs.orders(number).budget == budget
        assert extend(number, trials=1).job.budget == SearchBudget(16, 660.0, 0.02)
        assert jobs.events(number)[-1].data == {"trials": 16}

    @pytest.mark.parametrize(
        ("budget", "more"),
        [
            (SearchBudget(10), {"seconds": 60.0}),
            (SearchBudget(None, 60.0), {"trials": 5}),
            (SearchBudget(None, until=0.1), {"trials": 5, "seconds": 60.0}),
        ],
    )
    def test_a_bound_that_it_lacks_is_not_raised(self, jobs, samples, extend, budget, more):
        job = jobs.submit(samples.spec(), "", budget).job
        with pytest.raises(NoSuchBound, match=f"job {job.id} has no such bound"):
            extend(job.id, **more)
        assert jobs.get(job.id) == job and kinds(jobs, job.id) == ["queued"]

    def test_of_two_bounds_it_must_have_both(self, jobs, samples, extend):
        job = submit(jobs, samples)
        with pytest.raises(NoSuchBound):
            extend(job.id, trials=5, seconds=60.0)
        assert jobs.get(job.id).budget == SearchBudget(10)

    def test_one_that_re_times_searches_nothing(self, jobs, samples, extend):
        spec = dataclasses.replace(samples.spec(), settings={RETIME: 5})
        job = jobs.submit(spec, "", SearchBudget(None)).job
        with pytest.raises(NoSuchBound):
            extend(job.id, seconds=60.0)

    def test_a_job_that_was_out_of_time_goes_on(self, jobs, samples, target, extend):
        lease = jobs.open(samples.spec(), "", SearchBudget(None, 60.0), "command")
        jobs.renew(lease, spent_s=61.0)
        jobs.pause_leased(lease, result={"outcome": "faster"})
        job = extend(lease.job_id, seconds=60.0).job
        assert (job.state, job.attached, job.budget) == (
            JobState.QUEUED,
            False,
            SearchBudget(None, 60.0, before_s=61.0),
        )
        assert job.budget.seconds_left(job.spent_s) == 60.0
        assert jobs.events(job.id)[-2].data == {"minutes": 1.0}
        assert kinds(jobs, job.id)[-3:] == ["paused", "changed", "resumed"]
        assert jobs.lease([target], "h").job_id == job.id

    def test_more_trials_are_no_time(self, jobs, samples, extend):
        lease = jobs.open(samples.spec(), "", SearchBudget(5, 60.0), "command")
        jobs.pause_leased(lease, result={"outcome": "faster"})
        job = extend(lease.job_id, trials=60).job
        assert (job.state, job.budget) == (JobState.PAUSED, SearchBudget(65, 60.0))

    def test_one_that_people_paused_stays_so(self, jobs, samples, extend):
        job = jobs.pause(jobs.submit(samples.spec(), "", SearchBudget(None, 60.0)).job.id)
        job = extend(job.id, seconds=60.0).job
        assert (job.state, job.budget) == (JobState.PAUSED, SearchBudget(None, 120.0))

    @pytest.mark.parametrize("state", FINAL)
    def test_a_finished_job_is_gone_on_with_by_another(self, jobs, samples, target, extend, state):
        options = {"owner": "k1", "priority": 3, "tags": ["a", "b"], "notes": "first"}
        jobs.submit(samples.spec(), "net.onnx", SearchBudget(10, 60.0, 0.02), **options)
        done = jobs.finish(jobs.lease([target], "h"), state)
        submission = extend(done.id, seconds=600.0)
        job = submission.job
        assert submission.is_new and job.id != done.id and jobs.get(done.id) == done
        assert (job.spec, job.label, job.tags, job.priority) == (done.spec, done.label, done.tags, 3)
        assert (job.state, job.budget, job.owner) == (JobState.QUEUED, SearchBudget(None, 600.0), "k2")
        again = extend(done.id, seconds=60.0)
        assert (again.job.id, again.is_new, again.job.budget) == (job.id, False, SearchBudget(None, 660.0))
        with pytest.raises(NoSuchBound):
            extend(done.id, trials=7)

    def test_it_counts_as_a_job_of_who_asks(self, jobs, samples, extend):
        done = jobs.cancel(submit(jobs, samples, owner="k1").id)
        submit(jobs, samples, 1, owner="k2")
        with pytest.raises(QuotaExceeded):
            extend(done.id, trials=5, most_unfinished=1)
        assert extend(done.id, trials=5, most_unfinished=2).is_new

    def test_an_idempotency_key_extends_once(self, jobs, samples, target):
        once = Idempotency("k1", "again", "ab" * 32)
        job = submit(jobs, samples)
        for _ in range(2):
            assert jobs.extend(job.id, once, trials=5).job.budget == SearchBudget(15)
        with pytest.raises(Conflict, match="idempotency"):
            jobs.extend(job.id, dataclasses.replace(once, fingerprint="cd" * 32), trials=5)
        done, other = jobs.cancel(job.id), Idempotency("k1", "and again", "ab" * 32)
        first, second = (jobs.extend(done.id, other, trials=5) for _ in range(2))
        assert first == second and first.is_new and len(jobs.list()) == 2

    def test_an_unknown_job(self, jobs, extend):
        with pytest.raises(NotFound, match="no job 7"):
            extend(7, trials=1)

    @pytest.mark.parametrize("how", ["finish", "pause_leased"])
    def test_a_job_whose_budget_was_raised_is_not_over(self, jobs, samples, target, extend, how):
        jobs.submit(samples.spec(), "", BUDGET)
        lease = jobs.lease([target], "h")
        end = partial(jobs.finish, lease, JobState.SUCCEEDED) if how == "finish" else partial(jobs.pause_leased, lease)
        raised = extend(lease.job_id, trials=5).job
        assert end(result={"trials": 10}, budget=BUDGET) == raised
        assert raised.state is JobState.RUNNING and jobs.renew(lease).budget == SearchBudget(15)
        over = end(result={"trials": 15}, budget=SearchBudget(15))
        assert (over.state, over.result) == (
            JobState.SUCCEEDED if how == "finish" else JobState.PAUSED,
            {"trials": 15},
        )


class TestLooking:
    def test_jobs_are_found_by_tags_and_texts(self, jobs, samples):
        labels = ["ResNet-50.onnx", "100%_net", "plain", "other"]
        tags = [["nightly", "team:a"], ["nightly"], ["resnet"], []]
        notes = ["", "It FAILED\n<twice>", "", "50_%"]
        ids = [
            jobs.submit(samples.spec(number), label, BUDGET, tags=own, notes=text).job.id
            for number, (label, own, text) in enumerate(zip(labels, tags, notes, strict=True))
        ]

        def numbers(**conditions):
            return [ids.index(job.id) for job in jobs.list(**conditions)]

        assert numbers(tags=["nightly"]) == [1, 0]
        assert numbers(tags=["nightly", "team:a", "nightly"]) == [0]
        assert numbers(tags=["team"]) == numbers(tags=["nightly", "resnet"]) == numbers(tags=["a\0"]) == []
        assert numbers(search="RESNET") == [2, 0]
        assert numbers(search="failed\n<") == [1]
        assert numbers(search="%") == [3, 1] and numbers(search="%_") == [1] and numbers(search="\\") == []
        assert numbers(search="") == [3, 2, 1, 0]
        assert numbers(search="nightly", before_id=ids[1], limit=1) == [0]
        assert [len(job.tags) for job in jobs.list()] == [0, 1, 1, 2]

    def test_lists_are_filtered_and_paged(self, jobs, samples, target):
        submitted = [submit(jobs, samples, n, owner=f"k{n % 2}") for n in range(4)]
        submitted.append(jobs.submit(samples.spec(0, threads=4), "", BUDGET).job)
        done = jobs.cancel(submitted[1].id)
        submitted[1] = done
        newest = submitted[::-1]
        assert jobs.list() == newest
        assert jobs.list([JobState.CANCELLED]) == [done]
        assert jobs.list([]) == []
        assert jobs.list(model_sha256=samples.spec().model_sha256) == [submitted[4], submitted[0]]
        assert jobs.list(target_key=samples.target(4).key) == [submitted[4]]
        assert jobs.list(owner="k1", states=[JobState.QUEUED]) == [submitted[3]]
        assert jobs.list(limit=2) == newest[:2]
        assert jobs.list(before_id=newest[1].id, limit=2) == newest[2:4]
        assert jobs.list(limit=0) == []

    def test_what_jobs_came_to(self, jobs, samples, target):
        assert jobs.outcomes() == {}
        results = [None, {}, {"outcome": "faster", "noise": "it was busy"}, {"outcome": "defaults_kept", "noise": ""}]
        for number, result in enumerate([*results, {"outcome": "defaults_kept", "noise": None}]):
            submit(jobs, samples, number)
            jobs.finish(jobs.lease([target], "h"), JobState.SUCCEEDED, result=result)
        submit(jobs, samples, 9)
        assert jobs.outcomes() == {("", False): 2, ("faster", True): 1, ("defaults_kept", False): 2}

    def test_counts(self, jobs, samples, target):
        assert jobs.counts() == dict.fromkeys(JobState, 0)
        for number in range(3):
            submit(jobs, samples, number)
        jobs.lease([target], "h")
        assert {state: count for state, count in jobs.counts().items() if count} == {
            JobState.QUEUED: 2,
            JobState.RUNNING: 1,
        }

    def test_the_longest_wait(self, jobs, samples, target, clock):
        assert jobs.oldest_queued_s() is None
        job = submit(jobs, samples)
        clock.advance(5)
        submit(jobs, samples, 1)
        assert jobs.oldest_queued_s() == 5
        jobs.edit(job.id, JobEdit(priority=1))
        clock.advance(1)
        assert jobs.oldest_queued_s() == 6
        lease = jobs.lease([target], "h")
        assert jobs.oldest_queued_s() == 1
        clock.advance(10)
        jobs.give_back(lease)
        assert jobs.oldest_queued_s() == 11
        jobs.cancel(jobs.lease([target], "h").job_id)

    def test_times_are_moments(self, jobs, samples, clock):
        assert submit(jobs, samples).created_at.utcoffset() == timedelta(0)


class TestWait:
    def test_a_change_by_another_thread_ends_it(self, jobs, samples):
        count = jobs.changes()
        while jobs.wait(0.3, count):
            count = jobs.changes()
        threading.Timer(0.2, lambda: submit(jobs, samples)).start()
        started_s = time.monotonic()
        assert jobs.wait(60, count)
        assert time.monotonic() - started_s < 5

    def test_the_time_is_kept(self, jobs):
        while jobs.wait(0.3):
            pass
        started_s = time.monotonic()
        assert not jobs.wait(0.1)
        assert 0.09 < time.monotonic() - started_s < 5

    def test_no_change_is_missed_between_two_waits(self, jobs, samples):
        while jobs.wait(0.3):
            pass
        submit(jobs, samples)
        started_s = time.monotonic()
        assert jobs.wait(60)
        assert time.monotonic() - started_s < 5

    def test_closing_ends_it(self, store):
        store.jobs.wait(0.3)
        threading.Timer(0.2, store.close).start()
        started_s = time.monotonic()
        while store.jobs.wait(60):
            pass
        assert time.monotonic() - started_s < 5


class TestTriedAgain:
    """A connection that is lost after the commit and before the answer: the method runs twice."""

    @pytest.fixture
    def twice(self, store, monkeypatch):
        """Make the next write of this thread commit, and then say that the server is away."""
        store.database.patience_s = 5.0
        left: list[int] = []

        @contextmanager
        def cut_off(write):
            with write() as transaction:
                yield transaction
            if threading.get_ident() in left:
                left.clear()
                raise Unreachable("the connection was lost")

        for way in ("write", "write_core"):
            monkeypatch.setattr(store.database, way, partial(cut_off, getattr(store.database, way)))
        return lambda: left.append(threading.get_ident())

    def test_happens_once(self, filled, jobs, samples, target, twice):
        twice()
        job = submit(jobs, samples, idempotency=Idempotency("k", "name", "ab" * 32), most_unfinished=1)
        lease = jobs.lease([target], "h")
        event = NewEvent(EventKind.STAGE, {"stage": "x"})
        twice()
        assert filled.record(samples.record(1), lease, [event])
        twice()
        filled.confirm(samples.record(1), lease, [event])
        twice()
        assert jobs.renew(lease, spent_s=1.5, progress={"n": 1}, events=[event]).wish is None
        twice()
        assert jobs.claim(lease, samples.task().key)
        twice()
        jobs.cancel(job.id)
        assert jobs.renew(lease).wish is Wish.CANCEL
        twice()
        assert jobs.finish(lease, JobState.SUCCEEDED, result={"x": 1}).state is JobState.SUCCEEDED
        assert jobs.get(job.id).spent_s == 1.5
        assert kinds(jobs, job.id) == ["queued", "started", *["stage"] * 3, "changed", "succeeded"]
        assert len(jobs.trials(job.id)) == 1

    def test_a_trial_that_was_known_is_no_new_one(self, filled, jobs, samples, target, twice):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "h")
        assert filled.record(samples.record(1), lease)
        twice()
        assert not filled.record(samples.record(1), lease, [NewEvent(EventKind.STAGE, {"stage": "x"})])
        assert len(jobs.trials(job.id)) == 1
        assert kinds(jobs, job.id) == ["queued", "started"]

    def test_happens_once_though_another_thread_writes_under_the_lease(self, jobs, samples, target, twice):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "h")
        done = threading.Event()

        def keep():  # as the thread that renews the lease
            while not done.is_set():
                jobs.renew(lease)

        other = threading.Thread(target=keep)
        other.start()
        try:
            for _ in range(3):
                twice()
                jobs.renew(lease, spent_s=1.0, events=[NewEvent(EventKind.STAGE, {})])
        finally:
            done.set()
            other.join()
        assert jobs.get(job.id).spent_s == 3.0
        assert kinds(jobs, job.id) == ["queued", "started", *["stage"] * 3]

    @pytest.mark.parametrize("end", ["give_back", "pause_leased"])
    def test_leaving_happens_once(self, jobs, samples, target, twice, end):
        job = submit(jobs, samples)
        lease = jobs.lease([target], "h")
        twice()
        getattr(jobs, end)(lease)
        assert len(kinds(jobs, job.id)) == 3
        assert jobs.get(job.id).state is (JobState.QUEUED if end == "give_back" else JobState.PAUSED)

    @pytest.mark.parametrize("is_finished", [False, True])
    def test_extending_happens_once(self, jobs, samples, twice, is_finished):
        job = submit(jobs, samples)
        if is_finished:
            jobs.cancel(job.id)
        twice()
        extended = jobs.extend(job.id, Idempotency("k", "name", "ab" * 32), trials=5)
        assert extended.is_new is is_finished and len(jobs.list()) == 1 + is_finished
        assert extended.job.budget == SearchBudget(5 if is_finished else 15)
        assert kinds(jobs, extended.job.id) == (["queued"] if is_finished else ["queued", "changed"])

    def test_an_edit_happens_once(self, jobs, samples, twice):
        job = submit(jobs, samples)
        twice()
        assert jobs.edit(job.id, JobEdit(label="new", add_tags=("a",))).tags == ("a",)
        assert kinds(jobs, job.id) == ["queued", "changed"]

    def test_impatience_says_so(self, filled, jobs, samples, twice):
        filled.database.patience_s = 0.0
        twice()
        with pytest.raises(Unreachable, match="the connection was lost"):
            submit(jobs, samples)


def test_threads_that_extend_one_job_get_one(filled, samples):
    """All that they ask for is added up."""
    done = filled.jobs.cancel(submit(filled.jobs, samples).id)

    def extend(number):
        return filled.jobs.extend(done.id, Idempotency("k", f"name{number}", "ab" * 32), trials=1, most_unfinished=1)

    results = in_threads(extend, 6)
    assert sum(result.is_new for result in results) == 1
    assert {result.job.id for result in results} == {filled.jobs.list()[0].id} != {done.id}
    assert filled.jobs.list()[0].budget == SearchBudget(6)


def test_threads_that_submit_one_spec_get_one_job(filled, samples):
    def run(number):
        idempotency = Idempotency("k", f"name{number % 2}", "ab" * 32)
        return filled.jobs.submit(samples.spec(), "", BUDGET, idempotency=idempotency, most_unfinished=1)

    results = in_threads(run, 6)
    assert len({submitted.job.id for submitted in results}) == 1 == filled.counts()["jobs"]
    assert sum(submitted.is_new for submitted in results) == 3  # those of the name that was first


class TestDelete:
    @pytest.fixture
    def finished(self, filled, samples):
        """A finished job that is told of everywhere."""
        idempotency = Idempotency("k1", "nightly", "f" * 64)
        job = submit(filled.jobs, samples, owner="k1", idempotency=idempotency)
        lease = filled.jobs.lease([samples.target().key], "holder")
        assert lease is not None
        for number in range(3):
            filled.record(samples.record(number), lease)
        filled.fleet.enlist("t1", "host", 7, "1", "local")
        filled.fleet.report("t1", [], job.id)
        filled.snapshots.keep(NewSnapshot("cpu", "1", b"model", 3, 3, {}, job_id=job.id))
        with filled.database.write() as session:
            session.add(JobTagRow(job_id=job.id, tag="nightly"))
        filled.jobs.finish(lease, JobState.SUCCEEDED, result={"speedup": 2.0})
        return job

    def test_it_is_gone_and_what_it_measured_stays(self, filled, samples, finished):
        task, target = samples.task().key, samples.target().key
        before = filled.records(task, target), filled.best(task, target)
        filled.jobs.delete(finished.id)
        assert filled.jobs.list() == []
        for ask in (filled.jobs.get, filled.jobs.events, filled.jobs.trials, filled.jobs.delete):
            with pytest.raises(NotFound):
                ask(finished.id)
        assert (filled.records(task, target), filled.best(task, target)) == before
        assert filled.schedule_keys(task, target) == {samples.schedule(number).key for number in range(3)}
        assert [snapshot.job_id for snapshot in filled.snapshots.list()] == [None]
        assert [tuner.job_id for tuner in filled.fleet.tuners()] == [None]
        assert filled.jobs.submission(Idempotency("k1", "nightly", "0" * 64)) is None

    @pytest.mark.parametrize("verb", [None, "lease", "pause"])
    def test_an_unfinished_one_is_to_be_cancelled_first(self, jobs, samples, target, verb):
        job = submit(jobs, samples)
        match verb:
            case "lease":
                jobs.lease([target], "holder")
            case "pause":
                jobs.pause(job.id)
        with pytest.raises(Conflict, match="cancel it first"):
            jobs.delete(job.id)
        assert jobs.get(job.id).state is not JobState.CANCELLED

    def test_its_number_is_never_another_jobs(self, jobs, samples, target):
        """A process that lost a job long ago would take another one for it, by number and epoch."""
        submit(jobs, samples)
        stale = jobs.lease([target], "holder")
        jobs.finish(stale, JobState.FAILED)
        jobs.delete(stale.job_id)
        job = submit(jobs, samples, 1)
        assert job.id > stale.job_id
        lease = jobs.lease([target], "another")
        assert lease.epoch == stale.epoch
        with pytest.raises(LeaseLost):
            jobs.renew(stale)
        jobs.finish(lease, JobState.FAILED)
        jobs.delete(job.id)
        assert submit(jobs, samples, 2).id > job.id

    def test_a_tuner_that_reports_it_still_works_for_no_job(self, filled, finished):
        filled.jobs.delete(finished.id)
        filled.fleet.report("t1", [], finished.id)
        assert [tuner.job_id for tuner in filled.fleet.tuners()] == [None]

    def test_one_of_many_threads_deletes_it_while_others_submit(self, filled, samples, finished):
        def work(number):
            if number % 2:
                return submit(filled.jobs, samples, number).id
            with contextlib.suppress(NotFound):
                filled.jobs.delete(finished.id)
                return True
            return False

        results = in_threads(work, 8)
        assert sum(result is True for result in results) == 1
        assert {job.id for job in filled.jobs.list()} == {result for result in results if not isinstance(result, bool)}


def test_a_job_keeps_its_model_there(filled, samples):
    with pytest.raises(NotFound, match="no model"):
        submit(filled.jobs, samples, is_uploaded=True)
    assert filled.jobs.list() == []
    data = b"model"
    sha256 = hashlib.sha256(data).hexdigest()
    filled.uploads.add(sha256, [data], label="", with_weights=False, description={})
    spec = dataclasses.replace(samples.spec(), model_sha256=sha256)
    job = filled.jobs.submit(spec, "", BUDGET, is_uploaded=True).job
    with pytest.raises(Conflict, match=f"job {job.id} needs the model"):
        filled.uploads.delete(sha256)
    filled.jobs.cancel(job.id)
    assert filled.uploads.delete(sha256) == len(data)
    for ask in (filled.uploads.get, filled.uploads.read, filled.uploads.delete):
        with pytest.raises(NotFound):
            ask(sha256)
    assert filled.jobs.get(job.id).spec.model_sha256 == sha256
