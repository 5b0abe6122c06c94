"""Equivalent notations of a model that ONNX allows: forms of constants, repeated entries, named dimensions."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

SHARE = 0.03
"""The probability of each change."""

MOST_LISTED = 200
"""The most elements of a constant that are written one by one."""


def vary_notation(model: ModelProto, rng: random.Random) -> None:
    """Change the notation of a model, not what it computes; mostly nothing."""
    for way in WAYS:
        if rng.random() < SHARE:
            way(model, rng)


def list_values(model: ModelProto, rng: random.Random) -> None:
    """Write constants element by element in place of raw bytes."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size <= MOST_LISTED and array.dtype.kind != "V":
            values = array.ravel().tolist()
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, array.shape, values))


def make_sparse(model: ModelProto, rng: random.Random) -> None:
    """Write a constant as a sparse one, with flat indices or one an axis."""
    inputs = {value.name for value in model.graph.input}
    fit = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims and t.name not in inputs]
    if not fit:
        return
    tensor = rng.choice(fit)
    array = numpy_helper.to_array(tensor)
    if not array.size:
        return
    places = np.argwhere(array) if rng.random() < 0.5 else np.flatnonzero(array)
    sparse = SparseTensorProto(dims=tensor.dims)
    sparse.values.CopyFrom(numpy_helper.from_array(array[array != 0], tensor.name))
    sparse.indices.CopyFrom(numpy_helper.from_array(places.astype(np.int64), f"{tensor.name}_places"))
    model.graph.initializer.remove(tensor)
    model.graph.sparse_initializer.append(sparse)


def repeat_output(model: ModelProto, rng: random.Random) -> None:
    """List an output twice."""
    model.graph.output.append(rng.choice(list(model.graph.output)))


def output_input(model: ModelProto, rng: random.Random) -> None:
    """Make an input an output too."""
    if model.graph.input:
        model.graph.output.append(rng.choice(list(model.graph.input)))


def output_constant(model: ModelProto, rng: random.Random) -> None:
    """Make an initialiser an output too."""
    if model.graph.initializer:
        tensor = rng.choice(list(model.graph.initializer))
        model.graph.output.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def repeat_opset(model: ModelProto, rng: random.Random) -> None:
    """Import the opset twice."""
    model.opset_import.append(model.opset_import[0])


def use_long_domain(model: ModelProto, rng: random.Random) -> None:
    """Use the long name of the standard domain."""
    model.opset_import[0].domain = "ai.onnx"


def add_unused_constant(model: ModelProto, rng: random.Random) -> None:
    """Add an initialiser that nothing reads."""
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unused constant"))


def name_dims(model: ModelProto, rng: random.Random) -> None:
    """Replace extents of inputs by names, equal ones by the same name."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim if value.name not in weights else ():
            if dim.dim_value > 1:
                dim.dim_param = f"size{dim.dim_value}"


WAYS: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    list_values, make_sparse, repeat_output, output_input, output_constant, repeat_opset, use_long_domain,
    add_unused_constant, name_dims,
)  # fmt: skip
