"""`tunewright work`: take jobs out of the database and run them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from tunewright.db.errors import Unreachable
from tunewright.db.sql_store import open_store
from tunewright.workers.pool import PoolError

from ..errors import Unavailable
from ..jobs.tuning import open_machines
from ..jobs.work import Draining, Work
from ..settings import settings
from ..text import counted
from .json_log import JsonLines

PATIENCE_S = 120.0
"""How long a database server may be away before the process ends: whoever started it starts another."""

TERMINAL_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def work(db: str | None, pool: str, ray_address: str | None, once: bool = False) -> dict[str, Any]:
    """Work until asked to end: how many jobs were taken. Raises Unavailable where database or machines went away."""
    draining, given = Draining(), settings()
    with draining.on_signals(), logged():
        try:
            with (
                open_store(db or given.db, patience_s=PATIENCE_S) as store,
                open_machines(pool, ray_address) as machines,
            ):
                tuner = Work(
                    store,
                    machines,
                    pool=pool,
                    lease_s=given.lease_s,
                    objects=given.objects,
                    draining=draining,
                )
                return {"jobs": tuner.run(once)}
        except (Unreachable, PoolError) as error:
            raise Unavailable(str(error)) from error


@contextmanager
def logged() -> Iterator[None]:
    """What is told of jobs goes to standard error: as text where that is a terminal, else as lines of JSON."""
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
    """How many jobs it was."""
    console.print(counted(data["jobs"], "job"))
