"""Task families: tasks of one form that differ in some whole numbers, such as one model's at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, const, rebuild
from tunewright.codegen.expr.symbolic import Trace

from .task import Axis, Stage, Task, Tensor

_serial = count()


class SymbolicTask(Task):
    """A task in which some numbers are symbolic. It is equal to no other, and is kept nowhere."""

    @property
    def key(self) -> str:
        """A name for caches of this process."""
        known: str | None = self.__dict__.get("_name")
        if known is None:
            known = self.__dict__["_name"] = f"symbolic {next(_serial)}"
        return known

    family = key


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """The numbers of a task that may differ: those that did between two tasks. Where both were alike, so are they here.

    `places` has the number of a symbol, or -1, for each whole number of the task in order.
    """

    task: Task
    numbers: tuple[int, ...]
    others: tuple[object, ...]  # literals that are no whole numbers
    places: tuple[int, ...]
    symbols: int

    @staticmethod
    def of(one: Task, other: Task) -> TaskFamily | None:
        """The family of two tasks; None where they are of different forms, or differ in constants or other literals."""
        if one.family != other.family or one.key == other.key or _constants(one) != _constants(other):
            return None
        walk, other_walk = _read(one), _read(other)
        if walk.others != other_walk.others or len(walk.numbers) != len(other_walk.numbers):
            return None
        symbols: dict[tuple[int, int], int] = {}
        pairs = zip(walk.numbers, other_walk.numbers, strict=True)
        places = tuple(-1 if a == b else symbols.setdefault((a, b), len(symbols)) for a, b in pairs)
        return TaskFamily(one, tuple(walk.numbers), tuple(walk.others), places, len(symbols))

    @property
    def differences(self) -> int:
        """Of how many numbers it leaves the value open."""
        return sum(place >= 0 for place in self.places)

    def match(self, task: Task) -> tuple[int, ...] | None:
        """The values of the symbols that make the task of this family; None where it is none of it."""
        if task.family != self.task.family:
            return None
        walk = _read(task)
        if tuple(walk.others) != self.others or len(walk.numbers) != len(self.numbers):
            return None
        values: dict[int, int] = {}
        for number, own, place in zip(walk.numbers, self.numbers, self.places, strict=True):
            if (number != own) if place < 0 else (values.setdefault(place, number) != number):
                return None
        return tuple(values[place] for place in range(self.symbols))

    def symbolic(self, values: Sequence[int]) -> tuple[SymbolicTask, Trace]:
        """The task with symbols in place of these values, and their trace."""
        trace, symbols = Trace.of(values)
        numbers = [own if place < 0 else symbols[place] for own, place in zip(self.numbers, self.places, strict=True)]
        given = iter(numbers)
        task = _NumberWalk(lambda _: next(given)).task(self.task)
        return SymbolicTask(task.op, task.inputs, task.outputs, task.temporaries, task.stages, task.is_decisive), trace


def _constants(task: Task) -> list[Tensor]:
    return [tensor for tensor in task.inputs if tensor.constant]


def _read(task: Task) -> _NumberWalk:
    """All numbers of a task."""
    walk = _NumberWalk(lambda number: number)
    walk.task(task)
    return walk


@dataclass(slots=True)
class _NumberWalk:
    """Goes through the numbers of a task, always in the same order, and puts others in their place."""

    fresh: Callable[[int], int]
    numbers: list[int] = field(default_factory=list)
    others: list[object] = field(default_factory=list)

    def task(self, task: Task) -> Task:
        groups = (task.inputs, task.outputs, task.temporaries)
        inputs, outputs, temporaries = (tuple(map(self._tensor, group)) for group in groups)
        stages = tuple(map(self._stage, task.stages))
        return Task(task.op, inputs, outputs, temporaries, stages, task.is_decisive)

    def _number(self, number: int) -> int:
        self.numbers.append(number)
        return self.fresh(number)

    def _tensor(self, tensor: Tensor) -> Tensor:
        return replace(tensor, shape=tuple(map(self._number, tensor.shape)))

    def _axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(Axis(axis.name, self._number(axis.extent)) for axis in axes)

    def _stage(self, stage: Stage) -> Stage:
        axes, reduce = self._axes(stage.axes), self._axes(stage.reduce)
        index = tuple(map(self._expr, stage.index))
        return Stage(stage.output, axes, self._expr(stage.body), reduce, stage.combiner, index)

    def _expr(self, node: Expr) -> Expr:
        if isinstance(node, Const):
            if node.dtype is DType.I64:
                return const(self._number(int(node.value)))
            self.others.append((repr(node.value), node.dtype))
            return node
        return rebuild(node, tuple(map(self._expr, node.children))) if node.children else node
