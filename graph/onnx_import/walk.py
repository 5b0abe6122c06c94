"""One walk over a parsed model: names become ours, types are inferred, what is known folds, nodes become normal."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    inliner,
)

from tunewright.graph.draft import Draft
from tunewright.graph.fallback import is_computed
from tunewright.graph.inference import DTYPES, TypeFault, infer, infer_protos, tensor_type
from tunewright.graph.ir import Array, Default, Graph, Node, TensorType, Value
from tunewright.graph.onnx_form import CAPTURES, FUNCTIONS, model_of, plain, type_proto

from .attributes import check_attributes
from .bodies import closed
from .check import bodies
from .completion import completed
from .dimensions import Dimensions
from .errors import MisfitError, ModelError, NeverFits, one_line, place_of, shown
from .group_norm import group_normalization
from .guards import check_after, check_before
from .kinds import described, either, rank, shapeless
from .legacy import modern, modern_version
from .normal import normal
from .opsets import DOMAINS, domain_and_version, versions
from .order import free_names, ordered
from .signature import check_call, check_elements, signature
from .weights import Weights

_EXPANDED = """
Attention CausalConvWithState CenterCropPad GroupNormalization LinearAttention NegativeLogLikelihoodLoss
RotaryEmbedding SoftmaxCrossEntropyLoss SwiGLU
"""
EXPANDED_OPS = frozenset(_EXPANDED.split())
"""Composite ops of ONNX that are replaced by their definitions (GroupNormalization by ours), which have kernels."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a name of the model means something: the whole graph, or a part that is being inlined."""

    opsets: Mapping[str, int]
    names: MutableMapping[str, str]  # of the model -> ours; "" -> ""
    place: str = ""  # of the node whose definition this is

    def inner(self) -> Scope:
        """A scope that sees this one and keeps its own definitions to itself."""
        return Scope(self.opsets, ChainMap({}, self.names), self.place)


@dataclass(frozen=True, slots=True)
class Op:
    """What a node calls: ONNX's schema of the op as of a version of its domain."""

    domain: str
    version: int
    schema: Any


