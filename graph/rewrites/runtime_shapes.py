"""Results whose shape a run computes: slices and ranges with ends, and shapes made of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tunewright.graph.ir import Node, TensorType

from .edit import Edit
from .extents import Extent, extents
from .selection import MAX_BOUND, MAX_POINTS, Source
from .sized_axes import Axes, SizedTensors


def _number(edit: Edit, value: int) -> str:
    return Extent(value).of(edit)


def _clamp(edit: Edit, name: str, low: str, high: str) -> str:
    return edit.emit("Min", edit.emit("Max", name, low), high)


def _count(edit: Edit, first: str, last: str, step: int) -> str:
    """How many steps lead from one number to before another, int64 [1]."""
    way = edit.emit("Sub", last, first) if step > 0 else edit.emit("Sub", first, last)
    rounded = edit.emit("Add", way, _number(edit, abs(step) - 1)) if abs(step) > 1 else way
    count = edit.emit("Max", rounded, _number(edit, 0))
    return edit.emit("Div", count, _number(edit, abs(step))) if abs(step) > 1 else count


# Slices


def _slice(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Along each axis in turn, where a run tells a start or an end, or what an end counts from."""
    x, edit = node.inputs[0], sized.edit
    if len(node.inputs) < 3:
        return None
    (count,), rank = sized.shape(node.inputs[1]), len(sized.shape(x))
    axes, steps = (
        edit.array(node.input(position)) if node.input(position) else np.array(default)
        for position, default in ((3, range(count)), (4, [1] * count))
    )
    if axes is None or steps is None or not all(map(bool, steps.tolist())):
        return None
    is_known = all(edit.array(name) is not None for name in node.inputs[1:3])
    if is_known and sized.of(x).keys().isdisjoint(axis % rank for axis in axes.tolist()):
        return None
    ends = [_elements(sized, name) for name in node.inputs[1:3]]
    for start, end, axis, step in zip(*ends, axes.tolist(), steps.tolist(), strict=True):
        part = _slice_axis(sized, x, axis % rank, (start, end, step))
        if part is None:
            return None
        x = part
    return (x,)


def _elements(sized: SizedTensors, name: str) -> list[Extent | str]:
    """The numbers of a vector: as extents where these are known, else as tensors int64 [1]."""
    edit, known = sized.edit, extents(sized, name)
    if known is not None:
        return [*known]
    (count,) = sized.shape(name)
    if count == 1:
        return [sized.size(name)]
    return [sized.size(edit.emit("Gather", name, _number(edit, place), axis=0)) for place in range(count)]


Number = Extent | str


def _slice_axis(sized: SizedTensors, x: str, axis: int, part: tuple[Number, Number, int]) -> str | None:
    """What lies between two numbers of an axis, as ONNX counts them."""
    edit, (start, end, step) = sized.edit, part
    own, extent = sized.of(x), sized.shape(x)[axis]
    step = max(min(step, extent), -extent)  # what is beyond it anyway
    most = _most(start, end, step, extent) if step else 0
    if not 0 < most <= MAX_BOUND or most * prod(sized.shape(x)) // extent > MAX_POINTS:
        return None
    length = own.get(axis) or _number(edit, extent)
    low, high = (0, length) if step > 0 else (-1, edit.emit("Sub", length, _number(edit, 1)))
    zero = _number(edit, 0)
    first = _clamp(edit, _from_start(edit, start, length), zero, high)
    last = _clamp(edit, _from_start(edit, end, length), _number(edit, low), high)
    places = edit.emit("Add", first, edit.constant(step * np.arange(most)))
    inside = _clamp(edit, places, zero, _number(edit, extent - 1))
    result = edit.emit("Gather", x, inside, axis=axis)
    sized.axes[result] = {**own, axis: _count(edit, first, last, step)}
    return result


def _from_start(edit: Edit, number: Number, length: str) -> str:
    """A place that may count from the end, counted from the start."""
    if isinstance(number, Extent):
        at = number.of(edit)
        return at if number.size or number.most >= 0 else edit.emit("Add", at, length)
    is_from_end = edit.emit("Less", number, _number(edit, 0))
    return edit.emit("Where", is_from_end, edit.emit("Add", number, length), number)


