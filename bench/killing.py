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

from tunewright.bench.synthetic_records import products_model
from tunewright.codegen.host import detect
from tunewright.db.job import UNFINISHED, JobState
from tunewright.db.store import Store, open_store

ROLES = {
    "raylet": r"/raylet/raylet ",
    "gcs": r"/gcs_server ",
    "keeper": r"^ray::Keeper",
    "tuner": r" -m tunewright\.api\.tuners ",
    "server": r" -m tunewright\.api\.cli serve ",
}
"""Patterns of the command lines of processes, by role."""

DEVICE_ROLES = ("raylet", "gcs", "tuner")
"""Roles whose loss takes the devices away while the server runs on, which has to report it."""

NOTICE_S = 15.0
"""Time limit for the service to report that devices are gone."""

BACK_S = 60.0
"""Time limit for devices to come back."""

END_S = 300.0
"""Time limit of the last jobs, and of starting a service: generous on any machine."""

JOBS, TRIALS = 2, 40
"""Number of unfinished jobs at any time, and trials of each."""

LEASE_S = 5.0

LOOK_S = 0.2

MARK = "TW_BENCH_KILLING"
"""The environment variable by which the processes of a service are found."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A killed process, with seconds since then."""

    role: str
    noticed_s: float | None  # until /readyz reported no device; None: it never did
    is_alerted: bool  # whether the metrics reported waiting jobs without a device
    back_s: float  # until there was a device and the process again
    trial_s: float  # until another trial was stored

    def line(self) -> str:
        notice = "not told" if self.noticed_s is None else f"told after {self.noticed_s:.1f} s"
        alert = "alert" if self.is_alerted else "no alert"
        return f"{self.role:7} {notice}, {alert}, back after {self.back_s:.1f} s, next trial after {self.trial_s:.1f} s"

    def faults(self) -> Iterator[str]:
        if self.role in DEVICE_ROLES and (self.noticed_s is None or self.noticed_s > NOTICE_S):
            yield f"{self.role}: /readyz did not tell within {NOTICE_S:g} s that no device is there"
        if self.role in ("raylet", "gcs") and not self.is_alerted:  # others are back before the metrics are read anew
            yield f"{self.role}: the metrics did not tell that jobs wait and no device is there"
        if self.back_s > BACK_S:
            yield f"{self.role}: devices came back after {self.back_s:.0f} s"


class WaitTimeout(Exception):
    """An event did not come in time. The text is one line for people."""


def wait_for(event: str, look: Callable[[], Any], limit_s: float) -> Any:
    """Poll `look` until it returns something true, and return that. Raises WaitTimeout."""
    deadline_s = time.monotonic() + limit_s
    while not (value := look()):
        if time.monotonic() > deadline_s:
            raise WaitTimeout(f"{event}: not within {limit_s:g} s")
        time.sleep(LOOK_S)
    return value


