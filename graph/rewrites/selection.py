"""Results that are as many as a run finds or wants: NonZero, Compress, NonMaxSuppression, TopK, Unique."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from tunewright.graph.ir import Node, TensorType

from ..evaluation.onnx_form import NORMAL_VERSION
from ..evaluation.sizes import FIND, LARGEST, SUPPRESS, UNIQUE
from ..ops import Compute, NotNative, define
from .edit import Edit
from .extents import Extent, extents
from .sized_axes import SizedTensors

MAX_BOUND = 1 << 18
"""Largest bound: all that follows is computed for so many, however few there are."""

MAX_POINTS = 1 << 20
"""Most evaluations of bodies of a node that follows: some 200 us on one core. A longer one is better done for what is
there alone, by what runs nodes that have no kernel."""

SHORT_ROW = 64
"""Longest row whose elements are ranked by comparing all with all, as the kernel of TopK does."""

SORTED_SHARE, MAX_SORTED = 8, 1 << 15
"""Part of a row from which on finding the largest of it is sorting, and most elements of a tensor that are sorted."""

_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
_INTEGERS = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
"""What a number of 64 bits has all values of."""

Source = Callable[[SizedTensors, Node], tuple[str, ...] | None]
"""What stands for the outputs of a node, whose sized axes it tells; None where the node is no such source."""


def is_quick(edit: Edit, node: Node) -> bool:
    """Whether a node has a kernel that is done soon at the bound, however few there are."""
    try:
        meaning = define(node, edit.types, edit.constants)
    except NotNative:
        return False
    return not isinstance(meaning, Compute) or sum(stage.points for stage in meaning.stages) <= MAX_POINTS


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


def _non_zero(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    x = node.inputs[0]
    shape, edit = sized.shape(x), sized.edit
    if not shape or not 0 < prod(shape) <= MAX_BOUND or not _is_number(edit, x):
        return None
    x = sized.mask(x, list(sized.of(x)), 0)
    flags = x if edit.types[x].dtype == "bool" else edit.cast(x, "bool")
    places, count = _find(sized, edit.emit("Reshape", flags, shape=(prod(shape),)))
    result = _coordinates(edit, places, shape, axis=0)
    sized.axes[result] = {1: count}
    return (result,)


def _is_number(edit: Edit, name: str) -> bool:
    return edit.types[name].dtype not in ("string", "object")


def _compress(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
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
    return (result,)


def _non_max_suppression(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
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
    return (result,)


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


def _top_k(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Rows that are long, or of which only a run tells how many elements are wanted. The rest is left to its kernel."""
    edit, x = sized.edit, node.inputs[0]
    shape, own, dtype = sized.shape(x), sized.of(x), edit.types[x].dtype
    if not shape or not prod(shape):
        return None
    axis, is_largest = node.attrs.get("axis", -1) % len(shape), bool(node.attrs.get("largest", 1))
    wanted = _number_wanted(sized, node, shape[axis])
    is_row = dtype == "float32" and shape[axis] > SHORT_ROW
    if not wanted.most or (not wanted.size and (axis in own or not is_row)):
        return None
    if _is_long_sort(wanted, shape, axis):
        return None
    if axis in own:
        is_float = np.dtype(dtype).kind not in "iu"
        x = sized.mask(x, [axis], -np.inf if is_largest else np.nan if is_float else np.inf)  # NaN is the largest
        wanted = replace(wanted, size=edit.emit("Min", wanted.size, own[axis]))
    results = (_long_rows if is_row else _short_rows)(edit, x, axis, wanted, is_largest)
    if results is not None:
        axes = {a: size for a, size in own.items() if a != axis} | ({axis: wanted.size} if wanted.size else {})
        sized.axes.update((name, axes) for name in results if axes)
    return results


def _number_wanted(sized: SizedTensors, node: Node, extent: int) -> Extent:
    """How many elements of a row a TopK is to find, at most all."""
    edit = sized.edit
    if "k" in node.attrs:
        return Extent(min(*node.attrs["k"], extent))
    known = extents(sized, node.inputs[1])
    if known is not None and not known[0].size:
        return Extent(min(known[0].most, extent))
    most = extent if known is None else min(known[0].most, extent)
    size = edit.emit("Max", sized.size(node.inputs[1]), Extent(0).of(edit))
    return Extent(most, size if most < extent else edit.emit("Min", size, Extent(extent).of(edit)))


