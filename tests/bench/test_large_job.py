"""The job that pages are measured on is one as the program itself would have stored it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from tunewright.bench.large_job import LargeJob, fill, next_records
from tunewright.codegen.host import detect
from tunewright.db.job import EventKind
from tunewright.db.store import Store, open_store
from tunewright.search_space.measurement import Status

TRIALS = 600


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/large.db") as large_store:
        yield large_store


@pytest.fixture
def job(store: Store) -> LargeJob:
    return fill(store, detect(1), TRIALS, lambda _: None)


@pytest.mark.slow
def test_trials_are_of_the_job(store: Store, job: LargeJob) -> None:
    counts = store.trials.counts(job.id)
    assert counts.keys() == {task.key for task in job.tasks}
    assert TRIALS - len(job.tasks) <= store.counts()["trials"] <= TRIALS
    assert sum(counts[job.tasks[0].key].values()) > TRIALS / 2
    assert set(counts[job.tasks[0].key]) == {Status.OK, Status.CRASH}
    ordinals = [trial.ordinal for trial in store.jobs.trials(job.id)]
    assert len(set(ordinals)) == len(ordinals)


def test_best_are_those_that_would_be_chosen(store: Store, job: LargeJob) -> None:
    keys = [task.key for task in job.tasks]
    stored = {key: best.median_s for (key, _), best in store.catalog.best(keys, [job.target.key]).items()}
    walked = {key: best.measurement.median_s for key, best in store.best_many(keys, job.target.key).items()}
    assert stored == walked
    assert stored.keys() == set(keys)


def test_events_are_all_there(store: Store, job: LargeJob) -> None:
    events = store.jobs.events(job.id)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert store.jobs.newest_event(job.id) == len(events)
    assert {EventKind.DEFAULT, EventKind.IMPROVED, EventKind.PROGRESS} <= {event.kind for event in events}


@pytest.mark.slow
def test_filling_again_changes_nothing(store: Store, job: LargeJob) -> None:
    before = store.counts()
    assert replace(fill(store, job.target, TRIALS, lambda _: None), tasks=job.tasks) == job
    assert store.counts() == before


def test_next_trials_are_new(store: Store, job: LargeJob) -> None:
    new = [store.record(record) for record in islice(next_records(job), 50)]
    assert sum(new) > 40
