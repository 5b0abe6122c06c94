"""Placeholders for weights whose values were left out of a model, and the made-up values that replace them.

In the file a placeholder is a tensor of type and extents, "in an external file" at LOCATION, which is none. Its other
entries say what rewriting needs to know: which placeholders were equal (`group`), the least and the largest of bytes
(`range`), a narrow type that has all values of a float32 weight (`narrow`), or the one value that all elements have
(`fill`).

Values are made up, the same wherever and whenever: those of matrices and kernels around 0 with a deviation of about
1 / sqrt(fan in), all others between 0.5 and 1, so that variances are positive and signals pass through the depth.
They cost next to no memory: large arrays are views that go through one block of numbers over and over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tunewright.graph.ir import Array
from tunewright.graph.narrow_types import NARROW

LOCATION = "tunewright:structure"
"""The location of placeholders; no file has this name."""

NARROW_TYPES = {dtype.name: dtype for dtype in NARROW}

BLOCK = 1 << 16
"""Elements that are drawn for one group. Larger arrays are views of the block that all groups share."""

MAX_GROUP = 1_000_000
"""Groups are numbered from 0; more than a model may have weights."""

PLACEHOLDER_TYPES = frozenset({
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.INT16,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.COMPLEX64,
    TensorProto.COMPLEX128,
})  # fmt: skip
"""Element types of weights. The others (int32, int64, bool, text) are indices, extents and masks."""

_SEED = 0x7457


class PlaceholderError(ValueError):
    """Entries of a placeholder that strip can't have written."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What a structure keeps of a weight besides type and extents."""

    group: int = -1  # equal for equal weights; -1 where `fill` is given
    deviation: float = 0.0  # of its values around 0; 0: they lie between 0.5 and 1
    fill: bytes = b""  # the one element that it consists of, little-endian
    range: tuple[int, int] | None = None  # the least and the largest value of bytes; made-up ones have both
    narrow: str = ""  # the narrow type that has all values of a float32 weight; empty: none

    def entries(self) -> dict[str, str]:
        """The entries of `external_data`; `read` inverts it."""
        if self.fill:
            return {"location": LOCATION, "fill": self.fill.hex()}
        entries = {"location": LOCATION, "group": str(self.group)}
        if self.deviation:
            entries["deviation"] = f"{self.deviation:.4g}"
        if self.range is not None:
            entries["range"] = "{} {}".format(*self.range)
        if self.narrow:
            entries["narrow"] = self.narrow
        return entries

    @staticmethod
    def read(tensor: TensorProto) -> Placeholder | None:
        """The placeholder of a tensor; None if it is none. Raises PlaceholderError."""
        if tensor.data_location != TensorProto.EXTERNAL:
            return None
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        if entries.pop("location", "") != LOCATION:
            return None
        if tensor.data_type not in PLACEHOLDER_TYPES:
            raise PlaceholderError("a placeholder of an element type that weights don't have")
        fill, group = entries.pop("fill", ""), entries.pop("group", "")
        deviation, ends = entries.pop("deviation", "0"), entries.pop("range", "")
        narrow = entries.pop("narrow", "")
        is_narrow = not narrow or (narrow in NARROW_TYPES and dtype_of(tensor) == np.float32)
        if entries or bool(fill) == bool(group) or not is_narrow:
            raise PlaceholderError("entries of a placeholder that don't go together")
        try:
            if fill:
                return Placeholder(fill=_element(fill, dtype_of(tensor)))
            span = _range(ends, dtype_of(tensor)) if ends else None
            placeholder = Placeholder(int(group), float(deviation), range=span, narrow=narrow)
        except ValueError as error:
            raise PlaceholderError("an entry of a placeholder that is no number") from error
        if not (0 <= placeholder.group < MAX_GROUP and 0 <= placeholder.deviation <= 1):
            raise PlaceholderError("an entry of a placeholder that is out of bounds")
        return placeholder

    def values(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """The array that stands for the weight, not writable."""
        count, kept = prod(shape), NARROW_TYPES.get(self.narrow, dtype)
        if self.fill:
            element = np.frombuffer(self.fill, dtype.newbyteorder("<")).astype(dtype)
            return _fill_shape(np.repeat(element, min(count, BLOCK)), shape)
        if count > BLOCK:
            start = self.group * 257 % BLOCK
            block = _shared_block(self.deviation, kept.name, self.range)[start : start + BLOCK]
        else:
            draws = np.random.default_rng([_SEED, self.group]).random(count)
            block = _scale_draws(draws, self.deviation, kept, self.range)
        return _fill_shape(block.astype(dtype, copy=False), shape)


def deviation_of(shape: tuple[int, ...]) -> float:
    """The deviation that lets signals through a matrix or kernel; 0 for what has at most one extent but 1."""
    if sum(extent > 1 for extent in shape) < 2:
        return 0.0
    # A matrix may stand either way round: between the two, products of a widening and a narrowing one keep the size.
    fan_in = sqrt(prod(shape)) if len(shape) == 2 else prod(shape[1:])
    return float(f"{min(1 / sqrt(fan_in), 1.0):.4g}")


def dtype_of(tensor: TensorProto) -> np.dtype[np.generic]:
    """numpy's type of a tensor's elements."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _element(text: str, dtype: np.dtype[np.generic]) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes for an element of {dtype}")
    return data


def _range(text: str, dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """The least and the largest value of bytes. Raises ValueError."""
    low, high = map(int, text.split(" "))
    limits = np.iinfo(dtype.name)
    if dtype.itemsize != 1 or not limits.min <= low < high <= limits.max:
        raise ValueError(f"no range of {dtype}: {low} to {high}")
    return low, high


@lru_cache(64)
def _shared_block(deviation: float, dtype: str, ends: tuple[int, int] | None) -> Array:
    """The block of all large arrays of one deviation, type and range. Each group begins at another place of it."""
    return _scale_draws(np.random.default_rng(_SEED).random(2 * BLOCK), deviation, np.dtype(dtype), ends)


def _scale_draws(
    draws: NDArray[np.float64], deviation: float, dtype: np.dtype[np.generic], ends: tuple[int, int] | None
) -> Array:
    """Scale uniform draws from 0 to 1 to weights."""
    if ends is not None:
        low, high = ends
        whole = np.floor(low + (high + 1 - low) * draws)
        whole[whole == 0] = high or low  # divisions by it are no faults
        whole[[0, -1]] = ends
        return whole.astype(dtype)
    if dtype.kind in "iu":
        return (1 + 126 * draws).astype(dtype)  # no 0 and nothing negative: divisions by them are no faults
    values = (draws - 0.5) * sqrt(12) * deviation if deviation else 0.5 + draws / 2
    return values.astype(dtype)


def _fill_shape(block: Array, shape: tuple[int, ...]) -> Array:
    """An array of any shape over a block: a reshape where the block is large enough, else its rows overlap."""
    count = prod(shape)
    ahead = sum(extent - 1 for extent in shape)  # least that the axes to come need
    if count <= len(block):
        array = block[:count].reshape(shape)
    elif ahead >= len(block):
        array = np.resize(block, shape)
    else:
        strides, whole, left = [], 1, len(block) - 1
        for extent in reversed(shape):
            ahead -= extent - 1
            step = max(min(whole, (left - ahead) // max(extent - 1, 1)), 1)
            strides.append(step * block.itemsize)
            left -= step * (extent - 1)
            whole *= extent
        array = as_strided(block, shape, strides[::-1])
    array.flags.writeable = False
    return array
