"""Window: how kernels slide over an input with padding, strides and dilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tunewright.codegen.expr import Const, Expr, op

from ..task import Tensor
from .definition import Definition, Index, clamped, load, where_all

T = TypeVar("T")  # what describes a dimension: its extent, or an index into it


@dataclass(frozen=True, slots=True)
class Layout:
    """Where batch, channels and the spatial dimensions of an activation are."""

    channels_last: bool  # NHWC, as the importer arranges; else ONNX's own NCHW
    rank: int  # of the space

    @staticmethod
    def of(d: Definition, shape: Sequence[int]) -> Layout:
        """The layout of an activation of that shape."""
        return Layout(bool(d.attr("channels_last", 0)), len(shape) - 2)

    def parts(self, dims: Sequence[T]) -> tuple[T, Sequence[T], Sequence[T]]:
        """Batch, space, and channels, which may be several dimensions: groups and channels of a group."""
        if self.channels_last:
            return dims[0], dims[1 : 1 + self.rank], dims[1 + self.rank :]
        first = len(dims) - self.rank
        return dims[0], dims[first:], dims[1:first]

    def join(self, batch: T, space: Sequence[T], channels: Sequence[T]) -> list[T]:
        """The inverse of `parts`."""
        return [batch, *space, *channels] if self.channels_last else [batch, *channels, *space]


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding along each spatial dimension: output p, kernel place r reads input p * stride + r * dilation - before."""

    extents: tuple[int, ...]  # of the input
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]  # padding that the attributes ask for
    after: tuple[int, ...]

    @staticmethod
    def of(d: Definition, extents: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> Window:
        """The window of a convolution or a pool, from its attributes."""
        d.require(d.attr("auto_pad", "NOTSET") == "NOTSET", "pads that are not worked out")
        pads = d.ints("pads")
        before, after = pads[: len(extents)], pads[len(extents) :]
        strides, dilations = d.ints("strides"), d.ints("dilations")
        return Window(tuple(extents), tuple(outputs), tuple(kernel), strides, dilations, before, after)

    @property
    def reach(self) -> tuple[int, ...]:
        """How far all windows together extend, along each dimension."""
        shapes = zip(self.outputs, self.kernel, self.strides, self.dilations, strict=True)
        return tuple((p - 1) * s + (k - 1) * w + 1 for p, k, s, w in shapes)

    def at(self, place: Sequence[Expr], tap: Sequence[Expr]) -> list[Expr]:
        """Where a kernel's tap reads the padded input."""
        terms = zip(place, self.strides, tap, self.dilations, strict=True)
        return [p * s + r * w for p, s, r, w in terms]

    def pad(self, d: Definition, layout: Layout, x: Tensor, value: Const) -> Tensor:
        """The input with `value` around it; itself where none is needed.

        It extends as far as windows reach, which is less than the padding asked for where the stride skips the rest,
        and more where the output is rounded up.
        """
        sides = zip(self.before, self.reach, self.extents, strict=True)
        if all(before == 0 and reach <= extent for before, reach, extent in sides):
            return x
        batch, _, channels = layout.parts(x.shape)
        padded = d.temporary(layout.join(batch, self.reach, channels), x.dtype)
        before = layout.join(0, self.before, [0] * len(channels))
        return d.write(padded, lambda i: padding(x, i, padded.shape, before, value))


def padding(x: Tensor, index: Index, shape: Sequence[int], before: Sequence[int], value: Expr) -> Expr:
    """The element at `index` of x with `value` around it: `before` of it in front of each dimension, up to `shape`."""
    place: list[Expr] = []
    conditions: list[Expr] = []
    for at, extent, front, own in zip(index, shape, before, x.shape, strict=True):
        moved, inside = clamped(op("sub", at, front), -front, extent - 1 - front, own)
        place.append(moved)
        conditions += inside
    return where_all(conditions, load(x, place), value)
