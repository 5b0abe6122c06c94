"""Outline: inputs, outputs and ops of a model, without reading its weights or inferring anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from ..evaluation.onnx_form import DTYPES
from . import ModelError, quote, read_model
from .maps import map_inputs, row_inputs
from .placeholders import PLACEHOLDER_TYPES, Placeholder, PlaceholderError
from .protobuf import bodies
from .structure import MAX_KEPT


@dataclass(frozen=True, slots=True)
class DeclaredPort:
    """An input or output as the model declares it."""

    name: str  # hostile text
    dtype: str  # numpy's name, "string", or empty where it is no tensor or not declared
    shape: tuple[int | str, ...] | None  # a dimension left open has its name, which may be empty; None: not declared


@dataclass(frozen=True, slots=True)
class Outline:
    """What a user of the model sees of it."""

    inputs: tuple[DeclaredPort, ...]  # those that a user must feed
    outputs: tuple[DeclaredPort, ...]
    ops: Mapping[str, int]  # op -> nodes, functions not expanded; hostile text
    with_weights: bool  # whether it holds values that `structure.strip` would leave out
    has_external_data: bool  # whether some of them lie in other files
    is_whole: bool  # whether no placeholder stands for values, as one does in a structure
    has_names: bool  # whether nodes have names, as none has in a structure


def outline(source: Path | str | bytes) -> Outline:
    """The outline of an ONNX model, given as its bytes or as a path. Raises ModelError and OSError."""
    model, _ = read_model(source)
    sparse = {tensor.values.name for tensor in model.graph.sparse_initializer}
    known = sparse.union(tensor.name for tensor in model.graph.initializer)
    tensors = [tensor for tensor in _tensors(model) if tensor.data_type in PLACEHOLDER_TYPES]
    try:
        weights = [tensor for tensor in tensors if Placeholder.read(tensor) is None]
    except PlaceholderError as error:
        raise ModelError(f"a weight of the model: {error}") from error
    return Outline(
        tuple(_port(value) for value in row_inputs(model.graph, map_inputs(model.graph)) if value.name not in known),
        tuple(_port(value) for value in model.graph.output),
        Counter(node.op_type for node in _nodes(model)),
        any(prod(tensor.dims) > MAX_KEPT for tensor in weights)
        or any(  # a long list of numbers among the attributes of a node
            len(a.floats) > MAX_KEPT and len(set(a.floats)) > 1 for node in _nodes(model) for a in node.attribute
        ),
        any(tensor.data_location == TensorProto.EXTERNAL for tensor in weights),
        len(weights) == len(tensors),
        any(node.name for node in model.graph.node),
    )


def _port(value: ValueInfoProto) -> DeclaredPort:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return DeclaredPort(value.name, DTYPES.get(tensor.elem_type, ""), None)
    if any(not isinstance(dim.dim_param, str) for dim in tensor.shape.dim):
        raise ModelError(f"a dimension of {quote(value.name)} has a name that is no text")
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)
    return DeclaredPort(value.name, DTYPES.get(tensor.elem_type, ""), shape)


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of a model, those inside control flow and functions included."""
    waiting = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for body in bodies(node) for inner in body.node]


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors with values; for sparse ones the tensor of their nonzero values."""
    yield from _weights(model.graph)
    for node in _nodes(model):
        for body in bodies(node):
            yield from _weights(body)
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            if attribute.type == AttributeProto.SPARSE_TENSOR:
                yield attribute.sparse_tensor.values
            yield from attribute.tensors


def _weights(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from (sparse.values for sparse in graph.sparse_initializer)
