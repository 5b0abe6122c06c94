"""Service: what the routes share. Read `Options` first: everything that can be set about the HTTP side."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar, cast

import anyio
from fastapi import Depends, Request

from tunewright.db.jobs import Event
from tunewright.db.sql_store import SqlStore

from .changes import Changes
from .health import Health
from .metrics import Metrics
from .problems import Kind, Problem
from .readers import Readers
from .views.history import Histories

Result = TypeVar("Result")


EXPORTS = 4
"""Exports of all records that are under way at once."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the service behaves."""

    host: str = "127.0.0.1"  # what it listens on
    allow_hosts: tuple[str, ...] = ()  # further names that clients may use for it, `*.example.org` for all below
    upload_bytes: int = 512 << 20  # largest model
    import_bytes: int = 256 << 20  # largest body of records
    body_bytes: int = 4 << 20  # largest other body: a lookup of 1,024 tasks with their definitions
    body_s: float = 30.0  # longest pause within a body
    most_unfinished: int = 100  # jobs of a key
    requests_per_minute: int = 60_000  # of a key
    changes_per_minute: int = 600  # uploads, submissions, steering and imports of a key
    failures_per_minute: int = 30  # wrong keys from an address
    readers: int = 2  # processes that read models, at most
    bodies: int = 8  # models and imports that are received at once: each has a file until it is stored
    streams: int = 500  # event streams that are open at once
    folder: Path | None = None  # where bodies wait while they are read; None: the system's folder for such files


@dataclass(slots=True)
class Service:
    """The parts of a running service."""

    store: SqlStore
    options: Options
    changes: Changes
    readers: Readers
    metrics: Metrics
    health: Health
    receiving: anyio.CapacityLimiter  # who receives a large body
    following: anyio.CapacityLimiter  # who has an event stream open
    reading: anyio.CapacityLimiter  # threads that those streams read the database in
    histories: Histories = field(default_factory=Histories)  # of the jobs that people look at
    exporting: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(EXPORTS)
    )  # who takes all records
    reads: dict[tuple[asyncio.Event, int, int], asyncio.Future[list[Event]]] = field(
        default_factory=dict
    )  # of events for those streams, under way: by the change that woke them, the job, and the last event seen
    draining: threading.Event = field(default_factory=threading.Event)

    def drain(self) -> None:
        """Begin to end: not ready for new work, and open streams end. From any thread, or a signal handler."""
        self.draining.set()
        self.changes.stop()


async def service_of(request: Request) -> Service:
    """The service that a request came to."""
    return cast("Service", request.app.state.service)


Here = Annotated[Service, Depends(service_of)]
"""Type of a route's parameter that is the service."""


@contextmanager
def place_in(limiter: anyio.CapacityLimiter, refusal: str) -> Iterator[None]:
    """One of so many places. Raises Problem where all are taken."""
    holder = object()
    try:
        limiter.acquire_on_behalf_of_nowait(holder)
    except anyio.WouldBlock:
        raise Problem(Kind.BUSY, refusal, retry_after_s=10) from None
    try:
        yield
    finally:
        limiter.release_on_behalf_of(holder)


async def in_thread(work: Callable[[], Result]) -> Result:
    """What waits for the database or a disk, done beside the event loop."""
    return await anyio.to_thread.run_sync(work)
