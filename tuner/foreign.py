"""Modules of other runtimes, imported without what they do on the side."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any


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
