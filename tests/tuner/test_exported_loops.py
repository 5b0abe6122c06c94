"""Loops in the forms that exporters write them, in native code: as in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.graph.control.steps import LoopStart
from tunewright.graph.onnx_import import load

from .control_models import check, model_of, opened

RNG = np.random.default_rng(6)

RECURRENT = """g (float[5,2,3] x, bool[5,2,1] m, float[2,4] h) => (float[5,2,4] y, float[2,4] z) {
    zero = Constant <value = int32 {0}> ()
    first = Constant <value_ints = [0]> ()
    s = Shape(x) l = Slice(s, first, one) t = Squeeze(l, first) n = Cast <to = 6> (t)
    f = Cast <to = 1> (n) go = Less(nil, f)
    unused, z, same, kernel, length, y = Loop("", go, zero, h, h, w, n) <body = b (int64 i, bool c, int32 k,
        float[2,4] a, float[2,4] b, float[3,4] v, int32 e) => (bool d, int32 k2, float[2,4] a2, float[2,4] b2,
        float[3,4] v, int32 e, float[2,4] o) {
        k2 = Add(k, step)
        row = Gather(x, k) mask = Gather(m, k)
        p = MatMul(row, v) q = Add(p, a) r = Tanh(q)
        on = Cast <to = 1> (mask) no = Not(mask) off = Cast <to = 1> (no)
        new = Mul(on, r) old = Mul(off, a) a2 = Add(new, old)
        b2 = Mul(b, r) o = Identity(a2)
        left = Cast <to = 1> (k2) right = Cast <to = 1> (e) d = Less(left, right) }>
}"""
"""A recurrent layer as tf2onnx has it: it carries its counter, weights and length along, and a state for nobody."""

WEIGHTS = {
    "w": RNG.standard_normal((3, 4)).astype(np.float32),
    "nil": np.array(0, np.float32),
    "one": np.array([1]),
    "step": np.array(1, np.int32),
}


def feeds(rows: int = 5) -> dict[str, Any]:
    x, h = (RNG.standard_normal(shape).astype(np.float32) for shape in ((rows, 2, 3), (2, 4)))
    return {"x": x, "m": RNG.random((rows, 2, 1)) < 0.7, "h": h}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_recurrent_layer(threads: int) -> None:
    check(model_of(RECURRENT, 13, WEIGHTS), feeds(), threads)
    for rows in (1, 0):
        text = RECURRENT.replace("[5,", f"[{rows},")
        check(model_of(text, 13, WEIGHTS), feeds(rows), threads)


def test_what_a_loop_needs_not_carry_is_no_state() -> None:
    model = opened(model_of(RECURRENT, 13, WEIGHTS))
    [loop] = [step for step in model.steps if isinstance(step, LoopStart)]
    assert loop.count == 5
    assert not loop.condition
    graph = load(model_of(RECURRENT, 13, WEIGHTS).SerializeToString())
    [node] = [node for node in graph.nodes if node.op == "Loop"]
    assert len(node.outputs) == 3
    ops = [node.op for node in node.bodies["body"].graph.nodes]
    assert ops.count("Mul") == 2
    assert "Less" not in ops


COUNTED = """g (float[3] x) => (float[3] y, float[n,3] z) {{
    k = Constant <value = {type} {{{start}}}> ()
    last, y, z = Loop({trips}, "", k, x) <body = b (int64 i, bool c, {type} k, float[3] s)
        => (bool d, {type} k2, float[3] s2, float[3] o) {{
        {body} s2 = Add(s, x) o = Identity(s) }}>
    used = Cast <to = 1> (last)
}}"""


@pytest.mark.parametrize(
    ("start", "trips", "body", "count"),
    [
        ("0", '""', "k2 = Add(k, two) d = Less(k2, seven)", 4),
        ("9", '""', "k2 = Sub(k, two) e = LessOrEqual(k2, two) d = Not(e)", 4),
        ("0", "seven", "k2 = Add(k, two) d = Less(k2, seven)", 4),
        ("0", "two", "k2 = Add(k, two) d = Less(k2, seven)", 2),
        ("0", '""', "f = Cast<to = 1>(k) g = Add(f, unit) k2 = Cast<to = 7>(g) d = Less(k2, seven)", 7),
        (
            "0",
            '""',
            "u = Unsqueeze(k, axis) v = Add(u, two) k2 = Squeeze(v, axis) w = Less(k2, seven) d = And(c, w)",
            4,
        ),
        ("0", '""', "k2 = Identity(k) d = Less(i, two)", 3),
        ("0", '""', "k2 = Add(k, two) d = Greater(k2, seven)", 1),
        ("0", '""', "k2 = Add(k, two) m = Max(k2, i) d = LessOrEqual(m, hundred)", 51),
    ],
)
def test_trips_that_counters_tell(start: str, trips: str, body: str, count: int) -> None:
    numbers = {"two": 2, "seven": 7, "hundred": 100}
    weights = {name: np.array(value) for name, value in numbers.items()}
    weights |= {"unit": np.array(1, np.float32), "axis": np.array([0])}
    text = COUNTED.format(type="int64", start=start, trips=trips, body=body)
    model = model_of(text.replace("used = Cast <to = 1> (last)", ""), 17, weights)
    check(model, {"x": np.array([1, 2, 3], np.float32)})
    [loop] = [step for step in opened(model).steps if isinstance(step, LoopStart)]
    assert loop.count == count


@pytest.mark.parametrize("body", ["k2 = Mul(k, two) d = Less(k2, seven)", "k2 = Add(k, k) d = Less(k2, seven)"])
def test_what_grows_in_another_way_is_no_counter(body: str) -> None:
    weights = {"two": np.array(2), "seven": np.array(70)}
    text = COUNTED.format(type="int64", start="1", trips='""', body=body)
    model = model_of(text.replace("used = Cast <to = 1> (last)", ""), 17, weights)
    check(model, {"x": np.array([1, 2, 3], np.float32)}, native=False)


OTHER_SHAPE = """g (float[2,3] x, int64 n) => (float[2,3] y) {
    four = Constant <value_int = 4> ()
    nothing = Constant <value_floats = [0.0]> ()
    y, u = Loop(four, "", nothing, x) <body = b (int64 i, bool c, float[k] r, float[2,3] s)
        => (bool d, float[2,3] r2, float[2,3] s2) {
        d = Identity(c) r2 = Mul(s, x) s2 = Add(s, x) }>
}"""


def test_a_state_that_the_body_does_not_read_may_have_had_another_shape() -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    check(model_of(OTHER_SHAPE), {"x": x, "n": np.array(4)})
    by_run = OTHER_SHAPE.replace("Loop(four", "Loop(n")
    check(model_of(by_run), {"x": x, "n": np.array(4)}, native=False)
    none = by_run.replace("float[2,3] y", "float[a] y")
    check(model_of(none), {"x": x, "n": np.array(0)}, native=False)


NESTED = """g (float[3] x, int64 n) => (float[3] y, float[2] v, float[3] t) {
    y, v, a, t = Loop(n, "", x, w, u, x) <body = b (int64 i, bool c, float[3] s, float[2] k, float[2] q, float[3] r)
        => (bool d, float[3] s2, float[2] k2, float[2] q2, float[3] r2) {
        d = Identity(c) k2 = Identity(k) q2 = Mul(q, k)
        s2, l = Loop(n, "", s, k) <body = e (int64 j, bool f, float[3] o, float[2] k3)
            => (bool f2, float[3] o2, float[2] k3) {
            f2 = Identity(f) p = ReduceSum <keepdims = 0> (k3) h = Mul(o, p) o2 = Add(h, x) }>
        r2 = Identity(r) }>
}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_what_stays_is_read_from_around_in_loops_of_loops_too(trips: int) -> None:
    weights = {name: RNG.standard_normal(2).astype(np.float32) for name in "wu"}
    model = model_of(NESTED, weights=weights)
    check(model, {"x": np.array([1, 2, 3], np.float32) / 9, "n": np.array(trips)})
    [node] = [node for node in load(model.SerializeToString()).nodes if node.op == "Loop"]
    assert len(node.outputs) == 1


