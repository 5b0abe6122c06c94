"""Pages of a large job, and their viewers: `./dev bench pages [--trials N] [--seconds S] [--folder PATH]`.

Fills a SQLite database with a job of a million made-up trials of real tasks and legal schedules, serves it by a real
process, and measures what a browser waits for: each page, made anew, while a made-up tuner process goes on with the
job; what twenty viewers cost the server; and how fast charts answer the pointer in a browser. Exit code 1 where a
bound is missed.
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

from tunewright.api.dashboard.html import assets
from tunewright.api.dashboard.job.view import JobTab
from tunewright.api.dashboard.links import make_link
from tunewright.bench.browser import require_browser
from tunewright.bench.entries import code_sha256
from tunewright.bench.files import FOLDER, RESULTS, write_whole
from tunewright.bench.interactions import measure_interactions
from tunewright.bench.large_job import MODEL, RATE, LargeJob, fill, next_records
from tunewright.bench.service import ServiceProcess, run_service
from tunewright.codegen.host import detect, machine
from tunewright.db.fleet import TunerDevice
from tunewright.db.job import EventKind, Lease, NewEvent
from tunewright.db.store import Store, open_store

MOST_MS, MOST_BYTES = 1000.0, 300_000
"""The most milliseconds and bytes of a page."""

MOST_ANSWER_MS = 100.0
"""The most milliseconds until a page answers the pointer."""

MOST_SHARE = 0.05
"""The largest share of a core for the streams of all viewers of a running job."""

MOST_SCRIPT_BYTES = 60_000
"""The most bytes of all scripts, compressed."""

VIEWERS = 20

TIMES = 5
"""Timed requests of each page."""

SETTLE_S, LOOK_S = 1.1, 2.0
"""As in live.js: seconds from an event, and from the last view, to the next view of a page."""

AGAIN = b"data-again"
"""Marks a page with a part that is still being made."""

TIMEOUT_S = 120.0
"""Time limit of a request."""


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A measured value with its bound."""

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
    arguments = parser.parse_args()
    home = arguments.folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{arguments.folder.resolve()}/{arguments.trials}.db"
    program = require_browser()
    with open_store(url) as store:
        job = fill(store, detect(), arguments.trials, log)
        stored = store.counts()["trials"]
        with run_tuner(store, job), run_service(url, home) as service:
            figures = measure_pages(service, job) + measure_scripts() + measure_viewers(service, job, arguments.seconds)
            figures += measure_answers(program, service, make_link(store, service.url).url, job)
    show(figures)
    results = {
        "figures": [asdict(figure) | {"holds": figure.holds} for figure in figures],
        "trials": stored,
        "tasks": len(job.tasks),
        "seconds": arguments.seconds,
        "viewers": VIEWERS,
        "rate": RATE,
        "cores": os.cpu_count(),
        "machine": machine(),
        "code_sha256": code_sha256(("api", "db", "tuner")),
        "versions": {name: version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "jinja2")},
    }
    write_whole(RESULTS / "pages.json", json.dumps(results, indent=1).encode() + b"\n")
    return 0 if all(figure.holds for figure in figures) else 1


