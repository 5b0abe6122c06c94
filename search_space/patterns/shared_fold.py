"""Shared fold: a task's main fold, long and of few results, whose tensor with the most elements lies in rows.

Products of few rows are such: of their operands one is read once, and nearly all of the time goes to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Load, Var, free_vars, loads
from tunewright.codegen.expr.index import linear
from tunewright.graph.block_product import MOST_GPU_ROWS, match_block_product
from tunewright.graph.task import Axis, Stage, Task

from .block_matmul import match_block_matmul
from .fused_stage import FLOATS, FusedStage, fuse_stages
from .product import factors
from .vector_axis import is_contiguous
from .weight_words import WeightWords

MOST_ROWS = 8
"""Results that each element of the panel is for: with more, arithmetic takes longer than memory."""

LEAST_DEPTH = 32
"""Terms of a fold that is worth sharing."""


@dataclass(frozen=True, slots=True)
class SharedFold:
    """The main fused stage of a task as a fold, with the kinds of its axes.

    Neighbours of the panel in memory lie along the last of `depth` if the fold is deep, else of `columns`.
    """

    before: tuple[FusedStage, ...]
    fused_stage: FusedStage
    after: tuple[FusedStage, ...]
    panel: Load  # of the most elements
    rows: tuple[Axis, ...]  # axes that the panel is the same for
    columns: tuple[Axis, ...]  # all others that are not folded
    depth: tuple[Axis, ...]
    pitch: int  # elements of a row of the panel in memory
    is_deep: bool
    is_product: bool
    words: WeightWords | None = None  # where the panel are weights of few bits: words of a column follow each other

    @property
    def together(self) -> int:
        """Terms of a fold that are read at once, of each of the columns."""
        return 1 if self.words is None else self.words.terms

    @property
    def stages(self) -> tuple[tuple[FusedStage, ...], FusedStage, tuple[FusedStage, ...]]:
        """The fused stages of the task: those before, this one, those after."""
        return self.before, self.fused_stage, self.after

    @property
    def dtype(self) -> DType:
        """The type of the results before the epilogue."""
        return self.fused_stage.stage.body.dtype

    @property
    def last(self) -> Axis:
        """The axis that neighbours of the panel lie along."""
        return (self.depth if self.is_deep else self.columns)[-1]


@lru_cache(maxsize=256)
def match_shared_fold(task: Task) -> SharedFold | None:
    """Match a task's main fold in float32; None if it is short, for many rows, or not read in rows.

    Folds that are no products are matched where neighbours lie across them, or where there is nothing else to do.
    """
    if match_block_matmul(task):
        return _match_words(task)
    fused_stages = fuse_stages(task)
    main = max(range(len(fused_stages)), key=lambda n: fused_stages[n].stage.points)
    stage = fused_stages[main].stage
    panel = _panel(stage)
    if panel is None or prod(axis.extent for axis in stage.reduce) < LEAST_DEPTH:
        return None
    [last], own = free_vars(panel.index[-1]), set(free_vars(panel))
    is_deep = any(axis.name == last for axis in stage.reduce)
    operands = factors(stage, FLOATS)
    is_product = operands is not None and operands[0] != operands[1]  # squares are folded as all else is
    rows = tuple(axis for axis in stage.axes if axis.name not in own)
    is_read_in_rows = all(_is_along(load, last) for load in loads(stage.body))
    if prod(axis.extent for axis in rows) > (MOST_ROWS if is_product else 1) or not is_read_in_rows:
        return None
    if is_deep and not is_product and len(fused_stages) > 1:
        return None
    return SharedFold(
        tuple(fused_stages[:main]),
        fused_stages[main],
        tuple(fused_stages[main + 1 :]),
        panel,
        rows,
        columns=_last_along(tuple(axis for axis in stage.axes if axis.name in own), last),
        depth=_last_along(stage.reduce, last),
        pitch=task.tensor(panel.tensor).shape[-1],
        is_deep=is_deep,
        is_product=is_product,
    )


def _match_words(task: Task) -> SharedFold | None:
    """A task's product with weights of few bits in whole words, as `graph.ops.blocks` defines it, if for few rows."""
    product = match_block_matmul(task)
    words = WeightWords.of(product) if product else None
    term = match_block_product(product.fused_stage.stage.body) if product else None
    if product is None or words is None or term is None:
        return None
    stage = product.fused_stage.stage
    axes = {axis.name: axis for axis in (*stage.axes, *stage.reduce)}
    rows = tuple(axis for axis in stage.axes if axis.name != product.column)
    depth = tuple(axes[at.name] for at in term.number.index[1:] if isinstance(at, Var))
    count, terms = (prod(axis.extent for axis in flat) for flat in (rows, depth))
    if len(depth) < 2 or count > MOST_GPU_ROWS or terms < LEAST_DEPTH:
        return None
    return SharedFold(
        *product.stages,
        term.number,
        rows,
        columns=(axes[product.column],),
        depth=depth,
        pitch=product.numbers.shape[-1],
        is_deep=False,
        is_product=True,
        words=words,
    )


def _panel(stage: Stage) -> Load | None:
    """The load of the most elements, if each of its indices is an axis of its own; None for other folds too."""
    reads = loads(stage.body)
    if not stage.reduce or stage.body.dtype is not DType.F32 or any(linear(e) is None for x in reads for e in x.index):
        return None
    extents = stage.extents
    panel = max(reads, key=lambda load: prod(extents[name] for name in free_vars(load)), default=None)
    if panel is None or panel.dtype not in FLOATS or not panel.index or not isinstance(panel.index[-1], Var):
        return None
    names = [e.name for e in panel.index if isinstance(e, Var)]
    is_plain = len(names) == len(set(names)) and all(isinstance(e, Var | Const) for e in panel.index)
    return panel if is_plain and {axis.name for axis in stage.reduce} <= set(names) else None


def _is_along(load: Load, last: str) -> bool:
    """Whether neighbours along an axis are neighbours in memory, or the same element."""
    return last not in free_vars(load) or is_contiguous(load.index, last)


def _last_along(axes: tuple[Axis, ...], last: str) -> tuple[Axis, ...]:
    """The axes in their order, but for one that comes last."""
    return tuple(sorted(axes, key=lambda axis: axis.name == last))
