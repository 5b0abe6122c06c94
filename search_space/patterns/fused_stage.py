"""Fused stages: the stages of a task with their pointwise followers, each one loop nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, loads, substitute, transform
from tunewright.graph.task import Stage, Task

FLOAT32, FLOAT64 = frozenset({DType.F32}), frozenset({DType.F64})

FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})
"""Types that are folded in float32."""


@dataclass(frozen=True, slots=True)
class FusedStage:
    """One loop nest: run `stage`'s loops, then write `epilogue` to `output[index]`.

    `epilogue` is over the axes of the stage; in it a load of `stage.output` stands for the value just computed.
    """

    stage: Stage
    output: str
    index: tuple[Expr, ...]
    epilogue: Expr

    @staticmethod
    def of(stage: Stage, index: tuple[Expr, ...] | None = None) -> FusedStage:
        """A stage alone, without an epilogue, that is written at an index, or as the stage says."""
        result = Load(stage.output, stage.index, stage.body.dtype)
        return FusedStage(stage, stage.output, stage.index if index is None else index, result)

    def rename_axes(self, names: Mapping[str, str]) -> FusedStage:
        """The fused stage with some axes renamed."""
        fresh = {old: Var(new) for old, new in names.items()}
        stage = replace(
            self.stage,
            axes=tuple(replace(a, name=names.get(a.name, a.name)) for a in self.stage.axes),
            body=substitute(self.stage.body, fresh),
            reduce=tuple(replace(a, name=names.get(a.name, a.name)) for a in self.stage.reduce),
            index=tuple(substitute(e, fresh) for e in self.stage.index),
        )
        index = tuple(substitute(e, fresh) for e in self.index)
        return FusedStage(stage, self.output, index, substitute(self.epilogue, fresh))

    @property
    def reads(self) -> list[Load]:
        """Loads of other tensors, by the loops and by the epilogue."""
        return [x for x in loads(self.stage.body, self.epilogue) if x.tensor != self.stage.output]

    def is_result(self, node: Expr) -> bool:
        """Whether a part of `epilogue` stands for the value just computed."""
        return isinstance(node, Load) and node.tensor == self.stage.output

    def apply_epilogue(self, value: Expr) -> Expr:
        """`epilogue` with this value as the one just computed."""
        return transform(self.epilogue, lambda node: value if self.is_result(node) else node)


def fuse_stages(task: Task) -> list[FusedStage]:
    """Fuse the stages of a task, in order: a pointwise stage joins the one whose result it alone reads, in place."""
    fused_stages: list[FusedStage] = []
    for position, stage in enumerate(task.stages):
        host = _host(task, position, fused_stages)
        if host is None:
            fused_stages.append(FusedStage.of(stage))
        else:
            fused_stages[host] = _merge(fused_stages[host], stage)
    return fused_stages


def _host(task: Task, position: int, fused_stages: list[FusedStage]) -> int | None:
    """Which fused stage the pointwise stage at `position` can be merged into."""
    stage = task.stages[position]
    tensors = {x.tensor for x in loads(stage.body)}
    if stage.reduce or tensors.isdisjoint(fused_stage.output for fused_stage in fused_stages):
        return None
    needed_later = {x.tensor for later in task.stages[position + 1 :] for x in loads(later.body)}
    needed_later |= {tensor.name for tensor in task.outputs}
    for number, fused_stage in enumerate(fused_stages):
        if fused_stage.output in needed_later or _axis_map(fused_stage, stage) is None:
            continue
        made_after = {other.output for other in fused_stages[number + 1 :]}
        read_between = {x.tensor for other in fused_stages[number + 1 :] for x in other.reads}
        parts = sum(other.output == fused_stage.output for other in fused_stages)
        if parts == 1 and fused_stage.output not in read_between and not tensors & made_after:
            return number
    return None


def _axis_map(fused_stage: FusedStage, stage: Stage) -> Mapping[str, Expr] | None:
    """Stage axis -> axis of the fused stage, if the stage reads its output at the same element only."""
    reads = [x for x in loads(stage.body) if x.tensor == fused_stage.output]
    if not reads:
        return None
    extents = {axis.name: axis.extent for axis in fused_stage.stage.axes}
    mapping: dict[str, Expr] = {}
    for read in reads:
        for read_at, written_at in zip(read.index, fused_stage.index, strict=True):
            if isinstance(read_at, Var) and isinstance(written_at, Var):
                if mapping.setdefault(read_at.name, written_at) != written_at:
                    return None
            elif isinstance(read_at, Var) or read_at != written_at:
                return None
    same = {axis.name: axis.extent for axis in stage.axes} == {
        name: extents[axis.name] for name, axis in mapping.items() if isinstance(axis, Var)
    }
    distinct = len({str(axis) for axis in mapping.values()}) == len(mapping) == len(extents)
    return mapping if same and distinct else None


def _merge(fused_stage: FusedStage, stage: Stage) -> FusedStage:
    mapping = _axis_map(fused_stage, stage)
    assert mapping is not None
    index = tuple(substitute(e, mapping) for e in stage.index)
    if not fused_stage.stage.reduce:
        body = _inline(substitute(stage.body, mapping), fused_stage.output, fused_stage.stage.body)
        return FusedStage.of(Stage(stage.output, fused_stage.stage.axes, body, index=index))
    epilogue = _inline(substitute(stage.body, mapping), fused_stage.output, fused_stage.epilogue)
    return replace(fused_stage, output=stage.output, index=index, epilogue=epilogue)


def _inline(body: Expr, tensor: str, value: Expr) -> Expr:
    return transform(body, lambda node: value if isinstance(node, Load) and node.tensor == tensor else node)


def independent_groups(fused_stages: Sequence[FusedStage]) -> list[tuple[FusedStage, ...]]:
    """Neighbouring fused stages that may run at the same time, in groups as long as can be.

    None reads what another of its group writes. Those that write to one tensor write to places apart, as all stages do.
    """
    groups: list[tuple[FusedStage, ...]] = []
    for fused_stage in fused_stages:
        read_names = {load.tensor for load in (*fused_stage.reads, *loads(*fused_stage.index))}
        if groups and read_names.isdisjoint(part.output for part in groups[-1]):
            groups[-1] = (*groups[-1], fused_stage)
        else:
            groups.append((fused_stage,))
    return groups
