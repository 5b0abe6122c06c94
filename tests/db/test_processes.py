"""Several processes on one database, and processes that die."""

import os
import random
import signal
import subprocess
import sys

import pytest

from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.db.store import open_store

WRITER = """
import sys
from tunewright.db.job import Lease
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

url, task, target, job, epoch, start, stop = sys.argv[1:]
lease = Lease(int(job), int(epoch), "writer")
with open_store(url) as store:
    for number in range(int(start), int(stop)):
        measurement = Measurement(Status.OK, (1e-3,) * 50, 1e-3 + number * 1e-6)
        new = store.record(Record(task, target, Schedule("tiled", 1, (("tile_m", number),)), measurement), lease)
        print(number, int(new), flush=True)
"""


@pytest.fixture
def lease(shared_url, samples):
    with open_store(shared_url) as store:
        samples.fill(store)
        spec = JobSpec("ab" * 32, samples.target().key, (SpecTask(samples.task().key, 1),))
        return store.jobs.open(spec, "", SearchBudget(1), "holder")


@pytest.fixture
def start(shared_url, samples, lease):
    """A function that starts a process which stores trials `start` to `stop - 1` and prints each when it is stored."""
    running = []

    def run(start, stop):
        arguments = [
            shared_url,
            samples.task().key,
            samples.target().key,
            str(lease.job_id),
            str(lease.epoch),
            str(start),
            str(stop),
        ]
        command = [sys.executable, "-c", WRITER, *arguments]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


def test_two_processes_lose_nothing_and_store_nothing_twice(shared_url, samples, lease, start):
    writers = [start(0, 90), start(60, 150)]
    lines = [line.split() for writer in writers for line in writer.communicate(timeout=60)[0].splitlines()]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(lines) == 180
    assert sum(new == "1" for _, new in lines) == 150
    with open_store(shared_url) as store:
        trials = store.jobs.trials(lease.job_id)
        assert [trial.ordinal for trial in trials] == list(range(150))
        assert sorted(trial.record.schedule["tile_m"] for trial in trials) == list(range(150))
        assert len(store.records(samples.task().key, samples.target().key)) == 150


def test_a_killed_process_leaves_everything_it_acknowledged(shared_url, samples, lease, start, look):
    count = 0
    for _ in range(2):
        writer = start(count, 1_000_000)
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(random.randint(20, 60))]
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        acknowledged = {int(line.split()[0]) for line in lines if line.endswith("\n")}
        with open_store(shared_url, wait_s=10) as store:
            assert not look(shared_url).damage
            trials = store.jobs.trials(lease.job_id)
            numbers = {trial.record.schedule["tile_m"] for trial in trials}
            assert acknowledged <= numbers
            assert numbers == set(range(len(numbers))) and len(trials) == len(numbers)
            assert len(numbers - acknowledged) - count <= 1
            assert [trial.ordinal for trial in trials] == list(range(len(trials)))
            assert store.jobs.renew(lease).wish is None
        count = len(numbers)
