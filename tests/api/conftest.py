"""A service under test: uvicorn in a thread on a free port, a database of its own, keys, and clients over real HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from tunewright.api import program
from tunewright.api.app import create_app
from tunewright.api.client import breaker, tiers
from tunewright.api.dashboard import page as page_routes
from tunewright.api.dashboard.task.candidate import CandidateTab
from tunewright.api.dashboard.task.view import TaskTab
from tunewright.api.http import descriptions
from tunewright.api.http.descriptions import Descriptions
from tunewright.api.http.protocol import BoundedProtocol
from tunewright.api.http.routes import lookup_service
from tunewright.api.http.service import Options, Service
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.target import Target
from tunewright.db.access import KeyScope
from tunewright.db.fleet import TunerDevice
from tunewright.db.job import Lease
from tunewright.db.store import Store
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import import ModelError
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.lookup import experience
from tunewright.tuner.models.assembly import Assembly
from tunewright.tuner.models.task_graph import ModelStep, StepKind, TaskGraph

from ..commands import Command, commands
from ..postgres import own_schema
from ..waiting import wait_for
from .examples import PlainShower
from .page import PAGE_BYTES, Page, whole
from .searched import search as search

SCOPES = frozenset(KeyScope) - {KeyScope.LOGIN}

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak to services of tests, without TLS: reading all certificates takes longer than most tests."""


def make_task(extent: int = 8) -> Task:
    """max(x, 0) over `extent` numbers."""
    x, y = Tensor("t0", (extent,), DType.F32), Tensor("t1", (extent,), DType.F32)
    body = op("max", Load("t0", (Var("a0"),), DType.F32), 0.0)
    return Task("Relu", (x,), (y,), (), (Stage("t1", (Axis("a0", extent),), body),))


def make_target(threads: int = 4) -> Target:
    return Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "+avx512f", 512, 32, threads, 49152, 1 << 20, 1 << 25)


TARGET = make_target()

CRASHED = Measurement(Status.CRASH, error="it crashed")


def measured(median_s: float = 1e-3) -> Measurement:
    """A good run."""
    return Measurement(
        Status.OK, (median_s,) * 5, median_s, 0.9 * median_s, 1.1 * median_s, 0.0, provenance={"llvm": "22.1"}
    )


def points(task: Task, target: Target = TARGET, count: int = 4) -> list[Schedule]:
    """Some schedules that are legal for the task, the default not among them."""
    [space, *_] = spaces(task, target)
    default = default_schedule(task, target)
    return [*(one for one in map(space.schedule, space.points) if one != default), default][:count]


def store_best(
    store: Store,
    task: Task,
    target: Target = TARGET,
    schedule: Schedule | None = None,
    median_s: float = 1e-3,
    confirm: bool = False,
) -> Record:
    """Have a database know a schedule for the task."""
    store.add_task(task)
    store.add_target(target)
    record = Record(task.key, target.key, schedule or points(task, target)[0], measured(median_s))
    store.record(record)
    if confirm:
        store.confirm(record)
    return record


def store_trials(store: Store, lease: Lease, count: int) -> None:
    """Store so many trials under a lease, of the first task of its job."""
    job = store.jobs.get(lease.job_id)
    key, target_key = job.spec.tasks[0].task_key, job.spec.target_key
    for number in range(count):
        store.record(Record(key, target_key, Schedule("tiled", 1, (("trial", number),)), measured()), lease)


def exact_answer(task: Task, **changes: Any) -> dict[str, Any]:
    """What a lookup answers, as JSON data, of a task that `store_best` stored."""
    good = {
        "key": task.key,
        "op": "Relu",
        "match": "exact",
        "basis": "measured",
        "confirmed": False,
        "expected_ms": 1.0,
        "interval_ms": [0.9, 1.1],
        "schedule": points(task)[0].to_json(),
        "source": None,
        "provenance": {"llvm": "22.1"},
    }
    return good | changes


@dataclass(frozen=True)
class PlainDescription:
    """What `PlainReader` finds in a model."""

    extents: list[int]
    with_weights: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"extents": self.extents}


