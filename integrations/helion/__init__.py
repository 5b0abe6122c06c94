"""The log as the remote cache of Helion: `HELION_REMOTE_CACHE_BACKEND=tunewright.integrations.helion.Backend`.
Read first: `backend`.
May import: what `integrations` may; Helion itself is not needed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import HelionBackend as Backend

__all__ = ["Backend"]

REMOTE_CACHE = "helion.autotuner.remote_cache"
"""Helion's module that asks for the class by its name, and takes subclasses of its own abstract one alone."""


def __getattr__(name: str) -> Any:
    """The class, as one of Helion's backends where Helion is there: only then is there anything to be one of."""
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .backend import HelionBackend

    if (helion := sys.modules.get(REMOTE_CACHE)) is not None:
        helion.RemoteCacheBackend.register(HelionBackend)
    return HelionBackend
