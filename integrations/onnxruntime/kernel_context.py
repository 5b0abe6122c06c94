"""KernelContext: what a run of a group is given by ONNX Runtime."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.evaluation.onnx_form import DTYPES

from .c_api import OrtApi
from .graph import OrtValueInfo


def numpy_type(value: OrtValueInfo) -> np.dtype[Any]:
    """The type of arrays of a tensor that goes into a group or comes out of it."""
    kind = None if value.element is None else DType.of(DTYPES[value.element])
    assert kind is not None  # others are not ours
    return np.dtype(kind.numpy)


@dataclass(frozen=True, slots=True)
class KernelContext:
    """The inputs and outputs of one run, by number."""

    api: OrtApi
    address: int

    def input(self, number: int, kind: np.dtype[Any]) -> Any:
        """An input, as an array where it lies."""
        value = self.api.word("KernelContext_GetInput", self.address, number)
        info = self.api.word("GetTensorTypeAndShape", value)
        assert info is not None
        shape = self.api.shape(info)
        self.api.plain("ReleaseTensorTypeAndShapeInfo", info)
        return _array_at(self.api.word("GetTensorMutableData", value), shape, kind)

    def output(self, number: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
        """Room for an output, as an array that is not filled yet."""
        extents = (ctypes.c_int64 * len(shape))(*shape)
        value = self.api.word("KernelContext_GetOutput", self.address, number, extents, len(shape))
        return _array_at(self.api.word("GetTensorMutableData", value), shape, kind)


def _array_at(address: int | None, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    size_bytes = prod(shape) * kind.itemsize
    if not size_bytes or address is None:
        return np.empty(shape, kind)
    memory = (ctypes.c_uint8 * size_bytes).from_address(address)
    return np.frombuffer(memoryview(memory), kind).reshape(shape)
