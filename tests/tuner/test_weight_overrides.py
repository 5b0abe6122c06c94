"""Weights that are inputs too: constants, until a run is given others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tunewright.codegen.lru_cache import LruCache
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner.cli.run import run_model
from tunewright.tuner.errors import InputError, Refused
from tunewright.tuner.lookup.lockfile import write_lock
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import open_model
from tunewright.tuner.session import weight_overrides
from tunewright.tuner.session.node_arg import NodeArg
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.session.session_model import ReadyModel

from .conftest import static_model

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 5)).astype(np.float32)
W = RNG.standard_normal((5, 7)).astype(np.float32)
B = RNG.standard_normal(7).astype(np.float32)


def linear(*listed: str, ir_version: int = 10) -> ModelProto:
    """y = x @ w + b; the weights `listed` are inputs as well."""
    shapes = {"x": X.shape, "w": W.shape, "b": B.shape}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in ("x", *listed)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=ir_version)


def opened(model: ModelProto | Path, **options: Any) -> InferenceSession:
    source = model if isinstance(model, Path) else model.SerializeToString()
    return InferenceSession(source, threads=1, **options)


def overrides_of(session: InferenceSession) -> LruCache[frozenset[str], ReadyModel]:
    overrides = static_model(session)._overrides
    assert overrides is not None
    return overrides._models


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ir_version", [3, 10])
def test_a_run_that_is_given_weights_uses_them(ir_version: int) -> None:
    with opened(linear("w", "b", ir_version=ir_version)) as session:
        assert [argument.name for argument in session.get_inputs()] == ["x"]
        weights = [NodeArg("w", "tensor(float)", [5, 7]), NodeArg("b", "tensor(float)", [7])]
        assert session.get_overridable_initializers() == weights
        for w, b in ((W, B), (2 * W, B), (W, 3 * B), (-W, 0 * B), (W, B), (4 * W, B)):
            feed = {"x": X} | ({"w": w} if w is not W else {}) | ({"b": b} if b is not B else {})
            close(session.run(None, feed)[0], X @ w + b)
            close(session.run(["y"], feed)[0], X @ w + b)
        assert len([*overrides_of(session)]) == 3
        assert session.kernels_s({"x": X, "w": W}) > 0


def test_the_last_choices_of_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_overrides, "MOST_CHOICES", 2)
    with opened(linear("w", "b")) as session:
        for given in ({"w": W}, {"b": B}, {"w": W, "b": B}, {"w": 2 * W}):
            close(session.run(None, {"x": X} | given)[0], X @ given.get("w", W) + B)
        assert list(overrides_of(session)) == [frozenset("wb"), frozenset("w")]


def test_a_closed_session_answers_nobody() -> None:
    session = opened(linear("w"))
    session.run(None, {"x": X, "w": W})
    session.close()
    for feed in ({"x": X}, {"x": X, "w": W}):
        with pytest.raises(Refused, match="closed"):
            session.run(None, feed)


def test_a_relative_path_means_the_same_file_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(linear("w").SerializeToString())
    monkeypatch.chdir(tmp_path)
    with opened(Path("model.onnx")) as session:
        monkeypatch.chdir("/")
        close(session.run(None, {"x": X, "w": 2 * W})[0], X @ (2 * W) + B)
        path.unlink()
        with pytest.raises(Refused, match="is gone"):
            overrides_of(session).clear()
            session.run(None, {"x": X, "w": W})


def test_weights_that_are_no_inputs_are_not_taken() -> None:
    with opened(linear("b")) as session:
        assert [argument.name for argument in session.get_overridable_initializers()] == ["b"]
        with pytest.raises(
            InputError, match=r"no input 'w'; the model takes 'x' .*, and in place of its own weights 'b'$"
        ):
            session.run(None, {"x": X, "w": W})


def test_a_weight_must_be_of_the_type_and_shape_of_the_model_s() -> None:
    with opened(linear("w", "b")) as session:
        for given, fault in (
            ({"x": X, "w": W.T}, r"input 'w' is float32\[7, 5\], the model takes float32\[5, 7\]"),
            ({"x": X, "w": W.astype(np.float64)}, "input 'w' is float64"),
            ({"w": W}, "^input 'x' is missing"),
            ({"x": X, "w": W, "z": W}, "no input 'z'"),
        ):
            with pytest.raises(InputError, match=fault):
                session.run(None, given)


def test_other_weights_change_no_task_of_the_model() -> None:
    model, plain = linear("w", "b"), linear()
    listed = open_model(model.SerializeToString())
    assert listed.tasks.keys() == open_model(plain.SerializeToString()).tasks.keys()
    assert strip(model.SerializeToString()).data == strip(plain.SerializeToString()).data
    with opened(model) as session:
        before = session.schedules
        session.run(None, {"x": X, "w": W})
        assert session.schedules == before and before.keys() == listed.tasks.keys()


def test_a_session_that_starts_from_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tunewright.tuner.session.image_store.SETTLED_NS", 0)
    path = tmp_path / "model.onnx"
    path.write_bytes(linear("w").SerializeToString())
    for kept in (False, True):
        if kept:
            monkeypatch.delattr(
                "tunewright.tuner.session.executable.open_executable"
            )  # what a session without an image needs
        with InferenceSession(path, threads=1) as session:
            assert session.get_overridable_initializers() == [NodeArg("w", "tensor(float)", [5, 7])]
            close(session.run(None, {"x": X, "w": 2 * W})[0], X @ (2 * W) + B)
            close(session.run(None, {"x": X})[0], X @ W + B)


def test_a_file_that_has_changed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(linear("w").SerializeToString())
    with opened(path) as session:
        path.write_bytes(linear("w", "b").SerializeToString())
        with pytest.raises(Refused, match="has changed since the session was opened"):
            session.run(None, {"x": X, "w": W})
        close(session.run(None, {"x": X})[0], X @ W + B)


def test_a_lock_file_pins_what_is_as_it_was(tmp_path: Path) -> None:
    path, lock = tmp_path / "model.onnx", tmp_path / "lock.json"
    path.write_bytes(linear("b").SerializeToString())
    prepared = ScheduleSource().prepare(path, threads=1)
    write_lock(lock, prepared.model, prepared.target, {}, prepared.results)
    with InferenceSession(path, threads=1, lock=lock) as session:
        close(session.run(None, {"x": X, "b": 2 * B})[0], X @ W + 2 * B)


def test_a_session_of_an_opened_model_takes_none() -> None:
    prepared = ScheduleSource().prepare(linear("w").SerializeToString(), threads=1)
    with InferenceSession.of_results(prepared.model, prepared.target, prepared.results) as session:
        assert session.get_overridable_initializers() == []
        with pytest.raises(InputError, match="no input 'w'"):
            session.run(None, {"x": X, "w": W})


def test_a_weight_that_decides_a_shape() -> None:
    model = linear()
    model.graph.node.append(helper.make_node("Reshape", ["y", "shape"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([21]), "shape"))
    model.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [1]))
    model.graph.output[0].name = "z"
    with opened(model) as session:
        assert session.run(None, {"x": X})[0].shape == (21,)
        assert session.run(None, {"x": X, "shape": np.array([-1])})[0].shape == (21,)


def test_the_command_takes_weights_as_inputs(tmp_path: Path) -> None:
    path, given, out = tmp_path / "model.onnx", tmp_path / "b=.npy", tmp_path / "out"
    path.write_bytes(linear("w", "b").SerializeToString())
    np.save(tmp_path / "x.npy", X)
    np.save(given, 2 * B)
    data = run_model(path, [f"x={tmp_path / 'x.npy'}", f"b={given}"], out, ScheduleSource(), {}, 1)
    assert [entry["name"] for entry in data["inputs"]] == ["x", "b"]
    close(np.load(out / "output_0.npy"), X @ W + 2 * B)
    assert json.loads((out / "manifest.json").read_text())["outputs"][0]["name"] == "y"
    with pytest.raises(Refused, match=r"'z=a\.npy' is not NAME=FILE\.npy of an input of the model"):
        run_model(path, ["z=a.npy"], None, ScheduleSource(), {}, 1)
    with pytest.raises(Refused, match="--input x= is given twice"):
        twice = [f"x={tmp_path / 'x.npy'}"] * 2
        run_model(path, twice, None, ScheduleSource(), {}, 1)
