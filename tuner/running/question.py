"""What decides how a session runs, as one text, told without reading the model or the database. Light to import.

Files are told apart by identity, size and times, as build tools do. A file that changed a moment ago is not recognised:
it may change once more without looking different.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.codegen.target import Target

SETTLED_NS = 2_000_000_000
"""How old a change must be. Clocks of file systems are this coarse."""

SOURCES = ("codegen", "graph", "search_space", "db", "tuner")
"""The folders whose code has a say in what becomes of a model."""

LIBRARIES = ("onnx", "llvmlite", "numpy")
"""The packages that have one."""

SQLITE = "sqlite:///"
"""How the URL of a database begins that is a file of this machine."""

EXTERNAL = b"location"
"""Each weight outside of a model's file has an entry of this name in it."""

BLOCK_BYTES = 1 << 20
"""What is read of a model's file at a time: mapped, all of it would count as memory of this process."""


def question(
    model: Path | str | bytes, dims: Mapping[str, int], target: Target, db: str, lock: Path | None
) -> str | None:
    """The text; None where that much does not decide it, as the database is none of a file, or something is in flux.

    Schedules come from `lock`, or else from the database at the URL `db`.
    """
    sources = code_digest()
    read = hashlib.sha256(model).hexdigest() if isinstance(model, bytes) else _file(Path(model))
    place = _database(db) if lock is None else _file(lock)
    if sources is None or read is None or place is None:
        return None
    return json.dumps([sources, read, sorted(dims.items()), target.to_json(), place])


def image_name(model_sha256: str, target: Target, steps: Sequence[Any]) -> str | None:
    """The text that decides an image: the model, the machine, and the steps as plain data, which dimensions decide too.

    None where the code that makes images can't be seen.
    """
    sources = code_digest()
    return None if sources is None else json.dumps([sources, model_sha256, target.to_json(), steps])


def is_whole(model: Path | str | bytes) -> bool:
    """Whether all weights are surely in the model's own bytes."""
    if isinstance(model, bytes):
        return EXTERNAL not in model
    end = b""  # of what was read before: the word may lie across
    with Path(model).open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            if EXTERNAL in end + block:
                return False
            end = block[-len(EXTERNAL) :]
    return True


@cache
def code_digest() -> str | None:
    """Digest of the code that makes images, and of which packages it uses; None where the code can't be seen."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        paths = [Path(path) for path in import_module(f"tunewright.{folder}").__path__]
        files = sorted(file for path in paths for kind in ("*.py", "*.ll") for file in path.rglob(kind))
        if not files:
            return None
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)}\n".encode() + content)
    for name in LIBRARIES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            return None
        digest.update(f"{spec.origin} {file_state(Path(spec.origin))}\n".encode())
    digest.update(np.__version__.encode())
    return digest.hexdigest()


def _database(url: str) -> list[Any] | None:
    """The state of a SQLite database that nobody is writing to at this moment."""
    path = url.removeprefix(SQLITE)
    if path == url or not path or path.startswith((":", "file:")) or "?" in path:
        return None
    if Path(f"{path}-journal").exists():
        return None
    states = [_file(Path(path)), _file(Path(f"{path}-wal"))]
    return None if None in states else states


def _file(path: Path) -> list[Any] | None:
    """What tells a file from all others and from what it was and will be; None if it changed a moment ago."""
    state = file_state(path)
    if state is not None and time.time_ns() - max(state[-2:]) < SETTLED_NS:
        return None
    return [os.path.abspath(path), state]  # noqa: PTH100 - links stay, they are part of the question


def file_state(path: Path) -> list[int] | None:
    """What tells a file from another one in its place. None where there is no such file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
