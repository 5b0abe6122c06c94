"""A rewrite gives the same bits, or is one of `docs/numerics.md` and does nothing where a step function follows."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.ir import Graph
from tunewright.graph.numerics import Numerics
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import STEPS, rewrite, weight_types
from tunewright.graph.rounding import decisive_tensors, has_exact_inverse

ROUNDED = frozenset(item.name for step in STEPS for item in step.rewrites if item.rounds)
"""The rewrites that may round in another way."""

BIG, TINY = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
WHOLES = [0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 41.0, 82.0, 205.0, 255.0, 2999.0, 16777216.0]
HALVES = [0.5, 1.5, 2.5, 20.5, 127.5]
SPECIAL = [-0.0, np.inf, np.nan, 1e-45, 1e-40, TINY, BIG, 3e38, 1e20, 1e-25]
CONSTANTS = [
    0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 5.0, 6.0, 41.0, 0.5, 0.25, 1 / 3, 1 / 6, 0.9999, 1e-25, 1e25, 1e-40, 3e38, TINY,
    12582912.0, -12582912.0, 16777216.0, np.inf, -np.inf,
]  # fmt: skip
ROWS, WIDTH = 6, 12


class Draw:
    """A random model over tensors [ROWS, WIDTH], node by node; most steps take the newest tensor."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._values = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self.all = ["x"]
        self.sums = 0
        for _ in range(self.rng.randrange(2, 7)):
            self.rng.choice(PIECES)(self, self.rng.choice(self.all[-3:]))
        self.is_stepped = self.rng.random() < 0.6
        if self.is_stepped:
            self.rng.choice(STEP_FUNCTIONS)(self, self.all[-1])

    def constant(self, array: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self._weights)}"))
        return f"w{len(self._weights) - 1}"

    def number(self, *choice: float) -> str:
        return self.constant(np.float32(self.rng.choice(choice or CONSTANTS)))

    def numbers(self, *shape: int) -> str:
        return self.constant(self._values.choice(np.asarray(CONSTANTS[:-2], np.float32), shape))

    def weights(self, *shape: int) -> str:
        return self.constant((self._values.integers(-8, 9, shape) / 4).astype(np.float32))

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attrs))
        return name

    def push(self, kind: str, *inputs: str, **attrs: Any) -> None:
        self.all.append(self.op(kind, *inputs, **attrs))

    def model(self) -> ModelProto:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])]
        graph = helper.make_graph(
            self._nodes, "g", inputs, [helper.make_empty_tensor_value_info(self.all[-1])], self._weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def constant_op(d: Draw, x: str) -> None:
    c = d.number() if d.rng.random() < 0.7 else d.numbers(WIDTH)
    kind = d.rng.choice(["Add", "Sub", "Mul", "Div", "Div", "Pow", "Max", "Min"])
    d.push(kind, *((x, c) if kind == "Pow" or d.rng.random() < 0.8 else (c, x)))


def power(d: Draw, x: str) -> None:
    d.push("Pow", x, d.number(1.0, 2.0, 3.0, 0.5, -0.5, -1.0, 0.0))


def both(d: Draw, x: str) -> None:
    d.push(d.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"]), x, d.rng.choice(d.all))


def many(d: Draw, x: str) -> None:
    d.push(d.rng.choice(["Sum", "Mean", "Max", "Min"]), x, d.rng.choice(d.all), d.number())


def unary(d: Draw, x: str) -> None:
    d.push(d.rng.choice(["Neg", "Abs", "Relu", "Identity", "Sqrt", "Reciprocal", "Sigmoid", "Exp", "Softsign"]), x)


def clip(d: Draw, x: str) -> None:
    low, high = sorted(d.rng.sample([-1.0, 0.0, 0.9999, 1.0, 6.0, 41.0], 2))
    d.push("Clip", x, *d.rng.choice([[d.number(low), d.number(high)], [d.number(0.0)], ["", d.number(high)]]))


def rounded_by_addition(d: Draw, x: str) -> None:
    magic = d.number(12582912.0)
    d.push("Sub", d.op("Add", x, magic), magic)


def two_scales(d: Draw, x: str) -> None:
    d.push("Mul", d.op("Mul", x, d.number(1e-25, 1e25, 0.1, 3.0)), d.number(1e-25, 1e25, 0.3, 7.0))


def movement(d: Draw, x: str) -> None:
    y = d.op("Transpose", d.op("Reshape", x, d.constant(np.array([ROWS, 3, 4]))), perm=[0, 2, 1])
    y = y if d.rng.random() < 0.5 else d.op("Mul", y, d.number(0.5, 1 / 3))
    d.push("Reshape", d.op("Transpose", y, perm=[0, 2, 1]), d.constant(np.array([ROWS, WIDTH])))


def folded(d: Draw, x: str) -> None:
    kind = d.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"])
    d.push("Add", d.rng.choice(d.all), d.op(kind, x, d.constant(np.array([-1])), keepdims=1))


def masked(d: Draw, x: str) -> None:
    mask = np.where(np.arange(WIDTH) < 7, 0.0, -np.inf).astype(np.float32)
    d.push("Add", x, d.constant(mask))


def gelu(d: Draw, x: str) -> None:
    curve = d.op("Erf", d.op("Mul", x, d.number(0.70710678, 0.7071, 0.7)))
    d.push("Mul", d.op("Mul", x, d.number(0.5)), d.op("Add", curve, d.number(1.0)))


def hard_swish(d: Draw, x: str) -> None:
    gate = d.op("Clip", d.op("Add", x, d.number(3.0)), d.number(0.0), d.number(6.0, 5.999))
    d.push("Div", d.op("Mul", x, gate), d.number(6.0))


def hard_sigmoid(d: Draw, x: str) -> None:
    d.push(
        "Clip", d.op("Add", d.op("Mul", x, d.number(1 / 6, 0.2)), d.number(0.5)), d.number(0.0), d.number(1.0, 0.9999)
    )


def softmax(d: Draw, x: str) -> None:
    last = d.constant(np.array([-1]))
    power = d.op("Exp", d.op("Sub", x, d.op("ReduceMax", x, last)))
    d.push("Div", power, d.op("ReduceSum", power, last))


def layer_norm(d: Draw, x: str) -> None:
    last = d.constant(np.array([-1]))
    centred = d.op("Sub", x, d.op("ReduceMean", x, last))
    variance = d.op("Add", d.op("ReduceMean", d.op("Mul", centred, centred), last), d.number(0.25))
    y = d.op("Div", centred, d.rng.choice([d.op("Sqrt", variance), d.op("Pow", variance, d.number(0.5))]))
    d.push("Add", d.op("Mul", y, d.weights(WIDTH)), d.weights(WIDTH))


def whole_norm(d: Draw, x: str) -> None:
    y = d.op("LayerNormalization", x, d.weights(WIDTH), d.weights(WIDTH))
    d.push(d.rng.choice(["Add", "Mul"]), y, d.rng.choice([d.numbers(WIDTH), d.weights(WIDTH)]))


def batch_norm(d: Draw, x: str) -> None:
    variance = d.constant(np.linspace(0.25, 4, WIDTH, dtype=np.float32))
    d.push("BatchNormalization", x, *(d.weights(WIDTH) for _ in range(3)), variance)


def product(d: Draw, x: str) -> None:
    d.sums += 1
    y = d.op("MatMul", x, d.weights(WIDTH, WIDTH))
    if d.rng.random() < 0.5:
        y = d.op("Add", y, d.weights(WIDTH))
    d.push(d.rng.choice(["Mul", "Div"]), y, d.rng.choice([d.number(0.1, 41.0, 1e-40, 3e38), d.numbers(WIDTH)]))


def gemm(d: Draw, x: str) -> None:
    d.sums += 1
    alpha = d.rng.choice([1.0, 0.5, 1 / 3, 1e-40])
    d.push("Gemm", x, d.weights(WIDTH, WIDTH), d.weights(WIDTH), alpha=alpha, beta=d.rng.choice([0.0, 1.0, 0.3]))


def convolution(d: Draw, x: str) -> None:
    d.sums += 1
    image = d.op("Reshape", x, d.constant(np.array([1, ROWS, WIDTH, 1])))
    bias = [d.weights(ROWS)] if d.rng.random() < 0.5 else []
    y = d.op("Conv", image, d.weights(ROWS, ROWS, 1, 1), *bias)
    if d.rng.random() < 0.5:
        variance = d.constant(np.linspace(0.25, 4, ROWS, dtype=np.float32))
        y = d.op("BatchNormalization", y, *(d.weights(ROWS) for _ in range(3)), variance)
    else:
        y = d.op("Add", d.op("Mul", y, d.numbers(ROWS, 1, 1)), d.numbers(ROWS, 1, 1))
    d.push("Reshape", y, d.constant(np.array([ROWS, WIDTH])))


def narrow(d: Draw, x: str) -> None:
    y = d.op("Mul", d.op("Cast", x, to=TensorProto.FLOAT16), d.constant(np.float16(d.rng.choice([0.1, 3.0, 1 / 3]))))
    d.push("Cast", y, to=TensorProto.FLOAT)


PIECES: list[Callable[[Draw, str], None]] = [
    constant_op, constant_op, constant_op, power, both, many, unary, unary, clip, clip, rounded_by_addition, two_scales,
    movement, folded, masked, gelu, hard_swish, hard_sigmoid, softmax, layer_norm, whole_norm, batch_norm, product,
    gemm, convolution, narrow,
]  # fmt: skip


def compared(d: Draw, x: str) -> None:
    d.push(d.rng.choice(["Greater", "LessOrEqual", "Equal"]), x, d.number(0.0, 0.5, 1.0, 3.0))


STEP_FUNCTIONS: list[Callable[[Draw, str], None]] = [
    *(partial(lambda kind, d, x: d.push(kind, x), kind) for kind in ("Floor", "Ceil", "Round", "Sign")),
    lambda d, x: d.push("Cast", x, to=TensorProto.BOOL),
    lambda d, x: d.push("ArgMax", x, axis=-1),
    lambda d, x: d.push("QuantizeLinear", x, d.number(0.1), d.constant(np.uint8(128))),
    compared,
]


def inputs_of(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1, 1], np.float32), (3, ROWS, WIDTH))
    kinds: list[Any] = [[*WHOLES, *HALVES], [*WHOLES, *HALVES, *SPECIAL], np.arange(1, 300)]
    return [
        sign * rng.choice(np.asarray(kind, np.float32), sign.shape) for sign, kind in zip(signs, kinds, strict=True)
    ]


