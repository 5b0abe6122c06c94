"""ImageStore: compiled models on disk, so that the next session starts without reading the model or the database.

Three kinds of files. An image holds a compiled model: kernels, plan, packed constants. The large ones of these are in
files by content, see `weights`. A cache entry names the image of a session's key, see `session_key`: when only the
database has changed, a new entry often names an image that is there already. Models and lock files are told apart by
identity, size and times, as build tools do: one that changed a moment ago is not recognised, as it may change once more
without looking different. Databases are told apart by what lookups read of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.private_folder import PrivateFolder
from tunewright.codegen.runtime.memory import aligned_block
from tunewright.codegen.target import CUDA, Target
from tunewright.db.location import plain_file
from tunewright.db.lookup_state import lookup_state
from tunewright.graph.ir import DefaultInput, TensorType
from tunewright.graph.numerics import Precision

from ..files import code_digest, file_state
from .image import Image
from .image_form import from_form, to_form
from .weights import WeightFiles

SETTLED_NS = 2_000_000_000
"""Least age of a change. Clocks of file systems are this coarse."""


def session_key(
    model: Path | str | bytes,
    dims: Mapping[str, int],
    target: Target,
    db: str,
    lock: Path | None,
    precision: Precision = Precision.AS_GIVEN,
) -> str | None:
    """The key; None where the database is no file, or can't be read, or another file has changed a moment ago.

    Schedules come from `lock`, or else from the database at the URL `db`.
    """
    sources = code_digest()
    read = hashlib.sha256(model).hexdigest() if isinstance(model, bytes) else _file(Path(model))
    place = _database(db) if lock is None else _file(lock)
    if sources is None or read is None or place is None:
        return None
    return json.dumps([sources, read, sorted(dims.items()), precision, target.to_json(), place])


def image_key(model_sha256: str, target: Target, steps: Sequence[Any]) -> str | None:
    """The key of an image: the code, the model, the target, and the steps as plain data, on which dimensions act.

    None where the code that makes images can't be read.
    """
    sources = code_digest()
    return None if sources is None else json.dumps([sources, model_sha256, target.to_json(), steps])


def compiler_of(target: Target) -> str | None:
    """The version of NVRTC, which an image for a GPU is kept with; None where it is not installed: any will do then.

    Empty for a processor: LLVM's is part of the digest of the code.
    """
    if target.kind != CUDA:
        return ""
    from tunewright.codegen.cuda import nvrtc  # a processor's sessions start without

    try:
        return nvrtc.version()
    except nvrtc.NoCompiler:
        return None


def _database(url: str) -> list[Any] | None:
    """What tells what lookups find in a SQLite database; None where that can't be read, or it is no file."""
    file = plain_file(url)
    if file is None:
        return None
    state = lookup_state(file) if file.exists() else []
    return None if state is None else [os.path.abspath(file), *state]  # noqa: PTH100 - as in `_file`


