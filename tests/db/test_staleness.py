"""The contract of Staleness, checked on every database."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from tunewright.codegen.target import CUDA
from tunewright.db.job import RETIME, JobState, SearchBudget
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Status

from .conftest import plan, selected

NEW, OLD = {"tunewright": "2.0", "llvm": "20"}, {"tunewright": "2.0", "llvm": "19"}


@pytest.fixture
def staleness(filled):
    return filled.staleness


def of(samples, versions, number=0, extent=8, threads=2, median_s=1e-3, **more):
    measured = replace(samples.measurement(median_s), provenance={"machine": "m1", **versions}, **more)
    return samples.record(number, measured, extent, threads)


def keys(staleness, samples, versions=None, threads=2, **options):
    found = staleness.tasks(samples.target(threads).key, NEW if versions is None else versions, **options)
    return [best.task_key for best in found]


def test_bests_of_other_versions_are_stale(filled, staleness, samples):
    filled.record(of(samples, OLD))
    filled.record(of(samples, NEW, extent=9))
    filled.record(of(samples, OLD, extent=9, threads=4))
    [best] = staleness.tasks(samples.target().key, NEW)
    assert (best.task_key, best.op) == (samples.task(8).key, samples.task(8).op)
    assert (best.schedule, best.provenance) == (samples.schedule(), {"machine": "m1", **OLD})
    assert keys(staleness, samples, OLD) == [samples.task(9).key]
    assert keys(staleness, samples, threads=4) == [samples.task(9).key]
    assert staleness.counts({"cpu": NEW}) == {samples.target().key: 1, samples.target(4).key: 1}
    assert staleness.counts({"cpu": {}}) == staleness.counts({}) == {}
    assert keys(staleness, samples, {}) == []


def test_what_tells_no_version_is_stale(filled, staleness, samples):
    filled.record(samples.record())
    assert keys(staleness, samples) == [samples.task(8).key]


def test_the_best_counts_and_not_the_trials(filled, staleness, samples):
    """So a confirmation by the present versions ends it, and a faster trial of theirs."""
    filled.record(of(samples, OLD))
    filled.record(of(samples, OLD, 1, extent=9))
    filled.record(of(samples, NEW, 2, median_s=2e-3))
    assert keys(staleness, samples) == sorted(samples.task(extent).key for extent in (8, 9))
    filled.confirm(of(samples, NEW, 3, median_s=5e-3))
    assert keys(staleness, samples) == [samples.task(9).key]
    filled.record(of(samples, NEW, 2, extent=9, median_s=5e-4))
    assert keys(staleness, samples) == []
    filled.confirm(of(samples, NEW, 4, extent=9, status=Status.CRASH))
    assert keys(staleness, samples) == []


def test_what_was_imported_is_not_stale(filled, staleness, samples):
    with open_store("sqlite://") as other:
        samples.fill(other)
        other.record(of(samples, OLD))
        filled.import_(json.dumps(entry) for entry in other.export())
    assert filled.best(samples.task(8).key, samples.target().key) is not None
    assert keys(staleness, samples) == [] and staleness.counts({"cpu": NEW}) == {}


def test_pages_and_choices_of_tasks(filled, staleness, samples):
    tasks = sorted(samples.task(extent).key for extent in range(8, 14))
    filled.add_tasks(samples.task(extent) for extent in range(8, 14))
    for extent in range(8, 14):
        filled.record(of(samples, OLD, extent=extent))
    assert keys(staleness, samples) == tasks
    assert keys(staleness, samples, limit=4) == tasks[:4]
    assert keys(staleness, samples, after=tasks[3], limit=4) == tasks[4:]
    assert keys(staleness, samples, task_keys=[tasks[4], tasks[1], "no task"]) == [tasks[1], tasks[4]]
    assert keys(staleness, samples, task_keys=[]) == []


def test_kinds_of_targets_have_versions_of_their_own(filled, staleness, samples):
    gpu = samples.target(kind=CUDA)
    filled.add_target(gpu)
    filled.record(replace(of(samples, {"nvrtc": "12.0"}), target_key=gpu.key))
    filled.record(of(samples, OLD))
    assert staleness.counts({CUDA: {"nvrtc": "13.0"}}) == {gpu.key: 1}
    assert staleness.counts({CUDA: {"nvrtc": "12.0"}, "cpu": NEW}) == {samples.target().key: 1}


def test_one_statement_reads_no_trial(filled, staleness, samples):
    filled.record(of(samples, OLD))
    with selected(filled) as queries:
        staleness.tasks(samples.target().key, NEW, limit=1)
        staleness.counts({"cpu": NEW})
    assert len(queries) == 2
    for query in queries:
        assert "trials" not in query[0] and "trials" not in plan(filled, query)


def model(number):
    """Digest of a model of these bytes."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def searched(filled, samples, number, records, spent_s, **settings):
    """A job that made these trials in so many seconds."""
    spec = replace(samples.spec(), model_sha256=model(number))
    lease = filled.jobs.open(replace(spec, settings=spec.settings | settings), "", SearchBudget(9), "h")
    for record in records:
        assert filled.record(record, lease)
    filled.jobs.renew(lease, spent_s=spent_s)
    filled.jobs.finish(lease, JobState.SUCCEEDED, result={})


def test_seconds_of_tuning_are_those_of_the_jobs_that_made_the_trials(filled, staleness, samples):
    task, other, target = samples.task(8).key, samples.task(9).key, samples.target().key
    assert staleness.tuning_s([task], target) == 0.0
    searched(filled, samples, 0, [samples.record(n) for n in range(3)] + [samples.record(0, extent=9)], 8.0)
    searched(filled, samples, 1, [samples.record(5)], 1.5)
    searched(filled, samples, 2, [samples.record(6)], 100.0, **{RETIME: 5})
    filled.record(samples.record(7))  # of no job
    assert staleness.tuning_s([task], target) == pytest.approx(7.5)
    assert staleness.tuning_s([other, other], target) == pytest.approx(2.0)
    assert staleness.tuning_s([task, other], target) == pytest.approx(9.5)
    assert staleness.tuning_s([task], samples.target(4).key) == staleness.tuning_s([], target) == 0.0


def test_jobs_of_models_are_the_newest_that_succeeded_with_what_was_sent(filled, staleness, samples):
    keys, target = [samples.task(extent).key for extent in (8, 9)], samples.target().key
    for number in range(4):
        searched(filled, samples, number, [], 1.0)
    searched(filled, samples, 1, [], 1.0, dims={"n": 2})
    filled.jobs.submit(replace(samples.spec(), model_sha256=model(1)), "waits", SearchBudget(1))
    assert staleness.model_jobs(keys, target) == []
    for number in (0, 1, 3):
        filled.uploads.add(model(number), [b"%d" % number], label="m", with_weights=False, description={})
    assert staleness.model_jobs(keys, target) == [5, 4, 1]
    assert staleness.model_jobs(keys[:1], target, limit=2) == [5, 4]
    assert staleness.model_jobs(["no task"], target) == staleness.model_jobs([], target) == []
    assert staleness.model_jobs(keys, samples.target(4).key) == []
