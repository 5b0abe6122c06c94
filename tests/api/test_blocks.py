"""Runs of steps that repeat each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.api.dashboard.job import blocks
from tunewright.api.dashboard.job.blocks import LEAST_BESIDE, LEAST_REPEATS, WORK, StepBlock, _same, find_blocks


def chain(count: int) -> list[tuple[int, ...]]:
    return [(place - 1,) if place else () for place in range(count)]


def check(labels: list[str], sources: list[tuple[int, ...]]) -> list[StepBlock]:
    """The blocks, which are all of the steps in order, and repeat what they say they repeat."""
    found = find_blocks(labels, sources)
    assert found == find_blocks(labels, sources)
    assert [block.stop for block in found[:-1]] == [block.start for block in found[1:]]
    assert not labels or (found[0].start, found[-1].stop) == (0, len(labels))
    for block in found:
        assert block.repeats == 1 or block.repeats >= LEAST_REPEATS
        assert block.length == 1 or block.repeats > 1
        starts = range(block.start, block.stop, block.length)
        for start, following in pairwise(starts):
            for n in range(block.length):
                assert labels[start + n] == labels[following + n]
                assert [one - start for one in sources[start + n] if one >= start] == [
                    one - following for one in sources[following + n] if one >= following
                ]
    return found


@given(st.lists(st.sampled_from("ab"), max_size=60), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_blocks_are_all_of_the_steps(labels: list[str], choice: random.Random) -> None:
    sources = [tuple(sorted(choice.sample(range(n), min(n, choice.randrange(3))))) for n in range(len(labels))]
    check(labels, sources)


def test_layers_are_one_block() -> None:
    labels = ["in", *"abcde" * 12, "out"]
    assert check(labels, chain(len(labels))) == [StepBlock(0, 1), StepBlock(1, 5, 12), StepBlock(61, 1)]


def test_the_same_one_after_the_other_is_a_block() -> None:
    assert check(["a"] * 32, chain(32)) == [StepBlock(0, 1, 32)]


def test_twice_is_no_block() -> None:
    assert len(check(list("abcabc"), chain(6))) == 6


def test_what_reads_otherwise_within_is_another_block() -> None:
    sources = chain(15)
    sources[11] = (9, 10)  # in the fourth repetition alone
    assert check(list("abc" * 5), sources)[0] == StepBlock(0, 3, 3)


def test_what_reads_from_before_the_block_makes_no_difference() -> None:
    sources = [(), *[tuple(sorted({0, place})) for place in range(12)]]
    assert check(["m", *"abc" * 4], sources) == [StepBlock(0, 1), StepBlock(1, 3, 4)]


def test_few_that_stand_beside_each_other_are_shown_one_by_one() -> None:
    for count, lines in ((LEAST_BESIDE - 1, LEAST_BESIDE), (LEAST_BESIDE, 2)):
        assert len(check(["in", *"a" * count], [(), *[(0,)] * count])) == lines


def test_hostile_steps_do_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of steps looks like a block, but none reads alike: not all of them are looked into."""
    work: list[int] = []

    def same(block: StepBlock, sources: Sequence[Sequence[int]]) -> StepBlock | None:
        work.append(block.length * block.repeats)
        return _same(block, sources)

    monkeypatch.setattr(blocks, "_same", same)
    choice, count = random.Random(0), 2000
    sources: list[tuple[int, ...]] = [(choice.randrange(max(0, n - 3), n),) if n else () for n in range(count)]
    check(["a", "b"] * (count // 2), sources)
    assert len(work) > 2 and sum(work) <= 2 * (WORK + 1) * count  # `check` looks twice