@dataclass(frozen=True)
class PlainTasks:
    tasks: list[tuple[Task, int]]
    assembly: Assembly = field(default_factory=Assembly)
    is_whole: bool = True

    @property
    def graph(self) -> TaskGraph:
        """The tasks one after the other, each as often as it occurs."""
        numbers = [number for number, (_, count) in enumerate(self.tasks) for _ in range(count)]
        steps = [ModelStep(StepKind.INPUT, "input", type="float32[8]", size_bytes=32)]
        steps += [ModelStep(StepKind.TASK, task=task, sources=(place,)) for place, task in enumerate(numbers)]
        return TaskGraph((*steps, ModelStep(StepKind.OUTPUT, "output", sources=(len(numbers),))))


class PlainReader:
    """Reads models that are a JSON list of the extents of their tasks: quick, and without a child process."""

    def describe(self, path: Path) -> PlainDescription:
        try:
            return PlainDescription([int(extent) for extent in json.loads(path.read_bytes())])
        except (ValueError, TypeError) as error:
            raise ModelError("it is no list of numbers") from error

    def tasks(
        self,
        path: Path,
        dims: Mapping[str, int],
        target: Target | None = None,
        precision: Precision = Precision.AS_GIVEN,
    ) -> PlainTasks:
        extents = self.describe(path).extents
        if "unknown" in dims:
            raise ModelError("it has no dimension 'unknown'")
        scale = dims.get("batch", 1)
        return PlainTasks([(make_task(extent * scale), 1 + place) for place, extent in enumerate(extents)])

    def close(self) -> None:
        pass


