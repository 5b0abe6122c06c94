"""Tasks of float64 and of integers under every sketch that takes them: default and random schedules."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import lower, sketch, spaces

from .oracle import HOST, NARROW, SMALL_GPU, WIDE, agree, native

TEXTS = {
    "curves": ("double", "[37] x", "y = Exp(x)"),
    "powers": ("double", "[37] x", "a = Abs(x) y = Pow(a, x)"),
    "rows": ("double", "[5, 37] x", "y = Softmax(x)"),
    "sums": ("double", "[41, 19] x", "y = ReduceLogSumExp <keepdims = 0> (x)"),
    "product": ("double", "[13, 37] x, double[37, 35] w", "a = MatMul(x, w) y = Relu(a)"),
    "convolution": ("double", "[1, 5, 9, 9] x, double[7, 5, 3, 3] w", "y = Conv <pads = [1, 1, 1, 1]> (x, w)"),
    "pool": ("double", "[1, 5, 9, 9] x", "y = MaxPool <kernel_shape = [3, 3]> (x)"),
    "whole_product": ("int64", "[13, 37] x, int64[37, 35] w", "y = MatMul(x, w)"),
    "whole_powers": ("int32", "[37] x", "y = Pow(x, x)"),
    "quotients": ("int16", "[37] x, int16[3, 37] w", "a = Div(x, w) y = Add(a, w)"),
    "remainders": ("uint8", "[37] x, uint8[3, 37] w", "a = Mod(x, w) y = Max(a, w)"),
    "bits": ("uint64", "[37] x, uint64[3, 37] w", 'a = BitwiseXor(x, w) y = BitShift <direction = "RIGHT"> (a, w)'),
    "order": ("double", "[17, 19] x", "y = Transpose(x)"),
}

CUT_TEXTS = {
    "brain_product": ("float[5, 3] x, float[3, {n}] w", "a = MatMul(x, w) y = Cast <to = 16> (a)", "bfloat16"),
    "brain_rows": ("float[5, {n}] x", "a = Softmax(x) y = Cast <to = 16> (a)", "bfloat16"),
    "half_pool": (
        "float[1, {n}, 4, 3] x",
        "a = MaxPool <kernel_shape = [3, 3]> (x) b = Transpose <perm = [0, 2, 3, 1]> (a) y = Cast <to = 10> (b)",
        "float16",
    ),
    "short_sums": ("int32[5, {n}] x, int32[{n}] w", "a = Add(x, w) y = Cast <to = 5> (a)", "int16"),
    "byte_sums": ("int32[5, {n}] x, int32[{n}] w", "a = Add(x, w) y = Cast <to = 2> (a)", "uint8"),
    "byte_order": ("int16[{n}, 5] x", "a = Transpose(x) y = Cast <to = 3> (a)", "int8"),
    "whole_order": ("int64[{n}, 5] x", "a = Transpose(x) y = Cast <to = 6> (a)", "int32"),
}
"""Inputs, nodes, and the type of y, for which values are cut short."""


def tasks_of(name: str) -> list[Task]:
    kind, inputs, nodes = TEXTS[name]
    return parse_tasks(f"{kind}{inputs}", nodes, kind)


def parse_tasks(inputs: str, nodes: str, kind: str) -> list[Task]:
    """The tasks of a model with an output y of some type."""
    head = f'<ir_version: 10, opset_import: ["" : 20]> m ({inputs}) => ({kind} y)'
    model = onnx.parser.parse_model(f"{head} {{ {nodes.replace(') ', ')' + chr(10))} }}")
    return [step.task for step in partition(rewrite(load(model.SerializeToString()))) if isinstance(step, TaskCall)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("target", [WIDE, NARROW, SMALL_GPU], ids=["wide", "narrow", "gpu"])
def test_all_sketches_agree_with_the_oracle(name: str, target: Target) -> None:
    tasks = tasks_of(name)
    assert tasks
    for task in tasks:
        tolerance = 1e-13 if task.outputs[0].dtype is DType.F64 else 0.0
        for space in spaces(task, target):
            agree(sketch(space.sketch), task, target, 1, 3, tolerance)


@pytest.mark.parametrize("name", CUT_TEXTS)
@pytest.mark.parametrize("columns", [17, 18, 33, 47])
def test_values_cut_short_keep_to_their_place(name: str, columns: int) -> None:
    """In native code: a vector at an edge writes its lanes in use alone, also where there is one."""
    inputs, nodes, kind = CUT_TEXTS[name]
    tasks = parse_tasks(inputs.replace("{n}", str(columns)), nodes, kind)
    assert tasks[-1].outputs[0].dtype is DType(kind)
    for task in tasks:
        arrays = example_inputs(task, 1)
        expected = [array.astype(np.float64) for array in reference(task, arrays)]
        for space in spaces(task, HOST):
            rows = space.sample(6, np.random.default_rng(columns))
            for schedule in (space.default, *map(space.schedule, rows)):
                kernel = lower(Candidate(task, HOST, schedule))
                for right, own in zip(expected, native(task, kernel, arrays), strict=True):
                    tolerance = 2.0**-8 if "float" in kind else 0.0
                    np.testing.assert_allclose(own.astype(np.float64).reshape(right.shape), right, tolerance, 1e-6)


@pytest.mark.parametrize("name", TEXTS)
def test_gpus_have_code_for_them(name: str) -> None:
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    target = Target.of_gpu(KNOWN["sm_90a"])
    for task in tasks_of(name):
        for space in spaces(task, target):
            kernel = lower(Candidate(task, target, space.default))
            assert nvrtc.ptx(source(kernel, target).text, target.cpu)
