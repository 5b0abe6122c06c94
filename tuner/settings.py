"""Settings from the environment, read on demand and never at import."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from tunewright.db.bounds import LONGEST_LEASE_S
from tunewright.db.pruning.policy import LEAST_BEST, MOST_BEST, MOST_DAYS, RetentionPolicy

DEBUG_LADDER = ("", "timing", "schedule", "ir", "llvm", "assembly", "rewrites")
"""The loggers `tunewright.<name>` that `DEBUG=1..6` switches on, one more at each step."""

LEASE_S, SHORTEST_LEASE_S = 30.0, 1.0
"""Default duration of a lease, and the shortest one that the environment may set."""

FOR_EVER = "forever"
"""The value of a setting of what is kept how long that is never removed."""

PATIENCE_S = 10.0
"""Seconds that a command waits for an unreachable database server."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The values of the environment."""

    home: Path  # TUNEWRIGHT_HOME: where the database and the built kernels are kept
    db: str  # TUNEWRIGHT_DB: SQLAlchemy URL of the tuning database
    debug: int  # DEBUG: 0 (silent) to 6
    lease_s: float = LEASE_S  # TUNEWRIGHT_LEASE_S: how long a job stays with a process that went silent
    server: str = ""  # TUNEWRIGHT_SERVER: URL of the server that commands ask
    api_key: str = field(default="", repr=False)  # TUNEWRIGHT_API_KEY: what they show it
    webhook_hosts: str = ""  # TUNEWRIGHT_WEBHOOK_HOSTS: where `serve` may send webhooks to besides the public Internet
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)  # TUNEWRIGHT_KEEP_*: what is kept how long
    release_key_file: str = ""  # TUNEWRIGHT_RELEASE_KEY: file of the key that releases of the log are signed with

    @property
    def objects(self) -> Path:
        """Folder of the object code cache."""
        return self.home / "objects"

    @property
    def images(self) -> Path:
        """Folder of the compiled models."""
        return self.home / "images"

    @property
    def picks(self) -> Path:
        """Folder of the cost model's picks."""
        return self.home / "picks"

    @property
    def rates(self) -> Path:
        """Folder of the peak rates that machines were found to reach."""
        return self.home / "rates"

    @property
    def local_key(self) -> Path:
        """File of the key that `serve` makes for its account, and that commands show to a server on this machine."""
        return self.home / "local_key"

    @property
    def release_key(self) -> Path:
        """File of the key that `serve` signs releases of the log with."""
        return Path(self.release_key_file) if self.release_key_file else self.home / "release_key"


def store_url(db: str | None) -> str:
    """The URL of the database to write to: `db`, else that of the environment.

    Creates the data folder for the default database. Raises OSError where that fails.
    """
    environment = settings()
    url = db or environment.db
    if url == _in(environment.home):
        environment.home.mkdir(parents=True, exist_ok=True)
    return url


def _in(home: Path) -> str:
    """The URL of the database in a data folder."""
    return f"sqlite:///{home / 'tuning.db'}"


def settings(env: Mapping[str, str] = os.environ) -> Environment:
    """The settings in force. Raises ValueError, in one line, on a value that means nothing."""
    home = Path(env.get("TUNEWRIGHT_HOME") or user_data_path("tunewright"))
    debug = env.get("DEBUG", "0") or "0"
    if not debug.isdigit() or int(debug) >= len(DEBUG_LADDER):
        raise ValueError(f"DEBUG={debug!r} is no number from 0 to {len(DEBUG_LADDER) - 1}")
    return Environment(
        home=home,
        db=env.get("TUNEWRIGHT_DB") or _in(home),
        debug=int(debug),
        lease_s=_lease_s(env.get("TUNEWRIGHT_LEASE_S") or str(LEASE_S)),
        server=env.get("TUNEWRIGHT_SERVER", ""),
        api_key=env.get("TUNEWRIGHT_API_KEY", ""),
        webhook_hosts=env.get("TUNEWRIGHT_WEBHOOK_HOSTS", ""),
        retention=_retention(env),
        release_key_file=env.get("TUNEWRIGHT_RELEASE_KEY", ""),
    )


def _retention(env: Mapping[str, str]) -> RetentionPolicy:
    values: dict[str, Any] = {}
    for variable, (name, read) in KEPT.items():
        if text := env.get(variable):
            values[name] = None if text == FOR_EVER else read(variable, text)
    return RetentionPolicy(**values)


def _days(variable: str, text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0.0 <= days <= MOST_DAYS:
        raise ValueError(f"{variable}={text!r} is no number from 0 to {MOST_DAYS:,}, nor {FOR_EVER}")
    return days


def _best(variable: str, text: str) -> int:
    try:
        best = int(text)
    except ValueError:
        best = -1
    if not LEAST_BEST <= best <= MOST_BEST:
        raise ValueError(f"{variable}={text!r} is no whole number from {LEAST_BEST} to {MOST_BEST:,}, nor {FOR_EVER}")
    return best


KEPT: Mapping[str, tuple[str, Callable[[str, str], float]]] = {
    "TUNEWRIGHT_KEEP_EVENTS_DAYS": ("events_days", _days),
    "TUNEWRIGHT_KEEP_DELIVERIES_DAYS": ("deliveries_days", _days),
    "TUNEWRIGHT_KEEP_MODELS_DAYS": ("models_days", _days),
    "TUNEWRIGHT_KEEP_TRIALS": ("best", _best),
    "TUNEWRIGHT_KEEP_TRIALS_DAYS": ("trials_days", _days),
}
"""The variables of what is kept how long, with the field of `RetentionPolicy` and how its value is read."""


def _lease_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        bounds = f"from {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:,.0f}"
        raise ValueError(f"TUNEWRIGHT_LEASE_S={text!r} is no number of seconds {bounds}")
    return seconds
