"""Fusion: from a graph to the steps that run it, most of them tasks.

Nodes are visited in order, and each takes in the groups that make its operands wherever `merge.merge` says how: what
is pointwise becomes part of its reader, or of what it reads. A group's output is read by one group alone when two
become one, so that no cycle can arise and a group can run where its last node stood. Reshapes are no work: a tensor is
known by the one whose memory it shares, and tasks see memory under the shape that they want. Concatenation is none
either where groups of their own make the parts: each stores its part where it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tunewright.codegen.expr.dtype import BYTES
from tunewright.codegen.expr.expr import Expr, Load, const, loads, transform

from ..ir import Graph, Node
from ..ops import NARROW_PRODUCTS, Compute, NotNative, Place, Rounds, TensorView, define
from ..rounding import decisive_convolutions, decisive_tensors
from ..task import Stage, Task, canonical, in_order_of_use
from .groups import MAX_STAGES, Group, collapse, is_affine, reshape
from .merge import fuse_epilogue, inline, merge, split_factor

__all__ = ["Fallback", "Step", "TaskCall", "TensorView", "partition"]


@dataclass(frozen=True, slots=True)
class TaskCall:
    """Run a task. `inputs` and `outputs` are tensors of the graph in the task's order.

    The task may see them under other shapes, with the same elements in the same order. Of calls that do one node in
    rounds, the first has it in `nodes`; of those that each store a part of its result, all have. Tensors that the graph
    does not have are memory between the former, and views of the result to the latter.
    """

    task: Task
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    group: Group | None = field(repr=False, compare=False)  # what the task was made of; None for one of many rounds

    @staticmethod
    def of(graph: Graph, group: Group, *, is_decisive: bool = False) -> TaskCall:
        """The call that computes a group; `is_decisive` as in `Task`."""
        shapes, stages = collapse(group.tensors, group.stages)
        inputs = in_order_of_use((shapes[name] for name in group.inputs), stages)
        outputs = in_order_of_use((shapes[name] for name in group.outputs), stages)
        outer_names = {*group.inputs, *group.outputs}
        between = [tensor for name, tensor in shapes.items() if name not in outer_names]
        nodes = tuple(graph.nodes[n] for n in sorted(group.nodes))
        task = canonical("+".join(node.op for node in nodes), inputs, outputs, between, stages)
        task = replace(task, is_decisive=is_decisive)
        return TaskCall(task, tuple(t.name for t in inputs), tuple(t.name for t in outputs), nodes, group)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Run one node elsewhere, since it has no kernel."""

    node: Node
    reason: str


Step = TaskCall | TensorView | Fallback


def partition(graph: Graph) -> list[Step]:
    """The steps that compute a graph, in order.

    Views that only tasks read are left out: a call names the tensor that has the memory.
    """
    return _Fusion(graph).steps()


@dataclass(frozen=True, slots=True)
class _RoundsUnit:
    """A node that is done in rounds."""

    number: int  # of the node
    rounds: Rounds


