"""Product: a task's main piece as a sum of products of two loads, and how its panel is laid out.

The output's contiguous axis (`vector`) belongs to one operand alone, the *panel* (weights, as a rule); scalars of the
other operand are broadcast against its vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Const, Expr, Load, Op, Var, free_vars, loads, transform, widened
from tunewright.codegen.index import linear
from tunewright.codegen.ir import Packing
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor

from ..nests.direction import direction_along
from ..nests.nest import Edge
from ..nests.padding import Padded, source
from ..nests.phases import contiguous
from ..nests.pieces import FLOAT32, Piece, pieces
from ..nests.tile import INNER, TILE

FEW = 4
"""Elements in a row that are read one by one at no loss, wherever they are."""


@dataclass(frozen=True, slots=True)
class Product:
    """The main piece of a task, seen as a product: which axes are what."""

    before: tuple[Piece, ...]
    piece: Piece
    after: tuple[Piece, ...]
    panel: Load  # the operand that varies along the vector axis
    vector: str
    rows: tuple[str, ...]  # axes of the other operand alone, outermost first
    batch: tuple[str, ...]  # axes of both
    columns: tuple[str, ...]  # axes of the panel alone, besides `vector`
    edges: tuple[Edge, ...] = ()  # beyond them there is nothing to add

    @staticmethod
    def of(
        piece: Piece,
        panel: Load,
        other: Load,
        vector: str,
        before: Sequence[Piece] = (),
        after: Sequence[Piece] = (),
    ) -> Product:
        """The product of a panel, which varies along `vector`, and another operand, which doesn't."""
        own, others = set(free_vars(panel)), set(free_vars(other))
        axes = [a.name for a in piece.stage.axes if a.name != vector]
        return Product(
            before=tuple(before),
            piece=piece,
            after=tuple(after),
            panel=panel,
            vector=vector,
            rows=tuple(a for a in axes if a in others and a not in own),
            batch=tuple(a for a in axes if a in others and a in own),
            columns=tuple(a for a in axes if a not in others),
        )

    @property
    def dtype(self) -> DType:
        """What products are added up in."""
        return self.piece.stage.body.dtype

    @property
    def other(self) -> Load:
        """The operand that is broadcast; the panel itself, if it is multiplied by itself."""
        return next((x for x in loads(self.piece.stage.body) if x != self.panel), self.panel)

    def reading(self, panel: Load) -> Product:
        """The same product with its panel read elsewhere."""
        return replace(self.replacing(self.panel, panel), panel=panel)

    def replacing(self, operand: Load, place: Load) -> Product:
        """The same product with an operand read elsewhere."""
        stage = self.piece.stage
        body = transform(stage.body, lambda node: place if node == operand else node)
        return replace(self, piece=replace(self.piece, stage=replace(stage, body=body)))

    def extent(self, axis: str) -> int:
        """Extent of a spatial or reduction axis."""
        stage = self.piece.stage
        return next(a.extent for a in stage.axes + stage.reduce if a.name == axis)


BARE = "bare"
"""The tensor that a phase copies without the zeros around it."""

LINE = 16
"""Floats in a line of a cache."""

AHEAD_BYTES = 8192
"""How far ahead a packed panel is asked for: memory takes some 100 ns to answer, in which a core reads 4 KiB of it."""