def same_bits(result: Any, expected: Any) -> bool:
    """NaN is NaN, whatever its bits."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(result, expected))
    nan = np.isnan(expected)
    bits = np.dtype(f"u{expected.itemsize}")
    return bool((np.isnan(result) == nan).all() and (result.view(bits) == expected.view(bits))[~nan].all())


def rewrites_of(graph: Graph) -> list[tuple[str, Graph, Graph]]:
    """What each rewrite changed: its name, the graph before and after it."""
    changes = []
    for step in STEPS:
        if step.name == "keep bytes" or any(item.rounds == "precision" for item in step.rewrites):
            continue
        for _ in range(1 if step.once else 20):
            start = graph
            for item in step.rewrites:
                changed = item.run(graph)
                if changed is not graph:
                    changes.append((item.name, graph, changed))
                graph = changed
            if graph is start:
                break
    return changes


DRAWN = 400
"""Models that are drawn."""


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also weights that are too small for another type to matter."""
    monkeypatch.setattr(weight_types, "LEAST_BYTES", 1)


@pytest.mark.parametrize("first", range(0, DRAWN, 20))
def test_every_rewrite_keeps_the_bits_or_is_of_the_table(first: int, runs: Any):
    for seed in range(first, first + 20):
        draw = Draw(seed)
        graph = load(draw.model().SerializeToString())
        feeds = inputs_of(seed)
        results: dict[int, list[Any]] = {}

        def run(graph: Graph, feeds: list[Any] = feeds, results: dict[int, Any] = results) -> list[Any]:
            if id(graph) not in results:
                results[id(graph)] = [runs.nodes(graph, {graph.inputs[0].tensor: x})[0] for x in feeds]
            result: list[Any] = results[id(graph)]
            return result

        for name, before, after in rewrites_of(graph):
            before_sums = 0 if name == "narrow floats" else 1  # what feeds a sum of products is not decisive
            if name not in ROUNDED or (draw.is_stepped and draw.sums <= before_sums):
                for result, expected in zip(run(after), run(before), strict=True):
                    assert same_bits(result, expected), f"seed {seed}: {name}:\n{before}\n{after}"


