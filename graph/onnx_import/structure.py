"""Structure: an ONNX model without its weights, small enough to send and with nothing in it that was learned.

Read first: `strip`. Its tasks are those of the full model: the same keys, as often, in the same order. (But for layers
whose scale stays outside of the weights because it would make some of them subnormal: made-up weights never are.) What
rewriting looks at is therefore kept, and all else replaced:

- Kept are the ops, their attributes and connections; the names of the model's inputs and outputs and of the open
  dimensions of inputs; text constants; all integers that say where something is (int32, int64, bool); and tensors of
  at most MAX_KEPT elements. Of a tensor with equal elements the one value is kept.
- Placeholders (`onnx_import.placeholders`) stand for all other weights: type, extents, which of them are equal,
  of bytes the least and the largest, and whether a narrow type has all values of float32: kernels are others then.
- What such weights come to before the model runs is computed here and kept, where the result is of a kind that is kept:
  the one row that a Gather picks, say.
- All other names, documentation, metadata and whatever the format may hold besides are gone.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
)

from ..evaluation.fallback import FOLDED_OPS
from ..evaluation.onnx_form import DTYPES, dtype_name
from ..ir import Array
from ..narrow_types import narrow_type
from . import ModelError, make_plain, quote, read_model
from .output_types import value_info
from .placeholders import PLACEHOLDER_TYPES, Placeholder, deviation_of
from .protobuf import bodies, domain_and_version, one_line, standard, topological_order, versions
from .walk import Walk
from .weights import Weights

_Scope = ChainMap[str, str]
"""Names of the model -> new names, those of the graphs around behind those of the graph itself."""

MAX_KEPT = 8
"""Most elements of a tensor that is kept whatever its type."""

MIN_IR_VERSION = 4
"""The file format from which on an initializer need not be an input too."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A model without its weights, and how much of it that is."""

    data: bytes  # the ONNX model
    left_out: int  # tensors whose values are not in it
    left_out_bytes: int
    kept: int  # tensors whose values are, see MAX_KEPT and `onnx_import.placeholders`
    kept_bytes: int

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes: models that differ in nothing but weights have the same."""
        return hashlib.sha256(self.data).hexdigest()


def strip(source: Path | str | bytes) -> Structure:
    """The structure of an ONNX model, given as its bytes or as a path.

    Equal models give equal bytes, and the structure of a structure is itself. External files are read a tensor at a
    time. Raises ModelError (one line for people) and OSError.
    """
    model, folder = read_model(source)
    weights = Weights(folder)
    make_plain(model, weights)
    return _Strip(model, weights).structure()


class _Strip:
    """The work on one model. Groups of placeholders and new names are numbered in order of appearance."""

    def __init__(self, model: ModelProto, weights: Weights) -> None:
        self._model = model
        self._weights = weights
        self._groups: dict[object, int] = {}
        self._left_out: dict[str, TensorProto] = {}  # of the main graph: by the model's name
        self._made_up: set[str] = set()  # likewise: were placeholders before
        self._domains = {""}
        self._public_names: set[str] = set()  # names of the model that are kept
        self._name_count = 0
        self._sizes = {True: [0, 0], False: [0, 0]}  # whether kept -> tensors and bytes

    def structure(self) -> Structure:
        """The structure of the model."""
        source = self._model.graph
        known = {tensor.name for tensor in source.initializer}
        inputs = [value for value in source.input if value.name not in known]
        self._public_names = {value.name for value in (*inputs, *source.output)} | {""}
        graph = GraphProto(name="structure")
        graph.input.extend(ValueInfoProto(name=value.name, type=_bare_type(value.type)) for value in inputs)
        params = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim}
        for value in source.output:
            graph.output.append(ValueInfoProto(name=value.name, type=_bare_type(value.type, params)))
        tensors = self._tensors(source)
        values = fold_decisive(self._model, self._weights, self._left_out, self._made_up, MAX_KEPT)
        tensors |= {name: self._keep(array) for name, array in values.items()}
        self._fill(graph, source, tensors, ChainMap({name: name for name in self._public_names}))
        model = ModelProto(ir_version=max(self._model.ir_version, MIN_IR_VERSION), graph=graph)
        for opset in self._model.opset_import:
            if standard(opset.domain) in self._domains:
                model.opset_import.append(helper.make_opsetid(standard(opset.domain), opset.version))
        (kept, kept_bytes), (left_out, left_out_bytes) = self._sizes[True], self._sizes[False]
        return Structure(model.SerializeToString(deterministic=True), left_out, left_out_bytes, kept, kept_bytes)

    # Nodes and names

    def _fill(self, graph: GraphProto, source: GraphProto, tensors: Mapping[str, TensorProto], scope: _Scope) -> None:
        """Put tensors and nodes into a graph that has its inputs, under new names."""
        nodes = [node for node in source.node if not (node.output and tensors.keys() >= set(node.output))]
        for name, tensor in tensors.items():
            tensor.name = self._define(scope, name)
            graph.initializer.append(tensor)
        results = [[self._define(scope, name, name in tensors) for name in node.output] for node in nodes]
        for node, outputs in zip(nodes, results, strict=True):
            graph.node.append(self._node(node, outputs, scope))

    def _node(self, node: NodeProto, outputs: Iterable[str], scope: _Scope) -> NodeProto:
        copy = NodeProto(op_type=node.op_type, domain=standard(node.domain), output=outputs)
        self._domains.add(copy.domain)
        copy.input.extend(_resolve(scope, name, node.op_type) for name in node.input)
        copy.attribute.extend(self._attribute(attribute, scope) for attribute in node.attribute)
        return copy

    def _body(self, source: GraphProto, outer: _Scope) -> GraphProto:
        """The structure of a graph inside a node. Its types are left for import to infer."""
        scope = outer.new_child()
        graph = GraphProto(name="body")
        known = {tensor.name for tensor in source.initializer}
        for value in source.input:
            if value.name not in known:
                graph.input.append(
                    ValueInfoProto(name=self._define(scope, value.name), type=_shapeless_type(value.type))
                )
        self._fill(graph, source, self._tensors(source), scope)
        for value in source.output:
            name = _resolve(scope, value.name, "body")
            graph.output.append(ValueInfoProto(name=name, type=_shapeless_type(value.type)))
        return graph

    def _define(self, scope: _Scope, name: str, is_unread: bool = False) -> str:
        """The new name of what is defined here; of something that nothing reads if `is_unread`."""
        if not is_unread and (not name or (len(scope.maps) == 1 and name in self._public_names)):
            return name
        while (new_name := f"t{self._name_count}") in self._public_names:
            self._name_count += 1
        self._name_count += 1
        if not is_unread:
            if name in scope.maps[0]:
                raise ModelError(f"{quote(name)} is defined twice")
            scope[name] = new_name
        return new_name

    def _attribute(self, attribute: AttributeProto, scope: _Scope) -> AttributeProto:
        copy = AttributeProto(name=attribute.name, type=attribute.type)
        match attribute.type:
            case AttributeProto.FLOAT | AttributeProto.INT | AttributeProto.STRING:
                field = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i"}.get(attribute.type, "s")
                setattr(copy, field, getattr(attribute, field))
            case AttributeProto.INTS | AttributeProto.STRINGS:
                copy.ints.extend(attribute.ints)
                copy.strings.extend(attribute.strings)
            case AttributeProto.FLOATS:  # where it is long, what a tree or a linear model has learned
                numbers = attribute.floats
                copy.floats.extend(numbers if len(numbers) <= MAX_KEPT else [0.5] * len(numbers))
            case AttributeProto.TENSOR:
                copy.t.CopyFrom(self._tensor(attribute.t))
            case AttributeProto.TENSORS:
                copy.tensors.extend(map(self._tensor, attribute.tensors))
            case AttributeProto.GRAPH:
                copy.g.CopyFrom(self._body(attribute.g, scope))
            case AttributeProto.GRAPHS:
                copy.graphs.extend(self._body(graph, scope) for graph in attribute.graphs)
            case AttributeProto.TYPE_PROTO:
                copy.tp.CopyFrom(_bare_type(attribute.tp))
            case _:
                raise ModelError(f"attribute {quote(attribute.name)} is of a kind that is not supported")
        return copy

    # Tensors

    def _tensors(self, source: GraphProto) -> dict[str, TensorProto]:
        """Name of the model -> the tensor that replaces that weight or Constant of a graph."""
        main = source is self._model.graph
        tensors = {}
        for name, tensor in _constants(source):
            if name in tensors:
                raise ModelError(f"{quote(name)} is defined twice")
            tensors[name] = self._tensor(tensor)
            old, new = Placeholder.read(tensor), Placeholder.read(tensors[name])
            if main and new is not None and not new.fill:
                if old is None:
                    self._left_out[name] = tensors[name]
                else:
                    self._made_up.add(name)
        return tensors

    def _tensor(self, tensor: TensorProto) -> TensorProto:
        """The tensor that replaces one of the model: its values or a placeholder."""
        array = self._weights.array(tensor)  # the checks of import, for placeholders too
        placeholder = Placeholder.read(tensor)
        if placeholder is None and (tensor.data_type not in PLACEHOLDER_TYPES or array.size <= MAX_KEPT):
            return self._keep(array)
        if placeholder is None:
            placeholder = self._placeholder(tensor.data_type, array)
        elif not placeholder.fill:
            placeholder = replace(placeholder, group=self._group(placeholder.group))
        self._count(array, is_kept=False)
        proto = TensorProto(data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL)
        for key, value in placeholder.entries().items():
            proto.external_data.add(key=key, value=value)
        return proto

    def _placeholder(self, data_type: int, array: Array) -> Placeholder:
        fill = _uniform_element(array)
        if fill:
            return Placeholder(fill=fill)
        group = self._group((data_type, hashlib.sha256(np.ascontiguousarray(array).data).digest()))
        ends = (int(array.min()), int(array.max())) if data_type in (TensorProto.INT8, TensorProto.UINT8) else None
        narrow = narrow_type(array) if data_type == TensorProto.FLOAT else None
        return Placeholder(group, deviation_of(array.shape), range=ends, narrow=narrow.name if narrow else "")

    def _group(self, identity: object) -> int:
        return self._groups.setdefault(identity, len(self._groups))

    def _keep(self, array: Array) -> TensorProto:
        self._count(array, is_kept=True)
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))

    def _count(self, array: Array, is_kept: bool) -> None:
        self._sizes[is_kept][0] += 1
        self._sizes[is_kept][1] += array.nbytes


def _resolve(scope: Mapping[str, str], name: str, place: str) -> str:
    if name not in scope:
        raise ModelError(f"a node {one_line(place, 40)} reads {quote(name)}, which nothing computes")
    return scope[name]


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """The weights of a graph and what its Constants hold, by name."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type != "Constant" or standard(node.domain) or len(node.attribute) != 1 or len(node.output) != 1:
            continue
        [attribute] = node.attribute
        if attribute.name == "value":
            yield node.output[0], attribute.t
        elif attribute.name in _CONSTANT_TYPES:
            value = helper.get_attribute_value(attribute)
            yield node.output[0], numpy_helper.from_array(np.asarray(value, _CONSTANT_TYPES[attribute.name]))