class Walk:
    """Turns one model, whose structure has been checked, into a graph."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._draft = Draft()
        self._protos: dict[str, TypeProto] = {}  # as Draft.types, but with the extents that are known
        self._context = onnx.checker.C.CheckerContext()
        self._context.ir_version = onnx.IR_VERSION

    def graph(self, model: ModelProto, dims: Mapping[str, int], given: Collection[str] = ()) -> Graph:
        """The graph, in which weights of the names `given` are inputs. Raises ModelError."""
        source = model.graph
        scope = Scope(versions(model.opset_import), {"": ""})
        tensors = {tensor.name: tensor for tensor in source.initializer}
        defaults = [described(tensors[value.name]) for value in source.input if value.name in tensors]
        if unknown := set(given).difference(value.name for value in defaults):
            raise ModelError(f"{shown(min(unknown))} is no weight of the model that may be given")
        free = [value for value in source.input if value.name not in tensors]
        dimensions = Dimensions(dims, free)
        inputs = []
        for value in (*free, *(value for value in defaults if value.name in given)):
            kind = dimensions.bound(value)
            inputs.append(Value(value.name, self._define(scope, value.name, type_proto(kind))))
        self._add_weights((tensor for tensor in source.initializer if tensor.name not in given), scope)
        self._add_nodes(source, scope)
        outputs = []
        for value in source.output:
            tensor = scope.names.get(value.name)
            if not tensor:
                raise ModelError(f"nothing computes the output {shown(value.name)}")
            if self._draft.types[tensor].dtype == "object":
                raise ModelError(f"output {shown(value.name)} is no tensor; only tensors can leave a model")
            _check_output(value, self._draft.types[tensor].dtype)
            outputs.append(Value(value.name, tensor))
        graph = self._draft.finish(inputs, outputs)
        kept = [value for value in defaults if value.name not in given]
        return replace(graph, defaults=tuple(Default(value.name, dimensions.bound(value)) for value in kept))

    def _define(self, scope: Scope, name: str, proto: TypeProto) -> str:
        """Our tensor for a name that the model defines here. Raises ModelError if taken, TypeFault by its type."""
        if not name or name in (scope.names.maps[0] if isinstance(scope.names, ChainMap) else scope.names):
            raise ModelError(f"{shown(name)} is defined twice" if name else "a tensor has no name")
        tensor = self._draft.fresh(tensor_type(proto))
        self._protos[tensor] = proto
        scope.names[name] = tensor
        return tensor

    def _define_constant(self, scope: Scope, name: str, array: Any) -> None:
        kind = TensorType("string" if array.dtype.kind in "OUST" else array.dtype.name, array.shape)
        self._draft.constants[self._define(scope, name, type_proto(kind))] = array

    def _add_graph(self, graph: GraphProto, scope: Scope) -> None:
        self._add_weights(graph.initializer, scope)
        self._add_nodes(graph, scope)

    def _add_weights(self, tensors: Iterable[TensorProto], scope: Scope) -> None:
        for tensor in tensors:
            self._define_constant(scope, tensor.name, self._weights.array(tensor))

    def _add_nodes(self, graph: GraphProto, scope: Scope) -> None:
        for node in ordered(graph.node, scope.names):
            self._add_node(node, scope)

    def _add_node(self, proto: NodeProto, scope: Scope) -> None:
        place = f"{scope.place}, in its definition at {proto.op_type}" if scope.place else place_of(proto)
        op = _op(proto, scope, place)
        try:
            if proto.op_type == "Constant" and not op.domain:
                self._define_constant(scope, *self._constant(proto, place))
            elif proto.op_type == "If" and not op.domain and self._inlined(proto, scope):
                pass
            else:
                node = self._node(proto, op, scope, place)
                self._add(node, proto, scope, place)
        except NeverFits as fault:
            raise ModelError(f"{place}: {one_line(fault)}") from fault
        except TypeFault as fault:
            raise MisfitError(f"{place}: {one_line(fault)}") from fault

    def _inferred(
        self, node: Node, kinds: Sequence[TypeProto | None], values: Sequence[Array | None]
    ) -> list[TypeProto]:
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
                raise ModelError(f"{place}: a Constant given by {shown(name)} is not supported")

    def _inlined(self, proto: NodeProto, scope: Scope) -> bool:
        """Take the branch of an If whose condition is known."""
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
                raise ModelError(f"nothing computes {shown(value.name)}, an output of a branch")
            self._name(name, inner.names[value.name], scope)
        return True

    def _node(self, proto: NodeProto, op: Op, scope: Scope, place: str) -> Node:
        """The node in ONNX's form, over our tensors; its outputs are still the model's names."""
        attrs = {
            name: plain(item.default_value)
            for name, item in op.schema.attributes.items()
            if item.default_value.type != AttributeProto.UNDEFINED
        }
        captures: dict[str, str] = {}
        check_call(proto, signature(op.schema.name, op.version, op.domain))
        if any(True for _ in bodies(proto)):
            proto, found = closed(proto, op.version, scope.names.get, self._weights)
            captures = found.names
            attrs[CAPTURES] = tuple(captures.values())
            if found.functions:
                attrs[FUNCTIONS] = ModelProto(functions=found.functions).SerializeToString()
        else:
            self._check(proto, op, scope, place)
        for attribute in proto.attribute:
            attrs[attribute.name] = self._attribute(attribute, place)
        check_attributes(proto.op_type, op.domain, attrs)
        inputs = [scope.names[name] for name in proto.input]
        while inputs and not inputs[-1]:
            inputs.pop()
        outputs = list(proto.output)
        while outputs and not outputs[-1] and proto.op_type != "Split":  # of whose parts it matters how many there are
            outputs.pop()
        return Node(proto.op_type, (*inputs, *captures), tuple(outputs), attrs, op.domain, op.version, place)

    def _attribute(self, attribute: AttributeProto, place: str) -> Any:
        if attribute.ref_attr_name:
            raise ModelError(f"{place}: attribute {shown(attribute.name)} refers to a function's, but is in none")
        if attribute.type == AttributeProto.TENSOR:
            return self._weights.array(attribute.t)
        try:
            return plain(attribute)
        except ValueError as error:
            raise ModelError(f"{place}: attribute {shown(attribute.name)} is not supported") from error

    def _check(self, proto: NodeProto, op: Op, scope: Scope, place: str) -> None:
        """ONNX's own check of attributes and operand counts."""
        bare = NodeProto(op_type=proto.op_type, domain=op.domain, attribute=proto.attribute)
        for attribute in bare.attribute:
            if attribute.t.data_location == TensorProto.EXTERNAL:  # the check would look for the file
                attribute.t.CopyFrom(TensorProto(data_type=attribute.t.data_type, dims=[0], raw_data=b""))
        bare.input.extend("x" if name else "" for name in proto.input)
        bare.output.extend(f"y{k}" if name else "" for k, name in enumerate(proto.output))
        version = onnx.defs.onnx_opset_version() if op.schema.deprecated else op.version  # the check refuses all such
        self._context.opset_imports = {**scope.opsets, op.domain: version}
        try:
            onnx.checker.check_node(bare, self._context)
        except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
            raise ModelError(f"{place}: {one_line(str(error).split('==>', maxsplit=1)[0])}") from error

    def _add(self, node: Node, proto: NodeProto, scope: Scope, place: str) -> None:
        draft, node = self._draft, self._adapted(node)
        kinds = [self._protos[name] if name else None for name in node.inputs]
        values = [draft.array(name) if name else None for name in node.inputs]
        types = [draft.types[name] if name else None for name in node.inputs]
        check_elements(types[: len(proto.input)], signature(node.op, node.version, node.domain))
        check_before(
            node, [rank(kind) for kind in kinds], [None if kind is None else kind.shape for kind in types], values
        )
        if node.op in EXPANDED_OPS and self._expanded(node, kinds, scope, place):
            return
        if CAPTURES in node.attrs:
            found = self._control_flow_types(node, proto, scope)
        else:
            found = self._inferred(node, kinds, values)
        if found and node.inputs and node.inputs[0]:
            found = completed(node, found, [draft.shape(name) if name else None for name in node.inputs], values)
        outputs = [self._define(scope, name, found[k]) if name else "" for k, name in enumerate(node.outputs)]
        node = replace(node, outputs=tuple(outputs))
        shapes = [draft.shape(name) if name else () for name in (*node.inputs, *node.outputs)]
        if None not in shapes:
            count = len(node.inputs)
            check_after(node, shapes[:count], shapes[count:])  # type: ignore[arg-type]
        shape = self._shape_of(node)
        if shape is not None:
            draft.constants[outputs[0]] = shape
            return
        draft.add(self._normal(node))
        for name in outputs:
            if name in draft.constants:
                self._protos[name] = type_proto(draft.types[name])

    def _adapted(self, node: Node) -> Node:
        """The node as inference and the rest of the import expect it."""
        adapted = modern(self._draft, node) if node.version < 7 else node
        if not node.domain and node.op == "Range":  # ONNX's own AffineGrid passes vectors of one element
            adapted = self._of_scalars(node)
        if not node.domain and node.op == "Pad" and len(node.inputs) > 3:
            axes = self._draft.array(node.inputs[3])
            if axes is not None and axes.dtype == np.int32:  # inference reads those that are known as int64 alone
                adapted = replace(node, inputs=(*node.inputs[:3], self._draft.cast(node.inputs[3], "int64")))
        if adapted is not node:
            self._note(adapted.inputs)
        return adapted

    def _control_flow_types(self, node: Node, proto: NodeProto, scope: Scope) -> list[TypeProto]:
        """The types of the outputs of a control-flow node, from its bodies."""
        inner = {attribute.name: attribute.g for attribute in proto.attribute if attribute.type == AttributeProto.GRAPH}
        given = [self._protos[scope.names[name]] if name else TypeProto() for name in proto.input]
        count = len(proto.output)
        if node.op == "If":
            for name, branch in inner.items():
                _check_count(f"outputs of {name}", len(branch.output), count, "of the node")
            return [reduce(either, kinds) for kinds in zip(*self._branch_types(inner.values(), scope), strict=True)]
        if node.op == "Loop":
            scalars = [helper.make_tensor_type_proto(kind, ()) for kind in (TensorProto.INT64, TensorProto.BOOL)]
            states = [shapeless(kind) for kind in given[2:]]
            _check_count(
                "outputs of the body", len(inner["body"].output), count + 1, "the condition and all of the node"
            )
            if count < len(states):
                raise TypeFault(f"{count} outputs of the node where {len(states)} values are carried around")
            found = self._loop_types(inner["body"], scope, [*scalars, *states])[1:]
            _check_carried(states, found)
            return [shapeless(kind) for kind in found]
        if node.op == "Scan":
            operands = given if node.version >= 9 else given[1:]  # in opset 8 the first gives the sequences' lengths
            if node.attrs["num_scan_inputs"] > len(operands):
                raise TypeFault(f"num_scan_inputs is {node.attrs['num_scan_inputs']} of {len(operands)} inputs")
            _check_count("outputs of the body", len(inner["body"].output), count, "of the node")
            kinds = self._body_types(inner["body"], scope, [shapeless(kind) for kind in operands])
            _check_carried(operands[: len(operands) - node.attrs["num_scan_inputs"]], kinds)
            return [shapeless(kind) for kind in kinds]
        if node.op == "SequenceMap":
            items = [kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind for kind in given]
            _check_count("outputs of the body", len(inner["body"].output), count, "of the node")
            kinds = self._body_types(inner["body"], scope, [shapeless(kind) for kind in items])
            return [helper.make_sequence_type_proto(shapeless(kind)) for kind in kinds]
        if node.op == "FlexAttention" and len(given) >= 3:
            kind = shapeless(given[0])
            kind.tensor_type.shape.dim.extend(
                [*given[0].tensor_type.shape.dim[:-1], *given[2].tensor_type.shape.dim[-1:]]
            )
            return [kind] * count
        raise TypeFault("an op with graphs among its attributes is not supported with these operands")

    def _branch_types(self, branches: Iterable[GraphProto], scope: Scope) -> list[list[TypeProto]]:
        """The types of what each branch computes, but for one that can't: it fails when it is taken."""
        found, fault = [], None
        for branch in branches:
            try:
                found.append(self._body_types(branch, scope, []))
            except MisfitError as error:
                fault = error
        if not found and fault is not None:
            raise fault
        return found

    def _loop_types(self, body: GraphProto, scope: Scope, given: Sequence[TypeProto]) -> list[TypeProto]:
        """The types of what a body computes; of one that can't, which fails at the first trip, what it declares."""
        try:
            return self._body_types(body, scope, given)
        except MisfitError:
            declared = [shapeless(value.type) for value in body.output[len(given) - 1 :]]
            if any(kind.WhichOneof("value") is None for kind in declared):
                raise
            return [*given[1:], *declared]

    def _body_types(self, body: GraphProto, scope: Scope, given: Sequence[TypeProto]) -> list[TypeProto]:
        """The types of what a body computes: it is walked like any graph, and what becomes of it is thrown away."""
        if len(body.input) != len(given):
            raise TypeFault(f"{len(body.input)} inputs of the body where {len(given)} are given")
        probe = Walk(self._weights)
        inner = Scope(scope.opsets, {"": ""}, scope.place)
        for name in sorted(free_names(body)):
            if name not in scope.names:
                raise ModelError(f"a body of control flow reads {shown(name)}, which nothing before it computes")
            tensor = probe._define(inner, name, self._protos[scope.names[name]])
            if scope.names[name] in self._draft.constants:
                probe._draft.constants[tensor] = self._draft.constants[scope.names[name]]
        inner = inner.inner()
        for value, kind in zip(body.input, given, strict=True):
            probe._define(inner, value.name, kind)
        probe._add_graph(body, inner)
        missing = [value.name for value in body.output if not inner.names.get(value.name)]
        if missing:
            raise ModelError(f"nothing computes {shown(missing[0])}, an output of a body")
        return [probe._protos[inner.names[value.name]] for value in body.output]

    def _normal(self, node: Node) -> Node:
        """The node in the normal form; as it is where ONNX's inference is of another opinion about the result."""
        better = normal(self._draft, node)
        kinds = tuple(self._draft.types[name] for name in better.outputs if name)
        if better is node or infer(better, self._draft.types, self._draft.constants) == kinds:
            return better
        return node

    def _note(self, names: Iterable[str]) -> None:
        """Types of tensors that were made on the way."""
        for name in names:
            if name and name not in self._protos:
                self._protos[name] = type_proto(self._draft.types[name])

    def _of_scalars(self, node: Node) -> Node:
        vectors = [name for name in node.inputs if self._draft.shape(name) == (1,)]
        scalars = {name: self._draft.emit("Reshape", name, shape=()) for name in vectors}
        inputs = tuple(scalars.get(name, name) for name in node.inputs)
        return replace(node, inputs=inputs)

    def _shape_of(self, node: Node) -> Any:
        """What a Shape or Size node gives, if that is known."""
        if node.op not in ("Shape", "Size") or node.domain:
            return None
        tensor = self._protos[node.inputs[0]].tensor_type
        if not tensor.HasField("shape"):
            return None
        dims = list(tensor.shape.dim)
        if node.op == "Shape":
            dims = dims[slice(node.attrs.get("start", 0), node.attrs.get("end"))]
        if not all(dim.HasField("dim_value") for dim in dims):
            return None
        extents = np.asarray([dim.dim_value for dim in dims], np.int64)
        return extents if node.op == "Shape" else np.prod(extents, dtype=np.int64)

    def _expanded(self, node: Node, kinds: Sequence[TypeProto | None], scope: Scope, place: str) -> bool:
        """Add the nodes of a composite op's definition in its place, where it has one for these operands."""
        if any(self._draft.shape(name) is None for name in node.inputs if name):
            return False
        if node.op == "GroupNormalization":
            self._name(node.outputs[0], group_normalization(self._draft, node), scope)
            return True
        model = model_of(node, kinds)
        chosen = [(node.domain, node.op)]
        try:
            expanded = inliner.inline_selected_functions(model, chosen, exclude=False, inline_schema_functions=True)
        except RuntimeError:  # onnx 1.23.2 fails on optional operands that are absent
            return False
        if any(item.op_type == node.op for item in expanded.graph.node):
            return False
        inner = Scope({**scope.opsets, **versions(expanded.opset_import)}, {"": ""}, scope.place or place)
        inner.names.update((f"i{k}", name) for k, name in enumerate(node.inputs) if name)
        self._add_graph(expanded.graph, inner)
        for k, name in enumerate(node.outputs):
            if name:
                self._name(name, inner.names[f"o{k}"], scope)
        return True

    def _name(self, name: str, tensor: str, scope: Scope) -> None:
        """Have a name of the model mean one of our tensors."""
        if name in scope.names:
            raise ModelError(f"{shown(name)} is defined twice")
        scope.names[name] = tensor
        self._note((tensor,))


