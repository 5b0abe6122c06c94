"""If, Loop and Scan with bodies of kernels, against ONNX Runtime and ONNX's evaluator with its faults put right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tunewright.codegen.runtime.control import ProgramStop
from tunewright.graph.control.steps import LoopStart, MovingView, TensorCopy
from tunewright.graph.fusion.fusion import TaskCall
from tunewright.tuner.session.image_store import ImageStore

from .conftest import static_model
from .control_models import check, model_of, onnxruntime_of, opened, session_of

X = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
Y = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)

COUNTED = """g (float[3] x, int64 n) => (float[3] y) {
    y = Loop(n, "", x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {
        c2 = Identity(c) f = Cast <to = 1> (i) t = Add(s, f) s2 = Mul(t, x) }>
}"""

UNTIL = """g (float[3] x, int64 n, bool c) => (float[3] y) {
    y = Loop(n, c, x) <body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] s2) {
        s2 = Add(s, x) m = ReduceMax <keepdims = 0> (s2) h = Constant <value_float = 4.0> () k2 = Less(m, h) }>
}"""

BRANCHES = """g (float[4] x, bool c) => (float[4] y) {
    a = Relu(x)
    b = If(c) <then_branch = t () => (float[4] p) { p = Mul(a, x) }, else_branch = e () => (float[4] q) { q = Neg(a) }>
    y = Add(b, a)
}"""

STACKED = """g (float[3] x) => (float[3] y, float[4,3] z) {
    n = Constant <value_int = 4> ()
    y, z = Loop(n, "", x) <body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] s2, float[3] o) {
        k2 = Identity(k)
        two = Constant <value_int = 2> ()
        l = Less(i, two)
        s2 = If(l) <then_branch = t () => (float[3] p) { p = Add(s, x) },
                    else_branch = e () => (float[3] q) { q = Mul(s, x) }>
        o = Relu(s) }>
}"""

ROTATED = """g (float[3] a, float[3] b, int64 n) => (float[3] y, float[3] z, float[3] w) {
    y, z, w = Loop(n, "", a, b, a) <body = l (int64 i, bool k, float[3] p, float[3] q, float[3] r)
        => (bool k, float[3] q, float[3] t, float[3] r) { t = Add(p, q) }>
}"""

NESTED = """g (float[3] a) => (float[3] y, float[2,4,3] z) {
    n = Constant <value_int = 2> ()
    m = Constant <value_int = 4> ()
    y, z = Loop(n, "", a) <body = b (int64 i, bool k, float[3] p) => (bool k2, float[3] p2, float[4,3] u) {
        k2 = Identity(k)
        p2, u = Loop(m, "", p) <body = c (int64 j, bool kk, float[3] r) => (bool kk2, float[3] r2, float[3] v) {
            kk2 = Identity(kk) ij = Add(i, j) f = Cast <to = 1> (ij) r2 = Add(r, f) v = Mul(r2, a) }> }>
}"""

LOOP_IN_BRANCH = """g (float[3] x, bool c, int64 n) => (float[3] y) {
    y = If(c) <
        then_branch = t () => (float[3] p) {
            p = Loop(n, "", x) <body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] s2) {
                k2 = Identity(k) s2 = Add(s, x) }> },
        else_branch = e () => (float[3] q) { q = Identity(x) }>
}"""

SCANNED = """g (float[3] i, float[5,3] x) => (float[3] y, float[5,3] z) {
    y, z = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] e) => (float[3] s2, float[3] o) {
        s2 = Add(s, e) o = Mul(s2, e) }> (i, x)
}"""

SCANNED_ACROSS = """g (float[5] i, float[5,3] x) => (float[5] y, float[5,3] z) {
    y, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1], scan_input_directions = [1],
        scan_output_directions = [1], body = b (float[5] s, float[5] e) => (float[5] s2, float[5] o) {
            s2 = Add(s, e) o = Mul(s2, e) }> (i, x)
}"""

STACKS_ONLY = """g (float[5,3] x, float[5] y) => (float[5,3] z, float[5,3] w) {
    z, w = Scan <num_scan_inputs = 2, body = b (float[3] e, float f) => (float[3] o, float[3] p) {
        o = Mul(e, f) p = Identity(e) }> (x, y)
}"""

SAME_TWICE = """g (float[3] x, bool c) => (float[3] y, float[3] z, float[3] w) {
    y, z, w = If(c) <
        then_branch = t () => (float[3] p, float[3] u, float[3] v) {
            p = Exp(x) u = Identity(p) v = Identity(x) },
        else_branch = e () => (float[3] k, float[3] q, float[3] r) {
            k = Constant <value_floats = [1.0, 2.0, 3.0]> () s = Constant <value = int64[1] {3}> ()
            q = Neg(x) r = Reshape(q, s) }>
}"""


THREADS = pytest.mark.parametrize("threads", [1, 2, 3])
TRUTH = pytest.mark.parametrize("truth", [False, True])


@THREADS
@TRUTH
def test_branches(threads: int, truth: bool) -> None:
    check(model_of(BRANCHES), {"x": np.array([1, -2, 3, -4], np.float32), "c": np.array(truth)}, threads)
    check(model_of(BRANCHES.replace("bool c", "bool[1] c")), {"x": np.ones(4, np.float32), "c": np.array([truth])})
    check(model_of(SAME_TWICE), {"x": X[0], "c": np.array(truth)}, threads)


@THREADS
@pytest.mark.parametrize("trips", [-1, 0, 1, 2, 7, 100])
def test_trips_of_a_run(threads: int, trips: int) -> None:
    check(model_of(COUNTED), {"x": np.abs(X[0]) / 2, "n": np.array(trips)}, threads)
    check(model_of(COUNTED.replace("int64 n", "int64[1] n")), {"x": X[0] / 9, "n": np.array([trips])}, threads)


@THREADS
@TRUTH
@pytest.mark.parametrize("trips", [0, 2, 9, 2**62])
def test_a_condition_ends_a_loop(threads: int, truth: bool, trips: int) -> None:
    feeds = {"x": np.abs(X[0]), "n": np.array(trips), "c": np.array(truth)}
    check(model_of(UNTIL), feeds, threads)
    check(model_of(UNTIL.replace("Loop(n, c", 'Loop("", c')), feeds, threads)
    if trips:
        check(model_of(UNTIL.replace("Loop(n, c", 'Loop(n, ""')), feeds, threads)


@THREADS
def test_what_loops_stack_up(threads: int) -> None:
    check(model_of(STACKED), {"x": X[0]}, threads)
    check(model_of(NESTED), {"a": X[0]}, threads)
    check(model_of(SCANNED), {"i": X[0], "x": X}, threads)
    check(model_of(SCANNED_ACROSS), {"i": X[:, 0].copy(), "x": X}, threads)
    check(model_of(STACKS_ONLY), {"x": X, "y": X[:, 0].copy()}, threads)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 8])
def test_states_that_change_places_or_stay(trips: int) -> None:
    check(model_of(ROTATED), {"a": X[0], "b": X[1], "n": np.array(trips)})


@THREADS
@TRUTH
def test_a_loop_in_a_branch(threads: int, truth: bool) -> None:
    check(model_of(LOOP_IN_BRANCH), {"x": X[0], "c": np.array(truth), "n": np.array(3)}, threads)


def test_loops_without_iterations() -> None:
    check(model_of(STACKED.replace("value_int = 4", "value_int = 0").replace("float[4,3]", "float[0,3]")), {"x": X[0]})
    empty = SCANNED.replace("float[5,3]", "float[0,3]")
    check(model_of(empty), {"i": X[0], "x": X[:0]}, runtime=False)


@THREADS
def test_large_states_and_weights_from_around(threads: int) -> None:
    """A product in a loop, on all threads: states of several copies' size, weights that both branches read."""
    text = """g (float[65,257] x, int64 n, bool c) => (float[65,257] y) {
        y = Loop(n, "", x) <body = b (int64 i, bool k, float[65,257] s) => (bool k2, float[65,257] s2) {
            k2 = Identity(k)
            s2 = If(c) <then_branch = t () => (float[65,257] p) { m = MatMul(s, w) p = Tanh(m) },
                        else_branch = e () => (float[65,257] q) { l = MatMul(s, w) q = Sub(l, x) }> }>
    }"""
    rng = np.random.default_rng(3)
    model = model_of(text, weights={"w": (rng.standard_normal((257, 257)) / 32).astype(np.float32)})
    for truth in (False, True):
        feeds = {"x": rng.standard_normal((65, 257)).astype(np.float32), "n": np.array(3), "c": np.array(truth)}
        session = session_of(model, threads)
        assert not session.coverage().fallback
        for _ in range(2):
            [result] = session.run(None, feeds)
            np.testing.assert_allclose(result, onnxruntime_of(model).run(None, feeds)[0], rtol=1e-4, atol=1e-4)
    constants = opened(model).graph.constants
    assert len({id(array) for array in constants.values() if array.size == 257 * 257}) == 1


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_recurrent_layers_in_a_body(op: str) -> None:
    gates = 4 if op == "LSTM" else 3
    rng = np.random.default_rng(4)
    weights = {"w": (1, gates * 5, 3), "r": (1, gates * 5, 5), "b": (1, 2 * gates * 5)}
    text = f"""g (float[2,1,3] x, float[1,1,5] h, int64 n) => (float[1,1,5] y) {{
        y = Loop(n, "", h) <body = l (int64 i, bool k, float[1,1,5] s) => (bool k2, float[1,1,5] s2) {{
            k2 = Identity(k) _, s2 = {op} <hidden_size = 5> (x, w, r, b, "", s) }}>
    }}""".replace("_, s2", '"", s2')
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    feeds = {"x": X[:2, None], "h": np.zeros((1, 1, 5), np.float32), "n": np.array(4)}
    check(model_of(text, weights=arrays), feeds)


