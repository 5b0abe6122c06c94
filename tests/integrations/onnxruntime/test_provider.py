"""Models in ONNX Runtime with our provider: the same results, whatever part of them is ours."""

from __future__ import annotations

import ctypes
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.23")

from tunewright.db.errors import StoreError  # noqa: E402
from tunewright.graph.numerics import Precision  # noqa: E402
from tunewright.integrations.onnxruntime import registration, session_options, wait  # noqa: E402
from tunewright.integrations.onnxruntime.fused_group import FusedGroup  # noqa: E402
from tunewright.integrations.onnxruntime.options import NAME  # noqa: E402
from tunewright.integrations.onnxruntime.registration import groups  # noqa: E402
from tunewright.tuner.errors import Refused  # noqa: E402
from tunewright.tuner.lookup.lockfile import write_lock  # noqa: E402
from tunewright.tuner.lookup.source import ScheduleSource  # noqa: E402
from tunewright.tuner.session.open_model import OpenModel  # noqa: E402

from ...tuner.wide_model import X, is_close, recounted, wide_model  # noqa: E402

RNG = np.random.default_rng(5)

PERCEPTRON = """g (float[batch, 64] x) => (float[batch, 32] y)
    { h = MatMul(x, w1) a = Add(h, b1) r = Relu(a) o = MatMul(r, w2) y = Sigmoid(o) }"""


def model(text: str, weights: dict[str, Any] | None = None, opset: int = 18) -> bytes:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(made.SerializeToString())


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def perceptron(text: str = PERCEPTRON) -> bytes:
    return model(text, {"w1": normal(64, 48), "b1": normal(48), "w2": normal(48, 32)})


def plain(content: bytes) -> Any:
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def opened(content: bytes, **options: Any) -> Any:
    return onnxruntime.InferenceSession(content, session_options(1, **{"background": False, **options}))


@pytest.fixture(scope="module", autouse=True)
def no_old_objects() -> None:
    """Garbage is looked for after each test, among what came to be since."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_sessions() -> Iterator[None]:
    before = set(groups())  # of a test that failed
    yield
    gc.collect()
    assert set(groups()) <= before, "a closed session leaves groups behind"


def check(content: bytes, feeds: dict[str, Any], runs: int = 3, **options: Any) -> int:
    """Compare results with those of ONNX Runtime alone; the number of groups."""
    expected = plain(content).run(None, feeds)
    session = opened(content, **options)
    assert session.get_providers()[0] == NAME
    for _ in range(runs):  # the later ones without Python
        for own, peer in zip(session.run(None, feeds), expected, strict=True):
            assert own.dtype == peer.dtype
            np.testing.assert_allclose(own, peer, rtol=1e-4, atol=1e-5)
    return len(groups())


def test_a_model_that_is_ours_is_one_group() -> None:
    assert check(perceptron(PERCEPTRON.replace("batch", "3")), {"x": normal(3, 64)}) == 1


def test_one_session_runs_every_size() -> None:
    content = perceptron()
    session, peer = opened(content), plain(content)
    for batch in (1, 7, 1, 64, 7, 7, 1):
        x = normal(batch, 64)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], peer.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_runs_do_not_wait_for_kernels_of_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    content = perceptron()
    session = opened(content, background=True)
    (group,) = groups()
    assert isinstance(group, FusedGroup) and group._session is not None
    model, may_open = group._session._model, threading.Event()
    assert isinstance(model, OpenModel)
    open_at = model._open_at

    def late(*arguments: Any) -> Any:
        may_open.wait(30)
        return open_at(*arguments)

    monkeypatch.setattr(model, "_open_at", late)
    for batch in (3, 4, 3):
        x = normal(batch, 64)
        np.testing.assert_allclose(
            session.run(None, {"x": x}), plain(content).run(None, {"x": x}), rtol=1e-4, atol=1e-5
        )
    may_open.set()
    assert wait(60)
    del session, group, model


def test_a_session_answers_while_its_kernels_are_compiled() -> None:
    assert check(perceptron(), {"x": normal(3, 64)}, background=True) == 1


def test_it_can_be_waited_for() -> None:
    content = perceptron(PERCEPTRON.replace("batch", "3"))
    session = opened(content, background=True)
    assert wait(60)
    (group,) = groups()
    assert isinstance(group, FusedGroup)
    assert group._session is not None
    assert group._session.ready
    del session
    assert wait()
    with pytest.raises(Refused):
        wait("soon")  # type: ignore[arg-type]


def test_runs_need_no_python_once_kernels_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    content = perceptron(PERCEPTRON.replace("batch", "3"))
    session, x = opened(content), normal(3, 64)
    expected = session.run(None, {"x": x})[0]

    def fail(group: FusedGroup, context: int) -> None:
        raise AssertionError("a run came to Python")

    monkeypatch.setattr(FusedGroup, "run", fail)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def test_large_tensors_are_used_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are copied through memory of the model's own, these are not."""
    content = model("g (float[64, 512] x) => (float[64, 512] y, float[64, 512] z) { y = Relu(x) z = Exp(x) }")
    session, x = opened(content), normal(64, 512)
    session.run(None, {"x": x})
    monkeypatch.setattr(FusedGroup, "run", None)
    for _ in range(3):
        y, z = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        np.testing.assert_allclose(z, np.exp(x), rtol=1e-5)


