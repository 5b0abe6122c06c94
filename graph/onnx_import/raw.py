"""Raw data of weights apart from the protobuf around them, so that memory never holds it twice.

Parsed as a whole, a model is in memory three times for a moment: as a file, as a protobuf and as arrays. So large raw
data of the graph's weights is cut out of the bytes before they are parsed. A token stands in its place, which no model
can know beforehand, and leads to where the data is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from tunewright.graph.ir import Array

LEAST_BYTES = 1 << 14
"""Shorter data stays where it is."""

MAX_FIELDS = 1 << 20
"""Fields of a file that are looked at; of one with more all data stays where it is."""

TOKEN_BYTES = 32

_GRAPH, _WEIGHTS, _RAW_DATA = 7, 5, 9
"""Field numbers in onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data."""

_VARINT, _NESTED = 0, 2
"""Kinds of fields in protobuf's wire format."""

_FIXED_BYTES = {1: 8, 5: 4}
"""The kinds that are numbers of fixed size, and that size."""

_MAX_HEAD_BYTES = 20
"""A tag and a length, each of ten digits at most."""


class _Strange(Exception):
    """Bytes that aren't worth understanding here: the parser will say what is wrong, if anything is."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: where its tag, its content and the next field begin."""

    number: int
    kind: int
    start: int
    content: int
    stop: int


class RawData:
    """A model's bytes, or a file of them, and where in there the raw data is that was cut out.

    A file stays open until `close`. Raises OSError where it can't be opened.
    """

    def __init__(self, source: bytes | Path) -> None:
        self._source: bytes | BufferedReader = source if isinstance(source, bytes) else source.open("rb")
        self._places: dict[bytes, tuple[int, int]] = {}  # token -> begin and size
        self._fields_left = MAX_FIELDS

    def rest(self) -> bytes:
        """The model with tokens in the place of large raw data; as it is where it isn't understood."""
        size_bytes = len(self._source) if isinstance(self._source, bytes) else os.fstat(self._source.fileno()).st_size
        try:
            return self._cut(0, size_bytes, (_GRAPH, _WEIGHTS, _RAW_DATA))
        except _Strange:
            self._places.clear()
            return self._source if isinstance(self._source, bytes) else self._read(0, size_bytes)

    def size_bytes(self, raw: bytes) -> int:
        """The size of what a tensor has as its raw data, whether that is a token or not."""
        return self._places[raw][1] if raw in self._places else len(raw)

    def array(self, raw: bytes) -> Array:
        """What a tensor has as its raw data, or what the token in its place leads to, byte by byte.

        Read-only where that is part of what is in memory anyway. Raises OSError, and EOFError where the file was cut
        short meanwhile.
        """
        if raw not in self._places:
            return np.frombuffer(raw, np.uint8)
        begin, size_bytes = self._places[raw]
        if isinstance(self._source, bytes):
            return np.frombuffer(self._source, np.uint8, size_bytes, begin)
        data = np.empty(size_bytes, np.uint8)
        self._source.seek(begin)
        if self._source.readinto(data.data) != size_bytes:
            raise EOFError("the file was cut short while it was read")
        return data

    def close(self) -> None:
        """Close the file."""
        if not isinstance(self._source, bytes):
            self._source.close()

    def _cut(self, begin: int, end: int, path: Sequence[int]) -> bytes:
        """A message with tokens in the place of large fields at `path`: a field in it, a field in that, and so on."""
        parts, done = [], begin
        for one in self._fields(begin, end):
            size_bytes = one.stop - one.content
            if one.number != path[0] or one.kind != _NESTED or size_bytes < LEAST_BYTES:
                continue
            inner = self._cut(one.content, one.stop, path[1:]) if path[1:] else self._token(one.content, size_bytes)
            parts += [self._read(done, one.start), _varint(one.number << 3 | one.kind), _varint(len(inner)), inner]
            done = one.stop
        return b"".join((*parts, self._read(done, end)))

    def _token(self, begin: int, size_bytes: int) -> bytes:
        token = secrets.token_bytes(TOKEN_BYTES)
        self._places[token] = begin, size_bytes
        return token

    def _fields(self, begin: int, end: int) -> Iterator[_Field]:
        at = begin
        while at < end:
            self._fields_left -= 1
            head = self._read(at, min(at + _MAX_HEAD_BYTES, end))
            tag, content = _number(head, 0)
            kind = tag & 7
            if kind == _VARINT:
                size_bytes, used = 0, _number(head, content)[1]
            elif kind == _NESTED:
                size_bytes, used = _number(head, content)
            elif kind in _FIXED_BYTES:
                size_bytes, used = _FIXED_BYTES[kind], content
            else:
                raise _Strange
            stop = at + used + size_bytes
            if stop > end or self._fields_left < 0:
                raise _Strange
            yield _Field(tag >> 3, kind, at, at + used, stop)
            at = stop

    def _read(self, begin: int, end: int) -> bytes:
        if isinstance(self._source, bytes):
            return self._source[begin:end]
        self._source.seek(begin)
        return self._source.read(end - begin)


def _number(head: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for shift, byte in enumerate(head[at : at + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise _Strange


def _varint(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))