def test_what_a_known_condition_leaves_is_no_branch() -> None:
    """Known after fusion at the latest: no step is left of the If."""
    text = """g (float[3] x, int64 n) => (float[3] y) {
        y = Loop(n, "", x) <body = b (int64 i, bool k, float[3] s) => (bool k2, float[3] s2) {
            k2 = Identity(k)
            s2 = If(k) <then_branch = t () => (float[3] p) { p = Add(s, x) },
                        else_branch = e () => (float[3] q) { q = Mul(s, x) }> }>
    }"""
    model = opened(model_of(text))
    assert [task.op for task, _ in model.tasks.values()] == ["Add"]
    check(model_of(text), {"x": X[0], "n": np.array(2)})


def test_what_changes_its_shape_stays_as_it_is() -> None:
    text = """g (float[1] x, int64 n) => (float[m] y) {
        y = Loop(n, "", x) <body = b (int64 i, bool k, float[j] s) => (bool k2, float[l] s2) {
            k2 = Identity(k) s2 = Concat <axis = 0> (s, x) }>
    }"""
    check(model_of(text), {"x": X[0, :1], "n": np.array(3)}, native=False)
    assert not any(isinstance(step, LoopStart) for step in opened(model_of(text)).steps)
    text = BRANCHES.replace("(float[4] q) { q = Neg(a)", "(float[1] q) { q = ReduceSum(a)")
    check(model_of(text), {"x": np.ones(4, np.float32), "c": np.array(False)}, native=False)


