"""The walk over a parsed model that makes a graph: it infers types, folds constants and normalises nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
)

from tunewright.graph.ir import Array, Body, DefaultInput, Graph, GraphPort, MapInput, Node

from .. import contrib
from ..evaluation.onnx_form import (
    CAPTURES,
    FUNCTIONS,
    TypeFault,
    attribute_value,
    infer,
    infer_protos,
    type_proto,
)
from .bound_inputs import bound_inputs, split_bindings
from .control_types import ControlBudget, ControlFlow, WalkedBody
from .counters import Counters
from .decompositions import is_composite, modernise
from .dimensions import Dimensions
from .import_draft import ImportDraft, NameScope
from .inlining import inline_composite, inline_contrib
from .loop_iterations import with_trip_count, write_out
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


class KnownOperands(NamedTuple):
    """What is known of the inputs of a node, which are so many `explicit` ones and captured tensors behind them.

    A proto is None where an input is absent, a value also where only a run tells it.
    """

    protos: Sequence[TypeProto | None]
    values: Sequence[Array | None]
    explicit: int


class Walk:
    """Turns one model, whose structure has been checked, into a graph."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.draft = ImportDraft()
        self._sequences = Sequences(self.draft)
        self._counters = Counters(self.draft, {})
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
            self.draft.define_constant(scope, item.label, item.value)
        free = [value for value in free if value.name not in values]
        dimensions = Dimensions(sizes, free)
        inputs = []
        for value in (*free, *(value for value in defaults if value.name in weight_inputs)):
            kind = dimensions.bind(value)
            row = self.draft.define(scope, value.name, type_proto(kind))
            inputs.append(GraphPort(value.name, row, map=maps.get(value.name)))
        self._maps = {port.tensor: port.map for port in inputs if port.map is not None}
        self._add_weights((tensor for tensor in source.initializer if tensor.name not in weight_inputs), scope)
        self._add_nodes(source, scope)
        graph = self.draft.finish(inputs, self._outputs(source, scope))
        constant_weights = [value for value in defaults if value.name not in weight_inputs]
        kept = tuple(DefaultInput(value.name, dimensions.bind(value)) for value in constant_weights)
        return replace(graph, defaults=kept, bound=bound, has_external_data=self._weights.has_external)

    def _outputs(self, source: GraphProto, scope: NameScope) -> list[GraphPort]:
        """The outputs of the graph. Raises ModelError where nothing computes one, or another type."""
        outputs = []
        for value in source.output:
            tensor = scope.names.get(value.name)
            if not tensor:
                raise ModelError(f"nothing computes the output {quote(value.name)}")
            port = output_port(self.draft, value.name, tensor)
            check_output(value, self.draft.types[port.tensor].dtype)
            outputs.append(port)
        return outputs

    def add_graph(self, graph: GraphProto, scope: NameScope) -> None:
        """Add the constants and nodes of a graph."""
        self._add_weights(graph.initializer, scope)
        self._add_nodes(graph, scope)

    def _add_weights(self, tensors: Iterable[TensorProto], scope: NameScope) -> None:
        for tensor in tensors:
            self.draft.define_constant(scope, tensor.name, self._weights.array(tensor))

    def _add_nodes(self, graph: GraphProto, scope: NameScope) -> None:
        around = self._source
        for node in topological_order(graph.node, scope.names):
            self._source = graph
            self.add_node(node, scope)
        self._source = around

    def add_node(self, proto: NodeProto, scope: NameScope) -> None:
        """Add a node, or what it comes to. Raises ModelError, MisfitError where it can't have such operands."""
        place = f"{scope.place}, in its definition at {proto.op_type}" if scope.place else place_of(proto)
        if not scope.place:  # what stands in a definition bears the name of its call
            self.draft.work_on([name_of(proto)])
        op = schema_of(proto, scope.opsets, place)
        try:
            if proto.op_type == "Constant" and not op.domain:
                self.draft.define_constant(scope, *self._constant(proto, place))
            elif proto.op_type == "If" and not op.domain and self._inline_branch(proto, scope):
                pass
            else:
                node = self._node(proto, op, scope, place)
                self._add(node, proto, scope, place)
        except StructuralFault as fault:
            raise ModelError(f"{place}: {one_line(fault)}") from fault
        except TypeFault as fault:
            raise MisfitError(f"{place}: {one_line(fault)}") from fault

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
        condition = self.draft.array(scope.names[proto.input[0]]) if len(proto.input) == 1 else None
        branches = {attribute.name: attribute.g for attribute in proto.attribute}
        if condition is None or condition.size != 1 or branches.keys() != {"then_branch", "else_branch"}:
            return False
        branch = branches["then_branch" if condition.item() else "else_branch"]
        if len(branch.output) != len(proto.output):
            raise TypeFault(
                f"{len(branch.output)} outputs of the branch that is taken, {len(proto.output)} of the node"
            )
        inner = scope.inner()
        self.add_graph(branch, inner)
        for name, value in zip(proto.output, branch.output, strict=True):
            if not inner.names.get(value.name):
                raise ModelError(f"nothing computes {quote(value.name)}, an output of a branch")
            self.draft.alias(scope, name, inner.names[value.name])
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
        """Add a node, or what stands for it. `proto` is what it was in the model."""
        node = self._adapt(node)
        if (node.domain, node.op) in MAP_READERS:
            self.draft.alias(scope, node.outputs[0], read_map(self.draft, node, self._maps))
            return
        operands = self._check_operands(node)
        if self._substitute(node, operands, scope, place):
            return
        if CAPTURES in node.attrs:
            flow = self._control_flow(node, proto, operands, scope)
            types = flow.types()
            if flow.ranks:
                self.add_node(with_ranks(proto, flow.ranks), scope)
                return
            if flow.first:
                write_out(self, proto, flow, scope)
                return
            node = replace(with_trip_count(self.draft, node, flow.trips), bodies=flow.bodies)
        else:
            types = self._infer_types(node, operands)
        self._commit(node, types, operands.values, scope)

    def _check_operands(self, node: Node) -> KnownOperands:
        """The operands of a node. Raises TypeFault where it can't have such ones."""
        draft = self.draft
        types = [draft.types[name] if name else None for name in node.inputs]
        protos = [draft.protos[name] if name else None for name in node.inputs]
        values = [draft.array(name) if name else None for name in node.inputs]
        explicit = len(node.inputs) - len(node.attrs.get(CAPTURES, ()))
        check_elements(types[:explicit], signature(node.op, node.version, node.domain))
        shapes = [None if kind is None else kind.shape for kind in types]
        check_operands(node, list(map(rank, protos)), shapes, values)
        return KnownOperands(protos, values, explicit)

    def _substitute(self, node: Node, operands: KnownOperands, scope: NameScope, place: str) -> bool:
        """Whether other nodes, or a tensor that there is, have been put in the place of a node."""
        if (node.domain, node.op) in contrib.OPS:
            inline_contrib(self, node, scope, place)
            return True
        if is_composite(node) and inline_composite(self, node, operands.protos, scope, place):
            return True
        for known in (self._sequences, self._counters):
            if (tensor := known.read(node)) is not None:
                self.draft.alias(scope, node.outputs[0], tensor)
                return True
        return False

    def _control_flow(self, node: Node, proto: NodeProto, operands: KnownOperands, scope: NameScope) -> ControlFlow:
        return ControlFlow(
            node,
            graphs={item.name: item.g for item in proto.attribute if item.type == AttributeProto.GRAPH},
            inputs=[kind or TypeProto() for kind in operands.protos[: operands.explicit]],
            values=operands.values[: operands.explicit],
            outputs=proto.output,
            is_rank_free=partial(is_rank_free, self._source),
            walk=partial(self._walk_body, scope, node),
            budget=self._budget,
        )

    def _infer_types(self, node: Node, operands: KnownOperands) -> list[TypeProto]:
        """The types of the outputs. Raises TypeFault."""
        try:
            return infer_protos(node, operands.protos, operands.values)
        except TypeFault as fault:
            names = ", ".join(str(self.draft.types[name]) if name else "none" for name in node.inputs)
            raise TypeFault(f"{fault} (operands {names})") from fault

    def _commit(self, node: Node, types: Sequence[TypeProto], values: Sequence[Array | None], scope: NameScope) -> None:
        """Add a node whose outputs have these types, or its value. `values` are those of its inputs, where known."""
        draft = self.draft
        if types and node.inputs and node.inputs[0]:
            shapes = [draft.shape(name) if name else None for name in node.inputs]
            types = fix_types(node, types, shapes, values)
        outputs = [draft.define(scope, name, types[k]) if name else "" for k, name in enumerate(node.outputs)]
        node = replace(node, outputs=tuple(outputs))
        self._sequences.note(node)
        self._counters.note(node)
        shapes = [draft.shape(name) if name else () for name in (*node.inputs, *node.outputs)]
        if None not in shapes:
            count = len(node.inputs)
            check_shapes(node, shapes[:count], shapes[count:])  # type: ignore[arg-type]
        shape = known_shape(node, draft.protos[node.inputs[0]]) if node.op in ("Shape", "Size") else None
        if shape is not None:
            draft.constants[outputs[0]] = shape
            return
        draft.add(self._normal(node))
        for name in outputs:
            if name in draft.constants:
                draft.protos[name] = type_proto(draft.types[name])

    def _adapt(self, node: Node) -> Node:
        """The node as inference and the rest of the import expect it."""
        result = modernise(self.draft, node) if node.version < 7 else node
        if not node.domain and node.op == "Range":  # ONNX's own AffineGrid passes vectors of one element
            result = self._scalar_operands(node)
        if not node.domain and node.op == "Pad" and len(node.inputs) > 3:
            axes = self.draft.array(node.inputs[3])
            if axes is not None and axes.dtype == np.int32:  # inference reads those that are known as int64 alone
                result = replace(node, inputs=(*node.inputs[:3], self.draft.cast(node.inputs[3], "int64")))
        if result is not node:
            self.draft.note_types(result.inputs)
        return result

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
        around = NameScope(scope.opsets, {"": ""}, scope.place)
        captures = self._define_captures(probe.draft, around, scope, node, body)
        inner, draft = around.inner(), probe.draft
        own = [draft.define(inner, value.name, kind) for value, kind in zip(body.input, input_types, strict=True)]
        draft.constants.update((own[place], value) for place, value in (known or {}).items())
        probe._counters = Counters(draft, {own[place]: way for place, way in (ways or {}).items()})
        probe.add_graph(body, inner)
        missing = [value.name for value in body.output if not inner.names.get(value.name)]
        if missing:
            raise ModelError(f"nothing computes {quote(missing[0])}, an output of a body")
        outputs = [inner.names[value.name] for value in body.output]
        inputs, results = (
            [GraphPort("", tensor) for tensor in tensors] for tensors in ((*own, *captures.values()), outputs)
        )
        graph = draft.finish(inputs, results)
        return WalkedBody([draft.protos[name] for name in outputs], Body(graph, tuple(captures)))

    def _define_captures(
        self, draft: ImportDraft, around: NameScope, scope: NameScope, node: Node, body: GraphProto
    ) -> dict[int, str]:
        """Define in the draft of a body what it reads of `scope`, where its node stands.

        The tensors that are not known, by their places among the inputs of the node.
        """
        first = len(node.inputs) - len(node.attrs[CAPTURES])
        captures: dict[int, str] = {}
        for name in sorted(free_names(body)):
            if name not in scope.names:
                raise ModelError(f"a body of control flow reads {quote(name)}, which nothing before it computes")
            outer = scope.names[name]
            tensor = draft.define(around, name, self.draft.protos[outer])
            if outer in self.draft.constants:
                draft.constants[tensor] = self.draft.constants[outer]
            elif (position := node.inputs.index(outer, first)) in captures:
                around.names[name] = captures[position]
            else:
                captures[position] = tensor
        return captures

    def _normal(self, node: Node) -> Node:
        """The node in the normal form; as it is where ONNX's inference is of another opinion about the result."""
        better = normal(self.draft, node)
        kinds = tuple(self.draft.types[name] for name in better.outputs if name)
        if better is node or infer(better, self.draft.types, self.draft.constants) == kinds:
            return better
        return node

    def _scalar_operands(self, node: Node) -> Node:
        vectors = [name for name in node.inputs if self.draft.shape(name) == (1,)]
        scalars = {name: self.draft.emit("Reshape", name, shape=()) for name in vectors}
        inputs = tuple(scalars.get(name, name) for name in node.inputs)
        return replace(node, inputs=inputs)
