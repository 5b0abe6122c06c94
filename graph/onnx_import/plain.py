"""A model made plain: calls of its functions replaced by their nodes, sparse tensors by dense ones, loops made lean.

Beyond what onnx's own inliner does, attributes that a call leaves out get the function's defaults, and the nodes of a
function that was written for another opset than the model keep the meaning that they have there.

Before: `y = f(x)`, `f<alpha = 0.5>(a) => (b) { b = LeakyRelu<alpha = @alpha>(a) }`.
After: `y = LeakyRelu<alpha = 0.5>(x)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)

from tunewright.graph.ir import Array

from ..evaluation.onnx_form import TypeFault, check_shape
from .check import MAX_NODES, MAX_SUBGRAPH_DEPTH, FunctionKey, function_key
from .loops import lean_loops
from .protobuf import (
    ModelError,
    attribute_bodies,
    bodies,
    defined_names,
    nested_nodes,
    note_function,
    place_of,
    quote,
    read_names,
    same_meaning,
    standard,
    versions,
    with_version,
)
from .weights import Weights

MAX_EXPANDED_BYTES = 1 << 30
"""Most bytes of all expanded nodes: a function's nodes are copied once per call."""


def make_plain(model: ModelProto, weights: Weights) -> None:
    """Expand functions, make sparse tensors dense, and have loops carry on what is needed.

    Raises ModelError for a tensor that is none, and where all come to more than MAX_DENSE_BYTES.
    """
    if model.functions:
        expand_functions(model)
    _DenseWriter(weights).write(model.graph)
    lean_loops(model.graph)


def expand_functions(model: ModelProto) -> None:
    """Replace calls by the functions' nodes. The functions are known not to be recursive. Raises ModelError."""
    opsets = versions(model.opset_import)
    expansion = _Expansion(model)
    for function in model.functions:
        for domain, version in versions(function.opset_import).items():
            if opsets.setdefault(domain, version) != version:
                expansion.keep_meaning(function, domain, version, opsets[domain])
    expansion.expand(model.graph)
    model.ClearField("functions")
    model.ClearField("opset_import")
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())