def test_no_rewrite_that_these_models_are_for_was_left_out():
    """They are drawn so that each finds something to do; those on bytes and recurrences have tests of their own."""
    bytewise = {"quantised ops", "products of floats", "products of bytes", "zero points", "dequantised"}
    bytewise |= {"biases", "signed weights", "unsigned activations", "scales of outputs", "moved bytes"}
    bytewise |= {"dots of bytes", "other products of floats", "products of blocks of bytes"}
    others = {"zero points that are kept", "recurrences", "pools over all", "pads", "dead code", "constant folding"}
    others |= {"interpolations", "sub-kernels", "empty tensors", "products of blocks", "copies", "groups of heads"}
    others |= {"bounds of sizes", "cut outputs", "exact activations", "rounded activations", "rows that are written"}
    others |= {"whole rows", "causal masks", "products of blocks on GPUs"}
    asked_for = {item.name for step in STEPS for item in step.rewrites if item.rounds == "precision"}
    left_out = {item.name for step in STEPS for item in step.rewrites} - bytewise - others - asked_for
    for seed in range(DRAWN):
        graph = load(Draw(seed).model().SerializeToString())
        left_out.difference_update(name for name, _, _ in rewrites_of(graph))
        if not left_out:
            break
    assert not left_out


def model(*nodes: Any, opset: int = 18, **weights: Any) -> Graph:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, tensors)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString())


