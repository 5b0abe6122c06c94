"""The log of a server as the database of TVM's MetaSchedule: who tunes, and who builds, knows what others timed.
Read first: `database`.
May import: what `integrations` may.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .database import Database
    from .files import entries_of
    from .strategy import search

__all__ = ["Database", "entries_of", "search"]

_HOMES = {"Database": ".database", "entries_of": ".files", "search": ".strategy"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: TVM takes seconds, and `entries_of` does without."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