def _most(start: Number, end: Number, step: int, extent: int) -> int:
    """The bound of a slice."""
    most = extent
    if isinstance(end, Extent) and step > 0 and end.most >= 0:
        most = min(most, end.most)
    if isinstance(start, Extent) and not start.size and start.most >= 0:
        most = most - start.most if step > 0 else min(most, start.most + 1)
    return -(-most // abs(step))


# Shapes


def _is_within(bounds: Sequence[int]) -> bool:
    return all(bound > 0 for bound in bounds) and prod(bounds) <= MAX_BOUND


def _bounds(wanted: list[Extent]) -> tuple[int, ...] | None:
    """The bounds of a shape, some of whose extents only a run tells."""
    bounds = tuple(extent.most for extent in wanted)
    is_open = any(extent.size for extent in wanted)
    return bounds if is_open and _is_within(bounds) else None


def _axes(wanted: list[Extent]) -> Axes:
    return {axis: extent.size for axis, extent in enumerate(wanted) if extent.size}


def _range(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Whole numbers from one that is known, up to one that is not."""
    edit = sized.edit
    start, limit, step = (extents(sized, name) for name in node.inputs)
    if start is None or limit is None or step is None or start[0].size or step[0].size or step[0].most <= 0:
        return None
    (first,), (last,), (way,) = start, limit, step
    most = -(-(last.most - first.most) // way.most)
    if not last.size or not 0 < most <= MAX_BOUND:
        return None
    dtype = edit.types[node.inputs[0]].dtype
    numbers = edit.constant((first.most + way.most * np.arange(most)).astype(dtype))
    sized.axes[numbers] = {0: _count(edit, first.of(edit), last.of(edit), way.most)}
    return (numbers,)


def _constant_of_shape(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    wanted = extents(sized, node.inputs[0])
    bounds = None if wanted is None else _bounds(wanted)
    if wanted is None or bounds is None:
        return None
    value = np.asarray(node.attrs.get("value", np.zeros(1, np.float32))).reshape(-1)[0]
    result = sized.edit.constant(np.full(bounds, value))
    sized.axes[result] = _axes(wanted)
    return (result,)


def _expand(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Each axis is one element that is repeated, or has the extent that is asked for already."""
    if len(node.inputs) < 2:
        return None
    x, edit = node.inputs[0], sized.edit
    wanted, shape, own = extents(sized, node.inputs[1]), sized.shape(x), sized.of(x)
    bounds = None if wanted is None else _bounds(wanted)
    if wanted is None or bounds is None or len(shape) > len(wanted):
        return None
    for axis, extent in enumerate(shape, len(wanted) - len(shape)):
        at = axis - len(wanted) + len(shape)
        is_same = own.get(at, "") == wanted[axis].size and extent == bounds[axis]
        if not is_same and (extent != 1 or at in own):
            return None
    result = edit.emit("Expand", x, shape=bounds)
    sized.axes[result] = _axes(wanted)
    return (result,)


def _reshape(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """To a shape with the size that the tensor has, between axes that stay as many; one of the others may be -1."""
    if len(node.inputs) < 2 or node.attrs.get("allowzero", 0):
        return None
    x, edit = node.inputs[0], sized.edit
    wanted, shape, own = extents(sized, node.inputs[1]), sized.shape(x), sized.of(x)
    if wanted is None or len(own) != 1 or sum(bool(extent.size) for extent in wanted) != 1:
        return None
    if any(extent.most == 0 and not extent.size for extent in wanted):
        return None
    ((axis, size),) = own.items()
    at = next(place for place, extent in enumerate(wanted) if extent.size)
    rest = prod(extent.most for extent in wanted if extent.most > 0)
    known = [prod(shape) // rest if extent.most == -1 else extent.most for extent in wanted]
    is_kept = (prod(shape[:axis]), shape[axis]) == (prod(known[:at]), known[at]) and prod(known) == prod(shape)
    if wanted[at].size != size or not is_kept:
        return None
    result = edit.new_tensor(TensorType(edit.types[x].dtype, tuple(known)))
    edit.add(Node("Reshape", (x,), (result,), {"shape": tuple(known)}, version=node.version))
    sized.axes[result] = {at: size}
    return (result,)


# Copies and edges


def _tile(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Along each axis the elements over and over, as often as a run tells, or as many as there are."""
    if len(node.inputs) < 2:
        return None
    x = node.inputs[0]
    repeats, shape = extents(sized, node.inputs[1]), sized.shape(x)
    if repeats is None or len(repeats) != len(shape):
        return None
    bounds = [extent * repeat.most for extent, repeat in zip(shape, repeats, strict=True)]
    if not _is_within(bounds) or not (sized.of(x) or any(repeat.size for repeat in repeats)):
        return None
    for axis, repeat in enumerate(repeats):
        if repeat != Extent(1):
            x = _repeat(sized, x, axis, repeat)
    return (x,)


def _repeat(sized: SizedTensors, x: str, axis: int, repeat: Extent) -> str:
    edit, own, extent = sized.edit, sized.of(x), sized.shape(x)[axis]
    places = np.arange(extent * repeat.most)
    if axis in own:
        length = edit.emit("Max", own[axis], _number(edit, 1))
        elements = edit.emit("Mod", edit.constant(places), length, fmod=0)
    else:
        elements = edit.constant(places % extent)
    result = edit.emit("Gather", x, elements, axis=axis)
    count = edit.emit("Mul", own.get(axis) or _number(edit, extent), repeat.of(edit))
    sized.axes[result] = {**own, axis: count} if axis in own or repeat.size else own
    return result


def _pad(sized: SizedTensors, node: Node) -> tuple[str, ...] | None:
    """Along each axis in turn, where a run tells how many elements are put before or after, or how many are there."""
    x, edit, mode = node.inputs[0], sized.edit, node.attrs.get("mode", "constant")
    if len(node.inputs) < 2 or mode not in ("constant", "edge"):
        return None
    widths, rank = extents(sized, node.inputs[1]), len(sized.shape(x))
    axes = edit.array(node.input(3)) if node.input(3) else np.arange(rank)
    if widths is None or axes is None or any(width.most < 0 for width in widths):
        return None
    pairs = [
        (int(axis) % rank, pair)
        for axis, *pair in zip(axes, widths[: axes.size], widths[axes.size :], strict=True)
        if any(width != Extent(0) for width in pair)
    ]
    most = dict(enumerate(sized.shape(x))) | {a: sized.shape(x)[a] + sum(w.most for w in pair) for a, pair in pairs}
    is_open = any(axis in sized.of(x) or any(width.size for width in pair) for axis, pair in pairs)
    if not is_open or 0 in sized.shape(x) or not _is_within(list(most.values())):
        return None
    for axis, (before, after) in pairs:
        x = _pad_axis(sized, x, axis, (before, after), node.input(2) if mode == "constant" else None)
    return (x,)


def _pad_axis(sized: SizedTensors, x: str, axis: int, widths: tuple[Extent, Extent], value: str | None) -> str:
    """Elements before and after: those at the edges, or a value, which is 0 where it has no name."""
    edit, own, extent = sized.edit, sized.of(x), sized.shape(x)[axis]
    before, after = widths
    most, zero = extent + before.most + after.most, _number(edit, 0)
    length = own.get(axis) or _number(edit, extent)
    places = edit.emit("Sub", edit.constant(np.arange(most)), before.of(edit))
    last = edit.emit("Max", edit.emit("Sub", length, _number(edit, 1)), zero)
    result = edit.emit("Gather", x, _clamp(edit, places, zero, last), axis=axis)
    if value is not None:
        is_there = edit.emit("And", edit.emit("Less", _number(edit, -1), places), edit.emit("Less", places, length))
        rank = len(sized.shape(x))
        is_there = edit.emit("Reshape", is_there, shape=(most, *(1,) * (rank - 1 - axis)))
        filling = value or edit.constant(np.zeros((), edit.types[x].dtype))
        result = edit.emit("Where", is_there, result, edit.emit("Reshape", filling, shape=()))
    count = edit.emit("Add", edit.emit("Add", length, before.of(edit)), after.of(edit))
    sized.axes[result] = {**own, axis: count} if axis in own or before.size or after.size else own
    return result


SHAPED: Mapping[str, Source] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Tile": _tile,
}
"""Op -> the rule for it."""

SHAPED_BY: Mapping[str, int] = {
    "ConstantOfShape": 0, "Expand": 1, "Pad": 1, "Range": 0, "Reshape": 1, "Slice": 1, "Tile": 1,
}  # fmt: skip
"""Op -> its first operand that is part of a shape."""