@pytest.mark.parametrize("weight", [1 / 3, 3])
def test_what_is_decisive(weight: float):
    """What a step reads and is made of, through sums of products that may be exact."""
    graph = model(
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "s"], ["d"]),
        helper.make_node("ArgMax", ["d"], ["y"]),
        w=np.full((WIDTH, 4), weight, np.float32),
        s=np.array([4, ROWS]),
    )
    outputs = {node.op: node.outputs[0] for node in graph.nodes}
    behind = {outputs["MatMul"], outputs["Relu"], outputs["Reshape"]}
    assert decisive_tensors(graph) & set(outputs.values()) == (behind if weight < 1 else behind | {outputs["Exp"]})
    smooth = model(helper.make_node("Softmax", ["x"], ["y"]))
    assert not decisive_tensors(smooth)


EDGED = {
    "Sqrt": ["d = Sub(one, a)", "y = Sqrt(d)"],
    "Pow": ["d = Sub(one, a)", "y = Pow(d, half)"],
    "Log": ["d = Sub(one, a)", "y = Log(d)"],
    "Acos": ["y = Acos(a)"],
    "Asin": ["n = Neg(a)", "y = Asin(n)"],
    "Atanh": ["r = Relu(a)", "y = Atanh(r)"],
    "Acosh": ["y = Acosh(a)"],
    "Reciprocal": ["d = Sub(one, a)", "y = Reciprocal(d)"],
    "Div": ["d = Sub(one, a)", "y = Div(d, d)"],
    "a square": ["d = Sub(one, a)", "s = Mul(d, d)", "y = Div(one, s)"],
    "one minus a square": ["s = Mul(a, a)", "n = Neg(s)", "d = Add(n, one)", "y = Sqrt(d)"],
    "a square and little": ["d = Sub(one, a)", "s = Mul(d, d)", "t = Add(s, little)", "r = Sqrt(t)", "y = Div(d, r)"],
    "one minus an exponential": ["d = Sub(a, one)", "e = Exp(d)", "f = Sub(one, e)", "y = Sqrt(f)"],
    "a dividend": ["d = Sub(one, a)", "z = Floor(half)", "m = Mul(x, z)", "s = ReduceMax(m)", "y = Div(d, s)"],
}


def parsed(*statements: str, **weights: Any) -> Graph:
    """A model in ONNX's text form; weights that are floats are float32."""
    nodes = parser.parse_graph(f"g (float[{ROWS},{WIDTH}] x) => (float[{ROWS},n] y) {{ {' '.join(statements)} }}").node
    arrays: dict[str, Any] = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    return model(*nodes, **arrays)