def log(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def show(figures: Sequence[PageFigure]) -> None:
    """Print the figures as a table."""
    for figure in figures:
        bound = "" if figure.bound is None else f"   < {figure.bound:g}"
        log(f"{figure.name:<60}{figure.value:>12.4g} {figure.unit:<6}{bound}{'' if figure.holds else '   MISSED'}")


@contextmanager
def run_tuner(store: Store, job: LargeJob) -> Iterator[None]:
    """A thread that acts as a tuner process of the job until the block ends."""
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
    tuning.result()  # raises what the thread raised


def tune(store: Store, job: LargeJob, lease: Lease, ended: threading.Event) -> None:
    """Store RATE trials a second, and progress each second, until `ended` or without further trials."""
    store.fleet.enlist("made-up", "made-up", os.getpid(), machine()["tunewright"], "local")
    store.fleet.report("made-up", [TunerDevice("made-up/0", job.target.key)], job.id)
    done, reported_s = job.trials, time.monotonic()
    for record, moment in zip(next_records(job), count(), strict=False):
        if ended.wait(1 / RATE):
            return
        store.record(record, lease)
        if moment % (10 * RATE) == 0:
            task = next(job_task for job_task in job.tasks if job_task.key == record.task_key)
            data = {"task_key": task.key, "op": task.op, "default_ms": 2.0, "best_ms": 0.5, "trial": done + moment}
            store.jobs.renew(lease, events=[NewEvent(EventKind.IMPROVED, data)])
        if time.monotonic() - reported_s >= 1.0:
            reported_s = time.monotonic()
            data = job.progress(done + moment)
            store.jobs.renew(lease, progress=data, events=[NewEvent(EventKind.PROGRESS, data)], spent_s=1.0)


# Pages


def measure_pages(service: ServiceProcess, job: LargeJob) -> list[PageFigure]:
    """First, median and longest time of each page without caches, and its size."""
    figures = []
    with open_client(service) as client:
        for name, path in page_paths(client, job).items():
            start_s = time.perf_counter()
            size_bytes, first_ms = time_page(client, path)
            while AGAIN in client.get(path).content:
                time.sleep(0.05)  # the page asks for another request
            settled_s = time.perf_counter() - start_s
            samples = [time_page(client, path) for _ in range(TIMES)]
            figures += [
                PageFigure(f"{name}: first", "ms", first_ms, MOST_MS),
                PageFigure(f"{name}: median", "ms", median(ms for _, ms in samples), MOST_MS),
                PageFigure(f"{name}: longest", "ms", max(ms for _, ms in samples), MOST_MS),
                PageFigure(f"{name}: size", "bytes", max(size_bytes, *(size for size, _ in samples)), MOST_BYTES),
                PageFigure(f"{name}: everything there", "s", settled_s),
            ]
    return figures


def page_paths(client: httpx.Client, job: LargeJob) -> dict[str, str]:
    """The paths of the pages, by name."""
    target, largest = job.target.key, job.tasks[0].key
    task = f"/tasks/{largest}?target={target}"
    answer = client.get(f"/v1/pages{task}")
    answer.raise_for_status()
    page = answer.json()
    trials = f"/tasks/{largest}/trials?target={target}"
    candidate = f"/tasks/{largest}/schedules/{page['best']['schedule']['key']}?target={target}"
    return {
        "jobs": "/",
        "jobs by gain": "/?sort=gain&model=made",
        **{f"job, {tab.value}": f"/jobs/{job.id}?tab={tab.value}" for tab in JobTab},
        "job against time": f"/jobs/{job.id}?x=seconds",
        "compare": f"/compare?job={job.id}&job={job.again_id}",
        "compare, tasks": f"/compare?job={job.id}&job={job.again_id}&tab=tasks",
        "task": task,
        "task, loops": f"{task}&tab=loops",
        "task, roofline": f"{task}&tab=roofline",
        "task, second page": f"{task}&cursor={page['next']}",
        "task, newest first": f"{task}&sort=created&desc=true",
        "task, slowest first": f"{task}&sort=time&desc=true",
        "task, failed": f"{task}&status=crash",
        "task, of the job": f"{task}&job={job.id}",
        "trials": trials,
        "trials, by time": f"{trials}&time=0.3..0.5",
        "trials, of the job": f"{trials}&job={job.id}&sort=created&desc=true",
        "trials, by knobs": f"{trials}&x=predicted&knob.unroll=2..8&knob.rows=1..4",
        "candidate": candidate,
        "candidate, assembly": f"{candidate}&text=assembly",
        "records": "/records",
        "records, lookup": f"/records?op=conv&task={largest}&on={target}",
        "cost model": "/cost-model",
        "fleet": "/fleet",
        "search": f"/search?q={MODEL}",
        "keys": "/keys",
    }


def open_client(service: ServiceProcess) -> httpx.Client:
    """A client that bypasses caches."""
    headers = {"Authorization": f"Bearer {service.key}", "Cache-Control": "no-cache", "Accept-Encoding": "identity"}
    return httpx.Client(base_url=service.url, headers=headers, timeout=TIMEOUT_S, trust_env=False)


def time_page(client: httpx.Client, path: str) -> tuple[int, float]:
    """Bytes and milliseconds of a request of a page."""
    start_s = time.perf_counter()
    answer = client.get(path)
    elapsed_ms = 1e3 * (time.perf_counter() - start_s)
    answer.raise_for_status()
    return len(answer.content), elapsed_ms


def measure_scripts() -> list[PageFigure]:
    """The size of all scripts, compressed as by a proxy."""
    size_bytes = sum(len(gzip.compress(asset.content)) for asset in assets().values() if asset.name.endswith(".js"))
    return [PageFigure("scripts, compressed", "bytes", size_bytes, MOST_SCRIPT_BYTES)]


def measure_answers(program: str, service: ServiceProcess, link: str, job: LargeJob) -> list[PageFigure]:
    """How fast a browser answers the pointer on pages of the job and its largest task."""
    with open_client(service) as client:
        paths = page_paths(client, job)
    charts = {"curves": "job, machine", "roofline": "task, roofline", "trials": "trials"}
    times = measure_interactions(program, service, link, {chart: paths[name] for chart, name in charts.items()})
    return [
        figure
        for one in times
        for figure in (
            PageFigure(f"{one.name}: median", "ms", one.median_ms),
            PageFigure(f"{one.name}: longest", "ms", one.longest_ms, MOST_ANSWER_MS),
        )
    ]


# Viewers


def measure_viewers(service: ServiceProcess, job: LargeJob, seconds: float) -> list[PageFigure]:
    """The server's share of a core without viewers, with their streams, and with their pages too."""
    alone = busy_share(service.pid, seconds)
    streams, events = asyncio.run(run_viewers(service, job, seconds, looks=False))
    everything, _ = asyncio.run(run_viewers(service, job, seconds, looks=True))
    return [
        PageFigure("server without viewers", "of a core", alone),
        PageFigure(f"server with the streams of {VIEWERS} viewers", "of a core", streams, MOST_SHARE),
        PageFigure("server with their pages too", "of a core", everything),
        PageFigure("events sent a second", "", events / seconds),
    ]


def busy_share(pid: int, seconds: float) -> float:
    """The share of a core that a process takes for so many seconds."""
    before_s = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


def cpu_s(pid: int) -> float:
    """Seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run_viewers(service: ServiceProcess, job: LargeJob, seconds: float, *, looks: bool) -> tuple[float, int]:
    """The server's share of a core while viewers follow one job or all, and how many events they get."""
    headers = {"Authorization": f"Bearer {service.key}"}
    limits = httpx.Limits(max_connections=3 * VIEWERS)
    counts = [0] * VIEWERS
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
                tasks.append(group.create_task(view_page(client, page, news)))
            async with client.stream("GET", stream) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        counts[number] += 1
                        news.set()

        tasks = [group.create_task(follow(number)) for number in range(VIEWERS)]
        while not all(counts):
            await asyncio.sleep(0.1)  # until each viewer has got an event
        before_s, before = cpu_s(service.pid), sum(counts)
        await asyncio.sleep(seconds)
        share, events = (cpu_s(service.pid) - before_s) / seconds, sum(counts) - before
        for task in tasks:
            task.cancel()
    return share, events


async def view_page(client: httpx.AsyncClient, page: str, news: asyncio.Event) -> None:
    """Request a page after each event, as live.js does, with the ETag of the last answer."""
    etag, viewed_s = "", 0.0
    while True:
        await news.wait()
        await asyncio.sleep(max(SETTLE_S, viewed_s + LOOK_S - time.monotonic()))
        news.clear()
        viewed_s = time.monotonic()
        answer = await client.get(page, headers={"If-None-Match": etag} if etag else {})
        etag = answer.headers["etag"]


if __name__ == "__main__":
    sys.exit(main())
