"""Nodes without a kernel: by ONNX Runtime where it has them, with the evaluator's results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import parser

from tunewright.graph.evaluation.fallback import EvaluationError
from tunewright.graph.rewrites.selection import MAX_BOUND
from tunewright.tuner import InferenceSession
from tunewright.tuner.session import evaluation

pytest.importorskip("onnxruntime")


def session_of(body: str) -> InferenceSession:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {body}')
    return InferenceSession(model.SerializeToString(), threads=1)


def by_both(body: str, feeds: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> InferenceSession:
    """A session whose results were the same with ONNX Runtime and without."""
    with_vendor = session_of(body)
    results = with_vendor.run(None, feeds)
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "is_installed", lambda: False)
        without = session_of(body)
    assert not without.coverage().vendor
    for result, expected in zip(results, without.run(None, feeds), strict=True):
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        if expected.dtype == object:
            assert result.tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(result, expected, rtol=1e-6)
    return with_vendor


DET = "(float[2,6,6] x) => (float[2] y) { a = Relu(x) b = Det(a) c = Det(x) d = Add(b, c) y = Relu(d) }"


def test_a_node_between_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 6)).astype(np.float32)
    session = by_both(f"g {DET}", {"x": x}, monkeypatch)
    assert session.coverage().vendor == {"Det": 2} and session.coverage().native
    assert [note for note in session.notes if "ONNX Runtime" in note] == [
        "2 nodes have no kernel and are run by ONNX Runtime: 2 Det"
    ]


def test_neighbours_are_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they pass on to each other is seen by nobody else, of whatever shape it is."""
    opened: list[int] = []

    def count(*arguments: Any) -> Any:
        opened.append(len(arguments[0]))
        return original(*arguments)

    original = evaluation.OrtGroup.of
    monkeypatch.setattr(evaluation.OrtGroup, "of", count)
    large = MAX_BOUND + 1
    body = f"g (float[{large}] x) => (float[n] y, float[n] z) {{ y = Unique(x) a = Cast<to = 11>(y) b = Add(a, a) "
    body += "z = Cast<to = 1>(b) }"
    session = session_of(body)
    y, z = session.run(None, {"x": np.resize(np.array([0, 3, 0, 1, 0, 2], np.float32), large)})
    assert y.tolist() == [0, 1, 2, 3] and z.tolist() == [0, 2, 4, 6]
    assert opened == [4]


def test_control_flow_reads_what_is_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    body = """g (float[4] x, bool c) => (float[4] y) {
        a = Relu(x)
        b = If(c) <then_branch = t () => (float[4] p) { p = Mul(a, x) },
                   else_branch = e () => (float[1] q) { q = ReduceSum(a) }>
        y = Add(b, a)
    }"""  # the shape of b depends on the branch
    x = np.array([1, -2, 3, -4], np.float32)
    for condition in (True, False):
        session = by_both(body, {"x": x, "c": np.array(condition)}, monkeypatch)
        assert session.coverage().vendor == {"If": 1, "Add": 1}


def test_a_branch_that_no_size_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime refuses such a model where it is told the sizes."""
    branches = (
        "then_branch = a () => (float[2] t) { t = Det(x) },"
        " else_branch = b () => (float[N] e) { o = Constant<value_ints = [0]>() s = Squeeze(x, o) e = Det(s) }"
    )
    body = f"g (bool c, float[2,6,6] x) => (float[N] y) {{ y = If(c) <{branches}> }}"
    x = np.random.default_rng(2).standard_normal((2, 6, 6)).astype(np.float32)
    session = by_both(body, {"c": np.array(True), "x": x}, monkeypatch)
    assert session.coverage().vendor == {"If": 1}


def test_what_differs_from_onnx_is_left_to_the_evaluator() -> None:
    session = session_of("g (float[1,8,1] x, int64 n) => (float[1,8,2] y) { y = DFT(x, n) }")
    assert session.coverage().fallback and not session.coverage().vendor


def test_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {"x": np.array(["one", "two"], object), "i": np.array([1, 0, 1])}
    session = by_both("g (string[2] x, int64[3] i) => (string[3] y) { y = Gather(x, i) }", feeds, monkeypatch)
    assert session.coverage().vendor == {"Gather": 1}


def test_operands_that_do_not_fit_are_told_by_the_evaluator() -> None:
    body = "g (float[2,3] x, int64[1] i) => (float[1,3] y) { a = NonZero(x) b = Gather <axis = 1> (a, i) "
    body += "c = Cast <to = 1> (b) y = Reshape(c, s) }"
    session = session_of(body.replace("Reshape(c, s)", "Squeeze(c)").replace("float[1,3] y", "float[2] y"))
    with pytest.raises(EvaluationError):
        session.run(None, {"x": np.zeros((2, 3), np.float32), "i": np.array([5])})


FORK = """
import os, signal
import numpy as np
from tunewright.tuner.session.session import InferenceSession

session, x = InferenceSession({content!r}, threads=2), np.ones((2, 6, 6), np.float32)
session.run(None, {{"x": x}})
if not (child := os.fork()):
    signal.alarm(60)
    for _ in range(2):
        session.run(None, {{"x": x}})
    del session
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_the_child_of_a_fork_has_a_session_of_its_own() -> None:
    """The parent's has threads that are not there, for which its end would wait for ever."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> g {DET}')
    program = FORK.format(content=model.SerializeToString())
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", program], check=True, timeout=120)


def test_a_view_between_nodes_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    body = """g (float[2,6,6] x, int64[1] k) => (float[1,2] y) {
        s = Constant <value = int64[2] {1, 2}> () a = Det(x) b = Reshape(a, s) y, i = TopK(b, k) }"""
    feeds = {"x": np.stack([np.eye(6), 2 * np.eye(6)]).astype(np.float32), "k": np.array([2])}
    by_both(body, feeds, monkeypatch)
