"""Sessions that answer while their model is compiled: the same in the end as those that are opened whole."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

from tests.waiting import gone, wait_for
from tunewright.costmodel.base import base
from tunewright.graph.onnx_import import ModelError
from tunewright.tuner.errors import InputError, Refused
from tunewright.tuner.lookup import experience
from tunewright.tuner.session import executable, stand_in
from tunewright.tuner.session.compilation import Compilation
from tunewright.tuner.session.pending_model import PendingModel
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.session.static_model import StaticModel

from .conftest import small_model
from .control_models import model_of

pytest.importorskip("onnxruntime")

# It returns twice the rows that it is told to take.
CHOSEN_ROWS = """g (float[4, 8] x, bool[4] take) => (float[n, 8] y) { r = Compress<axis = 0>(x, take) y = Add(r, r) }"""
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


@pytest.fixture
def compile_now(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compilations wait until this is set, then go on in their thread."""
    event = threading.Event()

    def wait(self: Compilation) -> None:
        while not event.wait(0.01) and not self._is_closed:
            pass

    monkeypatch.setattr(Compilation, "_from_child", wait)
    yield event
    event.set()


def run(session: InferenceSession, x: Any = X) -> Any:
    [y] = session.run(["y"], {"x": x})
    return y


def compilation_of(session: InferenceSession) -> Compilation:
    assert isinstance(session._model, PendingModel)
    return session._model.compilation


@pytest.mark.parametrize("is_file", [False, True])
def test_a_process_compiles_what_a_session_would(is_file: bool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = home / "small.onnx" if is_file else small_model().SerializeToString()
    with monkeypatch.context() as patch:  # nothing is compiled in this process
        patch.setattr(executable, "open_executable", None)
        with InferenceSession(model, threads=1, background=True) as session:
            assert session.wait(inf) and session.ready
            got = run(session), session.coverage(), session.schedules, session.notes
        with InferenceSession(model, threads=1, background=True) as again:  # it is kept
            assert again.ready and isinstance(again._model, StaticModel)
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(home / "other"))
    monkeypatch.setattr(experience, "base", base)  # the process has it
    with InferenceSession(model, threads=1) as whole:
        assert whole.ready and whole.wait(0)
        assert np.array_equal(got[0], run(whole))
        assert got[1:] == (whole.coverage(), whole.schedules, whole.notes)


def test_it_answers_while_kernels_are_compiled(home: Path, compile_now: threading.Event) -> None:
    with InferenceSession(home / "small.onnx", threads=1) as whole:
        right = run(whole)
        arguments = whole.get_inputs(), whole.get_outputs()
    with InferenceSession(small_model().SerializeToString(), threads=1, background=True) as session:
        early = run(session)
        assert not session.ready and not session.wait(0)
        assert (session.get_inputs(), session.get_outputs()) == arguments
        np.testing.assert_allclose(early, right, rtol=1e-5)
        with pytest.raises(InputError, match=r"x' is float32\[4, 9\]"):
            run(session, np.ones((4, 9), np.float32))
        with pytest.raises(InputError, match="no output 'z'"):
            session.run(["z"], {"x": X})
        assert not session.ready
        compile_now.set()
        assert session.wait() and session.wait(0)
        assert np.array_equal(run(session), right)


def test_threads_go_on_while_kernels_take_over(home: Path, compile_now: threading.Event) -> None:
    with InferenceSession(home / "small.onnx", threads=1) as whole:
        right = run(whole)
    session = InferenceSession(small_model().SerializeToString(), threads=1, background=True)
    begun = threading.Barrier(5)

    def work(_: int) -> bool:
        begun.wait()
        early = [run(session) for _ in range(20)]
        session.wait()
        late = [run(session) for _ in range(20)]
        return np.allclose(early, right, rtol=1e-5) and np.array_equal(late, [right] * 20)

    with session, ThreadPoolExecutor(4) as threads:
        results = threads.map(work, range(4))
        begun.wait()
        compile_now.set()
        assert all(results)


@pytest.mark.usefixtures("home")
def test_outputs_whose_size_a_run_tells_are_there_early(compile_now: threading.Event) -> None:
    model = model_of(CHOSEN_ROWS).SerializeToString()
    with InferenceSession(model, threads=1, background=True) as session:
        for chosen in (0, 2, 4):
            feeds = {"x": X, "take": np.arange(4) < chosen}
            [early] = session.run(None, feeds)
            assert early.shape == (chosen, 8)
        assert not session.ready and [port.shape for port in session.get_inputs()] == [[4, 8], [4]]
        with ThreadPoolExecutor(1) as thread:  # only the kernels tell what is known of their sizes
            outputs = thread.submit(session.get_outputs)
            assert not session.ready
            compile_now.set()
            assert [port.shape for port in outputs.result()] == [None]
        assert session.wait() and np.allclose(session.run(None, feeds)[0], early)


@pytest.mark.usefixtures("home")
def test_without_another_runtime_it_waits(compile_now: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "is_installed", lambda: False)
    with InferenceSession(small_model().SerializeToString(), threads=1, background=True) as session:
        assert not session.ready
        compile_now.set()
        assert [port.shape for port in session.get_outputs()] == [[4, 24]]
        assert run(session).shape == (4, 24) and session.ready