def _is_long_sort(wanted: Extent, shape: tuple[int, ...], axis: int) -> bool:
    """Whether much may have to be sorted: by a heap that takes twice as long as in what runs nodes without a kernel."""
    return wanted.most > shape[axis] // SORTED_SHARE and prod(shape) > MAX_SORTED


def _short_rows(edit: Edit, x: str, axis: int, wanted: Extent, is_largest: bool) -> tuple[str, ...] | None:
    """As many as may be wanted, in order."""
    shape = tuple(wanted.most if a == axis else extent for a, extent in enumerate(edit.shape(x) or ()))
    results = edit.new_tensor(TensorType(edit.types[x].dtype, shape)), edit.new_tensor(TensorType("int64", shape))
    attrs = {"k": (wanted.most,), "axis": axis, "largest": int(is_largest), "sorted": 1}
    node = Node("TopK", (x,), results, attrs, version=NORMAL_VERSION)
    if not is_quick(edit, node):
        return None
    edit.add(node)
    return results


def _long_rows(edit: Edit, x: str, axis: int, wanted: Extent, is_largest: bool) -> tuple[str, ...]:
    """Their places by a function of the runtime, and the elements from there."""
    shape = edit.shape(x) or ()
    order = [*(a for a in range(len(shape)) if a != axis), axis]
    is_last = axis == len(shape) - 1
    rows = x if is_last else edit.emit("Transpose", x, perm=tuple(order))
    found = (*(shape[a] for a in order[:-1]), wanted.most)
    places = edit.new_tensor(TensorType("int64", found))
    attrs = {"most": wanted.most, "largest": int(is_largest)}
    edit.add(Node(LARGEST, (rows, wanted.of(edit)), (places,), attrs, version=NORMAL_VERSION))
    if not is_last:
        places = edit.emit("Transpose", places, perm=tuple(order.index(a) for a in range(len(shape))))
    return edit.emit("GatherElements", x, places, axis=axis), places


def _unique(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Elements, or slices along an axis, as rows whose size may be that of the first axis."""
    edit, x, axis = sized.edit, node.inputs[0], node.attrs.get("axis")
    shape, own, dtype = sized.shape(x), sized.of(x), edit.types[x].dtype
    key = "float64" if dtype in _FLOATS else "int64" if dtype in _INTEGERS else None
    if key is None or not 0 < prod(shape) <= MAX_BOUND or not own.keys() <= {(axis or 0) % max(len(shape), 1)}:
        return None
    if axis is None:
        size = sized.scale(own[0], prod(shape[1:])) if own else ""
        x, axis, shape = edit.emit("Reshape", x, shape=(prod(shape),)), 0, (prod(shape),)
    else:
        axis %= len(shape)
        size = own.get(axis, "")
    order = [axis, *(a for a in range(len(shape)) if a != axis)]
    first = x if not axis else edit.emit("Transpose", x, perm=tuple(order))
    count = shape[axis]
    keys = (count, prod(shape) // count)
    rows = edit.emit("Reshape", first if dtype == key else edit.cast(first, key), shape=keys)
    shapes = ((count,), (1,), (count,), (count,), keys, (count,))
    results = tuple(edit.new_tensor(TensorType("int64", extents)) for extents in shapes)
    operands = rows, Extent(count, size).of(edit)
    attrs = {"sorted": int(node.attrs.get("sorted", 1))}
    edit.add(Node(UNIQUE, operands, results, attrs, version=NORMAL_VERSION))
    places, number, ranks, counts = results[:4]
    values = edit.emit("Gather", x, places, axis=axis)
    sized.axes |= {values: {axis: number}, places: {0: number}, counts: {0: number}}
    if size:
        sized.axes[ranks] = {0: size}
    return (values, places, ranks, counts)[: len(node.outputs)]


SELECTIONS: Mapping[str, Source] = {
    "Compress": _compress,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "TopK": _top_k,
    "Unique": _unique,
}
"""Op -> the rule for it."""
