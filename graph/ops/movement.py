"""Ops that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, const, op

from ..evaluation.images import ROUNDINGS
from ..task import Index, Tensor, load
from .definition import ARITHMETIC, ActivationLayout, Definition, OpDef, TensorView, axis_of, clamp, padding

INTEGERS = (DType.I64, DType.I32)


def view(d: Definition) -> TensorView:
    """The same elements in the same order."""
    return TensorView(d.input(0).name, d.output().name)


def transpose(d: Definition) -> None:
    """Dimensions in another order."""
    x, y = d.input(0), d.output()
    order = d.ints("perm")

    def body(i: Index) -> Expr:
        return load(x, [i[order.index(axis)] for axis in range(len(order))])

    d.write(y, body)


def concat(d: Definition) -> None:
    """Inputs one after another along a dimension, each a stage of its own."""
    parts, y = d.inputs(), d.output()
    axis = int(d.attr("axis"))
    for x, end in zip(parts, accumulate(x.shape[axis] for x in parts), strict=True):
        start = end - x.shape[axis]

        def at(i: Index, start: int = start) -> Index:
            return [*i[:axis], op("add", i[axis], start), *i[axis + 1 :]]

        def element(i: Index, x: Tensor = x) -> Expr:
            return load(x, i)

        d.write_part(y, x.shape, at, element)


def split(d: Definition) -> None:
    """Parts along a dimension, each a stage of its own."""
    x, axis = d.input(0), int(d.attr("axis"))
    sizes = d.ints("split")
    for position, end in enumerate(accumulate(sizes)):
        start = end - sizes[position]

        def element(i: Index, start: int = start) -> Expr:
            return load(x, [*i[:axis], op("add", i[axis], start), *i[axis + 1 :]])

        if d.has_output(position):
            d.write(d.output(position), element)


def slice_(d: Definition) -> None:
    """Every step-th element from a start on, along some dimensions."""
    x, y = d.input(0), d.output()
    first, stride = [0] * len(x.shape), [1] * len(x.shape)
    for axis, start, step in zip(d.ints("axes"), d.ints("starts"), d.ints("steps"), strict=True):
        first[axis], stride[axis] = start, step

    def body(i: Index) -> Expr:
        return load(x, [op("add", at * step, start) for at, step, start in zip(i, stride, first, strict=True)])

    d.write(y, body)


def expand(d: Definition) -> None:
    """Broadcast to a larger shape, if it is known: one that is given later may not fit."""
    d.require(len(d.node.inputs) == 1, "a shape that is given later")
    x, y = d.input(0), d.output()
    d.write(y, lambda i: load(x, i))


def tile(d: Definition) -> None:
    """The input repeated along each dimension: seen as [repeat, extent] pairs, a broadcast."""
    x, y = d.input(0), d.output()
    pairs = [e for own, whole in zip(x.shape, y.shape, strict=True) for e in (whole // own, own)]
    y = d.reshape(y, pairs)
    d.write(y, lambda i: load(x, i[1::2]))


def pad(d: Definition) -> None:
    """Elements added around."""
    x, y = d.input(0), d.output()
    before, mode = d.ints("pads")[: len(x.shape)], d.attr("mode")
    if mode == "constant":
        value = const(d.attr("value"), x.dtype)
        d.write(y, lambda i: padding(x, i, y.shape, before, value))
        return
    d.require(mode in BORDERS, f"mode {mode}")

    def body(i: Index) -> Expr:
        dims = zip(i, before, y.shape, x.shape, strict=True)
        return load(x, [BORDERS[mode](op("sub", at, front), -front, e - 1 - front, own) for at, front, e, own in dims])

    d.write(y, body)


def _edge(at: Expr, low: int, high: int, extent: int) -> Expr:
    return clamp(at, low, high, extent)[0]


def _reflect(at: Expr, low: int, high: int, extent: int) -> Expr:
    """Back and forth between the outermost elements, as often as it takes."""
    last = extent - 1
    if last == 0:
        return const(0)
    if low >= -last and high <= 2 * last:  # once at most on either side
        at = op("abs", at) if low < 0 else at
        return op("min", at, op("sub", 2 * last, at)) if high > last else at
    return op("sub", last, op("abs", op("sub", _wrap(at, low, high, 2 * last), last)))


def _wrap(at: Expr, low: int, high: int, extent: int) -> Expr:
    if low >= 0 and high < extent:
        return at
    return op("add", at, -(low // extent) * extent) % extent


BORDERS: Mapping[str, Callable[[Expr, int, int, int], Expr]] = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}
"""Padding modes, as functions from a place, its bounds and the extent to the place inside that is read."""


def _clamp_index(at: Expr, extent: int) -> Expr:
    """An index read from a tensor, which may count from the end, clamped so that every read is in bounds."""
    at = op("cast", at, dtype=DType.I64)
    at = op("select", op("lt", at, 0), op("add", at, extent), at)
    return op("min", op("max", at, 0), extent - 1)


def gather(d: Definition) -> None:
    """Whole slices, chosen by a tensor of indices."""
    x, indices, y = d.input(0), d.input(1, *INTEGERS), d.output()
    axis, rank = int(d.attr("axis")), len(indices.shape)

    def body(i: Index) -> Expr:
        at = _clamp_index(load(indices, i[axis : axis + rank]), x.shape[axis])
        return load(x, [*i[:axis], at, *i[axis + rank :]])

    d.write(y, body)


def gather_elements(d: Definition) -> None:
    """Single elements, each chosen along one dimension."""
    x, indices, y = d.input(0), d.input(1, *INTEGERS), d.output()
    axis = int(d.attr("axis"))

    def body(i: Index) -> Expr:
        place = list(i)
        place[axis] = _clamp_index(load(indices, i), x.shape[axis])
        return load(x, place)

    d.write(y, body)


def gather_nd(d: Definition) -> None:
    """Slices chosen by index vectors, the last dimension of the indices."""
    x, indices, y = d.input(0), d.input(1, *INTEGERS), d.output()
    batch, length = int(d.attr("batch_dims", 0)), indices.shape[-1]
    outer = len(indices.shape) - 1

    def body(i: Index) -> Expr:
        places = [_clamp_index(load(indices, [*i[:outer], const(k)]), x.shape[batch + k]) for k in range(length)]
        return load(x, [*i[:batch], *places, *i[outer:]])

    d.write(y, body)


def tensor_scatter(d: Definition) -> None:
    """A cache with an update written over it from a place on, each batch element's own; circular, if that is said."""
    past, update, y = d.input(0), d.input(1), d.output()
    axis = axis_of(int(d.attr("axis", -2)), len(past.shape))
    starts = d.input(2, *INTEGERS) if d.has(2) else None
    extent, length = past.shape[axis], update.shape[axis]
    d.require(length > 0, "an empty update")

    def body(i: Index) -> Expr:
        start = op("cast", load(starts, [i[0]]), dtype=DType.I64) if starts else const(0)
        is_circular = d.attr("mode", "linear") == "circular"
        if is_circular:  # the remainder has the sign of the start
            start = op("sub", start, op("mul", op("div", start, const(extent)), extent))
        at = op("sub", i[axis], start)
        if is_circular:
            at = op("select", op("lt", at, 0), op("add", at, extent), at)
            at = op("select", op("le", extent, at), op("sub", at, extent), at)
        place = list(i)
        place[axis] = op("min", op("max", at, 0), length - 1)
        return op("select", op("eq", at, place[axis]), load(update, place), load(past, i))

    d.write(y, body)


