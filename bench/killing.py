"""Processes of a service with Ray, killed in turn: `./dev bench killing [ROLE ...] [--rounds 10]`.

A real `serve` with its tuner process and its Ray cluster works on jobs while the raylet, the head process (GCS), the
keeper of the device, the tuner and the server are killed, one after the other, each round anew. Exits with 1 unless
devices are back within a minute each time, `/readyz` and the metrics that alerts are made of tell that they were gone,
every job ends, each of its trials is stored once, and no process stays behind.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tunewright.bench.made import products
from tunewright.codegen.host import detect
from tunewright.db.jobs import UNFINISHED, JobState
from tunewright.db.sql_store import SqlStore, open_store

ROLES = {
    "raylet": r"/raylet/raylet ",
    "gcs": r"/gcs_server ",
    "keeper": r"^ray::Keeper",
    "tuner": r" -m tunewright\.api\.tuners ",
    "server": r" -m tunewright\.api\.cli serve ",
}
"""What the command line of a process is like, by what it is killed as."""

NOTICED = ("raylet", "gcs", "tuner")
"""What takes the devices away while the server goes on: it has to say so."""

TOLD_S = 15.0
"""How long the service may take to say that devices are gone."""

BACK_S = 60.0
"""How long they may be gone."""

END_S = 300.0
"""How long the jobs that are left may take, and a service to start. More than on any machine."""

JOBS, TRIALS = 2, 40
"""Jobs that are always there, and trials of each."""

LEASE_S = 5.0

LOOK_S = 0.2

MARK = "TW_BENCH_KILLING"
"""In the environment of all processes of the service, so that each is found."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One process that was killed, and seconds from then on."""

    role: str
    told_s: float | None  # until /readyz told of no device; None: it never did
    alerted: bool  # whether the metrics said that jobs wait and there is no device
    back_s: float  # until there was a device and the process again
    trial_s: float  # until another trial was stored

    def line(self) -> str:
        told = "not told" if self.told_s is None else f"told after {self.told_s:.1f} s"
        alerted = "alert" if self.alerted else "no alert"
        return f"{self.role:7} {told}, {alerted}, back after {self.back_s:.1f} s, next trial after {self.trial_s:.1f} s"

    def faults(self) -> Iterator[str]:
        if self.role in NOTICED and (self.told_s is None or self.told_s > TOLD_S):
            yield f"{self.role}: /readyz did not tell within {TOLD_S:g} s that no device is there"
        if self.role in ("raylet", "gcs") and not self.alerted:  # others are back before the metrics are read anew
            yield f"{self.role}: the metrics did not tell that jobs wait and no device is there"
        if self.back_s > BACK_S:
            yield f"{self.role}: devices came back after {self.back_s:.0f} s"


class Late(Exception):
    """What was waited for did not come. One line for people."""


def wait_for(what: str, look: Callable[[], Any], limit_s: float) -> Any:
    """What is seen as soon as anything is. Raises Late."""
    deadline_s = time.monotonic() + limit_s
    while not (seen := look()):
        if time.monotonic() > deadline_s:
            raise Late(f"{what}: not within {limit_s:g} s")
        time.sleep(LOOK_S)
    return seen


