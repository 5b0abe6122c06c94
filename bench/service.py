"""A service for a benchmark: a real process on a database, without limits on requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVE = """
from tunewright.api.serve import ServeOptions, serve
from tunewright.api.http.service import Options
limits = Options(changes_per_minute=10**9, requests_per_minute=10**9, most_unfinished=10**9)
options = ServeOptions(port=0, redis_port=0, tuners=0, service=limits)
serve(options, lambda address: print(address.url, address.redis_url, flush=True))
"""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A running service."""

    url: str
    redis_url: str  # without the key that is the password
    key: str  # the key for commands of this machine
    pid: int


@contextmanager
def run_service(db: str, home: Path) -> Iterator[ServiceProcess]:
    """A service on the database at an SQLAlchemy URL. Its log is in its data folder `home`.

    Raises RuntimeError where it does not start.
    """
    variables = {"TUNEWRIGHT_HOME": str(home), "TUNEWRIGHT_DB": db, "PYTHONPATH": os.pathsep.join(sys.path)}
    log = home / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVE],
            stdout=subprocess.PIPE,
            stderr=output,
            env=os.environ | variables,
            text=True,
        )
    try:
        assert process.stdout is not None
        addresses = process.stdout.readline().split()
        if not addresses:
            raise RuntimeError(f"the service did not start: {log.read_text(errors='replace')[-2000:]}")
        url, redis_url = addresses
        yield ServiceProcess(url, redis_url, (home / "local_key").read_text().strip(), process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)
