"""Results whose size only a run tells, computed at their bounds: what follows has a shape, and so kernels.

NonZero, NonMaxSuppression and Compress become a FindTrue (`evaluation.sizes`) and ops that have kernels. A bound is the
number of elements that are looked at, so it is never exceeded. What no rule of `sized_axes` follows takes a tensor that
is cut to its size. So are outputs of the model, by the session. No bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from tunewright.graph.ir import Graph, GraphPort, Node, TensorType

from ..evaluation.onnx_form import NORMAL_VERSION, TypeFault, infer
from ..evaluation.sizes import CUT, FIND, SUPPRESS
from ..onnx_import.normal import normal
from ..ops import Compute, NotNative, define
from .edit import Edit
from .sized_axes import AXIS_RULES, BY_SHAPE, SizedTensors

MAX_BOUND = 1 << 18
"""Largest bound: all that follows is computed for so many, however few there are."""

MAX_POINTS = 1 << 20
"""Most evaluations of bodies of a node that follows: some 200 us on one core. A longer one is better done for what is
there alone, by what runs nodes that have no kernel."""


def sizes(graph: Graph) -> Graph:
    """Compute at bounds what only a run tells the size of.

    Before: `i = NonZero(x); y = Transpose(i)`, x `[5]`.
    After: `p, n = FindTrue(Cast(x)); y = CutToSize(Reshape(p) shape=(5, 1), n) axes=(0,)`.
    """
    if not any(node.op in _SOURCES and not node.domain for node in graph.nodes):
        return graph
    return _BoundWalk(SizedTensors(Edit(graph))).run(graph)


def cut_outputs(graph: Graph) -> Graph:
    """Leave it to the session to cut outputs of the model to their sizes, which become outputs for it alone.

    Before: `y = CutToSize(x, n) axes=(0,); return y`. After: `return x, n`.
    """
    producers = graph.producers()
    ports, hidden = [], list[GraphPort]()
    for port in graph.outputs:
        node = producers.get(port.tensor)
        if node is not None and node.op == CUT:
            x, *names = node.inputs
            first = len(graph.outputs) + len(hidden)
            pairs = tuple((axis, first + k) for k, axis in enumerate(node.attrs["axes"]))
            hidden += [GraphPort("", name, is_size=True) for name in names]
            port = replace(port, tensor=x, sizes=pairs)
        ports.append(port)
    return replace(graph, outputs=(*ports, *hidden)) if hidden else graph


@dataclass(slots=True)
class _BoundWalk:
    """The nodes of a graph in order, each at the bounds of its operands where that can be.

    `bounds` maps a tensor of the graph to the one that stands for it; `cut` are those that exist as they were too.
    """

    sized: SizedTensors
    bounds: dict[str, str] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def run(self, graph: Graph) -> Graph:
        """The graph at bounds; the cuts of its outputs come last, so that they part no kernels."""
        edit = self.sized.edit
        for node in graph.nodes:
            results = self._follow(node)
            if results is None:
                edit.add(replace(node, inputs=tuple(map(self._whole, node.inputs))))
                continue
            self.bounds.update((old, new) for old, new in zip(node.outputs, results, strict=True) if old)
        outputs = [replace(port, tensor=self._whole(port.tensor)) for port in graph.outputs]
        return edit.finish(graph.inputs, outputs)

    def _whole(self, name: str) -> str:
        """A tensor as the graph had it: cut to its sizes."""
        bounded = self.bounds.get(name, name)
        axes = self.sized.of(bounded)
        if not axes:
            return bounded
        if name not in self.cut:
            self.cut.add(name)
            node = Node(CUT, (bounded, *axes.values()), (name,), {"axes": tuple(axes)}, version=NORMAL_VERSION)
            self.sized.edit.add(node)
        return name

    def _follow(self, node: Node) -> tuple[str, ...] | None:
        """What stands for the outputs of a node; None where it has to take what it took."""
        if node.domain or node.bodies:
            return None
        bounded = replace(node, inputs=tuple(self.bounds.get(name, name) for name in node.inputs))
        if any(name and self.sized.edit.shape(name) is None for name in bounded.inputs):
            return None
        try:
            if node.op in _SOURCES:
                result = _SOURCES[node.op](self.sized, bounded)
                return None if result is None else (result,)
            return self._at_bounds(bounded) if any(name in self.bounds for name in node.inputs) else None
        except TypeFault:
            return None

    def _at_bounds(self, node: Node) -> tuple[str, ...] | None:
        """The outputs of a node at the bounds of its operands."""
        sized, edit = self.sized, self.sized.edit
        is_sized = any(map(sized.of, filter(None, node.inputs)))
        rule = AXIS_RULES.get(node.op)
        if is_sized and rule is None:
            return None
        kinds = infer(node, edit.types, edit.constants)
        if any(kind.shape is None or 0 in kind.shape for kind in kinds):
            return None
        outputs = tuple(edit.new_tensor(kind) if old else "" for old, kind in zip(node.outputs, kinds, strict=True))
        node = replace(node, outputs=outputs)
        if node.op not in BY_SHAPE:
            node = normal(edit, node)
        followed = rule(sized, node) if is_sized and rule is not None else (node, {})
        if followed is None:
            return None
        node, axes = followed
        node = normal(edit, node)
        if is_sized and not _is_quick(edit, node):
            return None
        edit.add(node)
        sized.axes.update((name, axes) for name in outputs if name and axes)
        return outputs


def _is_quick(edit: Edit, node: Node) -> bool:
    """Whether a node has a kernel that is done soon at the bound, however few there are."""
    try:
        meaning = define(node, edit.types, edit.constants)
    except NotNative:
        return False
    return not isinstance(meaning, Compute) or sum(stage.points for stage in meaning.stages) <= MAX_POINTS


# Where sizes come from


def _find(sized: SizedTensors, flags: str) -> tuple[str, str]:
    """The places of what is true in a vector, and how many there are."""
    edit, shape = sized.edit, sized.shape(flags)
    places, count = edit.new_tensor(TensorType("int64", shape)), edit.new_tensor(TensorType("int64", (1,)))
    edit.add(Node(FIND, (flags,), (places, count), version=NORMAL_VERSION))
    sized.axes[places] = {0: count}
    return places, count


def _coordinate(edit: Edit, places: str, stride: int, extent: int | None) -> str:
    """The place along one axis; no extent for the first axis, which needs no remainder."""
    if stride > 1:
        places = edit.emit("Div", places, edit.constant(np.array(stride, np.int64)))
    return places if extent is None else edit.emit("Mod", places, edit.constant(np.array(extent, np.int64)), fmod=0)


def _coordinates(edit: Edit, places: str, shape: tuple[int, ...], axis: int) -> str:
    """The places in a tensor of a shape, by its axes along `axis` of the result."""
    count = (edit.shape(places) or ())[0]
    parts = []
    for number, extent in enumerate(shape):
        part = _coordinate(edit, places, prod(shape[number + 1 :]), extent if number else None)
        parts.append(edit.emit("Reshape", part, shape=(1, count) if axis == 0 else (count, 1)))
    return parts[0] if len(parts) == 1 else edit.emit("Concat", *parts, axis=axis)


def _non_zero(sized: SizedTensors, node: Node) -> str | None:
    x = node.inputs[0]
    shape, edit = sized.shape(x), sized.edit
    if not shape or not 0 < prod(shape) <= MAX_BOUND or not _is_number(edit, x):
        return None
    x = sized.mask(x, list(sized.of(x)), 0)
    flags = x if edit.types[x].dtype == "bool" else edit.cast(x, "bool")
    places, count = _find(sized, edit.emit("Reshape", flags, shape=(prod(shape),)))
    result = _coordinates(edit, places, shape, axis=0)
    sized.axes[result] = {1: count}
    return result


def _is_number(edit: Edit, name: str) -> bool:
    return edit.types[name].dtype not in ("string", "object")


def _compress(sized: SizedTensors, node: Node) -> str | None:
    x, condition = node.inputs
    edit, axis = sized.edit, node.attrs.get("axis")
    if axis is None and not sized.of(x):
        x, axis = edit.emit("Reshape", x, shape=(prod(sized.shape(x)),)), 0
    shape, flags = sized.shape(x), sized.shape(condition)
    if axis is None or not shape or len(flags) != 1 or not 0 < flags[0] <= MAX_BOUND:
        return None
    axis %= len(shape)
    if not prod(shape) or flags[0] > shape[axis]:
        return None
    places, count = _find(sized, sized.mask(condition, list(sized.of(condition)), 0))
    result = edit.emit("Gather", x, places, axis=axis)
    sized.axes[result] = {**sized.of(x), axis: count}
    return result


def _non_max_suppression(sized: SizedTensors, node: Node) -> str | None:
    """For each class the boxes that overlap none with a higher score, then the rows of all that there are."""
    edit, (boxes, scores) = sized.edit, node.inputs[:2]
    if not node.input(2) or any(map(sized.of, filter(None, node.inputs))) or len(sized.shape(scores)) != 3:
        return None
    images, classes, count = sized.shape(scores)
    wanted = edit.emit("Reshape", node.input(2), shape=())
    most = edit.array(wanted)
    found = count if most is None else min(int(most.item()), count)
    total = images * classes * found
    if not 0 < total <= MAX_BOUND or sized.shape(boxes) != (images, count, 4):
        return None
    limits = [_limit(edit, node.input(position), value) for position, value in ((3, 0.0), (4, -np.inf))]
    corners = _corners(edit, boxes, bool(node.attrs.get("center_point_box", 0)))
    places, taken, heap = (
        edit.new_tensor(TensorType(dtype, shape))
        for dtype, shape in (("int64", (total,)), ("bool", (total,)), ("int64", (images, classes, count)))
    )
    operands = (corners, scores, *limits, wanted)
    edit.add(Node(SUPPRESS, operands, (places, taken, heap), {"most": found}, version=NORMAL_VERSION))
    rows, number = _find(sized, taken)
    row = _coordinates(edit, rows, (images, classes, found), axis=1)
    first = edit.emit("Slice", row, starts=(0,), ends=(2,), axes=(1,), steps=(1,))
    box = edit.emit("Reshape", edit.emit("Gather", places, rows, axis=0), shape=(total, 1))
    result = edit.emit("Concat", first, box, axis=1)
    sized.axes[result] = {0: number}
    return result


def _limit(edit: Edit, name: str, value: float) -> str:
    return edit.emit("Reshape", name, shape=()) if name else edit.constant(np.array(value, np.float32))


def _corners(edit: Edit, boxes: str, is_by_center: bool) -> str:
    """Boxes as two corners, the lower one first."""
    one, other = (
        edit.emit("Slice", boxes, starts=(start,), ends=(start + 2,), axes=(2,), steps=(1,)) for start in (0, 2)
    )
    if is_by_center:
        half = edit.emit("Mul", other, edit.constant(np.array(0.5, np.float32)))
        return edit.emit("Concat", edit.emit("Sub", one, half), edit.emit("Add", one, half), axis=2)
    return edit.emit("Concat", edit.emit("Min", one, other), edit.emit("Max", one, other), axis=2)


_SOURCES: Mapping[str, Callable[[SizedTensors, Node], str | None]] = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
}