def _file(path: Path) -> list[Any] | None:
    """The path and state of a file; None if it changed a moment ago."""
    state = file_state(path)
    if state is not None and time.time_ns() - max(state[-2:]) < SETTLED_NS:
        return None
    return [os.path.abspath(path), state]  # noqa: PTH100 - links stay, they are part of the key


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a model runs in native kernels."""

    native: int  # nodes, after rewriting
    fallback: Mapping[str, int]  # op -> nodes that have no kernel
    tuned: int  # tasks whose schedule is the best measured for this target, here
    untuned: int  # that nobody measured: on their default schedule, or on an untried one where the default fails
    transferred: int = 0  # on the best of a similar target or task, on what was imported, or on the cost model's pick
    kept: int = 0  # on their default, as a job of the model found nothing that makes it faster
    vendor: Mapping[str, int] = field(default_factory=dict)  # op -> nodes of `fallback` that ONNX Runtime runs
    runtime: str = ""  # what runs the whole model, with its version, as its job took it; then the kernels only stand by

    @property
    def share(self) -> float:
        """Native nodes among all; none where another runtime runs the model."""
        return 0.0 if self.runtime else self.native / max(self.native + sum(self.fallback.values()), 1)


def fallback_share(fallback: Mapping[str, int], kernels_ms: float | None, whole_ms: float | None) -> float | None:
    """The part of a run that nodes without a kernel take: what kernels don't.

    None where that is not known: as where kernels took longer by themselves than all of a run did at another moment.
    """
    if not fallback:
        return 0.0
    return None if kernels_ms is None or not whole_ms or kernels_ms > whole_ms else 1.0 - kernels_ms / whole_ms


LIMIT_BYTES = 16 << 30
"""Bytes of all images on disk; the least recently used go. One has about the size of its model."""

DISK_SHARE = 0.5
"""The part that images may take of what they take and what is free together: the database is on that disk too."""

LARGE_BYTES = 16 << 20
"""Constants from which on nobody waits until an image is on disk: a second for 400 MB, more where the disk is busy."""

MAGIC = b"tunewright image 2\n"

PAGE_BYTES = 4096
"""Alignment of small constants in a file."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The data of a session besides its image: the image's name, notes, coverage and schedules."""

    image: str
    threads: int
    notes: tuple[str, ...]
    coverage: Coverage
    schedules: Mapping[str, Any]  # task key -> schedule as JSON
    defaults: tuple[DefaultInput, ...] = ()  # the weights that a run may be given
    vendor: Mapping[str, Any] | None = None  # a `VendorTime` as JSON, where the model's last job took that

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CacheEntry:
        """The inverse of `asdict`, by way of JSON. Raises LookupError, TypeError or ValueError on other data."""
        coverage = Coverage(**data["coverage"])
        defaults = tuple(_default(form) for form in data["defaults"])
        notes, schedules, vendor = tuple(data["notes"]), data["schedules"], data["vendor"]
        return CacheEntry(data["image"], data["threads"], notes, coverage, schedules, defaults, vendor)


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image, and the thread pool as object code, which was compiled for the same machine; empty for a GPU."""

    image: Image
    pool_code: bytes


class ImageStore:
    """Images and entries in a folder for this user alone: there is code in them. Raises what `PrivateFolder` raises.

    They take `limit_bytes` at most, and less on a disk that has little room. Where they would take more, what was not
    used for longest goes; a model that alone would take more is not kept.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._files = PrivateFolder(folder)
        self._weights = WeightFiles(self._files)
        self._limit_bytes = limit_bytes

    def entry(self, key: str) -> CacheEntry | None:
        """The entry of a key, if it is there and whole."""
        try:
            return CacheEntry.from_json(json.loads(self._entry_path(key).read_bytes()))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def put_entry(self, key: str, entry: CacheEntry) -> None:
        """Keep an entry. A full disk is no error."""
        with suppress(OSError):
            self._files.write(self._entry_path(key), [json.dumps(asdict(entry)).encode()], lasting=True)

    def get(self, name: str, compiler: str | None = "") -> StoredImage | None:
        """The image of that name, if it is there, whole, and of that compiler, see `compiler_of`; of any for None."""
        path = self._image_path(name)
        wait_for_writes()
        try:
            with path.open("rb") as file:
                os.utime(file.fileno())  # it is in use
                return self._read(file.fileno(), compiler)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def put(self, name: str, image: Image, pool_code: bytes, compiler: str = "") -> bool:
        """Keep an image, unless it is too large or has nodes that no kernel computes. Whether it is there then.

        It takes the place of one that is damaged or of another compiler. A large one is written by a thread, which the
        end of the process waits for: it is there unless the disk fails.
        """
        form = to_form(image)
        if form is None:
            return False
        header, objects = form
        path = self._image_path(name)
        try:
            free_bytes = shutil.disk_usage(self._files.path).free
            left_bytes = room_bytes(self._files.size_bytes(), free_bytes, self._limit_bytes) - image.constants_bytes
            if left_bytes < 0:
                return False
            self._files.tidy(left_bytes)
            write = partial(self._write, path, {**header, "compiler": compiler}, (pool_code, *objects), image.constants)
            if image.constants_bytes >= LARGE_BYTES:
                _begin_write(write)
            else:
                write()
        except OSError:  # a full disk is no error, nor that somebody has deleted the folder by now
            return False
        return True

    def _write(
        self, path: Path, header: Mapping[str, Any], codes: Sequence[bytes], constants: Sequence[NDArray[np.uint8]]
    ) -> None:
        small, *weights = constants
        digests = [(self._weights.put(weight), weight.nbytes) for weight in weights]
        self._files.write(path, _parts({**header, "weights": digests}, codes, small), lasting=True)

    def _read(self, handle: int, compiler: str | None) -> StoredImage:
        """Read what `_write` wrote. Raises ValueError where it is not whole, or of another compiler; OSError."""
        header, codes, constants_start = _read_head(handle)
        if compiler not in (None, header["compiler"]):
            raise ValueError("an image of another compiler")
        small = aligned_block(header["constants_bytes"])
        _fill(small, handle, constants_start)
        weights = self._weights.get([(digest, size) for digest, size in header["weights"]])
        return StoredImage(from_form(header, codes[1:], (small, *weights)), codes[0])

    def _entry_path(self, key: str) -> Path:
        return self._files.path / f"{_digest(key)}.json"

    def _image_path(self, name: str) -> Path:
        return self._files.path / f"{_digest(name)}.image"


