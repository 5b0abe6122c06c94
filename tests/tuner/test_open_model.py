"""Sessions of models with open dimensions: right at every size, and on kernels at those that come again."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper

from tests.waiting import wait_for
from tunewright.graph.onnx_import import ModelError, OpenDimensionsError
from tunewright.tuner.errors import InputError, Refused, refusals
from tunewright.tuner.lookup.lockfile import write_lock
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import open_model as read
from tunewright.tuner.session import open_model
from tunewright.tuner.session.compilation import Compilation
from tunewright.tuner.session.node_arg import NodeArg
from tunewright.tuner.session.open_model import EAGER_SIZES, RUNS_AGAIN, OpenModel
from tunewright.tuner.session.session import InferenceSession

onnxruntime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)

GROWING = """g (float[batch, length, 4] x, float[batch, 1, 4] bias, float[?] tail)
    => (float[batch, length, 4] y, float[?] z)
    <float[4, 4] w = {1, 0, 0, 2, 0, 1, 3, 0, 0, 0, 1, 0, 5, 0, 0, 1}>
    { p = MatMul(x, w) q = Add(p, bias) y = Relu(q) z = Neg(tail) }"""


def build(text: str) -> bytes:
    model: ModelProto = helper.make_model(
        onnx.parser.parse_graph(text), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    return bytes(model.SerializeToString())


def feeds(batch: int, length: int, tail: int = 2) -> dict[str, Any]:
    shapes = {"x": (batch, length, 4), "bias": (batch, 1, 4), "tail": (tail,)}
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(session: InferenceSession, feed: dict[str, Any], text: str = GROWING) -> None:
    peer = onnxruntime.InferenceSession(build(text), providers=["CPUExecutionProvider"])
    for own, expected in zip(session.run(None, feed), peer.run(None, feed), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
        assert own.dtype == expected.dtype


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is not installed, as far as open models know."""
    monkeypatch.setattr(open_model, "is_installed", lambda: False)


@pytest.fixture
def session() -> Iterator[InferenceSession]:
    with InferenceSession(build(GROWING), threads=1) as opened:
        yield opened


def model_of(session: InferenceSession) -> Any:
    """What runs the session at every size."""
    assert isinstance(session._model, OpenModel)
    return session._model


def compiled(session: InferenceSession) -> list[tuple[int, ...]]:
    return list(model_of(session)._models)


def test_it_runs_at_every_size(session: InferenceSession) -> None:
    for size in [(1, 1), (3, 5), (2, 17), (3, 5), (1, 64), (3, 5)]:
        check(session, feeds(*size))
    assert session.wait()
    assert session.ready
    for size in [(3, 5), (1, 1), (7, 2)]:
        check(session, feeds(*size))


