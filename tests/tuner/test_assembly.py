"""Which of a chain's calls run apart and which as one task, by their times."""

from __future__ import annotations

from itertools import combinations
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.tuner.models.assembly import Assembly, CallRange, TaskChain, total_s

# Task 3 stands for calls 1 and 2, task 4 for all three.
CHAIN = TaskChain((0, 1, 2), (CallRange(1, 3, 3), CallRange(0, 3, 4)))
ASSEMBLY = Assembly((5, 2, 2, 2, 2), ((CHAIN, 2),))


def tasks(chain: TaskChain, *times_s: float | None) -> list[int]:
    return [part.task for part in chain.fastest(times_s)]


def test_the_fastest_is_chosen() -> None:
    assert tasks(CHAIN, 1, 1, 1, 3, 4) == [0, 1, 2]
    assert tasks(CHAIN, 1, 1, 1, 1.5, 2.6) == [0, 3]
    assert tasks(CHAIN, 1, 1, 1, 1.5, 2.4) == [4]


def test_of_equal_ones_calls_run_apart() -> None:
    assert tasks(CHAIN, 1, 1, 1, 2, 3) == [0, 1, 2]


def test_what_was_not_timed_is_not_chosen() -> None:
    assert tasks(CHAIN, None, None, None, None, None) == [0, 1, 2]
    assert tasks(CHAIN, 1, 1, 1, None, None) == [0, 1, 2]
    assert tasks(CHAIN, None, 1, 1, 0.1, 0.1) == [0, 3]
    assert tasks(CHAIN, 1, None, 1, 0.1, 0.1) == [0, 1, 2]


def test_what_fails_is_avoided() -> None:
    assert tasks(CHAIN, 1, inf, 1, 99, inf) == [0, 3]
    assert tasks(CHAIN, 1, inf, 1, inf, inf) == [0, 1, 2]
    assert tasks(CHAIN, 1, 1, 1, inf, inf) == [0, 1, 2]


@given(st.data())
def test_no_cover_is_faster(data: Any) -> None:
    length = data.draw(st.integers(1, 6))
    places = [(a, b) for a, b in combinations(range(length + 1), 2) if b - a > 1]
    runs = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
    chain = TaskChain(tuple(range(length)), tuple(CallRange(a, b, length + n) for n, (a, b) in enumerate(runs)))
    times = data.draw(st.lists(st.integers(1, 9), min_size=length + len(runs), max_size=length + len(runs)))
    chosen = chain.fastest(times)
    assert [part.start for part in chosen] == [0, *(part.stop for part in chosen[:-1])]
    assert chosen[-1].stop == length

    def least(start: int) -> float:
        ways = [times[part.task] + least(part.stop) for part in chain.parts if part.start == start]
        return min(ways) if start < length else 0

    assert sum(times[part.task] for part in chosen) == least(0)


def test_uses() -> None:
    assert ASSEMBLY.alternatives == {3, 4}
    assert ASSEMBLY.separate_uses == [5, 2, 2, 0, 0]
    assert ASSEMBLY.uses([1, 1, 1, 9, 9]) == [5, 2, 2, 0, 0]
    assert ASSEMBLY.uses([1, 1, 1, 1, 9]) == [5, 0, 0, 2, 0]
    assert ASSEMBLY.uses([1, 1, 1, 1, 1]) == [3, 0, 0, 0, 2]
    assert total_s([3, 0, 2], [1, None, 2]) == 7
    assert total_s([3, 1, 2], [1, None, 2]) is None


def test_it_comes_back_from_json() -> None:
    assert Assembly.of_json(ASSEMBLY.occurrences, ASSEMBLY.to_json()) == ASSEMBLY
    assert ASSEMBLY.settings == {"chains": ASSEMBLY.to_json()}
    assert Assembly((1, 2)).settings == {}
    assert Assembly.of_json((), []) == Assembly()


@pytest.mark.parametrize(
    "change",
    [
        {"calls": [0, 1, 5]},
        {"calls": [0, 1, -1]},
        {"calls": [0, 1, 2.0]},
        {"calls": [1, 1, 2]},  # as often as there is no such call
        {"calls": [0, 1, 3]},
        {"calls": None},
        {"runs": [[1, 4, 3]]},
        {"runs": [[1, 2, 3]]},
        {"runs": [[2, 1, 3]]},
        {"runs": [[1, 3, 2]]},
        {"runs": [[1, 3]]},
        {"occurrences": 0},
        {"occurrences": 3},
        {"occurrences": True},
    ],
)
def test_what_makes_no_sense(change: dict[str, Any]) -> None:
    [chain] = ASSEMBLY.to_json()
    with pytest.raises((ValueError, TypeError)):
        Assembly.of_json(ASSEMBLY.occurrences, [chain | change])
