"""The search loop, sessions that run compiled models, lookups, explanations, and the command line.
Read first: `search.job`.
May import: every folder but `api`. Home of typer and rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .search.tuning import tune
    from .session.session import InferenceSession

__all__ = ["InferenceSession", "tune"]

_HOMES = {"InferenceSession": ".session.session", "tune": ".search.tuning"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: the command line starts without what they need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
