"""Reading UBJSON, in which XGBoost writes its models: the parts of draft 12 (ubjson.org) that it uses."""

from __future__ import annotations

from typing import Any

import numpy as np

DEEPEST = 32
"""Levels of what is inside of what: XGBoost's have ten."""

NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
"""numpy's name of each type of number."""

VALUES = {"Z": None, "T": True, "F": False}


def parsed(content: bytes) -> Any:
    """The value; an array of numbers of one type is numpy's, in the byte order of this machine.

    Raises ValueError for what is cut short, goes on behind its end, or has what XGBoost does not write.
    """
    reader = _Reader(content)
    try:
        value = reader.value(reader.marker(), 0)
    except UnicodeDecodeError as error:
        raise ValueError(f"no UBJSON: {error}") from error
    if reader.place != len(content):
        raise ValueError(f"no UBJSON: {len(content) - reader.place} bytes behind its end")
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self.place = 0

    def value(self, marker: str, depth: int) -> Any:
        """What follows a marker."""
        if depth > DEEPEST:
            raise ValueError(f"no UBJSON: more than {DEEPEST} levels")
        if marker in NUMBERS:
            return self._numbers(marker, 1)[0].item()
        if marker in VALUES:
            return VALUES[marker]
        match marker:
            case "S":
                return self._text()
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
        raise ValueError(f"no UBJSON: {marker!r} at {self.place - 1}")

    def marker(self) -> str:
        return self._taken(1).decode("latin-1")

    def _object(self, depth: int) -> dict[str, Any]:
        found = {}
        while self._next() != "}":
            name = self._text()
            found[name] = self.value(self.marker(), depth + 1)
        self.place += 1
        return found

    def _array(self, depth: int) -> Any:
        if self._next() == "$":
            self.place += 1
            kind = self.marker()
            if kind not in NUMBERS or self.marker() != "#":
                raise ValueError(f"no UBJSON: an array of {kind!r} at {self.place}")
            return self._numbers(kind, self._count())
        if self._next() == "#":
            self.place += 1
            return [self.value(self.marker(), depth + 1) for _ in range(self._count())]
        found = []
        while self._next() != "]":
            found.append(self.value(self.marker(), depth + 1))
        self.place += 1
        return found

    def _text(self) -> str:
        return self._taken(self._count()).decode()

    def _count(self) -> int:
        kind = self.marker()
        if kind not in "iUIlL":
            raise ValueError(f"no UBJSON: a count of type {kind!r} at {self.place - 1}")
        count = int(self._numbers(kind, 1)[0])
        if count < 0:
            raise ValueError(f"no UBJSON: a count of {count} at {self.place}")
        return count

    def _numbers(self, kind: str, count: int) -> Any:
        dtype = np.dtype(NUMBERS[kind])
        raw = self._taken(count * dtype.itemsize)
        return np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))

    def _next(self) -> str:
        """The marker that follows, which stays there."""
        marker = self.marker()
        self.place -= 1
        return marker

    def _taken(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= len(self._content) - self.place:
            raise ValueError(f"no UBJSON: {count} bytes at {self.place} of {len(self._content)}")
        self.place += count
        return self._content[self.place - count : self.place]
