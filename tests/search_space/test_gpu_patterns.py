"""What patterns of common models come down to on GPUs: by which sketch, in how many launches."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import onnx
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import build
from tunewright.codegen.ir.ir import Block
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.patterns.fused_stage import fuse_stages, independent_groups
from tunewright.search_space.sketches import default_schedule, lower, sketch, spaces
from tunewright.tuner.models.model import open_for

from .oracle import GPU, interpret
from .test_sketches import agree, tasks_of


def launches(task):
    """The launches of a task's default."""
    body = lower(Candidate(task, GPU, default_schedule(task, GPU))).body
    return len(body.body) if isinstance(body, Block) else 1


def compiles(task):
    """The task's default is compiled where there is a compiler, and writes no registers out."""
    kernel = lower(Candidate(task, GPU, default_schedule(task, GPU)))
    try:
        artifact = build(kernel, GPU)
    except nvrtc.NoCompiler:
        return
    assert all(usage.stack_bytes == usage.spill_store_bytes == 0 for usage in artifact.usage.values())


def right(task, name):
    """The default and a schedule more of a sketch come to what the oracle does."""
    inputs = example_inputs(task, 0)
    expected = reference(task, inputs)
    space = sketch(name).space(task, GPU)
    for schedule in (space.default, *map(space.schedule, space.sample(1, np.random.default_rng(0)))):
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


SHAPES = {
    "whole": (70, 6, 64),
    "shared": (70, 2, 64),
    "many": (2, 3, 70, 64),
    "heads": (6, 70, 64),
    "flat": (70, 384),
    "one": (1,),
}
"""What Reshape, Expand and Unsqueeze are told, by name."""


def model_of(inputs, nodes, shapes=MappingProxyType({}), **weights):
    """A model in float16 with random weights, as its bytes. `shapes`: what Reshape and the like are told more."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => (float16 y) {{ {nodes} }}'
    )
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float16) / 16 for name, shape in weights.items()}
    arrays |= {name: np.array(shape) for name, shape in {**SHAPES, **shapes}.items()} | {
        "scale": np.float16(0.125),
        "low": np.float16(-1e4),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return model.SerializeToString()


ATTENTION = """
    {heads}
    qt = Transpose<perm=[1, 0, 2]>(qh) kt = Transpose<perm=[1, 0, 2]>(kh) vt = Transpose<perm=[1, 0, 2]>(vh)
    {copies}
    s = MatMul(qt, kr) t = Mul(s, scale) {masked} a = Softmax(b) o = MatMul(a, vc)
    z = Transpose<perm=[1, 0, 2]>(o) y = Reshape(z, flat)
"""

ONE_PROJECTION = """
    p = MatMul(x, w) q, k, v = Split<axis=1, num_outputs=3>(p)
    qh = Reshape(q, whole) kh = Reshape(k, whole) vh = Reshape(v, whole)
"""
"""As GPT-2 has it: the heads of queries, keys and values lie side by side."""

PLAIN = "kr = Transpose<perm=[0, 2, 1]>(kt) vc = Identity(vt)"

GROUPED = """
    q = MatMul(x, w) k = MatMul(x, u) v = MatMul(x, r)
    qh = Reshape(q, whole) kh = Reshape(k, shared) vh = Reshape(v, shared)
"""

COPIES = """
    ke = Unsqueeze(kt, one) kx = Expand(ke, many) kc = Reshape(kx, heads) kr = Transpose<perm=[0, 2, 1]>(kc)
    ve = Unsqueeze(vt, one) vx = Expand(ve, many) vc = Reshape(vx, heads)