@dataclass
class Running:
    """A service that listens."""

    app: FastAPI
    url: str
    token: str
    server: uvicorn.Server
    _clients: list[httpx.Client] = field(default_factory=list)

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def store(self) -> Store:
        return self.service.store

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def client(self, token: str | None = None, **settings: Any) -> httpx.Client:
        """A client that shows this key; none where it is empty."""
        shown = self.token if token is None else token
        headers = settings.pop("headers", {}) | ({"Authorization": f"Bearer {shown}"} if shown else {})
        made = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=TLS, **settings)
        self._clients.append(made)
        return made

    def line(self) -> socket.socket:
        """A connection to say anything on."""
        return socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), 10)

    def key(self, *scopes: KeyScope, expires_in_s: float | None = None) -> str:
        """A token of a new key."""
        return self.store.keys.create("test", scopes or SCOPES, expires_in_s)[1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


def problem(answer: httpx.Response, name: str, status: int) -> dict[str, Any]:
    """The problem document that an answer is."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    data: dict[str, Any] = answer.json()
    assert (data["type"], data["status"]) == (f"/problems/{name}", status)
    assert data["request_id"] == answer.headers["x-request-id"]
    return data


@contextmanager
def running(
    url: str, options: Options | None = None, make_reader: Callable[[], Any] | None = PlainReader
) -> Iterator[Running]:
    """Serve a database until the block ends."""
    app = create_app(url, options or Options(), make_reader)
    _, token = app.state.service.store.keys.create("all", SCOPES)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=BoundedProtocol, log_config=None, timeout_graceful_shutdown=5, proxy_headers=False)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    one = Running(app, f"http://127.0.0.1:{listening.getsockname()[1]}", token, server)
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        assert server.started
        yield one
    finally:
        one.close()
        app.state.service.drain()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Model:
    """A model for `PlainReader`."""

    extents: tuple[int, ...]

    @property
    def data(self) -> bytes:
        return json.dumps(self.extents).encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def send(client: httpx.Client, *extents: int, label: str = "m.onnx") -> str:
    """Upload a model with these tasks; its digest."""
    model = Model(extents)
    answer = client.put(f"/v1/models/{model.sha256}", content=model.data, params={"label": label})
    assert answer.status_code in (200, 201), answer.text
    return model.sha256


def enlist(store: Store, *targets: Target, tuner_id: str = "t1") -> None:
    """A tuner process with devices of these targets."""
    for target in targets:
        store.add_target(target)
    store.fleet.enlist(tuner_id, "host-1", 4711, "0.1.0", "local")
    store.fleet.report(tuner_id, [TunerDevice(f"host-1/{place}", target.key) for place, target in enumerate(targets)])


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """`with serve(options) as one:` serves a new SQLite database."""
    numbers = itertools.count()

    def begin(options: Options | None = None, url: str | None = None, **settings: Any) -> Any:
        return running(url or f"sqlite:///{tmp_path}/s{next(numbers)}.db", options, **settings)

    return begin


@pytest.fixture
def within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are counted in the middle of a minute: where one ends, they let a request more pass."""
    middle_s = time.time() // 60 * 60 + 30
    monkeypatch.setattr("limits.storage.memory.time", SimpleNamespace(time=lambda: middle_s))


@pytest.fixture
def one(serve: Callable[..., Any]) -> Iterator[Running]:
    """A service on SQLite with one target at work."""
    with serve() as started:
        enlist(started.store, make_target())
        yield started


@pytest.fixture
def client(one: Running) -> httpx.Client:
    return one.client()


@pytest.fixture
def run(one: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in this process, with the service and its key in the environment."""
    monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    return commands(program.execute, capfd)


@pytest.fixture
def shower() -> PlainShower:
    """Shows schedules for the pages of `shown_client`, without a child process."""
    return PlainShower()


@pytest.fixture
def shown_client(one: Running, shower: PlainShower) -> httpx.Client:
    one.app.state.descriptions = Descriptions(lambda: shower)
    return one.client()


def tabs_of(path: str) -> list[dict[str, str]]:
    """Queries of the tabs of the page of a task or of a schedule; one of nothing for other pages."""
    kinds: dict[str, type[StrEnum]] = {"tasks": TaskTab, "schedules": CandidateTab}
    kind = kinds.get(path.split("/")[-2])
    return [{"tab": tab.value} for tab in kind] if kind else [{}]


@pytest.fixture
def look(shown_client: httpx.Client, kit: Kit) -> Callable[..., tuple[Page, Any]]:
    """A function that looks at a page and its twin, which are checked to be whole: at all of its tabs, by default."""

    def get(path: str, **query: Any) -> tuple[Page, Any]:
        query.setdefault("target", kit.target().key)
        queries = [query] if "tab" in query else [query | tab for tab in tabs_of(path)]
        page, *others = (whole(shown_client.get(path, params=each)) for each in queries)
        for other in others:
            page = page.beside(other)
        twin = shown_client.get("/v1/pages" + path, params=query)
        assert twin.status_code == 200, twin.text
        assert len(twin.content) < PAGE_BYTES
        return page, twin.json()

    return get


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A new, empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/service.db"
        return
    with own_schema(request.getfixturevalue("postgres_url")) as made:
        yield made


class Kit:
    """What tests make services of, and do to them."""

    scopes = SCOPES
    reader = PlainReader
    task = staticmethod(make_task)
    target = staticmethod(make_target)
    model = staticmethod(lambda *extents: Model(extents))
    send = staticmethod(send)
    enlist = staticmethod(enlist)
    problem = staticmethod(problem)
    store_trials = staticmethod(store_trials)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(scope="session", autouse=True)
def _prompt_servers() -> Iterator[None]:
    """uvicorn looks ten times a second whether it should end, and twice when it does: these look at once."""

    async def sleep(time_s: float) -> None:
        await asyncio.sleep(min(time_s, 0.01))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
        yield


@pytest.fixture(scope="package", autouse=True)
def _no_base_model() -> Iterator[None]:
    """What is tested is what trials teach; the base model may say anything else of made-up tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience, "base", lambda kind: None)
        yield


@pytest.fixture(autouse=True)
def _patient_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does, no rung of a lookup is left out for want of time."""
    monkeypatch.setattr(lookup_service, "LIMIT_S", 20.0)


@pytest.fixture(autouse=True)
def _no_server_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No answer is kept and no failure remembered: a server may get the port that one of an earlier test had."""
    monkeypatch.setattr(breaker, "_breakers", {})
    monkeypatch.setattr(tiers, "_shared", {})
    monkeypatch.setattr(tiers, "_logged_notes", set())
    monkeypatch.setattr(tiers, "_home", lambda: tmp_path / "lookups")


@pytest.fixture(autouse=True)
def _pages_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test changes is on the page that it looks at next."""
    monkeypatch.setattr(page_routes, "KEEP_S", 0.0)


@pytest.fixture
def plain_shower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands describe schedules without a process for it."""
    monkeypatch.setattr(descriptions, "_describer", PlainShower)


@pytest.fixture
def prompt_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long to work out is on the page that a test looks at, and of what is there by then."""
    monkeypatch.setattr(descriptions, "RENEW_S", 0.0)
    monkeypatch.setattr(descriptions, "PATIENCE_S", 20.0)
