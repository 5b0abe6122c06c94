"""Settings: what the environment may say, read when asked for and never at import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path

DEBUG_LADDER = ("", "timing", "schedule", "ir", "llvm", "assembly", "rewrites")
"""What each step of `DEBUG=1..6` adds: the logger `tunewright.<name>` is switched on."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the environment sets."""

    home: Path  # TUNEWRIGHT_HOME: where the database and the built kernels are kept
    db: str  # TUNEWRIGHT_DB: SQLAlchemy URL of the tuning database
    debug: int  # DEBUG: 0 (silent) to 6

    @property
    def objects(self) -> Path:
        """Folder of the object code cache."""
        return self.home / "objects"


def settings(env: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force. Raises ValueError, in one line, on a value that means nothing."""
    home = Path(env.get("TUNEWRIGHT_HOME") or user_data_path("tunewright"))
    debug = env.get("DEBUG", "0") or "0"
    if not debug.isdigit() or int(debug) >= len(DEBUG_LADDER):
        raise ValueError(f"DEBUG={debug!r} is no number from 0 to {len(DEBUG_LADDER) - 1}")
    return Settings(home, env.get("TUNEWRIGHT_DB") or f"sqlite:///{home / 'tuning.db'}", int(debug))
