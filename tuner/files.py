"""Files, and the code itself, as what tells one version of them from another. Light to import."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SOURCES = ("codegen", "graph", "search_space", "db", "tuner")
"""The folders whose code decides the image of a model."""

CODE_SUFFIXES = (".py", ".ll")
"""Suffixes of the files with code."""

LIBRARIES = ("onnx", "llvmlite", "numpy")
"""The packages that decide it too."""


def file_state(path: Path) -> list[int] | None:
    """Device, inode, size and times of a file. None where there is no such file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


@cache
def code_digest(folders: tuple[str, ...] = SOURCES) -> str | None:
    """Digest of the state of the code of some folders and of LIBRARIES; None where there is no code.

    By the states of the files: to read all of them would take a good part of the time that a kept model opens in.
    """
    digest = hashlib.sha256()
    for folder in folders:
        paths = import_module(f"tunewright.{folder}").__path__
        states = sorted(state for path in paths for state in _code_states(path))
        if not states:
            return None
        digest.update("\n".join(states).encode())
    for name in LIBRARIES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            return None
        digest.update(_code_state(spec.origin, Path(spec.origin).stat()).encode())
    digest.update(np.__version__.encode())
    return digest.hexdigest()


def _code_state(path: str, status: os.stat_result) -> str:
    """Without the device and inode, which are others at each start of a container."""
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _code_states(folder: str) -> Iterator[str]:
    """The state of each file of code in a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(CODE_SUFFIXES):
                yield _code_state(entry.path, entry.stat())
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _code_states(entry.path)
