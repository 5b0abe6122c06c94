"""Constants out of a model: checked against their own claims, and external ones kept to the model's folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tunewright.graph.inference import DTYPES, TypeFault, check_shape
from tunewright.graph.ir import Array

from .errors import ModelError, shown
from .placeholders import Placeholder, Unsound, dtype_of
from .raw import RawData

MAX_EXTERNAL_BYTES = 64 << 30
"""What the external data of one model may come to."""

MAX_LEFT_OUT_BYTES = 64 << 30
"""What the weights that a structure leaves out may come to."""

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

    def array(self, tensor: TensorProto) -> Array:
        """The values of a tensor. Raises ModelError if type, shape, data or place is not acceptable."""
        place = f"weight {shown(tensor.name)}"
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
            except Unsound as error:
                raise ModelError(f"{place}: {error}") from error
            if placeholder is None:
                return self._external(tensor, shape, place)
            return self._left_out(tensor, placeholder, shape, place)
        return self._inline(tensor, shape, place)

    def _left_out(self, tensor: TensorProto, placeholder: Placeholder, shape: tuple[int, ...], place: str) -> Array:
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
            found, needed, unit = self._raw.size_bytes(tensor.raw_data), count * np.dtype(name).itemsize, "bytes"
        else:
            found = len(getattr(tensor, _FIELDS.get(name, "int32_data")))
            needed, unit = count * (2 if name.startswith("complex") else 1), "values"
        if found != needed:
            raise ModelError(f"{place}: {found:,} {unit} of data where its shape needs {needed:,}; the file is damaged")
        try:
            if is_raw:
                return _little_endian(self._raw.array(tensor.raw_data), np.dtype(name), shape)
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
        size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        offset = _number(entries.get("offset", "0"), "offset", place)
        length = _number(entries.get("length", str(size_bytes)), "length", place)
        if length != size_bytes:
            raise ModelError(f"{place}: its external data is {length:,} bytes long, its shape needs {size_bytes:,}")
        self._external_bytes += length
        if self._external_bytes > MAX_EXTERNAL_BYTES:
            raise ModelError(f"external data of more than {MAX_EXTERNAL_BYTES >> 30} GiB")
        data = _read(self._folder, entries.get("location", ""), offset, length, place)
        return _little_endian(data, dtype, shape)


def _little_endian(data: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Bytes as an array, whatever the machine's order of bytes; the same memory where it is aligned."""
    array = data.view(dtype.newbyteorder("<")).reshape(shape)
    return np.require(array.astype(dtype, copy=False), requirements="A")


def _number(text: str, what: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"{place}: {what} {shown(text)} of its external data is not a number of bytes")
    return int(text)


def _read(folder: Path, location: str, offset: int, length: int, place: str) -> Array:
    """Bytes of a file strictly inside `folder`: no link of either kind is followed, at any part of the path."""
    where = f"{place}: external file {shown(location)}"
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
    done = 0
    while done < length:
        count = os.preadv(handle, [view[done:]], offset + done)
        if count == 0:
            raise ModelError(f"{where} ends early")
        done += count
    return data
