"""Weights of a model: checked against their declared shapes, external ones kept to the model's folder; raw data."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tunewright.graph.ir import Array

from ..evaluation.onnx_form import DTYPES, SUB_BYTE_BITS, TypeFault, check_shape
from .placeholders import Placeholder, PlaceholderError, dtype_of
from .protobuf import ModelError, quote

MAX_EXTERNAL_BYTES = 64 << 30
"""Most bytes of external data of one model."""

MAX_LEFT_OUT_BYTES = 64 << 30
"""Most bytes of the weights that a structure leaves out."""

_FIELDS = {
    "float32": "float_data", "complex64": "float_data", "float64": "double_data", "complex128": "double_data",
    "int64": "int64_data", "uint64": "uint64_data", "uint32": "uint64_data", "string": "string_data",
}  # fmt: skip


class Weights:
    """Reads the tensors of one model. `folder` is where its external data may lie; None: nowhere.

    Placeholders get values, of `most_left_out_bytes` in all. `raw` has the raw data that is not in the tensors.
    """

    def __init__(
        self, folder: Path | None, most_left_out_bytes: int = MAX_LEFT_OUT_BYTES, raw: RawData | None = None
    ) -> None:
        self._folder = folder
        self._raw = RawData(b"") if raw is None else raw
        self._external_bytes = 0
        self._most_left_out_bytes = most_left_out_bytes
        self._left_out_bytes = 0

    @property
    def has_external(self) -> bool:
        """Whether values were read from other files."""
        return self._external_bytes > 0

    def array(self, tensor: TensorProto) -> Array:
        """The values of a tensor. Raises ModelError if type, shape, data or place is not acceptable."""
        place = f"weight {quote(tensor.name)}"
        if tensor.data_type not in DTYPES:
            known = tensor.data_type in TensorProto.DataType.values()
            name = TensorProto.DataType.Name(tensor.data_type) if known else tensor.data_type
            raise ModelError(f"{place}: element type {name} is not supported; supported: {', '.join(DTYPES.values())}")
        shape = tuple(tensor.dims)
        try:
            check_shape(shape)
        except TypeFault as fault:
            raise ModelError(f"{place}: {fault}") from fault
        if tensor.HasField("segment"):
            raise ModelError(f"{place}: is stored in segments, which is not supported")
        if tensor.data_location == TensorProto.EXTERNAL:
            try:
                placeholder = Placeholder.read(tensor)
            except PlaceholderError as error:
                raise ModelError(f"{place}: {error}") from error
            if placeholder is None:
                return self._external(tensor, shape, place)
            return self._placeholder(tensor, placeholder, shape, place)
        return self._inline(tensor, shape, place)

    def _placeholder(self, tensor: TensorProto, placeholder: Placeholder, shape: tuple[int, ...], place: str) -> Array:
        dtype = dtype_of(tensor)
        self._left_out_bytes += int(np.prod(shape, dtype=object)) * dtype.itemsize
        if self._left_out_bytes > self._most_left_out_bytes:
            raise ModelError(
                f"{place}: weights of more than {self._most_left_out_bytes:,} bytes were left out of the model"
            )
        return placeholder.values(shape, dtype)

    def _inline(self, tensor: TensorProto, shape: tuple[int, ...], place: str) -> Array:
        count = int(np.prod(shape, dtype=object))
        name = DTYPES[tensor.data_type]
        is_raw = tensor.HasField("raw_data") and name != "string"
        if is_raw:
            available, needed, unit = self._raw.size_bytes(tensor.raw_data), _stored_bytes(name, count), "bytes"
        else:
            available = len(getattr(tensor, _FIELDS.get(name, "int32_data")))
            is_packed = name in SUB_BYTE_BITS
            needed = _stored_bytes(name, count) if is_packed else count * (2 if name.startswith("complex") else 1)
            unit = "values"
        if available != needed:
            raise ModelError(
                f"{place}: {available:,} {unit} of data where its shape needs {needed:,}; the file is damaged"
            )
        try:
            if is_raw:
                return _from_bytes(self._raw.array(tensor.raw_data), np.dtype(name), shape)
            return np.asarray(numpy_helper.to_array(tensor))
        except (EOFError, OSError, OverflowError, TypeError, ValueError) as error:
            raise ModelError(f"{place}: its data can't be read as {name}") from error

    def _external(self, tensor: TensorProto, shape: tuple[int, ...], place: str) -> Array:
        if self._folder is None:
            raise ModelError(
                f"{place}: lies in an external file, which can't be followed from here; "
                "pass the model by path, or save it with its weights inside"
            )
        if tensor.data_type == TensorProto.STRING:
            raise ModelError(f"{place}: text can't lie in an external file")
        dtype = np.dtype(DTYPES[tensor.data_type])
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        size_bytes = _stored_bytes(dtype.name, int(np.prod(shape, dtype=object)))
        offset = _number(entries.get("offset", "0"), "offset", place)
        length = _number(entries.get("length", str(size_bytes)), "length", place)
        if length != size_bytes:
            raise ModelError(f"{place}: its external data is {length:,} bytes long, its shape needs {size_bytes:,}")
        self._external_bytes += length
        if self._external_bytes > MAX_EXTERNAL_BYTES:
            raise ModelError(f"external data of more than {MAX_EXTERNAL_BYTES >> 30} GiB")
        data = _read(self._folder, entries.get("location", ""), offset, length, place)
        return _from_bytes(data, dtype, shape)


def _stored_bytes(name: str, count: int) -> int:
    """Bytes that so many elements of a type take in a file."""
    return -(-count * SUB_BYTE_BITS[name] // 8) if name in SUB_BYTE_BITS else count * np.dtype(name).itemsize


def _from_bytes(data: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The elements of a file's bytes, where a byte may have several of them, the first in its lowest bits."""
    if dtype.name not in SUB_BYTE_BITS:
        return _little_endian(data, dtype, shape)
    bits = SUB_BYTE_BITS[dtype.name]
    parts = data.view(np.uint8)[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (2**bits - 1)
    numbers = parts.reshape(-1)[: int(np.prod(shape, dtype=object))].reshape(shape)
    if dtype.name.startswith("uint"):
        return np.asarray(numbers.astype(dtype))
    sign = 2 ** (bits - 1)  # the highest bit
    signed_numbers: Array = (numbers ^ np.uint8(sign)).view(np.int8) - np.int8(sign)
    return signed_numbers.astype(dtype)


def _little_endian(data: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Bytes as an array, whatever the machine's order of bytes; the same memory where it is aligned."""
    array = data.view(dtype.newbyteorder("<")).reshape(shape)
    return np.require(array.astype(dtype, copy=False), requirements="A")


def _number(text: str, what: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"{place}: {what} {quote(text)} of its external data is not a number of bytes")
    return int(text)


def _read(folder: Path, location: str, offset: int, length: int, place: str) -> Array:
    """Bytes of a file strictly inside `folder`: no link of either kind is followed, at any part of the path."""
    where = f"{place}: external file {quote(location)}"
    parts = PurePosixPath(location).parts
    if not parts or location.startswith("/") or "\\" in location or "\0" in location or ".." in parts:
        raise ModelError(f"{where} is not inside the model's folder")
    handles: list[int] = []
    try:
        handles.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        for part in parts[:-1]:
            handles.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handles[-1]))
        handles.append(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handles[-1]))
        status = os.fstat(handles[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise ModelError(f"{where} is not a plain file with one name (links are not followed); copy it there")
        if offset + length > status.st_size:
            raise ModelError(f"{where} has {status.st_size:,} bytes, {offset + length:,} are needed")
        return _pread(handles[-1], offset, length, where)
    except OSError as error:
        raise ModelError(f"{where} can't be opened ({error.strerror}); links are not followed") from error
    finally:
        for handle in reversed(handles):
            os.close(handle)


def _pread(handle: int, offset: int, length: int, where: str) -> Array:
    data = np.empty(length, np.uint8)
    view = data.data
    read_bytes = 0
    while read_bytes < length:
        count = os.preadv(handle, [view[read_bytes:]], offset + read_bytes)
        if count == 0:
            raise ModelError(f"{where} ends early")
        read_bytes += count
    return data


# Raw data of weights, kept apart from the protobuf around them so that memory never holds it twice. Parsed as a whole,
# a model is in memory three times for a moment: as a file, as a protobuf and as arrays. So large raw data of the
# graph's weights is cut out of the bytes before they are parsed. A token stands in its place, which no model can know
# beforehand, and leads to where the data is.

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


class _UnknownFormat(Exception):
    """Bytes that aren't worth understanding here: the parser will say what is wrong, if anything is."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message, and the offsets of its tag, its content and its end."""

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
        except _UnknownFormat:
            self._places.clear()
            return self._source if isinstance(self._source, bytes) else self._read(0, size_bytes)

    def size_bytes(self, raw: bytes) -> int:
        """The size of what a tensor has as its raw data, whether that is a token or not."""
        return self._places[raw][1] if raw in self._places else len(raw)

    def array(self, raw: bytes) -> Array:
        """The bytes of a tensor's raw data, or those that the token in its place stands for.

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
        parts, cursor = [], begin
        for field in self._fields(begin, end):
            size_bytes = field.stop - field.content
            if field.number != path[0] or field.kind != _NESTED or size_bytes < LEAST_BYTES:
                continue
            inner = (
                self._cut(field.content, field.stop, path[1:]) if path[1:] else self._token(field.content, size_bytes)
            )
            parts += [
                self._read(cursor, field.start),
                _varint(field.number << 3 | field.kind),
                _varint(len(inner)),
                inner,
            ]
            cursor = field.stop
        return b"".join((*parts, self._read(cursor, end)))

    def _token(self, begin: int, size_bytes: int) -> bytes:
        token = secrets.token_bytes(TOKEN_BYTES)
        self._places[token] = begin, size_bytes
        return token

    def _fields(self, begin: int, end: int) -> Iterator[_Field]:
        at = begin
        while at < end:
            self._fields_left -= 1
            head = self._read(at, min(at + _MAX_HEAD_BYTES, end))
            tag, content = _varint_at(head, 0)
            kind = tag & 7
            if kind == _VARINT:
                size_bytes, used = 0, _varint_at(head, content)[1]
            elif kind == _NESTED:
                size_bytes, used = _varint_at(head, content)
            elif kind in _FIXED_BYTES:
                size_bytes, used = _FIXED_BYTES[kind], content
            else:
                raise _UnknownFormat
            stop = at + used + size_bytes
            if stop > end or self._fields_left < 0:
                raise _UnknownFormat
            yield _Field(tag >> 3, kind, at, at + used, stop)
            at = stop

    def _read(self, begin: int, end: int) -> bytes:
        if isinstance(self._source, bytes):
            return self._source[begin:end]
        self._source.seek(begin)
        return self._source.read(end - begin)


def _varint_at(head: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = 0
    for shift, byte in enumerate(head[at : at + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise _UnknownFormat


def _varint(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*digits, value))
