"""Jobs that are interrupted, in any way and at any moment, go on where they were."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tunewright.db.job import JobState
from tunewright.db.store import open_store
from tunewright.tuner.search.report import Report

from .processes import BRIEF_PROGRAM, freeze, python_path, until

TRIALS = 20
"""More than the cost model is first fitted to anew."""

BRIEF_S = 1.0
"""Of a lease, so that who goes on need not wait for long."""

LASTING_S = 300.0
"""Of one that is renewed in time on a busy machine, too."""

WAITING = "another process is at work on the same job"


def _hear_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Job:
    """The same command, again and again."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'tuning.db'}"
        self.command = [
            *(*BRIEF_PROGRAM, "tune", str(model), "--trials", str(TRIALS)),
            *("--db", self.url, "--threads", "1", "--json"),
        ]

    def start(self, lease_s: float = BRIEF_S) -> subprocess.Popen[str]:
        environment = os.environ | python_path() | {"TUNEWRIGHT_LEASE_S": f"{lease_s:g}"}
        return subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509
        )

    def start_and_wait_for(self, trials: int, lease_s: float = BRIEF_S) -> subprocess.Popen[str]:
        """Started, and with that many trials in the database."""
        child = self.start(lease_s)
        with open_store(self.url) as store:

            def are_there() -> bool:
                assert child.poll() is None, child.stderr and child.stderr.read()
                return store.counts()["trials"] >= trials

            until(store, are_there)
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
            [job] = store.jobs.list()
            assert job.state is JobState.SUCCEEDED
            assert job.result == report
            trials = store.jobs.trials(job.id)
            assert [trial.ordinal for trial in trials] == list(range(TRIALS))
            assert len({(t.record.task_key, t.record.schedule.key) for t in trials}) == TRIALS
            assert store.counts()["trials"] == TRIALS


@pytest.fixture
def job(model: Path, tmp_path: Path) -> Job:
    return Job(model, tmp_path)


@pytest.mark.slow
def test_killed(job: Job) -> None:
    rng = random.Random(0)
    for wanted in (0, 1, 7, 17):
        child = job.start_and_wait_for(wanted)
        time.sleep(rng.random() * 0.3)  # at any moment of a trial
        child.kill()
        child.communicate()
    stored = job.trials()
    job.check(job.finish())
    assert stored >= 17


@pytest.mark.slow
def test_two_processes_at_once(job: Job) -> None:
    first = job.start_and_wait_for(1, LASTING_S)
    freeze(first, job.url)  # until the second one has found it at work
    second = job.start(LASTING_S)
    assert second.stderr is not None
    assert any(WAITING in line for line in second.stderr)
    first.send_signal(signal.SIGCONT)
    said = [child.communicate(timeout=120) for child in (first, second)]
    assert [child.returncode for child in (first, second)] == [0, 0], said
    worked, waited = (json.loads(out) for out, _ in said)
    job.check(worked)
    assert Report.from_json(waited | {"seconds": worked["seconds"]}) == Report.from_json(worked)
    assert waited["seconds"] != worked["seconds"]  # each has its own


@pytest.mark.slow
def test_the_second_takes_over(job: Job) -> None:
    first = job.start_and_wait_for(1)
    freeze(first, job.url)
    second = job.start()
    with open_store(job.url) as store:
        until(store, lambda: store.jobs.get(1).holder.endswith(f":{second.pid}"))
    first.send_signal(signal.SIGCONT)  # it finds that the job is no longer its own
    _, err = first.communicate(timeout=60)
    assert first.returncode == 2
    assert "no longer leased" in err
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    job.check(json.loads(out))


@pytest.mark.slow
def test_ctrl_c(job: Job) -> None:
    child = job.start_and_wait_for(5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "stopped; what was measured is kept, and the same command goes on from there"
    assert "what was measured is kept" in json.loads(out)["error"]["message"]
    with open_store(job.url) as store:
        [paused] = store.jobs.list()
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
