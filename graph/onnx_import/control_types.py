"""Types of the outputs of control flow, from walks over its bodies: see `ControlFlow.types`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Protocol

import numpy as np
from onnx import GraphProto, TensorProto, TypeProto, helper

from tunewright.graph.draft import prune
from tunewright.graph.ir import Array, Body, Node

from ..evaluation.onnx_form import TypeFault, check_shape, tensor_type
from .output_types import without_shape
from .protobuf import MisfitError, nested_nodes, read_names
from .shapes import Values
from .trip_counts import count_trips


@dataclass(frozen=True, slots=True)
class WalkedBody:
    """The types of the outputs of a body, and the body itself."""

    types: list[TypeProto]
    body: Body


class BodyWalk(Protocol):
    """Walks a body, whose inputs have types. Some of them, by places, have known values, or known `ways`: those of a
    counter in each iteration. Raises MisfitError where a node misfits.
    """

    def __call__(
        self,
        body: GraphProto,
        inputs: Sequence[TypeProto],
        known: Mapping[int, Array] | None = None,
        ways: Mapping[int, Array] | None = None,
    ) -> WalkedBody: ...


MAX_WRITTEN_OUT, MAX_WRITTEN_OUT_IN_ALL = 1 << 10, 1 << 15
"""Most nodes of the iterations of a loop that are written out, and of all loops of a model, tries included."""

MAX_SHAPED_WALKS = 256
"""Most walks of one model's bodies that try which shapes stay from one iteration to the next."""


@dataclass(slots=True)
class ControlBudget:
    """What control flow of one model may still take."""

    walks: int = MAX_SHAPED_WALKS
    nodes: int = MAX_WRITTEN_OUT_IN_ALL


