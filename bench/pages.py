"""Pages of a large job, and their viewers: `./dev bench pages [--trials N] [--seconds S] [--folder PATH]`.

Fills a SQLite database with a job of a million made-up trials of real tasks and legal schedules, serves it by a real
process, and measures what a browser waits for: each page, made anew, while a made-up tuner process goes on with the
job. Then what twenty viewers cost the server. Exit code 1 where a bound is missed.
Results: bench/results/pages.json. The database stays in build/bench/pages: what is filled isn't filled again.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from statistics import median

import httpx

from tunewright.api.html import assets
from tunewright.bench.entries import code_sha256
from tunewright.bench.files import FOLDER, RESULTS, write_whole
from tunewright.bench.large_job import RATE, LargeJob, fill, next_records
from tunewright.bench.service import Service, serving
from tunewright.codegen.host import detect, machine
from tunewright.db.fleet import Device
from tunewright.db.jobs import EventKind, Lease, NewEvent
from tunewright.db.sql_store import SqlStore, open_store

MOST_MS, MOST_BYTES = 1000.0, 300_000
"""Of a page."""

MOST_SHARE = 0.05
"""Of one core, for the streams of all viewers of a job that is measured."""

MOST_SCRIPT_BYTES = 60_000
"""Compressed."""

VIEWERS = 20

TIMES = 5
"""Each page is asked for."""

SETTLE_S, LOOK_S = 1.1, 2.0
"""As in live.js: how long behind an event, and behind the last look, a page is looked at again."""

AGAIN = b"data-again"
"""What marks a page on which something is still being made."""

TIMEOUT_S = 120.0
"""Of a request."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that was measured, and what it may be at most."""

    name: str
    unit: str
    value: float
    bound: float | None = None

    @property
    def holds(self) -> bool:
        return self.bound is None or self.value < self.bound


def main() -> int:
    """Measure everything, keep and print it, and say whether all bounds hold."""
    parser = argparse.ArgumentParser(
        prog="./dev bench pages", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--trials", type=int, default=1_000_000, help="of the job")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long viewers are watched, each time")
    parser.add_argument("--folder", type=Path, default=FOLDER / "pages", help="where the database is, or is made")
    chosen = parser.parse_args()
    home = chosen.folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{chosen.folder.resolve()}/{chosen.trials}.db"
    with open_store(url) as store:
        job = fill(store, detect(), chosen.trials, say)
        stored = store.counts()["trials"]
        with at_work(store, job), serving(url, home) as service:
            figures = pages(service, job) + script() + watched(service, job, chosen.seconds)
    show(figures)
    everything = {
        "figures": [asdict(one) | {"holds": one.holds} for one in figures],
        "trials": stored,
        "tasks": len(job.tasks),
        "seconds": chosen.seconds,
        "viewers": VIEWERS,
        "rate": RATE,
        "cores": os.cpu_count(),
        "machine": machine(),
        "code_sha256": code_sha256(("api", "db", "tuner")),
        "versions": {name: version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "jinja2")},
    }
    write_whole(RESULTS / "pages.json", json.dumps(everything, indent=1).encode() + b"\n")
    return 0 if all(one.holds for one in figures) else 1


def say(text: str) -> None:
    """To people, while it runs."""
    print(text, file=sys.stderr, flush=True)


def show(figures: Sequence[Figure]) -> None:
    """The table."""
    for one in figures:
        bound = "" if one.bound is None else f"   < {one.bound:g}"
        say(f"{one.name:<60}{one.value:>12.4g} {one.unit:<6}{bound}{'' if one.holds else '   MISSED'}")


@contextmanager
def at_work(store: SqlStore, job: LargeJob) -> Iterator[None]:
    """A made-up tuner process that goes on with the job: so many trials a second, and progress each second."""
    lease = store.jobs.lease([job.target.key], "made-up:1")
    if lease is None or lease.job_id != job.id:
        raise SystemExit("another process works on this database")
    ended = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        tuning = threads.submit(tune, store, job, lease, ended)
        try:
            yield
        finally:
            ended.set()
            wait([tuning])
            store.jobs.give_back(lease)
    tuning.result()  # what went wrong there


def tune(store: SqlStore, job: LargeJob, lease: Lease, ended: threading.Event) -> None:
    """Until it is ended, or nothing is left to try."""
    store.fleet.enlist("made-up", "made-up", os.getpid(), machine()["tunewright"], "local")
    store.fleet.report("made-up", [Device("made-up/0", job.target.key)], job.id)
    done, told = job.trials, time.monotonic()
    for record, moment in zip(next_records(job), count(), strict=False):
        if ended.wait(1 / RATE):
            return
        store.record(record, lease)
        if moment % (10 * RATE) == 0:
            task = next(one for one in job.tasks if one.key == record.task_key)
            data = {"task_key": task.key, "op": task.op, "default_ms": 2.0, "best_ms": 0.5, "trial": done + moment}
            store.jobs.renew(lease, events=[NewEvent(EventKind.IMPROVED, data)])
        if time.monotonic() - told >= 1.0:
            told = time.monotonic()
            data = job.progress(done + moment)
            store.jobs.renew(lease, progress=data, events=[NewEvent(EventKind.PROGRESS, data)], spent_s=1.0)


# Pages


