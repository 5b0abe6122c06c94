"""Pruning, on every database: what goes, and that nobody misses it."""

import functools
import hashlib
import itertools
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from tunewright.db.access import KeyScope
from tunewright.db.errors import Damaged, NotFound
from tunewright.db.job import EventKind, JobState, NewEvent, SearchBudget
from tunewright.db.logs.entry import LogEntry, LogEnvironment
from tunewright.db.pruned_of_job import ENTRY, PrunedOfJob
from tunewright.db.pruning import progress, prune, trials
from tunewright.db.pruning.policy import MOST_PROGRESS, Pruned, RetentionPolicy
from tunewright.db.store import open_store
from tunewright.db.tables import DeliveryRow, JobRow, TaskRow, WebhookRow
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.sketches import current, default_schedule

from .conftest import plan, selected

DAY_S = 86_400.0

LEARNED = 5
"""The newest trials that stay here."""

NOTHING = RetentionPolicy(None, None, None, None)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Transactions of few rows, and cost models that learn from few trials."""
    monkeypatch.setattr(progress, "REMOVED_AT_ONCE", 70)
    monkeypatch.setattr(trials, "REMOVED_AT_ONCE", 7)
    monkeypatch.setattr(prune, "REMOVED_AT_ONCE", 3)
    monkeypatch.setattr(trials, "LEARNED_TRIALS", LEARNED)


def run(store, samples, number=0, trials=(), progress=0, state=JobState.SUCCEEDED):
    """A finished job that stored these trials and told so much progress, some of it with a forecast."""
    store.jobs.submit(samples.spec(number), f"m{number}", SearchBudget(10))
    lease = store.jobs.lease([samples.target().key], "holder")
    for record in trials:
        store.record(record, lease, [NewEvent(EventKind.IMPROVED, {"task_key": record.task_key})])
    for start in range(0, progress, 100):
        told = [
            NewEvent(EventKind.PROGRESS, {"trials": i, "again_gain": 0.1 if i % 3 else None})
            for i in range(start, min(progress, start + 100))
        ]
        store.jobs.renew(lease, progress={"trials": len(trials)}, events=told)
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        store.jobs.finish(lease, state, result={"speedup": 2.0})
    return lease


def kinds(store, job_id):
    events = store.jobs.events(job_id, limit=None)
    return [event.kind for event in events if event.kind is not EventKind.PROGRESS]


class TestProgress:
    def test_that_of_jobs_finished_long_ago_is_thinned(self, filled, samples, clock):
        old = run(filled, samples, 0, [samples.record(0)], progress=1000)
        clock.advance(20 * DAY_S)
        young = run(filled, samples, 1, progress=1000)
        running = run(filled, samples, 2, progress=1000, state=JobState.RUNNING)
        clock.advance(11 * DAY_S)
        before = filled.jobs.get(old.job_id), kinds(filled, old.job_id), filled.jobs.newest_event(old.job_id)
        policy = replace(NOTHING, events_days=30.0)
        would = filled.pruning.prune(policy, dry_run=True)
        assert len(filled.jobs.events(old.job_id, limit=None)) == 1004
        assert filled.pruning.prune(policy) == would
        told = filled.jobs.events(old.job_id, limit=None, kinds=[EventKind.PROGRESS])
        assert 0.4 * MOST_PROGRESS < len(told) <= MOST_PROGRESS and would == Pruned(events=1000 - len(told))
        assert (filled.jobs.get(old.job_id), kinds(filled, old.job_id)) == before[:2]
        assert filled.jobs.newest_event(old.job_id) == before[2]
        for job_id in (young.job_id, running.job_id):
            assert len(filled.jobs.events(job_id, limit=None, kinds=[EventKind.PROGRESS])) == 1000
        assert filled.pruning.prune(policy) == Pruned()

    def test_who_has_seen_an_event_gets_those_behind_it(self, filled, samples, clock):
        job_id = run(filled, samples, progress=1000).job_id
        clock.advance(31 * DAY_S)
        before = filled.jobs.events(job_id, limit=None)
        filled.pruning.prune(RetentionPolicy())
        left = filled.jobs.events(job_id, limit=None)
        assert left == [event for event in before if event in left] and len(left) < len(before)
        for seen in (0, 1, 500, 1001, 1002):
            assert filled.jobs.events(job_id, seen, limit=3) == [event for event in left if event.number > seen][:3]

    def test_so_is_what_the_machine_did(self, filled, samples, clock):
        filled.jobs.submit(samples.spec(0), "m", SearchBudget(10))
        lease = filled.jobs.lease([samples.target().key], "holder")
        both = [NewEvent(EventKind.MACHINE, {"elapsed_s": 10.0}), NewEvent(EventKind.PROGRESS, {"trials": 1})]
        for _ in range(5):
            filled.jobs.renew(lease, events=both * 60)
        filled.jobs.finish(lease, JobState.SUCCEEDED, result={})
        clock.advance(31 * DAY_S)
        would = filled.pruning.prune(RetentionPolicy(), dry_run=True)
        assert filled.pruning.prune(RetentionPolicy()) == would
        of_machine, of_progress = (
            filled.jobs.events(lease.job_id, limit=None, kinds=[kind])
            for kind in (EventKind.MACHINE, EventKind.PROGRESS)
        )
        assert len(of_machine) == MOST_PROGRESS >= len(of_progress) > 0.4 * MOST_PROGRESS
        assert would == Pruned(events=600 - len(of_machine) - len(of_progress))
        assert (of_machine[0].number, of_machine[-1].number) == (3, 601)
        assert filled.pruning.prune(RetentionPolicy()) == Pruned()

    def test_short_jobs_are_left_alone(self, filled, samples, clock):
        job_id = run(filled, samples, progress=MOST_PROGRESS - 5).job_id
        clock.advance(400 * DAY_S)
        assert filled.pruning.prune(RetentionPolicy()) == Pruned()
        assert len(filled.jobs.events(job_id, limit=None)) == MOST_PROGRESS - 2

    def test_a_process_that_is_stopped_leaves_the_rest_for_the_next(self, filled, samples, clock):
        job_id = run(filled, samples, progress=1000).job_id
        clock.advance(31 * DAY_S)
        whole = filled.pruning.prune(RetentionPolicy(), dry_run=True)
        calls = itertools.count()
        part = filled.pruning.prune(RetentionPolicy(), goes_on=lambda: next(calls) < 4)
        assert 0 < part.events < whole.events
        assert filled.pruning.prune(RetentionPolicy()).events >= whole.events - part.events - MOST_PROGRESS
        assert len(filled.jobs.events(job_id, limit=None, kinds=[EventKind.PROGRESS])) <= MOST_PROGRESS

    def test_that_of_a_damaged_job_is_passed_over(self, filled, samples, clock, caplog, monkeypatch):
        first, second = (run(filled, samples, number, progress=600).job_id for number in range(2))
        clock.advance(31 * DAY_S)
        mark = progress.ProgressPruning._mark_thinned

        def fail(pruning, job_id):
            if job_id == first:
                raise Damaged("tuning.db", "a test")
            mark(pruning, job_id)

        monkeypatch.setattr(progress.ProgressPruning, "_mark_thinned", fail)
        for _ in range(2):
            filled.pruning.prune(RetentionPolicy())
        assert len(filled.jobs.events(second, limit=None, kinds=[EventKind.PROGRESS])) <= MOST_PROGRESS
        assert [(line.message, line.job) for line in caplog.records] == [("progress not pruned", first)]


def test_deliveries_that_are_over_go(store, clock):
    with store.database.write() as session:
        session.add(WebhookRow(id="w", url="", secret="", events=[], owner="", created_at=clock.now))
        session.flush()
        for number in range(8):
            due_at = clock.now if number == 0 else None
            session.add(DeliveryRow(webhook_id="w", kind="failed", data={}, created_at=clock.now, due_at=due_at))
    clock.advance(29 * DAY_S)
    assert store.pruning.prune(RetentionPolicy()) == Pruned()
    clock.advance(2 * DAY_S)
    assert store.pruning.prune(RetentionPolicy(), dry_run=True) == Pruned(deliveries=7)
    assert store.pruning.prune(RetentionPolicy()) == Pruned(deliveries=7)
    assert store.pruning.prune(replace(RetentionPolicy(), deliveries_days=0.0)) == Pruned()


def test_what_is_over_goes_whatever_the_policy(store, clock):
    store.keys.create("lasting", [KeyScope.JOBS_READ], 60.0)
    store.keys.create("session", [KeyScope.JOBS_READ], 60.0, passing=True)
    store.fleet.enlist("t1", "host", 7, "1", "local")
    store.logs.write("n", [LogEntry("k", b"v", LogEnvironment("H100", "t"))])
    store.logs.write("m", [LogEntry("k", b"v", LogEnvironment("H200", "t"))])
    store.logs.delete("n")
    assert store.pruning.prune(NOTHING, dry_run=True) == Pruned(log_entries=1, environments=1)
    clock.advance(2 * DAY_S)
    gone = Pruned(sessions=1, tuners=1, log_entries=1, environments=1)
    assert store.pruning.prune(NOTHING, dry_run=True) == gone
    assert store.pruning.prune(NOTHING) == gone
    assert store.pruning.prune(NOTHING) == Pruned()
    assert [key.name for key in store.keys.list()] == ["lasting"]


def test_models_that_nobody_uses_go(filled, samples, clock):
    digests = []
    for number in range(4):
        data = bytes([number]) * (number + 1)
        digests.append(hashlib.sha256(data).hexdigest())
        filled.uploads.add(digests[-1], [data], label="", with_weights=False, description={})
    for number, ends in ((1, True), (2, False)):
        job = filled.jobs.submit(replace(samples.spec(), model_sha256=digests[number]), "", SearchBudget(1)).job
        if ends:
            clock.advance(20 * DAY_S)
            filled.jobs.cancel(job.id)
    clock.advance(20 * DAY_S)
    policy = replace(NOTHING, models_days=30.0)
    assert filled.pruning.prune(policy, dry_run=True) == Pruned(models=2, model_bytes=1 + 4)
    assert filled.pruning.prune(policy) == Pruned(models=2, model_bytes=1 + 4)
    assert {upload.sha256 for upload in filled.uploads.list()} == {digests[1], digests[2]}
    assert b"".join(filled.uploads.read(digests[2])) == bytes([2]) * 3
    clock.advance(20 * DAY_S)
    assert filled.pruning.prune(policy) == Pruned(models=1, model_bytes=2)  # the last one's job is not finished


def test_a_model_that_was_sent_or_submitted_again_stays(filled, samples, clock):
    data = b"model"
    sha256 = hashlib.sha256(data).hexdigest()
    add = functools.partial(filled.uploads.add, sha256, label="", with_weights=False, description={})
    spec = replace(samples.spec(), model_sha256=sha256)

    def submit():
        job_id = filled.jobs.submit(spec, "", SearchBudget(1), is_uploaded=True).job.id
        filled.jobs.cancel(job_id)
        filled.jobs.delete(job_id)

    add([data])
    policy = replace(NOTHING, models_days=30.0)
    for use in (lambda: add([data]), submit, lambda: filled.uploads.use(sha256)):
        clock.advance(31 * DAY_S)
        assert filled.pruning.prune(policy, dry_run=True).models == 1
        use()
        assert filled.pruning.prune(policy) == filled.pruning.prune(policy, dry_run=True) == Pruned()
    assert filled.uploads.get(sha256).created_at == clock.now - timedelta(days=93)
    clock.advance(31 * DAY_S)
    assert filled.pruning.prune(policy) == Pruned(models=1, model_bytes=5)
    for gone in (submit, lambda: filled.uploads.use(sha256)):
        with pytest.raises(NotFound, match="no model"):
            gone()


POLICY = replace(NOTHING, best=8, trials_days=90.0)


class TestTrials:
    def test_the_slow_ones_of_a_job_finished_long_ago_go(self, filled, samples, clock):
        order = random.Random(0).sample(range(100), 40)
        failed = Measurement(Status.CRASH, error="signal 11")
        records = [samples.record(number, failed if number % 10 == 3 else None) for number in order]
        job_id = run(filled, samples, 0, records).job_id
        assert filled.pruning.prune(RetentionPolicy(best=8)) == Pruned()
        clock.advance(91 * DAY_S)
        assert filled.pruning.prune(RetentionPolicy()) == Pruned()  # unless that is asked for
        working = sorted(number for number in order if number % 10 != 3)
        stay = {0, *working[:8], *order[-5:]} & {*working} | {number for number in order if number % 10 == 3}
        gone = Pruned(trials=len(order) - len(stay))
        assert filled.pruning.prune(POLICY, dry_run=True) == gone
        assert filled.pruning.prune(POLICY) == gone
        task, target = samples.task().key, samples.target().key
        assert {record.schedule["tile_m"] for record in filled.records(task, target)} == stay
        assert filled.jobs.get(job_id).trials == 40
        assert filled.trials.counts(job_id) == {task: {Status.OK: len(working), Status.CRASH: 40 - len(working)}}
        assert filled.jobs.statuses(job_id) == filled.trials.counts(job_id)[task]
        assert [trial.ordinal for trial in filled.jobs.trials(job_id)][-1] == 39
        assert ENTRY not in (filled.jobs.get(job_id).progress or {})
        assert filled.pruning.prune(POLICY) == Pruned()

    def test_the_default_and_what_was_confirmed_or_taken_back_stays(self, filled, samples, clock):
        records = [samples.record(number) for number in range(1, 30)]
        default = default_schedule(samples.task(), samples.target())
        slow_default = replace(samples.record(0, samples.measurement(1.0)), schedule=default)
        run(filled, samples, 0, [*records, slow_default, *(samples.record(n, extent=9) for n in range(6))])
        clock.advance(1)
        filled.confirm(replace(samples.record(25), measurement=samples.measurement(0.5)))
        filled.voids.void(*(records[25].task_key, records[25].target_key, records[25].schedule.key), "a test")
        clock.advance(91 * DAY_S)
        filled.pruning.prune(POLICY)
        left = {record.schedule for record in filled.records(records[0].task_key, records[0].target_key)}
        assert left == {default} | {samples.schedule(number) for number in (*range(1, 9), 25, 26)}

    def test_those_of_no_job_and_of_jobs_that_go_on_stay(self, filled, samples, clock):
        for number in range(20):
            filled.record(samples.record(number))
        run(filled, samples, 0, [samples.record(number) for number in range(20, 40)])
        clock.advance(91 * DAY_S)
        run(filled, samples, 1, [samples.record(number) for number in range(40, 60)], state=JobState.RUNNING)
        assert filled.pruning.prune(POLICY) == Pruned(trials=19)
        left = filled.records(samples.task().key, samples.target().key)
        assert {record.schedule["tile_m"] for record in left} == {*range(20), 39, *range(40, 60)}

    def test_a_job_measures_while_the_others_are_pruned(self, shared_url, samples):
        with open_store(shared_url) as store:
            samples.fill(store)
            for number in range(3):
                run(store, samples, number, [samples.record(100 * number + n) for n in range(30)], progress=300)
            store.jobs.submit(samples.spec(9), "", SearchBudget(100))
            lease = store.jobs.lease([samples.target().key], "holder")
            assert lease is not None
        policy = replace(POLICY, trials_days=0.0, events_days=0.0)

        def work(number):
            with open_store(shared_url) as store:
                if number:
                    return store.pruning.prune(policy)
                for n in range(40):
                    assert store.record(samples.record(500 + n), lease, [NewEvent(EventKind.PROGRESS)])
                return Pruned()

        with ThreadPoolExecutor(4) as threads:
            removed = sum(threads.map(work, range(4)), Pruned())
        with open_store(shared_url) as store:
            left = store.records(samples.task().key, samples.target().key)
            assert {500 + n for n in range(40)} <= {record.schedule["tile_m"] for record in left}
            assert removed.trials == 130 - len(left)
            for job_id in range(1, 4):
                assert sum(store.jobs.statuses(job_id).values()) == 30
            assert store.pruning.prune(replace(policy, best=None)) == Pruned()
            assert store.jobs.get(lease.job_id).trials == 40

    def test_a_prune_with_nothing_to_do_reads_no_trials(self, filled, samples, clock):
        is_sqlite = filled.database.is_sqlite
        run(filled, samples, 0, [samples.record(number) for number in range(30)])
        clock.advance(91 * DAY_S)
        with selected(filled) as statements:
            assert filled.pruning.prune(POLICY) == Pruned(trials=30 - 8 - LEARNED)
        crowds = [query for query in statements if "SELECT trials.median_s" in query[0]]
        assert crowds and all("USING COVERING INDEX" in plan(filled, query) for query in crowds if is_sqlite)
        for _ in range(2):
            clock.advance(3600)
            with selected(filled) as statements:
                assert filled.pruning.prune(POLICY) == Pruned()
            [newest, added] = [query for query in statements if "trials" in query[0]]
            assert "max(trials.id)" in newest[0] and "trials.id >" in added[0]
            if is_sqlite:
                assert "INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in plan(filled, added)
        for number in range(1, 6):  # what cost models learn from becomes other trials
            filled.record(samples.record(number, extent=9))
            clock.advance(3600)
            assert filled.pruning.prune(POLICY).trials == (number < 5)  # the last one of the job stays
        with selected(filled) as statements:
            assert filled.pruning.prune(POLICY) == Pruned()
        assert not [query for query, _ in statements if "FROM trials" in query]  # nothing is left that may go later

    def test_trials_are_read_once_more_when_another_job_has_become_old(self, filled, samples, clock):
        run(filled, samples, 0, [samples.record(number) for number in range(20, 40)])
        clock.advance(50 * DAY_S)
        run(filled, samples, 1, [samples.record(number) for number in range(40, 60)])
        clock.advance(50 * DAY_S)
        assert filled.pruning.prune(POLICY) == Pruned(trials=20 - 8 - 1)
        clock.advance(50 * DAY_S)
        assert filled.pruning.prune(POLICY) == Pruned(trials=20 - LEARNED)
        assert filled.pruning.prune(replace(POLICY, best=9)) == Pruned()

    @pytest.mark.parametrize("what", ["void", "confirm", "delete"])
    def test_what_happens_between_reading_and_removing_counts(self, filled, samples, clock, monkeypatch, what):
        records = [samples.record(number) for number in range(30)]
        job_id = run(filled, samples, 0, records).job_id
        clock.advance(91 * DAY_S)
        place, remove = (records[0].task_key, records[0].target_key), trials.TrialPruning._delete
        doing = {
            "void": lambda: filled.voids.void(*place, records[0].schedule.key, "a test"),
            "confirm": lambda: filled.confirm(records[20]),
            "delete": lambda: filled.jobs.delete(job_id),
        }

        def late(*arguments):
            if work := doing.pop(what, None):
                work()
            return remove(*arguments)

        monkeypatch.setattr(trials.TrialPruning, "_delete", late)
        filled.pruning.prune(POLICY)
        left = {record.schedule["tile_m"] for record in filled.records(*place)}
        gone = {*range(30)} - left
        assert gone == {"void": {*range(9, 25)}, "confirm": {*range(8, 25)} - {20}, "delete": set()}[what]

    def test_those_of_a_damaged_task_are_passed_over(self, filled, samples, clock, caplog):
        for extent in (8, 9):
            run(filled, samples, extent, [samples.record(number, extent=extent) for number in range(30)])
        clock.advance(91 * DAY_S)
        damaged = min(samples.task(extent).key for extent in (8, 9))
        with filled.database.write() as session:
            session.execute(update(TaskRow).where(TaskRow.key == damaged).values(data={}))
        assert filled.pruning.prune(POLICY, dry_run=True).trials > 0
        caplog.clear()
        assert filled.pruning.prune(POLICY).trials > 0
        for _ in range(2):
            run(filled, samples, 1, [samples.record(100 + number) for number in range(9)])
            clock.advance(91 * DAY_S)
            filled.pruning.prune(POLICY)
        [line] = caplog.records
        assert (line.message, line.task) == ("trials not pruned", damaged) and "is damaged" in line.reason
        assert len(filled.records(damaged, samples.target().key)) >= 30


def test_what_was_removed_of_a_job_is_stored_with_its_progress(filled, samples):
    lease = run(filled, samples, state=JobState.RUNNING)
    pruned = PrunedOfJob(is_thinned=True).with_trials("t", Status.OK, 2).with_trials("t", Status.OK, 3)
    assert pruned == PrunedOfJob({"t": {Status.OK: 5}}, True)
    filled.jobs.renew(lease, progress={"trials": 1, ENTRY: "what a tuner tells"})
    assert filled.jobs.get(lease.job_id).progress == {"trials": 1} and not filled.jobs.statuses(lease.job_id)
    with filled.database.write() as session:
        row = session.get_one(JobRow, lease.job_id)
        assert PrunedOfJob.of(row.progress) == PrunedOfJob()
        pruned.store(row)
        session.flush()
        session.expire(row)
        assert PrunedOfJob.of(row.progress) == pruned
    assert filled.jobs.get(lease.job_id).progress == {"trials": 1}
    assert filled.jobs.statuses(lease.job_id) == {Status.OK: 5}


def facts(store, samples, job_ids):
    """What people, jobs and lookups are told of the tasks and jobs."""
    tasks, target = [samples.task(extent).key for extent in (8, 9)], samples.target().key
    catalog, now = store.catalog, current()
    return (
        [store.best(task, target) for task in tasks],
        store.confirmations(tasks, target),
        store.comparisons(tasks, target),
        catalog.best(tasks, [target]),
        catalog.fastest(tasks, target, now),
        catalog.failures(tasks, target),
        catalog.best_on(target),
        catalog.task_counts(),
        catalog.search(),
        [store.hints(task, target) for task in tasks],
        list(itertools.islice(store.examples("cpu"), LEARNED)),
        [store.trials.fastest(task, target, 8)[:1] for task in tasks],
        [(store.jobs.get(job_id), store.jobs.statuses(job_id), store.trials.counts(job_id)) for job_id in job_ids],
        [kinds(store, job_id) for job_id in job_ids],
        store.workload.shifts(1e9).shifts,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_pruned_all_that_is_asked_for_stays_the_same(filled, samples, clock, seed):
    rng, removed = random.Random(seed), 0
    job_ids: list[int] = []

    def begin():
        job_ids.append(filled.jobs.submit(samples.spec(len(job_ids)), "", SearchBudget(10)).job.id)
        return filled.jobs.lease([samples.target().key], "holder")

    lease = begin()
    for _ in range(160):
        clock.advance(1)
        extent, number = rng.choice([8, 8, 9]), rng.randrange(300)
        record = samples.record(number, samples.measurement(rng.choice([1, 2, 3, 5]) * 1e-3 + number * 1e-6), extent)
        match rng.choices(["ok", "crash", "confirm", "void", "prune"], [90, 10, 4, 3, 5])[0]:
            case "ok":
                filled.record(record, lease)
            case "crash":
                filled.record(replace(record, measurement=Measurement(Status.CRASH, error="x")), lease)
            case "confirm":
                filled.confirm(record, lease, [NewEvent(EventKind.CONFIRMED, {"task_key": record.task_key})])
            case "void" if best := filled.best(record.task_key, record.target_key):
                filled.voids.void(best.task_key, best.target_key, best.schedule.key, "a test")
            case "prune":
                filled.jobs.finish(lease, JobState.SUCCEEDED, result={})
                lease = begin()
                clock.advance(1)
                before = facts(filled, samples, job_ids)
                removed += filled.pruning.prune(replace(POLICY, trials_days=0.0, events_days=0.0)).trials
                assert facts(filled, samples, job_ids) == before
    assert removed > 20


PRUNER = """
import sys
from tunewright.db.pruning import progress, trials
from tunewright.db.pruning.policy import RetentionPolicy
from tunewright.db.store import open_store

