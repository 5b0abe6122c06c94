"""Peer: a runtime with a model loaded, and what it means that it can't run one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol


class PeerFailed(Exception):
    """A peer can't read or run the model: what it said, on one line."""


FOREIGN_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What a runtime written in Python raises where it meets what it doesn't know."""


class Peer(Protocol):
    """A runtime with a model loaded and compiled."""

    @property
    def version(self) -> str: ...

    def run(self) -> list[Any]:
        """The model's outputs, in its order, for the inputs given when it was opened. Raises PeerFailed."""
        ...


Opener = Callable[[Path | bytes, Mapping[str, Any], int, Mapping[str, int]], Peer]
"""Loads a model: its path or bytes, all inputs by label in the model's order, threads, open dimensions by name."""


def import_silent(module: str) -> Any:
    """The module of a runtime, kept from reporting to its makers and from leaving files in the user's home.

    Importing ONNX Runtime or OpenVINO is enough for either, so that is too late to switch it off.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # OpenVINO then goes without it
    return import_module(module)


def exceptions(module: str) -> tuple[type[Exception], ...]:
    """The exception types of a module whose own have no base in common."""
    values = vars(import_module(module)).values()
    return tuple(v for v in values if isinstance(v, type) and issubclass(v, Exception))


def one_line(error: Exception) -> str:
    """What an error says, cut to a line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
