"""The examples of docs/python.md and of the README's part on Python run, and print what they say."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunewright.costmodel.base import base
from tunewright.tuner import InferenceSession, tune
from tunewright.tuner.lookup import experience

from .conftest import small_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def model_of(op: str, kind: int) -> onnx.ModelProto:
    """y = op(op(x)) over three by three elements."""
    x, y = (helper.make_tensor_value_info(name, kind, [3, 3]) for name in "xy")
    nodes = [helper.make_node(op, ["x"], ["z"]), helper.make_node(op, ["z"], ["y"])]
    graph = helper.make_graph(nodes, "twice", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def linear_model() -> Any:
    """y = x @ w + b of the sizes of `small_model`; b is an input too."""
    shapes = {"x": [4, 8], "b": [24], "y": [4, 24]}
    x, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (8, 24)), ("b", 24))]
    graph = helper.make_graph(nodes, "linear", [x, b], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rates_model() -> onnx.ModelProto:
    """y = -x for a rate of 8000, else x + x."""
    text = """<ir_version: 8, opset_import: ["" : 17]> rates (float[3] x, int64 sr) => (float[3] y) {
        low = Constant <value_int = 8000> ()
        c = Equal(sr, low)
        y = If(c) <then_branch = t () => (float[3] p) { p = Neg(x) },
                   else_branch = e () => (float[3] q) { q = Add(x, x) }>
    }"""
    return onnx.parser.parse_model(text)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the models of the examples."""
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    onnx.save(small_model(), "model.onnx")
    onnx.save(small_model("batch"), "dynamic.onnx")
    onnx.save(model_of("Bernoulli", TensorProto.FLOAT), "other.onnx")
    onnx.save(linear_model(), "linear.onnx")
    onnx.save(rates_model(), "rates.onnx")


def examples(text: str) -> list[str]:
    """The indented blocks."""
    return [textwrap.dedent(block) for block in re.findall(r"(?:^(?:    .*)?\n)+", text, re.MULTILINE) if block.strip()]


def printed(program: str, names: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(program, "example", "exec"), names)  # noqa: S102 - it is ours
    return out.getvalue()


@pytest.fixture(params=[True, False], ids=["with base model", "without base model"])
def _base_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples don't tell what it picks, which another one need not."""
    if request.param:
        monkeypatch.setattr(experience, "base", base)


@pytest.mark.slow
@pytest.mark.usefixtures("_base_model")
def test_the_page() -> None:
    names: dict[str, Any] = {}
    blocks = examples(PAGE)
    assert blocks
    for block in blocks:
        said = [line.rstrip() for line in printed(block, names).splitlines()]
        assert said == re.findall(r"# prints (.*)$", block, re.MULTILINE)


def test_the_signatures_on_the_page() -> None:
    """They name every argument."""
    for call in (InferenceSession, tune):
        [listed] = re.findall(rf"^`{call.__name__}\((.*?)\)`", PAGE, re.MULTILINE)
        parameters = inspect.signature(call).parameters.values()
        assert [word for word in listed.split(", ") if word != "*"] == [one.name for one in parameters]
        assert [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY] == ["model"]


def test_indices_are_clamped_as_the_page_says() -> None:
    kinds = {"x": (TensorProto.FLOAT, 3), "i": (TensorProto.INT64, 2), "y": (TensorProto.FLOAT, 2)}
    x, i, y = (helper.make_tensor_value_info(name, kind, [size]) for name, (kind, size) in kinds.items())
    graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["y"])], "gather", [x, i], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with InferenceSession(model.SerializeToString()) as session:
        [taken] = session.run(None, {"x": np.array([1, 2, 3], np.float32), "i": np.array([7, -9])})
    assert taken.tolist() == [3, 1]


def test_ops_without_kernels_are_run_apart_as_the_page_says() -> None:
    with InferenceSession(model_of("Bernoulli", TensorProto.FLOAT).SerializeToString()) as session:
        assert session.coverage().fallback == session.coverage().vendor == {"Bernoulli": 2}
        assert session.notes == ("2 nodes have no kernel and are run by ONNX Runtime: 2 Bernoulli",)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_other_floats_have_kernels_as_the_page_says(kind: int) -> None:
    with InferenceSession(model_of("Exp", kind).SerializeToString()) as session:
        assert not session.coverage().fallback
        assert [one.type for one in session.get_outputs()] == [one.type for one in session.get_inputs()]


@pytest.mark.slow
@pytest.mark.usefixtures("_base_model")
def test_the_readme() -> None:
    [block] = [block for block in examples(README) if "InferenceSession, tune" in block]
    names: dict[str, Any] = {"array": np.ones((4, 8), np.float32)}
    assert "untuned=0" in printed(block, names)
    assert names["outputs"][0].shape == (4, 24)
