"""Tree ensemble: a walk down each of many trees of one depth, and what their leaves have, combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Op, const, loads, op, walk
from tunewright.graph.task import Index, Stage, Task, Tensor
from tunewright.graph.tree_walk import TreeWalk

from .fused_stage import FusedStage, fuse_stages


@dataclass(frozen=True, slots=True)
class TreeEnsemble:
    """The fused stage of a task that combines leaves, and how it comes to them."""

    before: tuple[FusedStage, ...]
    fused_stage: FusedStage
    after: tuple[FusedStage, ...]
    walk: TreeWalk
    values: Tensor
    depth: int

    @property
    def extents(self) -> tuple[int, int, int]:
        """Rows, groups of trees, and values of a leaf."""
        rank = self.walk.tree_rank
        rows = self.walk.x.shape[0] if len(self.walk.x.shape) == 2 else 1
        targets = self.values.shape[rank + 1] if len(self.values.shape) > rank + 1 else 1
        return rows, self.values.shape[0] if rank == 2 else 1, targets

    @property
    def trees(self) -> int:
        """Trees of a group."""
        return self.values.shape[self.walk.tree_rank - 1]

    @property
    def stages(self) -> tuple[tuple[FusedStage, ...], FusedStage, tuple[FusedStage, ...]]:
        """The fused stages of the task: those before, this one, those after; without the walk."""
        return self.before, self.fused_stage, self.after

    @property
    def axes(self) -> tuple[str, str, str]:
        """The axes of rows, groups and targets; "" for one of one element."""
        names = iter(axis.name for axis in self.fused_stage.stage.axes)
        rows, groups, targets = (next(names, "") if extent > 1 else "" for extent in self.extents)
        return rows, groups, targets


@lru_cache(maxsize=256)
def match_tree_ensemble(task: Task) -> TreeEnsemble | None:
    """The task's ensemble, as `graph.ops` defines it; None if there is none."""
    made = {stage.output: stage for stage in task.stages}
    fused_stages = fuse_stages(task)
    for number, fused_stage in enumerate(fused_stages):
        stage = fused_stage.stage
        leaf = _leaf(task, stage)
        if leaf is None:
            continue
        values = task.tensor(stage.body.tensor) if isinstance(stage.body, Load) else None
        depth, tree_walk = _depth_and_walk(task, made, leaf)
        steps = [k for k, other in enumerate(fused_stages) if other.output == leaf.tensor]
        readers = sum(load.tensor == leaf.tensor for other in fused_stages for load in other.reads)
        if values is None or tree_walk is None or len(steps) != 1 or readers != 1:
            return None
        rank = tree_walk.tree_rank
        if values.shape[:rank] != tree_walk.features.shape[:rank] or values.shape[rank] != 1 << tree_walk.bits(depth):
            return None
        place = tree_walk.read_place(task.tensor(leaf.tensor), depth, leaf.index)
        if not rank or stage.body.children[rank] != place:
            return None
        before = tuple(other for k, other in enumerate(fused_stages[:number]) if k not in steps)
        return TreeEnsemble(before, fused_stage, tuple(fused_stages[number + 1 :]), tree_walk, values, depth)
    return None


def _leaf(task: Task, stage: Stage) -> Load | None:
    """The place of the leaf that a stage reads the value of; None if it does not fold such values."""
    body = stage.body
    if not stage.reduce or not isinstance(body, Load) or not task.tensor(body.tensor).constant:
        return None
    places = loads(*body.index)
    return places[0] if len(places) == 1 and places[0].dtype is DType.I32 else None


def _depth_and_walk(task: Task, made: Mapping[str, Stage], leaf: Load) -> tuple[int, TreeWalk | None]:
    """The number of levels before a leaf, and the walk; None if that is none."""
    steps: list[Stage] = []
    name = leaf.tensor
    while name in made:
        steps.append(made[name])
        previous = [load.tensor for load in loads(steps[-1].body) if load.tensor in made and load.dtype is DType.I32]
        name = previous[0] if previous else ""
    steps.reverse()
    tree_walk = _walk(task, steps[0].body) if steps else None
    if tree_walk is None:
        return 0, None
    for level, step in enumerate(steps):
        places = task.tensor(steps[level - 1].output) if level else None
        if step.reduce or step.body != _step(tree_walk, level, places, step.index):
            return 0, None
    return len(steps), tree_walk


def _step(tree_walk: TreeWalk, level: int, places: Tensor | None, index: Index) -> Expr:
    """The body of a level; dimensions of one element are left out of its index, but for levels and leaves."""
    rank = tree_walk.tree_rank
    first = len(index) - rank
    at = [*(index[:first] or [const(0)]), *[const(0)] * (2 - rank), *index[first:]]
    place = tree_walk.next_place(level, tree_walk.read_place(places, level, index), at)
    return op("cast", place, dtype=DType.I32)


def _walk(task: Task, first: Expr) -> TreeWalk | None:
    """The tensors that the first level of a walk reads."""
    for part in walk(first):
        match part:
            case Op("le", (Load() as value, Load() as threshold)):
                features = [load for load in loads(*value.index) if load.dtype is not DType.I64]
                others = [load for load in loads(first) if load not in (value, threshold, *features)]
                x, *tables = [task.tensor(load.tensor) for load in (value, *features, threshold, *others)]
                if len(features) == 1 and len(others) <= 1 and not x.constant and all(t.constant for t in tables):
                    return TreeWalk(x, *tables)
    return None
