"""The walk over a parsed model that makes a graph: it infers types, folds constants and normalises nodes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
)

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Array, Body, DefaultInput, Graph, GraphPort, MapInput, Node, TensorType

from .. import contrib
from ..evaluation.onnx_form import (
    CAPTURES,
    FUNCTIONS,
    TypeFault,
    attribute_value,
    infer,
    infer_protos,
    tensor_type,
    type_proto,
)
from .bound_inputs import bound_inputs, split_bindings
from .control_types import ControlBudget, ControlFlow, WalkedBody
from .counters import Counters
from .decompositions import DECOMPOSITIONS, is_composite, modernise
from .definitions import definition_of
from .dimensions import Dimensions
from .loops import loop_after
from .maps import MAP_READERS, map_inputs, output_port, read_map, row_inputs
from .normal import normal
from .op_schema import OpSchema, check_node, schema_of
from .output_types import check_output, close_bodies, fix_types, known_shape, rank, value_info
from .protobuf import (
    MisfitError,
    ModelError,
    StructuralFault,
    bodies,
    free_names,
    name_of,
    one_line,
    place_of,
    quote,
    topological_order,
    versions,
)
from .ranks import is_rank_free, with_ranks
from .sequences import Sequences
from .shapes import check_operands, check_shapes
from .signature import check_attributes, check_call, check_elements, signature
from .weights import Weights


@dataclass(frozen=True, slots=True)
class NameScope:
    """The scope of the model's names: the whole graph, or a part that is being inlined."""

    opsets: Mapping[str, int]
    names: MutableMapping[str, str]  # of the model -> ours; "" -> ""
    place: str = ""  # of the node whose definition this is

    def inner(self) -> NameScope:
        """A scope that sees this one and keeps its own definitions to itself."""
        return NameScope(self.opsets, ChainMap({}, self.names), self.place)


