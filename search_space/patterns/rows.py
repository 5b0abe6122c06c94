"""Rows: fused stages that can run row by row, one after another, without leaving the cache.

Softmax and layer normalisation are several fused stages over the same rows: maximum, exponentials, sum, quotient. Where
each tensor between them is read in the row that writes it, one parallel loop over the rows holds them all, and these
tensors shrink to one row each.

A step maps the columns of a row, folds them, or computes one value a row. A pass goes once along each row and does all
that needs no fold of the same pass: softmax is a maximum, then the exponentials with their sum, then a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, free_vars, loads, transform
from tunewright.codegen.ir.ir import Buffer, Scope
from tunewright.graph.task import Axis, Stage, Task, identity

from .fused_stage import FusedStage, fuse_stages
from .vector_axis import vector_axes

ROW_LIMIT_BYTES = 256 * 1024
"""Most memory for the tensors of one row: they live on the stack and should stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Fused stages run together. `rows` are the axes of the loop around them, with equal names in all fused stages."""

    stages: tuple[FusedStage, ...]
    rows: tuple[Axis, ...] = ()
    locals: tuple[Buffer, ...] = ()

    @property
    def main(self) -> FusedStage:
        """The fused stage that evaluates its body most often."""
        return max(self.stages, key=lambda fused_stage: fused_stage.stage.points)

    @property
    def row_count(self) -> int:
        """Rounds of the loop around the fused stages."""
        return prod(axis.extent for axis in self.rows)

    @property
    def row_points(self) -> int:
        """Evaluations of all bodies in one row."""
        return sum(fused_stage.stage.points for fused_stage in self.stages) // self.row_count


def row_groups(task: Task, fused_stages: Sequence[FusedStage], most_bytes: float = ROW_LIMIT_BYTES) -> list[RowGroup]:
    """All fused stages, in order, as few groups as possible, with so many bytes for the tensors of a row at most."""
    groups: list[RowGroup] = []
    start = 0
    while start < len(fused_stages):
        for stop in range(_end_of_group(fused_stages, start), start, -1):
            group = row_group(task, fused_stages, start, stop, most_bytes)
            if group is not None:
                groups.append(group)
                start = stop
                break
    return groups


def _end_of_group(fused_stages: Sequence[FusedStage], start: int) -> int:
    """The end of the longest possible group from `start`: as many rows, and no tensor written twice.

    So the parts of a Concat of hundreds of tensors are looked at once each.
    """
    count = [axis.extent for axis in fused_stages[start].stage.axes[:1]]
    outputs: set[str] = set()
    for number, fused_stage in enumerate(fused_stages[start:], start):
        is_alike = [axis.extent for axis in fused_stage.stage.axes[:1]] == count
        if number > start and (not is_alike or fused_stage.output in outputs):
            return number
        outputs.add(fused_stage.output)
    return len(fused_stages)


def row_group(
    task: Task, fused_stages: Sequence[FusedStage], start: int, stop: int, most_bytes: float = ROW_LIMIT_BYTES
) -> RowGroup | None:
    """Fused stages `start` .. `stop` - 1 as one group, None if they can't be one; one alone has no rows."""
    inside = list(fused_stages[start:stop])
    if len(inside) == 1:
        return RowGroup((inside[0],))
    others = (*fused_stages[:start], *fused_stages[stop:])
    outside = {t.name for t in task.outputs} | {
        name for p in others for name in (p.output, *(x.tensor for x in p.reads))
    }
    outputs = [p.output for p in inside]
    inner = [name for name in outputs if name not in outside]
    passed = {x.tensor for p in inside for x in p.reads} & set(outputs)
    if len(set(outputs)) < len(outputs):
        return None
    for count in range(min(len(p.stage.axes) for p in inside), 0, -1):
        renamed = [p.rename_axes({axis.name: f"row{n}" for n, axis in enumerate(p.stage.axes[:count])}) for p in inside]
        rows = renamed[0].stage.axes[:count]
        if any(p.stage.axes[:count] != rows for p in renamed):
            continue
        dims = {p.output: indices for p in renamed if (indices := _row_dims(p.index, rows)) is not None}
        if all(name in dims and _is_row_local(renamed, name, dims[name], rows) for name in passed):
            own_dims = {name: dims[name] for name in inner if name in passed}
            return _localise(task, renamed, rows, own_dims, most_bytes)
    return None