@THREADS
def test_a_branch_that_no_size_fits(threads: int, tmp_path: Path) -> None:
    """The other one runs natively; where it is taken, the run fails as elsewhere."""
    text = BRANCHES.replace("q = Neg(a)", "o = Constant<value_ints = [0]> () s = Squeeze(a, o) q = Neg(s)")
    model, feeds = model_of(text), {"x": np.array([1, -2, 3, -4], np.float32), "c": np.array(True)}
    session = session_of(model, threads)
    assert not session.coverage().fallback
    for _ in range(2):
        with pytest.raises(ProgramStop, match="shapes don't fit together in its else branch"):
            session.run(None, feeds | {"c": np.array(False)})
        [result] = session.run(None, feeds)
        np.testing.assert_allclose(result, np.maximum(feeds["x"], 0) * (feeds["x"] + 1))
    store = ImageStore(tmp_path)
    assert store.put("name", static_model(session).image, b"code")
    stored = store.get("name")
    assert stored is not None and [step for step in stored.image.steps if not hasattr(step, "artifact")] == [
        step for step in static_model(session).image.steps if not hasattr(step, "artifact")
    ]


def test_stacks_of_unknown_height_stay_as_they_are() -> None:
    text = STACKED.replace("float[3] x)", "float[3] x, int64 n)").replace("n = Constant <value_int = 4> ()", "")
    check(model_of(text), {"x": X[0], "n": np.array(4)}, native=False)


def test_tasks_count_iterations() -> None:
    model = opened(model_of(NESTED))
    assert [count for _, count in model.tasks.values()] == [8, 8, 8]
    assert opened(model_of(BRANCHES)).native_nodes == 5
    found = opened(model_of("found (float[16] x) => (float[M] y) { y = Unique(x) }"))
    assert found.native_nodes == found.runtime_nodes + len(found.tasks) and found.runtime_nodes > 0


def test_no_state_is_copied_in_an_iteration() -> None:
    """Neither is what is stacked up: calls write where the next iteration reads, and the rows themselves."""
    steps = opened(model_of(SCANNED)).steps
    first = next(place for place, step in enumerate(steps) if isinstance(step, LoopStart))
    copies = [place for place, step in enumerate(steps) if isinstance(step, TensorCopy)]
    calls = [place for place, step in enumerate(steps) if isinstance(step, TaskCall)]
    assert len(copies) == 2
    assert copies[0] < first < calls[0] <= calls[-1] < copies[1]
    assert sum(isinstance(step, MovingView) for step in steps) == 4


