"""The streaming kernels move what they say, in the mix that was asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunewright.bench import bandwidth
from tunewright.bench.bandwidth import Traffic, level, sizes_bytes, streaming_s
from tunewright.codegen.host import detect
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.memory import aligned_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool

TARGET = replace(detect(1), l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=16 << 20)


@pytest.mark.parametrize(
    ("reads", "writes", "mix"),
    [
        (1, 0, (8, 0)),
        (0, 1, (0, 8)),
        (5, 5, (4, 4)),
        (3, 1, (6, 2)),
        (1, 4, (2, 8)),
        (30, 7, (30, 7)),
        (100, 1, (8, 0)),
    ],
)
def test_mix(reads: int, writes: int, mix: tuple[int, int]) -> None:
    assert bandwidth._mix(Traffic(reads << 10, writes << 10)) == mix


@pytest.mark.parametrize(("reads", "writes"), [(8, 0), (0, 8), (4, 4), (6, 2), (2, 6)])
@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_kernel_moves(reads: int, writes: int, threads: int) -> None:
    target, rows, rounds = detect(threads), 3, 2
    artifact = build(bandwidth._kernel(target, rows, reads, writes, rounds), target)
    source, sink, sums = (aligned_empty(b.shape, b.dtype) for b in artifact.params)
    source[...] = np.random.default_rng(0).integers(0, 9, source.shape)
    sink[...] = 0
    with ThreadPool(threads) as pool:
        Program([(artifact, [source, sink, sums])], pool).run()
    copied = min(reads, writes)
    if writes:
        np.testing.assert_array_equal(sink[:, :, :copied], source[:, :, :copied])
        assert (sink[:, :, copied:] == 1).all()
    if reads:
        assert sums.sum() == rounds * source[:, :, writes:].sum()


def test_level_is_the_smallest_that_holds_everything() -> None:
    for name, size_bytes in sizes_bytes(TARGET).items():
        assert level(Traffic(size_bytes, 0), TARGET) == name
    two = replace(TARGET, threads=2)
    assert (level(Traffic(1 << 20, 1 << 20), TARGET), level(Traffic(1 << 20, 1 << 20), two)) == ("L3", "L2")


def test_small_memory_streams_faster_than_large() -> None:
    target = detect(1)
    sizes = sizes_bytes(target)
    with ThreadPool(1) as pool:
        small, large = (sizes[name] / streaming_s(Traffic(sizes[name], 0), target, pool) for name in ("L1", "DRAM"))
    assert small > large > 1e8