def test_what_is_not_ours_stays_with_onnx_runtime() -> None:
    text = """g (float[256, 256] x, string[4] s) => (float[256, 256] y, string[4] t)
        { a = MatMul(x, w) t = Identity(s) b = MatMul(a, w)
          c = Cast <to=8> (b) d = Cast <to=1> (c) y = Relu(d) }"""
    content = model(text, {"w": normal(256, 256) / 16})
    feeds = {"x": normal(256, 256), "s": np.array(["a", "b", "c", "d"], object)}
    expected, session = plain(content).run(None, feeds), opened(content)
    results = session.run(None, feeds)
    np.testing.assert_allclose(results[0], expected[0], rtol=1e-3, atol=1e-4)
    assert results[1].tolist() == ["a", "b", "c", "d"]
    assert len(groups()) == 1


def test_too_little_work_is_left_to_onnx_runtime() -> None:
    content = model("g (float[4] x, string[1] s) => (float[4] y, string[1] t) { y = Relu(x) t = Identity(s) }")
    session = opened(content)
    assert session.run(None, {"x": normal(4), "s": np.array(["a"], object)})[1].tolist() == ["a"]
    assert not groups()


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_loop_is_ours_with_its_body(trips: int) -> None:
    body = onnx.parser.parse_graph(
        "body (int64 i, bool c, float[8, 8] a) => (bool d, float[8, 8] b)"
        "{ d = Identity(c) m = MatMul(a, w) b = Tanh(m) }"
    )
    graph = onnx.parser.parse_graph("g (float[8, 8] x, int64 n) => (float[8, 8] y) { y = Identity(x) }")
    del graph.node[:]
    graph.node.append(helper.make_node("Loop", ["n", "", "x"], ["y"], body=body))
    graph.initializer.append(numpy_helper.from_array(normal(8, 8), "w"))
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    assert check(content, {"x": normal(8, 8), "n": np.array(trips, np.int64)}) == 1


@pytest.mark.parametrize("condition", [False, True])
def test_branches_that_are_ours_in_part(condition: bool) -> None:
    """The node is not ours, as a branch has texts: what is left of the branches is looked at for itself."""
    then = onnx.parser.parse_graph("then () => (float[128, 128] t) { u = MatMul(x, w) t = Relu(u) }")
    other = onnx.parser.parse_graph(
        "other () => (float[128, 128] e) { k = Identity(s) n = Shape(k) f = Cast <to=1> (n) e = Add(x, f) }"
    )
    graph = onnx.parser.parse_graph(
        "g (float[128, 128] x, bool c, string[1] s) => (float[128, 128] y) { y = Identity(x) }"
    )
    del graph.node[:]
    graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other))
    graph.initializer.append(numpy_helper.from_array(normal(128, 128), "w"))
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    feeds = {"x": normal(128, 128), "c": np.array(condition), "s": np.array(["a"], object)}
    assert check(content, feeds) == 1


