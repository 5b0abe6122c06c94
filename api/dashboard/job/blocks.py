"""Blocks: runs of steps that repeat each other, such as the layers of a transformer, found in a list of steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_REPEATS = 3
"""Fewer repetitions are shown one by one."""

LEAST_BESIDE = 8
"""Repetitions that do not read from each other are shown one by one where there are fewer."""

LONGEST_BLOCK = 400
"""Steps of a block."""

WORK = 20
"""Steps that are compared, for each that there is: what hostile models would need beyond that is not folded."""


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Steps from `start` on: `length` of them, and then the same again, `repeats` times in all."""

    start: int
    length: int
    repeats: int = 1

    @property
    def stop(self) -> int:
        """The step behind the last."""
        return self.start + self.length * self.repeats


def find_blocks(labels: Sequence[Hashable], sources: Sequence[Sequence[int]]) -> list[StepBlock]:
    """The steps as blocks, in order; most are of one step.

    Those of a block have equal labels, and read alike from each other, each time. At each step the block that takes in
    most is chosen, of equal ones the shortest.
    """
    covered, lengths = _candidates(labels)
    budget = WORK * len(labels)
    blocks: list[StepBlock] = []
    place = 0
    while place < len(labels):
        block = StepBlock(place, 1)
        if covered[place] and budget > 0:
            wanted = StepBlock(place, int(lengths[place]), int(covered[place] // lengths[place]))
            budget -= wanted.length * wanted.repeats
            block = _same(wanted, sources) or block
        blocks.append(block)
        place = block.stop
    return blocks


def _candidates(labels: Sequence[Hashable]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each step how many the best block from there on takes in, by its labels, and the length of that block."""
    count = len(labels)
    numbers: dict[Hashable, int] = {}
    ids = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int64)
    covered, lengths = np.zeros(count, np.int64), np.ones(count, np.int64)
    places = np.arange(count)
    for length in range(1, min(LONGEST_BLOCK, count // LEAST_REPEATS) + 1):
        differs = np.ones(count, bool)
        differs[: count - length] = ids[:-length] != ids[length:]
        # The first step from each on that is not repeated so far behind it.
        ends = np.minimum.accumulate(np.where(differs, places, count)[::-1])[::-1]
        repeats = (ends - places) // length + 1
        takes = np.where(repeats >= LEAST_REPEATS, repeats * length, 0)
        is_better = takes > covered
        covered[is_better], lengths[is_better] = takes[is_better], length
    return covered, lengths


def _same(block: StepBlock, sources: Sequence[Sequence[int]]) -> StepBlock | None:
    """The block as far as its repetitions read alike from within; None where too few do."""

    def inside(repetition: int) -> list[list[int]]:
        start = block.start + repetition * block.length
        return [[one - start for one in sources[start + n] if one >= start] for n in range(block.length)]

    first = inside(0)
    repeats = next((n for n in range(1, block.repeats) if inside(n) != first), block.repeats)
    is_chain = any(
        one >= block.start for n in range(block.length) for one in sources[block.start + block.length + n]
        if one < block.start + block.length
    )  # fmt: skip
    return (
        StepBlock(block.start, block.length, repeats)
        if repeats >= (LEAST_REPEATS if is_chain else LEAST_BESIDE)
        else None
    )
