"""Damaged models against the service: `./dev bench uploads [--count 10000] [--seed 0]`.

Each is sent to a real `serve` process over HTTP; where it is taken, a job for it is asked for, which reads it whole.
Exits with 1 if any answer is neither a success nor a problem document, if the process died, or if its memory grew by
more than a tenth after the first thousand models. Each model follows from the seed and its number alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tunewright.bench.mutation import Mutations
from tunewright.bench.service import ServiceProcess, run_service
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.store import open_store

SETTLED_MODELS = 1000
"""Models after which the memory of the process counts as settled."""

MOST_GROWTH = 0.1
"""The largest growth of its memory from then on."""

CLIENTS = 3
"""Models sent at the same time: one more than the service reads at once."""


@dataclass
class UploadReport:
    """The answers of the service to all models, its memory and its faults."""

    answers: Counter[str] = field(default_factory=Counter)  # "send 201", "job 422 bad-model" -> how many
    faults: list[str] = field(default_factory=list)  # what must not happen
    rss_bytes: list[int] = field(default_factory=list)  # of the process, every hundred models
    slowest_s: float = 0.0
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        """The report as lines of text."""
        for name, count in sorted(self.answers.items()):
            yield f"{count:8,} {name}"
        mb = [size / 1e6 for size in self.rss_bytes]
        yield f"memory of the process: {mb[0]:.0f} MB at first, {max(mb):.0f} MB at most, {mb[-1]:.0f} MB at last"
        yield f"{self.seconds:.0f} s, {self.slowest_s:.1f} s for the slowest answer"
        yield from (f"FAULT: {fault}" for fault in self.faults)


def main() -> int:
    """Print how many answers there were of each kind. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev bench uploads", description=__doc__, allow_abbrev=False)
    parser.add_argument("--count", type=int, default=10_000, help="how many models (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which models (default: %(default)s)")
    arguments = parser.parse_args()
    report = run(arguments.count, arguments.seed)
    print(*report.lines(), sep="\n")
    return int(bool(report.faults))


def run(count: int, seed: int = 0) -> UploadReport:
    """Send so many damaged models to a service of its own."""
    mutations, report = Mutations(seed), UploadReport()
    target = detect(1)
    start = time.monotonic()
    with run_upload_service(target) as service:
        report.rss_bytes.append(rss_bytes(service.pid))
        done = threading.Lock()

        def work(number: int) -> None:
            data = mutations.model(number)
            try:
                answers = list(_send(client, data, number, target))
            except httpx.HTTPError as error:
                answers = [("", 0.0, f"model {number}: no answer: {type(error).__name__}: {error}")]
            with done:
                for name, seconds, fault in answers:
                    report.answers[name] += bool(name)
                    report.slowest_s = max(report.slowest_s, seconds)
                    report.faults += [fault] if fault else []
                if (number + 1) % 100 == 0:
                    report.rss_bytes.append(rss_bytes(service.pid))

        headers = {"Authorization": f"Bearer {service.key}"}
        client = httpx.Client(base_url=service.url, headers=headers, timeout=150, trust_env=False)
        with client, ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, range(count)))
        report.rss_bytes.append(rss_bytes(service.pid))
    report.seconds = time.monotonic() - start
    report.faults += _growth(report.rss_bytes)
    return report


def _growth(rss: list[int]) -> list[str]:
    """Faults in the memory of the process over the run."""
    if 0 in rss:
        return ["the process of the service died"]
    settled = SETTLED_MODELS // 100
    if len(rss) <= settled + 1 or rss[-1] <= (1 + MOST_GROWTH) * rss[settled]:
        return []
    return [f"memory grew from {rss[settled] / 1e6:.0f} MB to {rss[-1] / 1e6:.0f} MB"]


def _send(client: httpx.Client, data: bytes, number: int, target: Target) -> Iterator[tuple[str, float, str | None]]:
    """Send a model and, if it is accepted, a job. Yields for each the answer's kind, its seconds and its fault."""
    sha256 = hashlib.sha256(data).hexdigest()
    start = time.monotonic()
    answer = client.put(f"/v1/models/{sha256}", content=data, params={"label": TITLES[number % len(TITLES)]})
    yield _judge("send", number, answer, time.monotonic() - start)
    if not answer.is_success:
        return
    dims = {name: 1 for name in answer.json()["description"]["open_dims"][:64] if 0 < len(name) <= 200}
    start = time.monotonic()
    answer = client.post("/v1/jobs", json={"model": sha256, "target": target.key, "dims": dims, "trials": 1})
    yield _judge("job", number, answer, time.monotonic() - start)


TITLES = ("model.onnx", "<script>alert(1)</script>", "'; DROP TABLE jobs; --", "a\u202eb\u0007", "")
"""Labels of the models."""


def _judge(action: str, number: int, answer: httpx.Response, seconds: float) -> tuple[str, float, str | None]:
    """The kind of an answer, its seconds, and its fault."""
    if answer.is_success:
        return f"{action} {answer.status_code}", seconds, None
    try:
        problem: Any = json.loads(answer.content)
        problem_type = re.fullmatch("/problems/([a-z-]+)", problem["type"])
        is_sound = problem_type and answer.headers["content-type"] == "application/problem+json"
        is_sound = is_sound and problem["status"] == answer.status_code and problem["title"] and problem["request_id"]
    except (ValueError, KeyError, TypeError):
        problem_type, is_sound = None, False
    name = f"{action} {answer.status_code} {problem_type[1] if problem_type else 'of no kind'}"
    if is_sound and (reason := re.search("the model can't be read: (.*)", problem["detail"])):
        name += f": {reason[1]}"  # the child that read it did not end well
    if not is_sound or answer.status_code >= 500:
        return name, seconds, f"model {number}: {action} answers {answer.status_code}: {answer.text[:200]!r}"
    return name, seconds, None


@contextmanager
def run_upload_service(target: Target) -> Iterator[ServiceProcess]:
    """A service on a database that knows the target."""
    with TemporaryDirectory(prefix="tunewright-uploads-") as folder:
        url = f"sqlite:///{Path(folder) / 'tuning.db'}"
        with open_store(url) as store:
            store.add_target(target)
        with run_service(url, Path(folder)) as service:
            yield service


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 where it is dead."""
    try:
        match = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


if __name__ == "__main__":
    sys.exit(main())