@pytest.mark.parametrize("divisor", [41, 49])
@pytest.mark.parametrize("edge", EDGED)
def test_what_is_exactly_at_an_edge_stays_there(edge: str, divisor: int, runs: Any):
    """The quotient is 1: a root, a logarithm or a pole of what is next to it would be NaN, or far away."""
    weights = {"w": np.ones((WIDTH, 4)), "c": divisor, "one": 1, "half": 0.5, "little": 1e-12}
    graph = parsed("p = MatMul(x, w)", "a = Div(p, c)", *EDGED[edge], **weights)
    x = np.zeros((ROWS, WIDTH), np.float32)
    x[:, 3] = divisor
    (expected,) = runs.nodes(graph, {"v0": x})
    (result,) = runs.steps(rewrite(graph), {"v0": x})
    np.testing.assert_array_equal(result, expected)


def test_batch_normalization_before_an_edge_is_in_the_order_of_onnx(runs: Any):
    """The sum of products is the mean: the root of what is left is 0, and not NaN."""
    moments = {"s": np.full(WIDTH, 1.1), "z": np.zeros(WIDTH), "m": np.full(WIDTH, 41), "v": np.full(WIDTH, 3)}
    normalised = "n = BatchNormalization <epsilon: float = 0.0> (p, s, z, m, v)"
    graph = parsed("p = MatMul(x, w)", normalised, "y = Sqrt(n)", w=np.ones((WIDTH, WIDTH)), **moments)
    (result,) = runs.steps(rewrite(graph), {"v0": np.eye(ROWS, WIDTH, dtype=np.float32) * 41})
    assert not result.any()


ELSEWHERE = {
    "Softmax": ["e = Exp(q)", "t = ReduceSum(e, last)", "y = Div(e, t)"],
    "a norm": ["s = Mul(q, q)", "m = ReduceMean(s, last)", "v = Add(m, one)", "r = Sqrt(v)", "y = Div(q, r)"],
    "a gate": ["n = Neg(q)", "e = Exp(n)", "d = Add(e, one)", "y = Div(q, d)"],
}


@pytest.mark.parametrize("rest", ELSEWHERE)
def test_where_no_edge_is_near_nothing_is_decisive(rest: str):
    """What divides in norms is positive, or made of squares and a constant: scales before them may be moved."""
    weights = {"w": np.ones((WIDTH, 4)), "c": 41, "one": 1}
    before = ["last = Constant <value_ints = [-1]> ()", "p = MatMul(x, w)", "q = Div(p, c)"]
    graph = parsed(*before, *ELSEWHERE[rest], **weights)
    (scaled,) = (node.outputs[0] for node in graph.nodes if node.op == "Div" and node.inputs[1] in graph.constants)
    assert scaled not in decisive_tensors(graph)


ROUNDED_BY_ADDITION = [
    (TensorProto.FLOAT, 12582912, True),
    (TensorProto.FLOAT, 12582912, False),
    (TensorProto.FLOAT16, 512, True),
    (TensorProto.BFLOAT16, 192, True),
]


