"""The queue against a model of it, under random histories of several holders, lost ones and a clock."""

import dataclasses
import itertools
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tunewright.db.job import (
    ATTEMPTS,
    UNFINISHED,
    Conflict,
    EventKind,
    JobSpec,
    JobState,
    LeaseLost,
    NewEvent,
    SearchBudget,
    SpecTask,
)
from tunewright.db.store import open_store

HOLDERS = ["a", "b", "c"]
SPECS = 3
EXTENTS = (8, 9)

_examples = itertools.count(1)
"""Each example has a target of its own, so that all share one database."""


@dataclasses.dataclass
class Known:
    """What the model knows of a job."""

    lease: object = None  # the newest that nobody ended
    until: object = None  # when it is over
    epoch: int = 0
    trials: int = 0
    events: list[object] = dataclasses.field(default_factory=list)
    final: object = None  # the job, once it was seen in a final state


def machine(store, clock, samples):
    """The class of state machines on a store, whose clock is `clock`."""

    class Queue(RuleBasedStateMachine):
        @initialize()
        def begin(self):
            self.leases = []
            target = samples.target(threads=1000 + next(_examples))
            store.add_target(target)
            self.target_key = target.key
            self.known = {}
            self.claims = {}  # task key -> lease
            self.schedules = itertools.count()
            for number in range(SPECS):
                self.submit(number, 0)
            for holder in HOLDERS[:2]:
                self.lease(holder, 20.0)

        # What the model says

        def in_force(self, lease):
            known = self.known[lease.job_id]
            return known.lease == lease and known.until > clock.now

        def spec(self, number):
            tasks = tuple(SpecTask(samples.task(extent).key, 1) for extent in EXTENTS)
            return JobSpec(f"{number:064x}", self.target_key, tasks, {})

        def begun(self, lease, lease_s):
            known = self.known.setdefault(lease.job_id, Known())
            assert known.final is None
            assert known.lease is None or known.until <= clock.now, "two leases in force"
            assert lease.epoch > known.epoch
            known.lease, known.until, known.epoch = lease, clock.now + timedelta(seconds=lease_s), lease.epoch
            self.leases.append(lease)

        def write(self, lease, work):
            """What `work` returns under a lease. It must be refused exactly where the lease is not the newest."""
            if self.known[lease.job_id].lease == lease:
                return work()
            with pytest.raises(LeaseLost):
                work()
            return None

        def ended(self, lease):
            if self.known[lease.job_id].lease == lease:
                self.known[lease.job_id].lease = None

        def steer(self, job_id, work):
            known = self.known[job_id]
            if known.final is not None:
                with pytest.raises(Conflict):
                    work(job_id)
                return
            if work(job_id).state is not JobState.RUNNING:
                known.lease = None

        jobs = st.integers(0, 2)
        durations = st.sampled_from([5.0, 20.0])

        def job_id(self, number):
            ids = sorted(self.known)
            return ids[number % len(ids)] if ids else None

        def lease_of(self, number):
            return self.leases[-1 - number % len(self.leases)] if self.leases else None

        # What may happen

        @rule(number=st.integers(0, SPECS - 1), priority=st.integers(0, 2))
        def submit(self, number, priority):
            submitted = store.jobs.submit(self.spec(number), "", SearchBudget(5), priority=priority)
            assert submitted.is_new == (submitted.job.id not in self.known)
            known = self.known.setdefault(submitted.job.id, Known())
            if submitted.job.state is not JobState.RUNNING:
                known.lease = None

        @rule(number=st.integers(0, SPECS - 1), holder=st.sampled_from(HOLDERS), lease_s=durations)
        def open(self, number, holder, lease_s):
            lease = store.jobs.open(self.spec(number), "", SearchBudget(5), holder, lease_s)
            if lease is None:
                assert any(known.lease and known.until > clock.now for known in self.known.values())
            else:
                self.begun(lease, lease_s)

        @rule(holder=st.sampled_from(HOLDERS), lease_s=durations)
        def lease(self, holder, lease_s):
            lease = store.jobs.lease([self.target_key], holder, lease_s)
            for job_id, known in self.known.items():  # those that it settled on its way
                if known.lease and store.jobs.get(job_id).state is not JobState.RUNNING:
                    assert known.until <= clock.now
                    known.lease = None
            if lease is not None:
                self.begun(lease, lease_s)

        @rule(time_s=st.sampled_from([1.0, 6.0, 21.0, 100.0]))
        def time_passes(self, time_s):
            clock.advance(time_s)

        @rule(number=jobs, lease_s=durations)
        def renew(self, number, lease_s):
            if lease := self.lease_of(number):
                self.write(lease, lambda: store.jobs.renew(lease, lease_s, events=[NewEvent(EventKind.STAGE)]))
                known = self.known[lease.job_id]
                if known.lease == lease:
                    known.until = clock.now + timedelta(seconds=lease_s)

        @rule(number=jobs, extent=st.sampled_from(EXTENTS))
        def record(self, number, extent):
            if lease := self.lease_of(number):
                record = samples.record(next(self.schedules), extent=extent)
                record = dataclasses.replace(record, target_key=self.target_key)
                if self.write(lease, lambda: store.record(record, lease, [NewEvent(EventKind.IMPROVED)])):
                    self.known[lease.job_id].trials += 1
                    assert store.jobs.get(lease.job_id).attempts == 0

        @rule(number=jobs, how=st.sampled_from(["give_back", "pause_leased"]))
        def leave(self, number, how):
            if lease := self.lease_of(number):
                self.write(lease, lambda: getattr(store.jobs, how)(lease))
                self.ended(lease)

        @rule(number=jobs, state=st.sampled_from([state for state in JobState if state not in UNFINISHED]))
        def finish(self, number, state):
            if lease := self.lease_of(number):
                self.write(lease, lambda: store.jobs.finish(lease, state))
                self.ended(lease)

        @rule(number=jobs, extent=st.sampled_from(EXTENTS))
        def claim(self, number, extent):
            if (lease := self.lease_of(number)) is None:
                return
            task_key = samples.task(extent).key
            claimed = self.write(lease, lambda: store.jobs.claim(lease, task_key))
            owner = self.claims.get(task_key)
            if claimed is not None:
                taken = owner is not None and owner.job_id != lease.job_id and self.in_force(owner)
                assert claimed == (not taken)
            if claimed:
                self.claims[task_key] = lease

        @rule(number=jobs)
        def release(self, number):
            if lease := self.lease_of(number):
                store.jobs.release_claims(lease)
                self.claims = {task: owner for task, owner in self.claims.items() if owner != lease}

        @rule(number=jobs, how=st.sampled_from(["pause", "resume"]))
        def pause_or_resume(self, number, how):
            if (job_id := self.job_id(number)) is not None:
                self.steer(job_id, getattr(store.jobs, how))

        @rule(number=jobs)
        def cancel(self, number):
            if (job_id := self.job_id(number)) is not None:
                final = self.known[job_id].final
                if final is not None and final.state is JobState.CANCELLED:
                    assert store.jobs.cancel(job_id) == final
                else:
                    self.steer(job_id, store.jobs.cancel)

        # What must hold

        @invariant()
        def consistent(self):
            listed = {job.id: job for job in store.jobs.list(target_key=self.target_key)}
            assert listed.keys() == self.known.keys(), "a job was lost"
            for job in listed.values():
                known = self.known[job.id]
                if known.final is not None:
                    assert job == known.final, "a finished job changed"
                elif job.state not in UNFINISHED:
                    known.final, known.lease = job, None
                assert job.attempts <= ATTEMPTS
                assert (job.state is JobState.RUNNING) == (known.lease is not None)
                assert bool(job.holder) == (known.lease is not None)
                events = store.jobs.events(job.id)
                assert [event.number for event in events] == list(range(1, len(events) + 1))
                assert events[: len(known.events)] == known.events, "history changed"
                known.events = events
                assert sum(event.kind is EventKind.IMPROVED for event in events) == known.trials
                assert [trial.ordinal for trial in store.jobs.trials(job.id)] == list(range(known.trials))
            unfinished = [job.spec for job in listed.values() if job.state in UNFINISHED]
            assert len({spec.key for spec in unfinished}) == len(unfinished)

        def teardown(self):
            """Whatever happened: all jobs that are not paused and not a command's come to their end."""
            if not hasattr(self, "known"):
                return
            clock.advance(1000)
            for _ in range(len(self.known) + 1):
                while (lease := store.jobs.lease([self.target_key], "last")) is not None:
                    store.jobs.finish(lease, JobState.SUCCEEDED)
                clock.advance(1000)
            for job in store.jobs.list(target_key=self.target_key):
                assert job.state not in UNFINISHED or job.attached or job.state is JobState.PAUSED

    return Queue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "examples", "steps"),
    [("memory", 40, 30), ("sqlite", 15, 30), pytest.param("postgres", 20, 30, marks=pytest.mark.postgres)],
)
def test_histories(kind, examples, steps, make_url, make_clock, samples):
    with open_store(make_url(kind)) as store:
        clock = store.database.clock = make_clock()
        samples.fill(store)
        run_state_machine_as_test(
            machine(store, clock, samples), settings=settings(max_examples=examples, stateful_step_count=steps)
        )
