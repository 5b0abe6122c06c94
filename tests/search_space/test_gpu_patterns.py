"""What patterns of common models come down to on GPUs: by which sketch, in how many launches."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tunewright.codegen.cuda import interp
from tunewright.codegen.ir.ir import Block
from tunewright.codegen.verify import verify
from tunewright.graph.fusion import segments
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.sketches import default_schedule, lower, sketch, spaces
from tunewright.tuner.models.model import open_for

from .oracle import GPU, interpret
from .test_sketches import agree, tasks_of

pytestmark = pytest.mark.slow


def first_choices(text):
    """The sketches of the defaults of a model's tasks."""
    return [default_schedule(task, GPU).sketch for task in tasks_of(text, {})]


def launches(task):
    body = lower(Candidate(task, GPU, default_schedule(task, GPU))).body
    return len(body.body) if isinstance(body, Block) else 1


def right(task, name):
    """All defaults and some schedules of a sketch come to what the oracle does."""
    inputs = example_inputs(task, 0)
    expected = reference(task, inputs)
    space = sketch(name).space(task, GPU)
    for schedule in (space.default, *map(space.schedule, space.sample(3, np.random.default_rng(0)))):
        kernel = lower(Candidate(task, GPU, schedule))
        verify(kernel)
        agree(task, interpret(task, kernel, inputs, interp.run), expected)


@pytest.mark.parametrize(
    "activation",
    ["t = Relu(x)", "s = Sigmoid(x) t = Mul(x, s)", "s = ReduceMean<keepdims=1>(x, axes) t = Sub(x, s)"],
    ids=["relu", "silu", "scaled"],
)
def test_windows_of_what_is_computed_stay_on_tensor_cores(activation):
    text = f"float16: x[1, 64, 14, 14] w[64, 64, 3, 3] | {activation} y = Conv<pads=[1, 1, 1, 1]>(t, w) | y ; w axes"
    tasks = [task for task in tasks_of(text, {}) if any(tensor.constant for tensor in task.inputs)]
    assert default_schedule(tasks[0], GPU).sketch == "specialized_windows"


def test_groups_are_normalised_as_rows():
    steps = "g = Reshape(c, three) n = InstanceNormalization(g, s, b) t = Reshape(n, four) y = Conv(t, v)"
    text = (
        "float16: x[1, 64, 8, 8] w[64, 64, 1, 1] v[64, 64, 1, 1] s[8] b[8] | c = Conv(x, w)"
        " three = Constant<value_ints=[1, 8, 512]>() four = Constant<value_ints=[1, 64, 8, 8]>()"
        f" {steps} | y ; w v s b"
    )
    normal = [task for task in tasks_of(text, {}) if sketch("row_blocks").applies(task, GPU)]
    assert default_schedule(normal[0], GPU).sketch == "row_blocks"
    right(normal[0], "row_blocks")


RMS_NORM = (
    "two = Constant<value_float=2.0>() eps = Constant<value_float=0.00001>() c = Cast<to=1>(x) q = Pow(c, two)"
    " m = ReduceMean<keepdims=1>(q, axes) e = Add(m, eps) r = Sqrt(e) d = Div(c, r) g = Cast<to=10>(d) y = Mul(s, g)"
)
"""As exporters write it."""


@pytest.mark.parametrize("columns", [5, 67, 768])
@pytest.mark.parametrize(
    "steps",
    [
        "y = Softmax(x)",
        "y = LayerNormalization(x, s)",
        RMS_NORM,
    ],
    ids=["softmax", "layer norm", "rms norm"],
)
def test_a_row_alone_is_one_launch(steps, columns):
    scales, known = ("", "") if "Softmax" in steps else (f" s[{columns}]", "s axes")
    text = f"float16: x[1, {columns}]{scales} | {steps} | y ; {known}"
    [task] = tasks_of(text, {})
    assert spaces(task, GPU)[0].sketch == "row_blocks"
    assert launches(task) == 1
    right(task, "row_blocks")


def test_norms_of_several_rows_are_row_blocks():
    [task] = tasks_of(f"float16: x[7, 96] s[96] | {RMS_NORM} | y ; s axes", {})
    assert spaces(task, GPU)[0].sketch == "row_blocks"
    right(task, "row_blocks")


def test_heads_out_of_one_projection_are_attention(monkeypatch):
    """As GPT-2 has them: one product, cut into queries, keys and values, whose heads lie side by side."""
    monkeypatch.setattr(segments, "SMALLEST_BYTES", 0)
    nodes = "p = MatMul(x, w) q, k, v = Split<axis=1, num_outputs=3>(p) "
    nodes += "".join(f"{name}h = Reshape({name}, heads) " for name in "qkv")
    perms = {"q": "1, 0, 2", "k": "1, 2, 0", "v": "1, 0, 2"}
    nodes += "".join(f"{name}t = Transpose<perm=[{perm}]>({name}h) " for name, perm in perms.items())
    nodes += "s = MatMul(qt, kt) a = Softmax(s) o = MatMul(a, vt) z = Transpose<perm=[1, 0, 2]>(o) y = Reshape(z, flat)"
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float16[70, 128] x) => (float16[70, 128] y)
        <float16[128, 384] w, int64[3] heads = {{70, 2, 64}}, int64[2] flat = {{70, 128}}> {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((128, 384)).astype(np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    [chain] = open_for(GPU, model.SerializeToString()).chains
    [task] = [segment.call.task for segment in chain.segments]
    assert [space.sketch for space in spaces(task, GPU)][:2] == ["specialized_attention", "attention_tiles"]
    right(task, "specialized_attention")
    right(task, "attention_tiles")
