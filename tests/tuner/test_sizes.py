"""Results whose size only a run tells, at their bounds, against ONNX Runtime and ONNX's evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import ModelProto, helper
from onnx.reference import ReferenceEvaluator

from tunewright.codegen.host import detect
from tunewright.graph.control.steps import Routine
from tunewright.graph.rewrites.selection import MAX_BOUND, MAX_POINTS, SHORT_ROW
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.session.image_store import ImageStore
from tunewright.tuner.session.session import InferenceSession

from .conftest import static_model

RNG = np.random.default_rng(5)


def build(text: str) -> ModelProto:
    return helper.make_model(onnx.parser.parse_graph(text), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def session(model: ModelProto, threads: int = 1) -> tuple[Model, InferenceSession]:
    opened = open_model(model.SerializeToString())
    return opened, InferenceSession.of(opened, detect(threads), {})


def check(
    model: ModelProto,
    feeds: Sequence[Mapping[str, Any]],
    threads: int = 1,
    *,
    native: bool = True,
    routine: bool = True,
) -> None:
    """All runs of one session, against ONNX Runtime."""
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    opened, own = session(model, threads)
    with own:
        if native:
            assert not opened.fallbacks
            assert not routine or any(isinstance(step, Routine) for step in opened.steps)
        for feed in feeds:
            for value, expected in zip(own.run(None, feed), peer.run(None, feed), strict=True):
                assert value.dtype == expected.dtype
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
                assert value.shape == expected.shape


def sparse(density: float, *shape: int) -> Any:
    return np.where(RNG.random(shape) < density, RNG.standard_normal(shape), 0).astype(np.float32)


T = "i = NonZero(x) t = Transpose(i)"
V = f"{T} v = GatherND(w, t)"
A0, A1 = (f"a{k} = Constant <value_ints = [{k}]> ()" for k in (0, 1))

COUNT = "a = Shape <start = 1> (i) o = Constant <value_ints = [0]> () n = Squeeze(a, o)"
Z, E = "z = Constant <value_int = 0> ()", "e = Constant <value_int = 1> ()"

FOLLOWERS = {
    "places": ("int64[2,N] y", "y = NonZero(x)"),
    "transposed": ("int64[N,2] y", "i = NonZero(x) y = Transpose <perm = [1, 0]> (i)"),
    "of a product": ("int64[2,N] y", "p = MatMul(x, c) y = NonZero(p)"),
    "elements": ("float[N] y", f"{V} y = Exp(v)"),
    "rows": (
        "float[7,N] y",
        f"i = NonZero(x) {A0} {A1} j = Gather <axis = 0> (i, a1) k = Squeeze(j, a0) y = Gather <axis = 1> (w, k)",
    ),
    "two outputs": ("float[N] y, int64[N,2] z", f"{V} y = Sqrt(v) z = Neg(t)"),
    "shape": ("int64[2] y", "i = NonZero(x) y = Shape(i)"),
    "count": ("int64[1] y", "i = NonZero(x) s = Shape <start = 1> (i) n = Size(i) y = Sub(n, s)"),
    "sum": ("float[1] y", f"{V} {A0} y = ReduceSum <keepdims = 1> (v, a0)"),
    "sum of integers": ("int64[2] y", f"i = NonZero(x) {A1} y = ReduceSum <keepdims = 0> (i, a1)"),
    "norm": ("float[1] y", f"{V} {A0} y = ReduceL2 <keepdims = 1> (v, a0)"),
    "mean of rows": ("float[N] y", f"{T} f = Cast <to = 1> (t) {A1} y = ReduceMean <keepdims = 0> (f, a1)"),
    "flat": ("int64[M] y", f"{T} m = Constant <value_ints = [-1]> () y = Reshape(t, m)"),
    "apart": ("int64[N,1,2] y", f"{T} m = Constant <value_ints = [-1, 1, 2]> () y = Reshape(t, m)"),
    "copied extent": ("int64[N,2,1] y", f"{T} m = Constant <value_ints = [0, 2, 1]> () y = Reshape(t, m)"),
    "widest, expanded": (
        "float[2] y",
        f"{V} {A0} s = ReduceMax <keepdims = 1> (v, a0) b = Constant <value_ints = [2]> () y = Expand(s, b)",
    ),
    "product": (
        "float[N,5] y",
        f"{V} f = Cast <to = 1> (t) {A1} u = Unsqueeze(v, a1) r = Concat <axis = 1> (f, u, f) y = MatMul(r, c)",
    ),
    "softmax": ("float[N] y", f"{V} y = Softmax <axis = 0> (v)"),
    "found among found": ("int64[2,M] y", f"{T} y = NonZero(t)"),
    "compressed": (
        "float[N,5] y",
        f"""b = Constant <value_ints = [4]> () m = Gather <axis = 1> (x, b) {A1}
        q = Squeeze(m, a1) k = Cast <to = 9> (q) y = Compress <axis = 0> (w, k)""",
    ),
    "compressed flat": (
        "float[N] y",
        "q = Flatten <axis = 0> (x) s = Squeeze(q) k = Cast <to = 9> (s) y = Compress(w, k)",
    ),
    "slice": (
        "int64[1,N] y",
        f"i = NonZero(x) {A0} {A1} e = Constant <value_ints = [2]> () y = Slice(i, a1, e, a0)",
    ),
    "parts": ("int64[1,N] y, int64[1,N] z", "i = NonZero(x) y, z = Split <axis = 0, num_outputs = 2> (i)"),
    "chosen by a mask": ("float[N] y", f"{V} o = Less(v, v) h = Neg(v) y = Where(o, v, h)"),
    "range": ("int64[N] y", f"i = NonZero(x) {COUNT} {Z} {E} y = Range(z, n, e)"),
    "range of twos": ("int64[M] y", f"i = NonZero(x) {COUNT} {E} b = Constant <value_int = 2> () y = Range(e, n, b)"),
    "copies": (
        "float[N,3] y",
        f"""i = NonZero(x) {COUNT} {A0} u = Unsqueeze(n, a0) h = Constant <value_ints = [3]> ()
        s = Concat <axis = 0> (u, h) r = Constant <value_floats = [1.5]> () y = Expand(r, s)""",
    ),
    "zeros": ("float[N] y", f"i = NonZero(x) {COUNT} {A0} u = Unsqueeze(n, a0) y = ConstantOfShape(u)"),
    "reshaped by its shape": (
        "int64[N,1,2] y",
        f"""{T} {A0} g = Shape <end = 1> (t) h = Constant <value_ints = [1, 2]> ()
        s = Concat <axis = 0> (g, h) y = Reshape(t, s)""",
    ),
    "half of them": (
        "float[M] y",
        f"{V} {COUNT} {A0} b = Constant <value_int = 2> () q = Div(n, b) u = Unsqueeze(q, a0) y = Slice(v, a0, u, a0)",
    ),
    "all but the last": (
        "float[M] y",
        f"{V} {A0} m = Constant <value_ints = [-1]> () y = Slice(v, a0, m, a0)",
    ),
    "best of what was found": (
        "float[M] y, int64[M] p",
        f"{V} {COUNT} {A0} b = Constant <value_int = 4> () k = Min(n, b) u = Unsqueeze(k, a0) y, p = TopK(v, u)",
    ),
    "tiled by a count": (
        "float[M,5] y",
        f"i = NonZero(x) {COUNT} {A0} {A1} u = Unsqueeze(n, a0) s = Concat <axis = 0> (u, a1) y = Tile(c, s)",
    ),
    "tiles of what was found": (
        "int64[M,4] y",
        f"{T} h = Constant <value_ints = [3, 2]> () y = Tile(t, h)",
    ),
    "tiles of what is static beside": (
        "int64[2,N] y, float[3,1] z",
        "y = NonZero(x) o = Constant <value_floats = [1.5]> () h = Constant <value_ints = [3, 1]> () z = Expand(o, h)",
    ),
    "padded by a remainder": (
        "float[M] y",
        f"""{V} {COUNT} {A0} b = Constant <value_int = 4> () q = Sub(b, n) r = Mod(q, b) u = Unsqueeze(r, a0)
        s = Concat <axis = 0> (a0, u) y = Pad(v, s)""",
    ),
    "padded with a value": (
        "int64[M,2] y",
        f"{T} h = Constant <value_ints = [2, 0, 1, 0]> () f = Constant <value_int = -7> () y = Pad(t, h, f)",
    ),
    "copies of a matrix's edge": (
        "float[M,5] y",
        f"""i = NonZero(x) {COUNT} {A0} u = Unsqueeze(n, a0) s = Concat <axis = 0> (u, a0, a0, a0)
        y = Pad <mode = "edge"> (c, s)""",
    ),
    "running sum": ("int64[2,N] y", "i = NonZero(x) e = Constant <value_int = 0> () y = CumSum(i, e)"),
}
"""Name -> outputs and nodes; inputs are x and w [7, 5] and c [5, 5]."""


def follow(name: str) -> ModelProto:
    outputs, nodes = FOLLOWERS[name]
    return build(f"g (float[7,5] x, float[7,5] w, float[5,5] c) => ({outputs}) {{ {nodes} }}")


def feeds(density: float) -> dict[str, Any]:
    return {"x": sparse(density, 7, 5), "w": np.abs(sparse(1.0, 7, 5)), "c": np.abs(sparse(1.0, 5, 5))}


def without_c(density: float) -> dict[str, Any]:
    return {name: value for name, value in feeds(density).items() if name != "c"}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_what_follows_is_native(name: str) -> None:
    check(follow(name), [feeds(density) for density in (0.3, 0.0, 1.0, 0.1)])


@pytest.mark.parametrize("name", ["mean", "largest", "place of the smallest"])
def test_folds_over_what_was_found(name: str) -> None:
    nodes = {
        "mean": "y = ReduceMean <keepdims = 1> (v, a0)",
        "largest": "u = Neg(v) y = ReduceMax <keepdims = 1> (u, a0)",
        "place of the smallest": "p = ArgMin <axis = 0> (v) y = Cast <to = 1> (p)",
    }[name]
    model = build(f"g (float[7,5] x, float[7,5] w) => (float[1] y) {{ {V} {A0} {nodes} }}")
    check(model, [without_c(density) for density in (0.3, 1.0, 0.1)])


def test_what_no_rule_follows_takes_what_is_there() -> None:
    """Concat along the size, ScatterND of so many updates, and an operand that might broadcast where one is found."""
    nodes = [
        ("int64[2,M] y", "i = NonZero(x) y = Concat <axis = 1> (i, i)"),
        ("float[7,5] y", f"{V} h = Neg(v) y = ScatterND(w, t, h)"),
        ("float[N] y", f"{V} f = Cast <to = 1> (v) {A0} {A1} q = Gather <axis = 0> (f, a0) y = Add(q, v)"),
    ]
    for outputs, text in nodes:
        model = build(f"g (float[7,5] x, float[7,5] w) => ({outputs}) {{ {text} }}")
        check(model, [without_c(density) for density in (0.3, 1.0)], native=False)


def test_the_rest_of_a_shape() -> None:
    text = f"""g (float[7,5] x) => (int64[N,1,2] y) {{ {T} g = Shape <end = 1> (t)
        h = Constant <value_ints = [1, -1]> () s = Concat <axis = 0> (g, h) y = Reshape(t, s) }}"""
    check(build(text), [{"x": sparse(density, 7, 5)} for density in (0.3, 1.0)])


def test_both_that_and_an_output() -> None:
    model = build("g (float[7,5] x) => (int64[2,N] i, int64[2,M] y) { i = NonZero(x) y = Concat <axis = 1> (i, i) }")
    check(model, [{"x": sparse(density, 7, 5)} for density in (0.3, 0.0, 1.0)], native=False)


def test_inside_of_branches_and_loops() -> None:
    count = "i = NonZero(s) n = Size(i) f = Cast <to = 1> (n)"
    branch = f"""g (float[7] x, bool c) => (float[7] y) {{ s = Relu(x) y = If(c) <
        then_branch = t () => (float[7] p) {{ {count} p = Add(s, f) }},
        else_branch = e () => (float[7] q) {{ q = Neg(s) }}> }}"""
    loop = f"""g (float[7] x, int64 m) => (float[7] y) {{ y = Loop(m, "", x) <
        body = b (int64 k, bool d, float[7] s) =>
        (bool e, float[7] r) {{ e = Identity(d) {count} r = Sub(s, f) }}> }}"""
    x = np.array([1, 0, 2, 0, 3, 0, -4], np.float32)
    check(build(branch), [{"x": x, "c": np.array(value)} for value in (True, False)])
    check(build(loop), [{"x": x, "m": np.array(value)} for value in (0, 1, 3)])


def test_outputs_of_a_branch_keep_their_size() -> None:
    model = build("""g (float[7] x, bool c) => (int64[1,N] y) { y = If(c) <
        then_branch = t () => (int64[1,N] p) { p = NonZero(x) },
        else_branch = e () => (int64[1,N] q) { i = NonZero(x) q = Neg(i) }> }""")
    check(model, [{"x": sparse(0.5, 7), "c": np.array(value)} for value in (True, False)], native=False)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.float64, np.float16])
def test_element_types(dtype: Any) -> None:
    kind = {np.bool_: "bool", np.uint8: "uint8", np.int64: "int64", np.float64: "double", np.float16: "float16"}[dtype]
    model = build(f"g ({kind}[3,1,11] x) => (int64[3,N] y) {{ y = NonZero(x) }}")
    reference = ReferenceEvaluator(model)
    opened, own = session(model)
    with own:
        assert not opened.fallbacks
        for density in (0.0, 0.4, 1.0):
            x = (RNG.random((3, 1, 11)) < density).astype(dtype)
            (expected,) = list(reference.run(None, {"x": x}))
            np.testing.assert_array_equal(own.run(None, {"x": x})[0], expected)


def test_what_is_large_stays_as_it_was() -> None:
    extent = MAX_BOUND + 1
    opened, own = session(build(f"g (float[{extent}] x) => (int64[1,N] y) {{ y = NonZero(x) }}"))
    with own:
        assert opened.fallback_ops == {"NonZero": 1}
        assert own.run(None, {"x": np.ones(extent, np.float32)})[0].shape == (1, extent)


def test_an_empty_tensor_has_nothing() -> None:
    check(
        build("g (float[3,0] x) => (int64[2,N] y) { y = NonZero(x) }"),
        [{"x": np.ones((3, 0), np.float32)}],
        native=False,
    )


def test_long_work_is_done_for_what_is_there() -> None:
    rows = int((MAX_POINTS / 64) ** 0.5) // 64 * 64 + 64
    model = build(
        f"""g (float[{rows}] x, float[{rows},64] w, float[64,{rows}] c) => (float[N,{rows}] y) {{ i = NonZero(x)
        {A0} k = Squeeze(i, a0) r = Gather <axis = 0> (w, k) y = MatMul(r, c) }}"""
    )
    feed = {"x": sparse(0.01, rows), "w": sparse(1.0, rows, 64), "c": sparse(1.0, 64, rows)}
    opened, own = session(model)
    with own:
        assert opened.fallback_ops == {"MatMul": 1}
        (y,) = own.run(None, feed)
    np.testing.assert_allclose(y, feed["w"][feed["x"] != 0] @ feed["c"], rtol=1e-4, atol=1e-4)


# NonMaxSuppression


def suppression(
    shape: tuple[int, int, int], most: int | None, overlap: float | None, least: float | None, center: int
) -> ModelProto:
    images, classes, count = shape
    limits = [("int64", most), ("float", overlap), ("float", least)]
    constants = " ".join(
        f"l{k} = Constant <value = {kind} {{{value}}}> ()"
        for k, (kind, value) in enumerate(limits)
        if value is not None
    )
    names = ", ".join(f"l{k}" if value is not None else '""' for k, (_, value) in enumerate(limits))
    return build(
        f"g (float[{images},{count},4] b, float[{images},{classes},{count}] s) => (int64[N,3] y) {{ {constants} "
        f"y = NonMaxSuppression <center_point_box = {center}> (b, s, {names}) }}"
    )


def boxes(images: int, classes: int, count: int) -> dict[str, Any]:
    """Boxes by any two corners, and scores of which many are equal."""
    scores = RNG.integers(0, 8, (images, classes, count)).astype(np.float32) / 8
    return {"b": RNG.random((images, count, 4), np.float32), "s": scores}


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("overlap", [None, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("most", "least"), [(3, 0.3), (100, None), (1, 2.0), (7, 0.0)])
def test_suppressed_boxes(most: int, least: float | None, overlap: float | None, center: int) -> None:
    for shape in ((1, 1, 1), (2, 3, 31), (1, 5, 8)):
        check(suppression(shape, most, overlap, least, center), [boxes(*shape) for _ in range(3)], threads=3)


def test_no_boxes_at_all() -> None:
    for most in (None, 0):
        check(suppression((1, 2, 5), most, 0.5, 0.1, 0), [boxes(1, 2, 5)], native=False)


def test_limits_that_are_inputs() -> None:
    model = build("""g (float[2,11,4] b, float[2,3,11] s, int64[1] m, float[1] o, float[1] l) => (int64[N,3] y) {
        y = NonMaxSuppression(b, s, m, o, l) }""")
    limits = [(4, 0.3, 0.1), (0, 0.5, 0.5), (20, 0.9, 0.0)]
    check(
        model,
        [
            {**boxes(2, 3, 11), "m": np.array([m]), "o": np.array([o], np.float32), "l": np.array([least], np.float32)}
            for m, o, least in limits
        ],
    )


def test_what_is_left_of_boxes() -> None:
    """As detectors have it: corners, classes and scores of the boxes that are left."""
    model = build("""g (float[1,13,4] b, float[1,3,13] s) => (float[N,4] y, int64[N] c, float[N] p) {
        m = Constant <value = int64 {4}> () o = Constant <value = float {0.4}> () l = Constant <value = float {0.2}> ()
        f = NonMaxSuppression(b, s, m, o, l) z = Constant <value_ints = [0]> ()
        i1 = Constant <value_ints = [1]> () i2 = Constant <value_ints = [2]> ()
        c1 = Gather <axis = 1> (f, i1) c = Squeeze(c1, i1)
        k1 = Gather <axis = 1> (f, i2) k = Squeeze(k1, i1) r = Squeeze(b, z) y = Gather <axis = 0> (r, k)
        p = GatherND(s, f)
    }""")
    check(model, [boxes(1, 3, 13) for _ in range(3)], threads=3)


def test_regions_of_what_is_left() -> None:
    model = build("""g (float[1,7,4] b, float[1,2,7] s, float[1,2,9,9] x) => (float[N,2,2,2] y) {
        m = Constant <value = int64 {3}> () o = Constant <value = float {0.4}> () l = Constant <value = float {0.2}> ()
        f = NonMaxSuppression(b, s, m, o, l) z = Constant <value_ints = [0]> ()
        i1 = Constant <value_ints = [1]> () i2 = Constant <value_ints = [2]> ()
        k1 = Gather <axis = 1> (f, i2) k = Squeeze(k1, i1) r = Squeeze(b, z) v = Gather <axis = 0> (r, k)
        q1 = Gather <axis = 1> (f, z) q = Squeeze(q1, i1)
        y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2, mode = "avg"> (x, v, q)
    }""")
    check(model, [{**boxes(1, 2, 7), "x": RNG.random((1, 2, 9, 9), np.float32)} for _ in range(3)])


def test_an_image_on_disk_knows_sizes(tmp_path: Path) -> None:
    opened, own = session(follow("two outputs"))
    store = ImageStore(tmp_path)
    with own:
        assert own.get_outputs()[0].shape is None
        feed = feeds(0.3)
        expected = own.run(None, feed)
        image = static_model(own).image
        assert store.put("image", image, b"")
        stored = store.get("image")
        assert stored is not None
        assert stored.image.outputs == image.outputs
        assert stored.image.steps == image.steps
        assert [value.shape for value in expected] == [(np.count_nonzero(feed["x"]),), (np.count_nonzero(feed["x"]), 2)]
    assert not opened.fallbacks


# What a run tells itself


def check_numbers(text: str, inputs: Sequence[Mapping[str, Any]], *, native: bool = True) -> None:
    check(build(text), inputs, native=native, routine=False)


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("fixed", ["", "start", "end"])
def test_slices_between_places_that_a_run_tells(step: int, fixed: str) -> None:
    known = " ".join(f"{name} = Constant <value_ints = [3]> ()" for name in [fixed] if name)
    given = "".join(f", int64[1] {name}" for name in ("start", "end") if name != fixed)
    text = f"""g (float[4,9] x{given}) => (float[4,N] y) {{ {known}
        a = Constant <value_ints = [1]> () s = Constant <value_ints = [{step}]> ()
        v = Slice(x, start, end, a, s) y = Exp(v) }}"""
    x = RNG.standard_normal((4, 9)).astype(np.float32)
    places = [-(2**63) + 1, -100, -9, -4, -1, 0, 1, 5, 8, 9, 10, 2**62]
    feeds = [
        {"x": x} | {name: np.array([at]) for name, at in (("start", a), ("end", b)) if name != fixed}
        for a in places
        for b in places
    ]
    check_numbers(text, feeds)


def test_a_slice_of_two_axes() -> None:
    text = """g (float[5,9] x, int64[2] starts, int32[1] last) => (float[M,N] y) {
        c = Constant <value_ints = [7]> () l = Cast <to = 7> (last) ends = Concat <axis = 0> (l, c)
        y = Slice(x, starts, ends) }"""
    x = RNG.standard_normal((5, 9)).astype(np.float32)
    feeds = [
        {"x": x, "starts": np.array([a, b]), "last": np.array([c], np.int32)}
        for a, b, c in ((0, 0, 5), (1, 2, 3), (-2, 8, -1), (4, -3, 2))
    ]
    check_numbers(text, feeds)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("largest", [0, 1])
def test_a_number_of_the_largest_that_a_run_tells(axis: int, largest: int) -> None:
    """Rows that are ranked by a kernel, and such as are too long for it."""
    for shape in ((SHORT_ROW - 1, 5), (7, SHORT_ROW + 1), (2, 3001)):
        text = f"""g (float[{shape[0]},{shape[1]}] x, int64[1] k) => (float[M,N] y, int64[M,N] p) {{
            v, p = TopK <axis = {axis}, largest = {largest}> (x, k) y = Neg(v) }}"""
        x = RNG.integers(-99, 99, shape).astype(np.float32)
        check_numbers(text, [{"x": x, "k": np.array([k])} for k in {0, 1, min(5, shape[axis]), shape[axis]}])


def test_long_rows_with_a_known_number() -> None:
    text = """g (float[3,2000] x) => (float[3,300] y, int64[3,300] p) {
        k = Constant <value_ints = [300]> () y, p = TopK(x, k) }"""
    x = RNG.standard_normal((3, 2000)).astype(np.float32)
    x[1] = np.sort(x[1])
    x[2, ::2] = -np.inf
    check_numbers(text, [{"x": x}])


def test_a_shape_of_no_known_bound_stays() -> None:
    text = "g (float[1] x, int64[2] s) => (float[M,N] y) { e = Expand(x, s) y = Neg(e) }"
    check_numbers(text, [{"x": np.ones(1, np.float32), "s": np.array([3, 2])}], native=False)
    text = "g (int64 a, int64 b) => (int64[N] y) { e = Constant <value_int = 1> () y = Range(a, b, e) }"
    check_numbers(text, [{"a": np.array(2), "b": np.array(9)}], native=False)


def test_large_slices_are_left_to_what_runs_them_as_they_are() -> None:
    """At its bound all of the tensor would be copied."""
    text = f"""g (float[{MAX_POINTS // 64},128] x, int64[1] k) => (float[M,128] y) {{
        a = Constant <value_ints = [0]> () y = Slice(x, a, k, a) }}"""
    x = RNG.standard_normal((MAX_POINTS // 64, 128)).astype(np.float32)
    check_numbers(text, [{"x": x, "k": np.array([3])}], native=False)


def test_the_smallest_of_what_was_found_with_nan_among_it() -> None:
    nodes = f"{V} {COUNT} {A0} b = Constant <value_int = 8> () k = Min(n, b) u = Unsqueeze(k, a0)"
    text = f"g (float[7,5] x, float[7,5] w) => (float[M] y, int64[M] p) {{ {nodes} y, p = TopK <largest = 0> (v, u) }}"
    x, w = np.zeros((7, 5), np.float32), np.arange(35, dtype=np.float32).reshape(7, 5)
    x[0], w[0, 1] = 1, np.nan
    check_numbers(text, [{"x": x, "w": w}])


def test_no_number_below_none_is_wanted() -> None:
    text = "g (float[200] x, int64[1] k) => (float[M] y, int64[M] p) { y, p = TopK(x, k) }"
    with session(build(text))[1] as own:
        for k, count in ((-1, 0), (0, 0), (3, 3)):
            values, places = own.run(None, {"x": np.arange(200, dtype=np.float32), "k": np.array([k])})
            assert len(values) == len(places) == count


def test_steps_beyond_the_axis() -> None:
    text = """g (float[9] x, int64[1] a, int64[1] b) => (float[M] y) {
        z = Constant <value_ints = [0]> () s = Constant <value_ints = [9223372036854775807]> ()
        y = Slice(x, a, b, z, s) }"""
    check_numbers(text, [{"x": np.arange(9, dtype=np.float32), "a": np.array([2]), "b": np.array([7])}])


# Unique


def unique(x: Any, axis: int | None, ascending: int) -> ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    attrs: dict[str, Any] = {"sorted": ascending} if axis is None else {"sorted": ascending, "axis": axis}
    node = helper.make_node("Unique", ["x"], ["y", "i", "v", "c"], **attrs)
    results = [
        helper.make_value_info(name, helper.make_tensor_type_proto(kind if name == "y" else 7, None)) for name in "yivc"
    ]
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", kind, x.shape)], results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.slow
@pytest.mark.parametrize("ascending", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64, np.float16])
def test_what_is_different(dtype: Any, ascending: int) -> None:
    for shape in ((7,), (1,), (300,), (5, 3), (2, 7, 3), (31, 2)):
        for axis in (None, *range(-len(shape), len(shape))):
            drawn = [RNG.integers(-3, 4, shape).astype(dtype) for _ in range(3)]
            if axis is not None:  # some slices are there twice
                drawn = [np.take(x, RNG.integers(0, x.shape[axis], x.shape[axis]), axis) for x in drawn]
            check(unique(drawn[0], axis, ascending), [{"x": x} for x in drawn])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.float64])
def test_types_that_onnx_runtime_has_no_kernel_for(dtype: Any) -> None:
    x = (RNG.standard_normal((40, 2)) * 2**40).astype(np.int64).astype(dtype)
    x[20:] = x[:20]
    opened, own = session(unique(x, None, 1))
    with own:
        assert not opened.fallbacks
        for ours, expected in zip(own.run(None, {"x": x}), np.unique(x, True, True, True), strict=True):
            np.testing.assert_array_equal(ours, expected.reshape(-1))


@pytest.mark.parametrize("ascending", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_nan_is_one_number_and_zeros_are_equal(axis: int | None, ascending: int) -> None:
    """As numpy has it; ONNX Runtime takes NaN for whatever it is beside."""
    nan = np.nan
    x = np.array([[0, nan, 1, 0], [-0.0, nan, 1, -0.0], [nan, 1, nan, nan], [0, -nan, 1, 0]], np.float32)
    opened, own = session(unique(x, axis, ascending))
    with own:
        assert not opened.fallbacks
        results = own.run(None, {"x": x})
    [order] = {None: [[0, 2, 1]], 0: [[0, 1]], 1: [[0, 2, 1]]}[axis]
    firsts = {None: [0, 1, 2], 0: [0, 2], 1: [0, 1, 2]}[axis]
    ranks = {
        None: [0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 1, 1, 0, 1, 2, 0], 0: [0, 0, 1, 0], 1: [0, 1, 2, 0],
    }[axis]  # fmt: skip
    if not ascending:
        order = list(range(len(order)))
    values = (x.reshape(-1) if axis is None else x).take([firsts[k] for k in order], axis or 0)
    assert np.array_equal(results[0], values, equal_nan=True)
    assert np.array_equal(np.signbit(results[0]), np.signbit(values))
    assert results[1].tolist() == [firsts[k] for k in order]
    assert results[2].tolist() == [order.index(k) for k in ranks]
    assert results[3].tolist() == [ranks.count(k) for k in order]


def test_what_is_different_among_what_was_found() -> None:
    texts = {
        "int64[M] y, int64[N] v, int64[M] c": f"{T} f = Cast <to = 1> (i) k = Cast <to = 7> (f) "
        f"{A0} r = Gather <axis = 0> (k, a0) q = Squeeze(r, a0) y, p, v, c = Unique(q)",
        "float[M] y, float[1] s": f"{V} y, p, h, c = Unique <sorted = 0> (v) {A0} s = ReduceMax <keepdims = 1> (y, a0)",
        "int64[M,2] y": f"{T} b = Constant <value_ints = [3]> () m = Div(t, b) y = Unique <axis = 0> (m)",
        "int64[K] y, int64[M] v": f"{T} b = Constant <value_ints = [3]> () m = Div(t, b) y, p, v = Unique(m)",
        "float[N] z": f"{V} h = Round(v) y, p, r = Unique(h) k = Shape(y) {E} f = Cast <to = 1> (r) z = Add(f, v)",
    }
    for outputs, text in texts.items():
        model = build(f"g (float[7,5] x, float[7,5] w) => ({outputs}) {{ {text} }}")
        check(model, [without_c(density) for density in (0.3, *([] if "ReduceMax" in text else [0.0]), 1.0, 0.1)])
