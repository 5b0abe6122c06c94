"""Jobs that are interrupted, in any way and at any moment, go on where they were."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tunewright.db.sql_store import open_store
from tunewright.db.store import JobState

from .test_cli import python_path

TRIALS = 40


def _hear_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Job:
    """The same command, again and again."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'tuning.db'}"
        self.command = [
            *(sys.executable, "-P", "-m", "tunewright.tuner.cli", "tune", str(model), "--trials", str(TRIALS)),
            *("--db", self.url, "--threads", "1", "--json"),
        ]

    def start(self) -> subprocess.Popen[str]:
        environment = os.environ | python_path()
        return subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509
        )

    def start_and_wait_for(self, trials: int) -> subprocess.Popen[str]:
        """Started, and with that many trials in the database."""
        child = self.start()
        deadline = time.monotonic() + 60
        while self.trials() < trials:
            assert child.poll() is None, child.stderr and child.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return child

    def trials(self) -> int:
        with open_store(self.url) as store:
            return store.counts()["trials"]

    def finish(self) -> dict[str, Any]:
        child = self.start()
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
        data: dict[str, Any] = json.loads(out)
        return data

    def check(self, report: dict[str, Any]) -> None:
        """One job that has measured each schedule once, in order."""
        assert report["trials"] == TRIALS
        with open_store(self.url) as store:
            [job] = store.jobs()
            assert job.state is JobState.SUCCEEDED
            assert job.result == report
            trials = store.trials(job.id)
            assert [trial.ordinal for trial in trials] == list(range(TRIALS))
            assert len({(t.record.task_key, t.record.schedule.key) for t in trials}) == TRIALS
            assert store.counts()["trials"] == TRIALS


@pytest.fixture
def job(model: Path, tmp_path: Path) -> Job:
    return Job(model, tmp_path)


def test_killed(job: Job) -> None:
    rng = random.Random(0)
    for wanted in (0, 1, 7, 25):
        child = job.start_and_wait_for(wanted)
        time.sleep(rng.random() * 0.3)
        child.kill()
        child.communicate()
    stored = job.trials()
    job.check(job.finish())
    assert stored >= 25


def test_two_processes_at_once(job: Job) -> None:
    children = [job.start_and_wait_for(1), job.start()]
    said = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    reports = [json.loads(out) for out, _ in said]
    with open_store(job.url) as store:
        jobs = {one.id: one for one in store.jobs()}
        assert {report["job"] for report in reports} == jobs.keys()
        assert all(one.state is JobState.SUCCEEDED for one in jobs.values())
        for one in jobs.values():
            # The other process may be at one more when the budget is spent.
            assert TRIALS <= len(store.trials(one.id)) <= TRIALS + 1
    assert all(TRIALS <= report["trials"] <= TRIALS + 1 for report in reports)


def test_ctrl_c(job: Job) -> None:
    child = job.start_and_wait_for(5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "stopped; what was measured is kept, and the same command goes on from there"
    assert "what was measured is kept" in json.loads(out)["error"]["message"]
    with open_store(job.url) as store:
        [paused] = store.jobs()
        assert paused.state is JobState.PAUSED
        assert 5 <= store.counts()["trials"] < TRIALS
    job.check(job.finish())


def test_ctrl_c_while_it_starts(job: Job) -> None:
    child = job.start()
    assert child.stderr is not None
    assert child.stderr.readline() == "reading the model\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err
