"""Trees: an ensemble of trees of one depth, some rows through one tree after another.

    parallel chunk of rows
      totals[row] = identity
      groups, trees                     the outer loops: the tables of a tree stay in the first cache
        rows of the chunk               some at a time, and some trees: walks that do not wait for each other
          place = 2 place + (x[feature[place]] > threshold[place])      a step for each level, written out;
          place = child[place] + (x[feature[place]] > threshold[place])     a loop, where trees are not perfect
          totals[row] = fold(totals[row], value[place])
      outputs = epilogue(totals)

A walk has no branches, and walks take each step side by side, so the processor overlaps as many as it has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const, substitute
from tunewright.codegen.ir.ir import Alloc, Block, Buffer, For, Kernel, Scope, Stmt, Store
from tunewright.codegen.target import Target
from tunewright.graph.task import Index, Task, fold_value, identity

from ..buffers import kernel_around
from ..description import SchedulePoint
from ..patterns.tree_ensemble import TreeEnsemble, match_tree_ensemble
from ..schedule import Schedule
from ..sketch import PatternSketch
from ..space import Columns, Knob, Space, Tiling
from .loops.chunks import chunk_loop, chunk_number
from .loops.lower import plain_phase

TOTALS, PLACES = "totals", "places"

MOST_WALKS = 16
"""Walks that are written out side by side."""

CHUNKS = 16
"""Chunks of rows that there are by default, at least."""


class TreesSketch(PatternSketch[TreeEnsemble]):
    """Walks down trees without branches."""

    name = "tree_ensemble"
    version = 2

    def recognise(self, task: Task, target: Target) -> TreeEnsemble | None:
        return match_tree_ensemble(task)

    def offer(self, task: Task, ensemble: TreeEnsemble, target: Target) -> Space:
        rows, trees = ensemble.extents[0], ensemble.trees
        knobs = (
            Knob("chunk_rows", tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if n < 2 * rows)),
            Knob("rows", tuple(n for n in (1, 2, 4, 8, 16) if n <= rows)),
            Knob("unroll", tuple(n for n in (1, 2, 4, 8, 16) if n <= trees)),
        )
        chunk_rows = min(64, max(1, rows // CHUNKS))
        return self.space_of(
            knobs,
            legal=lambda columns: (
                (columns["rows"] * columns["unroll"] <= MOST_WALKS) & (columns["rows"] <= columns["chunk_rows"])
            ),
            tiling=lambda columns: _tiling(ensemble, columns),
            preferred={"chunk_rows": chunk_rows, "rows": min(8, chunk_rows), "unroll": max(1, 8 // chunk_rows)},
        )

    def write(self, task: Task, ensemble: TreeEnsemble, schedule: Schedule, target: Target) -> Kernel:
        walks = _Walks(ensemble, schedule["rows"], schedule["unroll"], target.lanes(4))
        rows = ensemble.extents[0]
        size = min(schedule["chunk_rows"], rows)
        chunks, rest = divmod(rows, size)
        main = [chunk_loop(chunks, walks.chunk(size, chunk_number(chunks) * size))]
        if rest:
            main.append(walks.chunk(rest, const(chunks * size)))
        return kernel_around(main, task, ensemble.stages, partial(plain_phase, target=target))

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield from point.say_start("Walks down trees without branches, chunks of rows through one tree after another.")
        yield from point.say_tile(point.tiles[0])


def _tiling(ensemble: TreeEnsemble, columns: Columns) -> Tiling:
    stage = ensemble.fused_stage.stage
    row, tree = ensemble.axes[0], stage.reduce[0].name
    inner = {row: columns["rows"], tree: columns["unroll"]}
    outer = {row: columns["chunk_rows"], tree: columns["unroll"] * 0 + ensemble.trees}
    return Tiling.of(stage, "", columns, (inner, outer), -(-ensemble.extents[0] // columns["chunk_rows"]))


class _Walks:
    """The walks of a chunk of rows."""

    def __init__(self, ensemble: TreeEnsemble, rows: int, trees: int, lanes: int) -> None:
        self._ensemble, self._rows, self._trees = ensemble, rows, trees
        self._dtype = ensemble.values.dtype
        self._combiner = ensemble.fused_stage.stage.combiner
        self._groups, self._width = ensemble.extents[1:]
        self._lanes = min(lanes * 4 // self._dtype.size_bytes, 1 << (self._width - 1).bit_length())
        self._targets = -(-self._width // self._lanes) * self._lanes  # with those that fill up the last vector

    def chunk(self, rows: int, first: Expr) -> Stmt:
        """All trees for so many rows."""
        shape = (rows, self._groups, self._targets)
        totals = Buffer(TOTALS, shape, self._dtype, Scope.SHARED)
        group = Var("group")
        steps: list[Stmt] = []
        whole, rest = divmod(self._ensemble.trees, self._trees)
        if whole:
            steps.append(
                For("tree", whole, self._row_tiles(rows, first, group, Var("tree") * self._trees, self._trees))
            )
        if rest:
            steps.append(self._row_tiles(rows, first, group, const(whole * self._trees), rest))
        walks = For("group", self._groups, Block(tuple(steps)))
        return Alloc(totals, Block((self._clear(shape), walks, self._finish(rows, first))))

    def _clear(self, shape: tuple[int, int, int]) -> Stmt:
        start = const(identity(self._combiner, self._dtype), self._dtype)
        at = Var("row"), Var("group"), self._vector(Var("target"))
        inner = For("target", self._targets // self._lanes, Store(TOTALS, at, start))
        return For("row", shape[0], For("group", shape[1], inner))

    def _vector(self, number: Expr) -> Expr:
        """The places of a vector of targets."""
        return Ramp(number * self._lanes, self._lanes) if self._lanes > 1 else number

    def _row_tiles(self, rows: int, first: Expr, group: Expr, tree: Expr, trees: int) -> Stmt:
        """So many trees for each tile of rows."""
        whole, rest = divmod(rows, self._rows)
        steps: list[Stmt] = []
        if whole:
            body = self._tile(Var("tile") * self._rows, first, self._rows, group, tree, trees)
            steps.append(For("tile", whole, body))
        if rest:
            steps.append(self._tile(const(whole * self._rows), first, rest, group, tree, trees))
        return Block(tuple(steps))

    def _tile(self, start: Expr, first: Expr, rows: int, group: Expr, tree: Expr, trees: int) -> Stmt:
        """Walk, then add what the leaves have to the totals."""
        places = Buffer(PLACES, (rows, trees), DType.I64, Scope.REGISTER)
        walks = [(const(row), const(number)) for row in range(rows) for number in range(trees)]
        ats = [(first + start + row, group, tree + number) for row in range(rows) for number in range(trees)]
        starts = [Store(PLACES, tuple(walk), const(0)) for walk in walks]
        sums = [self._add(start + walk[0], *at[1:], walk) for walk, at in zip(walks, ats, strict=True)]
        return Alloc(places, Block((*starts, *self._steps(walks, ats), *sums)))

    def _steps(self, walks: Sequence[Index], ats: Sequence[Index]) -> Iterator[Stmt]:
        """All walks a level down, one level after the other: a loop, where a step is the same in each level."""
        depth = self._ensemble.depth
        is_perfect = self._ensemble.walk.children is None
        for level in range(depth) if is_perfect else (0,):
            step = Block(tuple(self._step(level, walk, at) for walk, at in zip(walks, ats, strict=True)))
            yield step if is_perfect else For("level", depth, step)

    def _step(self, level: int, walk: Index, at: Index) -> Store:
        place = self._ensemble.walk.next_place(level, self._place(level, walk), at)
        return Store(PLACES, tuple(walk), place)

    def _place(self, level: int, walk: Index) -> Expr:
        """The place in a level that a walk came to."""
        return self._ensemble.walk.within(Load(PLACES, tuple(walk), DType.I64), level)

    def _add(self, row: Expr, group: Expr, tree: Expr, walk: Index) -> Stmt:
        """Fold the values of the leaf that a walk came to into the totals of its row."""
        values, rank = self._ensemble.values, self._ensemble.walk.tree_rank
        leaf = self._place(self._ensemble.depth, walk)
        whole, rest = divmod(self._width, self._lanes)
        steps: list[Stmt] = []
        for number, count in ((Var("target"), None), (const(whole), rest)):
            if count == 0 or (count is None and not whole):
                continue
            at = row, group, self._vector(number)
            index = (*(group, tree)[2 - rank :], leaf, at[2])
            value = Load(values.name, index[: len(values.shape)], values.dtype, count)
            store = Store(TOTALS, at, fold_value(self._combiner, Load(TOTALS, at, values.dtype), value))
            steps.append(store if count else For("target", whole, store))
        return Block(tuple(steps))

    def _finish(self, rows: int, first: Expr) -> Stmt:
        """The results from the totals."""
        ensemble, fused_stage = self._ensemble, self._ensemble.fused_stage
        index = Var("row"), Var("group"), Var("target")
        places = zip(ensemble.axes, (first + index[0], *index[1:]), strict=True)
        known = {name: place for name, place in places if name}
        value = fused_stage.apply_epilogue(Load(TOTALS, index, self._dtype))
        value, *at = (substitute(e, known) for e in (value, *fused_stage.index))
        store = Store(fused_stage.output, tuple(at), value)
        return For("row", rows, For("group", self._groups, For("target", self._width, store)))
