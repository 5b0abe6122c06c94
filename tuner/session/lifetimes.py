"""What steps of control flow read and write, and what has to live through loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tunewright.codegen.runtime.plan import Access
from tunewright.graph.control.steps import Branch, ControlStep, LoopEnd, LoopStart, MovingView, Routine, TensorCopy


def control_access(step: ControlStep) -> Access:
    """The tensors that a step of control flow touches."""
    match step:
        case Branch(condition):
            return Access((condition,), ())
        case LoopStart(_, words, trips, condition):
            return Access(tuple(filter(None, (trips, condition))), (words,))
        case LoopEnd(_, condition):
            return Access(tuple(filter(None, (condition,))), ())
        case TensorCopy(source, output):
            return Access((source,), (output,))
        case Routine(inputs=inputs, outputs=outputs):
            return Access(inputs, outputs)
        case _:
            return Access((), ())


def keep_through_loops(
    steps: Sequence[object],
    accesses: Sequence[Access],
    moving_views: Iterable[MovingView],
    root: Callable[[str], str],
) -> list[Access]:
    """The accesses of steps, where the end of a loop reads all that its iterations share.

    That is what was there before the loop, and what it stacks up, which its start writes. The plan of the memory sees
    one iteration; without this, a later step of it might take the memory that an earlier one reads in the next.
    """
    result = list(accesses)
    stacked: dict[int, list[str]] = {}
    for view in moving_views:
        stacked.setdefault(view.loop, []).append(view.of)
    for first, last, loop in _spans(steps):
        before = _touched(result[: first + 1], root)
        new = tuple(name for name in stacked.get(loop, ()) if root(name) not in before)
        result[first] = replace(result[first], writes=(*result[first].writes, *new))
        before = {**before, **_touched(result[first : first + 1], root)}
        shared = [name for at, name in _touched(result[first : last + 1], root).items() if at in before]
        result[last] = replace(result[last], reads=tuple(dict.fromkeys((*result[last].reads, *shared))))
    return result


def _spans(steps: Sequence[object]) -> list[tuple[int, int, int]]:
    """The places of the start and end of each loop, and its number; outer loops before those in them."""
    starts: list[int] = []
    spans = []
    for place, step in enumerate(steps):
        match step:
            case LoopStart():
                starts.append(place)
            case LoopEnd(number):
                spans.append((starts.pop(), place, number))
    return sorted(spans)


def _touched(accesses: Iterable[Access], root: Callable[[str], str]) -> Mapping[str, str]:
    """The roots of tensors that are touched, each with one of these tensors."""
    return {root(name): name for access in accesses for name in (*access.reads, *access.writes)}
