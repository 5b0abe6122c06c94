"""`tunewright work`: a tuner process of a service, which takes jobs out of the database and runs them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from ..errors import Refused, Unavailable
from ..interrupts import DRAINED
from ..settings import settings, store_url
from ..text import counted
from .answers import CommandAnswer
from .app import command
from .options import DbOption, RayAddressOption, check_ray_address, url_check

if TYPE_CHECKING:
    from tunewright.db.store import Store


class JsonLines(logging.Formatter):
    """Formats a record as one line of ASCII, so that no text in it can begin another line or command a terminal.

    It has `timestamp` (UTC), `level`, `logger` and `event`; `job_id` where the record is about a job, and `exception`,
    a whole traceback, where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if (job_id := getattr(record, "job_id", None)) is not None:
            line["job_id"] = job_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


PATIENCE_S = 120.0
"""Seconds that a database server may be unreachable before the process ends, to be started again."""

REMOTE_STORE = "tunewright.api.client.work.remote_store"
"""The client of a server. It is above this folder, so it is found by its name when it is needed."""

WorkServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Take the jobs of this server, by a key with the scope work, instead of those of a database.",
        show_default=False,
        callback=url_check("--server", "a URL such as https://tuning.example.org"),
    ),
]

TERMINAL_FORMAT = "%(asctime)s %(levelname)s %(message)s"


@command()
def work(
    db: DbOption = None,
    server: WorkServerOption = None,
    pool: Annotated[Literal["local", "ray"], typer.Option(help="Where candidates are measured.")] = "local",
    ray_address: RayAddressOption = None,
    once: Annotated[bool, typer.Option("--once", help="End when no job is left that this machine could do.")] = False,
) -> CommandAnswer:
    """Take tuning jobs and run them, until asked to end by SIGTERM or Ctrl-C."""
    from tunewright.db.errors import Unreachable
    from tunewright.workers.pool import PoolError

    from ..search.tuning import open_machines
    from ..search.worker import Drain, TunerProcess

    check_ray_address(pool, ray_address)
    drain, environment = Drain(), settings()
    with drain.on_signals(), log_to_stderr():
        try:
            with (
                _open_store(db, server) as store,
                open_machines(pool, ray_address) as machines,
            ):
                tuner = TunerProcess(
                    store,
                    machines,
                    pool=pool,
                    lease_s=environment.lease_s,
                    objects=environment.objects,
                    drain=drain,
                )
                jobs = tuner.run(once)
                return CommandAnswer({"jobs": jobs}, render, exit_code=DRAINED if tuner.is_ordered_to_end else 0)
        except (Unreachable, PoolError) as error:
            raise Unavailable(str(error)) from error


def _open_store(db: str | None, server: str | None) -> Store:
    """The database, or that of a server. Raises Refused, StoreError."""
    if server is None:
        from tunewright.db.store import open_store

        return open_store(store_url(db), patience_s=PATIENCE_S)
    if db is not None:
        raise Refused("jobs come from one place, so give one of --db and --server")
    store: Store = import_module(REMOTE_STORE).open_remote_store(server, PATIENCE_S)
    return store


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Log to standard error: as text on a terminal, else as lines of JSON."""
    log, handler = logging.getLogger("tunewright"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(TERMINAL_FORMAT) if sys.stderr.isatty() else JsonLines())
    before = log.level, log.propagate
    log.addHandler(handler)
    log.propagate = False
    log.setLevel(min(log.level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def render(console: Console, data: Mapping[str, Any]) -> None:
    """Print the number of jobs."""
    console.print(counted(data["jobs"], "job"))