def test_a_name_that_the_body_has_too_is_not_read_from_around() -> None:
    """`w` is a value of the body and a weight around it: the state that stays is carried on."""
    text = """g (float[3] x, int64 n) => (float[3] y) {
        y, same = Loop(n, "", x, w) <body = b (int64 i, bool c, float[3] s, float[3] k)
            => (bool d, float[3] s2, float[3] k) { d = Identity(c) w = Neg(s) s2 = Add(w, k) }>
    }"""
    weights = {"w": np.ones(3, np.float32)}
    check(model_of(text, weights=weights), {"x": np.ones(3, np.float32), "n": np.array(3)}, runtime=False)


GROWS_ONCE = """g (float[2,3] x, float t) => (float[2,3] y, float[4,2,3] z) {
    four = Constant <value_int = 4> ()
    nothing = Constant <value_float = 0.5> ()
    y, z = Loop(four, "", nothing) <body = b (int64 i, bool c, float s) => (bool d, float[2,3] s2, float[2,3] o) {
        f = Cast <to = 1> (i) a = Mul(x, f) s2 = Add(s, a) o = Neg(s2) m = ReduceMax <keepdims = 0> (s2) d = Less(m, t)
    }>
}"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trips", [1, 2, 4])
def test_a_state_that_has_its_shape_from_the_first_iteration_on(trips: int, threads: int) -> None:
    """As of a sum that begins with 0: the first iteration is written out."""
    text = GROWS_ONCE.replace("m = ReduceMax <keepdims = 0> (s2) d = Less(m, t)", "d = Identity(c)")
    text = text.replace("value_int = 4", f"value_int = {trips}").replace("[4,2,3]", f"[{trips},2,3]")
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    check(model_of(text), {"x": x, "t": np.array(1, np.float32)}, threads)
    assert any(isinstance(step, LoopStart) for step in opened(model_of(text)).steps) is (trips > 1)


@pytest.mark.parametrize("limit", [-9.0, 1.0, 99.0])
def test_a_first_iteration_may_be_the_last(limit: float) -> None:
    text = GROWS_ONCE.replace(", z = Loop", " = Loop").replace(", float[2,3] o)", ")").replace("o = Neg(s2)", "")
    text = text.replace(", float[4,2,3] z", "")
    check(model_of(text), {"x": np.ones((2, 3), np.float32), "t": np.array(limit, np.float32)})
    check(model_of(GROWS_ONCE), {"x": np.ones((2, 3), np.float32), "t": np.array(99, np.float32)}, native=False)


GROWS = """g (float[2,3] x) => (float[2,a] y, float[4,2] z) {
    four = Constant <value_int = 4> ()
    y, z = Loop(four, "", x) <body = b (int64 i, bool c, float[2,k] s) => (bool d, float[2,n] s2, float[2] o) {
        d = Identity(c) s2 = Concat <axis = 1> (s, x) o = ReduceSum <keepdims = 0> (s2, one) }>
}"""

LIST = """g (float[2,3] x) => (float[a,b] y, float[c,d,e] z, int64 n) {
    four = Constant <value_int = 4> ()
    none = SequenceEmpty ()
    s, last = Loop(four, "", none, x) <body = b (int64 i, bool c, seq(float[k,n]) q, float[2,3] t)
        => (bool d, seq(float[k,n]) q2, float[2,3] u) {
        d = Identity(c) u = Tanh(t) q2 = SequenceInsert(q, u) }>
    y = ConcatFromSequence <axis = 1> (s)
    z = ConcatFromSequence <axis = 1, new_axis = 1> (s)
    n = SequenceLength(s)
}"""


@pytest.mark.parametrize("text", [GROWS, LIST])
def test_few_iterations_that_change_shapes_or_lists_are_written_out(text: str) -> None:
    model = model_of(text, 17, {"one": np.array([1])})
    check(model, {"x": RNG.standard_normal((2, 3)).astype(np.float32)})
    assert not any(isinstance(step, LoopStart) for step in opened(model).steps)


def test_what_is_behind_a_loop_that_has_no_kernels_has_shapes() -> None:
    """One state grows as often as a run tells; the other has the same shape all the time."""
    text = """g (float[2,3] x, int64 n) => (float[2,3] y, float[2,a] z) {
        u, z = Loop(n, "", x, x) <body = b (int64 i, bool c, float[2,3] s, float[2,k] r)
            => (bool d, float[2,3] s2, float[2,m] r2) {
            d = Identity(c) s2 = Tanh(s) r2 = Concat <axis = 1> (r, s) }>
        y = Exp(u)
    }"""
    model = model_of(text)
    check(model, {"x": np.ones((2, 3), np.float32), "n": np.array(3)}, native=False)
    graph = load(model.SerializeToString())
    assert [graph.type(port.tensor).shape for port in graph.outputs] == [(2, 3), None]


PARTS = """g (float[9,4] x, float[9,4] u) => (float[9,4] y, float[4,2,4] z) {
    zero = Constant <value_int = 0> ()
    last, y, z = Loop("", "", zero, x) <body = b (int64 i, bool c, int64 k, float[9,4] s)
        => (bool d, int64 k2, float[9,4] t, float[m,4] o) {
        axis = Constant <value_ints = [0]> ()
        one = Constant <value_int = 1> ()
        two = Constant <value_int = 2> ()
        k2 = Add(k, two)
        a = Unsqueeze(k, axis) e = Unsqueeze(k2, axis)
        o = Slice(x, a, e, axis)
        r = Range(k, k2, one)
        n = Unsqueeze(r, far)
        size = Shape(o) p = Expand(n, size)
        v = Slice(u, a, e, axis)
        t = ScatterElements <axis = 0> (s, p, v)
        d = Less(k2, seven) }>
    unused = Identity(last)
}"""


def test_parts_between_counters_have_a_size() -> None:
    """Two rows in each iteration, read here and written there."""
    x, u = (RNG.standard_normal((9, 4)).astype(np.float32) for _ in range(2))
    text = PARTS.replace("    unused = Identity(last)\n", "")
    model = model_of(text, 17, {"far": np.array([1]), "seven": np.array(7)})
    check(model, {"x": x, "u": u})
    by_run = text.replace('Loop("", ""', 'Loop(most, ""').replace("float[9,4] u)", "float[9,4] u, int64 most)")
    model = model_of(by_run, 17, {"far": np.array([1]), "seven": np.array(7)})
    check(model, {"x": x, "u": u, "most": np.array(4)}, native=False)


@pytest.mark.parametrize("end", ["Constant <value_ints = [5]> ()", "Constant <value_ints = [-1]> ()"])
def test_parts_that_shrink_have_none(end: str) -> None:
    text = """g (float[6] x) => (float y) {
        zero = Constant <value_float = 0.0> () four = Constant <value_int = 4> ()
        y = Loop(four, "", zero) <body = b (int64 i, bool c, float s) => (bool d, float t) {
            d = Identity(c) z = Constant <value_ints = [0]> () a = Unsqueeze(i, z)
            e = END
            o = Slice(x, a, e, z) r = ReduceSum <keepdims = 0> (o) t = Add(s, r) }>
    }""".replace("END", end)
    check(model_of(text, 17), {"x": np.arange(6, dtype=np.float32)}, native=False)


DECODER = """g (float[1,4] h) => (float[1,6,4] y, int64 steps) {
    zero = Constant <value_int = 0> () no = Constant <value = bool {0}> () yes = Constant <value = bool {1}> ()
    many = Constant <value_int = 99> ()
    a, b, y, steps, over = Loop(many, yes, h, w, rows, zero, no) <body = l (int64 i, bool c, float[1,4] s,
        float[4,4] w, float[1,6,4] out, int64 k, bool e)
        => (bool c2, float[1,4] s2, float[4,4] w, float[1,6,4] out2, int64 k2, bool e2) {
        none = Constant <value_ints = [0]> ()
        m = MatMul(s, w) s2 = Tanh(m)
        f = Cast <to = 1> (k) g = Add(f, unit) k2 = Cast <to = 7> (g)
        axis = Constant <value_ints = [1]> () first = Constant <value_ints = [0]> ()
        start = Reshape(k, axis) next = Reshape(k2, axis) end = Min(next, length)
        part = Slice(out, start, end, axis) size = Shape(part)
        wide = Unsqueeze(s2, axis) new = Expand(wide, size)
        p = Squeeze(start) q = Squeeze(end) step = Constant <value_int = 1> ()
        r = Range(p, q, step) r3 = Reshape(r, column) at = Expand(r3, size)
        out2 = ScatterElements <axis = 1> (out, at, new)
        top = ReduceMax <keepdims = 0> (s2) low = Less(top, limit)
        t = If(low) <then_branch = d () => (bool v) { v = Constant <value = bool {1}> () },
                     else_branch = n () => (bool[1] u) { x = Cast <to = 7> (e) z = Add(x, none) u = Cast <to = 9> (z) }>
        e1 = Cast <to = 7> (t) e3 = Add(e1, none) e2 = Cast <to = 9> (e3)
        go = Not(t) before = Less(g, six) both = And(before, go) int = Cast <to = 7> (both) sum = Add(int, none)
        c2 = Cast <to = 9> (sum) }>
}"""
"""A decoder as Paddle's exporter has it: a counter of floats writes rows, until one is small or all are there."""


