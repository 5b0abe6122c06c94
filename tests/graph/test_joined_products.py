"""Which products of one operand become one on a GPU, and that they come to what they did apart."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest

from tunewright.graph.fusion import segments
from tunewright.graph.fusion.fusion import Step, TaskCall
from tunewright.graph.fusion.joined_products import join_products
from tunewright.graph.fusion.segments import chains
from tunewright.graph.ir import Array, Graph
from tunewright.graph.numerics import Numerics, Precision
from tunewright.graph.onnx_import import load
from tunewright.graph.rewrites import rewrite

SMS = 132
"""Multiprocessors of the GPU that is asked for."""

KINDS = {"float": np.float32, "float16": np.float16, "double": np.float64, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models here are small ones."""
    monkeypatch.setattr(segments, "SMALLEST_BYTES", 0)


AS_STORED = Numerics(widen=False)


def graph_of(
    text: str, known: Sequence[str] = (), dtype: str = "float", numerics: Numerics = AS_STORED
) -> tuple[Graph, dict[str, Array]]:
    """A graph as GPUs have it, from ONNX's text form, and values for its inputs; those in `known` are weights."""
    text = text.replace("float[", f"{dtype}[")
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)
    rng, kind = np.random.default_rng(0), KINDS[dtype]
    for value in [value for value in model.graph.input if value.name in known]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = (rng.standard_normal(shape) * shape[0] ** -0.5).astype(kind)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    graph = rewrite(load(model.SerializeToString()), numerics=numerics)
    return graph, {v.tensor: rng.standard_normal(graph.types[v.tensor].shape).astype(kind) for v in graph.inputs}


def ops(steps: Sequence[Step]) -> list[str]:
    """The ops of each call, in order."""
    return [step.task.op for step in steps if isinstance(step, TaskCall)]


WEIGHTS = ("wq", "wk", "wv", "bq", "bk", "bv")


def attention(heads: int = 3, pairs: int = 3, size: int = 5, *, biases: str = "qkv", more: str = "") -> str:
    """Self-attention of `heads` heads of queries to `pairs` of keys and values, over 7 places of 11 numbers."""
    columns = {"q": heads * size, "k": pairs * size, "v": pairs * size}
    weights = ", ".join(f"float[11,{n}] w{name}, float[{n}] b{name}" for name, n in columns.items())
    lines = []
    for name in columns:
        lines.append(f"m{name} = MatMul(x, w{name})")
        lines.append(f"p{name} = {f'Add(m{name}, b{name})' if name in biases else f'Identity(m{name})'}")
        if name == "q" or heads == pairs:
            lines.append(f"h{name} = Reshape(p{name}, one)")
        else:
            lines.append(f"g{name} = Reshape(p{name}, few) e{name} = Expand(g{name}, spread)")
            lines.append(f"h{name} = Reshape(e{name}, one)")
    return f"""
    g (float[1,7,11] x, {weights}) => (float[1,7,{heads * size}] y{more})
    <int64[4] one = {{1,7,{heads},{size}}}, int64[5] few = {{1,7,{pairs},1,{size}}},
     int64[5] spread = {{1,7,{pairs},{heads // pairs},{size}}}, int64[3] flat = {{1,7,{heads * size}}}>
    {{
        {" ".join(lines)}
        tq = Transpose <perm = [0,2,1,3]> (hq) tk = Transpose <perm = [0,2,3,1]> (hk)
        tv = Transpose <perm = [0,2,1,3]> (hv)
        s = MatMul(tq, tk) e = Softmax <axis = -1> (s) o = MatMul(e, tv)
        z = Transpose <perm = [0,2,1,3]> (o) y = Reshape(z, flat)
    }}
    """


TOLERANCES = {"float": 1e-5, "double": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}


def check(
    text: str, known: Sequence[str], runs, dtype: str = "float", numerics: Numerics = AS_STORED
) -> tuple[Graph, list[Step]]:
    """The graph with products joined and its steps, which compute what the nodes did before."""
    graph, feeds = graph_of(text, known, dtype, numerics)
    joined, steps = join_products(graph, SMS)
    expected = runs.nodes(graph, feeds)
    for chosen in (steps, *segmented(joined, steps)):
        for result, right in zip(runs.steps(joined, feeds, chosen), expected, strict=True):
            assert (result.shape, result.dtype) == (right.shape, right.dtype)
            result, right = result.astype(np.float64), right.astype(np.float64)
            np.testing.assert_allclose(result, right, rtol=0, atol=TOLERANCES[dtype] * np.abs(right).max())
    return joined, steps


