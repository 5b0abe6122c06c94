"""Constants are as far away as they are in a model: each run reads the next copy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.host import Caches
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, Store
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.memory import address_of, aligned_empty
from tunewright.codegen.runtime.native import Operand, Program
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import Target
from tunewright.workers.measure.cache_flush import (
    MAX_COPIES,
    Array,
    Copies,
    Distance,
    Eviction,
    Runs,
    copy_bytes,
    copy_count,
    distance,
    evictor,
    is_warm_in_model,
)

CACHES = Caches(48 << 10, 1 << 20, 32 << 20)


@pytest.mark.parametrize(
    ("constant_bytes", "away"),
    [
        (0, Distance.ANY),  # there are none
        (1 << 10, Distance.LAST_LEVEL),
        (1 << 16, Distance.LAST_LEVEL),
        (1 << 20, Distance.MEMORY),
        (9 << 20, Distance.MEMORY),
        (400 << 20, Distance.ANY),  # no cache keeps them
    ],
)
def test_how_far_away_constants_are(constant_bytes: int, away: Distance) -> None:
    assert distance(constant_bytes, CACHES, 2) is away
    assert distance(constant_bytes, Caches(32 << 10, 1 << 20, 0), 2) is away, "without a third level"


@pytest.mark.parametrize(
    ("constant_bytes", "model_bytes", "is_so"),
    [
        (1 << 10, 1 << 20, True),  # all fit into the second level
        (1 << 10, 2 << 20, False),  # others push them out of it
        (1 << 20, 2 << 20, True),  # they don't fit into it anyway, and all fit into the last level
        (1 << 20, 32 << 20, False),  # not with room to spare
        (40 << 20, 40 << 20, False),
    ],
)
def test_constants_stay_where_a_run_alone_leaves_them(constant_bytes: int, model_bytes: int, is_so: bool) -> None:
    assert is_warm_in_model(constant_bytes, model_bytes, CACHES.l2_bytes, CACHES.l3_bytes) is is_so


def test_of_a_large_last_level_cache_a_part_is_counted_on() -> None:
    """The rest is other processes': kernels that a network's constants were said to stay there for made it slower."""
    for l3_bytes in (32 << 20, 260 << 20):
        assert is_warm_in_model(9 << 20, 24 << 20, 2 << 20, l3_bytes)
        assert not is_warm_in_model(9 << 20, 180 << 20, 2 << 20, l3_bytes)


@pytest.mark.parametrize(("constant_bytes", "count"), [(1 << 10, MAX_COPIES), (1 << 16, 128), (1 << 19, 16)])
def test_copies_exceed_the_caches_of_both_cores(constant_bytes: int, count: int) -> None:
    assert copy_count(constant_bytes, CACHES, 2) == count


@pytest.fixture
def counter(target: Target) -> Artifact:
    """A kernel that adds one to all of its first operand, which stands for a constant, and to its second."""
    i = (Var("i"),)
    count = [Store(name, i, Load(name, i, DType.I64) + 1) for name in ("w", "y")]
    kernel = Kernel(
        (Buffer("w", (8,), DType.I64), Buffer("y", (8,), DType.I64)), (), Block((For("i", 8, Block(tuple(count))),))
    )
    return build(kernel, target)


class Counting:
    """Constants with copies, and kernels that count how often they run, and on which of them."""

    def __init__(self, counter: Artifact, count: int) -> None:
        self.constant, self.result = (aligned_empty((8,), DType.I64) for _ in range(2))
        self.constant[:], self.result[:] = 0, 0
        self.memory = aligned_empty((64 * count,), DType.U8).view(np.uint8)
        self.copies = Copies([self.constant], self.memory)
        self.counter = counter

    def cold(self) -> Runs:
        calls: list[tuple[Artifact, Sequence[Operand]]] = [(self.counter, [self.constant, self.result])]
        calls += ((self.counter, [address, self.result]) for [address] in self.copies.addresses)
        return Runs(Program(calls, shared_pool(1)), self.copies)

    def counts(self) -> list[int]:
        """How often each copy was read."""
        counts: list[int] = self.memory.view(np.int64).reshape(-1, 8)[:, 0].tolist()
        return counts


@pytest.mark.parametrize(("samples", "repeats"), [(10, 1), (2, 5), (1, 10), (5, 4), (1, 40), (4, 25)])
def test_each_copy_has_its_turn(counter: Artifact, samples: int, repeats: int) -> None:
    counting = Counting(counter, 10)
    times_s = counting.cold().time(samples, repeats)
    assert len(times_s) == samples and all(0 < time_s < 1 for time_s in times_s)
    assert counting.counts() == [samples * repeats // 10] * 10
    assert counting.result.tolist() == [samples * repeats] * 8
    assert counting.constant.tolist() == [0] * 8


def test_kernels_that_share_copies_take_turns_on_them(counter: Artifact) -> None:
    counting = Counting(counter, 10)
    one, other = counting.cold(), counting.cold()
    one.time(1, 3)
    other.time(1, 4)
    assert counting.counts() == [1] * 7 + [0] * 3
    one.time(2, 3)
    assert counting.counts() == [2] * 3 + [1] * 7


def test_without_copies_the_constants_themselves_are_read(counter: Artifact) -> None:
    counting = Counting(counter, 1)
    program = Program([(counter, [counting.constant, counting.result])] * 3, shared_pool(1))
    assert len(Runs(program, None).time(4, repeats=3)) == 4
    assert counting.result[0] == counting.constant[0] == 12


@pytest.mark.parametrize("threads", [1, 2])
def test_evicted_constants_are_read_themselves(counter: Artifact, threads: int) -> None:
    """They keep their content, also what was not written back yet, and that of neighbours."""
    counting = Counting(counter, 1)
    pool = shared_pool(threads)
    other = aligned_empty((1000,), DType.I64)
    other[:] = np.arange(1000)
    evicted = Eviction([evictor(array, pool) for array in (counting.constant, other)])
    program = Program([(counter, [counting.constant, counting.result])], pool)
    times_s = Runs(program, evicted).time(3, repeats=5)
    assert len(times_s) == 3 and all(0 < time_s < 1 for time_s in times_s)
    assert counting.constant.tolist() == counting.result.tolist() == [15] * 8
    assert other.tolist() == list(range(1000))


def test_what_is_evicted_takes_longer_to_read() -> None:
    array = np.zeros(1 << 18, np.uint8)
    program = evictor(array, shared_pool(1))

    def read_s() -> float:
        begin_s = time.perf_counter()
        array.max()
        return time.perf_counter() - begin_s

    near_s, far_s = [], []
    for _ in range(20):
        near_s.append(read_s())
        program.run()
        far_s.append(read_s())
        read_s()
    assert min(far_s) > 1.2 * min(near_s[1:])


def test_samples_end_at_the_deadline(counter: Artifact) -> None:
    cold = Counting(counter, 4).cold()
    assert len(cold.time(9, deadline_s=-inf)) == 1
    assert len(cold.time(9)) == 9


def test_copies_are_what_they_copy() -> None:
    """Each of several arrays begins where vectors may, and there is room for whole copies only."""
    arrays: list[Array] = [np.arange(5, dtype=np.float32), np.arange(9, dtype=np.int64).reshape(3, 3)]
    assert copy_bytes(arrays) == 192
    memory = aligned_empty((500,), DType.U8).view(np.uint8)
    copies = Copies(arrays, memory)
    assert [[at - address_of(memory) for at in addresses] for addresses in copies.addresses] == [[0, 64], [192, 256]]
    for start in (0, 192):
        assert memory[start : start + 20].view(np.float32).tolist() == [0, 1, 2, 3, 4]
        assert memory[start + 64 : start + 136].view(np.int64).tolist() == list(range(9))