def _row_dims(index: Sequence[Expr], rows: Sequence[Axis]) -> tuple[int, ...] | None:
    """Which dimension each row axis indexes; None if one does not, or not alone."""
    dims = []
    for axis in rows:
        where = [d for d, e in enumerate(index) if axis.name in free_vars(e)]
        if len(where) != 1 or index[where[0]] != Var(axis.name):
            return None
        dims.append(where[0])
    return tuple(dims)


def _is_row_local(fused_stages: Sequence[FusedStage], name: str, dims: tuple[int, ...], rows: Sequence[Axis]) -> bool:
    """Whether every read of the tensor is of the row being computed."""
    reads = [x for p in fused_stages for x in p.reads if x.tensor == name]
    return all(_row_dims(x.index, rows) == dims for x in reads)


def _localise(
    task: Task,
    fused_stages: Sequence[FusedStage],
    rows: tuple[Axis, ...],
    dims: Mapping[str, tuple[int, ...]],
    most_bytes: float,
) -> RowGroup | None:
    """The group with its inner tensors cut down to one row: without the dimensions `dims` of each."""
    buffers = []
    for name, drop in dims.items():
        tensor = task.tensor(name)
        shape = tuple(extent for d, extent in enumerate(tensor.shape) if d not in drop)
        buffers.append(Buffer(name, shape or (1,), tensor.dtype, Scope.SHARED))
    if sum(b.size_bytes for b in buffers) > most_bytes or prod(a.extent for a in rows) < 2:
        return None

    def cut(index: tuple[Expr, ...], name: str) -> tuple[Expr, ...]:
        if name not in dims:
            return index
        return tuple(e for d, e in enumerate(index) if d not in dims[name]) or (const(0),)

    def visit(node: Expr) -> Expr:
        return Load(node.tensor, cut(node.index, node.tensor), node.dtype) if isinstance(node, Load) else node

    def one_row(fused_stage: FusedStage) -> FusedStage:
        stage = replace(fused_stage.stage, body=transform(fused_stage.stage.body, visit))
        epilogue = transform(fused_stage.epilogue, lambda node: node if fused_stage.is_result(node) else visit(node))
        return FusedStage(stage, fused_stage.output, cut(fused_stage.index, fused_stage.output), epilogue)

    return RowGroup(tuple(map(one_row, fused_stages)), rows, tuple(buffers))


COLUMN = "column"
"""The axis of all steps beside the rows."""

ROUND = 8
"""Vectors in a round by default."""

LIVE_BYTES = 1 << 16
"""Live values of a group of rows at most: they should stay in the nearest caches."""