@dataclass(slots=True)
class ControlFlow:
    """A node with bodies on its way to types. `values` are those of the inputs, as far as they are known.

    `outputs` are the model's names of the results; `bodies` are the walked ones. `trips` are those of a Loop, where
    they are known; the `first` so many are better written out. `ranks` are axes that results of an If are to have, by
    their places, where its branches leave one element and nobody sees how many axes it has.
    """

    node: Node
    graphs: Mapping[str, GraphProto]  # by attribute
    inputs: Sequence[TypeProto]
    values: Values
    outputs: Sequence[str]
    is_rank_free: Callable[[str, int], bool]
    walk: BodyWalk
    budget: ControlBudget
    bodies: dict[str, Body] = field(default_factory=dict)
    trips: int | None = None
    first: int = 0
    ranks: Mapping[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of outputs."""
        return len(self.outputs)

    def types(self) -> list[TypeProto]:
        """The types of the outputs. Raises TypeFault where operands and bodies don't fit."""
        rule = _RULES.get(self.node.op)
        if rule is None:
            raise TypeFault("an op with graphs among its attributes is not supported with these operands")
        return rule(self)

    def walk_again(
        self,
        graph: GraphProto,
        inputs: Sequence[TypeProto],
        known: Mapping[int, Array] | None = None,
        ways: Mapping[int, Array] | None = None,
    ) -> WalkedBody:
        """One of the walks of which there are MAX_SHAPED_WALKS. Raises MisfitError, also where there were so many."""
        self.budget.walks -= 1
        if self.budget.walks < 0:
            raise MisfitError("control flow is nested too deep")
        return self.walk(graph, inputs, known, ways)

    def walk_shaped(
        self,
        graph: GraphProto,
        inputs: Sequence[TypeProto],
        states: Collection[int],
        known: Mapping[int, Array] | None = None,
        ways: Mapping[int, Array] | None = None,
    ) -> WalkedBody | None:
        """The body where the shapes of states, inputs at these places, stay as they are; else None."""
        if any(without_values(kind) for kind in inputs):
            return None
        try:
            walked = self.walk_again(graph, inputs, known, ways)
        except MisfitError:
            return None
        shift = 1 if self.node.op == "Loop" else 0  # one input more than outputs comes before the states
        is_same = all(walked.types[place - shift] == inputs[place] for place in states)
        return walked if is_same and not any(map(without_values, walked.types)) else None


def _if(flow: ControlFlow) -> list[TypeProto]:
    for name, branch in flow.graphs.items():
        _check_count(f"outputs of {name}", len(branch.output), flow.count, "of the node")
    fault, branches = None, []
    for name, branch in flow.graphs.items():
        try:
            walked = flow.walk(branch, [])
        except MisfitError as error:  # it fails when it is taken
            fault = error
            continue
        flow.bodies[name] = walked.body
        branches.append(walked.types)
    if not branches and fault is not None:
        raise fault
    flow.ranks = {
        place: rank
        for place, kinds in enumerate(zip(*branches, strict=True))
        if (rank := _common_rank(kinds)) and flow.is_rank_free(flow.outputs[place], rank)
    }
    return [reduce(common_type, kinds) for kinds in zip(*branches, strict=True)]


def _common_rank(kinds: Sequence[TypeProto]) -> int:
    """The most axes of types of one element that differ in nothing else; 0 where they have as many, or differ."""
    if any(map(without_values, kinds)) or len({kind.tensor_type.elem_type for kind in kinds}) > 1:
        return 0
    shapes = [[dim.dim_value for dim in kind.tensor_type.shape.dim] for kind in kinds]
    ranks = set(map(len, shapes))
    return max(ranks) if len(ranks) > 1 and all(prod(shape) == 1 for shape in shapes) else 0


def _loop(flow: ControlFlow) -> list[TypeProto]:
    body, count = flow.graphs["body"], flow.count
    scalars = [helper.make_tensor_type_proto(kind, ()) for kind in (TensorProto.INT64, TensorProto.BOOL)]
    states = flow.inputs[2:]
    _check_count("outputs of the body", len(body.output), count + 1, "the condition and all of the node")
    if count < len(states):
        raise TypeFault(f"{count} outputs of the node where {len(states)} values are carried around")
    inputs = [*scalars, *states]
    unread = _unread_states(flow, body)
    stable = [place for place in range(2, len(inputs)) if place - 2 not in unread]
    holds = {1: np.asarray(True)}  # else it would not run
    walked = flow.walk_shaped(body, inputs, stable, holds)
    if (walked is None or _has_open_parts(walked.body)) and (ways := _counters(flow, body, inputs)):
        walked = flow.walk_shaped(body, inputs, stable, holds, ways) or walked
    if walked is not None:
        flow.trips, flow.bodies["body"] = _known_trips(flow, walked.body)
        trips, after = flow.trips, walked.types[1:]
        results = [after[number] if number in unread else kind for number, kind in enumerate(states)]
        _check_states(states, results)
        scans = [without_shape(kind) if trips is None else stacked(kind, trips) for kind in after[len(states) :]]
        return [*results, *scans]
    return _open_loop(flow, body, inputs)


def _has_open_parts(body: Body) -> bool:
    """Whether there are parts of tensors, or ranges, that counters may tell the size of."""
    graph = body.graph
    return any(node.op in ("Range", "Slice") and graph.types[node.outputs[0]].shape is None for node in graph.nodes)


def _counters(flow: ControlFlow, body: GraphProto, inputs: list[TypeProto]) -> Mapping[int, Array]:
    """The counters of a Loop in each iteration, by places among the inputs of the body."""
    try:
        walked = flow.walk_again(body, inputs, {1: np.asarray(True)})
    except MisfitError:
        return {}
    return count_trips(walked.body.graph, flow.values[2:], _most_trips(flow)).ways


def _open_loop(flow: ControlFlow, body: GraphProto, inputs: list[TypeProto]) -> list[TypeProto]:
    """The types where shapes change from one iteration to the next: they are left open, and so are those of stacks."""
    states = inputs[2:]
    try:
        walked, after = _walk_open(flow, body, inputs)
    except MisfitError:
        types = _loop_body_types(body, [*inputs[:2], *map(without_shape, states)], flow.walk)[1:]
        _check_states(states, types)
        return [without_shape(kind) for kind in types]
    flow.first = _first_iterations(flow, body, inputs, walked)
    return [*after, *map(without_shape, walked.types[1 + len(states) :])]


def _walk_open(flow: ControlFlow, body: GraphProto, inputs: list[TypeProto]) -> tuple[WalkedBody, list[TypeProto]]:
    """The body for all shapes that its states may have, and their types. Raises MisfitError."""
    states, unread = inputs[2:], _unread_states(flow, body)
    while True:
        walked = flow.walk_again(body, [*inputs[:2], *states], {1: np.asarray(True)})
        _check_states(states, walked.types[1:])
        pairs = zip(states, walked.types[1:], strict=False)
        common = [b if number in unread else _common_extents(a, b) for number, (a, b) in enumerate(pairs)]
        if common == states:
            return walked, states
        states = common


def _common_extents(a: TypeProto, b: TypeProto) -> TypeProto:
    """The first type, with the extents alone that the second one has too."""
    dims, others = (list(kind.tensor_type.shape.dim) for kind in (a, b))
    if a == b or not a.tensor_type.HasField("shape"):
        return a
    result = without_shape(a)
    if b.tensor_type.HasField("shape") and len(dims) == len(others):
        same = [x.dim_value if x == y and x.HasField("dim_value") else None for x, y in zip(dims, others, strict=True)]
        result.CopyFrom(helper.make_tensor_type_proto(a.tensor_type.elem_type, same))
    return result


def _first_iterations(flow: ControlFlow, body: GraphProto, inputs: list[TypeProto], walked: WalkedBody) -> int:
    """How many iterations of a Loop are better written out, as shapes change in them; those behind keep theirs."""
    count, states = len(inputs) - 2, inputs[2:]
    if not _is_run(flow):
        return 0
    try:
        first = flow.walk_again(body, inputs, {0: np.asarray(0), 1: np.asarray(True)}).types
    except MisfitError:
        return 0
    if any(kind.HasField("tensor_type") and without_values(kind) for kind in (*states, *first)):
        return 0
    later = [*inputs[:2], *first[1 : 1 + count]]
    is_stable = flow.walk_shaped(body, later, range(2, len(later)), {1: np.asarray(True)}) is not None
    if not is_stable:
        flow.trips, _ = _known_trips(flow, walked.body)
    iterations = 1 if is_stable else flow.trips or 0
    nodes = iterations * sum(1 for _ in nested_nodes(body.node))
    if nodes > flow.budget.nodes or (iterations > 1 and nodes > MAX_WRITTEN_OUT):
        return 0
    flow.budget.nodes -= nodes
    return iterations


def _unread_states(flow: ControlFlow, body: GraphProto) -> set[int]:
    """The states that the body of a Loop does not read, where it runs once at least: they may have any shape before."""
    if not _is_run(flow):
        return set()
    read = {value.name for value in body.output}.union(*map(read_names, body.node))
    return {number for number, value in enumerate(body.input[2:]) if value.name not in read}


def _is_run(flow: ControlFlow) -> bool:
    """Whether a Loop is known to have an iteration."""
    trips, condition = (*flow.values, None, None)[:2]
    is_given = [kind.HasField("tensor_type") for kind in (*flow.inputs[:2], TypeProto(), TypeProto())]
    is_counted = not is_given[0] or (trips is not None and trips.size == 1 and trips.item() > 0)
    holds = not is_given[1] or (condition is not None and condition.size == 1 and bool(condition.item()))
    return is_counted and holds


def _known_trips(flow: ControlFlow, body: Body) -> tuple[int | None, Body]:
    """The trips of a Loop, if they are known, and its body, which wants no end of them then.

    In its body the condition is known to hold.
    """
    condition = (*flow.values, None, None)[1]
    is_given = [kind.HasField("tensor_type") for kind in (*flow.inputs[:2], TypeProto(), TypeProto())]
    if condition is not None and condition.size == 1 and not condition.item():
        return 0, body
    most = _most_trips(flow)
    if most is not None and most <= 0:
        return 0, body
    if (condition is None and is_given[1]) or (most is None and is_given[0]):
        return None, body
    count = count_trips(body.graph, flow.values[2:], most).trips
    if count is None or not flow.values:
        return None, body
    graph, holds = body.graph, body.graph.inputs[1].tensor
    outputs = (replace(graph.outputs[0], tensor=holds), *graph.outputs[1:])
    constants = {**graph.constants, holds: np.asarray(True)}
    return count, replace(body, graph=prune(replace(graph, outputs=outputs, constants=constants)))


def _most_trips(flow: ControlFlow) -> int | None:
    """The trip count of a Loop, where it has one that is known."""
    trips = flow.values[0] if flow.values else None
    return int(trips.item()) if trips is not None and trips.size == 1 else None


def stacked(kind: TypeProto, count: int, axis: int = 0) -> TypeProto:
    """The type of so many values of a type, stacked along an axis. The extents of the type are known."""
    shape = [dim.dim_value for dim in kind.tensor_type.shape.dim]
    shape.insert(axis % (len(shape) + 1), count)
    check_shape(shape)
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, shape)


