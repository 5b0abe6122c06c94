"""Files, and the code itself, as what tells one version of them from another. Light to import."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SOURCES = ("codegen", "graph", "search_space", "db", "tuner")
"""The folders whose code decides the image of a model."""

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
    """Digest of the code of some folders and of LIBRARIES; None where the code can't be read."""
    digest = hashlib.sha256()
    for folder in folders:
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
