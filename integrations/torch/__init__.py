"""A backend for `torch.compile`, which runs graphs of PyTorch on Tunewright's kernels.
Read first: `backend`.
May import: what `integrations` may.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .captured import graphs
    from .recording import tuning

__all__ = ["graphs", "tuning"]

_HOMES = {"graphs": ".captured", "tuning": ".recording"}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: PyTorch's exporter takes a second."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
