"""Pieces: the stages of a task with their pointwise followers merged in, so that each is one loop nest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, loads, substitute, transform
from tunewright.graph.task import Stage, Task

FLOAT32 = frozenset({DType.F32})

NARROW_TOO = frozenset({DType.F32, DType.F16, DType.BF16})
"""Types of what is read that is folded in float32."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One loop nest: run `stage`'s loops, then write `finish` to `output[index]`.

    `finish` is over the axes of the stage; in it a load of `stage.output` stands for the value just computed.
    """

    stage: Stage
    output: str
    index: tuple[Expr, ...]
    finish: Expr

    @staticmethod
    def of(stage: Stage) -> Piece:
        """A stage alone: what it computes is written as it is."""
        return Piece(stage, stage.output, stage.index, Load(stage.output, stage.index, stage.body.dtype))

    def renamed(self, names: Mapping[str, str]) -> Piece:
        """The piece with some axes called otherwise."""
        fresh = {old: Var(new) for old, new in names.items()}
        stage = replace(
            self.stage,
            axes=tuple(replace(a, name=names.get(a.name, a.name)) for a in self.stage.axes),
            body=substitute(self.stage.body, fresh),
            reduce=tuple(replace(a, name=names.get(a.name, a.name)) for a in self.stage.reduce),
            index=tuple(substitute(e, fresh) for e in self.stage.index),
        )
        index = tuple(substitute(e, fresh) for e in self.index)
        return Piece(stage, self.output, index, substitute(self.finish, fresh))

    @property
    def reads(self) -> list[Load]:
        """Loads of other tensors, by the loops and by the finish."""
        return [x for x in loads(self.stage.body, self.finish) if x.tensor != self.stage.output]

    def is_result(self, node: Expr) -> bool:
        """Whether a part of `finish` stands for the value just computed."""
        return isinstance(node, Load) and node.tensor == self.stage.output

    def finished(self, value: Expr) -> Expr:
        """`finish` with this value as the one just computed."""
        return transform(self.finish, lambda node: value if self.is_result(node) else node)


def pieces(task: Task) -> list[Piece]:
    """The loop nests of a task, in order. A pointwise stage joins the piece whose result it alone reads, in place."""
    done: list[Piece] = []
    for position, stage in enumerate(task.stages):
        host = _host(task, position, done)
        if host is None:
            done.append(Piece.of(stage))
        else:
            done[host] = _merged(done[host], stage)
    return done


def _host(task: Task, position: int, done: list[Piece]) -> int | None:
    """Which piece the pointwise stage at `position` can be merged into."""
    stage = task.stages[position]
    wanted = {x.tensor for x in loads(stage.body)}
    if stage.reduce or wanted.isdisjoint(piece.output for piece in done):
        return None
    needed_later = {x.tensor for later in task.stages[position + 1 :] for x in loads(later.body)}
    needed_later |= {tensor.name for tensor in task.outputs}
    for number, piece in enumerate(done):
        if piece.output in needed_later or _axis_map(piece, stage) is None:
            continue
        made_after = {other.output for other in done[number + 1 :]}
        read_between = {x.tensor for other in done[number + 1 :] for x in other.reads}
        parts = sum(other.output == piece.output for other in done)
        if parts == 1 and piece.output not in read_between and not wanted & made_after:
            return number
    return None


def _axis_map(piece: Piece, stage: Stage) -> Mapping[str, Expr] | None:
    """Stage axis -> piece axis, if the stage reads the piece's output and nothing but the element in the same place."""
    reads = [x for x in loads(stage.body) if x.tensor == piece.output]
    if not reads:
        return None
    extents = {axis.name: axis.extent for axis in piece.stage.axes}
    mapping: dict[str, Expr] = {}
    for read in reads:
        for mine, theirs in zip(read.index, piece.index, strict=True):
            if isinstance(mine, Var) and isinstance(theirs, Var):
                if mapping.setdefault(mine.name, theirs) != theirs:
                    return None
            elif isinstance(mine, Var) or mine != theirs:
                return None
    same = {axis.name: axis.extent for axis in stage.axes} == {
        name: extents[axis.name] for name, axis in mapping.items() if isinstance(axis, Var)
    }
    distinct = len({str(axis) for axis in mapping.values()}) == len(mapping) == len(extents)
    return mapping if same and distinct else None


def _merged(piece: Piece, stage: Stage) -> Piece:
    mapping = _axis_map(piece, stage)
    assert mapping is not None
    index = tuple(substitute(e, mapping) for e in stage.index)
    if not piece.stage.reduce:
        body = _inline(substitute(stage.body, mapping), piece.output, piece.stage.body)
        return Piece.of(Stage(stage.output, piece.stage.axes, body, index=index))
    finish = _inline(substitute(stage.body, mapping), piece.output, piece.finish)
    return replace(piece, output=stage.output, index=index, finish=finish)


def _inline(body: Expr, tensor: str, value: Expr) -> Expr:
    return transform(body, lambda node: value if isinstance(node, Load) and node.tensor == tensor else node)
