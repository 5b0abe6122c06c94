"""Control flow between the kernels of a program: branches, loops, copies, and addresses that move with iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

ENDLESS = 2**63 - 1
"""The most iterations of a loop that has no trip count."""

COPY_BYTES = 1 << 16
"""Bytes that one iteration of a copy does."""

RING = 1
"""The mask of what changes between two buffers."""

ALL = -1
"""The mask of what moves on with every iteration."""

T = TypeVar("T")
U = TypeVar("U")


class ControlKind(StrEnum):
    """The kinds of steps beside kernels, and their operands. Branches and loops nest, each with its end."""

    COPY = "copy"  # to, source
    ROUTINE = "routine"  # what a function of sizes.ll, unique.ll, coupling.ll or rows.ll takes
    IF = "if"  # condition: what follows runs where it is true
    ELSE = "else"  # none: what follows runs where it is false
    END_IF = "end if"  # none
    STOP = "stop"  # none: the run ends, and fails
    LOOP = "loop"  # words, trip count or None, condition or None
    END_LOOP = "end loop"  # condition for another iteration, or None


class ProgramStop(RuntimeError):
    """A program came to a stop, for a reason that is told to people. What it computes is not there."""


@dataclass(frozen=True, slots=True)
class Control(Generic[T]):
    """A step beside kernels. Conditions are bytes, trip counts int64.

    `size` is what a copy copies, in bytes, or the most iterations of a loop that has no trip count; `loop` is the
    number of the loop, and `note` the reason of a stop. A routine is `note` the symbol of, with `size` iterations, and
    `numbers` behind its operands.
    """

    kind: ControlKind
    operands: tuple[T | None, ...] = ()
    loop: int = 0
    size: int = 0
    note: str = ""
    numbers: tuple[int, ...] = ()

    def map(self, function: Callable[[T], U]) -> Control[U]:
        """The step with other operands."""
        operands = tuple(None if operand is None else function(operand) for operand in self.operands)
        changed: Any = replace(self, operands=())
        return replace(changed, operands=operands)


@dataclass(frozen=True, slots=True)
class Move:
    """How an address moves with a loop: by ((iterations done + phase) & mask) * stride_bytes."""

    loop: int
    stride_bytes: int
    mask: int = ALL
    phase: int = 0