def segmented(graph: Graph, steps: Sequence[Step]) -> list[list[Step]]:
    """The steps with each segment alone in the place of its calls."""
    result = []
    for chain in chains(graph, steps):
        for segment in chain.segments:
            *inside, last = chain.calls[segment.start : segment.stop]
            result.append([segment.call if step is last else step for step in steps if step not in inside])
    return result


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("heads", "pairs", "size", "biases"),
    [(3, 3, 5, "qkv"), (3, 3, 5, ""), (2, 2, 8, "qkv"), (6, 2, 5, "qkv"), (5, 1, 8, "")],
)
def test_self_attention(heads: int, pairs: int, size: int, biases: str, dtype: str, runs) -> None:
    joined, steps = check(attention(heads, pairs, size, biases=biases), WEIGHTS, runs, dtype)
    first, *others = ops(steps)
    assert first == ("MatMul+Add" if biases else "MatMul")
    assert len(others) == 3 and not any(op.startswith("MatMul") for op in others)
    [whole] = [step.task.outputs[0] for step in steps if isinstance(step, TaskCall) and step.task.op == first]
    assert whole.shape == (7, (heads + 2 * pairs) * size)
    [chain] = chains(joined, steps)
    [segment] = chain.segments
    assert len(segment.call.task.inputs) == 1, "queries, keys and values are read where they are"


def test_only_what_is_alike_is_joined(runs) -> None:
    """As in Whisper, whose keys have no bias."""
    _, steps = check(attention(biases="qv"), WEIGHTS, runs)
    assert sorted(ops(steps))[:2] == ["MatMul", "MatMul+Add"]
    assert len(ops(steps)) == 5


GATED = """
    g (float[9,16] x, float[16,24] a, float[16,24] b, float[24,16] c) => (float[9,16] y)
    { g = MatMul(x, a) s = Sigmoid(g) h = Mul(g, s) u = MatMul(x, b) m = Mul(h, u) y = MatMul(m, c) }
"""

MIXED = """
    g (float[9,16] x, float[16,12] a, float[16,20] b, float[16,4] c, float[12,3] d, float[20,3] e, float[4,3] f)
      => (float[9,3] y)
    {
        p = MatMul(x, a) q = MatMul(x, b) r = MatMul(x, c)
        s = MatMul(p, d) t = MatMul(q, e) u = MatMul(r, f) v = Add(s, t) y = Add(u, v)
    }
"""

RESIDUAL = """
    g (float[2,3,16] x, float[16,8] a, float[16,8] b, float[8] i, float[1,1,8] j, float[8,8] w) => (float[2,3,8] y)
    { p = MatMul(x, a) q = MatMul(x, b) k = Add(p, i) l = Add(j, q) m = Exp(k) n = MatMul(m, w) y = Add(n, l) }
"""

GEMMS = """
    g (float[9,16] x, float[12,16] a, float[12] i, float[16,12] b, float[12] j, float[12,3] c, float[12,3] d)
      => (float[9,3] y)
    { p = Gemm <transB = 1> (x, a, i) q = Gemm(x, b, j) s = MatMul(p, c) t = MatMul(q, d) y = Add(s, t) }
"""

