"""The queue between processes, and a server that goes away."""

import dataclasses
import itertools
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

from tunewright.db.errors import Unreachable
from tunewright.db.job import (
    UNFINISHED,
    Conflict,
    EventKind,
    JobState,
    LeaseLost,
    NewEvent,
    QuotaExceeded,
    SearchBudget,
)
from tunewright.db.store import open_store

from .conftest import in_threads

WORKER = """
import sys
from tunewright.db.job import JobState
from tunewright.db.store import open_store

url, target = sys.argv[1:]
with open_store(url) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    while (lease := store.jobs.lease([target], "w")) is not None:
        print(lease.job_id, lease.epoch, flush=True)
        store.jobs.finish(lease, JobState.SUCCEEDED)
"""

WAITER = """
import sys
from tunewright.db.store import open_store

with open_store(sys.argv[1]) as store:
    seen = store.jobs.changes()
    while store.jobs.wait(0.5, seen):  # until the connection that hears of others has settled
        seen = store.jobs.changes()
    print("ready", flush=True)
    print(store.jobs.wait(60, seen), len(store.jobs.list()), flush=True)
"""


@pytest.fixture
def run():
    """A function that starts a Python process."""
    running = []

    def start(code, *arguments):
        command = [sys.executable, "-c", code, *arguments]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_each_job_is_leased_once(shared_url, samples, run):
    with open_store(shared_url) as store:
        samples.fill(store)
        ids = {store.jobs.submit(samples.spec(number), "", SearchBudget(1)).job.id for number in range(40)}
        workers = [run(WORKER, shared_url, samples.target().key) for _ in range(4)]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        outputs = in_threads(lambda number: workers[number].communicate("go\n", timeout=60)[0], len(workers))
        assert [worker.returncode for worker in workers] == [0] * 4
        leased = [line.split() for output in outputs for line in output.splitlines()]
        assert sorted(int(job_id) for job_id, _ in leased) == sorted(ids)
        assert {epoch for _, epoch in leased} == {"1"}
        assert store.jobs.counts()[JobState.SUCCEEDED] == 40


@pytest.mark.slow
def test_a_wait_is_ended_by_another_process(shared_url, samples, run):
    with open_store(shared_url) as store:
        samples.fill(store)
        waiter = run(WAITER, shared_url)
        assert waiter.stdout.readline() == "ready\n"
        started_s = time.monotonic()
        store.jobs.submit(samples.spec(), "", SearchBudget(1))
        assert waiter.stdout.readline() == "True 1\n"
        assert time.monotonic() - started_s < 5


@pytest.mark.slow
def test_threads_at_once_keep_the_rules(shared_url, samples):
    """Short leases, many threads, every method: no deadlock, and the history of each job tells one story."""
    with open_store(shared_url) as store:
        samples.fill(store)
        targets = [samples.target(threads).key for threads in (2, 4)]
        numbers, finished = itertools.count(), []

        def work(seed):
            rng = random.Random(seed)
            lease = None
            for _ in range(150):
                try:
                    spec = samples.spec(rng.randrange(3), threads=rng.choice([2, 4]))
                    match rng.randrange(12):
                        case 0 | 1:
                            store.jobs.submit(spec, "", SearchBudget(1), owner="k", most_unfinished=5)
                        case 2:
                            lease = store.jobs.open(spec, "", SearchBudget(1), f"h{seed}", 0.03) or lease
                        case 3 | 4:
                            lease = store.jobs.lease(targets, f"h{seed}", 0.03) or lease
                        case 5 | 6 | 7 if lease:
                            target_key = store.jobs.get(lease.job_id).spec.target_key
                            record = samples.record(next(numbers), extent=rng.choice([8, 9]))
                            record = dataclasses.replace(record, target_key=target_key)
                            store.record(record, lease, [NewEvent(EventKind.IMPROVED)] * 2)
                        case 8 if lease:
                            store.jobs.claim(lease, samples.task(rng.choice([8, 9])).key)
                        case 9 if lease:
                            store.jobs.renew(lease, 0.03, events=[NewEvent(EventKind.STAGE)])
                        case 10 if lease and rng.random() < 0.3:
                            store.jobs.finish(lease, JobState.SUCCEEDED)
                            finished.append(lease.job_id)
                        case 11 if lease:
                            steer = rng.choice([store.jobs.pause, store.jobs.resume, store.jobs.cancel])
                            steer(lease.job_id)
                except (LeaseLost, Conflict, QuotaExceeded):
                    pass

        in_threads(work, 6)
        assert next(numbers) > 20
        assert len(finished) == len(set(finished))
        for job in store.jobs.list():
            events = store.jobs.events(job.id, limit=10_000)
            assert [event.number for event in events] == list(range(1, len(events) + 1))
            trials = store.jobs.trials(job.id)
            assert [trial.ordinal for trial in trials] == list(range(len(trials)))
            kinds = [event.kind for event in events]
            assert kinds.count(EventKind.IMPROVED) == 2 * len(trials)
            assert (job.id in finished) == (EventKind.SUCCEEDED in kinds) == (job.state is JobState.SUCCEEDED)
            final = {EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED}
            assert not final.intersection(kinds[:-1])
            assert (kinds[-1] in final) == (job.state not in UNFINISHED)


