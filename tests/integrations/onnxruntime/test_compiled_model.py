"""Compiled models in ONNX Runtime: opened from a library, or run by ONNX Runtime where that does not suit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.23")

from tunewright.codegen.runtime import processor  # noqa: E402
from tunewright.codegen.runtime.static_program import Requirement  # noqa: E402
from tunewright.graph.onnx_import import ModelError  # noqa: E402
from tunewright.integrations.onnxruntime import compile_model, session_options  # noqa: E402
from tunewright.integrations.onnxruntime.compiled_group import CompiledGroup  # noqa: E402
from tunewright.integrations.onnxruntime.registration import groups  # noqa: E402
from tunewright.tuner import InferenceSession, cli  # noqa: E402
from tunewright.tuner.errors import Refused  # noqa: E402

from ...commands import commands  # noqa: E402
from ...tuner.wide_model import X, is_close, recounted, wide_model  # noqa: E402

RNG = np.random.default_rng(11)

TEXT = """g (float[batch, 3, 12, 12] x, int64[batch] k) => (float[batch, 4, 12, 12] y, int64[batch] n)
    { c = Conv <pads=[1, 1, 1, 1]> (x, w) y = Relu(c) n = Add(k, k) }"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    graph = onnx.parser.parse_graph(TEXT)
    graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((4, 3, 3, 3)).astype(np.float32), "w"))
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def feeds() -> dict[str, Any]:
    return {"x": RNG.standard_normal((2, 3, 12, 12)).astype(np.float32), "k": np.array([3, 4])}


def check(file: Path, compiled: Path, feeds: dict[str, Any]) -> None:
    peer = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    session = onnxruntime.InferenceSession(str(compiled), session_options(2))
    (group,) = groups()
    assert isinstance(group, CompiledGroup)
    for _ in range(3):
        for own, expected in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-5)
            assert own.dtype == expected.dtype


def test_a_compiled_model_runs_its_library(file: Path, tmp_path: Path, feeds: dict[str, Any]) -> None:
    compiled = tmp_path / "tuned.onnx"
    compile_model(file, compiled, dims={"batch": 2})
    assert [node.op_type for node in onnx.load(compiled).graph.node] == ["EPContext"]
    (tmp_path / "tuned.original.onnx").unlink()  # which is not needed here
    check(file, compiled, feeds)


@pytest.mark.parametrize("precision", ["as given", "bf16"])
def test_a_compiled_model_has_a_precision(tmp_path: Path, precision: str) -> None:
    (tmp_path / "wide.onnx").write_bytes(wide_model())
    compile_model(tmp_path / "wide.onnx", tmp_path / "tuned.onnx", precision=precision)
    session = onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx"), session_options(1))
    assert is_close(session.run(None, {"x": X})[0], recounted(precision))


def test_the_command_compiles_too(
    file: Path, tmp_path: Path, feeds: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    command = commands(lambda words: cli.exit_code(lambda: cli.execute(words)), capfd)
    compiled = tmp_path / "tuned.onnx"
    done = command("compile", file, "-o", compiled, "--dim", "batch=2", "--json")
    assert (done.data["file"], done.data["library"]) == (str(compiled), str(tmp_path / "tuned.so"))
    check(file, compiled, feeds)
    assert "keep it beside the model" in command("compile", file, "-o", compiled, "--dim", "batch=2").out
    refused = command("compile", file, "-o", compiled, "--bind", "k=2")
    assert (refused.code, "--bind is for libraries" in refused.err) == (2, True)


def test_a_compiled_model_can_be_moved(file: Path, tmp_path: Path, feeds: dict[str, Any]) -> None:
    compile_model(file, tmp_path / "tuned.onnx", dims={"batch": 2})
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in tmp_path.glob("tuned.*"):
        path.rename(moved / path.name)
    check(file, moved / "tuned.onnx", feeds)


def test_a_relative_name_will_do(
    file: Path, tmp_path: Path, feeds: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_model(file, tmp_path / "tuned.onnx", dims={"batch": 2})
    monkeypatch.chdir(tmp_path)
    check(file, Path("tuned.onnx"), feeds)


def test_another_processor_runs_the_original(
    file: Path,
    tmp_path: Path,
    feeds: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No processor has a bit that Intel keeps at zero."""
    known = processor.requirements_of

    def ask_for_more(features: str) -> Any:
        found = known(features)
        return type(found)([*found.bits, Requirement("antigravity", 1, 0, 3, 10)], found.xcr0, found.has_matrices)

    monkeypatch.setattr("tunewright.tuner.session.shared_library.requirements_of", ask_for_more)
    compile_model(file, tmp_path / "tuned.onnx", dims={"batch": 2})
    check(file, tmp_path / "tuned.onnx", feeds)
    assert "no antigravity here; ONNX Runtime runs the model that it was made of" in caplog.text


def test_names_of_files_stay_in_the_folder(file: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "tuned.onnx"
    compile_model(file, compiled, dims={"batch": 2})
    model = onnx.load(compiled)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = b"../tuned.so"
    compiled.write_bytes(model.SerializeToString())
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="is no plain file name"):
        onnxruntime.InferenceSession(str(compiled), session_options(1))


def test_the_library_of_another_model_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_model(file, tmp_path / "tuned.onnx", dims={"batch": 2})
    right = (tmp_path / "tuned.so").read_bytes()

    def refused(content: bytes, match: str) -> None:
        (tmp_path / "tuned.so").write_bytes(content)
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match=match):
            onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx"), session_options(1))

    refused(right[:5000], "not what was made with the model, or not all of it")
    other = onnx.load(file)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w"))
    onnx.save(other, tmp_path / "other.onnx")
    compile_model(tmp_path / "other.onnx", tmp_path / "other_tuned.onnx", dims={"batch": 2})
    wrong = (tmp_path / "other_tuned.so").read_bytes()
    compiled = onnx.load(tmp_path / "tuned.onnx")
    (notes,) = [item for item in compiled.graph.node[0].attribute if item.name == "notes"]
    notes.s = json.dumps({**json.loads(notes.s), "size_bytes": len(wrong)}).encode()
    onnx.save(compiled, tmp_path / "tuned.onnx")
    refused(wrong, "is the library of another model")


def test_a_compiled_model_is_told_from_others(file: Path, tmp_path: Path) -> None:
    compile_model(file, tmp_path / "tuned.onnx", dims={"batch": 2})
    with pytest.raises(ModelError, match="compiled for another runtime; open the original"):
        InferenceSession(tmp_path / "tuned.onnx")


def test_what_can_not_be_compiled_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="from a file to a file"):
        compile_model(file.read_bytes(), tmp_path / "tuned.onnx")  # type: ignore[arg-type]
    for name in (tmp_path / "tuned.so", ""):
        with pytest.raises(Refused, match="has to end in"):
            compile_model(file, name)
    with pytest.raises(Refused, match="stays as it is"):
        compile_model(file.rename(tmp_path / "tuned.original.onnx"), tmp_path / "tuned.onnx")
    (tmp_path / "tuned.original.onnx").rename(file)
    with pytest.raises(Exception, match="batch"):
        compile_model(file, tmp_path / "tuned.onnx")
