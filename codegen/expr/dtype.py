"""Element types and their sizes and names in numpy."""

from __future__ import annotations

from enum import StrEnum

import ml_dtypes  # noqa: F401 - makes "bfloat16" a name that numpy knows
import numpy as np


class DType(StrEnum):
    """The type of one element. The value is numpy's name for it."""

    F32 = "float32"
    F64 = "float64"
    F16 = "float16"
    BF16 = "bfloat16"
    I64 = "int64"
    I32 = "int32"
    I16 = "int16"
    I8 = "int8"
    U64 = "uint64"
    U32 = "uint32"
    U16 = "uint16"
    U8 = "uint8"
    BOOL = "bool"

    numpy: np.dtype[np.generic]
    """The numpy type; BOOL is one byte there and in memory."""

    size_bytes: int
    """Bytes of one element in memory."""

    is_float: bool
    """Whether its values are floating point."""

    is_unsigned: bool
    """Whether it is for whole numbers that are not negative."""

    is_narrow: bool
    """Whether it is for memory alone: of floats of two bytes, values are computed in float32."""

    def __init__(self, name: str) -> None:
        self.numpy = np.dtype(name)
        self.size_bytes = self.numpy.itemsize
        self.is_narrow = name in ("float16", "bfloat16")
        self.is_float = self.is_narrow or self.numpy.kind == "f"
        self.is_unsigned = self.numpy.kind == "u"

    @property
    def wide(self) -> DType:
        """The type of products and sums: float32 for narrow floats, int32 for bytes, else the type itself."""
        return _WIDE.get(self, self)

    __hash__ = str.__hash__  # quicker than the hash of enumerations, which is of the name

    @staticmethod
    def of(name: str) -> DType | None:
        """The type that numpy calls by this name; None where there is none here."""
        return _BY_NAME.get(name)


_BY_NAME = {dtype.value: dtype for dtype in DType}

_WIDE = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.I8: DType.I32, DType.U8: DType.I32}

FLOATS = (DType.F32, DType.F64)
"""Types of floats that are computed in."""

INTEGERS = tuple(dtype for dtype in DType if not dtype.is_float and dtype is not DType.BOOL)
"""Types of whole numbers. What exceeds their range wraps around, in two's complement."""

NARROW = frozenset(dtype for dtype in DType if dtype.is_narrow)
"""Types of floats for memory alone."""

BYTES = frozenset({DType.I8, DType.U8})
"""Types of the numbers of quantised models."""

PAIR = 2
"""Numbers of two bytes that an instruction multiplies as one word."""

WORD_BYTES = 4
"""Bytes that an instruction multiplies as one word."""
