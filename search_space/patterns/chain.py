"""Chain: fused stages that feed each other, by blocks of rows of the last one.

A block of rows of the last fused stage needs some rows of the one before, these some rows of the one before that, and
so on: with a halo where a window slides over them. `match_chain` finds the axis along which a task can be cut like
this, and the axes that run along with it in every fused stage; `Chain.spans` says which rows a block needs.

Padding between two fused stages is no work: the padded tensor is written inside of its padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Const, Expr, Load, Op, Var, const, free_vars, narrow_source
from tunewright.codegen.expr.index import Linear, linear
from tunewright.graph.task import Axis, Stage, Task, Tensor

from ..axes import IndexRange
from .fused_stage import FLOATS, FusedStage, fuse_stages
from .padding import match_padding
from .product import Product, factors, last_axes

ROW = "row"
"""The axis of every link that is cut into blocks."""

Extents = NDArray[np.int64]  # [points], or a single number


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding around a tensor."""

    inside: tuple[IndexRange, ...]  # indices that are no padding, by dimension; without those that no window reaches
    fill: Const


@dataclass(frozen=True, slots=True)
class Link:
    """One fused stage of a chain. Its axes along the chain are named `ROW` and as in `Chain.outer`.

    `tensor` is its output, padded if there is `padding`; of this the dimensions `outer` and `row` run along the
    axes of the chain. The last link has neither.
    """

    fused_stage: FusedStage
    tensor: Tensor
    padding: Padding | None
    product: Product | None
    outer: tuple[int, ...] = ()
    row: int = -1

    @property
    def rows(self) -> int:
        """Rows that the fused stage makes."""
        return next(a.extent for a in self.fused_stage.stage.axes if a.name == ROW)

    @property
    def front(self) -> int:
        """Rows of padding in front of those."""
        return self.padding.inside[self.row].start if self.padding else 0

    @property
    def inner(self) -> tuple[int, ...]:
        """The dimensions that a block has whole."""
        return tuple(d for d in range(len(self.tensor.shape)) if d != self.row and d not in self.outer)


@dataclass(frozen=True, slots=True)
class Dependence:
    """Row p of link `reader` depends on rows p * stride + low .. p * stride + high of link `maker`, with padding."""

    reader: int
    maker: int
    stride: int
    low: int
    high: int

    @property
    def is_sliding(self) -> bool:
        """Whether row p depends on anything but row p."""
        return (self.stride, self.low, self.high) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a link that block number t of the chain needs: t * stride + first up to below t * stride + end."""

    stride: Extents
    first: Extents
    end: Extents

    @property
    def overlap(self) -> Extents:
        """Rows that the block before needs too."""
        return self.end - self.first - self.stride


@dataclass(frozen=True, slots=True)
class Chain:
    """Links in order; the last one makes the task's output."""

    links: tuple[Link, ...]
    outer: tuple[Axis, ...]  # axes that every link has and that never mix
    dependences: tuple[Dependence, ...]

    @property
    def rows(self) -> int:
        """Rows of the last link."""
        return self.links[-1].rows

    @property
    def is_sliding(self) -> bool:
        """Whether blocks overlap, skip rows or have padding: whether rows differ from link to link."""
        return any(e.is_sliding for e in self.dependences) or any(
            link.front or link.rows != self.rows for link in self.links
        )

    def spans(self, block: Any) -> list[Span]:
        """The rows of every link that a block of `block` rows of the last one needs."""
        rows = np.asarray(block, np.int64)
        spans: list[Span | None] = [None] * len(self.links)
        spans[-1] = Span(rows, rows * 0, rows)
        for number in reversed(range(len(self.links))):
            span = spans[number]
            assert span is not None
            for dependence in self.dependences:
                if dependence.reader == number:
                    spans[dependence.maker] = _join(dependence, span, spans[dependence.maker])
        return [span for span in spans if span is not None]

    def line_buffer_rows(self, number: int, spans: Sequence[Span]) -> Extents:
        """The rows of a link's line buffer, where each block adds those that the one before did not need."""
        maker = spans[number]
        size = np.maximum(maker.overlap, maker.stride)
        for dependence in self.dependences:
            if dependence.maker == number:
                reader = spans[dependence.reader]
                size = np.maximum(size, maker.end - dependence.stride * (reader.end - reader.stride) - dependence.low)
        return size


def _join(dependence: Dependence, reader: Span, known: Span | None) -> Span:
    stride = reader.stride * dependence.stride
    first = reader.first * dependence.stride + dependence.low
    end = (reader.end - 1) * dependence.stride + dependence.high + 1
    if known is not None:
        first, end = np.minimum(first, known.first), np.maximum(end, known.end)
    return Span(stride, first, np.maximum(end, first + stride))


