"""What of a task's trials and of a job's progress may be removed, without a database."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple


class WorkingTrial(NamedTuple):
    """A trial of a task on a target that was timed here and works."""

    id: int
    job_id: int | None
    ordinal: int | None
    schedule_key: str
    sketch: str
    sketch_version: int
    median_s: float
    created_at: datetime


def slower_trials(trials: Iterable[WorkingTrial], compared_at: Iterable[datetime], best: int) -> list[WorkingTrial]:
    """The trials of a task that are slower than its `best` ones, in order of storing.

    So many stay of each version of a sketch, as lookups pass over others, and of all between two confirmations: these
    supersede what came before them, and may be taken back.
    """
    moments = sorted(compared_at)
    groups: dict[tuple[str, int, int], list[WorkingTrial]] = {}
    for trial in trials:
        place = trial.sketch, trial.sketch_version, bisect_left(moments, trial.created_at)
        groups.setdefault(place, []).append(trial)
    slower: list[WorkingTrial] = []
    for group in groups.values():
        times_s = sorted(trial.median_s for trial in group)
        if len(group) > best:
            slower += (trial for trial in group if trial.median_s > times_s[best - 1])  # equal ones stay together
    return sorted(slower)


def spared_progress(told: Sequence[tuple[int, bool]], most: int) -> set[int]:
    """The numbers of a job's progress that stay, at most so many.

    `told` has the number of each, ascending, and whether it told what more budget would bring. Readers sample the
    progress of a long job by numbers that a power of two divides. So those stay that one divides, and for each smaller
    one the oldest, the newest, and the newest of those that told it: where curves begin and end and what a page says
    last is the same as before. Removing some of the others first changes none of that.
    """
    numbers = [number for number, _ in told]
    ends = _outermost(numbers, min) | _outermost(numbers, max) | _outermost((n for n, tells in told if tells), max)
    step = 1
    while len(spared := ends | {number for number in numbers if number % step == 0}) > most:
        step *= 2
    return spared


def spared_evenly(numbers: Sequence[int], most: int) -> set[int]:
    """Of ascending numbers at most so many, two or more, evenly by their places: the first and the last among them."""
    if len(numbers) <= most:
        return set(numbers)
    return {numbers[place * (len(numbers) - 1) // (most - 1)] for place in range(most)}


def _outermost(numbers: Iterable[int], outer: Callable[[int, int], int]) -> set[int]:
    """For each power of two the outermost number that it divides."""
    by_divisor: dict[int, int] = {}
    for number in numbers:
        divisor = number & -number
        by_divisor[divisor] = outer(by_divisor.get(divisor, number), number)
    divisors = sorted(by_divisor, reverse=True)  # what a power divides, the smaller ones divide too
    return set(accumulate((by_divisor[divisor] for divisor in divisors), outer))


def in_ranges(numbers: Sequence[int], size: int) -> list[tuple[int, int]]:
    """The ascending numbers in ranges of at most `size` of them: the first and the last of each."""
    return [(numbers[start], numbers[min(start + size, len(numbers)) - 1]) for start in range(0, len(numbers), size)]
