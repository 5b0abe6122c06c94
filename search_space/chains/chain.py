"""Chain: pieces that feed each other, seen through blocks of the rows of the last one.

A block of rows of the last piece needs some rows of what the piece before it makes, these some rows of what comes
before that, and so on: with a halo where a window slides over them. `chain` finds the axis along which a task can be
cut like this, and which axes run along with it in every piece; `Chain.spans` says which rows a block needs.

Padding between two pieces is no work: what is padded is written where it stands inside the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr import Const, Expr, Load, Op, Var, const, free_vars, substitute
from tunewright.codegen.index import Linear, linear
from tunewright.graph.task import Axis, Stage, Task, Tensor

from ..nests.padding import padded
from ..nests.pieces import Piece, pieces
from ..products.product import Product, factors, last_axes

ROW = "row"
"""The axis of every link that is cut into blocks."""

Extents = NDArray[np.int64]  # [points], or a single number


@dataclass(frozen=True, slots=True)
class Padding:
    """What is around a tensor once it is padded."""

    inside: tuple[range, ...]  # places of each dimension that are none; without what no window reaches
    fill: Const


@dataclass(frozen=True, slots=True)
class Link:
    """One piece of a chain. Its axes along the chain are named `ROW` and as in `Chain.outer`.

    `tensor` is what it makes, padded if there is `padding`; of this the dimensions `outer` and `row` run along the
    axes of the chain. The last link has neither.
    """

    piece: Piece
    tensor: Tensor
    padding: Padding | None
    product: Product | None
    outer: tuple[int, ...] = ()
    row: int = -1

    @property
    def rows(self) -> int:
        """Rows that the piece makes."""
        return next(a.extent for a in self.piece.stage.axes if a.name == ROW)

    @property
    def front(self) -> int:
        """Rows of padding in front of those."""
        return self.padding.inside[self.row].start if self.padding else 0

    @property
    def inner(self) -> tuple[int, ...]:
        """The dimensions that a block has whole."""
        return tuple(d for d in range(len(self.tensor.shape)) if d != self.row and d not in self.outer)


@dataclass(frozen=True, slots=True)
class Edge:
    """Row p of link `reader` takes rows p * stride + low .. p * stride + high of link `maker`, padding counted."""

    reader: int
    maker: int
    stride: int
    low: int
    high: int

    @property
    def slides(self) -> bool:
        """Whether row p takes anything but row p."""
        return (self.stride, self.low, self.high) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a link that block number t of the chain needs: t * stride + first up to below t * stride + end."""

    stride: Extents
    first: Extents
    end: Extents

    @property
    def kept(self) -> Extents:
        """Rows that the block before needed too."""
        return self.end - self.first - self.stride


@dataclass(frozen=True, slots=True)
class Chain:
    """Links in order; the last one makes the task's output."""

    links: tuple[Link, ...]
    outer: tuple[Axis, ...]  # axes that every link has and that never mix
    edges: tuple[Edge, ...]

    @property
    def rows(self) -> int:
        """Rows of the last link."""
        return self.links[-1].rows

    @property
    def slides(self) -> bool:
        """Whether blocks overlap, skip rows or have padding: whether rows differ from link to link."""
        return any(e.slides for e in self.edges) or any(link.front or link.rows != self.rows for link in self.links)

    def spans(self, block: Any) -> list[Span]:
        """The rows of every link that a block of `block` rows of the last one needs."""
        wanted = np.asarray(block, np.int64)
        found: list[Span | None] = [None] * len(self.links)
        found[-1] = Span(wanted, wanted * 0, wanted)
        for number in reversed(range(len(self.links))):
            span = found[number]
            assert span is not None
            for edge in self.edges:
                if edge.reader == number:
                    found[edge.maker] = _joined(edge, span, found[edge.maker])
        return [span for span in found if span is not None]

    def ring(self, number: int, spans: Sequence[Span]) -> Extents:
        """Rows of a link to keep if each block adds only those that the one before did not need."""
        mine = spans[number]
        most = np.maximum(mine.kept, mine.stride)
        for edge in self.edges:
            if edge.maker == number:
                theirs = spans[edge.reader]
                most = np.maximum(most, mine.end - edge.stride * (theirs.end - theirs.stride) - edge.low)
        return most


def _joined(edge: Edge, reader: Span, other: Span | None) -> Span:
    stride = reader.stride * edge.stride
    first = reader.first * edge.stride + edge.low
    end = (reader.end - 1) * edge.stride + edge.high + 1
    if other is not None:
        first, end = np.minimum(first, other.first), np.maximum(end, other.end)
    return Span(stride, first, np.maximum(end, first + stride))


@lru_cache(maxsize=256)
def chain(task: Task) -> Chain | None:
    """The task as a chain, or None: each piece but the last makes one whole tensor, read by later pieces alone."""
    made = _with_padding(task, pieces(task))
    if made is None or len(made) < 2 or len(task.outputs) != 1 or made[-1][0].output != task.outputs[0].name:
        return None
    names = [piece.output for piece, _ in made]
    inside = {t.name for t in task.temporaries}
    if len(set(names)) < len(names) or not set(names[:-1]) <= inside & _read([piece for piece, _ in made]):
        return None
    walks = [found for axis in made[-1][0].stage.axes if (found := _walk(made, axis.name)) is not None]
    return _along(task, made, walks)