def ahead(width: int) -> int:
    """Rows of a packed panel that it is asked for ahead, `width` floats each."""
    return -(-AHEAD_BYTES // (4 * width))


def pays_ahead(target: Target) -> bool:
    """Whether asking for a packed panel ahead is likely to pay: where a vector is a whole line of the cache.

    Smaller ones ask twice for each line, beside less arithmetic. On Zen 3, with vectors of half a line, products take
    4% more time so in the median of 4,087 pairs of schedules, large ones 10%, also with weights out of memory.
    """
    return target.lanes(4) >= LINE


def apart(size: int) -> int:
    """Floats of a row that has so many: an odd number of lines, so that neighbours never meet in a set of a cache."""
    return (-(-size // LINE) | 1) * LINE


@lru_cache(maxsize=256)
def product(task: Task, dtypes: frozenset[DType] = FLOAT32) -> Product | None:
    """The task's product of two tensors of these types read at linear places, with an axis for the lanes; None without
    one.
    """
    return max(_ways(task, dtypes), key=lambda way: _panel_rank(task, way), default=None)


@lru_cache(maxsize=256)
def flipped(task: Task) -> Product | None:
    """The product with its operands' parts exchanged; None if it can't be read and written in vectors this way.

    The other operand is the panel then, read as it lies: where channels come first, a map of pixels is along the lanes.
    """
    best = product(task)
    for way in _ways(task, FLOAT32):
        other = best is not None and way.vector != best.vector
        given = all(p.output != way.panel.tensor for p in way.before)
        in_place = contiguous(way.panel.index, way.vector) and way.piece.index[-1:] == (Var(way.vector),)
        if other and given and in_place and way.rows and not way.columns:
            return way
    return None


def _ways(task: Task, dtypes: frozenset[DType]) -> list[Product]:
    """Each way to see the task's main piece as a product: by the axes that may lie along the lanes."""
    parts = pieces(task)
    main = max(range(len(parts)), key=lambda n: parts[n].stage.points)
    operands = factors(parts[main].stage, dtypes)
    if operands is None:
        return []
    ways = [_seen(parts, main, *operands, vector) for vector in last_axes(parts[main])]
    return [way for way in ways if way is not None]


def factors(stage: Stage, dtypes: frozenset[DType] = FLOAT32) -> tuple[Load, Load] | None:
    """The two loads at linear places, of these types, whose products a stage sums as wide as they are computed; None if
    it does anything else.
    """
    match stage:
        case Stage(body=Op("mul", (one, other)), combiner="sum"):
            left, right = widened(one), widened(other)
            if isinstance(left, Load) and isinstance(right, Load) and {left.dtype, right.dtype} <= dtypes:
                known = all(linear(e) is not None for load in (left, right) for e in load.index)
                return (left, right) if known else None
    return None


@lru_cache(maxsize=256)
def unpadded(task: Task, found: Product) -> Product:
    """The product without the phase that puts zeros around an operand: windows end at the edges instead.

    Where that phase also brings the operand into another order, it is left to do so. The same product, if there is no
    such phase, or if it does more.
    """
    read = found.other
    seen = source(task, (*found.before, found.piece, *found.after), read, border=0.0)
    if seen is None or not isinstance(seen.element, Load) or any(linear(e) is None for e in seen.element.index):
        return found
    whole = map(range, task.tensor(read.tensor).shape)
    sides = enumerate(zip(read.index, seen.inside, whole, strict=True))
    edges = [_edge(found, at, inside, n) for n, (at, inside, most) in sides if inside != most]
    if not edges or None in edges:
        return found
    operand = seen.at(read.index)
    assert isinstance(operand, Load)
    last = found.piece.stage.reduce[-1]
    before = [p for p in found.before if p is not seen.piece]
    if not contiguous(operand.index, last.name) and last.extent > FEW:
        operand, copying = _bare(seen, read)
        before.append(copying)
    return replace(found.replacing(read, operand), before=tuple(before), edges=tuple(e for e in edges if e))


def _bare(seen: Padded, read: Load) -> tuple[Load, Piece]:
    """What is put between zeros, copied without them, and where the product reads it."""
    axes = tuple(Axis(name, len(inside)) for name, inside in zip(seen.axes, seen.inside, strict=True))
    first = [inside.start for inside in seen.inside]
    stage = Stage(BARE, axes, seen.at([Var(a.name) + low for a, low in zip(axes, first, strict=True)]))
    index = tuple(at - low for at, low in zip(read.index, first, strict=True))
    return Load(BARE, index, read.dtype), Piece.of(stage)


def _edge(found: Product, at: Expr, inside: range, dimension: int) -> Edge | None:
    """The edge along one dimension of what is read; None if it is not a window sliding along one axis."""
    way = direction_along(found.piece, at, inside, dimension)
    if way is None or way.axis not in found.rows or not way.tap:
        return None
    return Edge(way.axis, way.tap, way.taps, way.stride, way.dilation, way.inside.start - way.start, len(way.inside))


def last_axes(piece: Piece) -> list[str]:
    """The contiguous axis of what is written, and that of the sum itself, which differs if the result is permuted."""
    last = [index[-1] for index in (piece.index, piece.stage.index) if index]
    return list(dict.fromkeys(e.name for e in last if isinstance(e, Var)))


def _seen(parts: Sequence[Piece], main: int, left: Load, right: Load, vector: str) -> Product | None:
    """The product with one axis along the lanes; None if both operands vary along it."""
    panel, other = (right, left) if vector in free_vars(right) else (left, right)
    if vector in free_vars(other) or all(a.name != vector for a in parts[main].stage.axes):
        return None
    return Product.of(parts[main], panel, other, vector, parts[:main], parts[main + 1 :])


def _panel_rank(task: Task, way: Product) -> int:
    """A panel packed beforehand is best, one that must be transposed first worst. Of equals the first is taken."""
    if task.tensor(way.panel.tensor).constant:
        return 2
    return int(contiguous(way.panel.index, way.vector))


@lru_cache(maxsize=256)
def packable(task: Task, load: Load) -> bool:
    """Whether an operand can be packed when a model is compiled: a constant that nothing else reads."""
    tensor = next((t for t in task.inputs if t.name == load.tensor), None)
    plain = [e.name for e in load.index if isinstance(e, Var)]
    simple = len(plain) == len(set(plain)) and all(isinstance(e, Var | Const) for e in load.index)
    uses = sum(x.tensor == load.tensor for p in pieces(task) for x in p.reads)
    return simple and tensor is not None and tensor.constant and uses == 1


def packed(found: Product, tensor: Tensor, width: int) -> tuple[Packing, tuple[Expr, ...]]:
    """The panel as [batch and other axes, n / width, reduction, n % width], padded with zeros; and where it is read.

    The index uses `n.tile` and `n.in` beside the axes: see `tile`.
    """
    tiles = -(-found.extent(found.vector) // width)
    dims = [e.name if isinstance(e, Var) else "" for e in found.panel.index]
    splits = [(tiles, width) if d == found.vector else (tensor.shape[n],) for n, d in enumerate(dims)]
    padded = tuple(prod(s) for s in splits)
    parts: list[tuple[str, Expr]] = []
    for name, e in zip(dims, found.panel.index, strict=True):
        if name == found.vector:
            parts += [(name + TILE, Var(name + TILE)), (name + INNER, Var(name + INNER))]
        else:
            parts.append((name, e))
    reduction = {a.name for a in found.piece.stage.reduce}

    def rank(part: int) -> int:
        name = parts[part][0]
        return 3 if name.endswith(INNER) else 2 if name in reduction else 1 if name.endswith(TILE) else 0

    order = sorted(range(len(parts)), key=lambda part: (rank(part), part))
    packing = Packing(tuple(range(len(dims))), padded, tuple(splits), tuple(order))
    return packing, tuple(parts[part][1] for part in order)


def in_rows(found: Product, tensor: Tensor) -> tuple[Packing, tuple[Expr, ...]]:
    """The operand that is broadcast with the reduction's last axis innermost, and where it is read.

    Neighbouring rows never meet in a set of a cache.
    """
    index = found.other.index
    inner = index.index(Var(found.piece.stage.reduce[-1].name))
    order = (*(d for d in range(len(index)) if d != inner), inner)
    padded = tuple(apart(tensor.shape[inner]) if d == inner else tensor.shape[d] for d in order)
    packing = Packing.in_order(order, padded)
    return packing, tuple(index[d] for d in order)