def reverse_sequence(d: Definition) -> None:
    """The beginning of each sequence backwards, as long as its length says; the rest stays."""
    x, lengths, y = d.input(0), d.input(1, *INTEGERS), d.output()
    batch, time = int(d.attr("batch_axis", 1)), int(d.attr("time_axis", 0))
    extent = x.shape[time]

    def body(i: Index) -> Expr:
        length = op("cast", load(lengths, [i[batch]]), dtype=DType.I64)
        length = op("min", op("max", length, 1), extent)
        back = op("sub", op("sub", length, 1), i[time])
        place = list(i)
        place[time] = op("max", op("select", op("lt", i[time], length), back, i[time]), 0)
        return load(x, place)

    d.write(y, body)


def one_hot(d: Definition) -> None:
    """Vectors with one value at the index and another elsewhere; an index outside -depth .. depth - 1 has none."""
    indices, values, y = d.input(0, *ARITHMETIC), d.input(2), d.output()
    axis = axis_of(int(d.attr("axis", -1)), len(y.shape))
    depth = y.shape[axis]

    def body(i: Index) -> Expr:
        at = op("cast", load(indices, [*i[:axis], *i[axis + 1 :]]), dtype=DType.I64)
        at = op("select", op("lt", at, 0), op("add", at, depth), at)
        off, on = (load(values, [const(k)]) for k in (0, 1))
        return op("select", op("eq", at, i[axis]), on, off)

    d.write(y, body)


def trilu(d: Definition) -> None:
    """The triangle above or below a diagonal; zero elsewhere."""
    x, y = d.input(0), d.output()
    d.require("k" in d.node.attrs, "k is known only at run time")
    diagonal, upper = int(d.attr("k")), bool(d.attr("upper"))

    def body(i: Index) -> Expr:
        row, column = op("add", i[-2], diagonal), i[-1]
        is_inside = op("le", row, column) if upper else op("le", column, row)
        return op("select", is_inside, load(x, i), const(0, x.dtype))

    d.write(y, body)