@dataclass(frozen=True, slots=True)
class RowStep:
    """A fused stage, and the pass that it belongs to. Others read it at the same column, or as a row's one value."""

    fused_stage: FusedStage
    level: int

    @property
    def is_map(self) -> bool:
        """Whether it computes a value for each column."""
        return any(axis.name == COLUMN for axis in self.fused_stage.stage.axes)

    @property
    def is_fold(self) -> bool:
        return bool(self.fused_stage.stage.reduce)

    @property
    def dtype(self) -> DType:
        """The type of the body, which a fold has too."""
        return self.fused_stage.stage.body.dtype

    @property
    def initial(self) -> Expr:
        """The initial value of a fold."""
        return Const(identity(self.fused_stage.stage.combiner, self.dtype), self.dtype)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A task's steps in order, over `rows` of so many `columns`, for vectors of so many `lanes`."""

    steps: tuple[RowStep, ...]
    rows: tuple[Axis, ...]
    columns: int
    lanes: int
    local: Mapping[str, Buffer]  # what only steps read: cut down to one row
    may_use_output: bool = True  # whether what a step hands on may wait in the output

    @property
    def row_count(self) -> int:
        return prod(axis.extent for axis in self.rows)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The choices of vectors in a round."""
        vectors = -(-self.columns // self.lanes)
        return tuple(sorted({n for n in (1, 2, 4, 8, 16) if n < vectors} | {min(vectors, 16)}))

    @property
    def groups(self) -> tuple[int, ...]:
        """The choices of rows in a group: one vector holds a value of each."""
        most = min(self.row_count, self.lanes) if self.is_batchable else 1
        return tuple(1 << n for n in range(most.bit_length()))

    def fits_cache(self, group: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the live values of groups of so many rows stay in the nearest caches."""
        return np.asarray((group == 1) | (group * self.live_bytes <= LIVE_BYTES))

    @property
    def pass_count(self) -> int:
        """Passes along each row."""
        return 1 + max(s.level for s in self.steps)

    @property
    def main(self) -> FusedStage:
        """The fused stage with the most work."""
        return max((s.fused_stage for s in self.steps), key=lambda p: (p.stage.points, p.stage.flops))

    @property
    def is_batchable(self) -> bool:
        """Whether values of several rows can be computed side by side: from values of the same rows alone."""
        row_values = {s.fused_stage.output for s in self.steps if not s.is_map} | {
            s.fused_stage.stage.output for s in self.steps
        }

        known = "of the row"  # no constant, with which what is read besides might be folded away

        def clear(node: Expr) -> Expr:
            is_known = isinstance(node, Load) and node.tensor in row_values
            return Load(known, (const(0),), node.dtype) if is_known else node

        fused_stages = (s.fused_stage for s in self.steps if not s.is_map)
        values = [e for p in fused_stages for e in (p.epilogue, *(() if p.stage.reduce else (p.stage.body,)))]
        remainders = [transform(e, clear) for e in values]
        return not free_vars(*remainders) and all(load.tensor == known for load in loads(*remainders))

    def output_host(self, name: str) -> FusedStage | None:
        """The fused stage whose output may store a step's values until it reads them, if there is one.

        It alone reads what is handed on, in the place that it writes; and from then on nothing else is read along a
        row, as the output may be the memory of an input. Vectors of rows that are not whole ones lie across two lines
        of the cache: they are not worth to be stored twice.
        """
        if not self.may_use_output or self.columns % self.lanes:
            return None
        maker = next(s for s in self.steps if s.fused_stage.output == name)
        later = [s for s in self.steps if s.level > maker.level]
        users = [s for s in later if any(x.tensor == name for x in s.fused_stage.reads)]
        if len(users) != 1 or not users[0].is_map or users[0].fused_stage.output in self.local:
            return None
        fused_stage = users[0].fused_stage
        steps = {s.fused_stage.output for s in self.steps}
        following = [s for s in self.steps[self.steps.index(maker) + 1 :] if s.level >= maker.level]
        column_reads = {x.tensor for s in following for x in s.fused_stage.reads if COLUMN in free_vars(*x.index)}
        axes = {axis.name for axis in self.rows} | {COLUMN}
        is_same_type = fused_stage.epilogue.dtype is maker.fused_stage.epilogue.dtype
        is_whole = {e.name for e in fused_stage.index if isinstance(e, Var)} == axes
        is_first_write = all(
            s.level >= users[0].level for s in self.steps if not s.is_map and s.fused_stage.output not in self.local
        )
        return fused_stage if is_same_type and is_whole and column_reads <= steps and is_first_write else None

    @property
    def reread_bytes(self) -> int:
        """Bytes of a row that passes after the first read, of inputs and of steps."""
        outputs = {s.fused_stage.output for s in self.steps}
        later = [x for s in self.steps if s.level for x in s.fused_stage.reads if COLUMN in free_vars(*x.index)]
        rows = {axis.name for axis in self.rows}
        inputs = {x.tensor: x.dtype for x in later if x.tensor not in outputs and rows <= set(free_vars(*x.index))}
        return self.live_bytes + sum(self.columns * dtype.size_bytes for dtype in inputs.values())

    @property
    def live_bytes(self) -> int:
        """Bytes of a row that steps keep for later passes."""
        maps = (s.fused_stage for s in self.steps if s.is_map and s.fused_stage.output in self.local)
        return sum(
            self.columns * p.epilogue.dtype.size_bytes
            for p in maps
            if self.is_live(p.output) and self.output_host(p.output) is None
        )

    def is_live(self, name: str) -> bool:
        """Whether a later pass reads a tensor that a step maps."""
        level = next(s.level for s in self.steps if s.fused_stage.output == name)
        return any(s.level > level and any(x.tensor == name for x in s.fused_stage.reads) for s in self.steps)