# Padding


def _with_padding(task: Task, parts: Sequence[Piece]) -> list[tuple[Piece, Padding | None]] | None:
    """The pieces, padding taken into the piece that makes what is padded; a copy where that is an input."""
    done: list[tuple[Piece, Padding | None]] = []
    for number, piece in enumerate(parts):
        seen = _padding(piece)
        if seen is None:
            done.append((piece, None))
            continue
        source, padding = seen
        places = [n for n, (other, _) in enumerate(done) if other.output == source.tensor]
        if not places:
            done.append((_copy(piece, source, padding), padding))
            continue
        readers = sum(x.tensor == source.tensor for other in parts for x in other.reads)
        moved = _shifted(done[places[0]][0], piece.output, padding)
        if moved is None or len(places) > 1 or readers != 1 or done[places[0]][1]:
            return None
        if task.outputs[0].name == source.tensor or piece.output in _read(parts[:number]):
            return None
        done[places[0]] = (moved, padding)
    return done


def _read(parts: Sequence[Piece]) -> set[str]:
    return {x.tensor for piece in parts for x in piece.reads}


def _padding(piece: Piece) -> tuple[Load, Padding] | None:
    """What a piece pads, if that is all it does."""
    match piece.stage.body:
        case Op("select", (_, _, Const() as fill)):
            seen = padded(piece, fill.value)
        case _:
            return None
    if seen is None or not isinstance(seen.element, Load) or len(seen.element.index) != len(seen.axes):
        return None
    moved = map(_moved, seen.axes, seen.inside)
    return (seen.element, Padding(seen.inside, fill)) if seen.element.index == tuple(moved) else None


def _moved(axis: str, inside: range) -> Expr:
    """Where the elements of a dimension are read that is padded along an axis."""
    return Var(axis) + -inside.start if len(inside) > 1 else const(0)


def _copy(piece: Piece, source: Load, padding: Padding) -> Piece:
    """What copies the tensor that a piece pads to where it stands inside the padding."""
    names = [at.name for at in piece.index if isinstance(at, Var)]
    axes = tuple(Axis(name, len(inside)) for name, inside in zip(names, padding.inside, strict=True))
    stage = Stage(piece.output, axes, Load(source.tensor, tuple(map(Var, names)), source.dtype))
    index = tuple(at + inside.start for at, inside in zip(stage.index, padding.inside, strict=True))
    return Piece(stage, piece.output, index, Load(piece.output, stage.index, source.dtype))


def _shifted(piece: Piece, output: str, padding: Padding) -> Piece | None:
    """The piece writing inside padding, without what is cut off there. None if it can't leave that out."""
    extents = {a.name: a.extent for a in piece.stage.axes}
    for at, inside in zip(piece.index, padding.inside, strict=True):
        if isinstance(at, Var):
            extents[at.name] = min(extents[at.name], len(inside))
    ends = [form.bounds(extents)[1] if (form := linear(at)) else -1 for at in piece.index]
    if ends != [len(inside) - 1 for inside in padding.inside]:
        return None
    axes = tuple(replace(a, extent=extents[a.name]) for a in piece.stage.axes)
    index = tuple(at + inside.start for at, inside in zip(piece.index, padding.inside, strict=True))
    return Piece(replace(piece.stage, axes=axes), output, index, piece.finish)


# Rows


@dataclass(frozen=True, slots=True)
class _Walk:
    """One axis of the last piece followed through all others."""

    axes: tuple[str, ...]  # of each piece
    dims: tuple[int, ...]  # of the tensor that each piece makes; -1 for the last
    edges: tuple[Edge, ...]

    @property
    def slides(self) -> bool:
        return any(edge.slides for edge in self.edges)


def _walk(made: Sequence[tuple[Piece, Padding | None]], axis: str) -> _Walk | None:
    """Follow an axis from the last piece to what makes its operands, and on. None if it gets lost somewhere."""
    makers = {piece.output: number for number, (piece, _) in enumerate(made)}
    axes: list[str] = ["" for _ in made]
    dims = [-1 for _ in made]
    scales = [0 for _ in made]
    axes[-1], scales[-1] = axis, 1
    edges: list[Edge] = []
    for number in reversed(range(len(made))):
        piece = made[number][0]
        if not axes[number]:
            return None
        for load in piece.reads:
            maker = makers.get(load.tensor)
            if maker is None:
                continue
            step = _step(piece, axes[number], load, made[maker][0])
            if maker >= number or step is None:
                return None
            dim, own, form = step
            padding = made[number][1]
            front = padding.inside[dims[number]].start if padding else 0
            edge = _edge(piece, (number, maker), axes[number], form, front)
            scale = scales[number] * form.coefficients[axes[number]]
            if edge is None or (axes[maker] and (axes[maker], dims[maker], scales[maker]) != (own, dim, scale)):
                return None
            axes[maker], dims[maker], scales[maker] = own, dim, scale
            edges.append(edge)
    return _Walk(tuple(axes), tuple(dims), tuple(dict.fromkeys(edges)))


