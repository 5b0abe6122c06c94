"""Databases to test on, and small tasks, targets and records to put into them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import event

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.db.inspection import Inspection, inspect
from tunewright.db.job import JobSpec, SpecTask
from tunewright.db.store import Store, open_store
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space import sketches
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.space import Columns, Knob, Space, Tiling

from ..postgres import own_schema

DATABASES = ["sqlite", "memory", pytest.param("postgres", marks=pytest.mark.postgres)]
SHARED_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]

FROZEN = sorted((Path(__file__).parent / "frozen").glob("*.sqlite"))
"""A database of every schema that was released, see `freeze`."""


class Samples:
    """Things to store. Equal arguments give equal things."""

    def task(self, extent: int = 8) -> Task:
        """max(x, 0) over `extent` numbers."""
        x, y = Tensor("t0", (extent,), DType.F32), Tensor("t1", (extent,), DType.F32)
        body = op("max", Load("t0", (Var("a0"),), DType.F32), 0.0)
        return Task("Relu", (x,), (y,), (), (Stage("t1", (Axis("a0", extent),), body),))

    def target(self, threads: int = 2, kind: str = "cpu") -> Target:
        if kind == CUDA:
            return Target.of_gpu(KNOWN["sm_90a"])
        return Target(kind, "x86_64-unknown-linux-gnu", "znver5", "+avx512f", 512, 32, threads, 49152, 1 << 20, 1 << 25)

    def schedule(self, number: int = 0) -> Schedule:
        return Schedule("tiled", 1, (("tile_m", number), ("a", 1)))  # not in alphabetical order

    def measurement(self, median_s: float = 1e-3) -> Measurement:
        return Measurement(
            Status.OK,
            samples_s=(median_s, median_s * 1.1),
            median_s=median_s,
            low_s=median_s,
            high_s=median_s * 1.1,
            max_rel_err=1e-7,
            build_s=0.02,
            object_sha256="ab" * 32,
            provenance={"machine": "m1"},
            incumbent_s=median_s * 1.2,
            warm_s=median_s * 0.9,
        )

    def record(
        self, number: int = 0, measurement: Measurement | None = None, extent: int = 8, threads: int = 2
    ) -> Record:
        """A trial of schedule `number`; by default it took 1 ms and `number` us."""
        measurement = measurement or self.measurement(1e-3 + number * 1e-6)
        return Record(self.task(extent).key, self.target(threads).key, self.schedule(number), measurement)

    def spec(self, number: int = 0, threads: int = 2) -> JobSpec:
        """A job of the tasks of extents 9 and 8. Another number is another model."""
        tasks = (SpecTask(self.task(9).key, 3), SpecTask(self.task(8).key, 1))
        settings = {"seed": 1, "deep": {"minutes": 1.5}}
        return JobSpec(f"{number:064x}", self.target(threads).key, tasks, settings)

    def fill(self, store: Store) -> None:
        """Make the tasks of extents 8 and 9 and the targets of 2 and 4 threads known."""
        for extent in (8, 9):
            store.add_task(self.task(extent))
        for threads in (2, 4):
            store.add_target(self.target(threads))


class Clock:
    """A clock for `Database.clock` that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, time_s: float) -> None:
        self.now += timedelta(seconds=time_s)


Result = TypeVar("Result")


def in_threads(work: Callable[[int], Result], count: int) -> list[Result]:
    """What `work(0)` to `work(count - 1)` return, all begun at once."""
    start = threading.Barrier(count)

    def run(number: int) -> Result:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@contextmanager
def selected(store: Store) -> Iterator[list[tuple[str, Any]]]:
    """The queries that are executed meanwhile, with their parameters."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT"):
            statements.append((statement, parameters))

    event.listen(store.database.engine, "before_cursor_execute", note)
    yield statements
    event.remove(store.database.engine, "before_cursor_execute", note)


def plan(store: Store, query: tuple[str, Any]) -> str:
    """How the database answers a query."""
    explain = "EXPLAIN QUERY PLAN " if store.database.is_sqlite else "EXPLAIN (COSTS OFF) "
    with store.database.engine.connect() as connection:
        return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(explain + query[0], query[1]))


class Tiled:
    """A sketch whose points are those of `Samples.schedule`, for any task."""

    name, version = "tiled", 1

    def applies(self, task: Task, target: Target) -> bool:
        return True

    def space(self, task: Task, target: Target) -> Space:
        knobs = (Knob("tile_m", tuple(range(1000))), Knob("a", (1,)))
        return Space(self.name, self.version, knobs, self._legal, self._tiling, {"tile_m": 0, "a": 1})

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        raise NotImplementedError

    def _legal(self, columns: Columns) -> NDArray[np.bool_]:
        return np.ones(1, np.bool_)

    def _tiling(self, columns: Columns) -> Tiling:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _knows_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules of `Samples` are legal points: else no import would take them for more than history."""
    monkeypatch.setattr(sketches, "SKETCHES", (*sketches.SKETCHES, Tiled()))


@pytest.fixture(scope="session")
def samples() -> Samples:
    return Samples()


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """A function that gives the URL of a new, empty database of a kind: "sqlite", "memory" or "postgres"."""
    numbers = itertools.count()
    with ExitStack() as schemas:

        def make(kind: str) -> str:
            match kind:
                case "memory":
                    return "sqlite://"
                case "sqlite":
                    return f"sqlite:///{tmp_path}/d{next(numbers)}.db"
                case _:
                    return schemas.enter_context(own_schema(request.getfixturevalue("postgres_url")))

        yield make


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> str:
    """Every kind of database."""
    return make_url(request.param)


@pytest.fixture(params=SHARED_DATABASES)
def shared_url(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> str:
    """The kinds that several processes can open."""
    return make_url(request.param)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def filled(store: Store, samples: Samples) -> Store:
    """A store that knows what jobs of `samples.spec` are about."""
    samples.fill(store)
    return store


@pytest.fixture(scope="session")
def make_clock() -> type[Clock]:
    return Clock


@pytest.fixture
def clock(store: Store) -> Clock:
    """The clock of the store from now on."""
    store.database.clock = fake = Clock()
    return fake


@pytest.fixture
def look() -> Callable[[str], Inspection]:
    """What `inspect` finds of a database that is there."""

    def found(url: str) -> Inspection:
        inspection = inspect(url)
        assert inspection is not None
        return inspection

    return found
