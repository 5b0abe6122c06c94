"""Files, and the code itself, as what tells one version of them from another. Light to import."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from tunewright.codegen.write_faults import naming

SOURCES = ("codegen", "graph", "search_space", "db", "tuner")
"""The folders whose code decides the image of a model."""

CODE_SUFFIXES = (".py", ".ll")
"""Suffixes of the files with code."""

LIBRARIES = ("onnx", "llvmlite", "numpy")
"""The packages that decide it too."""


def write_whole(path: Path, content: bytes | bytearray) -> None:
    """Make or renew a file, in one step for readers. Raises OSError, which names it; nothing is left of it then."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to be written, which readers see once it is whole. Nothing is left of it where that fails.

    What is there and is no file, such as a pipe, is written to as it is. Raises OSError, which names it.
    """
    if path.exists() and not path.is_file():
        with naming(path), path.open("wb") as file:
            yield file
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            with draft.open("wb") as file:
                yield file
            draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def file_state(path: Path) -> list[int] | None:
    """Device, inode, size and times of a file. None where there is no such file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


@cache
def code_digest(folders: tuple[str, ...] = SOURCES) -> str | None:
    """Digest of the code of some folders and of LIBRARIES; None where it is not in files, as in a zipped package.

    By sizes and times of the files: to read all of them would take a good part of the time that a kept model opens in.
    """
    try:
        return _digest_of(folders)
    except OSError:
        return None


def _digest_of(folders: tuple[str, ...]) -> str | None:
    digest = hashlib.sha256()
    for folder in folders:
        paths = import_module(f"tunewright.{folder}").__path__
        files = sorted(file for path in paths for file in _code_files(path))
        if not files:
            return None
        is_clamped = len({file.time_ns for file in files}) == 1  # as in layers of containers: they tell of no change
        for file in files:
            digest.update(f"{file.path} {file.size_bytes} {file.time_ns}\n".encode())
            digest.update(Path(file.path).read_bytes() if is_clamped else b"")
    for name in LIBRARIES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            return None
        status = Path(spec.origin).stat()
        digest.update(f"{spec.origin} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update(np.__version__.encode())
    return digest.hexdigest()


class _CodeFile(NamedTuple):
    """A file of code, without the device and inode, which are others at each start of a container."""

    path: str
    size_bytes: int
    time_ns: int  # of its last change


def _code_files(folder: str) -> Iterator[_CodeFile]:
    """The files of code in a folder. Raises OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(CODE_SUFFIXES):
                status = entry.stat()
                yield _CodeFile(entry.path, status.st_size, status.st_mtime_ns)
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _code_files(entry.path)
