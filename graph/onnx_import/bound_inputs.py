"""Inputs of a model that get their value when it is opened: they are constants from then on.

Among the bindings of dimensions they stand under their name with "=" behind it, so that who passes bindings on has one
mapping: {"batch": 1, "sr=": 16000}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import ValueInfoProto

from tunewright.graph.binding import BOUND_MARK
from tunewright.graph.ir import Array, BoundInput

from ..evaluation.onnx_form import DTYPES
from .dimensions import join_some
from .protobuf import ModelError, quote


def split_bindings(bindings: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The bindings of dimensions, and those of inputs by the inputs' names."""
    sizes = {key: value for key, value in bindings.items() if not key.endswith(BOUND_MARK)}
    values = {key.removesuffix(BOUND_MARK): value for key, value in bindings.items() if key.endswith(BOUND_MARK)}
    return sizes, values


def bound_inputs(values: Mapping[str, int], inputs: Iterable[ValueInfoProto]) -> tuple[BoundInput, ...]:
    """The inputs that get a value. An extent that one leaves open is 1.

    Raises ModelError for names of no input, and for inputs that can't have such a value.
    """
    inputs = list(inputs)
    if unknown := values.keys() - {value.name for value in inputs}:
        names = join_some([quote(value.name) for value in inputs]) or "none"
        raise ModelError(f"the model has no input {quote(min(unknown))} to be bound; its inputs: {names}")
    return tuple(
        BoundInput(value.name, place, _array(value, values[value.name]))
        for place, value in enumerate(inputs)
        if value.name in values
    )


def _array(value: ValueInfoProto, number: int) -> Array:
    place, tensor = f"input {quote(value.name)}", value.type.tensor_type
    name = DTYPES.get(tensor.elem_type, "")
    dtype = np.dtype(name) if name not in ("", "string") else None
    if dtype is None or dtype.kind not in "fiub":
        raise ModelError(f"{place} can't be bound to {number}: it takes {name or 'no tensor of a known type'}")
    shape = [max(dim.dim_value, 1) if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
    if any(extent != 1 for extent in shape):
        raise ModelError(f"{place} can't be bound to {number}: it takes {name}{shape}, and only a single number can be")
    array = np.full(shape, number).astype(dtype)
    if not (array == number).all():
        raise ModelError(f"{place} can't be bound to {number}: that is no value of {name}")
    return array
