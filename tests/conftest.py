"""What every test gets: folders of its own, and property tests that do not depend on the machine's speed.

`golden` compares text with the file kept in tests/golden; `pytest --update-golden` keeps the new text instead.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from . import short_timing
from .memory import quick_folder

if TYPE_CHECKING:
    from .postgres import Server

# Peers write into the home when they are imported, some tests import them while they are collected.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

# By default a fifth of the time of all tests goes into looking for garbage.
gc.set_threshold(50_000, 20, 20)

# No deadline, since a shared machine has slow moments; fixed examples in CI, so that a red run can be repeated.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

# A shell starts what runs in its background with interrupts ignored, and children inherit that: some wait for one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's records and caches out of the tests, in child processes too."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(home / name.lower()))
        # Hundreds of processes start in a run: where nothing compiled may be kept, each would compile the package anew.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _brief_timing() -> Iterator[None]:
    """In this process; those that tests start take their time, unless they are started as `short_timing`."""
    with pytest.MonkeyPatch.context() as patch:
        short_timing.shorten(patch.setattr)
        yield


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, gone after the test; as pytest makes it where there is no room."""
    folder = quick_folder()
    if folder is None:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="tw-", dir=folder)).resolve()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for all tests."""
    from .postgres import Server  # most runs of some tests need none

    with closing(Server()) as server:
        yield server.url


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A PostgreSQL server that the test may restart."""
    from .postgres import Server

    with closing(Server()) as server:
        yield server


_SERVERS = frozenset({"browser", "own_server", "postgres_url", "ray_cluster", "serve", "site"})
"""Fixtures that start something outside of the process."""

_LONG_FOLDERS = ("browser", "deploy", "onnx_backend")


def _is_fast(item: pytest.Item) -> bool:
    """Whether a test starts no server, Ray or browser, and is of no long series."""
    fixtures = set(getattr(item, "fixturenames", ()))
    has_mark = any(item.get_closest_marker(mark) for mark in ("slow", "ray", "postgres", "gpu"))
    return not (has_mark or fixtures & _SERVERS or "postgres" in item.name)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast, folders of long series are not even read: to make ONNX's cases takes seconds."""
    is_long = collection_path.name in _LONG_FOLDERS and collection_path.parent == Path(__file__).parent
    return True if is_long and config.getoption("--fast") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests begin, and those with Ray, so that no core waits for them in the end; with --fast there are none."""
    if config.getoption("--fast"):
        config.hook.pytest_deselected(items=[item for item in items if not _is_fast(item)])
        items[:] = filter(_is_fast, items)

    def rank(item: pytest.Item) -> int:
        return next((n for n, mark in enumerate(("slow", "ray")) if item.get_closest_marker(mark)), 2)

    items.sort(key=rank)
    lost = [item.nodeid for item in items if item.get_closest_marker("ray") and _group(item.nodeid) != "ray"]
    if lost:
        raise pytest.UsageError(f"these start Ray, and their names do not say so: {lost}")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no garbage is looked for there."""
    gc.collect()
    gc.freeze()


def _group(nodeid: str) -> str:
    file, _, rest = nodeid.partition("::")
    return "ray" if "test_ray_" in file or "[ray_pool" in rest else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run on several cores, a file stays together, and all that starts Ray: there is one cluster a run.

    By their names: the groups of pytest-xdist 3.8 are lost on pytest 9.2, which no longer lets it rename tests.
    """
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Files(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False  # it would begin with the files of most tests
    return Files(config, log)


GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out what starts servers, Ray or a browser, or is long")
    parser.addoption("--update-golden", action="store_true", help="keep what the code gives now as the golden text")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is that of the file tests/golden/name."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}; pytest --update-golden makes it"
        assert text == path.read_text(encoding="utf-8"), (
            f"not as in {path}; if it should change: pytest --update-golden"
        )

    return compare
