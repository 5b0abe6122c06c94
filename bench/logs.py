"""The log of other compilers under load: `./dev bench logs [--entries N]`. Results: bench/results/logs.json.

Fills a namespace of a PostgreSQL database, serves it by a real process, and measures what compilers wait for: batches
over HTTP, single keys over HTTP and by Redis, and twenty ranks that ask for equal keys at once and must get the same.
Of every tenth key three values are known whose times are within each other's noise. Exit code 1 where a bound is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import text

from tunewright.bench.files import RESULTS, write_whole
from tunewright.bench.lookup import HttpConnection, LatencyFigure, figure, log, make_database, show
from tunewright.bench.service import ServiceProcess, run_service
from tunewright.codegen.host import machine
from tunewright.db.database import batches
from tunewright.db.logs.entry import Cost, CostEvidence, LogEntry
from tunewright.db.logs.logs import MOST_AT_ONCE, LogQuota
from tunewright.db.store import Store, open_store

NAMESPACE = "inductor"
"""One whose keys the front for clients of Redis takes."""

BATCH, RANKS, RANK_KEYS = 256, 20, 1000

BATCH_MS, REDIS_MS, SINGLE_MS = 20.0, 3.0, 10.0
"""Bounds of the 99th percentiles."""


def main() -> int:
    """Measure everything, print it, and say whether all bounds hold."""
    parser = argparse.ArgumentParser(prog="./dev bench logs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000, help="(%(default)s)")
    parser.add_argument("--requests", type=int, default=2000, help="of each kind (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder, make_database("postgres", Path(folder)) as url:
        with open_store(url) as store:
            keys, fill_s = fill(store, arguments.entries)
            size_bytes = _size_bytes(store)
        log(f"{arguments.entries:,} entries in {fill_s:.0f} s, {size_bytes / 1e9:.2f} GB")
        with run_service(url, Path(folder)) as service:
            figures = [*measure(service, keys, arguments.requests)]
            are_equal, rank_s = asyncio.run(ask_as_ranks(service, keys))
    show(figures)
    log(f"{RANKS} ranks, {RANK_KEYS} keys each, in {rank_s:.2f} s: {'equal' if are_equal else 'DIFFERENT'}")
    results = {
        "figures": [asdict(one) | {"holds": one.holds} for one in figures],
        "entries": arguments.entries,
        "entries_a_second": arguments.entries / fill_s,
        "size_bytes": size_bytes,
        "ranks": {"ranks": RANKS, "keys": RANK_KEYS, "equal": are_equal, "seconds": rank_s},
        "cores": os.cpu_count(),
        "machine": machine(),
        "versions": {name: version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "psycopg")},
    }
    write_whole(RESULTS / "logs.json", f"{json.dumps(results, indent=1)}\n".encode())
    return 0 if are_equal and all(one.holds for one in figures) else 1


def fill(store: Store, count: int) -> tuple[list[str], float]:
    """Write so many entries; their keys, and how many seconds that took."""
    keys: list[str] = []
    start_s = time.monotonic()
    for entries in batches(_entries(count, keys), MOST_AT_ONCE):
        store.logs.write(NAMESPACE, entries, quota=LogQuota(entries=count, size_bytes=1 << 40))
    return keys, time.monotonic() - start_s


def _entries(count: int, keys: list[str]) -> Iterator[LogEntry]:
    rng, made = random.Random(0), 0
    while made < count:
        key = f"pt2:{rng.getrandbits(256):064x}::{rng.getrandbits(256):064x}:c1"
        keys.append(key)
        for choice in range(min(3 if len(keys) % 10 == 0 else 1, count - made)):
            digest = f"{rng.getrandbits(256):064x}"
            value = {"XBLOCK": 64 << choice, "num_warps": 4, "num_stages": 3, "configs_hash": digest}
            cost = Cost(1e-3 * (1 + choice / 100), 9e-4, 1.1e-3, 9, CostEvidence.TIMED)
            yield LogEntry(key, json.dumps(value).encode(), cost=cost)
            made += 1


def _size_bytes(store: Store) -> int:
    with store.database.read() as session:
        return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def measure(service: ServiceProcess, keys: Sequence[str], requests: int) -> Iterator[LatencyFigure]:
    """The latencies, one client at a time."""
    rng = random.Random(1)
    times_s = asyncio.run(send_batches(service, keys, requests // 4, rng))
    yield figure(f"HTTP, a batch of {BATCH}", times_s, BATCH_MS)
    yield figure("HTTP, a single key", asyncio.run(send_batches(service, keys, requests, rng, 1)), SINGLE_MS)
    address = urlsplit(service.redis_url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
        ask = _redis(connection)
        ask(b"AUTH", service.key.encode())
        times_s = []
        for key in rng.sample(list(keys), requests):
            start_s = time.perf_counter()
            answer = ask(b"GET", key.encode())
            times_s.append(time.perf_counter() - start_s)
            if not answer.startswith(b"$"):
                raise SystemExit(f"a key that was written is not found: {answer[:100]!r}")
        yield figure("Redis, GET", times_s, REDIS_MS)


def _redis(connection: socket.socket) -> Callable[..., bytes]:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file = connection.makefile("rb")

    def ask(*parts: bytes) -> bytes:
        """The answer to a command; of a value its head."""
        connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        head = file.readline()
        if head.startswith(b"$") and not head.startswith(b"$-"):
            file.read(int(head[1:]) + 2)
        return head

    return ask


async def send_batches(
    service: ServiceProcess, keys: Sequence[str], count: int, rng: random.Random, size: int = BATCH
) -> list[float]:
    """Seconds that each batch took."""
    line = HttpConnection(service.url, service.key, f"/v1/logs/{NAMESPACE}:lookup")
    await line.ask(_body(keys[:1]))
    times_s = []
    for _ in range(count):
        body = _body(rng.sample(list(keys), size) if size > 1 else [rng.choice(keys)])
        start_s = time.perf_counter()
        items = json.loads(await line.ask(body))["items"]
        times_s.append(time.perf_counter() - start_s)
        if any(item["match"] != "exact" for item in items):
            raise SystemExit("a key that was written is not found")
    line.close()
    return times_s


async def ask_as_ranks(service: ServiceProcess, keys: Sequence[str]) -> tuple[bool, float]:
    """Whether all ranks get the same, and how many seconds all took."""
    body = _body(list(keys)[:RANK_KEYS])
    lines = [HttpConnection(service.url, service.key, f"/v1/logs/{NAMESPACE}:lookup") for _ in range(RANKS)]
    start_s = time.perf_counter()
    answers = await asyncio.gather(*(line.ask(body) for line in lines))
    elapsed_s = time.perf_counter() - start_s
    for line in lines:
        line.close()
    return len(set(answers)) == 1, elapsed_s


def _body(keys: Sequence[str]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


if __name__ == "__main__":
    sys.exit(main())
