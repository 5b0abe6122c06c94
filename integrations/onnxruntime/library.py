"""The shared object that ONNX Runtime loads: two functions that go on to ours, linked without a linker."""

from __future__ import annotations

import ctypes
from pathlib import Path

from tunewright.codegen.llvm.shared_object import link
from tunewright.codegen.runtime.library import emit_object

_TEXT = """
@tw_create = global ptr null
@tw_release = global ptr null

define ptr @CreateEpFactories(ptr %name, ptr %base, ptr %logger, ptr %factories, i64 %most, ptr %count) {
  %create = load ptr, ptr @tw_create
  %status = tail call ptr %create(ptr %name, ptr %base, ptr %logger, ptr %factories, i64 %most, ptr %count)
  ret ptr %status
}

define ptr @ReleaseEpFactory(ptr %factory) {
  %release = load ptr, ptr @tw_release
  %status = tail call ptr %release(ptr %factory)
  ret ptr %status
}
"""

_SYMBOLS = ("CreateEpFactories", "ReleaseEpFactory", "tw_create", "tw_release")


def write_library(path: Path) -> None:
    """Write the file. Raises OSError."""
    path.write_bytes(link([([emit_object(_TEXT)], {symbol: symbol for symbol in _SYMBOLS})], _SYMBOLS))


def connect(path: Path, create: int, release: int) -> ctypes.CDLL:
    """Load the file into this process, and let its functions go on to those at the addresses."""
    library = ctypes.CDLL(str(path))
    ctypes.c_void_p.in_dll(library, "tw_create").value = create
    ctypes.c_void_p.in_dll(library, "tw_release").value = release
    return library
