"""Tasks of float64 and of integers under every sketch that takes them: default and random schedules."""

from __future__ import annotations

import onnx
import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import lower, sketch, spaces

from .oracle import NARROW, SMALL_GPU, WIDE, agree

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


def tasks_of(name: str) -> list[Task]:
    kind, inputs, nodes = TEXTS[name]
    head = f'<ir_version: 10, opset_import: ["" : 20]> m ({kind}{inputs}) => ({kind} y)'
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
