"""Joined products: products of one left operand as one, where each alone leaves a part of a GPU idle.

    q = x @ a + s                 all = x @ [a, b, c] + [s, t, u]
    k = x @ b + t      becomes    q, k, v = Split(all)
    v = x @ c + u

Each sum has the same terms as before. The parts are no work: whoever reads one reads its columns of the whole. Heads of
attention are whole rows of the whole, seen as [..., heads, columns of a head], so that tasks are as they would be with
a tensor for each part, but for the number at which its heads begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..draft import Draft
from ..evaluation.onnx_form import NORMAL_VERSION
from ..ir import Array, Graph, Node
from .fusion import Fallback, Step, TaskCall, TensorView, partition
from .groups import Group, is_movement
from .segments import chains

TILE = 128
"""Rows and columns of the tiles by which is told whether a product has one for each multiprocessor."""

ALIGNED_BYTES = 16
"""Rows that begin on multiples of it are what copy engines and asynchronous copies take."""

PACKED = "BlockMatMul"
"""Products with weights of few bits."""

Names = tuple[str, ...]
"""The outputs of a node, by which it is known."""

WeightForm = tuple[Any, ...]
"""An op, its attributes, and types and shapes of weights without their columns."""


@dataclass(frozen=True, slots=True)
class _Projection:
    """A product with known weights, and the known bias that is added to it, [columns], if one is.

    Weights are [depth, columns]; or of few bits, with scales and perhaps zero points, each [columns, ...].
    """

    product: Node
    sum: Node | None = None
    bias: str = ""

    @staticmethod
    def all_of(graph: Graph) -> Iterator[_Projection]:
        """Those of a graph whose results nodes alone read."""
        readers, results = graph.consumers(), {value.tensor for value in graph.outputs}
        for node in graph.nodes:
            if _is_projection(graph, node) and not results & {*node.outputs}:
                projection = _Projection(node)
                match readers.get(node.outputs[0], []):
                    case [Node(op="Add", domain="") as reader] if bias := _bias(graph, node, reader):
                        projection = _Projection(node, reader, bias)
                if projection.output in readers and projection.output not in results:
                    yield projection

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.product,) if self.sum is None else (self.product, self.sum)

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]

    @property
    def column_axis(self) -> int:
        """The dimension of its weights that is its columns."""
        return 0 if self.product.op == PACKED else 1

    def weights(self, constants: Mapping[str, Array]) -> list[Array]:
        """Its weights, and what belongs to them."""
        return [constants[name] for name in self.product.inputs[1:] if name]

    def form(self, graph: Graph) -> WeightForm:
        """What those that are joined have in common, beside what they read."""
        arrays = self.weights(graph.constants)
        shapes = tuple((a.dtype.name, *a.shape[: self.column_axis], *a.shape[self.column_axis + 1 :]) for a in arrays)
        attrs = tuple(sorted(self.product.attrs.items()))
        return self.product.op, attrs, shapes, self.sum is not None, self.is_aligned(graph)

    def is_aligned(self, graph: Graph) -> bool:
        """Whether rows of its weights begin on multiples of ALIGNED_BYTES; those of few bits have no rows."""
        weights = graph.constants[self.product.inputs[1]]
        return self.product.op == PACKED or int(weights.shape[1] * weights.itemsize) % ALIGNED_BYTES == 0

    def columns(self, graph: Graph) -> int:
        """The columns of its weights."""
        return int(graph.constants[self.product.inputs[1]].shape[self.column_axis])

    def tiles(self, graph: Graph) -> int:
        """The tiles that cover its result."""
        *rows, columns = graph.types[self.output].shape or ()
        return -(-prod(rows) // TILE) * -(-columns // TILE)

    def head_columns(self, graph: Graph, readers: Sequence[Node]) -> int:
        """The columns of a head, if its only reader is a Reshape into heads; else all columns."""
        columns = self.columns(graph)
        match readers:
            case [Node(op="Reshape", domain="", outputs=(name,))]:
                *_, last = graph.types[name].shape or (1,)
                return last if last > 1 and columns % last == 0 else columns
        return columns


def _is_projection(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of a tensor of floats with a known matrix."""
    if node.op not in ("MatMul", "MatMulNarrow", PACKED) or node.domain or node.inputs[0] in graph.constants:
        return False
    weights, kind = [graph.constants.get(name) for name in node.inputs[1:] if name], graph.types[node.outputs[0]]
    is_known = all(array is not None and (array.ndim == 2 or node.op == PACKED) for array in weights)
    return is_known and kind.is_float and len(kind.shape or ()) >= 2