"""
"""As exporters write it where three heads of queries share the keys and values of one."""


MASKS = {
    "added": ("float16[70, 70] mask", "b = Add(t, mask)"),
    "of heads": ("float16[6, 1, 70] mask", "b = Add(mask, t)"),
    "chosen": ("bool[1, 70, 70] mask", "b = Where(mask, t, low)"),
    "left out": ("bool[70] mask", "b = Where(mask, low, t)"),
    "in float32": ("float[1, 70, 70] mask", "f = Cast<to=1>(t) g = Add(f, mask) h = Softmax(g) a = Cast<to=10>(h)"),
}
"""By name: the mask, and how scores become what the softmax is of, or the softmax."""


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("heads", "copies", "weights"),
    [
        (ONE_PROJECTION, PLAIN, {"w": (128, 1152)}),
        (GROUPED, COPIES, {"w": (128, 384), "u": (128, 128), "r": (128, 128)}),
    ],
    ids=["one projection", "groups"],
)
def test_attention_of_many_queries_is_one_launch(heads, copies, weights, mask):
    inputs, masked = MASKS[mask]
    nodes = ATTENTION.format(heads=heads, copies=copies, masked=masked)
    nodes = nodes.replace(" a = Softmax(b)", "") if "Softmax" in masked else nodes
    model = open_for(GPU, model_of(f"float16[70, 128] x, {inputs}", nodes, **weights))
    assert not model.chains
    [task] = [task for task, _ in model.tasks.values() if "Softmax" in task.op]
    assert [space.sketch for space in spaces(task, GPU)][:2] == ["specialized_attention", "attention_tiles"]
    assert launches(task) == 1
    right(task, "specialized_attention")
    right(task, "attention_tiles")


def test_attention_of_few_queries_is_measured():
    """One query for each of three heads that share keys: too few for a GPU, unless there are many groups."""
    nodes = """
        ke = Unsqueeze(k, one) kx = Expand(ke, many) kc = Reshape(kx, heads) kr = Transpose<perm=[0, 2, 1]>(kc)
        ve = Unsqueeze(v, one) vx = Expand(ve, many) vc = Reshape(vx, heads)
        s = MatMul(q, kr) a = Softmax(s) y = MatMul(a, vc)
    """
    inputs = "float16[6, 1, 64] q, float16[2, 70, 64] k, float16[2, 70, 64] v"
    model = open_for(GPU, model_of(inputs, nodes))
    [chain] = model.chains
    assert len(chain.calls) == 3
    [segment] = chain.segments
    assert [space.sketch for space in spaces(segment.call.task, GPU)][:1] == ["specialized_attention"]


@pytest.mark.parametrize(
    ("kind", "queries", "keys", "depth"),
    [("float", 512, 512, 64), ("float16", 512, 512, 136), ("float16", 32, 70, 65), ("float16", 32, 70, 127)],
)
def test_other_attention_is_several_calls(kind, queries, keys, depth):
    """No kernel computes it in one launch: nothing is offered, and nothing is searched in vain."""
    nodes = "r = Transpose<perm=[0, 2, 1]>(k) s = MatMul(q, r) a = Softmax(s) y = MatMul(a, v)"
    inputs = ", ".join(f"{kind}[4, {queries if name == 'q' else keys}, {depth}] {name}" for name in "qkv")
    text = f"g ({inputs}) => ({kind} y) {{ {nodes} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    opened = open_for(GPU, model.SerializeToString())
    assert not opened.chains
    assert not any("MatMul" in task.op and "Softmax" in task.op for task, _ in opened.tasks.values())


LONG = 131_101
"""A prime, so that threads read one element at a time; no number of warps has room for so many."""


@pytest.mark.parametrize(
    "text",
    [
        f"float16: x[3, {LONG}] | y = Softmax(x) | y",
        f"float16: x[1, {LONG}] | y = Softmax(x) | y",
        "float16: x[2, 131072] s[131072] z[131072] | y = LayerNormalization(x, s, z) | y ; s z",
        f"float16: x[2, {LONG}] | t = ArgMax<axis=1>(x) f = Cast<to=10>(t) y = Mul(f, f) | y",
        f"x[1, {LONG}] | y = LogSoftmax(x) | y",
        "x[1, 65536] s[65536] z[65536] | y = LayerNormalization(x, s, z) | y ; s z",
        "float16: x[1, 98304] | y = Softmax(x) | y",
        "float16: x[1, 65536] | t = ArgMax<axis=1>(x) f = Cast<to=10>(t) y = Mul(f, f) | y",
        "double: x[1, 20000] | y = LogSoftmax(x) | y",
    ],
    ids=[
        "softmax",
        "softmax of a row",
        "layer norm",
        "index of the largest",
        "log softmax",
        "long layer norm",
        "long softmax",
        "even index of the largest",
        "float64",
    ],
)
def test_rows_longer_than_registers_are_one_launch(text):
    [task] = tasks_of(text, {})
    assert default_schedule(task, GPU).sketch == "row_blocks"
    assert launches(task) == 1
    compiles(task)
    right(task, "row_blocks")


@pytest.mark.parametrize("columns", [67, 768])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_indices_are_exchanged_by_lanes(op, columns):
    [task] = tasks_of(f"float16: x[5, {columns}] | t = {op}<axis=1>(x) f = Cast<to=10>(t) y = Neg(f) | y", {})
    assert default_schedule(task, GPU).sketch == "row_blocks"
    compiles(task)
    right(task, "row_blocks")


def test_a_long_sum_is_for_many_blocks():
    [task] = tasks_of("float16: x[1, 1048576] | y = ReduceSum<keepdims=1>(x, axes) | y ; axes", {})
    assert default_schedule(task, GPU).sketch == "shared_folds"


def test_images_are_normalised_by_channels():
    text = "float16: x[2, 16, 20, 21] s[16] b[16] | y = InstanceNormalization(x, s, b) | y ; s b"
    [task] = tasks_of(text, {})
    assert default_schedule(task, GPU).sketch == "row_blocks"
    assert launches(task) == 1
    right(task, "row_blocks")


CONCAT = "float16: x[3, {a}] z[3, {b}] | n = Neg(x) t = Concat<axis=1>(n, z, x) y = Abs(t) | y"

ROTARY = (
    "float16: x[5, {c}] c[{c}] s[{c}] | a, b = Split<axis=1, num_outputs=2>(x) n = Neg(b) r = Concat<axis=1>(n, a)"
    " t = Mul(x, c) u = Mul(r, s) y = Add(t, u) | y ; c s"
)
"""Rotary embeddings: the halves of each row change places."""


@pytest.mark.parametrize("text", [CONCAT, ROTARY], ids=["concat", "rotary"])
@pytest.mark.parametrize("sizes", [{"a": 7, "b": 300, "c": 34}, {"a": 64, "b": 8, "c": 128}], ids=["odd", "even"])
def test_parts_of_a_tensor_are_one_launch(text, sizes):
    task = max(tasks_of(text, sizes), key=lambda task: len(task.stages))
    assert default_schedule(task, GPU).sketch == "elements"
    assert launches(task) == 1
    compiles(task)
    right(task, "elements")


def test_what_reads_a_result_waits_for_it():
    [task] = tasks_of("x[40, 7] | y = Softmax(x) | y", {})
    assert [len(group) for group in independent_groups(fuse_stages(task))] == [1, 1, 1, 1]