def test_threads_share_a_session() -> None:
    session, expected = session_of(model_of(COUNTED), 2), onnxruntime_of(model_of(COUNTED))
    feeds = [{"x": X[n % 5], "n": np.array(n % 7)} for n in range(64)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda feed: session.run(None, feed)[0], feeds))
    for feed, result in zip(feeds, results, strict=True):
        np.testing.assert_allclose(result, expected.run(None, feed)[0], rtol=1e-5, atol=1e-6)


def test_images_keep_control_flow(tmp_path: Path) -> None:
    session = session_of(model_of(NESTED))
    image = static_model(session).image
    store = ImageStore(tmp_path)
    assert store.put("name", image, b"code")
    stored = store.get("name")
    assert stored is not None
    assert [step for step in stored.image.steps if not hasattr(step, "artifact")] == [
        step for step in image.steps if not hasattr(step, "artifact")
    ]
    assert stored.image.arena_bytes == image.arena_bytes


def test_kernels_are_timed() -> None:
    session = session_of(model_of(COUNTED))
    short, long = (session.kernels_s({"x": X[0] / 9, "n": np.array(n)}) for n in (1, 10_000))
    assert long > 20 * short


def test_an_iteration_costs_little() -> None:
    """Beside its kernel, which does three elements: far more than it takes, far less than Python would."""
    session = session_of(model_of(COUNTED))
    assert session.kernels_s({"x": X[0] / 9, "n": np.array(10_000)}) < 10_000 * 2e-6


def test_bodies_read_and_write_other_types() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "i"], ["t"]), helper.make_node("Identity", ["k"], ["k2"])],
        "b",
        [helper.make_tensor_value_info(*info) for info in (("i", TensorProto.INT64, ()), ("k", TensorProto.BOOL, ()))]
        + [helper.make_tensor_value_info("s", TensorProto.INT64, (2,))],
        [helper.make_tensor_value_info("k2", TensorProto.BOOL, ()), helper.make_tensor_value_info("t", 7, (2,))],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "g",
        [helper.make_tensor_value_info("x", 7, (2,)), helper.make_tensor_value_info("n", 7, ())],
        [helper.make_tensor_value_info("y", 7, (2,))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    check(model, {"x": np.array([2**40, -3]), "n": np.array(5)})


def test_what_another_loop_left_is_read_row_by_row() -> None:
    """The first has no kernels, as how much it stacks up is not known."""
    text = """g (float[5,3] x, float[3] i, int64 n) => (float[m,5,3] z, float[3] y) {
        s, z = Loop(n, "", x) <body = b (int64 i, bool k, float[5,3] s) => (bool k2, float[5,3] s2, float[5,3] o) {
            k2 = Identity(k) s2 = Add(s, s) o = Identity(s2) }>
        y, r = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] e) => (float[3] s2, float[3] o) {
            s2 = Add(s, e) o = Mul(s2, e) }> (i, s)
    }"""
    check(model_of(text), {"x": X, "i": X[0], "n": np.array(2)}, native=False)


SCALED = """g (float[4,8] x, bool c) => (float[4,8] y) {
    s = Constant <value_float = 0.3> ()
    q = If(c) <then_branch = t () => (float[4,8] p) { m = MatMul(x, w) p = Mul(m, s) },
               else_branch = e () => (float[4,8] r) { r = Neg(x) }>
    y = Floor(q)
}"""

SCALED_AGAIN = """g (float[4,8] x, int64 n) => (float[4,8] y) {
    s = Constant <value_float = 0.3> ()
    y = Loop(n, "", x) <body = b (int64 i, bool k, float[4,8] q) => (bool k2, float[4,8] r) {
        k2 = Identity(k) f = Floor(q) m = MatMul(f, w) r = Mul(m, s) }>
}"""


@pytest.mark.parametrize("text", [SCALED, SCALED_AGAIN])
def test_what_a_step_outside_reads_is_not_rounded_in_another_way(text: str) -> None:
    """The factor stays behind the product where a step follows, and goes into the weights where none does."""
    w = np.random.default_rng(5).standard_normal((8, 8)).astype(np.float32)
    for op, stays in (("Floor", True), ("Relu", False)):
        model = opened(model_of(text.replace("Floor", op), weights={"w": w}))
        read = {name for step in model.steps if isinstance(step, TaskCall) for name in step.inputs}
        [weights] = [model.graph.constants[name] for name in read if model.graph.type(name).shape == (8, 8)]
        assert np.array_equal(weights, w) is stays
        assert sum(array.shape == w.shape for array in model.graph.constants.values()) == 1