class KillableService:
    """A service with Ray in a folder of its own, whose processes can be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url = f"sqlite:///{folder / 'tuning.db'}"
        self._mark = secrets.token_hex(8)
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self.store: Store = open_store(self._url)
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
        """The ids of the service's processes, or of those of a role."""
        pids = set()
        entry = f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if entry not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if role is None or re.search(ROLES[role], command):
                    pids.add(int(folder.name))
        return pids

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """The answer to a request; None if the server is not reachable."""
        key = (self._folder / "home" / "local_key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        try:
            url = f"http://127.0.0.1:{self._port}{path}"
            return httpx.request(method, url, headers=headers, timeout=30, trust_env=False, **options)
        except httpx.TransportError:
            return None

    def ready(self) -> dict[str, Any] | None:
        """The content of /readyz; None where it is not ready."""
        answer = self.ask("GET", "/readyz") if (self._folder / "home" / "local_key").exists() else None
        return dict(answer.json()) if answer is not None and answer.status_code == 200 else None

    def alerts(self) -> bool:
        """Whether the metrics would raise the alert TunewrightNobodyTunes: jobs wait, and there is no device."""
        answer = self.ask("GET", "/metrics")
        if answer is None:
            return False
        samples = {
            (sample.name, sample.labels.get("state", "")): sample.value
            for metric in text_string_to_metric_families(answer.text)
            for sample in metric.samples
        }
        usable = samples["tunewright_devices", ""] - samples["tunewright_devices_quarantined", ""]
        return samples["tunewright_jobs", "queued"] > 0 and usable <= 0

    def submit(self) -> None:
        """Submit jobs until JOBS are unfinished."""
        while sum(map(self.store.jobs.counts().__getitem__, UNFINISHED)) < JOBS:
            number = len(self.jobs)
            model = products_model([(4 + number, 24, 16), (4 + number, 16, 24)])
            sha256 = hashlib.sha256(model).hexdigest()
            self._request("PUT", f"/v1/models/{sha256}", content=model)
            body = {"model": sha256, "target": detect().key, "trials": TRIALS}
            self.jobs.append(self._request("POST", "/v1/jobs", json=body).json()["id"])

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self.ask(method, path, **options)
        if answer is None or answer.status_code >= 400:
            raise WaitTimeout(f"{method} {path}: {'no answer' if answer is None else answer.text}")
        return answer

    def count_trials(self) -> int:
        """The number of stored trials."""
        return self.store.counts()["trials"]

    def kill(self, role: str) -> Loss:
        """Kill the process of a role during a job, and time how the service recovers."""
        trials_before = self.count_trials()
        wait_for("a job goes on", lambda: self._has_trials(trials_before + 3), END_S)
        (pid,) = wait_for(f"one {role}", lambda: len(pids := self.pids(role)) == 1 and pids, END_S)
        tuner, stored_trials = self.pids("tuner"), self.count_trials()
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        if role == "server":
            assert self._server is not None
            self._server.wait()
            self.start()
        noticed_s: float | None = None
        back_s, is_alerted = 0.0, False
        while not back_s:
            readiness = self.ready()
            passed_s = time.monotonic() - killed_s
            if readiness is not None and not readiness["devices"]:
                noticed_s = passed_s if noticed_s is None else noticed_s
                is_alerted = is_alerted or self.alerts()
            elif readiness is not None and self._is_back(role, pid, tuner):
                back_s = passed_s
            if passed_s > END_S:
                raise WaitTimeout(f"{role}: no device came back within {END_S:g} s; the log is in {self.log}")
            time.sleep(LOOK_S)
        wait_for("another trial", lambda: self._has_trials(stored_trials + 1), END_S)
        return Loss(role, noticed_s, is_alerted, back_s, time.monotonic() - killed_s)

    def _has_trials(self, trials: int) -> bool:
        self.submit()
        return self.count_trials() >= trials

    def _is_back(self, role: str, pid: int, tuner: set[int]) -> bool:
        """Whether there is exactly one process of each role, and none of the lost ones."""
        pids_by_role = {name: self.pids(name) for name in ROLES}
        if pid in pids_by_role[role] or (role != "keeper" and tuner & pids_by_role["tuner"]):
            return False
        return all(len(pids) == 1 for name, pids in pids_by_role.items() if name == role or name != "keeper")

    def end(self) -> list[str]:
        """Wait for all jobs and end the service. Returns its faults."""
        wait_for("all jobs end", lambda: not sum(map(self.store.jobs.counts().__getitem__, UNFINISHED)), END_S)
        faults = list(self._faults())
        assert self._server is not None
        self._server.terminate()
        self._server.wait(60)
        with suppress(WaitTimeout):
            wait_for("the processes end", lambda: not self.pids(), END_S)  # what a killed raylet left takes longest
        return faults + [f"process {pid} of the service stays behind" for pid in self.pids()]

    def _faults(self) -> Iterator[str]:
        trials: list[tuple[str, str]] = []
        for job in map(self.store.jobs.get, self.jobs):
            if job.state is not JobState.SUCCEEDED:
                yield f"job {job.id} is {job.state}: {job.error}"
            job_trials = self.store.jobs.trials(job.id)
            if [trial.ordinal for trial in job_trials] != list(range(TRIALS)):
                yield f"job {job.id} has {len(job_trials)} trials of {TRIALS}"
            errors = [trial.record.measurement.error for trial in job_trials if trial.record.measurement.error]
            if errors:
                yield f"job {job.id}: {len(errors)} trials failed, the first with {errors[0]}"
            trials += [(trial.record.task_key, trial.record.schedule.key) for trial in job_trials]
        if len(trials) != len(set(trials)) or len(trials) != self.count_trials():
            yield f"{len(trials)} trials of jobs, {len(set(trials))} of them different, {self.count_trials()} stored"

    def close(self) -> None:
        """Kill the remaining processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.wait()
        self.store.close()


@dataclass(slots=True)
class KillReport:
    """The losses of a run and the faults of the service."""

    losses: list[Loss] = field(default_factory=list)
    jobs: int = 0
    faults: list[str] = field(default_factory=list)


@contextmanager
def run_service(folder: Path) -> Iterator[KillableService]:
    """A service that has a device, closed when the block ends."""
    service = KillableService(folder)
    try:
        service.start()
        wait_for("a device", lambda: (service.ready() or {}).get("devices"), END_S)
        yield service
    finally:
        service.close()


def kill_in_turn(
    folder: Path, roles: Sequence[str], rounds: int, tell: Callable[[Loss], None] = lambda loss: None
) -> KillReport:
    """Kill each of the roles in each of the rounds."""
    report = KillReport()
    with run_service(folder) as service:
        try:
            for _ in range(rounds):
                for role in roles:
                    report.losses.append(service.kill(role))
                    report.faults += report.losses[-1].faults()
                    tell(report.losses[-1])
            report.faults += service.end()
        except WaitTimeout as late:
            report.faults.append(f"{late}; the log ends with:\n{service.log.read_text(errors='replace')[-3000:]}")
        report.jobs = len(service.jobs)
    return report


def free_port() -> int:
    """A free port of the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> int:
    """Kill processes and print each loss. Returns 0 if there are no faults."""
    parser = argparse.ArgumentParser(prog="./dev bench killing", description=__doc__)
    parser.add_argument("roles", nargs="*", metavar="ROLE", help=f"some of {', '.join(ROLES)}; without any: all")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    if unknown := set(arguments.roles) - set(ROLES):
        parser.error(f"no role: {', '.join(sorted(unknown))}")
    with TemporaryDirectory(prefix="tunewright-killing-") as folder:
        report = kill_in_turn(
            Path(folder), arguments.roles or list(ROLES), arguments.rounds, lambda loss: print(loss.line(), flush=True)
        )
    backs_s = sorted(loss.back_s for loss in report.losses)
    if backs_s:
        times = f"back after {backs_s[len(backs_s) // 2]:.1f} s, at most {backs_s[-1]:.1f} s"
        print(f"{len(backs_s)} losses, {report.jobs} jobs; {times}")
    for fault in report.faults:
        print(f"fault: {fault}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