def _blocks(d: Definition, x: Tensor, shape: Sequence[int]) -> tuple[ActivationLayout, int, int, Sequence[int], int]:
    layout = ActivationLayout.of(d, x.shape)
    batch, space, (channels,) = layout.parts(shape)
    d.require(len(space) == 2, "not an image")
    block = int(d.attr("blocksize"))
    return layout, block, batch, space, channels


def depth_to_space(d: Definition) -> None:
    """Channels laid out as blocks of the image: a transposition of [block, block, channel] parts."""
    x, y = d.input(0), d.output()
    layout, block, batch, (height, width), channels = _blocks(d, x, x.shape)
    inner = channels // block**2
    crd = d.attr("mode", "DCR") == "CRD"
    x = d.reshape(x, layout.join(batch, (height, width), (inner, block, block) if crd else (block, block, inner)))
    y = d.reshape(y, layout.join(batch, (height, block, width, block), (inner,)))
    space = ActivationLayout(layout.channels_last, 4)

    def body(i: Index) -> Expr:
        first, (h, down, w, right), (channel,) = space.parts(i)
        return load(x, layout.join(first, (h, w), (channel, down, right) if crd else (down, right, channel)))

    d.write(y, body)


def space_to_depth(d: Definition) -> None:
    """Blocks of the image laid out as channels."""
    x, y = d.input(0), d.output()
    layout, block, batch, (height, width), channels = _blocks(d, x, y.shape)
    inner = channels // block**2
    crd = d.attr("mode", "DCR") == "CRD"
    x = d.reshape(x, layout.join(batch, (height, block, width, block), (inner,)))
    y = d.reshape(y, layout.join(batch, (height, width), (inner, block, block) if crd else (block, block, inner)))
    space = ActivationLayout(layout.channels_last, 4)

    def body(i: Index) -> Expr:
        first, (h, w), parts = layout.parts(i)
        channel, down, right = parts if crd else (*parts[2:], *parts[:2])
        return load(x, space.join(first, (h, down, w, right), (channel,)))

    d.write(y, body)


def resize(d: Definition) -> None:
    """Nearest neighbour where each extent grows by a whole factor: a broadcast over [place, copy] pairs."""
    x, y = d.input(0), d.output()
    d.require(d.attr("mode") == "nearest", f"mode {d.attr('mode')}")
    d.require(d.has(0) and len(d.node.inputs) == 1, "sizes known only at run time")
    d.require(all(whole % own == 0 for own, whole in zip(x.shape, y.shape, strict=True)), "a factor that is not whole")
    factors = [whole // own for own, whole in zip(x.shape, y.shape, strict=True)]
    scales = d.attr("scales") or ()
    axes = d.attr("axes") or range(len(scales))
    is_quotient = all(scale == factors[axis] for axis, scale in zip(axes, scales, strict=True))
    d.require(is_quotient, "a scale that is not the quotient of the extents")
    transformation = d.attr("coordinate_transformation_mode", "half_pixel")
    rounding = d.attr("nearest_mode", "round_prefer_floor")
    for own, factor in zip(x.shape, factors, strict=True):
        places = _nearest(own, factor, transformation, rounding)
        d.require(places is not None and np.array_equal(places, np.arange(own * factor) // factor), "uneven copies")
    y = d.reshape(y, [e for pair in zip(x.shape, factors, strict=True) for e in pair])
    d.write(y, lambda i: load(x, i[::2]))


def _nearest(extent: int, factor: int, transformation: str, rounding: str) -> NDArray[np.float64] | None:
    """The element that each output takes along a dimension; None for modes that do not copy elements."""
    place = np.arange(extent * factor, dtype=np.float64)
    match transformation:
        case "asymmetric":
            source = place / factor
        case "half_pixel" | "half_pixel_symmetric":
            source = (place + 0.5) / factor - 0.5
        case "pytorch_half_pixel":
            source = (place + 0.5) / factor - 0.5 if extent * factor > 1 else place * 0.0
        case _:
            return None
    return np.clip(ROUNDINGS[rounding](source), 0, extent - 1)


MOVEMENT: Mapping[str, OpDef] = {
    "Concat": concat,
    "DepthToSpace": depth_to_space,
    "Expand": expand,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Identity": view,
    "OneHot": one_hot,
    "Pad": pad,
    "Reshape": view,
    "Resize": resize,
    "ReverseSequence": reverse_sequence,
    "Slice": slice_,
    "SpaceToDepth": space_to_depth,
    "Split": split,
    "TensorScatter": tensor_scatter,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": trilu,
}