JOINED = {
    "gate and up": (GATED, "abc", ["MatMul", "Split+Silu+Mul", "MatMul"]),
    "columns of any number": (MIXED, "abcdef", ["MatMul", "Split+MatMul", "Split+MatMul", "Split+MatMul+Add+Add"]),
    "three dimensions": (RESIDUAL, "abijw", ["MatMul+Add", "Split+Exp", "Split+MatMul+Add"]),
    "products of matrices": (GEMMS, "aibjcd", ["MatMul+Add", "Split+MatMul", "Split+MatMul+Add"]),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined(name: str, runs) -> None:
    text, known, wanted = JOINED[name]
    _, steps = check(text, list(known), runs)
    assert ops(steps) == wanted


def of_few_bits(*sizes: int) -> str:
    """Products of one operand, by weights of 16 columns and more in blocks of so many numbers, and what reads them."""
    columns = range(16, 16 + len(sizes))
    names = "abc"[: len(sizes)]
    heads = [f"float[{n * 64 // size},{size}] {name}" for name, n, size in zip(names, columns, sizes, strict=True)]
    counts = [f"int64[1] c{name} = {{{n * 64 // size}}}" for name, n, size in zip(names, columns, sizes, strict=True)]
    shapes = [f"int64[2] g{name} = {{{n}, 64}}" for name, n in zip(names, columns, strict=True)]
    weights = " ".join(
        f"q{n} = QuantizeLinear({n}, s, z) m{n} = Min(q{n}, m) s{n} = Expand(s, c{n}) z{n} = Expand(z, c{n})"
        f" d{n} = DequantizeLinear <axis = 0> (m{n}, s{n}, z{n}) r{n} = Reshape(d{n}, g{n})"
        f" t{n} = Transpose <perm = [1,0]> (r{n}) p{n} = MatMul(x, t{n}) f{n} = ReduceMax <keepdims = 1> (p{n}, last)"
        for n in names
    )
    return f"""
    g (float[2,64] x, {", ".join(heads)}) => (float[2,1] y)
    <float s = {{0.25}}, uint8 z = {{8}}, uint8 m = {{15}}, int64[1] last = {{1}}, {", ".join(counts + shapes)}>
    {{ {weights} y = Max({", ".join(f"f{n}" for n in names)}) }}
    """


@pytest.mark.parametrize(("sizes", "columns"), [((32, 32, 32), [51]), ((16, 32, 16), [17, 34]), ((16, 32), [16, 17])])
def test_weights_of_few_bits_are_joined_as_they_are(sizes: tuple[int, ...], columns: list[int], runs) -> None:
    """Those in blocks of as many numbers."""
    joined, _ = check(of_few_bits(*sizes), "abc"[: len(sizes)], runs)
    packed = [node for node in joined.nodes if node.op == "BlockMatMul"]
    assert sorted(len(joined.constants[node.inputs[1]]) for node in packed) == columns
    assert all(joined.constants[node.inputs[1]].dtype == np.uint8 for node in packed)


TWO = """
    g (float[{rows},16] x, float[{rows},16] z, float[16,24] a, float[16,24] b, float[24,24] c, float[24,24] d)
      => (float[{rows},24] y{more}) {{ p = MatMul(x, a) q = MatMul({other}, b) {rest} }}
"""


def two(
    rest: str = "s = MatMul(p, c) t = MatMul(q, d) y = Add(s, t)", other: str = "x", more: str = "", rows: int = 9
) -> str:
    """Two products, of one operand as a rule, and what reads them."""
    return TWO.format(rest=rest, other=other, more=more, rows=rows)


APART = {
    "another operand": (two(other="z"), "abcd"),
    "a right operand that is no constant": (two(), "acd"),
    "a result of the model": (two(more=", float[9,24] p"), "abcd"),
    "a view that is a result of the model": (
        two("s = MatMul(p, c) t = MatMul(q, d) y = Add(s, t) f = Flatten <axis = 0> (p)", more=", float[1,216] f"),
        "abcd",
    ),
    "a node without a kernel": (
        two("n = Unique(p) f = ReduceSum(n) s = MatMul(p, c) t = MatMul(q, d) u = Add(s, f) y = Add(u, t)"),
        "abcd",
    ),
    "two tasks that read one": (
        two("s = MatMul(p, c) t = MatMul(q, d) u = Softmax(q) v = Add(s, t) y = Mul(u, v)"),
        "abcd",
    ),
    "an activation of each": (
        two("e = Relu(p) f = Tanh(q) s = MatMul(e, c) t = MatMul(f, d) y = Add(s, t)"),
        "abcd",
    ),
    "a tile for each multiprocessor": (two(rows=128 * SMS), "abcd"),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_stays_apart(name: str) -> None:
    graph, _ = graph_of(APART[name][0], list(APART[name][1]))
    joined, steps = join_products(graph, SMS)
    assert joined is graph and not any("Split" in op for op in ops(steps))


def test_a_tile_less_is_joined() -> None:
    graph, _ = graph_of(two(rows=128 * (SMS - 1)), list("abcd"))
    assert any("Split" in op for op in ops(join_products(graph, SMS)[1]))


def test_rows_that_begin_evenly_do_so_afterwards(runs) -> None:
    """A product of columns that the copy engine can't fetch leaves others alone."""
    text = MIXED.replace("float[16,20] b", "float[16,21] b").replace("float[20,3]", "float[21,3]")
    joined, _ = check(text, list("abcdef"), runs)
    assert sorted(array.shape for array in joined.constants.values())[-2:] == [(16, 21), (21, 3)]
    assert (16, 16) in [array.shape for array in joined.constants.values()]


def test_products_of_what_is_rounded_to_bfloat16_are_joined_too(runs):
    text = attention(size=16).replace("float[1,7,11] x", "float[1,7,12] x").replace("float[11,", "float[12,")
    asked = Numerics(widen=False, bf16=True, precision=Precision.BF16)
    joined, _ = check(text, WEIGHTS, runs, numerics=asked)
    assert [node.op for node in joined.nodes].count("MatMulNarrow") == 1