class _Fusion:
    """Groups on their way to becoming tasks.

    A unit is what is visited at once: a node, or one output of a node that makes each by itself, as Split does.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.roots: dict[str, str] = {}  # view -> the tensor whose memory it is
        self.units: list[Group | Fallback | _RoundsUnit] = []
        self.readers: dict[str, set[int]] = {}  # tensor with memory -> units that read it
        self.makers: dict[str, int] = {}  # tensor with memory -> unit at whose place its group runs
        self.groups: dict[int, Group] = {}  # unit at whose place a group runs -> group
        self.members: dict[int, set[int]] = {}  # likewise -> units of the group
        self.wholes: dict[str, str] = {}  # output of a group that stores a part of a tensor -> the tensor
        self.results = {value.tensor for value in graph.outputs}
        read_names = self.results.union(*(node.inputs for node in graph.nodes))
        for number, node in enumerate(graph.nodes):
            self._add(number, node, read_names)
        self.decisive = decisive_tensors(graph)
        operands = {name for node in graph.nodes if node.op in NARROW_PRODUCTS for name in node.inputs}
        self.rounded = decisive_tensors(graph, edges=False) | operands  # to be stored if they are narrow
        self.convolutions = decisive_convolutions(graph)  # whose sums a step function reads
        self.result_roots = {self._root(name) for name in self.results}
        # Rows that trees are walked for: what makes them would be computed again at each step of each walk.
        self.walked = {self._root(node.inputs[0]) for node in graph.nodes if node.op == "Trees"}

    def steps(self) -> list[Step]:
        """The groups, grown as far as they go, as steps."""
        for number, unit in enumerate(self.units):
            if isinstance(unit, Group):
                self._grow(number, unit)
        for number in list(self.groups):
            self._distribute_parts(number)
        steps: list[Step] = []
        view_names: set[str] = set()

        def view(names: Iterable[str]) -> None:
            new_names = [name for name in dict.fromkeys(names) if name in self.roots and name not in view_names]
            steps.extend(TensorView(self.roots[name], name) for name in new_names)
            view_names.update(new_names)

        for number, unit in enumerate(self.units):
            if isinstance(unit, Fallback):
                view(unit.node.inputs)
                steps.append(unit)
            elif isinstance(unit, _RoundsUnit):
                steps += self._round_calls(unit)
            elif number in self.groups:
                group = self.groups[number]
                call = TaskCall.of(self.graph, group, is_decisive=not group.nodes.isdisjoint(self.convolutions))
                steps += (TensorView(self.wholes[name], name) for name in call.outputs if name in self.wholes)
                steps.append(call)
        view(value.tensor for value in self.graph.outputs)
        return steps

    def _root(self, tensor: str) -> str:
        return self.roots.get(tensor, tensor)

    # Units

    def _add(self, number: int, node: Node, read_names: set[str]) -> None:
        needed = replace(node, outputs=tuple(name if name in read_names else "" for name in node.outputs))
        if not any(needed.outputs):
            return
        try:
            meaning = define(needed, self.graph.types, self.graph.constants)
        except NotNative as reason:
            self._add_alone(node, Fallback(node, str(reason)))
            return
        if isinstance(meaning, Rounds):
            self._add_alone(node, _RoundsUnit(number, meaning))
            return
        if isinstance(meaning, TensorView):
            self.roots[meaning.output] = self._root(meaning.input)
            return
        for whole in _separate(self._group(number, needed, meaning)):
            for group in self._split_parts(whole):
                for name in group.inputs:
                    self.readers.setdefault(name, set()).add(len(self.units))
                self.units.append(group)

    def _split_parts(self, group: Group) -> list[Group]:
        """Split a concatenation of more parts than a group may have stages into several groups."""
        if len(group.stages) <= MAX_STAGES or not _is_concatenation(group):
            return [group]
        (whole,) = group.outputs
        return [
            self._part(group, group.stages[k : k + MAX_STAGES], whole) for k in range(0, len(group.stages), MAX_STAGES)
        ]

    def _part(self, group: Group, stages: Sequence[Stage], whole: str) -> Group:
        """Some stages of a group as one that stores a part of a tensor of the graph."""
        name = f"{whole}#{len(self.wholes)}"
        self.wholes[name] = whole
        return _part_group(group, stages, name)

    def _add_alone(self, node: Node, unit: Fallback | _RoundsUnit) -> None:
        """Add a node that is fused with no other."""
        self.units.append(unit)
        for name in filter(None, node.inputs):
            self.readers.setdefault(self._root(name), set()).add(len(self.units) - 1)

    def _group(self, number: int, node: Node, meaning: Compute) -> Group:
        """The group of one node: views are replaced by their roots, constants of one element by literals."""
        known = {
            n: a for n in meaning.tensors if (a := self.graph.constants.get(self._root(n))) is not None and a.size == 1
        }

        def visit(expr: Expr) -> Expr:
            if isinstance(expr, Load) and expr.tensor in known:
                return const(known[expr.tensor].item(), expr.dtype)
            return expr

        stages = meaning.stages
        if known:
            stages = tuple(replace(s, body=transform(s.body, visit)) for s in stages)
        outputs = tuple(name for name in node.outputs if name)
        group = Group(frozenset({number}), meaning.tensors, stages, outputs)
        for name in group.inputs:
            group = _read_root(group, name, self._root(name), self._root(name) in self.graph.constants)
        used = {*group.inputs, *(stage.output for stage in stages)}
        return replace(group, tensors={name: t for name, t in group.tensors.items() if name in used}).drop_rounding()

    # Growth

    def _grow(self, number: int, group: Group) -> None:
        """Take in the groups that make the operands, and what makes theirs."""
        members = {number}
        while True:
            for name in sorted(group.inputs, key=lambda n: -self.makers.get(n, -1)):
                maker = self.makers.get(name)
                if maker is None or not self._is_joinable(name, members):
                    continue
                first = self.groups[maker]
                if first.pointwise is None and self._is_left_to_reader(number, group):
                    continue
                fused = merge(first, group, name, self._is_exact(group))
                if fused is not None:
                    group = fused
                    members |= self.members.pop(maker)
                    del self.groups[maker]
                    break
            else:
                break
        self.groups[number] = group
        self.members[number] = members
        self.makers.update(dict.fromkeys(group.outputs, number))

    def _is_joinable(self, name: str, members: set[int]) -> bool:
        """Whether a tensor is all that its group makes and these units are all that read it."""
        group = self.groups[self.makers[name]]
        if name in self.walked:
            return False
        if name in self.rounded and group.tensors[name].dtype.is_narrow:
            return False
        return len(group.outputs) == 1 and name not in self.result_roots and self.readers[name] <= members

    def _is_exact(self, group: Group) -> bool:
        """Whether a group makes what must not be rounded in another way."""
        return any(not self.decisive.isdisjoint(self.graph.nodes[number].outputs) for number in group.nodes)

    def _is_left_to_reader(self, number: int, group: Group) -> bool:
        """Whether a group only moves elements, or dequantises them, and its only reader can do that while reading."""
        stage, output = group.pointwise, group.outputs[0]
        readers = self.readers.get(output, set())
        if stage is None or len(readers) != 1 or output in self.result_roots | self.walked:
            return False
        reader = self.units[min(readers)]
        if not isinstance(reader, Group):
            return False
        if not _moves(stage) and not (_widens_bytes(group, stage) and _folds_at_most_once(reader)):
            return False
        return inline(group, reader, output, self._is_exact(reader)) is not None

    def _distribute_parts(self, number: int) -> None:
        """Replace a concatenation: the groups that make the parts store them where they belong, if all of them can.

        If one of them can't, the rest would still be copied.
        """
        group = self.groups[number]
        if len(group.stages) < 2 or not _is_concatenation(group):
            return
        (output,) = group.outputs
        fused_groups: dict[int, Group] = {}
        for stage in group.stages:
            maker = self._maker_of(stage, self.members[number])
            if maker is None or maker in fused_groups:
                return
            producer = self.groups[maker]
            fused = fuse_epilogue(producer, _part_group(group, [stage], output), producer.outputs[0])
            if fused is None:
                return
            fused_groups[maker] = fused.drop_rounding()
        whole = self.wholes.get(output, output)
        for maker, fused in fused_groups.items():
            self.groups[maker] = self._part(fused, fused.stages, whole)
        del self.groups[number], self.members[number]

    def _maker_of(self, stage: Stage, members: set[int]) -> int | None:
        """The place of the group that alone makes what a stage reads, for these units; constants are always there."""
        names = {x.tensor for x in loads(stage.body)} - self.graph.constants.keys()
        if len(names) != 1:
            return None
        (name,) = names
        maker = self.makers.get(name)
        return maker if maker in self.groups and self._is_joinable(name, members) else None

    # Steps

    def _round_calls(self, unit: _RoundsUnit) -> list[Step]:
        """The calls of a node that is done in rounds, and the views that they work on."""
        node, rounds = self.graph.nodes[unit.number], unit.rounds
        bodies = [self._group(unit.number, replace(node, outputs=body.outputs), body.compute) for body in rounds.bodies]
        calls = [replace(TaskCall.of(self.graph, body), nodes=(), group=None) for body in bodies]
        steps: list[Step] = []
        view_names: set[str] = set()
        nodes: tuple[Node, ...] = (node,)

        def at(place: Place) -> str:
            if isinstance(place, str):
                return self._root(place)
            root = self._root(place.of)
            name = f"{root}@{place.offset_bytes}"
            if name not in view_names:
                steps.append(TensorView(root, name, place.offset_bytes))
                view_names.add(name)
            return name

        for places in rounds.places:
            for call in calls:
                inputs, outputs = (
                    tuple(at(places.get(name, name)) for name in names) for names in (call.inputs, call.outputs)
                )
                steps.append(replace(call, inputs=inputs, outputs=outputs, nodes=nodes))
                nodes = ()
        return [*steps, *(TensorView(part.of, name, part.offset_bytes) for name, part in rounds.outputs.items())]


def _separate(group: Group) -> list[Group]:
    """Split a group into one group per output, if each stage makes a whole output by itself."""
    written = [stage.output for stage in group.stages]
    read = {x.tensor for stage in group.stages for x in loads(stage.body)}
    is_separable = all(not stage.reduce for stage in group.stages) and sorted(written) == sorted(group.outputs)
    if len(written) < 2 or not is_separable or not read.isdisjoint(written):
        return [group]
    groups = []
    for stage in group.stages:
        used = dict.fromkeys([*(x.tensor for x in loads(stage.body)), stage.output])
        groups.append(Group(group.nodes, {name: group.tensors[name] for name in used}, (stage,), (stage.output,)))
    return groups


def _moves(stage: Stage) -> bool:
    """Whether a stage only puts elements elsewhere, perhaps times a constant."""
    body, _ = split_factor(stage.body)
    return is_affine(body) and any(x.index != stage.index for x in loads(body))


def _widens_bytes(group: Group, stage: Stage) -> bool:
    """Whether a stage makes a larger element of each byte, as where bytes are dequantised: memory better has those.

    Constants that are read as well, such as scales, don't count.
    """
    is_larger = group.tensors[stage.output].dtype.size_bytes > 1
    reads = [x for x in loads(stage.body) if not group.tensors[x.tensor].constant]
    return is_larger and len(reads) == 1 and reads[0].index == stage.index and reads[0].dtype in BYTES


def _folds_at_most_once(group: Group) -> bool:
    """Whether a group goes through what it reads once, unlike a softmax, which would dequantise in each pass."""
    return sum(bool(stage.reduce) for stage in group.stages) <= 1


def _is_concatenation(group: Group) -> bool:
    """Whether each stage makes a part, or all, of the only output."""
    return len(group.outputs) == 1 and all(not s.reduce and s.output == group.outputs[0] for s in group.stages)


def _part_group(group: Group, stages: Sequence[Stage], output: str) -> Group:
    """Some stages of a group with one output, under another name, of which they write a part."""
    (whole,) = group.outputs
    used = {x.tensor for stage in stages for x in loads(stage.body)} | {stage.output for stage in stages}
    tensors = {name: t for name, t in group.tensors.items() if name in used and name != whole}
    tensors[output] = replace(group.tensors[whole], name=output)
    named = tuple(replace(s, output=output) if s.output == whole else s for s in stages)
    return Group(group.nodes, tensors, named, (output,))


def _read_root(group: Group, name: str, root: str, constant: bool) -> Group:
    """The group reading `root` where it reads `name`, a view of it."""
    if name == root:
        return group
    if root in group.tensors and group.tensors[root].shape != group.tensors[name].shape:
        flat = (prod(group.tensors[root].shape),)
        same = (
            reshape(group, name, group.tensors[root].shape)
            or reshape(group, root, group.tensors[name].shape)
            or reshape(reshape(group, name, flat) or group, root, flat)
        )
        assert same is not None
        group = same

    def visit(expr: Expr) -> Expr:
        return replace(expr, tensor=root) if isinstance(expr, Load) and expr.tensor == name else expr

    stages = tuple(replace(s, body=transform(s.body, visit)) for s in group.stages)
    tensors = {n: t for n, t in group.tensors.items() if n != name}
    tensors[root] = replace(group.tensors[name], name=root, constant=constant)
    return replace(group, tensors=tensors, stages=stages)