@lru_cache(maxsize=256)
def match_chain(task: Task) -> Chain | None:
    """Match a task as a chain: each fused stage but the last makes one whole tensor, which later ones alone read."""
    stages = _absorb_padding(task, fuse_stages(task))
    if stages is None or len(stages) < 2 or len(task.outputs) != 1 or stages[-1][0].output != task.outputs[0].name:
        return None
    names = [fused_stage.output for fused_stage, _ in stages]
    inside = {t.name for t in task.temporaries}
    if len(set(names)) < len(names) or not set(names[:-1]) <= inside & _tensors_read(
        [fused_stage for fused_stage, _ in stages]
    ):
        return None
    walks = [walk for axis in stages[-1][0].stage.axes if (walk := _walk(stages, axis.name)) is not None]
    return _cut_along(task, stages, walks)


# Padding


def _absorb_padding(task: Task, fused_stages: Sequence[FusedStage]) -> list[tuple[FusedStage, Padding | None]] | None:
    """Move padding into the fused stage that makes the padded tensor; into a copy where that is an input."""
    stages: list[tuple[FusedStage, Padding | None]] = []
    for number, fused_stage in enumerate(fused_stages):
        source_and_padding = _match_padding(fused_stage)
        if source_and_padding is None:
            stages.append((fused_stage, None))
            continue
        source, padding = source_and_padding
        makers = [n for n, (other, _) in enumerate(stages) if other.output == source.tensor]
        if not makers:
            stages.append((_copy_stage(fused_stage, source, padding), padding))
            continue
        readers = sum(x.tensor == source.tensor for other in fused_stages for x in other.reads)
        shifted = _shift(stages[makers[0]][0], fused_stage.output, padding)
        if shifted is None or len(makers) > 1 or readers != 1 or stages[makers[0]][1]:
            return None
        if task.outputs[0].name == source.tensor or fused_stage.output in _tensors_read(fused_stages[:number]):
            return None
        stages[makers[0]] = (shifted, padding)
    return stages


def _tensors_read(fused_stages: Sequence[FusedStage]) -> set[str]:
    return {x.tensor for fused_stage in fused_stages for x in fused_stage.reads}


def _match_padding(fused_stage: FusedStage) -> tuple[Load, Padding] | None:
    """Match a fused stage that only pads: its source and the padding."""
    match fused_stage.stage.body:
        case Op("select", (_, _, Const() as fill)):
            interior = match_padding(fused_stage, fill.value)
        case _:
            return None
    if interior is None or not isinstance(interior.element, Load) or len(interior.element.index) != len(interior.axes):
        return None
    index = map(_inside_index, interior.axes, interior.inside)
    return (interior.element, Padding(interior.inside, fill)) if interior.element.index == tuple(index) else None


def _inside_index(axis: str, inside: IndexRange) -> Expr:
    """The index of the elements along a padded axis."""
    return Var(axis) + -inside.start if inside.extent > 1 else const(0)


def _copy_stage(fused_stage: FusedStage, source: Load, padding: Padding) -> FusedStage:
    """The copy of a padded tensor's source to its place inside of the padding."""
    names = [at.name for at in fused_stage.index if isinstance(at, Var)]
    axes = tuple(Axis(name, inside.extent) for name, inside in zip(names, padding.inside, strict=True))
    stage = Stage(fused_stage.output, axes, Load(source.tensor, tuple(map(Var, names)), source.dtype))
    index = tuple(at + inside.start for at, inside in zip(stage.index, padding.inside, strict=True))
    return FusedStage.of(stage, index)


def _shift(fused_stage: FusedStage, output: str, padding: Padding) -> FusedStage | None:
    """A fused stage that writes inside of padding, without elements that are cut off; None if it can't."""
    extents = {a.name: a.extent for a in fused_stage.stage.axes}
    for at, inside in zip(fused_stage.index, padding.inside, strict=True):
        if isinstance(at, Var):
            extents[at.name] = min(extents[at.name], inside.extent)
    ends = [form.bounds(extents)[1] if (form := linear(at)) else -1 for at in fused_stage.index]
    if ends != [inside.extent - 1 for inside in padding.inside]:
        return None
    axes = tuple(replace(a, extent=extents[a.name]) for a in fused_stage.stage.axes)
    index = tuple(at + inside.start for at, inside in zip(fused_stage.index, padding.inside, strict=True))
    return FusedStage(replace(fused_stage.stage, axes=axes), output, index, fused_stage.epilogue)


# Rows


@dataclass(frozen=True, slots=True)
class _Walk:
    """One axis of the last fused stage followed through all others."""

    axes: tuple[str, ...]  # of each fused stage
    dims: tuple[int, ...]  # of the tensor that each fused stage makes; -1 for the last
    dependences: tuple[Dependence, ...]

    @property
    def is_sliding(self) -> bool:
        return any(edge.is_sliding for edge in self.dependences)