class Killed:
    """A service with Ray in a folder of its own, and what becomes of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url = f"sqlite:///{folder / 'tuning.db'}"
        self._mark = secrets.token_hex(8)
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self.store: SqlStore = open_store(self._url)
        self.store.add_target(detect())
        self.jobs: list[int] = []

    @property
    def log(self) -> Path:
        return self._folder / "serve.log"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        home = self._folder / "home"
        environment = os.environ | {
            MARK: self._mark,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TUNEWRIGHT_HOME": str(home),
            "TUNEWRIGHT_DB": self._url,
            "TUNEWRIGHT_LEASE_S": f"{LEASE_S:g}",
        }
        command = [sys.executable, "-P", "-m", "tunewright.api.cli", "serve", "--port", str(self._port)]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_for("the server answers", self.ready, END_S)

    def pids(self, role: str | None = None) -> set[int]:
        """Of the processes of the service, or those of a role."""
        found = set()
        entry = f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if entry not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if role is None or re.search(ROLES[role], command):
                    found.add(int(folder.name))
        return found

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """The answer; None where nobody is there."""
        key = (self._folder / "home" / "local_key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        try:
            url = f"http://127.0.0.1:{self._port}{path}"
            return httpx.request(method, url, headers=headers, timeout=30, trust_env=False, **more)
        except httpx.TransportError:
            return None

    def ready(self) -> dict[str, Any] | None:
        """What /readyz says with 200."""
        answer = self.ask("GET", "/readyz") if (self._folder / "home" / "local_key").exists() else None
        return dict(answer.json()) if answer is not None and answer.status_code == 200 else None

    def alerts(self) -> bool:
        """Whether the metrics say that jobs wait and there is no device, as TunewrightNobodyTunes asks."""
        answer = self.ask("GET", "/metrics")
        if answer is None:
            return False
        told = {
            (sample.name, sample.labels.get("state", "")): sample.value
            for metric in text_string_to_metric_families(answer.text)
            for sample in metric.samples
        }
        usable = told["tunewright_devices", ""] - told["tunewright_devices_quarantined", ""]
        return told["tunewright_jobs", "queued"] > 0 and usable <= 0

    def submit(self) -> None:
        """See to it that there are jobs to do."""
        while sum(map(self.store.jobs.counts().__getitem__, UNFINISHED)) < JOBS:
            number = len(self.jobs)
            model = products([(4 + number, 24, 16), (4 + number, 16, 24)])
            sha256 = hashlib.sha256(model).hexdigest()
            self._asked("PUT", f"/v1/models/{sha256}", content=model)
            body = {"model": sha256, "target": detect().key, "trials": TRIALS}
            self.jobs.append(self._asked("POST", "/v1/jobs", json=body).json()["id"])

    def _asked(self, method: str, path: str, **more: Any) -> httpx.Response:
        answer = self.ask(method, path, **more)
        if answer is None or answer.status_code >= 400:
            raise Late(f"{method} {path}: {'no answer' if answer is None else answer.text}")
        return answer

    def trials(self) -> int:
        """How many are stored."""
        return self.store.counts()["trials"]

    def lose(self, role: str) -> Loss:
        """Kill the process of a role while it is at work, and see how everything comes back."""
        before = self.trials()
        wait_for("a job goes on", lambda: self._goes_on(before + 3), END_S)
        (pid,) = wait_for(f"one {role}", lambda: len(found := self.pids(role)) == 1 and found, END_S)
        tuner, stored = self.pids("tuner"), self.trials()
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        if role == "server":
            assert self._server is not None
            self._server.wait()
            self.start()
        told_s: float | None = None
        back_s, alerted = 0.0, False
        while not back_s:
            said = self.ready()
            passed_s = time.monotonic() - killed_s
            if said is not None and not said["devices"]:
                told_s = passed_s if told_s is None else told_s
                alerted = alerted or self.alerts()
            elif said is not None and self._is_back(role, pid, tuner):
                back_s = passed_s
            if passed_s > END_S:
                raise Late(f"{role}: no device came back within {END_S:g} s; the log is in {self.log}")
            time.sleep(LOOK_S)
        wait_for("another trial", lambda: self._goes_on(stored + 1), END_S)
        return Loss(role, told_s, alerted, back_s, time.monotonic() - killed_s)

    def _goes_on(self, trials: int) -> bool:
        self.submit()
        return self.trials() >= trials

    def _is_back(self, role: str, pid: int, tuner: set[int]) -> bool:
        """Whether there is one of everything, and no more: nothing of what was lost stays behind."""
        found = {name: self.pids(name) for name in ROLES}
        if pid in found[role] or (role != "keeper" and tuner & found["tuner"]):
            return False
        return all(len(pids) == 1 for name, pids in found.items() if name == role or name != "keeper")

    def end(self) -> list[str]:
        """Wait for all jobs, end the service, and tell what is wrong."""
        wait_for("all jobs end", lambda: not sum(map(self.store.jobs.counts().__getitem__, UNFINISHED)), END_S)
        faults = list(self._faults())
        assert self._server is not None
        self._server.terminate()
        self._server.wait(60)
        with suppress(Late):
            wait_for("the processes end", lambda: not self.pids(), 30.0)
        return faults + [f"process {pid} of the service stays behind" for pid in self.pids()]

    def _faults(self) -> Iterator[str]:
        trials: list[tuple[str, str]] = []
        for job in map(self.store.jobs.get, self.jobs):
            if job.state is not JobState.SUCCEEDED:
                yield f"job {job.id} is {job.state}: {job.error}"
            found = self.store.jobs.trials(job.id)
            if [trial.ordinal for trial in found] != list(range(TRIALS)):
                yield f"job {job.id} has {len(found)} trials of {TRIALS}"
            failed = [trial.record.measurement.error for trial in found if trial.record.measurement.error]
            if failed:
                yield f"job {job.id}: {len(failed)} trials failed, the first with {failed[0]}"
            trials += [(trial.record.task_key, trial.record.schedule.key) for trial in found]
        if len(trials) != len(set(trials)) or len(trials) != self.trials():
            yield f"{len(trials)} trials of jobs, {len(set(trials))} of them different, {self.trials()} stored"

    def close(self) -> None:
        """End whatever is left."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
        self.store.close()


@dataclass(slots=True)
class Found:
    """What came of all losses."""

    losses: list[Loss] = field(default_factory=list)
    jobs: int = 0
    faults: list[str] = field(default_factory=list)


@contextmanager
def serving(folder: Path) -> Iterator[Killed]:
    """A service with a device, at work."""
    service = Killed(folder)
    try:
        service.start()
        wait_for("a device", lambda: (service.ready() or {}).get("devices"), END_S)
        yield service
    finally:
        service.close()


def kill_in_turn(
    folder: Path, roles: Sequence[str], rounds: int, tell: Callable[[Loss], None] = lambda loss: None
) -> Found:
    """Kill each of the roles in each of the rounds."""
    found = Found()
    with serving(folder) as service:
        try:
            for _ in range(rounds):
                for role in roles:
                    found.losses.append(service.lose(role))
                    found.faults += found.losses[-1].faults()
                    tell(found.losses[-1])
            found.faults += service.end()
        except Late as late:
            found.faults.append(f"{late}; the log ends with:\n{service.log.read_text(errors='replace')[-3000:]}")
        found.jobs = len(service.jobs)
    return found


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def main() -> int:
    """0 if all went as it should."""
    parser = argparse.ArgumentParser(prog="./dev bench killing", description=__doc__)
    parser.add_argument("roles", nargs="*", metavar="ROLE", help=f"some of {', '.join(ROLES)}; without any: all")
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    if unknown := set(asked.roles) - set(ROLES):
        parser.error(f"no role: {', '.join(sorted(unknown))}")
    with TemporaryDirectory(prefix="tunewright-killing-") as folder:
        found = kill_in_turn(
            Path(folder), asked.roles or list(ROLES), asked.rounds, lambda loss: print(loss.line(), flush=True)
        )
    back = sorted(loss.back_s for loss in found.losses)
    if back:
        print(
            f"{len(back)} losses, {found.jobs} jobs; back after {back[len(back) // 2]:.1f} s, at most {back[-1]:.1f} s"
        )
    for fault in found.faults:
        print(f"fault: {fault}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