@pytest.mark.slow
def test_sizes_get_kernels_before_they_are_run(session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    session.compile_at({"batch": 3, "length": 5, "tail:0": 2})
    session.compile_at({"batch": 1, "length": 2, "tail:0": 2})
    assert session.sizes == [{"batch": batch, "length": length, "tail:0": 2} for batch, length in ((3, 5), (1, 2))]
    monkeypatch.setattr(model_of(session), "_runtime", None)  # ONNX Runtime, which is not needed
    check(session, feeds(3, 5))
    assert session.sizes[-1]["batch"] == 3
    with pytest.raises(
        Refused, match="dims has batch=3; it gives each open dimension a size: 'batch', 'length', 'tail:0'"
    ):
        session.compile_at({"batch": 3})


@pytest.mark.slow
def test_it_tells_of_its_dimensions(session: InferenceSession) -> None:
    assert session.get_inputs() == [
        NodeArg("x", "tensor(float)", ["batch", "length", 4]),
        NodeArg("bias", "tensor(float)", ["batch", 1, 4]),
        NodeArg("tail", "tensor(float)", [None]),
    ]
    assert [output.shape for output in session.get_outputs()] == [["batch", "length", 4], [None]]
    assert "'batch', 'length', 'tail:0'" in session.notes[0]
    with pytest.raises(Refused, match="none of its sizes has kernels yet"):
        session.coverage()
    session.run(["z"], feeds(2, 3))
    assert session.coverage().native == 4
    assert session.schedules
    assert session.kernels_s(feeds(2, 3)) > 0


@pytest.mark.slow
def test_kernels_compute_what_has_been_compiled(session: InferenceSession) -> None:
    feed = feeds(2, 9)
    session.run(None, feed)
    session.wait()
    model_of(session)._runtime = None  # it is not asked any more
    check(session, feed)


@pytest.mark.slow
def test_sizes_that_never_come_again_get_no_kernels(session: InferenceSession) -> None:
    for length in range(1, 12):
        check(session, feeds(1, length))
        session.wait()
    assert compiled(session) == [(1, length, 2) for length in range(1, EAGER_SIZES + 1)]
    check(session, feeds(1, 11))
    session.wait()
    assert compiled(session)[-1] == (1, 11, 2)


@pytest.mark.usefixtures("alone")
def test_without_onnx_runtime_a_run_waits_for_its_kernels(session: InferenceSession) -> None:
    for size in [(1, 1), (3, 5)]:
        check(session, feeds(*size))
        assert compiled(session)[-1] == (*size, 2)
    assert any("waits for its kernels" in note for note in session.notes)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("limit", ["MOST_SIZES", "MEMORY_SHARE"])
def test_sizes_are_dropped(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_model, limit, {"MOST_SIZES": 3, "MEMORY_SHARE": 0.0}[limit])
    with InferenceSession(build(GROWING), threads=1) as session:
        for length in (1, 2, 3, 1, 4):
            check(session, feeds(1, length))
        kept = [(1, 3, 2), (1, 1, 2), (1, 4, 2)]
        assert compiled(session) == (kept if limit == "MOST_SIZES" else kept[-1:])
        check(session, feeds(1, 2))


def test_counts_and_what_waits_are_bounded(session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_model, "MOST_COUNTED", 5)
    monkeypatch.setattr(open_model, "MOST_WAITING", 3)
    with model_of(session)._opening:  # nothing is opened meanwhile
        for length in range(1, 20):
            for _ in range(2):
                session.run(None, feeds(1, length))
    assert len(model_of(session)._counts) == 5
    assert len(model_of(session)._wanted) <= 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.ones((2, 3, 4))}, r"input 'x' is float64\[2, 3, 4\], the model takes float32\[batch, length, 4\]"),
        ({"x": np.ones((2, 3, 5), np.float32)}, r"input 'x' is float32\[2, 3, 5\]"),
        ({"tail": np.ones((2, 3), np.float32)}, r"input 'tail' is float32\[2, 3\], the model takes float32\[\?\]"),
        ({"x": np.ones((5, 3, 4), np.float32)}, "dimension 'batch' is 5 in input 'x' and 2 in input 'bias'"),
        ({"other": np.ones(1)}, "the model has no input 'other'; the model takes"),
    ],
)
def test_what_does_not_fit_is_refused(session: InferenceSession, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        session.run(None, feeds(2, 3) | change)


@pytest.mark.usefixtures("alone")
def test_an_interrupt_leaves_no_process_that_works_for_another_size(session: InferenceSession) -> None:
    model = model_of(session)
    open_at, closed, first = model._open_at, [], model._process

    class Interrupted:
        def ready_model(self) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append(self)

    model._open_at = lambda *_: Interrupted()
    with pytest.raises(KeyboardInterrupt):
        session.run(None, feeds(2, 3))
    assert closed and model._process is not first and model._pending is None
    model._open_at = open_at
    for size in [(1, 7), (2, 3)]:
        check(session, feeds(*size))


def test_a_file_that_is_replaced_gets_no_kernels(tmp_path: Path) -> None:
    path, text = tmp_path / "m.onnx", "g (float[n] x) => (float[n] y) <float w = {{{}}}> {{ y = Mul(x, w) }}"
    path.write_bytes(build(text.format(2)))
    with InferenceSession(path, threads=1) as session:
        path.write_bytes(build(text.format(3)))
        for n in (1, 2, 1, 2):
            assert session.run(None, {"x": np.ones(n, np.float32)})[0].tolist() == [2.0] * n
            session.wait()
        assert any("has changed since the session was opened" in note for note in session.notes)


@pytest.mark.slow
def test_weights_that_are_replaced_get_no_kernels(tmp_path: Path) -> None:
    path, weights = tmp_path / "m.onnx", tmp_path / "weights.bin"
    model = onnx.load_from_string(build("g (float[n, 2] x) => (float[n, 2] y) { y = MatMul(x, w) }"))
    model.graph.initializer.append(numpy_helper.from_array(np.eye(2, dtype=np.float32), "w"))
    onnx.save(model, path, save_as_external_data=True, location=weights.name, size_threshold=0)
    with InferenceSession(path, threads=1) as session:
        other = tmp_path / "other.bin"
        other.write_bytes(np.full((2, 2), 7, np.float32).tobytes())
        other.replace(weights)
        for n in (1, 2, 1, 2):
            assert (session.run(None, {"x": np.ones((n, 2), np.float32)})[0] == 1).all()
            session.wait()
        assert any("weights.bin' has changed since the session was opened" in note for note in session.notes)


def test_inputs_are_known_while_sizes_are_compiled(session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    model, may_open = model_of(session), threading.Event()
    open_at = model._open_at

    def late(*arguments: Any) -> Any:
        may_open.wait(30)
        return open_at(*arguments)

    monkeypatch.setattr(model, "_open_at", late)
    check(session, feeds(2, 3))
    assert [argument.name for argument in session.get_inputs()] == ["x", "bias", "tail"]
    assert len(session.get_outputs()) == 2
    has_waited = session.ready
    may_open.set()
    assert session.wait() and not has_waited


def test_sizes_that_do_not_fit_are_not_compiled_again_and_again(
    session: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_model, "MEMORY_SHARE", 0.0)
    model, opened = model_of(session), []
    model._most_bytes, open_at = 0, model._open_at

    def counted(dims: Any, process: Any) -> Any:
        opened.append(dims)
        return open_at(dims, process)

    model._open_at = counted
    for length in (*range(1, 9), *[1, 2] * 6):
        check(session, feeds(1, length))
        session.wait()
    assert len(opened) == EAGER_SIZES and len(compiled(session)) == 1


@pytest.mark.usefixtures("alone")
def test_errors_hold_on_to_nothing(session: InferenceSession) -> None:
    """One that is raised again and again keeps the frames, and so the arrays, of each time."""

    def depth() -> int:
        with pytest.raises(ModelError) as caught:
            session.run(None, feeds(2, 3))
        return len(caught.traceback)

    model_of(session)._faults[2, 3, 2] = ModelError("too much of it")
    assert depth() == depth() == depth()


def test_what_failed_for_the_moment_is_tried_again(session: InferenceSession) -> None:
    model = model_of(session)
    open_at = model._open_at

    def fail(*_: object) -> None:
        raise OSError("no file is left")

    model._open_at = fail
    check(session, feeds(1, 3))
    assert session.wait() and not model._faults
    assert "no file is left" in session.notes[-1]
    with pytest.raises(Refused, match="no file is left"):
        session.coverage()
    model._open_at = open_at
    for _ in range(RUNS_AGAIN + 2):
        check(session, feeds(1, 3))
    assert session.wait() and compiled(session) == [(1, 3, 2)]
    assert not any("no file is left" in note for note in session.notes)


@pytest.mark.parametrize("place", [{"db": "nope"}, {"db": "sqlite:////nonexistent/x.db"}, {"server": "foo"}])
def test_a_place_of_schedules_that_is_none_is_refused_at_opening(place: dict[str, Any]) -> None:
    with pytest.raises(refusals()):
        InferenceSession(build(GROWING), threads=1, **place)


def test_some_dimensions_may_be_bound() -> None:
    with InferenceSession(build(GROWING), threads=1, dims={"batch": 2, "tail:0": 2}) as session:
        assert session.get_inputs()[0].shape == [2, "length", 4]
        check(session, feeds(2, 7))
        with pytest.raises(InputError, match="the model takes"):
            session.run(None, feeds(3, 7))
    with pytest.raises(ModelError, match="no dimension 'other' is open"):
        InferenceSession(build(GROWING), threads=1, dims={"other": 2})


@pytest.mark.parametrize("background", [False, True])
def test_a_lock_file_binds_dimensions(background: bool, tmp_path: Path) -> None:
    dims = {"batch": 2, "length": 5, "tail:0": 2}
    prepared = ScheduleSource().prepare(build(GROWING), dims, 1)
    write_lock(tmp_path / "m.lock", prepared.model, prepared.target, dims, prepared.results)
    with InferenceSession(build(GROWING), lock=tmp_path / "m.lock", background=background) as session:
        assert session.wait()
        assert session.get_inputs()[0].shape == [2, 5, 4]
        check(session, feeds(2, 5))


def test_a_number_may_be_bound() -> None:
    text = "g (float[n] x, int64 k) => (float[n] y) { f = Cast <to = 1> (k) y = Mul(x, f) }"
    with InferenceSession(build(text), threads=1, bind={"k": 3}) as session:
        for n in (2, 5):
            [y] = session.run(None, {"x": np.ones(n, np.float32)})
            assert y.tolist() == [3.0] * n
        assert not any("waits" in note for note in session.notes), "ONNX Runtime gets the number too"


def test_a_size_of_0() -> None:
    with InferenceSession(build("g (float[n] x) => (float[n] y) { y = Neg(x) }"), threads=1) as session:
        assert session.run(None, {"x": np.ones(0, np.float32)})[0].shape == (0,)
        assert session.wait() and not any("without kernels" in note for note in session.notes)
        model_of(session)._runtime = None
        with pytest.raises(
            InputError, match="input 'x' has 0 along axis 0, dimension 'n'; kernels are for sizes of at"
        ):
            session.run(None, {"x": np.ones(0, np.float32)})


def test_a_size_that_the_model_does_not_take() -> None:
    text = """g (float[n] x) => (float[2, m] y)
        <int64[2] s = {2, -1}> { y = Reshape(x, s) }"""
    with InferenceSession(build(text), threads=1) as session:
        for n in (4, 8):
            assert session.run(None, {"x": np.ones(n, np.float32)})[0].shape == (2, n // 2)
        with pytest.raises(ModelError):
            session.run(None, {"x": np.ones(3, np.float32)})
        assert session.run(None, {"x": np.ones(6, np.float32)})[0].shape == (2, 3)


def test_what_cannot_be_compiled_stays_in_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ModelError("too much of it")

    with InferenceSession(build(GROWING), threads=1) as session:
        monkeypatch.setattr(model_of(session), "_open_at", fail)
        for _ in range(3):
            check(session, feeds(2, 3))
            session.wait()
        assert session.notes[-1] == "without kernels: 1 size, such as batch=2, length=3, tail:0=2: too much of it"


def test_a_bug_is_raised_by_the_next_run(session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(model_of(session), "_open_at", fail)
    session.run(None, feeds(2, 3))
    session.wait()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        session.run(None, feeds(2, 3))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_sizes_are_compiled(session: InferenceSession) -> None:
    """The child goes on, although the thread that compiles, with its locks, is not there."""
    feed = feeds(2, 3)
    right = session.run(None, feed)
    with model_of(session)._opening, model_of(session)._changed:
        child = os.fork()
        if not child:
            own = session.run(None, feed)
            os._exit(0 if all(np.allclose(a, b) for a, b in zip(own, right, strict=True)) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.slow
def test_a_model_in_a_file_opens_in_the_background_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(build(GROWING))
    for background in (False, True):
        with InferenceSession(path, threads=1, background=background) as session:
            check(session, feeds(2, 3))
            assert session.wait()


@pytest.mark.slow
def test_one_process_compiles_all_sizes(session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when no size is wanted any more, and starts again."""
    monkeypatch.setattr(open_model, "EAGER_SIZES", 100)
    process = model_of(session)._process
    started: list[int | None] = []
    start = process._start

    def count() -> None:
        start()
        started.append(process.pid)

    monkeypatch.setattr(process, "_start", count)
    for _ in range(2):
        for length in range(100, 103):
            session.run(None, feeds(7 + len(started), length))
        session.wait()
        wait_for(lambda: process.pid is None)
    assert len(started) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_its_process_ends_with_it() -> None:
    session = InferenceSession(build(GROWING), threads=1)
    session.run(None, feeds(9, 77))
    process = model_of(session)._process
    assert process.pid is not None
    del session
    gc.collect()
    assert process.pid is None


def test_threads_share_it(session: InferenceSession) -> None:
    def work(number: int) -> None:
        for length in range(1, 9):
            check(session, feeds(1 + number, length))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_it_ends_while_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def wait(self: Compilation) -> None:
        started.set()
        while not self._is_closed:
            threading.Event().wait(0.01)

    monkeypatch.setattr(Compilation, "_from_child", wait)
    with InferenceSession(build(GROWING), threads=1) as session:
        session.run(None, feeds(31, 33))
        assert started.wait(30)
        assert not session.wait(0)
        [sized] = [thread for thread in threading.enumerate() if thread.name == "tunewright-sizes"]
    sized.join(30)
    assert not sized.is_alive()
    with pytest.raises(Refused, match="closed"):
        session.run(None, feeds(2, 3))
    with pytest.raises(Refused, match="closed"):
        session.wait()


def test_outputs_that_are_no_tensors_have_the_types_of_onnx_runtime() -> None:
    nodes = [
        helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 5]),
        helper.make_node("Cast", ["x"], ["d"], to=onnx.TensorProto.DOUBLE),
        helper.make_node("SequenceConstruct", ["d"], ["z"]),
    ]
    doubles = helper.make_tensor_type_proto(onnx.TensorProto.DOUBLE, None)
    maps_type = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ())
    )
    outputs = [
        helper.make_value_info(name, helper.make_sequence_type_proto(kind))
        for name, kind in (("y", maps_type), ("z", doubles))
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    with InferenceSession(model, threads=1) as session:
        types = [output.type for output in session.get_outputs()]
        assert types == ["seq(map(int64,tensor(float)))", "seq(tensor(double))"]
        for size in (1, 3):
            maps, [values] = session.run(None, {"x": np.full((size, 2), 0.5, np.float32)})
            assert maps == [{3: 0.5, 5: 0.5}] * size and values.shape == (size, 2)


def test_what_tunes_wants_sizes() -> None:
    with pytest.raises(OpenDimensionsError, match="3 dimensions are open: 'batch'"):
        read(build(GROWING))
