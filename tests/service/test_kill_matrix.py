"""Any process of the service may be killed at any moment, and its database server may crash: no job is lost, nothing is
measured twice but what was in hand then, and no result counts twice. So it is with what is written to the log.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tunewright.codegen.host import detect
from tunewright.db.job import JobState
from tunewright.db.store import Store, open_store

from ..postgres import Server
from ..waiting import wait_for
from .service import FAR, SHAPES, Service

JOBS, TRIALS = 30, 4

LEASE_S = 2.0

LIMIT_S = 180.0
"""More than it may take on any machine."""

PAUSE_S = 0.2
"""Between two writes to the log: a key may change so many things a minute."""

IN_HAND_S = 60.0
"""A role is looked for this long: a child of it may be about to start."""


@dataclass(frozen=True)
class Line:
    """A note of a tuner process."""

    pid: int
    moment_s: float
    word: str
    candidate: str

    @staticmethod
    def parse(text: str) -> Line:
        pid, moment_s, word, candidate = text.split()
        return Line(int(pid), float(moment_s), word, candidate)


class Chaos:
    """What is done to a service, each thing once so many trials are stored."""

    def __init__(self, service: Service, store: Store, seed: int) -> None:
        self.service, self.store = service, store
        self.killed: set[int] = set()  # ids of tuner processes
        self.away: list[tuple[float, float]] = []  # when tuner processes could not reach the database
        self.done: list[str] = []
        self.ended = threading.Event()  # the test is over, however that came
        self._rng = random.Random(seed)

    def run(self, steps: list[tuple[int, Callable[[], None]]]) -> None:
        for trials, step in steps:
            deadline_s = time.monotonic() + LIMIT_S
            while self.store.counts()["trials"] < trials:
                assert time.monotonic() < deadline_s, self.states()
                self.store.jobs.wait(0.05)
                if self.ended.is_set():
                    return
            step()

    def states(self) -> dict[JobState, int]:
        return self.store.jobs.counts()

    def _pick(self, prefix: str) -> str:
        return self._rng.choice(sorted(name for name in self.service.processes if name.startswith(prefix)))

    def kill_api(self) -> None:
        name, down_s = self._pick("api"), time.monotonic()
        port = int(self.service.addresses[name].rpartition(":")[2])
        self.service.kill(name)
        self.service.start_api(name, port)
        self.service.await_api(name)
        if name in FAR.values():
            self.away.append((down_s, time.monotonic()))
        self.done.append("api")

    def kill_tuner(self) -> None:
        name = self._pick("tuner")
        self.killed.add(self.service.kill(name))
        self.service.start_tuner(name)
        self.done.append("tuner")

    def kill_child(self, role: str) -> None:
        child = wait_for(lambda: self.service.child(role, self._pick("tuner")), IN_HAND_S)
        os.kill(child, signal.SIGKILL)
        self.done.append(role)


class LogWriter:
    """Writes to the log of other compilers, as long as anything is killed: each batch until it is answered."""

    BATCH, KEYS = 20, 7

    def __init__(self, service: Service, ended: threading.Event) -> None:
        self._service, self._ended, self._batches = service, ended, 0

    def run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            numbers = range(self._batches * self.BATCH, (self._batches + 1) * self.BATCH)
            lines = [{"key": f"k{n % self.KEYS}", "value": f"{n:06}", "time_s": 1.0 + n % 13} for n in numbers]
            answer = self._service.ask("POST", "/v1/logs/killed:import", content="\n".join(map(json.dumps, lines)))
            assert answer.status_code == 200, answer.text
            self._batches += 1

    def check(self, store: Store) -> None:
        """All that was answered is there, once, as the namespace says; and of each key the best is served."""
        count = self._batches * self.BATCH
        entries = store.logs.list("killed", limit=2 * count)
        assert sorted(entry.value for entry in entries) == [f"{n:06}".encode() for n in range(count)]
        space = store.logs.namespace("killed")
        assert (space.entries, space.size_bytes) == (count, sum(len(e.key) + len(e.value) for e in entries))
        assert space.revision == max(entry.revision for entry in entries)
        served = [entry for entry in entries if entry.is_served]
        assert len(served) == len({entry.key for entry in served}) == self.KEYS
        for entry in served:
            best = min((e for e in entries if e.key == entry.key), key=lambda e: (e.cost.time_s, e.choice))
            assert entry == best


def check(service: Service, store: Store, jobs: list[int], chaos: Chaos) -> None:
    """Nothing is lost, nothing counts twice."""
    trials: list[tuple[str, str]] = []
    for job_id in jobs:
        job = store.jobs.get(job_id)
        assert (job.state, job.error) == (JobState.SUCCEEDED, ""), job
        found = store.jobs.trials(job_id)
        assert [trial.ordinal for trial in found] == list(range(TRIALS))
        events = store.jobs.events(job_id)
        assert [event.number for event in events] == list(range(1, len(events) + 1))
        assert job.result is not None
        assert job.result["trials"] == TRIALS
        trials += [(trial.record.task_key, trial.record.schedule.key) for trial in found]
    assert len(trials) == len(set(trials)) == store.counts()["trials"] == JOBS * TRIALS
    check_notes(service, {f"{task[:16]}/{schedule[:16]}" for task, schedule in trials}, chaos)


def check_notes(service: Service, stored: set[str], chaos: Chaos) -> None:
    """Each candidate was measured once; once more only where the first was in hand as its process or database died."""
    hands: dict[str, list[tuple[Line, Line | None]]] = defaultdict(list)  # measured, and dealt with
    lines = [Line.parse(text) for text in service.notes.read_text().splitlines()]
    for line in lines:
        if line.word == "measured":
            hands[line.candidate].append((line, None))
        else:
            measured, _ = hands[line.candidate][-1]
            assert measured.pid == line.pid
            hands[line.candidate][-1] = measured, line
    assert stored <= hands.keys()
    last = {line.pid: line for line in lines}  # of each process

    def was_disturbed(measured: Line, kept: Line | None) -> bool:
        until_s = kept.moment_s if kept else float("inf")
        died = measured.pid in chaos.killed and last[measured.pid] == measured
        return died or any(measured.moment_s < up_s + LEASE_S and until_s > down_s for down_s, up_s in chaos.away)

    for candidate, times in hands.items():
        undisturbed = [one for one in times if not was_disturbed(*one)]
        assert len(undisturbed) <= 1, (candidate, times)
    assert sum(len(times) - 1 for times in hands.values()) <= len(chaos.killed) + 3 * len(chaos.away)


def submitted(service: Service, count: int, between: dict[int, Callable[[], None]]) -> list[int]:
    """Jobs, with something done before some of them."""
    target, jobs = detect(1).key, []
    for number in range(count):
        between.get(number, lambda: None)()
        jobs.append(service.submit(number % len(SHAPES), number // len(SHAPES), target, TRIALS))
    return jobs


def finished(store: Store, count: int) -> None:
    """Wait until so many jobs have succeeded."""
    deadline_s = time.monotonic() + LIMIT_S
    while store.jobs.counts()[JobState.SUCCEEDED] < count:
        assert time.monotonic() < deadline_s, store.jobs.counts()
        store.jobs.wait(0.5)


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    made: list[Service] = []

    def make(url: str) -> Service:
        made.append(Service(url, tmp_path, LEASE_S))
        return made[-1]

    yield make
    for service in made:
        service.close()


def steps(chaos: Chaos, restart_server: Callable[[], None]) -> list[tuple[int, Callable[[], None]]]:
    """What happens, each once so many trials are stored."""
    return [
        (8, lambda: chaos.kill_child("time")),
        (18, chaos.kill_tuner),
        (30, lambda: chaos.kill_child("build")),
        (41, restart_server),
        (52, chaos.kill_tuner),
        (64, lambda: chaos.kill_child("time")),
        (74, restart_server),
        (86, chaos.kill_tuner),
        (97, lambda: chaos.kill_child("build")),
        (108, chaos.kill_tuner),
    ]


def run(service: Service, apis: int, tuners: Sequence[str], restart: Callable[[], tuple[float, float]] | None) -> None:
    """All jobs while everything is killed in turn."""
    for n in range(apis):
        service.start_api(f"api{n}")
    for n in range(apis):
        service.await_api(f"api{n}")
    for name in tuners:
        service.start_tuner(name)
    with open_store(service.url, patience_s=60.0) as store:
        store.add_target(detect(1))
        chaos, faults = Chaos(service, store, seed=1), []

        def restart_server() -> None:
            if restart is not None:
                chaos.away.append(restart())

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as fault:  # noqa: BLE001 - it is raised again where the test sees it
                faults.append(fault)

        writer = LogWriter(service, chaos.ended)
        works = (lambda: chaos.run(steps(chaos, restart_server)), writer.run)
        threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            jobs = submitted(service, JOBS, {6: chaos.kill_api, 18: chaos.kill_api})
            finished(store, JOBS)
        finally:
            chaos.ended.set()
            for thread in threads:
                thread.join()
        assert not faults, faults
        assert Counter(chaos.done) == {"api": 2, "tuner": 4, "time": 2, "build": 2}
        check(service, store, jobs, chaos)
        writer.check(store)


@pytest.mark.slow
@pytest.mark.postgres
def test_postgres(make_service: Callable[[str], Service], own_server: Server) -> None:
    """Two API processes, three tuners, one of which asks an API process, and a server that crashes twice."""
    run(make_service(own_server.url), apis=2, tuners=["tuner0", "tuner1", *FAR], restart=own_server.restart)


@pytest.mark.slow
def test_sqlite(make_service: Callable[[str], Service], tmp_path: Path) -> None:
    """One process of each kind."""
    run(make_service(f"sqlite:///{tmp_path / 'tuning.db'}"), apis=1, tuners=["tuner0"], restart=None)