@pytest.mark.parametrize("limit", [-9.0, 0.05, 9.0])
def test_a_decoder_that_ends_when_it_wants_to(limit: float) -> None:
    weights = {
        "w": (RNG.standard_normal((4, 4)) / 3).astype(np.float32), "rows": np.zeros((1, 6, 4), np.float32),
        "unit": np.array(1, np.float32), "six": np.array(6, np.float32), "length": np.array([6]),
        "column": np.array([1, -1, 1]), "limit": np.array(limit, np.float32),
    }  # fmt: skip
    h = np.ones((1, 4), np.float32)
    model = model_of(DECODER, 17, weights)
    check(model, {"h": h})
    [loop] = [step for step in opened(model).steps if isinstance(step, LoopStart)]
    assert loop.condition


BRANCH_RANKS = """g (bool c, float[1] x) => (float[1] y{also}) {{
    a = If(c) <then_branch = t () => (float p) {{ p = Constant <value_float = 2.0> () }},
               else_branch = e () => (float[1] q) {{ q = Neg(x) }}>
    b = Neg(a)
    {rest}
}}"""


@pytest.mark.parametrize(
    ("rest", "also", "native"),
    [
        ("y = Add(b, x) ", "", False),  # nothing says what shape an input has, but its type
        ("y = Add(b, one)", "", True),
        ("d = Sqrt(b) y = Mul(one, d)", "", True),
        ("y = Add(b, one) z = Identity(a)", ", float[k] z", False),
        ("y = Add(b, one) s = Shape(b)", ", int64[k] s", False),
        ("y = Add(b, scalar)", "", False),
    ],
)
@pytest.mark.parametrize("truth", [False, True])
def test_branches_of_one_element_with_and_without_an_axis(rest: str, also: str, native: bool, truth: bool) -> None:
    weights = {"one": np.ones(1, np.float32), "scalar": np.array(1, np.float32)}
    model = model_of(BRANCH_RANKS.format(rest=rest, also=also), 17, weights)
    check(model, {"c": np.array(truth), "x": np.array([3], np.float32)}, native=native)


