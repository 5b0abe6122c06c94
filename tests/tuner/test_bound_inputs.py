"""Inputs of one number that get their value when a model is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tunewright.graph.onnx_import import ModelError
from tunewright.tuner import InferenceSession
from tunewright.tuner.arguments import check_dims, sizes_of
from tunewright.tuner.cli import model_io
from tunewright.tuner.cli.options import parse_bind, parse_dims
from tunewright.tuner.errors import InputError, Refused
from tunewright.tuner.models.model import open_model

RATES = """<ir_version: 8, opset_import: ["" : 17]>
rates (int64 sr, float[n] x, bool loud, float[1] gain) => (float[n] y) {
    low = Constant <value_int = 8000> ()
    c = Equal(sr, low)
    s = If(c) <then_branch = t () => (float[n] p) { p = Neg(x) }, else_branch = e () => (float[n] q) { q = Exp(x) }>
    u = Mul(s, gain)
    y = Where(loud, u, s)
}"""

X = np.array([0.5, -1, 2], np.float32)


def rates() -> bytes:
    data: bytes = onnx.parser.parse_model(RATES).SerializeToString()
    return data


@pytest.mark.parametrize("rate", [8000, 16000])
def test_what_hangs_on_it_is_folded(rate: int) -> None:
    bind = {"sr": rate, "loud": True, "gain": 3}
    with InferenceSession(rates(), dims={"n": 3}, bind=bind, threads=1) as session:
        assert [argument.name for argument in session.get_inputs()] == ["x"]
        [result] = session.run(None, {"x": X})
        with pytest.raises(InputError, match="no input 'sr'"):
            session.run(None, {"x": X, "sr": np.array(rate)})
        assert not session.coverage().fallback
    np.testing.assert_allclose(result, 3 * (-X if rate == 8000 else np.exp(X)), rtol=1e-6)


def test_no_branch_is_left() -> None:
    whole, bound = open_model(rates(), {"n": 3}), open_model(rates(), {"n": 3, "sr=": 8000})
    assert any(type(step).__name__ == "Branch" for step in whole.steps)
    assert not any(type(step).__name__ == "Branch" for step in bound.steps)


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        ({"rate": 1}, "no input 'rate' to be bound; its inputs: 'sr', 'x', 'loud', 'gain'"),
        ({"x": 1, "sr": 1}, ""),
        ({"loud": 2}, "input 'loud' can't be bound to 2: that is no value of bool"),
    ],
)
def test_what_can_not_be_bound(bind: dict[str, int], words: str) -> None:
    if words:
        with pytest.raises(ModelError, match=words):
            open_model(rates(), check_dims({"n": 3}, bind))
    else:  # an extent that is open is 1
        assert [value.label for value in open_model(rates(), check_dims({}, bind)).graph.inputs] == ["loud", "gain"]


def test_more_than_one_number() -> None:
    with pytest.raises(ModelError, match=r"input 'x' can't be bound to 1: it takes float32\[3\]"):
        open_model(onnx.parser.parse_model(RATES.replace("float[n]", "float[3]")).SerializeToString(), {"x=": 1})


def test_arguments() -> None:
    dims = check_dims({"n": 3}, {"sr": 16000, "loud": False, "gain": -1})
    assert dims == {"n": 3, "sr=": 16000, "loud=": 0, "gain=": -1}
    assert check_dims(dims) == dims
    assert sizes_of(dims) == {"n": 3}
    wrong: list[Any] = [3, {"sr": 1.5}, {1: 1}, {"sr": "1"}, {"sr": 2**31}]
    for bind in wrong:
        with pytest.raises(Refused, match="bind"):
            check_dims(None, bind)


def test_options() -> None:
    assert parse_dims(["n=3"], ["sr=16000", "loud=true", "a=b=-1"]) == {"n": 3, "sr=": 16000, "loud=": 1, "a=b=": -1}
    assert parse_bind(["x=false", "x=0"]) == {"x": 0}
    for text in ("sr", "sr=", "=1", "sr=1.5", "sr=²", "sr=" + "9" * 5000, "sr=--1"):
        with pytest.raises(Refused, match="--bind"):
            parse_bind([text])
    with pytest.raises(Refused, match="two values, 1 and 2"):
        parse_bind(["sr=1", "sr=2"])


def test_peers_get_all_inputs_in_order() -> None:
    model = open_model(rates(), {"n": 3, "sr=": 8000, "gain=": 2})
    arrays, _ = model_io.feeds(model, ())
    inputs = model_io.all_inputs(model, arrays)
    assert list(inputs) == ["sr", "x", "loud", "gain"]
    assert inputs["gain"].tolist() == [2.0]


def test_sessions_start_from_the_image_of_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    for _ in range(2):
        for rate in (8000, 16000):
            bind = {"sr": rate, "loud": 1, "gain": 1}
            with InferenceSession(rates(), dims={"n": 3}, bind=bind, threads=1) as session:
                np.testing.assert_allclose(session.run(None, {"x": X})[0], -X if rate == 8000 else np.exp(X), rtol=1e-6)


def test_constants_that_follow_from_a_value_are_no_other_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the steps of the model are the same with either."""
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    text = """<ir_version: 8, opset_import: ["" : 17]>
    scaled (float[3] x, int64 n) => (float[3] y) <float[3] r = {1.0, 2.0, 3.0}>
    { f = Cast<to = 1>(n) q = Mul(r, f) y = Mul(x, q) }"""
    data = onnx.parser.parse_model(text).SerializeToString()
    for factor in (1, 2):
        with InferenceSession(data, bind={"n": factor}, threads=1) as session:
            [result] = session.run(None, {"x": np.ones(3, np.float32)})
        assert result.tolist() == [factor, 2 * factor, 3 * factor]
    assert len(list((tmp_path / "images").glob("*.image"))) == 2
