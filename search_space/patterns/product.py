"""Product: a task's main fused stage as a sum of products of two loads, and the layout of its panel.

The output's contiguous axis (`vector`) belongs to one operand alone, the *panel* (weights, as a rule); scalars of the
other operand are broadcast against its vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Op, Var, const, free_vars, loads, narrow_source, transform
from tunewright.codegen.expr.index import linear
from tunewright.codegen.ir.ir import Packing
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor

from ..axes import IndexRange
from ..registers import INNER, TILE
from .fused_stage import FLOAT32, FusedStage, fuse_stages
from .padding import Interior, find_source
from .vector_axis import is_contiguous
from .window_dim import WindowDim, match_window_dim

FEW = 4
"""Elements in a row that are read one by one at no loss."""


@dataclass(frozen=True, slots=True)
class Product:
    """The main fused stage of a task as a product, with the kinds of its axes."""

    before: tuple[FusedStage, ...]
    fused_stage: FusedStage
    after: tuple[FusedStage, ...]
    panel: Load  # the operand that varies along the vector axis
    vector: str
    rows: tuple[str, ...]  # axes of the broadcast operand alone, outermost first
    batch: tuple[str, ...]  # axes of both
    columns: tuple[str, ...]  # axes of the panel alone, besides `vector`
    edges: tuple[WindowDim, ...] = ()  # nothing is added beyond them

    @staticmethod
    def along(fused_stage: FusedStage, operands: tuple[Load, Load], vector: str) -> Product | None:
        """The product of two operands with an axis along the lanes; None if not just one of them varies along it."""
        panel, broadcast = sorted(operands, key=lambda load: vector not in free_vars(load))
        panel_axes, broadcast_axes = set(free_vars(panel)), set(free_vars(broadcast))
        axes = [a.name for a in fused_stage.stage.axes]
        if vector not in panel_axes or vector in broadcast_axes or vector not in axes:
            return None
        axes.remove(vector)
        return Product(
            before=(),
            fused_stage=fused_stage,
            after=(),
            panel=panel,
            vector=vector,
            rows=tuple(a for a in axes if a in broadcast_axes and a not in panel_axes),
            batch=tuple(a for a in axes if a in broadcast_axes and a in panel_axes),
            columns=tuple(a for a in axes if a not in broadcast_axes),
        )

    @property
    def stages(self) -> tuple[tuple[FusedStage, ...], FusedStage, tuple[FusedStage, ...]]:
        """The fused stages of the task: those before, this one, those after."""
        return self.before, self.fused_stage, self.after

    @property
    def dtype(self) -> DType:
        """The type of the sums."""
        return self.fused_stage.stage.body.dtype

    @property
    def broadcast(self) -> Load:
        """The operand that is broadcast; the panel itself, if it is multiplied by itself."""
        return next((x for x in loads(self.fused_stage.stage.body) if x != self.panel), self.panel)

    def with_panel(self, panel: Load) -> Product:
        """The same product with its panel read elsewhere."""
        return replace(self.with_operand(self.panel, panel), panel=panel)

    def with_operand(self, operand: Load, place: Load) -> Product:
        """The same product with an operand read elsewhere."""
        stage = self.fused_stage.stage
        body = transform(stage.body, lambda node: place if node == operand else node)
        return replace(self, fused_stage=replace(self.fused_stage, stage=replace(stage, body=body)))

    def extent(self, axis: str) -> int:
        """Extent of a spatial or reduction axis."""
        stage = self.fused_stage.stage
        return next(a.extent for a in stage.axes + stage.reduce if a.name == axis)


TOGETHER = ".together"
"""The name of a part of a packed panel that is read as one element."""

INTERIOR = "bare"
"""The name of an operand that a phase copies without the zeros around it."""

LINE = 16
"""Floats in a line of a cache."""

PREFETCH_BYTES = 8192
"""Prefetch distance in a packed panel: memory takes some 100 ns, in which a core reads 4 KiB of it."""


def prefetch_rows(width: int) -> int:
    """The prefetch distance in rows of a packed panel, `width` floats each."""
    return -(-PREFETCH_BYTES // (4 * width))


def is_prefetch_worthwhile(target: Target) -> bool:
    """Whether prefetching a packed panel is likely to pay: where a vector is a whole cache line.

    Smaller ones ask twice for each line, beside less arithmetic. On Zen 3, with vectors of half a line, products take
    4% more time so in the median of 4,087 pairs of schedules, large ones 10%, also with weights out of memory.
    """
    return target.lanes(4) >= LINE


def row_pitch(size: int) -> int:
    """The pitch of rows of `size` floats: an odd number of cache lines, so that neighbours share no set."""
    lines = -(-size // LINE)
    return (lines + 1 - lines % 2) * LINE


@lru_cache(maxsize=256)
def match_product(task: Task, dtypes: frozenset[DType] = FLOAT32) -> Product | None:
    """The task's product of two tensors of these types read at linear places, with an axis for the lanes; None if
    there is none.
    """
    return max(_orientations(task, dtypes), key=lambda way: _panel_rank(task, way), default=None)


@lru_cache(maxsize=256)
def match_transposed_product(task: Task) -> Product | None:
    """The product with its operands exchanged; None if it can't be read and written in vectors this way.

    The broadcast operand of `match_product` is the panel then, read in place: where channels come first, pixels lie
    along the lanes.
    """
    best = match_product(task)
    for product in _orientations(task, FLOAT32):
        is_other_axis = best is not None and product.vector != best.vector
        is_input = all(p.output != product.panel.tensor for p in product.before)
        is_in_place = is_contiguous(product.panel.index, product.vector) and product.fused_stage.index[-1:] == (
            Var(product.vector),
        )
        if is_other_axis and is_input and is_in_place and product.rows and not product.columns:
            return product
    return None


def _orientations(task: Task, dtypes: frozenset[DType]) -> list[Product]:
    """Match the main fused stage as a product, for each axis that may lie along the lanes."""
    fused_stages = fuse_stages(task)
    main = max(range(len(fused_stages)), key=lambda n: fused_stages[n].stage.points)
    operands = factors(fused_stages[main].stage, dtypes)
    if operands is None:
        return []
    fused_stage, before, after = fused_stages[main], tuple(fused_stages[:main]), tuple(fused_stages[main + 1 :])
    products = (Product.along(fused_stage, operands, vector) for vector in last_axes(fused_stage))
    return [replace(product, before=before, after=after) for product in products if product is not None]


def factors(stage: Stage, dtypes: frozenset[DType] = FLOAT32) -> tuple[Load, Load] | None:
    """The two loads at linear places, of these types, whose products a stage sums as wide as they are computed; None if
    it does anything else.
    """
    match stage:
        case Stage(body=Op("mul", (first, second)), combiner="sum"):
            left, right = narrow_source(first), narrow_source(second)
            if isinstance(left, Load) and isinstance(right, Load) and {left.dtype, right.dtype} <= dtypes:
                is_linear = all(linear(e) is not None for load in (left, right) for e in load.index)
                return (left, right) if is_linear else None
    return None


@lru_cache(maxsize=256)
def drop_padding(task: Task, product: Product) -> Product:
    """The product without the phase that puts zeros around an operand: windows end at the edges instead.

    Where that phase also brings the operand into another order, it is left to do so. The same product, if there is no
    such phase, or if it does more.
    """
    read = product.broadcast
    interior = find_source(task, (*product.before, product.fused_stage, *product.after), read, border=0.0)
    if (
        interior is None
        or not isinstance(interior.element, Load)
        or any(linear(e) is None for e in interior.element.index)
    ):
        return product
    whole = (IndexRange(0, extent) for extent in task.tensor(read.tensor).shape)
    sides = enumerate(zip(read.index, interior.inside, whole, strict=True))
    edges = [_edge(product, at, inside, n) for n, (at, inside, most) in sides if inside != most]
    if not edges or None in edges:
        return product
    operand = interior.at(read.index)
    assert isinstance(operand, Load)
    last = product.fused_stage.stage.reduce[-1]
    before = [p for p in product.before if p is not interior.fused_stage]
    if not is_contiguous(operand.index, last.name) and last.extent > FEW:
        operand, copy = _copy_interior(interior, read)
        before.append(copy)
    return replace(product.with_operand(read, operand), before=tuple(before), edges=tuple(e for e in edges if e))


def _copy_interior(interior: Interior, read: Load) -> tuple[Load, FusedStage]:
    """The load of an operand copied without its padding, and the fused stage that copies it."""
    axes = tuple(Axis(name, inside.extent) for name, inside in zip(interior.axes, interior.inside, strict=True))
    first = [inside.start for inside in interior.inside]
    stage = Stage(INTERIOR, axes, interior.at([Var(a.name) + low for a, low in zip(axes, first, strict=True)]))
    index = tuple(at - low for at, low in zip(read.index, first, strict=True))
    return Load(INTERIOR, index, read.dtype), FusedStage.of(stage)


def _edge(product: Product, at: Expr, inside: IndexRange, dimension: int) -> WindowDim | None:
    """The window that leaves what is read along one dimension; None if none slides there along one axis."""
    dim = match_window_dim(product.fused_stage, at, inside, dimension)
    return dim if dim is not None and dim.axis in product.rows and dim.tap else None


def broadcast_tensor(task: Task, product: Product) -> Tensor:
    """The tensor that the broadcast operand is read from: of the task, or one that a phase before fills."""
    name = product.broadcast.tensor
    for tensor in (*task.inputs, *task.temporaries):
        if tensor.name == name:
            return tensor
    [stage] = [fused_stage.stage for fused_stage in product.before if fused_stage.output == name]
    return Tensor(name, tuple(axis.extent for axis in stage.axes), stage.body.dtype)


def last_axes(fused_stage: FusedStage) -> list[str]:
    """The contiguous axis of what is written, and that of the sum itself, which differs if the result is permuted."""
    last = [index[-1] for index in (fused_stage.index, fused_stage.stage.index) if index]
    return list(dict.fromkeys(e.name for e in last if isinstance(e, Var)))


def _panel_rank(task: Task, product: Product) -> int:
    """Rank a panel: constants, which are packed, are best, and panels that must be transposed worst."""
    if task.tensor(product.panel.tensor).constant:
        return 2
    return int(is_contiguous(product.panel.index, product.vector))


@lru_cache(maxsize=256)
def is_packable(task: Task, load: Load) -> bool:
    """Whether an operand can be packed when a model is compiled: a constant that nothing else reads."""
    tensor = next((t for t in task.inputs if t.name == load.tensor), None)
    plain = [e.name for e in load.index if isinstance(e, Var)]
    simple = len(plain) == len(set(plain)) and all(isinstance(e, Var | Const) for e in load.index)
    uses = sum(x.tensor == load.tensor for p in fuse_stages(task) for x in p.reads)
    return simple and tensor is not None and tensor.constant and uses == 1


def pack_panel(product: Product, tensor: Tensor, width: int, together: int = 1) -> tuple[Packing, tuple[Expr, ...]]:
    """The panel as [batch and other axes, n / width, reduction, n % width], padded with zeros; and where it is read.

    The index uses `n.tile` and `n.in` beside the axes: see `tile`. So many elements of the last axis of the reduction
    lie `together` as one, which is what the axis counts.
    """
    tiles = -(-product.extent(product.vector) // width)
    dims = [e.name if isinstance(e, Var) else "" for e in product.panel.index]
    last = product.fused_stage.stage.reduce[-1]
    splits: list[tuple[int, ...]] = []
    parts: list[tuple[str, Expr]] = []
    for number, (name, e) in enumerate(zip(dims, product.panel.index, strict=True)):
        if name == product.vector:
            splits.append((tiles, width))
            parts += [(name + TILE, Var(name + TILE)), (name + INNER, Var(name + INNER))]
        elif name == last.name and together > 1:
            splits.append((last.extent, together))
            parts += [(name, e), (TOGETHER, const(0))]
        else:
            splits.append((tensor.shape[number],))
            parts.append((name, e))
    padded = tuple(map(prod, splits))
    reduction = {a.name for a in product.fused_stage.stage.reduce}

    def rank(part: int) -> tuple[int, int]:
        name = parts[part][0]
        ranks = ((name == TOGETHER, 4), (name.endswith(INNER), 3), (name in reduction, 2), (name.endswith(TILE), 1))
        return next((value for is_such, value in ranks if is_such), 0), part

    order = sorted(range(len(parts)), key=rank)
    packing = Packing(tuple(range(len(dims))), padded, tuple(splits), tuple(order), joined=1 + (together > 1))
    return packing, tuple(parts[part][1] for part in order if parts[part][0] != TOGETHER)


def pack_rows(product: Product, tensor: Tensor) -> tuple[Packing, tuple[Expr, ...]]:
    """Pack the broadcast operand with the reduction's last axis innermost; return its packing and its index.

    Neighbouring rows never meet in a set of a cache.
    """
    index = product.broadcast.index
    inner = index.index(Var(product.fused_stage.stage.reduce[-1].name))
    order = (*(d for d in range(len(index)) if d != inner), inner)
    padded = tuple(row_pitch(tensor.shape[inner]) if d == inner else tensor.shape[d] for d in order)
    packing = Packing.in_order(order, padded)
    return packing, tuple(index[d] for d in order)