def test_a_weight_that_the_body_knows_by_the_same_name() -> None:
    text = """g (float[3] x, int64 n) => (float[3] y) {
        y, v = Loop(n, "", x, w) <body = b (int64 i, bool c, float[3] s, float[3] w)
            => (bool d, float[3] t, float[3] w) {
            d = Identity(c) t = Add(s, w) }>
    }"""
    model = model_of(text, weights={"w": np.ones(3, np.float32)})
    check(model, {"x": np.ones(3, np.float32), "n": np.array(3)})
    [node] = [node for node in load(model.SerializeToString()).nodes if node.op == "Loop"]
    assert len(node.outputs) == 1


@pytest.mark.slow
def test_many_iterations_that_change_shapes_are_not_written_out() -> None:
    """As often as the model says in few bytes; in a loop of such loops neither."""
    many = model_of(
        GROWS.replace("value_int = 4", "value_int = 400").replace("[4,2]", "[400,2]"), 17, {"one": np.array([1])}
    )
    assert [node.op for node in load(many.SerializeToString()).nodes] == ["Loop"]
    text = """g (float[2] x) => (float[a] y) {
        n = Constant <value_int = 300> ()
        y = Loop(n, "", x) <body = b (int64 i, bool c, float[k] s) => (bool d, float[m] t) {
            d = Identity(c)
            t = Loop(n, "", s) <body = e (int64 j, bool f, float[l] u) => (bool g, float[o] v) {
                g = Identity(f) v = Concat <axis = 0> (u, x) }> }>
    }"""
    assert len(load(model_of(text, 17).SerializeToString()).nodes) < 2000


WIDENED = """g (float[4,1] x, int64 n) => (float[1] y) {
    one = Constant <value_int = 1> ()
    three = Constant <value_int = 3> ()
    nothing = Constant <value_float = 0.0> ()
    k, y = Loop("", "", n, nothing) <body = b (int64 i, bool c, int64 k, float s) => (bool d, int64 k2, float r) {
        k2 = Add(k, one) row = Gather(x, k) r = Sub(s, row) d = Less(k2, three) }>
}"""


def test_a_state_that_has_another_shape_after_the_first_iteration_of_an_endless_loop() -> None:
    """It is found by writing that iteration out: behind it stands a loop that has a condition, and no count still."""
    x = RNG.standard_normal((4, 1)).astype(np.float32)
    for start in (0, 3):
        check(model_of(WIDENED, 17), {"x": x, "n": np.array(start)}, native=False)