@lru_cache(maxsize=256)
def match_row_plan(task: Task, lanes: int, most_bytes: float = ROW_LIMIT_BYTES) -> RowPlan | None:
    """The task as steps over rows; None if it isn't made of such."""
    groups = row_groups(task, fuse_stages(task), most_bytes)
    return plan_rows(groups[0], lanes) if len(groups) == 1 else None


def in_output_order(task: Task) -> Task:
    """The task with the axes of stages that fold nothing in the order in which they index what is written."""

    def reorder(stage: Stage) -> Stage:
        names = [at.name for at in stage.index if isinstance(at, Var)]
        if stage.reduce or sorted(names) != sorted(axis.name for axis in stage.axes):
            return stage
        return replace(stage, axes=tuple(sorted(stage.axes, key=lambda axis: names.index(axis.name))))

    return replace(task, stages=tuple(map(reorder, task.stages)))


@lru_cache(maxsize=256)
def match_one_row(task: Task, lanes: int) -> RowPlan | None:
    """The task as steps over the one row that it has; None if it isn't made of such."""
    fused_stages = fuse_stages(task)
    outputs = {part.output for part in fused_stages}
    read_names = {x.tensor for part in fused_stages for x in part.reads}
    inner_names = sorted(outputs & read_names - {tensor.name for tensor in task.outputs})
    if len(outputs) < len(fused_stages):
        return None
    tensors = map(task.tensor, inner_names)
    local = tuple(Buffer(t.name, t.shape or (1,), t.dtype, Scope.SHARED) for t in tensors)
    return _plan(RowGroup(tuple(fused_stages), locals=local), lanes)


def plan_rows(group: RowGroup, lanes: int) -> RowPlan | None:
    """A group as steps over its rows; None if it has none, or isn't made of such."""
    return _plan(group, lanes) if group.rows else None


def _plan(group: RowGroup, lanes: int) -> RowPlan | None:
    rows = {axis.name for axis in group.rows}
    steps: list[RowStep] = []
    extents: set[int] = set()
    for fused_stage in group.stages:
        beside = [a for a in (*fused_stage.stage.axes, *fused_stage.stage.reduce) if a.name not in rows]
        best = [a for a in vector_axes(fused_stage, lanes) if a not in rows][:1]
        if len(beside) > 1 or best != [a.name for a in beside]:
            return None
        extents |= {axis.extent for axis in beside}
        fresh = fused_stage.rename_axes({axis.name: COLUMN for axis in beside})
        steps.append(RowStep(fresh, _level(fresh, steps)))
    local = {b.name: b for b in group.locals}
    if len(extents) != 1 or not _in_place(steps) or not any(s.is_fold for s in steps):
        return None
    return RowPlan(tuple(steps), group.rows, extents.pop(), lanes, local)


def _level(fused_stage: FusedStage, before: list[RowStep]) -> int:
    """The pass of a fused stage: after those whose folds it needs for each column."""
    steps = {s.fused_stage.output: s for s in before}
    makers = [steps[x.tensor] for x in fused_stage.reads if x.tensor in steps]
    along = any(axis.name == COLUMN for axis in (*fused_stage.stage.axes, *fused_stage.stage.reduce))
    return max((s.level + (along and not s.is_map) for s in makers), default=0)


def _in_place(steps: list[RowStep]) -> bool:
    """Whether each step writes a tensor of its own, which others read at the same index."""
    indices = {s.fused_stage.output: s.fused_stage.index for s in steps}
    reads = [x for s in steps for x in s.fused_stage.reads]
    return len(indices) == len(steps) and all(x.index == indices.get(x.tensor, x.index) for x in reads)