progress.REMOVED_AT_ONCE = trials.REMOVED_AT_ONCE = 5
trials.LEARNED_TRIALS = 5
with open_store(sys.argv[1]) as store:
    goes_on = lambda: print("one", flush=True) is None
    store.pruning.prune(RetentionPolicy(events_days=0.0, best=8, trials_days=0.0), goes_on=goes_on)
"""


@pytest.mark.slow
def test_processes_that_are_killed_leave_what_the_next_one_finishes(shared_url, samples, look):
    with open_store(shared_url) as store:
        samples.fill(store)
        job_id = run(store, samples, 0, [samples.record(number) for number in range(120)], progress=600).job_id
        best = store.best(samples.task().key, samples.target().key)
    ended, kills = False, 0
    while not ended:
        with subprocess.Popen([sys.executable, "-c", PRUNER, shared_url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(random.randint(20, 40))]
            process.kill()
            ended = process.wait() == 0 or not lines[-1]
        kills += not ended
        with open_store(shared_url, wait_s=10) as store:
            assert not look(shared_url).damage
            assert store.jobs.statuses(job_id) == {Status.OK: 120}
            assert store.best(samples.task().key, samples.target().key) == best
    assert kills
    with open_store(shared_url) as store:
        assert len(store.records(samples.task().key, samples.target().key)) <= 8 + 5 + 2
        assert len(store.jobs.events(job_id, limit=None, kinds=[EventKind.PROGRESS])) <= MOST_PROGRESS