def _walk(stages: Sequence[tuple[FusedStage, Padding | None]], axis: str) -> _Walk | None:
    """Follow an axis from the last fused stage to what makes its operands, and on. None if it gets lost somewhere."""
    makers = {fused_stage.output: number for number, (fused_stage, _) in enumerate(stages)}
    axes: list[str] = ["" for _ in stages]
    dims = [-1 for _ in stages]
    scales = [0 for _ in stages]
    axes[-1], scales[-1] = axis, 1
    dependences: list[Dependence] = []
    for number in reversed(range(len(stages))):
        fused_stage = stages[number][0]
        if not axes[number]:
            return None
        for load in fused_stage.reads:
            maker = makers.get(load.tensor)
            if maker is None:
                continue
            step = _follow(fused_stage, axes[number], load, stages[maker][0])
            if maker >= number or step is None:
                return None
            dim, own, form = step
            padding = stages[number][1]
            front = padding.inside[dims[number]].start if padding else 0
            dependence = _dependence(fused_stage, (number, maker), axes[number], form, front)
            scale = scales[number] * form.coefficients[axes[number]]
            if dependence is None or (axes[maker] and (axes[maker], dims[maker], scales[maker]) != (own, dim, scale)):
                return None
            axes[maker], dims[maker], scales[maker] = own, dim, scale
            dependences.append(dependence)
    return _Walk(tuple(axes), tuple(dims), tuple(dict.fromkeys(dependences)))


def _follow(fused_stage: FusedStage, axis: str, load: Load, maker: FusedStage) -> tuple[int, str, Linear] | None:
    """The dimension along which a read moves with an axis, the axis of the maker there, and how the read moves."""
    dims = [d for d, at in enumerate(load.index) if axis in free_vars(at)]
    if len(dims) != 1:
        return None
    form, maker_form = linear(load.index[dims[0]]), linear(maker.index[dims[0]])
    if form is None or maker_form is None or len(maker_form.coefficients) != 1:
        return None
    ((own, coefficient),) = maker_form.coefficients.items()
    elsewhere = [d for d, at in enumerate(maker.index) if d != dims[0] and own in free_vars(at)]
    if coefficient != 1 or elsewhere or form.coefficients[axis] < 1:
        return None
    return dims[0], own, form


def _dependence(
    fused_stage: FusedStage, ends: tuple[int, int], axis: str, form: Linear, front: int
) -> Dependence | None:
    """The dependence of a read; None if it moves with other axes than the one followed and reductions.

    `front` rows of padding come before what the reader makes.
    """
    taps = {a.name: a.extent for a in fused_stage.stage.reduce}
    rest = Linear({name: c for name, c in form.coefficients.items() if name != axis}, form.constant)
    if not rest.coefficients.keys() <= taps.keys():
        return None
    low, high = rest.bounds(taps)
    stride = form.coefficients[axis]
    return Dependence(*ends, stride, low - stride * front, high - stride * front)


def _cut_along(task: Task, stages: Sequence[tuple[FusedStage, Padding | None]], walks: Sequence[_Walk]) -> Chain | None:
    """The chain cut along the best of some axes: the first that windows slide along, else the last in no panel."""
    sliding = [n for n, walk in enumerate(walks) if walk.is_sliding]
    shared = {name for fused_stage, _ in stages for name in _shared_axes(fused_stage)}
    free = [n for n, walk in enumerate(walks) if not shared & set(walk.axes)]
    if not walks:
        return None
    row = sliding[0] if sliding else max(free, default=len(walks) - 1)
    outer = [walk for n, walk in enumerate(walks) if n != row and not walk.is_sliding and (n < row or not sliding)]
    extents = {a.name: a.extent for a in stages[-1][0].stage.axes}
    links = tuple(_link(task, n, stages, walks[row], outer) for n in range(len(stages)))
    axes = tuple(Axis(f"outer{n}", extents[walk.axes[-1]]) for n, walk in enumerate(outer))
    return Chain(links, axes, walks[row].dependences)


def _shared_axes(fused_stage: FusedStage) -> set[str]:
    """Axes of both factors of a product."""
    match fused_stage.stage.body:
        case Op("mul", (first, second)) if fused_stage.stage.reduce:
            left, right = narrow_source(first), narrow_source(second)
            if isinstance(left, Load) and isinstance(right, Load):
                return set(free_vars(left)) & set(free_vars(right)) & {a.name for a in fused_stage.stage.axes}
    return set()


def _link(
    task: Task, number: int, stages: Sequence[tuple[FusedStage, Padding | None]], row: _Walk, outer: Sequence[_Walk]
) -> Link:
    fused_stage, padding = stages[number]
    names = {row.axes[number]: ROW} | {walk.axes[number]: f"outer{n}" for n, walk in enumerate(outer)}
    fused_stage = fused_stage.rename_axes(names)
    outputs = {p.output for p, _ in stages}
    product = _match_product(fused_stage, outputs)
    dims = tuple(walk.dims[number] for walk in outer) if row.dims[number] >= 0 else ()
    return Link(fused_stage, task.tensor(fused_stage.output), padding, product, dims, row.dims[number])


def _match_product(fused_stage: FusedStage, outputs: set[str]) -> Product | None:
    """The fused stage as a product whose panel comes from outside the chain; None if it isn't one."""
    operands = factors(fused_stage.stage, FLOATS)
    if operands is None:
        return None
    products = (Product.along(fused_stage, operands, vector) for vector in last_axes(fused_stage))
    return next(
        (p for p in products if p and ROW not in free_vars(p.panel) and p.panel.tensor not in outputs),
        None,
    )