class _Expansion:
    def __init__(self, model: ModelProto) -> None:
        self._functions = {function_key(function): function for function in model.functions}
        self._used_names = defined_names(model.graph)
        self._checked: set[FunctionKey] = set()
        self._name_count = 0  # names
        self._left_nodes = MAX_NODES
        self._left_bytes = MAX_EXPANDED_BYTES

    def keep_meaning(self, function: FunctionProto, domain: str, version: int, around: int) -> None:
        """Have the nodes of a function say their version where they would mean something else in the one `around`."""
        for node in nested_nodes(function.node):
            is_op = standard(node.domain) == domain and function_key(node) not in self._functions
            if is_op and not same_meaning(node.op_type, domain, version, around):
                node.domain = with_version(domain, version)

    def expand(self, graph: GraphProto, depth: int = 0) -> None:
        """Replace the calls in a graph, those in its bodies included."""
        if depth > MAX_SUBGRAPH_DEPTH:
            raise ModelError(
                f"control flow (functions expanded) is nested more than {MAX_SUBGRAPH_DEPTH} deep; "
                "move inner branches and loops out of the outer ones"
            )
        nodes = [inner for node in graph.node for inner in self._expand_node(node, depth)]
        if len(nodes) != len(graph.node) or any(function_key(node) in self._functions for node in graph.node):
            del graph.node[:]
            graph.node.extend(nodes)

    def _expand_node(self, node: NodeProto, depth: int) -> Iterator[NodeProto]:
        self._left_nodes -= 1
        if self._left_nodes < 0:
            raise ModelError(f"the model has more than {MAX_NODES:,} nodes once its functions are expanded")
        for body in bodies(node):
            self.expand(body, depth + 1)
        function = self._functions.get(function_key(node))
        if function is None:
            yield node
            return
        for inner in self._instance(function, node):
            yield from self._expand_node(inner, depth)

    def _instance(self, function: FunctionProto, call: NodeProto) -> Iterator[NodeProto]:
        """The nodes of a function for one call of it."""
        if len(call.input) > len(function.input) or len(call.output) > len(function.output):
            raise ModelError(
                f"{place_of(call)}: {len(call.input)} inputs and {len(call.output)} outputs are more than the "
                f"{len(function.input)} and {len(function.output)} of function {quote(function.name)}"
            )
        self._check_reads(function, call)
        names = dict.fromkeys(function.input, "")
        names.update(zip(function.input, call.input, strict=False))
        copies = []
        for formal, actual in zip(function.output, call.output, strict=False):
            if formal in names and actual:  # an input that is handed on, or an output given twice
                copies.append(NodeProto(op_type="Identity", input=[formal], output=[actual]))
            elif actual:
                names[formal] = actual
        attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}
        for node in function.node:
            copy = NodeProto()
            copy.CopyFrom(node)
            note_function(copy, function.name, call)
            self._rename(copy, names)
            self._bind(copy, attributes)
            self._charge(copy)
            yield copy
        for copy in copies:
            copy.input[0] = self._name(copy.input[0], names)
            yield copy

    def _check_reads(self, function: FunctionProto, call: NodeProto) -> None:
        """Raises ModelError where a node reads what the function does not have. Once for each function."""
        key = function_key(function)
        if key in self._checked:
            return
        self._checked.add(key)
        known = {*function.input, *(name for node in function.node for name in node.output), ""}
        for node in function.node:
            for name in sorted(read_names(node) - known):
                raise ModelError(
                    f"{place_of(node)} in function {quote(function.name)}, called by {place_of(call)}, reads "
                    f"{quote(name)}, which is no input of the function and which nothing in it computes"
                )

    def _rename(self, node: NodeProto, names: dict[str, str]) -> None:
        """Give a node of a function, and what is in its bodies, names that mean the same where the call stands."""
        node.input[:] = [self._name(name, names) for name in node.input]
        node.output[:] = [self._name(name, names) for name in node.output]
        for body in bodies(node):
            tensors = (*body.initializer, *(sparse.values for sparse in body.sparse_initializer))
            for item in (*tensors, *body.input, *body.output):
                item.name = self._name(item.name, names)
            for inner in body.node:
                self._rename(inner, names)

    def _name(self, name: str, names: dict[str, str]) -> str:
        if name and name not in names:
            while (new_name := f"{name}_{self._name_count}") in self._used_names:
                self._name_count += 1
            self._name_count += 1
            names[name] = new_name
        return names[name] if name else ""

    def _bind(self, node: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
        """Put the attributes of a call, or the defaults, where a node refers to them; what is in neither is absent."""
        result = []
        for attribute in node.attribute:
            bound = attribute
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in attributes:
                    continue
                bound = AttributeProto()
                bound.CopyFrom(attributes[attribute.ref_attr_name])
                bound.name = attribute.name
                self._charge(bound)
            else:
                for body in attribute_bodies(attribute):
                    for inner in body.node:
                        self._bind(inner, attributes)
            result.append(bound)
        del node.attribute[:]
        node.attribute.extend(result)

    def _charge(self, item: NodeProto | AttributeProto) -> None:
        self._left_bytes -= item.ByteSize()
        if self._left_bytes < 0:
            raise ModelError(f"the functions of the model come to more than {MAX_EXPANDED_BYTES:,} bytes when expanded")


# Sparse tensors, made dense before anything else looks at them

MAX_DENSE_BYTES = 1 << 30
"""Most bytes of the sparse tensors of one model once dense: a few bytes of a file can ask for any shape."""


class _DenseWriter:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._left_bytes = MAX_DENSE_BYTES

    def write(self, graph: GraphProto) -> None:
        graph.initializer.extend(self._tensor(sparse) for sparse in graph.sparse_initializer)
        graph.ClearField("sparse_initializer")
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.type == AttributeProto.SPARSE_TENSOR:
                    tensor = self._tensor(attribute.sparse_tensor)
                    attribute.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=tensor))
            for body in bodies(node):
                self.write(body)

    def _tensor(self, sparse: SparseTensorProto) -> TensorProto:
        name = sparse.values.name
        place = f"sparse weight {quote(name)}"
        try:
            check_shape(sparse.dims)
        except TypeFault as fault:
            raise ModelError(f"{place}: {fault}") from fault
        shape = tuple(sparse.dims)
        values = self._weights.array(sparse.values)
        if values.ndim != 1 or values.dtype.kind in "OUST":
            raise ModelError(f"{place}: its values are no vector of numbers, but {list(values.shape)}")
        self._left_bytes -= prod(shape) * values.itemsize
        if self._left_bytes < 0:
            raise ModelError(
                f"{place}: sparse weights of more than {MAX_DENSE_BYTES:,} bytes once they are dense; store them dense"
            )
        places = _places(self._weights.array(sparse.indices), len(values), shape, place)
        dense = np.zeros(prod(shape), values.dtype)
        dense[places] = values
        return numpy_helper.from_array(dense.reshape(shape), name)


def _places(indices: Array, count: int, shape: tuple[int, ...], place: str) -> NDArray[np.int64]:
    """The flat indices of the values, from flat indices or from one coordinate for each axis."""
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"{place}: its indices are {indices.dtype}{list(indices.shape)} for {count:,} values of {len(shape)} axes; "
            f"int64[{count}] or int64[{count}, {len(shape)}] would fit"
        )
    numbers = np.asarray(indices, np.int64)
    extents = np.asarray(shape if numbers.ndim == 2 else prod(shape), np.int64)
    if ((numbers < 0) | (numbers >= extents)).any():
        raise ModelError(f"{place}: an index is not within {' x '.join(map(str, shape))}")
    strides = np.asarray([prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)
    places = numbers @ strides if numbers.ndim == 2 else numbers
    if len(np.unique(places)) < count:
        raise ModelError(f"{place}: two values have the same index")
    return places
