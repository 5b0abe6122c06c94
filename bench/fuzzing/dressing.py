"""Other ways to write the same model down, all of which ONNX allows: forms of constants, doubled lines, open sizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

SHARE = 0.03
"""How often each of the ways is taken."""

MOST_LISTED = 200
"""Elements of a constant that are written one by one."""


def dress(model: ModelProto, rng: random.Random) -> None:
    """Change how a model is written, not what it computes; mostly not at all."""
    for way in WAYS:
        if rng.random() < SHARE:
            way(model, rng)


def listed_values(model: ModelProto, rng: random.Random) -> None:
    """Constants element by element in place of raw bytes."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size <= MOST_LISTED and array.dtype.kind != "V":
            values = array.ravel().tolist()
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, array.shape, values))


def sparse_constant(model: ModelProto, rng: random.Random) -> None:
    """A constant as what is not zero of it, by one number for its place or by one an axis."""
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


def output_twice(model: ModelProto, rng: random.Random) -> None:
    """One output is listed once more."""
    model.graph.output.append(rng.choice(list(model.graph.output)))


def input_as_output(model: ModelProto, rng: random.Random) -> None:
    """What goes in comes out as well."""
    if model.graph.input:
        model.graph.output.append(rng.choice(list(model.graph.input)))


def constant_as_output(model: ModelProto, rng: random.Random) -> None:
    """An initialiser comes out as well."""
    if model.graph.initializer:
        tensor = rng.choice(list(model.graph.initializer))
        model.graph.output.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def opset_twice(model: ModelProto, rng: random.Random) -> None:
    """The same opset is imported once more."""
    model.opset_import.append(model.opset_import[0])


def long_domain(model: ModelProto, rng: random.Random) -> None:
    """The standard ops by the other name of their domain."""
    model.opset_import[0].domain = "ai.onnx"


def unused_constant(model: ModelProto, rng: random.Random) -> None:
    """An initialiser that nothing reads."""
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unused constant"))


def open_sizes(model: ModelProto, rng: random.Random) -> None:
    """Extents of inputs by name, equal ones by the same, to be bound by what is given."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim if value.name not in weights else ():
            if dim.dim_value > 1:
                dim.dim_param = f"size{dim.dim_value}"


WAYS: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    listed_values, sparse_constant, output_twice, input_as_output, constant_as_output, opset_twice, long_domain,
    unused_constant, open_sizes,
)  # fmt: skip
