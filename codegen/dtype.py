"""Element types and their sizes and names in numpy."""

from __future__ import annotations

from enum import StrEnum

import numpy as np


class DType(StrEnum):
    """The type of one element. The value is numpy's name for it."""

    F32 = "float32"
    F64 = "float64"
    I64 = "int64"
    I32 = "int32"
    I8 = "int8"
    U8 = "uint8"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type; BOOL is one byte there and in memory."""
        return np.dtype(self.value)

    @property
    def size_bytes(self) -> int:
        """Bytes of one element in memory."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on it is floating point."""
        return self in (DType.F32, DType.F64)

    @staticmethod
    def of(name: str) -> DType | None:
        """The type that numpy calls by this name; None where there is none here."""
        return _BY_NAME.get(name)


_BY_NAME = {dtype.value: dtype for dtype in DType}
