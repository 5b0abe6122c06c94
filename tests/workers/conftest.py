"""Children that can import the plugin `planted`, and a task to measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.workers.local import LocalPool
from tunewright.workers.pool import Limits, Pool
from tunewright.workers.ray.cluster import RayCluster
from tunewright.workers.ray.pool import RayPool

from ..waiting import wait_for

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _importable_in_children(devices_folder: Path) -> Iterator[None]:
    """Tests run with nothing installed, and the plugin lies here."""
    paths = [str(HERE.parents[1] / ".types"), str(HERE), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("PLANTED_DEVICES", str(devices_folder))
        patch.setenv("RAY_health_check_period_ms", "400")  # that the end of a node is noticed soon, and only its end
        patch.setenv("RAY_health_check_failure_threshold", "10")
        patch.setenv("RAY_health_check_initial_delay_ms", "0")
        yield


@pytest.fixture(scope="session")
def devices_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the plugin and the tests tell each other of devices. The only one of this process is called "own"."""
    return tmp_path_factory.mktemp("devices")


Broken = Callable[[str], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def broken(devices_folder: Path) -> Broken:
    """`with broken(name)`: the device of that name fails whatever is done on it."""

    @contextmanager
    def break_it(name: str) -> Iterator[None]:
        file = devices_folder / f"{name}.broken"
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    return break_it


AsItTimes = Callable[[str, Callable[[], None]], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def as_it_times(devices_folder: Path) -> AsItTimes:
    """`with as_it_times(name, act)`: once, as soon as the device of that name begins to time, `act` is called."""

    @contextmanager
    def watch(name: str, act: Callable[[], None]) -> Iterator[None]:
        file = devices_folder / f"{name}.timing"
        file.unlink(missing_ok=True)

        def wait_and_act() -> None:
            wait_for(file.exists)
            act()

        with ThreadPoolExecutor(1) as watcher:
            acted = watcher.submit(wait_and_act)
            yield
            acted.result()

    return watch


@pytest.fixture(scope="session")
def limits() -> Limits:
    """Short ones, so that failures are quick, and long enough for a machine that has other things to do."""
    return Limits(build_s=6.0, run_s=5.0, reference_s=20.0, memory_bytes=2 << 30, timing_s=0.02, quarantine_s=1.0)


@pytest.fixture(scope="session")
def local_pool(target: Target, limits: Limits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    with LocalPool(target, tmp_path_factory.mktemp("objects"), limits, ["planted"]) as pool:
        yield pool


@pytest.fixture(scope="session")
def ray_cluster(limits: Limits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """The only one of the session."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with RayCluster(tmp_path_factory.mktemp("objects"), limits, ["planted"]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray_pool(target: Target, ray_cluster: RayCluster) -> Iterator[RayPool]:
    with ray_cluster.pool(target) as pool:
        yield pool


@pytest.fixture(scope="session")
def target() -> Target:
    return detect(1)


def product_task(rows: int = 24, depth: int = 32, columns: int = 40) -> Task:
    """A matrix product whose second factor is constant, so that it is packed."""
    x = Tensor("x", (rows, depth), DType.F32)
    w = Tensor("w", (depth, columns), DType.F32, constant=True)
    y = Tensor("y", (rows, columns), DType.F32)
    i, j, k = Var("i"), Var("j"), Var("k")
    body = Load("x", (i, k), DType.F32) * Load("w", (k, j), DType.F32)
    axes = (Axis("i", rows), Axis("j", columns))
    return Task("MatMul", (x, w), (y,), (), (Stage("y", axes, body, (Axis("k", depth),), "sum"),))


@pytest.fixture(scope="session")
def task() -> Task:
    return product_task()


class Make:
    """Candidates of one task, and what is asked of their measurements."""

    def __init__(self, task: Task, target: Target) -> None:
        self.task = task
        self.target = target

    def of_other_task(self, op: str) -> Make:
        """The same for a product of another size, under another name."""
        return Make(replace(product_task(rows=len(op)), op=op), self.target)

    def default(self) -> Candidate:
        return Candidate(self.task, self.target, default_schedule(self.task, self.target))

    def planted(self, fault: str) -> Candidate:
        return Candidate(self.task, self.target, Schedule(f"planted.{fault}", 1, ()))

    def measured(self, pool: Pool, candidate: Candidate) -> Measurement:
        """The one measurement of one candidate."""
        [(same, measurement)] = pool.measure([candidate])
        assert same == candidate
        return measurement

    def sound(self, measurement: Measurement) -> bool:
        """Whether it says everything that the measurement of a working candidate says."""
        m = measurement
        assert m.status is Status.OK, m
        assert m.median_s is not None and m.low_s is not None and m.high_s is not None
        assert 0 < m.low_s <= m.median_s <= m.high_s < 1
        assert len(m.samples_s) >= 5
        assert m.max_rel_err is not None and m.max_rel_err < 1e-5
        assert m.build_s > 0 and len(m.object_sha256) == 64 and m.provenance["llvm"] and not m.error
        return True


@pytest.fixture(scope="session")
def make(task: Task, target: Target) -> Make:
    return Make(task, target)


@pytest.fixture(scope="session")
def other_task() -> Task:
    return product_task(rows=7, depth=5, columns=3)


@pytest.fixture(scope="session")
def other_target(target: Target) -> Target:
    return replace(target, l1_bytes=target.l1_bytes * 2)
