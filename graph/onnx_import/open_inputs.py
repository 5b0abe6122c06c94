"""What a model says of its inputs and outputs, some of whose dimensions are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnx import GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from tunewright.graph.ir import BoundInput, MapInput

from ..evaluation.onnx_form import tensor_type
from .bound_inputs import bound_inputs, split_bindings
from .dimensions import OpenDimension, open_dimensions, unbound_dimensions
from .maps import map_inputs, row_inputs


@dataclass(frozen=True, slots=True)
class OpenTensor:
    """An input or output: its element type, and its extents: a number, a name, or None. No extents: no known rank.

    What is no tensor has its whole type for an element type, such as "seq(map(int64,tensor(float32)))", and no extents.
    An input with a `map` is a row of what it is given as.
    """

    label: str
    dtype: str
    extents: tuple[int | str | None, ...] | None
    map: MapInput | None = None


@dataclass(frozen=True, slots=True)
class OpenSignature:
    """Inputs and outputs of a model, the dimensions of the inputs that are open, and the inputs that have a value.

    `weight_files` are the files beside the model's that weights lie in, as the model names them.
    """

    inputs: tuple[OpenTensor, ...]
    outputs: tuple[OpenTensor, ...]
    dimensions: tuple[OpenDimension, ...]
    bound: tuple[BoundInput, ...]
    weight_files: tuple[str, ...]


def open_signature(model: ModelProto, bindings: Mapping[str, int]) -> OpenSignature:
    """What stays open of a model with these bindings, of dimensions and of inputs, as in `load`. Raises ModelError."""
    sizes, values = split_bindings(bindings)
    constants = {tensor.name for tensor in model.graph.initializer}
    maps = map_inputs(model.graph)
    given = [value for value in row_inputs(model.graph, maps) if value.name not in constants]
    free = [value for value in given if value.name not in values]
    inputs = tuple(replace(_open_tensor(value, sizes), map=maps.get(value.name)) for value in free)
    outputs = tuple(_open_tensor(value, sizes) for value in model.graph.output)
    bound = bound_inputs(values, given)
    return OpenSignature(
        inputs, outputs, unbound_dimensions(sizes, free), bound, tuple(sorted(_weight_files(model.graph)))
    )


def _weight_files(graph: GraphProto) -> set[str]:
    """Of weights, of constants among nodes, and of graphs within them."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    tensors = [*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))]
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    files = {entry.value for entry in entries if entry.key == "location" and "\0" not in entry.value}
    inner = [attribute.g for attribute in attributes if attribute.HasField("g")]
    return files.union(*(_weight_files(body) for body in inner))


def _open_tensor(value: ValueInfoProto, sizes: Mapping[str, int]) -> OpenTensor:
    if not value.type.HasField("tensor_type"):
        return OpenTensor(value.name, _type_text(value.type), None)
    dtype, kind = tensor_type(value.type).dtype, value.type.tensor_type
    if not kind.HasField("shape"):
        return OpenTensor(value.name, dtype, None)
    extents: list[int | str | None] = [dim.dim_value for dim in kind.shape.dim]
    for dimension in open_dimensions(value):
        number = dimension.number(sizes)
        extents[dimension.axis] = dimension.name or None if number is None else number
    return OpenTensor(value.name, dtype, tuple(extents))


def _type_text(kind: TypeProto) -> str:
    """A type with what is inside of it."""
    match kind.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_type_text(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_type_text(kind.optional_type.elem_type)})"
        case "map_type":
            key = TensorProto.DataType.Name(kind.map_type.key_type).lower()
            return f"map({key},{_type_text(kind.map_type.value_type)})"
        case _:
            return f"tensor({tensor_type(kind).dtype})"
