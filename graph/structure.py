"""Structure: an ONNX model without its weights, small enough to send and with nothing in it that was learned.

Read first: `strip`. Its tasks are those of the full model: the same keys, as often, in the same order. (But for layers
whose scale stays outside of the weights because it would make some of them subnormal: made-up weights never are.) What
rewriting looks at is therefore kept, and all else replaced:

- Kept are the ops, their attributes and connections; the names of the model's inputs and outputs and of the open
  dimensions of inputs; text constants; all integers that say where something is (int32, int64, bool); and tensors of
  at most MAX_KEPT elements. Of a tensor with equal elements the one value is kept.
- Placeholders (`onnx_import.placeholders`) stand for all other weights: type, extents, which of them are equal.
- What such weights come to before the model runs is computed here and kept, where the result is of a kind that is kept:
  the one row that a Gather picks, say.
- All other names, documentation, metadata and whatever the format may hold besides are gone.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
)

from .constants import decided
from .ir import Array
from .onnx_import import ModelError, checked, make_plain, shown
from .onnx_import.errors import one_line
from .onnx_import.opsets import standard
from .onnx_import.placeholders import PLACEHOLDER_TYPES, Placeholder, deviation_of
from .onnx_import.weights import Weights

_Scope = ChainMap[str, str]
"""Names of the model -> new names, those of the graphs around behind those of the graph itself."""

MAX_KEPT = 8
"""Most elements of a tensor that is kept whatever its type."""

MIN_IR_VERSION = 4
"""From this file format on an initializer need not be an input too."""


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
    model, folder = checked(source)
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
        self._stay: set[str] = set()  # names of the model that are kept
        self._renamed = 0
        self._sizes = {True: [0, 0], False: [0, 0]}  # whether kept -> tensors and bytes

    def structure(self) -> Structure:
        """All of it."""
        source = self._model.graph
        known = {tensor.name for tensor in source.initializer}
        inputs = [value for value in source.input if value.name not in known]
        self._stay = {value.name for value in (*inputs, *source.output)} | {""}
        graph = GraphProto(name="structure")
        graph.input.extend(ValueInfoProto(name=value.name, type=_bare(value.type)) for value in inputs)
        params = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim}
        for value in source.output:
            graph.output.append(ValueInfoProto(name=value.name, type=_bare(value.type, params)))
        tensors = self._tensors(source)
        values = decided(self._model, self._weights, self._left_out, self._made_up, MAX_KEPT)
        tensors |= {name: self._keep(array) for name, array in values.items()}
        self._fill(graph, source, tensors, ChainMap({name: name for name in self._stay}))
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
        copy.input.extend(_resolved(scope, name, node.op_type) for name in node.input)
        copy.attribute.extend(self._attribute(attribute, scope) for attribute in node.attribute)
        return copy

    def _body(self, source: GraphProto, outer: _Scope) -> GraphProto:
        """A graph inside a node. Its types are for import to find."""
        scope = outer.new_child()
        graph = GraphProto(name="body")
        known = {tensor.name for tensor in source.initializer}
        for value in source.input:
            if value.name not in known:
                graph.input.append(ValueInfoProto(name=self._define(scope, value.name), type=_shapeless(value.type)))
        self._fill(graph, source, self._tensors(source), scope)
        for value in source.output:
            name = _resolved(scope, value.name, "body")
            graph.output.append(ValueInfoProto(name=name, type=_shapeless(value.type)))
        return graph

    def _define(self, scope: _Scope, name: str, passed_over: bool = False) -> str:
        """The new name of what is defined here; of something that nothing reads if `passed_over`."""
        if not passed_over and (not name or (len(scope.maps) == 1 and name in self._stay)):
            return name
        while (fresh := f"t{self._renamed}") in self._stay:
            self._renamed += 1
        self._renamed += 1
        if not passed_over:
            if name in scope.maps[0]:
                raise ModelError(f"{shown(name)} is defined twice")
            scope[name] = fresh
        return fresh

    def _attribute(self, attribute: AttributeProto, scope: _Scope) -> AttributeProto:
        copy = AttributeProto(name=attribute.name, type=attribute.type)
        match attribute.type:
            case AttributeProto.FLOAT:
                copy.f = attribute.f
            case AttributeProto.INT:
                copy.i = attribute.i
            case AttributeProto.STRING:
                copy.s = attribute.s
            case AttributeProto.FLOATS:
                copy.floats.extend(self._numbers(attribute.floats))
            case AttributeProto.INTS:
                copy.ints.extend(attribute.ints)
            case AttributeProto.STRINGS:
                copy.strings.extend(attribute.strings)
            case AttributeProto.TENSOR:
                copy.t.CopyFrom(self._tensor(attribute.t))
            case AttributeProto.TENSORS:
                copy.tensors.extend(map(self._tensor, attribute.tensors))
            case AttributeProto.GRAPH:
                copy.g.CopyFrom(self._body(attribute.g, scope))
            case AttributeProto.GRAPHS:
                copy.graphs.extend(self._body(graph, scope) for graph in attribute.graphs)
            case AttributeProto.TYPE_PROTO:
                copy.tp.CopyFrom(_bare(attribute.tp))
            case _:
                raise ModelError(f"attribute {shown(attribute.name)} is of a kind that is not supported")
        return copy

    def _numbers(self, values: Sequence[float]) -> Sequence[float]:
        """A list of numbers among the attributes: where it is long, what a tree or a linear model has learned."""
        return values if len(values) <= MAX_KEPT else [0.5] * len(values)

    # Tensors

    def _tensors(self, source: GraphProto) -> dict[str, TensorProto]:
        """What stands for the weights and Constants of a graph, by the model's names."""
        main = source is self._model.graph
        found = {}
        for name, tensor in _constants(source):
            if name in found:
                raise ModelError(f"{shown(name)} is defined twice")
            found[name] = self._tensor(tensor)
            given, made = Placeholder.read(tensor), Placeholder.read(found[name])
            if main and made is not None and not made.fill:
                if given is None:
                    self._left_out[name] = found[name]
                else:
                    self._made_up.add(name)
        return found

    def _tensor(self, tensor: TensorProto) -> TensorProto:
        """What stands for a tensor."""
        array = self._weights.array(tensor)  # the checks of import, for placeholders too
        known = Placeholder.read(tensor)
        if known is None and (tensor.data_type not in PLACEHOLDER_TYPES or array.size <= MAX_KEPT):
            return self._keep(array)
        if known is None:
            known = self._placeholder(tensor.data_type, array)
        elif not known.fill:
            known = replace(known, group=self._group(known.group))
        self._count(array, kept=False)
        made = TensorProto(data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL)
        for key, value in known.entries().items():
            made.external_data.add(key=key, value=value)
        return made

    def _placeholder(self, data_type: int, array: Array) -> Placeholder:
        fill = _same_everywhere(array)
        if fill:
            return Placeholder(fill=fill)
        group = self._group((data_type, hashlib.sha256(np.ascontiguousarray(array).data).digest()))
        return Placeholder(group, deviation_of(array.shape))

    def _group(self, identity: object) -> int:
        return self._groups.setdefault(identity, len(self._groups))

    def _keep(self, array: Array) -> TensorProto:
        self._count(array, kept=True)
        return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))

    def _count(self, array: Array, kept: bool) -> None:
        self._sizes[kept][0] += 1
        self._sizes[kept][1] += array.nbytes


def _resolved(scope: Mapping[str, str], name: str, place: str) -> str:
    if name not in scope:
        raise ModelError(f"a node {one_line(place, 40)} reads {shown(name)}, which nothing computes")
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


def _same_everywhere(array: Array) -> bytes:
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


def _bare(kind: TypeProto, params: Collection[str] | None = None) -> TypeProto:
    """The type with no more in it than import reads; of names of dimensions only `params`, all if None."""
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


def _shapeless(kind: TypeProto) -> TypeProto:
    copy = _bare(kind)
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