def without_values(kind: TypeProto) -> bool:
    """Whether a type is no tensor with extents that are all known."""
    tensor = kind.tensor_type
    known = kind.HasField("tensor_type") and tensor.HasField("shape") and tensor.elem_type
    return not known or not all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _loop_body_types(body: GraphProto, inputs: Sequence[TypeProto], walk: BodyWalk) -> list[TypeProto]:
    """The types of the outputs of a body; those it declares if it misfits, as it then fails at the first trip."""
    try:
        return walk(body, inputs).types
    except MisfitError:
        declared = [without_shape(value.type) for value in body.output[len(inputs) - 1 :]]
        if any(kind.WhichOneof("value") is None for kind in declared):
            raise
        return [*inputs[1:], *declared]


def _scan(flow: ControlFlow) -> list[TypeProto]:
    body, scan_count = flow.graphs["body"], flow.node.attrs["num_scan_inputs"]
    operands = flow.inputs if flow.node.version >= 9 else flow.inputs[1:]  # opset 8 has the sequences' lengths first
    if scan_count > len(operands):
        raise TypeFault(f"num_scan_inputs is {scan_count} of {len(operands)} inputs")
    _check_count("outputs of the body", len(body.output), flow.count, "of the node")
    if (types := _shaped_scan(flow, body, len(operands) - scan_count)) is not None:
        return types
    types = flow.walk(body, [without_shape(kind) for kind in operands]).types
    _check_states(operands[: len(operands) - scan_count], types)
    return [without_shape(kind) for kind in types]