def test_bodies_of_functions_are_left_alone() -> None:
    body = onnx.parser.parse_graph("body (float[64, 64] a) => (float[64, 64] b) { m = MatMul(a, w) b = Tanh(m) }")
    graph = onnx.parser.parse_graph("g (seq(float[64, 64]) s) => (seq(float[64, 64]) t) { t = Identity(s) }")
    del graph.node[:]
    graph.node.append(helper.make_node("SequenceMap", ["s"], ["t"], body=body))
    graph.initializer.append(numpy_helper.from_array(normal(64, 64), "w"))
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    feeds = {"s": [normal(64, 64), normal(64, 64)]}
    expected = plain(content).run(None, feeds)[0]
    np.testing.assert_allclose(opened(content).run(None, feeds)[0], expected, rtol=1e-4)


def test_all_kinds_of_attributes_are_read() -> None:
    text = """g (float[1, 2, 8, 8] x) => (float[1, 3, 4, 4] y, float[2, 3] k, int64[1] n) {
        c = Conv <strides=[2, 2], auto_pad="SAME_UPPER", group=1> (x, w)
        l = LeakyRelu <alpha=0.3> (c)
        y = Clip(l, low, high)
        k = ConstantOfShape <value = float[1] {2.5}> (size)
        v = TfIdfVectorizer <max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=[0],
            ngram_indexes=[0, 1], pool_int64s=[1, 2], weights=[1.0, 0.5]> (size)
        f = ReduceSum <keepdims=1> (v)
        n = Cast <to=7> (f) }"""
    weights = {
        "w": normal(3, 2, 3, 3), "low": np.array(-1, np.float32), "high": np.array(1, np.float32),
        "size": np.array([2, 3], np.int64),
    }  # fmt: skip
    check(model(text, weights), {"x": normal(1, 2, 8, 8)})


@pytest.mark.parametrize("kind", ["float16", "float64", "int32", "int64", "uint8", "bool"])
def test_types_go_in_and_out_as_they_are(kind: str) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    value = helper.make_tensor_value_info("x", number, [3, 5])
    result = helper.make_tensor_value_info("y", number, [5, 3])
    node = helper.make_node("Transpose", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [result])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    check(content, {"x": (RNG.standard_normal((3, 5)) * 9).astype(kind)})