@pytest.mark.postgres
class TestRestart:
    @pytest.mark.slow
    def test_patient_methods_go_on(self, own_server, samples, caplog):
        with open_store(own_server.url, patience_s=30) as store, open_store(own_server.url) as hasty:
            samples.fill(store)
            lease = store.jobs.open(samples.spec(), "", SearchBudget(1000), "h", 60)
            assert lease is not None
            assert hasty.jobs.get(lease.job_id).state is JobState.RUNNING
            over = threading.Event()
            stored: list[int] = []
            progress = threading.Semaphore(0)  # one for each stored

            def write():
                while not over.is_set():
                    number = len(stored)
                    events = [NewEvent(EventKind.IMPROVED, {"trial": number})]
                    assert store.record(samples.record(number), lease, events)
                    stored.append(number)
                    store.jobs.renew(lease, 60, spent_s=1.0)
                    progress.release()

            with ThreadPoolExecutor(2) as threads:
                writer = threads.submit(write)
                try:
                    for _ in range(2):
                        own_server.stop()
                        with pytest.raises(Unreachable):
                            hasty.jobs.get(lease.job_id)
                        started = threads.submit(own_server.start)
                        while wait([started], timeout=0.02).not_done:
                            with suppress(Unreachable):  # one that has no patience says so, and only so
                                hasty.jobs.get(lease.job_id)
                        started.result()
                        for _ in range(20):
                            assert progress.acquire(timeout=60) or writer.done()
                finally:
                    over.set()
                writer.result()
            assert hasty.jobs.get(lease.job_id).spent_s == len(stored)
            trials = hasty.jobs.trials(lease.job_id)
            assert [trial.record.schedule["tile_m"] for trial in trials] == stored
            events = hasty.jobs.events(lease.job_id, after=2)
            assert [event.data for event in events] == [{"trial": number} for number in stored]
        assert not [record for record in caplog.records if record.exc_info]

    @pytest.mark.slow
    def test_waiting_goes_on(self, own_server, samples, caplog):
        with open_store(own_server.url) as store, open_store(own_server.url, patience_s=30) as other:
            samples.fill(other)
            count = store.jobs.changes()
            while store.jobs.wait(0.5, count):
                count = store.jobs.changes()
            own_server.restart()
            assert store.jobs.wait(60, count)  # what happened meanwhile was not heard
            count = store.jobs.changes()
            while store.jobs.wait(0.5, count):
                count = store.jobs.changes()
            other.jobs.submit(samples.spec(), "", SearchBudget(1))
            started_s = time.monotonic()
            assert store.jobs.wait(60, count)
            assert time.monotonic() - started_s < 5
        assert not [record for record in caplog.records if record.exc_info]
        away, back = [record.getMessage() for record in caplog.records if record.name == "tunewright.db"]
        assert "changes by other processes are not heard of for now" in away and "\n" not in away
        assert "changes by other processes are heard of again" in back

    @pytest.mark.slow
    def test_opening_is_patient_too(self, own_server):
        own_server.stop()
        with pytest.raises(Unreachable):
            open_store(own_server.url)
        with ThreadPoolExecutor(1) as threads:
            opening = threads.submit(open_store, own_server.url, patience_s=30)
            own_server.start()
            with opening.result() as store:
                assert store.jobs.list() == []
