"""Control flow as steps: bodies are rewritten and fused as models are, and their steps join those around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tunewright.codegen.expr.dtype import DType

from ..evaluation.onnx_form import CAPTURES, NORMAL_VERSION
from ..fusion.fusion import Fallback, Step, TaskCall, partition
from ..ir import Array, Body, Graph, GraphPort, Node, TensorType
from ..numerics import PROCESSOR, Numerics
from ..ops import TensorView
from ..rewrites import rewrite
from ..rounding import decisive_tensors
from .flat import FlatStep, read_names, rename
from .routines import ROUTINES, routine_steps
from .steps import (
    WORDS,
    Branch,
    EndBranch,
    LoopEnd,
    LoopStart,
    MovingView,
    Otherwise,
    Stop,
    TensorCopy,
)

RING_BYTES = 64
"""Both buffers of a ring begin at multiples of this, a cache line."""


def lower(graph: Graph, steps: Sequence[Step], numerics: Numerics = PROCESSOR) -> tuple[Graph, list[FlatStep]]:
    """The steps with those of bodies in the place of the nodes that run them, and the graph with their tensors.

    A node stays as it is where a shape changes from one iteration to the next or with the branch that is taken, where
    how much a loop stacks up is not known, and where a node of a body has no kernel. `numerics` as in `rewrite`.
    """
    flattening = _Flattening(graph, numerics)
    flat: list[FlatStep] = []
    lowered: set[tuple[str, ...]] = set()
    for step in steps:
        inner = None
        if isinstance(step, Fallback) and (step.node.bodies or step.node.op in ROUTINES):
            inner = flattening.node(step.node)
            if inner is not None and step.node.bodies:
                lowered.add(step.node.outputs)
        flat += [step] if inner is None else inner
    if not lowered:
        return graph, flat
    # bodies hold weights, which are known by other names now
    nodes = tuple(replace(n, attrs={}, bodies={}) if n.outputs in lowered else n for n in graph.nodes)
    read = {port.tensor for port in graph.outputs}.union(*map(read_names, flat))
    constants = {name: array for name, array in flattening.constants.items() if name in read}
    return replace(graph, nodes=nodes, constants=constants, types=flattening.types), flat


@dataclass(frozen=True, slots=True)
class _Region:
    """The steps of a body over tensors of the whole model, and its outputs."""

    steps: list[FlatStep]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Repetition:
    """A Loop or Scan: what its body is given, and where it puts what it makes.

    `own` are the operands of the body before the states, `rows` those behind. `stacks` are where rows of the outputs
    go, with "" for one that nobody reads. `first` is the place of the first state among the outputs of the body.
    """

    node: Node
    loop: LoopStart
    own: tuple[str | Array, ...]
    states: tuple[str, ...]
    rows: tuple[str, ...]
    results: tuple[str, ...]
    stacks: tuple[str, ...]
    is_reversed: tuple[bool, ...]
    first: int


class _Flattening:
    """Tensors of a model and its bodies, each by a name of its own."""

    def __init__(self, graph: Graph, numerics: Numerics) -> None:
        self.types, self.constants = dict(graph.types), dict(graph.constants)
        self._numerics = numerics
        self._constant_names = {id(array): name for name, array in self.constants.items()}
        self._bodies = self._loops = 0
        self._decisive = set(decisive_tensors(graph))

    def node(self, node: Node) -> list[FlatStep] | None:
        """The steps of a node; None where it has to stay."""
        match node.op:
            case "If":
                return self._if(node)
            case "Loop":
                return self._loop(node)
            case "Scan":
                return self._scan(node)
            case op if op in ROUTINES:
                return [*routine_steps(node, self.types)]
        return None

    def _is_plain(self, name: str) -> bool:
        """Whether a tensor has memory: a type that kernels know, and elements."""
        return self.types[name].size_bytes > 0

    def _new(self, name: str, dtype: str, *shape: int) -> str:
        self.types[name] = TensorType(dtype, shape)
        return name

    # Bodies

    def _graph(
        self, body: Body, node: Node, own: Sequence[str | Array], is_decisive: Sequence[bool]
    ) -> tuple[Graph, list[str]] | None:
        """The graph of a body, rewritten for its operands, and the tensors around it that its inputs are.

        `own` are the operands of the body itself, values for those that are known; `is_decisive` goes with its outputs.
        None where types don't fit.
        """
        operands = [*own, *(node.inputs[place] for place in body.captures)]
        known, ports, names = dict(body.graph.constants), [], []
        for port, operand in zip(body.graph.inputs, operands, strict=True):
            if isinstance(operand, str) and operand not in self.constants:
                if self.types[operand] != body.graph.type(port.tensor):
                    return None
                ports.append(port)
                names.append(operand)
            else:
                known[port.tensor] = self.constants[operand] if isinstance(operand, str) else operand
        marked = zip(body.graph.outputs, is_decisive, strict=True)
        outputs = tuple(replace(port, is_decisive=is_marked) for port, is_marked in marked)
        inner = replace(body.graph, inputs=tuple(ports), outputs=outputs, constants=known)
        return rewrite(inner, numerics=self._numerics, is_body=True), names

    def _region(self, graph: Graph, operands: Sequence[str]) -> _Region | None:
        """The steps of a body's graph, whose inputs are these tensors. None where a node has no kernel."""
        prefix = f"b{self._bodies}."
        self._bodies += 1
        names = {"": ""}
        for name, array in graph.constants.items():
            names[name] = self._constant_names.setdefault(id(array), prefix + name)
            self.constants[names[name]] = array
        names |= {port.tensor: operand for port, operand in zip(graph.inputs, operands, strict=True)}
        for name, kind in graph.types.items():
            self.types.setdefault(names.setdefault(name, prefix + name), kind)
        self._decisive |= {names[name] for name in decisive_tensors(graph)}
        steps: list[FlatStep] = []
        for step in partition(graph):
            renamed = rename(step, names, prefix)
            inner = self.node(renamed.node) if isinstance(renamed, Fallback) else [renamed]
            if inner is None:
                return None
            steps += inner
        return _Region(steps, tuple(names[port.tensor] for port in graph.outputs))

    def _deliver(self, region: _Region, pairs: Sequence[tuple[str, str]]) -> list[FlatStep]:
        """The steps of a region that leaves outputs in other tensors, by pairs of an output and the tensor.

        Where a call makes the output, it is made in that place; else it is copied there.
        """
        views = {s.output: s for s in region.steps if isinstance(s, TensorView)}
        roots = {name: view.input for name, view in views.items()}
        roots |= {step.output: step.of for step in region.steps if isinstance(step, MovingView)}
        free: set[str] = set()
        for step in region.steps:
            match step:
                case TaskCall(outputs=outputs):
                    free |= {_root(name, roots) for name in outputs}
                case TensorCopy(output=output):
                    free.add(_root(output, roots))
        before: list[FlatStep] = []
        after: list[FlatStep] = []
        for source, to in pairs:
            name = source
            while (view := views.get(name)) is not None and not view.offset_bytes:
                name = view.input
            kind = self.types.get(name)
            if name in free and kind is not None and kind.size_bytes == self.types[to].size_bytes:
                free.remove(name)
                before.append(TensorView(to, name))
            else:
                after.append(TensorCopy(source, to))
        return [*before, *region.steps, *after]

    # If

    def _if(self, node: Node) -> list[FlatStep] | None:
        condition, wanted = node.inputs[0], [name for name in node.outputs if name]
        kind = self.types[condition]
        if kind.dtype != "bool" or kind.size_bytes != 1 or not all(map(self._is_plain, wanted)):
            return None
        if condition in self.constants:
            return self._taken_branch(node, "then_branch" if self.constants[condition].item() else "else_branch")
        then, otherwise = (
            self._taken_branch(node, name) if name in node.bodies else [_stop(node, name)]
            for name in ("then_branch", "else_branch")
        )
        if then is None or otherwise is None:
            return None
        return [Branch(condition), *then, Otherwise(), *otherwise, EndBranch()]

    def _taken_branch(self, node: Node, name: str) -> list[FlatStep] | None:
        body = node.bodies.get(name)
        is_decisive = (
            [name in self._decisive for name in self._all_outputs(node, len(body.graph.outputs))] if body else ()
        )
        read = None if body is None else self._graph(body, node, (), is_decisive)
        region = None if read is None else self._region(*read)
        if region is None:
            return None
        pairs = [(source, to) for source, to in zip(region.outputs, node.outputs, strict=False) if to]
        if any(self.types[source] != self.types[to] for source, to in pairs):
            return None
        return self._deliver(region, pairs)

    # Loop and Scan

    def _loop(self, node: Node) -> list[FlatStep] | None:
        explicit = len(node.inputs) - len(node.attrs[CAPTURES])
        trips, condition, *states = (*node.inputs[:explicit], "", "")[: max(explicit, 2)]
        body = node.bodies.get("body")
        if body is None:
            return None
        after = body.graph.constants.get(body.graph.outputs[0].tensor)
        loop = self._loop_start(trips, condition, after is not None and bool(after.all()))
        iteration = self._new(f"{loop.words}.i", "int64")
        results = self._all_outputs(node, len(body.graph.outputs) - 1)
        stacks = results[len(states) :]
        repetition = _Repetition(
            node, loop, (iteration, np.asarray(True)), tuple(states), (), results, stacks, (False,) * len(stacks), 1
        )
        steps = self._repeat(repetition)
        return None if steps is None else [TensorView(loop.words, iteration), *steps]

    def _loop_start(self, trips: str, condition: str, is_endless: bool) -> LoopStart:
        """The start of a Loop; `is_endless` if its body always wants another iteration."""
        number = self._loops
        self._loops += 1
        words = self._new(f"loop{number}", "int64", WORDS)
        holds = self.constants.get(condition)
        most = self.constants.get(trips)
        if holds is not None and not holds.all():
            return LoopStart(number, words, count=0)
        if holds is not None:
            condition = ""
        if most is None:
            return LoopStart(number, words, trips, condition)
        count = max(int(most.item()), 0)
        is_known = (is_endless and not condition) or not count
        return LoopStart(number, words, trips, condition, count if is_known else None)

    def _all_outputs(self, node: Node, count: int) -> tuple[str, ...]:
        return (*node.outputs, *("",) * (count - len(node.outputs)))

    def _scan(self, node: Node) -> list[FlatStep] | None:
        body, attrs = node.bodies.get("body"), node.attrs
        if body is None:
            return None
        explicit = node.inputs[: len(node.inputs) - len(attrs[CAPTURES])]
        states, sequences = (explicit[: -attrs["num_scan_inputs"]], explicit[-attrs["num_scan_inputs"] :])
        results = self._all_outputs(node, len(body.graph.outputs))
        stacks = results[len(states) :]
        axes, back = (attrs.get(f"scan_input_{key}") or (0,) * len(sequences) for key in ("axes", "directions"))
        if not all(self._is_plain(name) for name in sequences if 0 not in (self.types[name].shape or ())):
            return None
        before: list[FlatStep] = []
        loop = replace(self._loop_start("", "", True), count=_extent(self.types[sequences[0]], axes[0]))
        rows = []
        for place, (name, axis) in enumerate(zip(sequences, axes, strict=True)):
            row = f"{loop.words}.r{place}"
            source, steps = self._with_axis_first(name, axis, f"{row}.t")
            before += [*steps, *self._row(source, row, loop, bool(back[place]))]
            rows.append(row)
        axes, back = (attrs.get(f"scan_output_{key}") or (0,) * len(stacks) for key in ("axes", "directions"))
        places, after = self._stacks(stacks, axes, loop)
        repetition = _Repetition(
            node, loop, (), tuple(states), tuple(rows), results, places, tuple(map(bool, back)), first=0
        )
        repeated = self._repeat(repetition)
        return None if repeated is None else [*before, *repeated, *after]

    def _with_axis_first(self, name: str, axis: int, to: str) -> tuple[str, list[FlatStep]]:
        """A sequence with the axis of its iterations in front, and the steps that make it."""
        shape = self.types[name].shape or ()
        axis %= len(shape)
        if not axis:
            return name, []
        order = (axis, *(k for k in range(len(shape)) if k != axis))
        self._new(to, self.types[name].dtype, *(shape[k] for k in order))
        return to, self._transpose(name, to, order)

    def _stacks(
        self, stacks: Sequence[str], axes: Sequence[int], loop: LoopStart
    ) -> tuple[tuple[str, ...], list[FlatStep]]:
        """Where a Scan stacks rows up along axis 0, and the steps that then move that axis to its place."""
        places: list[str] = []
        after: list[FlatStep] = []
        for number, (name, axis) in enumerate(zip(stacks, axes, strict=True)):
            shape = self.types[name].shape if name else None
            axis = axis % len(shape) if shape else 0
            if not axis or shape is None:
                places.append(name)
                continue
            order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape)))
            extents = (shape[axis], *shape[:axis], *shape[axis + 1 :])
            place = self._new(f"{loop.words}.o{number}", self.types[name].dtype, *extents)
            places.append(place)
            after += self._transpose(place, name, order)
        return tuple(places), after

    def _transpose(self, source: str, to: str, order: Sequence[int]) -> list[FlatStep]:
        if not self._is_plain(source):
            return []
        node = Node("Transpose", ("x",), ("y",), {"perm": tuple(order)}, version=NORMAL_VERSION)
        types = {"x": self.types[source], "y": self.types[to]}
        graph = Graph((GraphPort("", "x"),), (GraphPort("", "y"),), (node,), {}, types)
        names = {"x": source, "y": to}
        return [rename(step, names, f"{to}.") for step in partition(graph)]

    def _row(self, whole: str, row: str, loop: LoopStart, is_reversed: bool) -> list[FlatStep]:
        """A row of a tensor along its first axis, another one in each iteration."""
        kind = self.types[whole]
        count, *shape = kind.shape or ()
        self._new(row, kind.dtype, *shape)
        stride_bytes = self.types[row].size_bytes
        last_bytes = (count - 1) * stride_bytes
        if not count:
            return []
        if is_reversed:
            return [MovingView(whole, row, loop.number, -stride_bytes, last_bytes)]
        return [MovingView(whole, row, loop.number, stride_bytes)]

    def _repeat(self, repetition: _Repetition) -> list[FlatStep] | None:
        """The steps of a loop."""
        node, loop = repetition.node, repetition.loop
        wanted = [name for name in (*repetition.results, *repetition.stacks) if name]
        if any(self.types[name].shape is None for name in wanted):
            return None
        if loop.count == 0:
            return self._no_iteration(repetition)
        if not all(map(self._is_plain, filter(None, (*wanted, *repetition.states, loop.trips, loop.condition)))):
            return None
        if any(repetition.stacks) and loop.count is None:
            return None
        body, states = node.bodies["body"], repetition.states
        operands: list[str | Array] = [*repetition.own, *states, *repetition.rows]
        read = self._graph(
            body, node, self._placeholders(operands, repetition), self._decisive_outputs(repetition, body)
        )
        if read is None:
            return None
        graph, names = read
        kept = self._kept_states(graph, names, repetition)
        before, after, names = self._rings(repetition, names, kept)
        region = self._region(graph, names)
        if region is None:
            return None
        return self._loop_steps(repetition, region, kept, before, after)

    def _placeholders(self, operands: Sequence[str | Array], repetition: _Repetition) -> list[str | Array]:
        """The operands of a body, with names of their own for the states: they differ from iteration to iteration."""
        first = len(repetition.own)
        placed = list(operands)
        for number, state in enumerate(repetition.states):
            placed[first + number] = name = _state(repetition.loop, number)
            self.types[name] = self.types[state]
        return placed

    def _decisive_outputs(self, repetition: _Repetition, body: Body) -> list[bool]:
        """Whether a step function reads outputs of a body, after the loop or in the next iteration."""
        inside = decisive_tensors(body.graph)
        first = len(repetition.own)
        read_again = [port.tensor in inside for port in body.graph.inputs[first : first + len(repetition.states)]]
        read_again += [False] * (len(repetition.results) - len(read_again))
        read_after = [name in self._decisive for name in repetition.results]
        return [*[False] * repetition.first, *map(any, zip(read_again, read_after, strict=True))]

    def _kept_states(self, graph: Graph, names: Sequence[str], repetition: _Repetition) -> set[int]:
        """The states that stay what they were at first."""
        sources = {name: port.tensor for port, name in zip(graph.inputs, names, strict=True)}
        return {
            number
            for number in range(len(repetition.states))
            if graph.outputs[repetition.first + number].tensor == sources[_state(repetition.loop, number)]
        }

    def _rings(
        self, repetition: _Repetition, names: Sequence[str], kept: set[int]
    ) -> tuple[list[FlatStep], list[FlatStep], list[str]]:
        """Steps before the loop and behind it that bring states into rings and back, and the operands of the body."""
        loop = repetition.loop
        before: list[FlatStep] = []
        after: list[FlatStep] = []
        fixed: dict[str, str] = {}
        for number, (initial, result) in enumerate(zip(repetition.states, repetition.results, strict=False)):
            now = _state(loop, number)
            if number in kept:
                fixed[now] = initial
                after += [TensorCopy(initial, result)] if result else []
                continue
            kind = self.types[result or initial]
            room_bytes = -(-kind.size_bytes // RING_BYTES) * RING_BYTES
            ring = self._new(f"{now}.ring", "uint8", 2 * room_bytes)
            self.types |= {now: kind, f"{now}.first": kind, f"{now}.next": kind}
            if self.types[initial] == kind:  # else the body runs, and does not read it
                before += [TensorView(ring, f"{now}.first"), TensorCopy(initial, f"{now}.first")]
            before.append(MovingView(ring, now, loop.number, room_bytes, is_ring=True))
            before.append(MovingView(ring, f"{now}.next", loop.number, room_bytes, is_ring=True, phase=1))
            after += [TensorCopy(now, result)] if result else []
        return before, after, [fixed.get(name, name) for name in names]

    def _loop_steps(
        self,
        repetition: _Repetition,
        region: _Region,
        kept: set[int],
        before: list[FlatStep],
        after: list[FlatStep],
    ) -> list[FlatStep] | None:
        loop, first = repetition.loop, repetition.first
        pairs = [
            (region.outputs[first + number], f"{_state(loop, number)}.next")
            for number in range(len(repetition.states))
            if number not in kept
        ]
        for number, (stack, is_reversed) in enumerate(zip(repetition.stacks, repetition.is_reversed, strict=True)):
            if stack:
                row = f"{loop.words}.y{number}"
                before += self._row(stack, row, loop, is_reversed)
                pairs.append((region.outputs[first + len(repetition.states) + number], row))
        if any(self.types[source] != self.types[to] for source, to in pairs):
            return None
        condition = region.outputs[0] if first else ""
        value = self.constants.get(condition)
        end = LoopEnd(loop.number, "" if value is not None and value.all() else condition)
        if end.condition and self.types[end.condition].size_bytes != 1:
            return None
        return [*before, loop, *self._deliver(region, pairs), end, *after]

    def _no_iteration(self, repetition: _Repetition) -> list[FlatStep] | None:
        """What a loop leaves that has no iteration: its states as they were, and nothing stacked up."""
        pairs = [pair for pair in zip(repetition.states, repetition.results, strict=False) if pair[1]]
        if not all(self._is_plain(name) for pair in pairs for name in pair):
            return None
        for name in filter(None, repetition.stacks):
            kind = self.types[name]
            if DType.of(kind.dtype) is None:
                return None
            self.constants[name] = np.empty(kind.shape or (), kind.dtype)
        return [TensorCopy(*pair) for pair in pairs]


def _stop(node: Node, branch: str) -> Stop:
    """What stands for a branch in which shapes don't fit together."""
    taken = branch.removesuffix("_branch")
    return Stop(f"{node.place or node.op}: shapes don't fit together in its {taken} branch, which its condition takes")


def _state(loop: LoopStart, number: int) -> str:
    """The name of a state in the body of a loop."""
    return f"{loop.words}.s{number}"


def _extent(kind: TensorType, axis: int) -> int:
    assert kind.shape is not None
    return kind.shape[axis]


def _root(name: str, roots: Mapping[str, str]) -> str:
    while name in roots:
        name = roots[name]
    return name