def _op(proto: NodeProto, scope: Scope, place: str) -> Op:
    """What a node calls. Raises ModelError for what ONNX or this package does not have."""
    name = proto.op_type
    domain, version = domain_and_version(proto.domain, scope.opsets)
    if domain not in DOMAINS or version is None:
        known = "has no opset version in the model" if domain in DOMAINS else "is not supported"
        raise ModelError(f"{place}: domain {shown(domain)} {known}; export the model with ONNX's own ops")
    try:
        schema: Any = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError as error:
        raise ModelError(f"{place}: opset {version} has no op {shown(name)}") from error
    # GroupNormalization was declared deprecated when it came, and means what it says in the versions up to the next.
    if schema.deprecated and onnx.defs.has(name, schema.since_version - 1, domain):
        raise ModelError(f"{place}: op {name} is not part of opset {version} any more")
    if not is_computed(name, domain, modern_version(domain, schema.since_version)):
        raise ModelError(f"{place}: op {name} of opset {version} is not supported: nothing here runs it")
    return Op(domain, version, schema)


def _check_output(value: ValueInfoProto, dtype: str) -> None:
    """Raises ModelError where an output is declared with other elements than are computed. (Shapes often are wrong.)"""
    number = value.type.tensor_type.elem_type
    if number and DTYPES.get(number) != dtype:
        declared = DTYPES.get(number, f"element type {number}")
        raise ModelError(
            f"output {shown(value.name)} is declared as {declared}, but {dtype} is computed; "
            "declare that, or convert it with a Cast"
        )


def _check_carried(before: Sequence[TypeProto], after: Sequence[TypeProto]) -> None:
    """Raises TypeFault where a value that a body carries on has another element type after a trip."""
    for number, (given, made) in enumerate(zip(before, after, strict=False)):
        types = [kind.tensor_type.elem_type for kind in (given, made)]
        if all(types) and types[0] != types[1]:
            was, became = (TensorProto.DataType.Name(kind).lower() for kind in types)
            raise TypeFault(f"carried value {number} is {was} before the body and {became} after it")


def _check_count(what: str, given: int, wanted: int, whose: str) -> None:
    if given != wanted:
        raise TypeFault(f"{given} {what} where {wanted} are needed, {whose}")