class Walk:
    """Turns one model, whose structure has been checked, into a graph."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._draft = Draft()
        self._protos: dict[str, TypeProto] = {}  # as Draft.types, but with the extents that are known
        self._sequences = Sequences(self._draft)
        self._counters = Counters(self._draft, {})
        self._source = GraphProto()  # what is being added
        self._budget = ControlBudget()
        self._maps: Mapping[str, MapInput] = {}  # by the tensor that is a row of it

    def graph(self, model: ModelProto, dims: Mapping[str, int], weight_inputs: Collection[str] = ()) -> Graph:
        """The graph, in which weights of the names `weight_inputs` are inputs. Raises ModelError."""
        source = model.graph
        scope = NameScope(versions(model.opset_import), {"": ""})
        tensors = {tensor.name: tensor for tensor in source.initializer}
        defaults = [value_info(tensors[value.name]) for value in source.input if value.name in tensors]
        if unknown := set(weight_inputs).difference(value.name for value in defaults):
            raise ModelError(f"{quote(min(unknown))} is no weight of the model that may be given")
        maps = map_inputs(source)
        free = [value for value in row_inputs(source, maps) if value.name not in tensors]
        sizes, values = split_bindings(dims)
        bound = bound_inputs(values, free)
        for item in bound:
            self._define_constant(scope, item.label, item.value)
        free = [value for value in free if value.name not in values]
        dimensions = Dimensions(sizes, free)
        inputs = []
        for value in (*free, *(value for value in defaults if value.name in weight_inputs)):
            kind = dimensions.bind(value)
            row = self._define(scope, value.name, type_proto(kind))
            inputs.append(GraphPort(value.name, row, map=maps.get(value.name)))
        self._maps = {port.tensor: port.map for port in inputs if port.map is not None}
        self._add_weights((tensor for tensor in source.initializer if tensor.name not in weight_inputs), scope)
        self._add_nodes(source, scope)
        outputs = []
        for value in source.output:
            tensor = scope.names.get(value.name)
            if not tensor:
                raise ModelError(f"nothing computes the output {quote(value.name)}")
            port = output_port(self._draft, value.name, tensor)
            check_output(value, self._draft.types[port.tensor].dtype)
            outputs.append(port)
        graph = self._draft.finish(inputs, outputs)
        constant_weights = [value for value in defaults if value.name not in weight_inputs]
        kept = tuple(DefaultInput(value.name, dimensions.bind(value)) for value in constant_weights)
        return replace(graph, defaults=kept, bound=bound, has_external_data=self._weights.has_external)

    def _define(self, scope: NameScope, name: str, proto: TypeProto) -> str:
        """Our tensor for a name that the model defines here. Raises ModelError if taken, TypeFault by its type."""
        if not name or name in (scope.names.maps[0] if isinstance(scope.names, ChainMap) else scope.names):
            raise ModelError(f"{quote(name)} is defined twice" if name else "a tensor has no name")
        tensor = self._draft.new_tensor(tensor_type(proto))
        self._protos[tensor] = proto
        scope.names[name] = tensor
        return tensor

    def _define_constant(self, scope: NameScope, name: str, array: Any) -> None:
        kind = TensorType("string" if array.dtype.kind in "OUST" else array.dtype.name, array.shape)
        self._draft.constants[self._define(scope, name, type_proto(kind))] = array

    def _add_graph(self, graph: GraphProto, scope: NameScope) -> None:
        self._add_weights(graph.initializer, scope)
        self._add_nodes(graph, scope)

    def _add_weights(self, tensors: Iterable[TensorProto], scope: NameScope) -> None:
        for tensor in tensors:
            self._define_constant(scope, tensor.name, self._weights.array(tensor))

    def _add_nodes(self, graph: GraphProto, scope: NameScope) -> None:
        around = self._source
        for node in topological_order(graph.node, scope.names):
            self._source = graph
            self._add_node(node, scope)
        self._source = around

    def _add_node(self, proto: NodeProto, scope: NameScope) -> None:
        place = f"{scope.place}, in its definition at {proto.op_type}" if scope.place else place_of(proto)
        if not scope.place:  # what stands in a definition bears the name of its call
            self._draft.work_on([name_of(proto)])
        op = schema_of(proto, scope.opsets, place)
        try:
            if proto.op_type == "Constant" and not op.domain:
                self._define_constant(scope, *self._constant(proto, place))
            elif proto.op_type == "If" and not op.domain and self._inline_branch(proto, scope):
                pass
            else:
                node = self._node(proto, op, scope, place)
                self._add(node, proto, scope, place)
        except StructuralFault as fault:
            raise ModelError(f"{place}: {one_line(fault)}") from fault
        except TypeFault as fault:
            raise MisfitError(f"{place}: {one_line(fault)}") from fault

    def _infer(self, node: Node, kinds: Sequence[TypeProto | None], values: Sequence[Array | None]) -> list[TypeProto]:
        try:
            return infer_protos(node, kinds, values)
        except TypeFault as fault:
            operands = ", ".join(str(self._draft.types[name]) if name else "none" for name in node.inputs)
            raise TypeFault(f"{fault} (operands {operands})") from fault

    def _constant(self, proto: NodeProto, place: str) -> tuple[str, Any]:
        """The model's name for it, and the value."""
        if len(proto.attribute) != 1 or len(proto.output) != 1:
            raise ModelError(f"{place}: a Constant has one attribute and one output")
        attribute = proto.attribute[0]
        match attribute.name:
            case "value":
                return proto.output[0], self._weights.array(attribute.t)
            case "value_int" | "value_ints":
                return proto.output[0], np.asarray(self._attribute(attribute, place), np.int64)
            case "value_float" | "value_floats":
                return proto.output[0], np.asarray(self._attribute(attribute, place), np.float32)
            case "value_string" | "value_strings":
                return proto.output[0], np.asarray(self._attribute(attribute, place), object)
            case name:
                raise ModelError(f"{place}: a Constant given by {quote(name)} is not supported")

    def _inline_branch(self, proto: NodeProto, scope: NameScope) -> bool:
        """Add the branch of an If that a known condition takes. False if the condition is not known."""
        condition = self._draft.array(scope.names[proto.input[0]]) if len(proto.input) == 1 else None
        branches = {attribute.name: attribute.g for attribute in proto.attribute}
        if condition is None or condition.size != 1 or branches.keys() != {"then_branch", "else_branch"}:
            return False
        branch = branches["then_branch" if condition.item() else "else_branch"]
        if len(branch.output) != len(proto.output):
            raise TypeFault(
                f"{len(branch.output)} outputs of the branch that is taken, {len(proto.output)} of the node"
            )
        inner = scope.inner()
        self._add_graph(branch, inner)
        for name, value in zip(proto.output, branch.output, strict=True):
            if not inner.names.get(value.name):
                raise ModelError(f"nothing computes {quote(value.name)}, an output of a branch")
            self._name(name, inner.names[value.name], scope)
        return True

    def _node(self, proto: NodeProto, op: OpSchema, scope: NameScope, place: str) -> Node:
        """The node in ONNX's form, over our tensors; its outputs are still the model's names."""
        attrs = {
            name: attribute_value(item.default_value)
            for name, item in op.schema.attributes.items()
            if item.default_value.type != AttributeProto.UNDEFINED
        }
        captures: dict[str, str] = {}
        check_call(proto, signature(op.schema.name, op.version, op.domain))
        if any(True for _ in bodies(proto)):
            proto, closure = close_bodies(proto, op.version, scope.names.get, self._weights)
            captures = closure.names
            attrs[CAPTURES] = tuple(captures.values())
            if closure.functions:
                attrs[FUNCTIONS] = ModelProto(functions=closure.functions).SerializeToString()
        elif (op.domain, proto.op_type) not in contrib.OPS:
            check_node(proto, op, scope.opsets, place)
        for attribute in proto.attribute:
            attrs[attribute.name] = self._attribute(attribute, place)
        check_attributes(proto.op_type, op.domain, attrs)
        inputs = [scope.names[name] for name in proto.input]
        while inputs and not inputs[-1] and not captures:  # which stand behind those that the op has
            inputs.pop()
        outputs = list(proto.output)
        while outputs and not outputs[-1] and proto.op_type != "Split":  # of whose parts it matters how many there are
            outputs.pop()
        return Node(proto.op_type, (*inputs, *captures), tuple(outputs), attrs, op.domain, op.version, place)

    def _attribute(self, attribute: AttributeProto, place: str) -> Any:
        if attribute.ref_attr_name:
            raise ModelError(f"{place}: attribute {quote(attribute.name)} refers to a function's, but is in none")
        if attribute.type == AttributeProto.TENSOR:
            return self._weights.array(attribute.t)
        try:
            return attribute_value(attribute)
        except ValueError as error:
            raise ModelError(f"{place}: attribute {quote(attribute.name)} is not supported") from error

    def _add(self, node: Node, proto: NodeProto, scope: NameScope, place: str) -> None:
        draft, node = self._draft, self._adapt(node)
        if (node.domain, node.op) in MAP_READERS:
            self._name(node.outputs[0], read_map(draft, node, self._maps), scope)
            return
        kinds = [self._protos[name] if name else None for name in node.inputs]
        values = [draft.array(name) if name else None for name in node.inputs]
        types = [draft.types[name] if name else None for name in node.inputs]
        explicit = len(node.inputs) - len(node.attrs.get(CAPTURES, ()))
        check_elements(types[:explicit], signature(node.op, node.version, node.domain))
        check_operands(
            node, [rank(kind) for kind in kinds], [None if kind is None else kind.shape for kind in types], values
        )
        if (node.domain, node.op) in contrib.OPS:
            self._write_contrib(node, scope, place)
            return
        if is_composite(node) and self._expand(node, kinds, scope, place):
            return
        for known in (self._sequences, self._counters):
            if (held := known.read(node)) is not None:
                self._name(node.outputs[0], held, scope)
                return
        if CAPTURES in node.attrs:
            input_types = [TypeProto() if kind is None else kind for kind in kinds[:explicit]]
            graphs = {item.name: item.g for item in proto.attribute if item.type == AttributeProto.GRAPH}
            walk = partial(self._walk_body, scope, node)
            flow = ControlFlow(
                node, graphs, input_types, values[:explicit], proto.output, partial(is_rank_free, self._source), walk,
                self._budget,
            )  # fmt: skip
            output_types = flow.types()
            if flow.ranks:
                self._add_node(with_ranks(proto, flow.ranks), scope)
                return
            if flow.first:
                self._write_out(proto, scope, flow)
                return
            node = replace(self._counted(node, flow.trips), bodies=flow.bodies)
        else:
            output_types = self._infer(node, kinds, values)
        if output_types and node.inputs and node.inputs[0]:
            output_types = fix_types(
                node, output_types, [draft.shape(name) if name else None for name in node.inputs], values
            )
        outputs = [self._define(scope, name, output_types[k]) if name else "" for k, name in enumerate(node.outputs)]
        node = replace(node, outputs=tuple(outputs))
        self._sequences.note(node)
        self._counters.note(node)
        shapes = [draft.shape(name) if name else () for name in (*node.inputs, *node.outputs)]
        if None not in shapes:
            count = len(node.inputs)
            check_shapes(node, shapes[:count], shapes[count:])  # type: ignore[arg-type]
        shape = known_shape(node, self._protos[node.inputs[0]]) if node.op in ("Shape", "Size") else None
        if shape is not None:
            draft.constants[outputs[0]] = shape
            return
        draft.add(self._normal(node))
        for name in outputs:
            if name in draft.constants:
                self._protos[name] = type_proto(draft.types[name])

    def _adapt(self, node: Node) -> Node:
        """The node as inference and the rest of the import expect it."""
        result = modernise(self._draft, node) if node.version < 7 else node
        if not node.domain and node.op == "Range":  # ONNX's own AffineGrid passes vectors of one element
            result = self._scalar_operands(node)
        if not node.domain and node.op == "Pad" and len(node.inputs) > 3:
            axes = self._draft.array(node.inputs[3])
            if axes is not None and axes.dtype == np.int32:  # inference reads those that are known as int64 alone
                result = replace(node, inputs=(*node.inputs[:3], self._draft.cast(node.inputs[3], "int64")))
        if result is not node:
            self._note(result.inputs)
        return result

    def _counted(self, node: Node, trips: int | None) -> Node:
        """A Loop that has a trip count and no condition, where it is known how often it runs."""
        if trips is None:
            return node
        count = self._draft.constant(np.asarray(trips, np.int64))
        self._note([count])
        first = min(len(node.inputs) - len(node.attrs[CAPTURES]), 2)
        return replace(node, inputs=((count, "")[:first] + node.inputs[first:]))

    def _write_out(self, proto: NodeProto, scope: NameScope, flow: ControlFlow) -> None:
        """Put the first iterations of a Loop before what is left of it, if anything is."""
        draft, body, count = self._draft, flow.graphs["body"], len(proto.input) - 2
        states, rows = [scope.names[name] for name in proto.input[2:]], list[list[str]]()
        condition = ""
        for number in range(flow.first):
            inner = scope.inner()
            own = (draft.constant(np.asarray(number)), draft.constant(np.asarray(True)), *states)
            self._note(own)
            inner.names.update(zip((value.name for value in body.input), own, strict=True))
            self._add_graph(body, inner)
            condition, *results = (inner.names[value.name] for value in body.output)
            states = results[:count]
            rows.append(list(map(self._row, results[count:])))
        if flow.trips != flow.first:
            inner = scope.inner()
            rest = loop_after(proto, flow.first)
            most = flow.values[0]
            trips = "" if most is None else draft.constant(np.asarray(most.item() - flow.first))
            self._note([trips])
            inner.names.update(zip(rest.input, (trips, condition, *states), strict=True))
            self._add_node(rest, inner)
            results = [inner.names[name] for name in rest.output]
            states = results[:count]
            rows.append(results[count:])
        stacks = [draft.emit("Concat", *parts, axis=0) for parts in zip(*rows, strict=True)]
        for name, tensor in zip(proto.output, (*states, *stacks), strict=True):
            if name:
                self._name(name, tensor, scope)

    def _row(self, name: str) -> str:
        """A tensor as the only row of another."""
        shape = self._draft.shape(name)
        if shape is not None:
            return self._draft.emit("Reshape", name, shape=(1, *shape))
        return self._draft.emit("Unsqueeze", name, self._draft.constant(np.zeros(1, np.int64)))

    def _walk_body(
        self,
        scope: NameScope,
        node: Node,
        body: GraphProto,
        input_types: Sequence[TypeProto],
        known: Mapping[int, Array] | None = None,
        ways: Mapping[int, Array] | None = None,
    ) -> WalkedBody:
        """A walk over a body of a node whose inputs have these types. See `BodyWalk`."""
        if len(body.input) != len(input_types):
            raise TypeFault(f"{len(body.input)} inputs of the body where {len(input_types)} are given")
        probe = Walk(self._weights)
        probe._budget = self._budget
        inner = NameScope(scope.opsets, {"": ""}, scope.place)
        first = len(node.inputs) - len(node.attrs[CAPTURES])
        captures: dict[int, str] = {}
        for name in sorted(free_names(body)):
            if name not in scope.names:
                raise ModelError(f"a body of control flow reads {quote(name)}, which nothing before it computes")
            outer = scope.names[name]
            tensor = probe._define(inner, name, self._protos[outer])
            if outer in self._draft.constants:
                probe._draft.constants[tensor] = self._draft.constants[outer]
            elif (position := node.inputs.index(outer, first)) in captures:
                inner.names[name] = captures[position]
            else:
                captures[position] = tensor
        inner = inner.inner()
        own = [probe._define(inner, value.name, kind) for value, kind in zip(body.input, input_types, strict=True)]
        probe._draft.constants.update((own[place], value) for place, value in (known or {}).items())
        probe._counters = Counters(probe._draft, {own[place]: way for place, way in (ways or {}).items()})
        probe._add_graph(body, inner)
        missing = [value.name for value in body.output if not inner.names.get(value.name)]
        if missing:
            raise ModelError(f"nothing computes {quote(missing[0])}, an output of a body")
        outputs = [inner.names[value.name] for value in body.output]
        inputs, results = (
            [GraphPort("", tensor) for tensor in tensors] for tensors in ((*own, *captures.values()), outputs)
        )
        graph = probe._draft.finish(inputs, results)
        return WalkedBody([probe._protos[name] for name in outputs], Body(graph, tuple(captures)))

    def _normal(self, node: Node) -> Node:
        """The node in the normal form; as it is where ONNX's inference is of another opinion about the result."""
        better = normal(self._draft, node)
        kinds = tuple(self._draft.types[name] for name in better.outputs if name)
        if better is node or infer(better, self._draft.types, self._draft.constants) == kinds:
            return better
        return node

    def _note(self, names: Iterable[str]) -> None:
        """Note the types of tensors that normalisation has added."""
        for name in names:
            if name and name not in self._protos:
                self._protos[name] = type_proto(self._draft.types[name])

    def _scalar_operands(self, node: Node) -> Node:
        vectors = [name for name in node.inputs if self._draft.shape(name) == (1,)]
        scalars = {name: self._draft.emit("Reshape", name, shape=()) for name in vectors}
        inputs = tuple(scalars.get(name, name) for name in node.inputs)
        return replace(node, inputs=inputs)

    def _expand(self, node: Node, kinds: Sequence[TypeProto | None], scope: NameScope, place: str) -> bool:
        """Add the nodes of a composite op's definition in its place, where it has one for these operands."""
        if any(self._draft.shape(name) is None for name in node.inputs if name):
            return False
        if node.op in DECOMPOSITIONS:
            result = DECOMPOSITIONS[node.op](self._draft, node)
            if result is not None:
                self._name(node.outputs[0], result, scope)
            return result is not None
        if (node.domain, node.op) in contrib.STANDARD:
            try:
                self._write_call(node, scope, place)
            except contrib.Unsupported:
                return False
            return True
        definition = definition_of(node, kinds)
        if definition is None or any(item.op_type == node.op for item in definition.nodes):
            return False
        inner = NameScope({**scope.opsets, **definition.opsets}, {"": ""}, scope.place or place)
        inner.names.update(zip(definition.inputs, node.inputs, strict=False))
        inner.names[""] = ""
        self._add_graph(GraphProto(node=definition.nodes), inner)
        for name, result in zip(node.outputs, definition.outputs, strict=False):
            if name:
                self._name(name, inner.names[result], scope)
        return True

    def _write_contrib(self, node: Node, scope: NameScope, place: str) -> None:
        """Put ONNX's ops in the place of a contributed one."""
        try:
            self._write_call(node, scope, place)
        except contrib.Unsupported as fault:
            raise ModelError(f"{place}: {node.op} with {fault} is not supported") from fault

    def _write_call(self, node: Node, scope: NameScope, place: str) -> None:
        """Put other ops in the place of a call. Raises Unsupported."""
        opset = contrib.OPSET if node.domain else max(contrib.OPSET, node.version)
        inner = NameScope({"": opset, contrib.CLASSIC: contrib.CLASSIC_OPSET}, {"": ""}, scope.place or place)
        inner.names.update((f"i{k}", name) for k, name in enumerate(node.inputs) if name)
        draft, names = self._draft, inner.names
        call = contrib.ContribCall(
            node,
            partial(self._add_node, scope=inner),
            partial(self._put, inner),
            lambda name: draft.types[names[name]],
            lambda name: draft.array(names[name]),
        )
        results = call.write()
        for name, result in zip(node.outputs, results, strict=False):
            if name and not result:
                raise ModelError(f"{place}: output {quote(name)} of {node.op} is not supported")
            if name:
                self._name(name, names[result], scope)

    def _put(self, scope: NameScope, node: Node, kind: TensorType) -> None:
        """Add a node of an op that ONNX does not have."""
        output = self._define(scope, node.outputs[0], type_proto(kind))
        self._draft.add(replace(node, inputs=tuple(scope.names[n] for n in node.inputs), outputs=(output,)))

    def _name(self, name: str, tensor: str, scope: NameScope) -> None:
        """Have a name of the model mean one of our tensors."""
        if name in scope.names:
            raise ModelError(f"{quote(name)} is defined twice")
        scope.names[name] = tensor
        self._note((tensor,))