def _step(piece: Piece, axis: str, load: Load, maker: Piece) -> tuple[int, str, Linear] | None:
    """The dimension along which a read moves with an axis, the axis of the maker there, and how the read moves."""
    found = [d for d, at in enumerate(load.index) if axis in free_vars(at)]
    if len(found) != 1:
        return None
    form, written = linear(load.index[found[0]]), linear(maker.index[found[0]])
    if form is None or written is None or len(written.coefficients) != 1:
        return None
    ((own, coefficient),) = written.coefficients.items()
    elsewhere = [d for d, at in enumerate(maker.index) if d != found[0] and own in free_vars(at)]
    if coefficient != 1 or elsewhere or form.coefficients[axis] < 1:
        return None
    return found[0], own, form


def _edge(piece: Piece, ends: tuple[int, int], axis: str, form: Linear, front: int) -> Edge | None:
    """What a read takes of another link; None if it moves with other axes than the one followed and reductions.

    `front` rows of padding come before what the reader makes.
    """
    taps = {a.name: a.extent for a in piece.stage.reduce}
    rest = Linear({name: c for name, c in form.coefficients.items() if name != axis}, form.constant)
    if not rest.coefficients.keys() <= taps.keys():
        return None
    low, high = rest.bounds(taps)
    stride = form.coefficients[axis]
    return Edge(*ends, stride, low - stride * front, high - stride * front)


def _along(task: Task, made: Sequence[tuple[Piece, Padding | None]], walks: Sequence[_Walk]) -> Chain | None:
    """The chain cut along the best of some axes: the first that windows slide along, else the last in no panel."""
    sliding = [n for n, way in enumerate(walks) if way.slides]
    shared = {name for piece, _ in made for name in _in_both(piece)}
    free = [n for n, way in enumerate(walks) if not shared & set(way.axes)]
    if not walks:
        return None
    row = sliding[0] if sliding else max(free, default=len(walks) - 1)
    outer = [way for n, way in enumerate(walks) if n != row and not way.slides and (n < row or not sliding)]
    extents = {a.name: a.extent for a in made[-1][0].stage.axes}
    links = tuple(_link(task, n, made, walks[row], outer) for n in range(len(made)))
    axes = tuple(Axis(f"outer{n}", extents[way.axes[-1]]) for n, way in enumerate(outer))
    return Chain(links, axes, walks[row].edges)


def _in_both(piece: Piece) -> set[str]:
    """Axes of both factors of a product."""
    match piece.stage.body:
        case Op("mul", (Load() as left, Load() as right)) if piece.stage.reduce:
            return set(free_vars(left)) & set(free_vars(right)) & {a.name for a in piece.stage.axes}
    return set()


def _link(
    task: Task, number: int, made: Sequence[tuple[Piece, Padding | None]], row: _Walk, outer: Sequence[_Walk]
) -> Link:
    piece, padding = made[number]
    names = {row.axes[number]: ROW} | {way.axes[number]: f"outer{n}" for n, way in enumerate(outer)}
    piece = _renamed(piece, names)
    known = {p.output for p, _ in made}
    found = _seen(piece, known)
    dims = tuple(way.dims[number] for way in outer) if row.dims[number] >= 0 else ()
    return Link(piece, task.tensor(piece.output), padding, found, dims, row.dims[number])


def _renamed(piece: Piece, names: dict[str, str]) -> Piece:
    fresh = {old: Var(new) for old, new in names.items()}
    stage = piece.stage
    stage = Stage(
        output=stage.output,
        axes=tuple(Axis(names.get(a.name, a.name), a.extent) for a in stage.axes),
        body=substitute(stage.body, fresh),
        reduce=stage.reduce,
        combiner=stage.combiner,
        index=tuple(substitute(e, fresh) for e in stage.index),
    )
    index = tuple(substitute(e, fresh) for e in piece.index)
    return Piece(stage, piece.output, index, substitute(piece.finish, fresh))


def _seen(piece: Piece, made: set[str]) -> Product | None:
    """The piece as a product whose panel comes from outside the chain; None if it isn't one."""
    operands = factors(piece.stage)
    if operands is None:
        return None
    ways = (_product(piece, vector, *pair) for vector in last_axes(piece) for pair in (operands, operands[::-1]))
    return next((way for way in ways if way is not None and way.panel.tensor not in made), None)


def _product(piece: Piece, vector: str, other: Load, panel: Load) -> Product | None:
    """The product with an axis of the panel alone along the lanes."""
    if vector not in free_vars(panel) or vector in free_vars(other) or ROW in free_vars(panel):
        return None
    return Product.of(piece, panel, other, vector)
