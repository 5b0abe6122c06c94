"""Constants are as far away as they are in a model: each run reads the next copy."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest

from tunewright.codegen.build import build
from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Var
from tunewright.codegen.host import Caches
from tunewright.codegen.ir import Block, Buffer, For, Kernel, Store
from tunewright.codegen.runtime.memory import aligned_empty
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import Target
from tunewright.workers.cold import MOST_COPIES, PART_S, PARTS, Cold, copies

CACHES = Caches(48 << 10, 1 << 20, 32 << 20)


@pytest.mark.parametrize(
    ("constant_bytes", "count"),
    [
        (0, 1),  # nothing to copy
        (1 << 10, MOST_COPIES),
        (1 << 16, 128),  # beyond the second-level caches of both cores
        (1 << 20, 40),  # beyond the last-level cache
        (9 << 20, 5),
        (400 << 20, 1),  # one alone is
    ],
)
def test_copies(constant_bytes: int, count: int) -> None:
    assert copies(constant_bytes, CACHES, 2) == count
    assert copies(constant_bytes, Caches(32 << 10, 1 << 20, 0), 2) >= 1


class Counting:
    """A kernel that adds one to all of its first operand, which stands for a constant, and to its second."""

    def __init__(self, target: Target) -> None:
        i = (Var("i"),)
        count = [Store(name, i, Load(name, i, DType.I64) + 1) for name in ("w", "y")]
        kernel = Kernel(
            (Buffer("w", (8,), DType.I64), Buffer("y", (8,), DType.I64)), (), Block((For("i", 8, Block(tuple(count))),))
        )
        self.artifact = build(kernel, target)
        self.constant, self.result = (aligned_empty((8,), DType.I64) for _ in range(2))
        self.constant[:], self.result[:] = 0, 0

    def cold(self, count: int, once_s: float) -> Cold:
        return Cold(self.artifact, [self.constant, self.result], [0], count, once_s, shared_pool(1))


@pytest.fixture
def counting(target: Target) -> Iterator[Counting]:
    yield Counting(target)


@pytest.mark.parametrize(("once_s", "parts"), [(1e-6, 1), (PART_S, PARTS), (PART_S / 4, 2)])
def test_a_round_runs_each_copy_once(counting: Counting, once_s: float, parts: int) -> None:
    cold = counting.cold(10, once_s)
    taken = cold.time(parts)
    cold.close()
    assert len(taken) == parts and all(0 < time_s < 1 for time_s in taken)
    assert counting.result.tolist() == [10] * 8
    assert counting.constant.tolist() == [1] * 8


def test_without_constants_there_is_one(counting: Counting) -> None:
    cold = counting.cold(1, PART_S)
    assert len(cold.time(4, repeats=3)) == 4
    cold.close()
    assert counting.result[0] == counting.constant[0] == 12


def test_samples_end_early_where_told(counting: Counting) -> None:
    cold = counting.cold(4, PART_S)
    assert len(cold.time(9, minimum=3, limit_s=0.0)) == 3
    assert len(cold.time(9, deadline_s=-inf)) == 1
    assert len(cold.time(9, limit_s=10.0)) == 9
    cold.close()
