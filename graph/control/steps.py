"""Steps of control flow, between the calls of tasks: what `If`, `Loop` and `Scan` become.

The steps of bodies stand in one list with those around them, over tensors with names of their own:

    Branch(condition), steps of one branch, Otherwise(), steps of the other, EndBranch()
    Stop(reason) instead of the steps of a branch that no operands of these sizes fit
    LoopStart(loop), steps of the body, LoopEnd(loop)

A value that a loop carries on changes between two buffers, its *ring*: the body reads one and writes the other. What a
loop stacks up is written to its place right away.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Node

WORDS = 4
"""The int64 words that a loop needs for itself. The first is the number of the iteration."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What follows is done where the condition is true."""

    condition: str


@dataclass(frozen=True, slots=True)
class Otherwise:
    """What follows is done where the condition is false."""


@dataclass(frozen=True, slots=True)
class EndBranch:
    """The end of both branches."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The run fails here, for a reason that is told to people."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoopStart:
    """What follows is done again and again while the condition is true, at most as often as the trip count says.

    `condition` and `trips` are "" where there is none; `count` is the number of iterations, where it is known. `words`
    is the tensor of the loop's own WORDS.
    """

    number: int
    words: str
    trips: str = ""
    condition: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """The end of a loop's body, which made the condition for another iteration ("": that is true)."""

    number: int
    condition: str = ""


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """The output becomes a copy of the source, as it is in memory."""

    source: str
    output: str


@dataclass(frozen=True, slots=True)
class Routine:
    """A function of the runtime for what no stages say, of so many iterations.

    It takes the memory of inputs and outputs, then the numbers. `node` is what it computes.
    """

    symbol: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    iterations: int
    numbers: tuple[int, ...]
    node: Node


@dataclass(frozen=True, slots=True)
class MovingView:
    """No compute: `output` is memory of `of`, another part of it in each iteration of a loop.

    It begins at an offset and iteration * stride_bytes; in a ring at ((iteration + phase) modulo 2) * stride_bytes.
    """

    of: str
    output: str
    loop: int
    stride_bytes: int
    offset_bytes: int = 0
    is_ring: bool = False
    phase: int = 0


ControlStep = Branch | Otherwise | EndBranch | Stop | LoopStart | LoopEnd | TensorCopy | Routine | MovingView
