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

from tunewright.codegen.target import Target
from tunewright.db.errors import NotFound
from tunewright.db.job import Event
from tunewright.db.logs.logs import LogQuota
from tunewright.db.pruning.policy import RetentionPolicy
from tunewright.db.store import Store
from tunewright.graph.task import Task

from .changes import Changes
from .health import ServiceHealth
from .metrics import Metrics
from .problems import Problem, ProblemKind
from .pruner import Pruner
from .queue_watch import QueueWatch
from .readers import Readers
from .release_key import ReleaseKey
from .webhook_hosts import WebhookHosts

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
    log_quota: LogQuota = field(default_factory=LogQuota)  # what a namespace of the log may hold
    retention: RetentionPolicy | None = None  # what is kept how long; None: nothing is ever pruned
    streams: int = 500  # event streams that are open at once
    webhook_hosts: WebhookHosts = field(default_factory=WebhookHosts)  # that may be told of jobs besides public ones
    folder: Path | None = None  # where bodies wait while they are read; None: the system's folder for such files


@dataclass(slots=True)
class Service:
    """The parts of a running service."""

    store: Store
    options: Options
    changes: Changes
    queue: QueueWatch
    readers: Readers
    metrics: Metrics
    health: ServiceHealth
    pruner: Pruner
    upload_slots: anyio.CapacityLimiter  # who receives a large body
    stream_slots: anyio.CapacityLimiter  # who has an event stream open
    stream_threads: anyio.CapacityLimiter  # threads that those streams read the database in
    release_key: ReleaseKey
    work_threads: anyio.CapacityLimiter  # threads that calls of tuner processes are done in
    export_slots: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(EXPORTS)
    )  # who takes all records
    reads: dict[tuple[asyncio.Event, int, int], asyncio.Future[list[Event]]] = field(
        default_factory=dict
    )  # of events for those streams, under way: by the change that woke them, the job, and the last event seen
    draining: threading.Event = field(default_factory=threading.Event)

    def drain(self) -> None:
        """Begin to end: not ready for new work, and open streams end. From any thread, or a signal handler."""
        self.draining.set()
        self.pruner.stop()
        self.changes.stop()


async def service_of(request: Request) -> Service:
    """The service that a request came to."""
    return cast("Service", request.app.state.service)


ServiceDep = Annotated[Service, Depends(service_of)]
"""Type of a route's parameter that is the service."""


@contextmanager
def place_in(limiter: anyio.CapacityLimiter, refusal: str) -> Iterator[None]:
    """One of so many places. Raises Problem where all are taken."""
    holder = object()
    try:
        limiter.acquire_on_behalf_of_nowait(holder)
    except anyio.WouldBlock:
        raise Problem(ProblemKind.BUSY, refusal, retry_after_s=10) from None
    try:
        yield
    finally:
        limiter.release_on_behalf_of(holder)


@contextmanager
def stream_slot(service: Service) -> Iterator[None]:
    """A place among the event streams. Raises Problem where there is none.

    Take it in a dependency: FastAPI does not close the generator of a stream that is broken off.
    """
    if service.draining.is_set():
        raise Problem(ProblemKind.BUSY, "this process is about to end", retry_after_s=1)
    with place_in(service.stream_slots, "too many event streams are open"), service.metrics.streams.track_inprogress():
        yield


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run work that waits for the database or a disk, beside the event loop."""
    return await anyio.to_thread.run_sync(work)


def find_task(store: Store, task_key: str) -> Task:
    """A task by its key. Raises Problem where it is not known, StoreError."""
    try:
        return store.task(task_key)
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_TASK, f"no task has the key {task_key}") from error


def find_target(store: Store, target_key: str) -> Target:
    """A target by its key. Raises Problem where it is not known, StoreError."""
    try:
        return store.target(target_key)
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_TARGET, f"no target has the key {target_key}") from error
