"""A real server, in a process of its own, for those that tune and build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tunewright.api.client import breaker

from ...service.service import Service

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with closing(Service(f"sqlite:///{folder}/log.db", folder, 60)) as made:
        made.start_api("api")
        made.await_api("api")
        yield made


@pytest.fixture
def server(service: Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its address, which this process may use."""
    monkeypatch.setattr(breaker, "_breakers", {})
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", (service.folder / "home" / "local_key").read_text().strip())
    return service.addresses["api"]


@pytest.fixture
def process() -> Callable[..., dict[str, Any]]:
    """Run one of the programs in a process that knows a server; what its last line tells."""

    def run(*arguments: object, server: str) -> dict[str, Any]:
        paths = os.pathsep.join(filter(None, [str(ROOT / ".types"), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [sys.executable, "-P", str(HERE / "programs.py"), *map(str, arguments)],
            env=os.environ | {"TUNEWRIGHT_SERVER": server, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return told

    return run