def pages(service: Service, job: LargeJob) -> list[Figure]:
    """What each page takes, the first time and then, made anew each time; and how large it is."""
    figures = []
    with httpx.Client(base_url=service.url, headers=fresh(service), timeout=TIMEOUT_S, trust_env=False) as client:
        for name, path in addresses(client, job).items():
            started_s = time.perf_counter()
            size_bytes, first_ms = asked(client, path)
            while AGAIN in client.get(path).content:
                time.sleep(0.05)  # it says that it is to be looked at again
            settled_s = time.perf_counter() - started_s
            found = [asked(client, path) for _ in range(TIMES)]
            figures += [
                Figure(f"{name}: first", "ms", first_ms, MOST_MS),
                Figure(f"{name}: median", "ms", median(ms for _, ms in found), MOST_MS),
                Figure(f"{name}: longest", "ms", max(ms for _, ms in found), MOST_MS),
                Figure(f"{name}: size", "bytes", max(size_bytes, *(size for size, _ in found)), MOST_BYTES),
                Figure(f"{name}: everything there", "s", settled_s),
            ]
    return figures


def addresses(client: httpx.Client, job: LargeJob) -> dict[str, str]:
    """The pages, by name."""
    target, largest = job.target.key, job.tasks[0].key
    task = f"/tasks/{largest}?target={target}"
    answer = client.get(f"/v1/pages{task}")
    answer.raise_for_status()
    said = answer.json()
    candidate = f"/tasks/{largest}/schedules/{said['best']['schedule']['key']}?target={target}"
    return {
        "jobs": "/",
        "jobs by gain": "/?sort=gain&model=made",
        "job": f"/jobs/{job.id}",
        "job against time": f"/jobs/{job.id}?x=seconds",
        "task": task,
        "task, second page": f"{task}&cursor={said['next']}",
        "task, newest first": f"{task}&sort=created&desc=true",
        "task, slowest first": f"{task}&sort=time&desc=true",
        "task, failed": f"{task}&status=crash",
        "task, of the job": f"{task}&job={job.id}",
        "candidate": candidate,
        "candidate, assembly": f"{candidate}&text=assembly",
        "records": "/records",
        "records, lookup": f"/records?op=conv&task={largest}&on={target}",
        "cost model": "/cost-model",
        "fleet": "/fleet",
    }


def fresh(service: Service) -> dict[str, str]:
    """Headers of a request for a page as it is now."""
    return {"Authorization": f"Bearer {service.key}", "Cache-Control": "no-cache", "Accept-Encoding": "identity"}


def asked(client: httpx.Client, path: str) -> tuple[int, float]:
    """Bytes and milliseconds of a page that is made now."""
    started_s = time.perf_counter()
    answer = client.get(path)
    taken_ms = 1e3 * (time.perf_counter() - started_s)
    answer.raise_for_status()
    return len(answer.content), taken_ms


def script() -> list[Figure]:
    """All scripts, as compressed as a proxy sends them."""
    size_bytes = sum(len(gzip.compress(one.content)) for one in assets().values() if one.name.endswith(".js"))
    return [Figure("scripts, compressed", "bytes", size_bytes, MOST_SCRIPT_BYTES)]


# Viewers


def watched(service: Service, job: LargeJob, seconds: float) -> list[Figure]:
    """What the server takes of a core: without viewers, for their streams, and for them and their pages."""
    alone = busy_share(service.pid, seconds)
    streams, events = asyncio.run(viewers(service, job, seconds, looks=False))
    everything, _ = asyncio.run(viewers(service, job, seconds, looks=True))
    return [
        Figure("server without viewers", "of a core", alone),
        Figure(f"server with the streams of {VIEWERS} viewers", "of a core", streams, MOST_SHARE),
        Figure("server with their pages too", "of a core", everything),
        Figure("events sent a second", "", events / seconds),
    ]


def busy_share(pid: int, seconds: float) -> float:
    """How much of one core a process takes for a while."""
    before_s = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process took so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def viewers(service: Service, job: LargeJob, seconds: float, *, looks: bool) -> tuple[float, int]:
    """The share of a core that viewers of one job and of all take once they are there, and how many events come."""
    headers = {"Authorization": f"Bearer {service.key}"}
    limits = httpx.Limits(max_connections=3 * VIEWERS)
    seen = [0] * VIEWERS
    async with (
        httpx.AsyncClient(
            base_url=service.url, headers=headers, limits=limits, timeout=TIMEOUT_S, trust_env=False
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        newest = (await client.get(f"/v1/pages/jobs/{job.id}")).json()["newest"]
        paths = [(f"/v1/jobs/{job.id}/events?after={newest}", f"/jobs/{job.id}"), ("/v1/changes", "/")]

        async def follow(number: int) -> None:
            stream, page = paths[number % len(paths)]
            news = asyncio.Event()
            if looks:
                tasks.append(group.create_task(look(client, page, news)))
            async with client.stream("GET", stream) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        seen[number] += 1
                        news.set()

        tasks = [group.create_task(follow(number)) for number in range(VIEWERS)]
        while not all(seen):
            await asyncio.sleep(0.1)  # until each has its stream
        before_s, before = cpu_s(service.pid), sum(seen)
        await asyncio.sleep(seconds)
        share, events = (cpu_s(service.pid) - before_s) / seconds, sum(seen) - before
        for task in tasks:
            task.cancel()
    return share, events


async def look(client: httpx.AsyncClient, page: str, news: asyncio.Event) -> None:
    """Ask for a page again behind each event, as live.js does, with what the browser has of it."""
    etag, looked_at = "", 0.0
    while True:
        await news.wait()
        await asyncio.sleep(max(SETTLE_S, looked_at + LOOK_S - time.monotonic()))
        news.clear()
        looked_at = time.monotonic()
        answer = await client.get(page, headers={"If-None-Match": etag} if etag else {})
        etag = answer.headers["etag"]


if __name__ == "__main__":
    sys.exit(main())
