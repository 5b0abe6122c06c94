"""Runs of steps that repeat each other."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.api.dashboard.job.blocks import LEAST_BESIDE, LEAST_REPEATS, Block, find_blocks


def chain(count: int) -> list[tuple[int, ...]]:
    return [(place - 1,) if place else () for place in range(count)]


def check(labels: list[str], sources: list[tuple[int, ...]]) -> list[Block]:
    """The blocks, which are all of the steps in order, and repeat what they say they repeat."""
    blocks = find_blocks(labels, sources)
    assert blocks == find_blocks(labels, sources)
    assert [block.stop for block in blocks[:-1]] == [block.start for block in blocks[1:]]
    assert not labels or (blocks[0].start, blocks[-1].stop) == (0, len(labels))
    for block in blocks:
        assert block.repeats == 1 or block.repeats >= LEAST_REPEATS
        assert block.length == 1 or block.repeats > 1
        starts = range(block.start, block.stop, block.length)
        for start, following in pairwise(starts):
            for n in range(block.length):
                assert labels[start + n] == labels[following + n]
                assert [one - start for one in sources[start + n] if one >= start] == [
                    one - following for one in sources[following + n] if one >= following
                ]
    return blocks


@given(st.lists(st.sampled_from("ab"), max_size=60), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_blocks_are_all_of_the_steps(labels: list[str], choice: random.Random) -> None:
    sources = [tuple(sorted(choice.sample(range(n), min(n, choice.randrange(3))))) for n in range(len(labels))]
    check(labels, sources)


def test_layers_are_one_block() -> None:
    labels = ["in", *"abcde" * 12, "out"]
    assert check(labels, chain(len(labels))) == [Block(0, 1), Block(1, 5, 12), Block(61, 1)]


def test_the_same_one_after_the_other_is_a_block() -> None:
    assert check(["a"] * 32, chain(32)) == [Block(0, 1, 32)]


def test_twice_is_no_block() -> None:
    assert len(check(list("abcabc"), chain(6))) == 6


def test_what_reads_otherwise_within_is_another_block() -> None:
    sources = chain(15)
    sources[11] = (9, 10)  # in the fourth repetition alone
    assert check(list("abc" * 5), sources)[0] == Block(0, 3, 3)


def test_what_reads_from_before_the_block_makes_no_difference() -> None:
    sources = [(), *[tuple(sorted({0, place})) for place in range(12)]]
    assert check(["m", *"abc" * 4], sources) == [Block(0, 1), Block(1, 3, 4)]


def test_few_that_stand_beside_each_other_are_shown_one_by_one() -> None:
    for count, blocks in ((LEAST_BESIDE - 1, LEAST_BESIDE), (LEAST_BESIDE, 2)):
        assert len(check(["in", *"a" * count], [(), *[(0,)] * count])) == blocks


def test_hostile_steps_do_not_take_long() -> None:
    """Each run of steps looks like blocks, none of which reads alike: not all of them are looked into."""
    choice = random.Random(0)
    sources = [(choice.randrange(max(0, n - 3), n),) if n else () for n in range(5000)]
    assert sum(block.stop - block.start for block in check(["a"] * 5000, sources)) == 5000