_CONSTANT_TYPES: Mapping[str, type] = {
    "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
    "value_string": object, "value_strings": object,
}  # fmt: skip


def _uniform_element(array: Array) -> bytes:
    """The element, little-endian, that all of the array is equal to; empty if there is none."""
    flat = array.reshape(-1)
    first = flat[:1]
    for part in (flat[:64], flat):  # most arrays are told by the first few
        if not ((part == first).all() or (_bits(part) == _bits(first)).all()):
            return b""
    return first.astype(array.dtype.newbyteorder("<")).tobytes()


def _bits(array: Array) -> Array:
    """The bytes of a vector's elements, a row each: NaN is no number, but may be the same everywhere."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)


def _bare_type(kind: TypeProto, params: Collection[str] | None = None) -> TypeProto:
    """A copy of the type with only what import reads; of names of dimensions only `params`, all if None."""
    copy: TypeProto = TypeProto.FromString(kind.SerializeToString())
    copy.DiscardUnknownFields()
    for inner in _levels(copy):
        inner.ClearField("denotation")
        if not inner.HasField("tensor_type"):
            continue
        for dim in inner.tensor_type.shape.dim:
            dim.ClearField("denotation")
            if params is not None and dim.HasField("dim_param") and dim.dim_param not in params:
                dim.Clear()
    return copy


def _shapeless_type(kind: TypeProto) -> TypeProto:
    copy = _bare_type(kind)
    for inner in _levels(copy):
        if inner.HasField("tensor_type"):
            inner.tensor_type.ClearField("shape")
    return copy


def _levels(kind: TypeProto) -> Iterator[TypeProto]:
    """A type and what it is a sequence or an option of."""
    yield kind
    if kind.HasField("sequence_type"):
        yield from _levels(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        yield from _levels(kind.optional_type.elem_type)


# Folding of weights where the values decide what is computed

DECISIVE_TYPES = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING})
"""Element types of indices, extents and masks."""

DECISIVE_DTYPES = frozenset(DTYPES[kind] for kind in DECISIVE_TYPES)
"""DECISIVE_TYPES as `dtype_name` writes them."""


def fold_decisive(
    model: ModelProto,
    weights: Weights,
    left_out: Mapping[str, TensorProto],
    made_up: Collection[str],
    most_elements: int,
) -> dict[str, Array]:
    """The values, by name, of what nodes make of weights that are `left_out` and of nothing else but constants.

    Only those are given that have a DECISIVE_TYPE or at most `most_elements`, and that import folds. What depends on
    one of `made_up` has no value worth keeping. Of `left_out` types and extents are looked at. Raises ModelError.
    """
    nodes = _foldable_nodes(model.graph, left_out, made_up)
    outputs = _decisive_outputs(model, nodes, left_out, most_elements)
    if not outputs:
        return {}
    needed_nodes = _ancestors([node for node, _ in nodes], outputs)
    read_names = {name for node in needed_nodes for name in node.input}
    part = _part(
        model, needed_nodes, [tensor for tensor in model.graph.initializer if tensor.name in read_names], (), outputs
    )
    graph = Walk(weights).graph(part, {})
    values = {value.label: graph.constants.get(value.tensor) for value in graph.outputs}
    return {
        name: array
        for name, array in values.items()
        if array is not None and (array.size <= most_elements or dtype_name(array) in DECISIVE_DTYPES)
    }


def _foldable_nodes(
    graph: GraphProto, left_out: Collection[str], made_up: Collection[str]
) -> list[tuple[NodeProto, bool]]:
    """The nodes that can be computed ahead, in order, and whether what they make depends on a weight left out."""
    tensors = {tensor.name for tensor in graph.initializer}
    known = {name: name in left_out for name in tensors.difference(made_up)}
    all_names = {name: name for name in tensors | {value.name for value in graph.input} | {""}}
    foldable = []
    for node in topological_order(graph.node, all_names):
        domain, _ = domain_and_version(node.domain, {})
        if domain or any(True for _ in bodies(node)) or not set(made_up).isdisjoint(node.output):
            continue
        if node.op_type == "Constant":
            is_from_weights = any(name in left_out for name in node.output)
        elif node.op_type in FOLDED_OPS and all(name in known for name in node.input if name):
            is_from_weights = any(known[name] for name in node.input if name)
        else:
            continue
        known.update(dict.fromkeys(filter(None, node.output), is_from_weights))
        foldable.append((node, is_from_weights))
    return foldable


def _decisive_outputs(
    model: ModelProto,
    nodes: Collection[tuple[NodeProto, bool]],
    left_out: Mapping[str, TensorProto],
    most_elements: int,
) -> list[str]:
    """The outputs whose values matter, as far as inference can tell; those that it can't tell anything about too."""
    weight_nodes = [node for node, is_from_weights in nodes if is_from_weights and node.op_type != "Constant"]
    if not weight_nodes:
        return []
    read_names = {name for node, _ in nodes for name in node.input}
    inputs = [value_info(left_out[name], name) for name in left_out if name in read_names]
    tensors = [
        tensor for tensor in model.graph.initializer if tensor.name in read_names and tensor.name not in left_out
    ]
    part_nodes = [
        node for node, _ in nodes if node.op_type != "Constant" or not set(node.output).intersection(left_out)
    ]
    part = _part(model, part_nodes, tensors, inputs, ())
    try:
        types = {value.name: value.type for value in shape_inference.infer_shapes(part).graph.value_info}
    except shape_inference.InferenceError:  # import will say what is wrong, where anything is
        types = {}
    return [
        name
        for node in weight_nodes
        for name in node.output
        if name and _is_decisive_type(types.get(name), most_elements)
    ]


def _is_decisive_type(kind: TypeProto | None, most_elements: int) -> bool:
    if kind is None or kind.tensor_type.elem_type in DECISIVE_TYPES or not kind.tensor_type.HasField("shape"):
        return True
    dims = kind.tensor_type.shape.dim
    return not all(dim.HasField("dim_value") for dim in dims) or prod(dim.dim_value for dim in dims) <= most_elements


def _ancestors(nodes: Collection[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes that it takes to compute the tensors, in order."""
    needed = set(outputs)
    ancestors = []
    for node in reversed(list(nodes)):
        if needed.intersection(node.output):
            needed.update(node.input)
            ancestors.append(node)
    return ancestors[::-1]


def _part(
    model: ModelProto,
    nodes: Iterable[NodeProto],
    tensors: Iterable[TensorProto],
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[str],
) -> ModelProto:
    """A model of some of the nodes."""
    graph = GraphProto(name="part", node=nodes, initializer=tensors, input=inputs)
    graph.output.extend(ValueInfoProto(name=name) for name in outputs)
    imports = [helper.make_opsetid(domain, version) for domain, version in versions(model.opset_import).items()]
    return helper.make_model(graph, opset_imports=imports)