@pytest.mark.parametrize("between", ["b2 = Identity(d)", "b2 = Clip(d)", "r = Neg(d) b2 = Neg(r)"])
@pytest.mark.parametrize(("dtype", "shift", "is_constant"), ROUNDED_BY_ADDITION)
def test_rounding_by_addition_is_a_step(dtype: int, shift: float, is_constant: bool, between: str, runs: Any):
    """Of a tensor, known or not, that is added and taken away again: scales before it stay apart."""
    graph = parsed(
        "b = Mul(x, s)",
        "c = Mul(b, t)",
        f"n = Cast <to = {dtype}> (c)",
        "k = Identity(m)" if is_constant else "l = ReduceMax <keepdims = 0> (x) i = Mul(l, zero) k = Add(i, m)",
        f"o = Cast <to = {dtype}> (k)",
        "d = Add(n, o)",
        between,
        "e = Sub(b2, o)",
        "y = Cast <to = 1> (e)",
        s=0.7,
        t=10,
        m=shift,
        zero=0,
    )
    x = np.linspace(-9, 9, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    (expected,) = runs.nodes(graph, {"v0": x})
    (result,) = runs.steps(rewrite(graph), {"v0": x})
    assert np.abs(expected - x * np.float32(7)).max() > 0.1
    np.testing.assert_array_equal(result, expected)
    assert {node.outputs[0] for node in graph.nodes[:2]} <= decisive_tensors(graph)


def test_a_large_constant_that_a_gemm_adds_rounds_too(runs: Any):
    weights = {"w": np.ones((WIDTH, 1)), "m": np.full(1, 12582912)}
    graph = parsed("d = Gemm <alpha: float = 0.3> (x, w, m)", "y = Sub(d, m)", **weights)
    for seed in range(20):
        x = np.random.default_rng(seed).integers(0, 4, (ROWS, WIDTH)).astype(np.float32)
        (expected,) = runs.nodes(graph, {"v0": x})
        (result,) = runs.steps(rewrite(graph), {"v0": x})
        np.testing.assert_array_equal(result, expected)


def test_attributes_that_differ_by_the_sign_of_zero_are_two(runs: Any):
    graph = parsed(
        "a = LeakyRelu <alpha: float = 0.0> (x)",
        "b = LeakyRelu <alpha: float = -0.0> (x)",
        "c = Reciprocal(a)",
        "d = Reciprocal(b)",
        "y = Sub(c, d)",
    )
    (result,) = runs.steps(rewrite(graph), {"v0": np.full((ROWS, WIDTH), -1, np.float32)})
    assert np.isinf(result).all()


MOVES = {
    "none": "m = Identity(a)",
    "Transpose": "t = Transpose(a) m = Transpose(t)",
    "Gather": "m = Gather <axis = 1> (a, i)",
    "Split": "u, v = Split <axis = 1, num_outputs = 2> (a) m = Concat <axis = 1> (u, v)",
    "Where": "f = Cast <to = 9> (a) m = Where(f, a, a)",
    "Max": "n = Neg(a) m = Max(a, n)",
    "Relu": "m = Relu(a)",
    "Clip": "m = Clip(a)",
    "Resize": 's = Constant <value_floats = [1.0, 1.0]> () m = Resize <mode: string = "nearest"> (a, , s)',
    "another cast": "m = Cast <to = 16> (a)",
}


@pytest.mark.parametrize("to", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("move", MOVES)
def test_a_cast_to_a_narrow_type_and_back_rounds(to: int, move: str, runs: Any):
    """Else `x - Cast(Cast(x))`, what rounding takes away, would be 0."""
    graph = parsed(
        f"i = Constant <value_ints = {list(range(WIDTH))}> ()",
        "e = Mul(x, third)",
        f"a = Cast <to = {to}> (e)",
        MOVES[move],
        "b = Cast <to = 1> (m)",
        "y = Sub(e, b)",
        third=1 / 3,
    )
    feeds = {graph.inputs[0].tensor: np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)}
    (expected,) = runs.nodes(graph, feeds)
    (result,) = runs.steps(rewrite(graph), feeds)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_array_equal(result, expected)


def test_batch_normalization_before_a_step_is_in_the_order_of_onnx(runs: Any):
    """Whole numbers times the reciprocal of a root are next to whole numbers: their floor would be one less."""
    graph = model(
        helper.make_node("BatchNormalization", ["x", "s", "z", "z", "v"], ["n"], epsilon=0.0),
        helper.make_node("Floor", ["n"], ["y"]),
        s=np.full(WIDTH, 41, np.float32),
        z=np.zeros(WIDTH, np.float32),
        v=np.full(WIDTH, 41 * 41, np.float32),
    )
    feeds = {graph.inputs[0].tensor: np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)}
    (result,) = runs.steps(rewrite(graph), feeds)
    np.testing.assert_array_equal(result, feeds[graph.inputs[0].tensor])


def test_a_divisor_next_to_nothing_has_no_inverse(recwarn: pytest.WarningsRecorder):
    assert not any(has_exact_inverse(value, "float32") for value in (1e-45, -1e-45, 2.0**-149, 2.0**127 * 2))
    assert not recwarn.list


MEANS = [
    ("ReduceMean", {"axes": [1], "keepdims": 1}, (2, 41)),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, (1, 2, 7, 5)),
    ("AveragePool", {"kernel_shape": [41]}, (1, 2, 47)),
    ("GlobalAveragePool", {}, (1, 3, 7, 7)),
]


