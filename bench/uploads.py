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
from tunewright.bench.service import Service, serving
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.sql_store import open_store

SETTLED = 1000
"""Models after which the memory of the process is taken for what it needs."""

MOST_GROWTH = 0.1
"""Of its memory from then on."""

CLIENTS = 3
"""Models sent at the same time: one more than the service reads at once."""


@dataclass
class Findings:
    """What came of all models."""

    answers: Counter[str] = field(default_factory=Counter)  # "send 201", "job 422 bad-model" -> how many
    faults: list[str] = field(default_factory=list)  # what must not be
    rss_bytes: list[int] = field(default_factory=list)  # of the process, every hundred models
    slowest_s: float = 0.0
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        """For people."""
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
    asked = parser.parse_args()
    found = run(asked.count, asked.seed)
    print(*found.lines(), sep="\n")
    return int(bool(found.faults))


def run(count: int, seed: int = 0) -> Findings:
    """Send so many damaged models to a service that is started for it."""
    mutations, found = Mutations(seed), Findings()
    target = detect(1)
    start = time.monotonic()
    with started(target) as service:
        found.rss_bytes.append(rss_bytes(service.pid))
        done = threading.Lock()

        def work(number: int) -> None:
            data = mutations.made(number)
            try:
                answers = list(_asked(client, data, number, target))
            except httpx.HTTPError as error:
                answers = [("", 0.0, f"model {number}: no answer: {type(error).__name__}: {error}")]
            with done:
                for name, seconds, fault in answers:
                    found.answers[name] += bool(name)
                    found.slowest_s = max(found.slowest_s, seconds)
                    found.faults += [fault] if fault else []
                if (number + 1) % 100 == 0:
                    found.rss_bytes.append(rss_bytes(service.pid))

        headers = {"Authorization": f"Bearer {service.key}"}
        client = httpx.Client(base_url=service.url, headers=headers, timeout=150, trust_env=False)
        with client, ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, range(count)))
        found.rss_bytes.append(rss_bytes(service.pid))
    found.seconds = time.monotonic() - start
    found.faults += _growth(found.rss_bytes)
    return found


def _growth(rss: list[int]) -> list[str]:
    """What is wrong with the memory of the process over the run."""
    if 0 in rss:
        return ["the process of the service died"]
    settled = SETTLED // 100
    if len(rss) <= settled + 1 or rss[-1] <= (1 + MOST_GROWTH) * rss[settled]:
        return []
    return [f"memory grew from {rss[settled] / 1e6:.0f} MB to {rss[-1] / 1e6:.0f} MB"]


def _asked(client: httpx.Client, data: bytes, number: int, target: Target) -> Iterator[tuple[str, float, str | None]]:
    """Send a model, and ask for a job if it is taken: what each came to, how long it took, and what is wrong there."""
    sha256 = hashlib.sha256(data).hexdigest()
    start = time.monotonic()
    answer = client.put(f"/v1/models/{sha256}", content=data, params={"label": TITLES[number % len(TITLES)]})
    yield _judged("send", number, answer, time.monotonic() - start)
    if not answer.is_success:
        return
    dims = {name: 1 for name in answer.json()["description"]["open_dims"][:64] if 0 < len(name) <= 200}
    start = time.monotonic()
    answer = client.post("/v1/jobs", json={"model": sha256, "target": target.key, "dims": dims, "trials": 1})
    yield _judged("job", number, answer, time.monotonic() - start)


TITLES = ("model.onnx", "<script>alert(1)</script>", "'; DROP TABLE jobs; --", "a\u202eb\u0007", "")
"""Labels that the models are sent under."""


def _judged(what: str, number: int, answer: httpx.Response, seconds: float) -> tuple[str, float, str | None]:
    """The answer in words, and the fault in it."""
    if answer.is_success:
        return f"{what} {answer.status_code}", seconds, None
    try:
        problem: Any = json.loads(answer.content)
        found = re.fullmatch("/problems/([a-z-]+)", problem["type"])
        is_sound = found and answer.headers["content-type"] == "application/problem+json"
        is_sound = is_sound and problem["status"] == answer.status_code and problem["title"] and problem["request_id"]
    except (ValueError, KeyError, TypeError):
        found, is_sound = None, False
    name = f"{what} {answer.status_code} {found[1] if found else 'of no kind'}"
    if is_sound and (reason := re.search("the model can't be read: (.*)", problem["detail"])):
        name += f": {reason[1]}"  # the child that read it did not end well
    if not is_sound or answer.status_code >= 500:
        return name, seconds, f"model {number}: {what} answers {answer.status_code}: {answer.text[:200]!r}"
    return name, seconds, None


@contextmanager
def started(target: Target) -> Iterator[Service]:
    """A service on a database that knows the target."""
    with TemporaryDirectory(prefix="tunewright-uploads-") as folder:
        url = f"sqlite:///{Path(folder) / 'tuning.db'}"
        with open_store(url) as store:
            store.add_target(target)
        with serving(url, Path(folder)) as service:
            yield service


def rss_bytes(pid: int) -> int:
    """Memory that a process has in use; 0 where it is dead."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    sys.exit(main())