def _bias(graph: Graph, product: Node, reader: Node) -> str:
    """The known tensor of a number for each column that a node adds to a product; "" if it adds anything else."""
    names = [name for name in reader.inputs if name != product.outputs[0]]
    array = graph.constants.get(names[0]) if len(names) == 1 else None
    kind = graph.types[product.outputs[0]]
    is_bias = array is not None and array.shape[-1:] == (kind.shape or ())[-1:] and array.size == array.shape[-1]
    return names[0] if is_bias and graph.types[reader.outputs[0]] == kind else ""


@dataclass(frozen=True, slots=True)
class _JoinedProduct:
    """Projections of one tensor: at least two, in order, all with a bias or none."""

    parts: tuple[_Projection, ...]
    head_columns: int = 0  # if all have heads of so many columns

    @property
    def outputs(self) -> Names:
        return tuple(part.output for part in self.parts)

    def add_to(self, draft: Draft) -> Names:
        """Add the nodes that make the results of all; returns the outputs of the one that splits them."""
        first, axis = self.parts[0].product, self.parts[0].column_axis
        weights = [part.weights(draft.constants) for part in self.parts]
        counts = [arrays[0].shape[axis] for arrays in weights]
        joined = [draft.constant(np.concatenate(arrays, axis)) for arrays in zip(*weights, strict=True)]
        kind = draft.types[first.outputs[0]]
        whole = draft.new_tensor(replace(kind, shape=(*(kind.shape or ())[:-1], sum(counts))))
        draft.add(replace(first, inputs=(first.inputs[0], *joined), outputs=(whole,)))
        biases = [draft.constants[part.bias].reshape(-1) for part in self.parts if part.bias]
        if biases:
            whole = draft.emit("Add", whole, draft.constant(np.concatenate(biases)))
        if not self.head_columns:
            self._split(draft, whole, counts, self.outputs)
            return self.outputs
        *rows, columns = draft.types[whole].shape or ()
        heads = draft.emit("Reshape", whole, shape=(*rows, columns // self.head_columns, self.head_columns))
        counts = [count // self.head_columns for count in counts]
        kind = draft.types[heads]
        names = tuple(draft.new_tensor(replace(kind, shape=(*rows, n, self.head_columns))) for n in counts)
        self._split(draft, heads, counts, names)
        for name, output in zip(names, self.outputs, strict=True):
            draft.emit("Reshape", name, to=output, shape=draft.types[output].shape)
        return names

    def _split(self, draft: Draft, whole: str, counts: Sequence[int], names: Names) -> None:
        """Add the node that splits the last dimension, or that of the heads."""
        axis = len(draft.shape(whole) or ()) - (2 if self.head_columns else 1)
        place = self.parts[0].product.place
        draft.add(
            Node("Split", (whole,), names, {"axis": axis, "split": tuple(counts)}, version=NORMAL_VERSION, place=place)
        )


def join_products(graph: Graph, multiprocessors: int) -> tuple[Graph, list[Step]]:
    """The graph with products joined for a GPU of so many multiprocessors, and the steps that compute it.

    Products of floats with known matrices, with known biases or without any, are joined where they read the same
    tensor, and each alone has fewer tiles of TILE by TILE than there are multiprocessors. They stay as they are

    - where a result would have to be copied: for the caller of the model, for a node without a kernel, or because
      several tasks read it;
    - where there would be more tasks: what was computed with the sums of one product before they were stored is a task
      of its own behind a joined one;
    - where tasks could no longer run as one segment.
    """
    steps = partition(graph)
    joined = _candidates(graph, steps, multiprocessors)
    while joined:
        joined_graph, splits = _join(graph, joined)
        joined_steps = partition(joined_graph)
        before, after = _Cut.of(graph, steps), _Cut.of(joined_graph, joined_steps)
        pairs = zip(joined, splits, strict=True)
        worthwhile = [product for product, split in pairs if _is_worthwhile(product, split, before, after)]
        if len(worthwhile) == len(joined):
            return joined_graph, joined_steps
        joined = worthwhile
    return graph, steps


def _candidates(graph: Graph, steps: Sequence[Step], multiprocessors: int) -> list[_JoinedProduct]:
    """The products that may be joined, each in one set: those with heads of as many columns, then what is left."""
    copied, readers = _copied(steps), graph.consumers()
    sets: dict[tuple[tuple[str, WeightForm], int], list[_Projection]] = {}
    for part in _Projection.all_of(graph):
        if part.output not in copied and part.tiles(graph) < multiprocessors:
            key = part.product.inputs[0], part.form(graph)
            sets.setdefault((key, part.head_columns(graph, readers[part.output])), []).append(part)
    joined, others = list[_JoinedProduct](), dict[tuple[str, WeightForm], list[_Projection]]()
    for (key, head_columns), parts in sets.items():
        if len(parts) > 1:
            joined.append(_JoinedProduct(tuple(parts), head_columns))
        else:
            others.setdefault(key, []).extend(parts)
    return [*joined, *(_JoinedProduct(tuple(parts)) for parts in others.values() if len(parts) > 1)]


def _copied(steps: Sequence[Step]) -> set[str]:
    """The tensors that others than tasks read, which need them in memory of their own."""
    names: set[str] = set()
    for step in steps:
        match step:
            case TensorView(input=name):
                names.add(name)
            case Fallback(node=Node(inputs=inputs)) | TaskCall(inputs=inputs, group=None):
                names.update(inputs)
    return names


def _join(graph: Graph, joined: Sequence[_JoinedProduct]) -> tuple[Graph, list[Names]]:
    """The graph with these products joined, each where the first of its parts was, and the nodes that split them."""
    first = {product.parts[0].product.outputs: product for product in joined}
    gone = {node.outputs for product in joined for part in product.parts for node in part.nodes}
    draft, splits = Draft(graph), dict[Names, Names]()
    for node in graph.nodes:
        if node.outputs in first:
            splits[node.outputs] = first[node.outputs].add_to(draft)
        elif node.outputs not in gone:
            draft.add(node)
    result = draft.finish(graph.inputs, graph.outputs).described_as(graph)
    return result, [splits[name] for name in first]


# Whether it is worthwhile


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a graph is cut into calls: the nodes of each, and those of calls that a segment may stand for."""

    calls: tuple[frozenset[Names], ...]
    copies: frozenset[frozenset[Names]]  # the calls that only move elements
    linked: frozenset[Names]

    @staticmethod
    def of(graph: Graph, steps: Sequence[Step]) -> _Cut:
        calls = [step for step in steps if isinstance(step, TaskCall)]
        linked = (
            c
            for chain in chains(graph, steps, on_gpu=True)
            for s in chain.segments
            for c in chain.calls[s.start : s.stop]
        )
        return _Cut(
            tuple(map(_node_names, calls)),
            frozenset(_node_names(call) for call in calls if call.group and _is_copy(call.group)),
            frozenset[Names]().union(*map(_node_names, linked)),
        )

    def calls_of(self, nodes: frozenset[Names]) -> list[frozenset[Names]]:
        """The calls that compute one of these nodes at least."""
        return [call for call in self.calls if not call.isdisjoint(nodes)]


def _node_names(call: TaskCall) -> frozenset[Names]:
    return frozenset(node.outputs for node in call.nodes)


def _is_copy(group: Group) -> bool:
    return all(not stage.reduce and is_movement(stage.body) for stage in group.stages)


def _is_worthwhile(joined: _JoinedProduct, split: Names, before: _Cut, after: _Cut) -> bool:
    """Whether the parts, the results of `split`, are copied nowhere, no segment is lost, and there are no more calls.

    A call is new if all that it does was done in the calls of the parts.
    """
    members = frozenset(node.outputs for part in joined.parts for node in part.nodes)
    calls, readers = before.calls_of(members), after.calls_of(frozenset({split}))
    known = frozenset[Names]().union(*calls, {split})
    new_calls = [call for call in readers if call <= known]
    lost = (before.linked & known.union(*readers)) - after.linked
    return not lost and after.copies.isdisjoint(new_calls) and 1 + len(new_calls) <= len(calls)
