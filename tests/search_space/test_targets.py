"""Every sketch works on every processor: where it applies there is a default, which is legal and can be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.llvm.build import build
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.search_space.cpu.chain import ChainSketch
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.sketches import SKETCHES, lower, spaces

from .oracle import ARM_DOTS, DOTS, HOST, MATRICES, NARROW, WIDE, native
from .test_sketches import MODELS, tasks_of

AVX2 = replace(
    WIDE, triple=HOST.triple, cpu="x86-64-v3", vector_bits=256, vector_registers=16, threads=4, l1_bytes=32 << 10
)

TARGETS = {
    "avx2": AVX2,
    "dots": DOTS,
    "matrices": MATRICES,
    "sse": replace(AVX2, cpu="x86-64", vector_bits=128, l2_bytes=256 << 10),
    "sse on 32 bits": replace(AVX2, cpu="pentium4", vector_bits=128, vector_registers=8, threads=1, l3_bytes=0),
    "neon": NARROW,
    "neon dots": ARM_DOTS,
    "sve": replace(NARROW, cpu="a64fx", vector_bits=2048, threads=48),
    "odd": replace(WIDE, threads=7, l1_bytes=(48 << 10) + 5, l2_bytes=3000, l3_bytes=0),
    "without caches": replace(WIDE, threads=3, l1_bytes=0, l2_bytes=0, l3_bytes=0),
    "large": replace(WIDE, threads=200, l1_bytes=1 << 20, l2_bytes=1 << 28, l3_bytes=1 << 32),
    "least": replace(AVX2, vector_bits=64, vector_registers=8, threads=1, l1_bytes=1, l2_bytes=1, l3_bytes=1),
}
"""Processors there are and could be, to the limits of what a Target may say."""

SMALL, LARGE = {"a": 2, "b": 3, "c": 8, "d": 2}, {"a": 13, "b": 8, "c": 33, "d": 5}

BUILT = ("dense", "conv", "residual", "planes", "separable", "inverted", "attended", "lstm", "long_fold")
"""Models that between them have every sketch write something."""

LONG_ATTENTION = (
    "q[2, 48, 64] k[2, {n}, 64] v[2, {n}, 64] | t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) p = Softmax(r)"
    " y = MatMul(p, v) | y[2, 48, 64]"
)


def applicable(task: Task, target: Target) -> list[Sketch]:
    return [one for one in SKETCHES if find_space(one, task, target)]


@pytest.mark.parametrize("name", MODELS)
def test_every_default_is_legal(name: str) -> None:
    for task in (task for sizes in (SMALL, LARGE) for task in tasks_of(MODELS[name], sizes)):
        for target in TARGETS.values():
            assert spaces(task, target)
            for sketch in applicable(task, target):
                space = sketch.space(task, target)
                assert space.schedule(space.row(space.default)) == space.default


@pytest.mark.parametrize("name", MODELS)
def test_random_schedules_are_in_bounds(name: str) -> None:
    rng = np.random.default_rng(0)
    for kind in ("avx2", "sse", "neon", "odd"):
        target = TARGETS[kind]
        for task in tasks_of(MODELS[name], LARGE if kind == "avx2" else SMALL):
            for sketch in applicable(task, target):
                space = sketch.space(task, target)
                (row,) = space.sample(1, rng)
                verify(lower(Candidate(task, target, space.schedule(row))))


@pytest.mark.skipif(
    not {"+avx2", "+fma"} <= set(HOST.features.split(",")), reason="runs code for AVX2, which this processor lacks"
)
@pytest.mark.parametrize("name", BUILT)
def test_code_for_narrow_vectors_agrees_with_the_oracle(name: str) -> None:
    for task in tasks_of(MODELS[name], LARGE):
        arrays = example_inputs(task, 0)
        expected: Sequence[Any] = reference(task, arrays)
        for sketch in applicable(task, AVX2):
            kernel = lower(Candidate(task, AVX2, sketch.space(task, AVX2).default))
            actual = native(task, kernel, arrays, AVX2)
            for left, right in zip(actual, expected, strict=True):
                scale = max(float(np.abs(right).max()), 1e-6)
                np.testing.assert_allclose(left.reshape(right.shape), right, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("kind", ["sse", "neon"])
def test_llvm_takes_every_default_for_other_processors(kind: str) -> None:
    target = TARGETS[kind]
    for name in BUILT:
        for task in tasks_of(MODELS[name], SMALL):
            for sketch in applicable(task, target):
                assert build(lower(Candidate(task, target, sketch.space(task, target).default)), target).objects


@pytest.mark.parametrize("keys", [4096, 5003, 1 << 17])
def test_a_chain_is_offered_only_where_a_chunk_fits(keys: int) -> None:
    tasks = tasks_of(LONG_ATTENTION.replace("{n}", str(keys)), SMALL)
    for task in tasks:
        for target in (HOST, *TARGETS.values()):
            for sketch in applicable(task, target):
                space = sketch.space(task, target)
                space.row(space.default)
    assert (find_space(ChainSketch(), tasks[-1], WIDE) is not None) == (keys < 1 << 17)
