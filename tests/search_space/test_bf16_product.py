"""Products of bfloat16: in registers and matrix registers, as the oracle says; and which instructions do it."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tunewright.codegen.llvm.build import assembly
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Task
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.sketches import sketch, spaces

from .oracle import ARM_DOTS, DOTS, HOST, MATRICES, NARROW, WIDE, interpret, native
from .test_sketches import tasks_of

VECTORS, REGISTERS = sketch("bf16_product"), sketch("bf16_matrices")

MODELS = {
    "product": "x[7, 20] w[20, 33] b[33] | t = MatMul(x, w) u = Add(t, b) y = Relu(u) | y ; w b",
    "one row": "x[1, 64] w[64, 48] | t = MatMul(x, w) y = Sigmoid(t) | y ; w",
    "batch": "x[2, 19, 36] w[36, 16] | y = MatMul(x, w) | y ; w",
    "windows": "x[1, 8, 7, 9] w[17, 8, 3, 3] b[17] | t = Conv<pads=[1,1,1,1], strides=[2,1]>(x, w, b) y = Relu(t)"
    " | y ; w b",
    "windows apart": "x[1, 4, 9, 8] w[16, 4, 3, 2] | y = Conv<dilations=[2,1]>(x, w) | y ; w",
    "long lines": "x[1, 32, 4, 37] w[40, 32, 2, 3] | t = Conv<pads=[0,2,0,0]>(x, w) y = Tanh(t) | y ; w",
    "beyond the edges": "x[1, 2, 5, 6] w[16, 2, 3, 4] | t = Conv<pads=[1,2,1,3]>(x, w) y = Neg(t) | y ; w",
    "one after the other": "x[9, 24] w[24, 32] v[32, 18] | t = MatMul(x, w) u = Relu(t) y = MatMul(u, v) | y ; w v",
}

WIDTH = 2.0**-8
"""The relative error of what is stored as bfloat16; of float32 sums it is far smaller."""


def products_of(name: str, of: Sketch, target: Target) -> list[Task]:
    """The tasks that a sketch is for: of bfloat16 that is there, and perhaps of what is rounded first."""
    return [task for task in tasks_of(f"rounded: {MODELS[name]}", {}) if find_space(of, task, target)]


def agree(of: Sketch, task: Task, target: Target, machines: list[Target]) -> None:
    """The default and random schedules: of small whole numbers just what the oracle has, of others nearly."""
    space, rng = of.space(task, target), np.random.default_rng(2)
    whole = [rng.integers(-4, 5, x.shape).astype(x.dtype) for x in example_inputs(task, 1)]
    feeds = [(arrays, reference(task, arrays)[0].astype(np.float32)) for arrays in (whole, example_inputs(task, 1))]
    for row in [space.row(space.default), *space.sample(2, rng)]:
        kernel = of.lower(task, space.schedule(row), target)
        verify(kernel)
        for (arrays, expected), tolerance in zip(feeds, (1e-6, 2e-5), strict=True):
            close = (WIDTH if task.outputs[0].dtype.is_narrow else tolerance) * float(np.abs(expected).max())
            for [result] in (interpret(task, kernel, arrays), *(native(task, kernel, arrays, m) for m in machines)):
                actual = result.astype(np.float32).reshape(expected.shape)
                np.testing.assert_allclose(actual, expected, rtol=0, atol=close)


@pytest.mark.slow
@pytest.mark.parametrize("target", [DOTS, ARM_DOTS], ids=["AVX-512", "NEON"])
@pytest.mark.parametrize("name", MODELS)
def test_any_schedule_agrees(name: str, target: Target) -> None:
    """In the interpreter, and the code for x86 on this machine, which needs no instruction for it."""
    tasks = products_of(name, VECTORS, target)
    assert tasks
    for task in tasks:
        agree(VECTORS, task, target, [HOST] if target is DOTS else [])


@pytest.mark.parametrize("name", ["product", "batch", "windows", "long lines", "one after the other"])
def test_any_schedule_of_matrix_registers_agrees(name: str) -> None:
    for task in products_of(name, REGISTERS, MATRICES):
        agree(REGISTERS, task, MATRICES, [HOST] if HOST.has_matrices_of(task.inputs[0].dtype) else [])


def test_they_come_first_where_there_are_instructions() -> None:
    task, *_ = products_of("product", VECTORS, DOTS)
    first = [spaces(task, target)[0].sketch for target in (MATRICES, DOTS, ARM_DOTS, WIDE, NARROW)]
    assert first == ["bf16_matrices", "bf16_product", "bf16_product", "contraction", "contraction"]


def test_no_two_points_write_the_same_kernel() -> None:
    """As a knob would that the sketch has from another one, and leaves unread."""
    task = products_of("product", VECTORS, DOTS)[0]
    space = VECTORS.space(task, DOTS)
    schedules = [space.default, *map(space.schedule, space.sample(30, np.random.default_rng(0)))]
    kernels = {schedule: str(VECTORS.lower(task, schedule, DOTS)) for schedule in schedules}
    assert len(set(kernels.values())) == len(kernels) > 20


@pytest.mark.parametrize(
    ("of", "target", "words"),
    [
        (VECTORS, DOTS, ["vdpbf16ps"]),
        (VECTORS, ARM_DOTS, ["bfdot"]),
        (REGISTERS, MATRICES, ["ldtilecfg", "tilezero", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"]),
    ],
    ids=["AVX-512", "NEON", "AMX"],
)
def test_the_instructions_are_there(of: Sketch, target: Target, words: list[str]) -> None:
    task, *_ = products_of("product", of, target)
    text = assembly(of.lower(task, of.space(task, target).default, target), target)
    assert [word for word in words if word not in text] == []


def test_a_result_that_is_read_as_bfloat16_is_stored_so() -> None:
    """By arithmetic: the instruction for it makes 0 of subnormals."""
    task = products_of("one after the other", VECTORS, DOTS)[0]
    assert task.outputs[0].dtype.numpy == ml_dtypes.bfloat16
    text = assembly(VECTORS.lower(task, VECTORS.space(task, DOTS).default, DOTS), DOTS)
    assert "vdpbf16ps" in text and "vcvtneps2bf16" not in text


@pytest.mark.parametrize("feature", ["amx-bf16", "amx-tile"])
def test_both_features_are_needed(feature: str) -> None:
    task, *_ = products_of("product", REGISTERS, MATRICES)
    without = replace(MATRICES, features=MATRICES.features.replace(f"+{feature}", f"-{feature}"))
    assert find_space(REGISTERS, task, without) is None
