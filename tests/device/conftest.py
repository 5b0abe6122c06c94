"""A real GPU of this machine: where there is none, the tests of this folder are skipped, and say what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tunewright.codegen.target import CUDA, Target
from tunewright.tuner.errors import Refused
from tunewright.tuner.targets import local_target
from tunewright.workers.local import LocalPool


@pytest.fixture(scope="session")
def target() -> Target:
    """The GPU that commands would take."""
    try:
        return local_target(CUDA)
    except Refused as refused:
        pytest.skip(str(refused))


@pytest.fixture(scope="session")
def pool(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    """Children that build, check and time for it. Their checks are the oracle's."""
    with LocalPool(target, tmp_path_factory.mktemp("objects")) as local_pool:
        yield local_pool


@pytest.fixture
def home(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, on a machine with a GPU."""
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    return tmp_path
