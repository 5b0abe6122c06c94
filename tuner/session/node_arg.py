"""NodeArg: an input or output as a session tells of it, and what arrays are checked by. Light to import."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.ir import MapInput, TensorType

from ..errors import InputError
from .image import ImagePort

OTHER_NAMES = {"float32": "float", "float64": "double"}
"""ONNX Runtime's names of element types where they are not numpy's."""


@dataclass(frozen=True, slots=True)
class OpenType:
    """Element type and shape of a tensor of which runs tell some extents: these have a name, or None."""

    dtype: str
    shape: tuple[int | str | None, ...] | None  # None where not even the rank is known

    def __str__(self) -> str:
        extents = "?" if self.shape is None else ", ".join("?" if e is None else str(e) for e in self.shape)
        return f"{self.dtype}[{extents}]"


@dataclass(frozen=True, slots=True)
class OpenPort:
    """An input or output some of whose extents only runs tell."""

    label: str
    kind: OpenType
    map: MapInput | None = None


Port = ImagePort | OpenPort


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a model, as ONNX Runtime's NodeArg describes it."""

    name: str
    type: str  # "tensor(float)", "tensor(int64)", ...
    shape: list[Any] | None  # whole numbers; open extents by name, or None. None where only running the model tells

    @staticmethod
    def of(label: str, kind: TensorType | OpenType) -> NodeArg:
        """A tensor of that name and type, or what has them inside."""
        if "(" in kind.dtype:
            inner = re.compile("|".join(OTHER_NAMES))
            return NodeArg(label, inner.sub(lambda match: OTHER_NAMES[match[0]], kind.dtype), [])
        name = OTHER_NAMES.get(kind.dtype, kind.dtype.replace("float8_", "float8"))
        return NodeArg(label, f"tensor({name})", None if kind.shape is None else list(kind.shape))

    @staticmethod
    def of_input(port: Port) -> NodeArg:
        """An input: a dict where the model takes one."""
        if port.map is None:
            return NodeArg.of(port.label, port.kind)
        value = OTHER_NAMES.get(port.map.value, port.map.value)
        return NodeArg(port.label, f"map({port.map.key},tensor({value}))", [])

    @staticmethod
    def of_output(port: Port) -> NodeArg:
        """An output: dicts where the model makes such, and without a shape where only a run tells it."""
        if isinstance(port, OpenPort):
            return NodeArg.of(port.label, port.kind)
        if port.keys:
            key = "string" if isinstance(port.keys[0], str) else "int64"
            return NodeArg(port.label, f"seq(map({key},tensor(float)))", [])
        return NodeArg.of(port.label, replace(port.value.kind, shape=None) if port.sizes else port.value.kind)


def numpy_type(kind: TensorType | OpenType) -> np.dtype[Any] | None:
    """The type of arrays that need no look at them; numpy has one object for each."""
    dtype = DType.of(kind.dtype)
    return None if dtype is None else dtype.numpy


def check_array(label: str, value: Any, kind: TensorType | OpenType) -> Any:
    """The value as an array of the machine's byte order. Raises InputError where it is of another type or shape."""
    from tunewright.graph.evaluation.onnx_form import (
        dtype_name,  # imports onnx, and most arrays are what is wanted at first sight
    )

    try:
        array = np.asarray(value)
    except ValueError as error:  # nested lists of several lengths
        raise InputError(f"input {label!r} is no array: {error}") from error
    if dtype_name(array) != kind.dtype or not _fits(array.shape, kind.shape or ()):
        raise InputError(f"input {label!r} is {array.dtype}{list(array.shape)}, the model takes {kind}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _fits(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    """Whether a shape is the one that is wanted, whose open extents may be any."""
    return len(shape) == len(wanted) and all(
        not isinstance(extent, int) or own == extent for own, extent in zip(shape, wanted, strict=True)
    )
