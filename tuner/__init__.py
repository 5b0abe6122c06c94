"""The loop: ask for schedules, rank, measure, learn, stop; then compile the model. The command line too.
Read first: `jobs.job`.
May import: every folder but `api`. Home of typer and rich.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jobs.tuning import tune
    from .running.session import InferenceSession

__all__ = ["InferenceSession", "tune"]

_HOMES = {"InferenceSession": ".running.session", "tune": ".jobs.tuning"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: the command line starts without what they need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