@pytest.mark.parametrize(("op", "attrs", "shape"), MEANS)
def test_the_mean_of_equal_whole_numbers_is_that_number(op: str, attrs: dict[str, Any], shape: Any, runs: Any):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    nodes = [helper.make_node(op, ["x"], ["a"], **attrs), helper.make_node("Floor", ["a"], ["y"])]
    proto = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    graph = rewrite(load(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()))
    for whole in (1, 3, 41, 997):
        (y,) = runs.steps(graph, {"v0": np.full(shape, whole, np.float32)})
        np.testing.assert_array_equal(y, np.full(y.shape, whole))


SMALL: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "Softplus": (lambda x: np.log1p(np.exp(x)), [-80.0, -20.0, -5.0, -1e-3, 0.0, 3.0, 100.0]),
    "Elu": (np.expm1, [-20.0, -1.0, -0.41, -0.39, -1e-3, -1e-7, -1e-30]),
    "Celu": (np.expm1, [-20.0, -1.0, -0.41, -0.39, -1e-3, -1e-7, -1e-30]),
}


@pytest.mark.parametrize("op", SMALL)
def test_small_results_have_all_digits(op: str, runs: Any):
    exact, places = SMALL[op]
    x = np.resize(np.array(places, np.float32), (ROWS, WIDTH))
    (y,) = runs.steps(model(helper.make_node(op, ["x"], ["y"])), {"v0": x})
    np.testing.assert_allclose(y, exact(x.astype(np.float64)), rtol=5e-7)


def test_celu_may_grow_below_zero(runs: Any):
    x = np.linspace(-9, 0, ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    (y,) = runs.steps(model(helper.make_node("Celu", ["x"], ["y"], alpha=-0.5)), {"v0": x})
    np.testing.assert_allclose(y, -0.5 * np.expm1(x.astype(np.float64) / -0.5), rtol=1e-6)


def test_the_scale_of_a_product_stays_where_a_step_follows():
    def calls(factor: float, *after: str) -> int:
        nodes = [
            helper.make_node("Mul", ["x", "factor"], ["a"]),
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["a", "t"], ["b"]),
            *(helper.make_node(op, [name], [output]) for op, name, output in zip(after, "bc", "cd", strict=False)),
            helper.make_node("Identity", ["bcd"[len(after)]], ["y"]),
        ]
        return sum(isinstance(step, TaskCall) for step in partition(rewrite(model(*nodes, factor=np.float32(factor)))))

    assert calls(0.3) == calls(0.3, "Relu") == 1
    assert calls(0.3, "Relu", "Floor") == 2
    assert calls(1e-6) == calls(1.5) == 2


def test_what_is_narrow_is_rounded_before_a_step(runs: Any):
    """2049 is no float16: the sum is 2048 there, as ties go to the even one."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["a", "one"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.INT32),
    ]
    for widen in (True, False):
        graph = rewrite(model(*nodes, one=np.float16(1)), numerics=Numerics(widen=widen))
        (y,) = runs.steps(graph, {"v0": np.full((ROWS, WIDTH), 2048, np.float32)})
        np.testing.assert_array_equal(y, np.full((ROWS, WIDTH), 2048))


def test_doubles_keep_their_digits():
    """Not even the epsilon of a norm, an attribute in float32, is worth them."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [ROWS, WIDTH])]
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("ReduceSum", ["e", "last"], ["s"]),
        helper.make_node("Div", ["e", "s"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Mul", ["b", "third"], ["y"]),
    ]
    weights = {"last": np.array([-1]), "w": np.ones((WIDTH, 4)), "third": np.array(1 / 3)}
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], tensors)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    assert [node.op for node in rewrite(load(data)).nodes] == ["Exp", "ReduceSum", "Div", "MatMul", "Mul"]


def test_the_table_in_the_docs_has_every_rewrite_that_rounds():
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    table = text[text.index("| rewrite |") :].split("\n\n")[0]
    rows = {line.split("|")[1].strip() for line in table.splitlines()[2:]}
    by_fusion = {"the scale of attention"}  # graph/fusion/groups.py
    assert rows == {item.rounds for step in STEPS for item in step.rewrites if item.rounds} | by_fusion