@pytest.mark.parametrize("dims", [{"rows": 5}, {"rows": 1}])
@pytest.mark.usefixtures("home")
def test_bound_dimensions_are_known_at_once(dims: dict[str, int], compile_now: threading.Event) -> None:
    model = small_model("rows").SerializeToString()
    with InferenceSession(model, threads=1, dims=dims, background=True) as session:
        assert run(session, np.ones((dims["rows"], 8), np.float32)).shape == (dims["rows"], 24)
        assert not session.ready
        compile_now.set()
        assert session.wait()


def test_errors_are_told_by_wait_and_by_each_run(home: Path) -> None:
    (home / "bad.onnx").write_bytes(b"no model")
    for model, dims in ((home / "bad.onnx", {}), (small_model("rows").SerializeToString(), {"other": 1})):
        with InferenceSession(model, threads=1, dims=dims, background=True) as session:
            for _ in range(2):
                with pytest.raises(ModelError):
                    run(session)
                with pytest.raises(ModelError):
                    session.wait()
            assert not session.ready


@pytest.mark.usefixtures("home")
def test_what_is_wrong_at_once_is_told_at_once() -> None:
    with pytest.raises(OSError, match="nowhere"):
        InferenceSession("nowhere.onnx", background=True)
    with pytest.raises(Refused, match="one place"):
        InferenceSession("nowhere.onnx", db="sqlite:///x.db", server="http://localhost:1", background=True)


@pytest.mark.usefixtures("home")
def test_nodes_without_a_kernel_are_run_apart_in_the_end() -> None:
    """Their model is not kept, so it is compiled here."""
    body = "g (float[2,6,6] x) => (float[2] y) { a = Relu(x) b = Det(a) y = Relu(b) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {body}').SerializeToString()
    x = np.random.default_rng(0).standard_normal((2, 6, 6)).astype(np.float32)
    with InferenceSession(model, threads=1, background=True) as session:
        assert session.coverage().vendor == {"Det": 1} and session.ready
        expected = np.maximum(np.linalg.det(np.maximum(x, 0)), 0)
        np.testing.assert_allclose(run(session, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("home")
def test_given_weights_wait(compile_now: threading.Event) -> None:
    x, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xby")
    weight = helper.make_tensor("b", TensorProto.FLOAT, [3], [1, 2, 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "b"], ["y"])], "add", [x, b], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    zeros = np.zeros(3, np.float32)
    with InferenceSession(model.SerializeToString(), threads=1, background=True) as session:
        assert run(session, zeros).tolist() == [1, 2, 3] and not session.ready
        compile_now.set()
        [other] = session.run(None, {"x": zeros, "b": np.array([5, 6, 7], np.float32)})
        assert other.tolist() == [5, 6, 7] and session.ready


def test_closing_ends_the_process(home: Path) -> None:
    session = InferenceSession(home / "small.onnx", threads=1, background=True)
    compilation = compilation_of(session)
    pid = wait_for(lambda: compilation._child.pid)
    session.close()
    assert gone(pid) and not compilation._thread.is_alive()
    with pytest.raises(Refused, match="closed"):
        run(session)
    with pytest.raises(Refused, match="closed"):
        session.wait()
    session.close()


@pytest.mark.slow
def test_a_session_that_nobody_has_any_more_ends_its_process(home: Path) -> None:
    session = InferenceSession(home / "small.onnx", threads=1, background=True)
    compilation = compilation_of(session)
    pid = wait_for(lambda: compilation._child.pid)
    del session
    gc.collect()
    assert gone(pid) and not compilation._thread.is_alive()


@pytest.mark.usefixtures("home")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_compiles_for_itself(compile_now: threading.Event) -> None:
    with InferenceSession(small_model().SerializeToString(), threads=1, background=True) as session:
        early = run(session)
        child = os.fork()
        if not child:
            is_right = session.wait() and session.ready and np.allclose(run(session), early, rtol=1e-5)
            session.close()
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0
        compile_now.set()
        assert session.wait()


PROGRAM = """
import sys, numpy as np
from tests.waiting import wait_for
from tunewright.tuner import InferenceSession
session = InferenceSession(sys.argv[1], threads=1, background=True)
pid = wait_for(lambda: session._model.compilation._child.pid)
session.run(None, {"x": np.ones((4, 8), np.float32)})
print(pid, flush=True)
if sys.argv[2] == "wait":
    over = session._model.compilation._over
    over.set = lambda: None  # what is compiled never arrives
    over.clear()
    session.wait()
"""


@pytest.mark.parametrize("ending", ["at once", "wait"])
def test_the_end_of_the_process_is_clean(ending: str, home: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(home / "small.onnx"), ending]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if ending == "wait":
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert gone(pid)
    if ending == "wait":
        assert process.returncode == -signal.SIGINT and said.strip().endswith("KeyboardInterrupt")
    else:
        assert process.returncode == 0 and not said
