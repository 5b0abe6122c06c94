"""ImageStore: compiled models on disk, so that the next session starts without reading the model or the database.

Two kinds of files. An image holds a compiled model: kernels, plan, packed constants. An answer says which image a
question had: a question is all that decides what a session runs, see `question`. When only the database has changed, a
new answer often names an image that is there already.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.private_folder import PrivateFolder
from tunewright.codegen.runtime.memory import HUGE_BYTES, aligned_block
from tunewright.graph.ir import Default, TensorType

from .coverage import Coverage
from .image import Image
from .image_form import from_form, to_form

LIMIT_BYTES = 16 << 30
"""What images may take on disk; those not used for longest go. One has about the size of its model."""

DISK_SHARE = 0.5
"""The part that images may take of what they take and what is free together: the database is on that disk too."""

MAGIC = b"tunewright image 1\n"

PAGE_BYTES = 4096
"""Where constants begin in a file, in multiples."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a session needs besides an image: its name, and what to say to people."""

    image: str
    threads: int
    notes: tuple[str, ...]
    coverage: Coverage
    schedules: Mapping[str, Any]  # task key -> schedule as JSON
    defaults: tuple[Default, ...] = ()  # the weights that a run may be given


@dataclass(frozen=True, slots=True)
class Kept:
    """An image, and the thread pool as object code, which was compiled for the same machine."""

    image: Image
    pool_code: bytes


class ImageStore:
    """Images and answers in a folder for this user alone: there is code in them. Raises as `PrivateFolder`.

    They take `limit_bytes` at most, and less on a disk that has little room. Where they would take more, what was not
    used for longest goes; a model that alone would take more is not kept.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._files = PrivateFolder(folder)
        self._limit_bytes = limit_bytes

    def answer(self, asked: str) -> Answer | None:
        """The answer that `remember` was given, if it is there and whole."""
        try:
            data = json.loads(self._answer(asked).read_bytes())
            coverage = Coverage(**data["coverage"])
            defaults = tuple(_default(form) for form in data["defaults"])
            return Answer(data["image"], data["threads"], tuple(data["notes"]), coverage, data["schedules"], defaults)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def remember(self, asked: str, answer: Answer) -> None:
        """Keep an answer. A full disk is no error."""
        with suppress(OSError):
            self._files.write(self._answer(asked), [json.dumps(asdict(answer)).encode()], lasting=True)

    def get(self, name: str, readers: int = 1) -> Kept | None:
        """The image of that name, if it is there and whole. `readers` threads read."""
        path = self._image(name)
        try:
            with path.open("rb") as file:
                os.utime(file.fileno())  # it is in use
                return _read(file.fileno(), readers)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def put(self, name: str, image: Image, pool_code: bytes) -> bool:
        """Keep an image, unless it is too large or has nodes that no kernel computes. Whether it is there then."""
        form = to_form(image)
        if form is None:
            return False
        with suppress(OSError):  # a full disk is no error, nor that somebody has deleted the folder by now
            free_bytes = shutil.disk_usage(self._files.path).free
            left_bytes = room_bytes(self._files.size_bytes(), free_bytes, self._limit_bytes) - image.constants.nbytes
            if left_bytes >= 0 and not self._image(name).exists():
                self._files.tidy(left_bytes)
                self._files.write(self._image(name), _parts(*form, pool_code, image.constants), lasting=True)
        return self._image(name).exists()

    def _answer(self, asked: str) -> Path:
        return self._files.path / f"{_digest(asked)}.json"

    def _image(self, name: str) -> Path:
        return self._files.path / f"{_digest(name)}.image"


def room_bytes(taken_bytes: int, free_bytes: int, limit_bytes: int = LIMIT_BYTES) -> int:
    """What images may take in all, where those there take `taken_bytes`, and `free_bytes` of the disk are free."""
    return min(limit_bytes, int(DISK_SHARE * (taken_bytes + free_bytes)))


def _parts(
    header: Mapping[str, Any], objects: Sequence[bytes], pool_code: bytes, constants: NDArray[np.uint8]
) -> list[bytes | memoryview]:
    sizes = {"object_bytes": [len(code) for code in (pool_code, *objects)], "constants_bytes": constants.nbytes}
    text = json.dumps({**header, **sizes}).encode()
    head = text + pool_code + b"".join(objects)
    begin = MAGIC + len(text).to_bytes(8, "little") + len(head).to_bytes(8, "little") + hashlib.sha256(head).digest()
    gap_bytes = -(len(begin) + len(head)) % PAGE_BYTES
    return [begin, head, bytes(gap_bytes), constants.data]


def _read(handle: int, readers: int) -> Kept:
    """What `_parts` wrote. Raises ValueError where it is not whole."""
    begin_bytes = len(MAGIC) + 48
    begin = os.pread(handle, begin_bytes, 0)
    text_bytes, head_bytes = (int.from_bytes(begin[at : at + 8], "little") for at in (len(MAGIC), len(MAGIC) + 8))
    size_bytes = os.fstat(handle).st_size
    if len(begin) != begin_bytes or not begin.startswith(MAGIC) or head_bytes > size_bytes:
        raise ValueError("no image")
    head = os.pread(handle, head_bytes, begin_bytes)
    if hashlib.sha256(head).digest() != begin[-32:]:
        raise ValueError("a damaged image")
    header = json.loads(head[:text_bytes])
    start = -(-(begin_bytes + head_bytes) // PAGE_BYTES) * PAGE_BYTES
    if size_bytes != start + header["constants_bytes"]:
        raise ValueError("an image that was cut short")
    objects, at = [], text_bytes
    for object_bytes in header["object_bytes"]:
        objects.append(head[at : at + object_bytes])
        at += object_bytes
    constants = _read_constants(handle, start, header["constants_bytes"], readers)
    return Kept(from_form(header, objects[1:], constants), objects[0])


def _read_constants(handle: int, start: int, size_bytes: int, readers: int) -> NDArray[np.uint8]:
    """A part of a file in memory of the process's own, which has larger pages than a mapped file."""
    block = aligned_block(size_bytes)
    share_bytes = max(-(-size_bytes // readers // HUGE_BYTES), 1) * HUGE_BYTES  # a model may have no constants
    ranges = [(begin, min(begin + share_bytes, size_bytes)) for begin in range(0, size_bytes, share_bytes)]
    threads = [Thread(target=_fill, args=(handle, start, block, *each)) for each in ranges[1:]]
    for thread in threads:
        thread.start()
    for each in ranges[:1]:
        _fill(handle, start, block, *each)
    for thread in threads:
        thread.join()
    return block


def _fill(handle: int, start: int, block: NDArray[np.uint8], begin: int, end: int) -> None:
    """Read a range of what begins at `start`. Its size was checked: only a file cut short meanwhile ends early."""
    view = block.data
    while begin < end:
        count = os.preadv(handle, [view[begin:end]], start + begin)
        if count == 0:
            raise ValueError("an image that was cut short")
        begin += count


def _default(form: Mapping[str, Any]) -> Default:
    return Default(form["label"], TensorType(form["kind"]["dtype"], tuple(form["kind"]["shape"])))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