def test_weights_of_four_bits_are_read() -> None:
    text = """g (float[2, 64] x) => (float[2, 16] y)
        { y = com.microsoft.MatMulNBits <K=64, N=16, bits=4, block_size=32> (x, q, s) }"""
    weights = {"q": RNG.integers(0, 256, (16, 2, 16)).astype(np.uint8), "s": abs(normal(16 * 2))}
    check(model(text, weights), {"x": normal(2, 64)})
    scales = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])
    packed = helper.make_tensor("w", TensorProto.INT4, [8, 2], [*range(-8, 8)])
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["f"]),
        helper.make_node("Transpose", ["f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [], [scales], [packed, numpy_helper.from_array(np.array(0.5, np.float32), "scale")]
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    np.testing.assert_array_equal(opened(content).run(None, {})[0], plain(content).run(None, {})[0])


def test_threads_share_a_session() -> None:
    content = perceptron()
    session, peer = opened(content), plain(content)
    inputs = [normal(batch, 64) for batch in (1, 2, 3, 5) * 8]
    expected = [peer.run(None, {"x": x})[0] for x in inputs]

    def run(number: int) -> None:
        np.testing.assert_allclose(session.run(None, {"x": inputs[number]})[0], expected[number], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        for _ in range(4):
            list(threads.map(run, range(len(inputs))))


def test_a_group_that_we_refuse_is_left_to_onnx_runtime(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise Refused("the database is not there")

    monkeypatch.setattr("tunewright.integrations.onnxruntime.fused_group.InferenceSession", refuse)
    check(perceptron(), {"x": normal(2, 64)})
    assert "left to ONNX Runtime's own kernels: the database is not there" in caplog.text


def test_a_whole_file_is_opened_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(perceptron())
    session = onnxruntime.InferenceSession(str(path), session_options(1, background=False))
    (group,) = groups()
    assert group.model == path.resolve()
    x = normal(3, 64)
    for _ in range(3):
        expected = plain(path.read_bytes()).run(None, {"x": x})[0]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


def test_weights_that_a_session_is_given_count(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(perceptron())
    given = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((48, 32), np.float32))
    options = session_options(1, background=False)
    options.add_initializer("w2", given)
    session = onnxruntime.InferenceSession(str(path), options)
    np.testing.assert_array_equal(session.run(None, {"x": normal(3, 64)})[0], np.full((3, 32), 0.5, np.float32))


SEVERAL = """g (float[n, 4] a, float[n, 4] b, float[4] c) => (float[n, 4] z, float[n, 4] y, float[n, 4] v, float[n] u)
    { y = Sub(c, b) z = Exp(b) w = Mul(a, z) v = Add(w, c) s = ReduceSum <keepdims=0> (w, axes) u = Neg(s) }"""


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("size", ["n", "3"])
def test_inputs_and_outputs_keep_their_names_in_any_order(tmp_path: Path, is_file: bool, size: str) -> None:
    """ONNX Runtime has them in the order in which nodes use them, the file as its author wrote them."""
    content = model(SEVERAL.replace("[n", f"[{size}"), {"axes": np.array([1], np.int64)})
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    source = str(path) if is_file else content
    session = onnxruntime.InferenceSession(source, session_options(1, background=False))
    peer = plain(content)
    for extent in (3, 3, 3) if size == "3" else (3, 2, 3, 5, 2, 3, 3, 2):
        feeds = {"a": normal(extent, 4), "b": normal(extent, 4), "c": normal(4)}
        for own, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def test_a_file_that_is_left_to_onnx_runtime_keeps_names_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise Refused("not today")

    monkeypatch.setattr("tunewright.integrations.onnxruntime.fused_group.InferenceSession", refuse)
    test_inputs_and_outputs_keep_their_names_in_any_order(tmp_path, True, "3")


@pytest.mark.parametrize("is_file", [False, True])
def test_weights_that_runs_may_give(tmp_path: Path, is_file: bool) -> None:
    graph = onnx.parser.parse_graph("g (float[4, 4] w, float[2, 4] x) => (float[2, 4] y) { y = MatMul(x, w) }")
    graph.initializer.append(numpy_helper.from_array(normal(4, 4), "w"))
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    session = onnxruntime.InferenceSession(str(path) if is_file else content, session_options(1, background=False))
    peer = plain(content)
    for number in range(8):
        feeds = {"x": normal(2, 4)} | ({"w": normal(4, 4)} if number % 3 else {})
        np.testing.assert_allclose(session.run(None, feeds)[0], peer.run(None, feeds)[0], rtol=1e-5, atol=1e-6)


def test_weights_of_other_types_stay_with_onnx_runtime() -> None:
    packed = helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [4], [1.0, 2.0, -1.0, 0.5])
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale"], ["f"]), helper.make_node("Add", ["x", "f"], ["y"])]
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    graph = helper.make_graph(nodes, "g", [value], [result], [packed, scale])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    x = normal(4)
    np.testing.assert_array_equal(opened(content).run(None, {"x": x})[0], plain(content).run(None, {"x": x})[0])


def test_a_slot_that_is_free_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one of which is taken: no run waits."""
    monkeypatch.setattr("tunewright.integrations.onnxruntime.native.available_cores", lambda: {0, 1})
    session, x = opened(perceptron(PERCEPTRON.replace("batch", "3"))), normal(3, 64)
    (group,) = groups()
    assert isinstance(group, FusedGroup)
    for _ in range(2):
        session.run(None, {"x": x})
        group._plan({"x": x})
    mutexes = [slot.mutex_at for slot in group._slots._slots]
    assert len(mutexes) == 2
    system = ctypes.CDLL(None)
    with ThreadPoolExecutor(1) as thread:
        for mutex in mutexes:
            assert system.pthread_mutex_lock(ctypes.c_void_p(mutex)) == 0
            thread.submit(session.run, None, {"x": x}).result(60)
            assert system.pthread_mutex_unlock(ctypes.c_void_p(mutex)) == 0


def test_runs_go_on_where_threads_are_short(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("can't start 3 threads")

    monkeypatch.setattr("tunewright.integrations.onnxruntime.native.Slot", fail)
    check(perceptron(PERCEPTRON.replace("batch", "3")), {"x": normal(3, 64)})
    assert caplog.text.count("can't start 3 threads") == 1


NONE = """
import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tunewright.integrations.onnxruntime import session_options

session = onnxruntime.InferenceSession({content!r}, session_options(1, background=False))
x = np.ones((3, 64), np.float32)
session.run(None, {{"x": x}})
for _ in range(3):
    try:
        session.run(None, {{"x": None}})
    except Fail:
        continue
    raise AssertionError
session.run(None, {{"x": x}})
"""


def test_what_is_no_tensor_is_refused_by_later_runs_too() -> None:
    program = NONE.format(content=perceptron(PERCEPTRON.replace("batch", "3")))
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", program], check=True, timeout=120)


FORK = """
import os, signal, threading, numpy, onnxruntime
from tunewright.integrations.onnxruntime import registration, session_options
session = onnxruntime.InferenceSession({content!r}, session_options(1, background=False))
x = numpy.ones((3, 64), numpy.float32)
for _ in range(3):
    expected = session.run(None, {{"x": x}})[0]
(group,) = registration.groups()
import ctypes
ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(group._slots.slot(0).mutex_at))  # as by a thread within a run
group._planning.acquire()
if not (child := os.fork()):
    signal.alarm(30)
    for _ in range(4):
        assert (session.run(None, {{"x": x}})[0] == expected).all()
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_during_a_run_leaves_no_locks() -> None:
    program = FORK.format(content=perceptron(PERCEPTRON.replace("batch", "3")))
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", program], check=True, timeout=120)


def test_it_is_told_what_is_ours(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tunewright.onnxruntime"):
        opened(perceptron())
    assert "of 4 nodes 4 run on Tunewright's kernels, in 1 group" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 0}, "threads"),
        ({"db": 3}, "db"),
        ({"background": "yes"}, "background"),
        ({"lock": 3}, "lock"),
        ({"lock": __file__}, "lock file"),
        ({"precision": "fp16"}, "no precision is called 'fp16'; there are as given, bf16, int8 activations"),
        ({"server": "nowhere"}, "nowhere"),
        ({"tune_minutes": "soon"}, "minutes"),
        ({"tune_minutes": 1, "server": "http://127.0.0.1:1"}, "in a database"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        session_options(**arguments)


@pytest.mark.parametrize("precision", Precision)
def test_groups_are_computed_in_a_precision(precision: Precision) -> None:
    session = opened(wide_model(), precision=precision)
    assert len(groups()) == 1
    assert is_close(session.run(None, {"x": X})[0], recounted(precision))


def test_a_lock_file_of_another_precision_is_refused(tmp_path: Path) -> None:
    prepared = ScheduleSource().prepare(wide_model(), threads=1, precision=Precision.BF16)
    write_lock(tmp_path / "wide.lock.json", prepared.model, prepared.target, {}, prepared.results)
    session_options(1, lock=tmp_path / "wide.lock.json", precision="bf16")
    with pytest.raises(Refused, match="was made for precision 'bf16', and 'as given' is asked for"):
        session_options(1, lock=tmp_path / "wide.lock.json")


def test_a_database_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such database"):
        session_options(1, db=f"sqlite:///{tmp_path / 'none.db'}")


def test_options_that_are_not_ours_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_provider_for_devices(registration.register(), {})
    with pytest.warns(UserWarning):  # ONNX Runtime prints why, and goes on without
        session = onnxruntime.InferenceSession(perceptron(), options)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert "none of tunewright.integrations.onnxruntime.session_options" in capfd.readouterr().out


def test_a_version_without_plug_ins_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(onnxruntime, "register_execution_provider_library")
    with pytest.raises(Refused, match=r"1\.23 and later do"):
        registration.register()


END = """
import numpy, onnxruntime
from tunewright.integrations.onnxruntime import session_options
session = onnxruntime.InferenceSession({content!r}, session_options(1))
for size in (1, 2, 3):
    session.run(None, {{"x": numpy.zeros((size, 64), numpy.float32)}})
"""


def test_a_process_ends_while_kernels_are_compiled() -> None:
    program = END.format(content=perceptron())
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)


def grown_bytes(action: Callable[[], None], times: int) -> int:
    """How much more memory the process has after the second half of the times than after the first."""
    sizes = []
    for number in range(times):
        action()
        if number in (times // 2, times - 1):
            gc.collect()
            sizes.append(int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096)
    return sizes[1] - sizes[0]


@pytest.mark.slow
def test_sessions_leave_no_memory_behind() -> None:
    content, x = perceptron(PERCEPTRON.replace("batch", "3")), normal(3, 64)

    def use() -> None:
        session = opened(content)
        for _ in range(2):
            session.run(None, {"x": x})

    assert grown_bytes(use, 120) < 60 * 50_000