_writers: set[Thread] = set()


def _begin_write(write: Callable[[], None]) -> None:
    """Write in a thread that is none of those that end with the process. A full disk is no error."""

    def attempt() -> None:
        with suppress(OSError):
            write()

    thread = Thread(target=attempt, name="tunewright-image", daemon=False)
    wait_for_writes()  # of several large images one is held longer than its session wants it
    _writers.add(thread)
    thread.start()


def wait_for_writes() -> None:
    """Wait until what this process writes is on disk."""
    for thread in list(_writers):
        thread.join()
        _writers.discard(thread)


def room_bytes(taken_bytes: int, free_bytes: int, limit_bytes: int = LIMIT_BYTES) -> int:
    """Bytes that images may take in all, where they take `taken_bytes`, and `free_bytes` of the disk are free."""
    return min(limit_bytes, int(DISK_SHARE * (taken_bytes + free_bytes)))


def _parts(header: Mapping[str, Any], codes: Sequence[bytes], constants: NDArray[np.uint8]) -> list[bytes | memoryview]:
    sizes = {"object_bytes": [len(code) for code in codes], "constants_bytes": constants.nbytes}
    text = json.dumps({**header, **sizes}).encode()
    head = text + b"".join(codes)
    begin = MAGIC + len(text).to_bytes(8, "little") + len(head).to_bytes(8, "little") + hashlib.sha256(head).digest()
    gap_bytes = -(len(begin) + len(head)) % PAGE_BYTES
    return [begin, head, bytes(gap_bytes), constants.data]


def _fill(block: NDArray[np.uint8], handle: int, start: int) -> None:
    """Fill memory from a place of a file on. Raises ValueError where the file is too short, and OSError."""
    view, done = block.data, 0
    while done < block.nbytes:
        count = os.preadv(handle, [view[done:]], start + done)
        if count == 0:
            raise ValueError("a file that was cut short")
        done += count


def _read_head(handle: int) -> tuple[dict[str, Any], list[bytes], int]:
    """What `_parts` wrote before the constants, and where these begin. Raises ValueError where it is not whole."""
    begin_bytes = len(MAGIC) + 48
    begin = os.pread(handle, begin_bytes, 0)
    text_bytes, head_bytes = (
        int.from_bytes(begin[offset : offset + 8], "little") for offset in (len(MAGIC), len(MAGIC) + 8)
    )
    size_bytes = os.fstat(handle).st_size
    if len(begin) != begin_bytes or not begin.startswith(MAGIC) or head_bytes > size_bytes:
        raise ValueError("no image")
    head = os.pread(handle, head_bytes, begin_bytes)
    if hashlib.sha256(head).digest() != begin[-32:]:
        raise ValueError("a damaged image")
    header = json.loads(head[:text_bytes])
    constants_start = -(-(begin_bytes + head_bytes) // PAGE_BYTES) * PAGE_BYTES
    if size_bytes != constants_start + header["constants_bytes"]:
        raise ValueError("an image that was cut short")
    codes, offset = [], text_bytes
    for object_bytes in header["object_bytes"]:
        codes.append(head[offset : offset + object_bytes])
        offset += object_bytes
    return header, codes, constants_start


def _default(form: Mapping[str, Any]) -> DefaultInput:
    return DefaultInput(form["label"], TensorType(form["kind"]["dtype"], tuple(form["kind"]["shape"])))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