def _shaped_scan(flow: ControlFlow, body: GraphProto, states: int) -> list[TypeProto] | None:
    """The types of the outputs where all shapes are known and stay; else None."""
    sequences = flow.inputs[states:]
    if flow.node.version < 9 or any(without_values(kind) or not kind.tensor_type.shape.dim for kind in sequences):
        return None
    axes = flow.node.attrs.get("scan_input_axes") or [0] * len(sequences)
    rows, lengths = [], set()
    for kind, axis in zip(sequences, axes, strict=True):
        shape = [dim.dim_value for dim in kind.tensor_type.shape.dim]
        if not -len(shape) <= axis < len(shape):
            return None
        lengths.add(shape.pop(axis))
        rows.append(helper.make_tensor_type_proto(kind.tensor_type.elem_type, shape))
    walked = flow.walk_shaped(body, [*flow.inputs[:states], *rows], range(states)) if len(lengths) == 1 else None
    if walked is None:
        return None
    scans = walked.types[states:]
    axes = flow.node.attrs.get("scan_output_axes") or [0] * len(scans)
    if len(axes) != len(scans) or any(
        not -len(kind.tensor_type.shape.dim) - 1 <= axis <= len(kind.tensor_type.shape.dim)
        for kind, axis in zip(scans, axes, strict=True)
    ):
        return None
    flow.bodies["body"] = walked.body
    (length,) = lengths
    return [*flow.inputs[:states], *(stacked(kind, length, axis) for kind, axis in zip(scans, axes, strict=True))]


def _sequence_map(flow: ControlFlow) -> list[TypeProto]:
    body = flow.graphs["body"]
    items = [kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind for kind in flow.inputs]
    _check_count("outputs of the body", len(body.output), flow.count, "of the node")
    types = flow.walk(body, [without_shape(kind) for kind in items]).types
    return [helper.make_sequence_type_proto(without_shape(kind)) for kind in types]


def _flex_attention(flow: ControlFlow) -> list[TypeProto]:
    if len(flow.inputs) < 3:
        raise TypeFault("an op with graphs among its attributes is not supported with these operands")
    query, _, value = (kind.tensor_type.shape.dim for kind in flow.inputs[:3])
    kind = without_shape(flow.inputs[0])
    kind.tensor_type.shape.dim.extend([*query[:-1], *value[-1:]])
    return [kind] * flow.count


_RULES: Mapping[str, Callable[[ControlFlow], list[TypeProto]]] = {
    "FlexAttention": _flex_attention,
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}


def _check_states(before: Sequence[TypeProto], after: Sequence[TypeProto]) -> None:
    """Raises TypeFault where a value that a body carries on has another element type after a trip."""
    for number, kinds in enumerate(zip(before, after, strict=False)):
        types = [kind.tensor_type.elem_type for kind in kinds]
        if all(types) and types[0] != types[1]:
            first, second = (TensorProto.DataType.Name(kind).lower() for kind in types)
            raise TypeFault(f"carried value {number} is {first} before the body and {second} after it")


def _check_count(what: str, count: int, expected: int, whose: str) -> None:
    if count != expected:
        raise TypeFault(f"{count} {what} where {expected} are needed, {whose}")


def common_type(a: TypeProto, b: TypeProto) -> TypeProto:
    """The type of a value that has one of two types. Raises TypeFault if they hold different elements."""
    if a == b:
        return a
    if without_shape(a) != without_shape(b):
        raise TypeFault(f"one branch makes {_kind_name(a)}, the other {_kind_name(b)}; both must make the same")
    return without_shape(a)


def _kind_name(kind: TypeProto) -> str:
    """A type for people."""
    which = kind.WhichOneof("value") or "something unknown"
    return tensor_type(kind).dtype if which == "tensor_type" else which.replace("_type", "")
