"""InferenceSession: like ONNX Runtime's, and for several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import pytest
from onnx import TensorProto, helper

from tunewright.codegen.host import detect
from tunewright.tuner.errors import InputError
from tunewright.tuner.model import open_model
from tunewright.tuner.session import InferenceSession

from .conftest import small_model


@pytest.fixture(scope="module")
def session() -> Iterator[InferenceSession]:
    with InferenceSession.of(open_model(small_model().SerializeToString()), detect(1), {}) as opened:
        yield opened


def test_threads_share_a_session(session: InferenceSession) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((4, 8)).astype(np.float32) for _ in range(4)]
    right = [session.run(None, {"x": array})[0] for array in arrays]
    at_once = threading.Barrier(4)

    def work(number: int) -> bool:
        at_once.wait()
        return all(np.array_equal(session.run(None, {"x": arrays[number]})[0], right[number]) for _ in range(300))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_a_run(session: InferenceSession) -> None:
    """The child runs the session too, although the thread that had its turn is not there."""
    array = np.ones((4, 8), np.float32)
    [right] = session.run(None, {"x": array})
    turn = session._model._turn
    with turn:
        child = os.fork()
        if not child:
            os._exit(0 if np.array_equal(session.run(None, {"x": array})[0], right) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.parametrize("order", ["<", ">"])
def test_any_byte_order_is_taken(order: Literal["<", ">"], session: InferenceSession) -> None:
    array = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    [right] = session.run(["y"], {"x": array})
    [output] = session.run(["y"], {"x": array.astype(array.dtype.newbyteorder(order))})
    assert output.dtype.isnative
    np.testing.assert_array_equal(output, right)


@pytest.mark.parametrize(
    "wrong",
    [
        [[1.0, 2.0], [3.0]],
        np.ones((4, 8)),
        np.ones((4, 8), np.complex64),
        np.zeros((4, 8), [("a", "f4")]),
        np.full((4, 8), None),
        np.full((4, 8), "1"),
        np.zeros((4, 8), "M8[s]"),
        np.ones((8, 4), np.float32),
        None,
    ],
)
def test_other_arrays_are_refused(wrong: object, session: InferenceSession) -> None:
    with pytest.raises(InputError, match="input 'x' is"):
        session.run(None, {"x": wrong})


def test_arguments_are_described_as_onnx_runtime_does() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    kinds = {"f": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "i": TensorProto.INT64, "b": TensorProto.BOOL}
    kinds |= {"s": TensorProto.STRING, "h": TensorProto.FLOAT16, "u": TensorProto.UINT8}
    inputs = [helper.make_tensor_value_info(name, kind, [2, 3]) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"{name}_", kind, [2, 3]) for name, kind in kinds.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_"]) for name in kinds]
    graph = helper.make_graph(nodes, "kinds", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    theirs = onnxruntime.InferenceSession(model)
    with InferenceSession.of(open_model(model), detect(1), {}) as ours:
        for mine, right in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
            assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in right]
