"""Small models, and the command line in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunewright.codegen.cuda import device, driver, nvrtc
from tunewright.codegen.cuda.device import Device
from tunewright.db.store import Store, open_store
from tunewright.tuner import cli
from tunewright.tuner.lookup import experience
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session import image_store
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.session.static_model import StaticModel

from ..commands import Command, commands
from ..workers.simulated import VERSIONS
from .interpreted import GPU, Interpreted


def small_model(rows: int | str = 4, names: tuple[str, str] = ("x", "y")) -> onnx.ModelProto:
    """softmax(relu(x w + b)) of a few numbers; two tasks."""
    rng = np.random.default_rng(0)
    source, result = names
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (8, 24)), ("b", (24,)))
    ]
    nodes = [
        helper.make_node("MatMul", [source, "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["positive"]),
        helper.make_node("Softmax", ["positive"], [result], axis=-1),
    ]
    inputs = [helper.make_tensor_value_info(source, TensorProto.FLOAT, [rows, 8])]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, [rows, 24])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def static_model(session: InferenceSession) -> StaticModel:
    """What runs a session of one size."""
    assert isinstance(session._model, StaticModel)
    return session._model


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty one, in memory."""
    with open_store("sqlite://") as opened:
        yield opened


@pytest.fixture(scope="package", autouse=True)
def _no_base_model() -> Iterator[None]:
    """What is tested is what trials teach; the base model may say anything else of made-up tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience, "base", lambda kind: None)
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and a model there."""
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(image_store, "SETTLED_NS", -(10**18))
    onnx.save(small_model(), tmp_path / "small.onnx")
    return tmp_path


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    """The only one of this machine, and a home of its own: no other GPU could run what is kept there."""
    assert GPU.gpu is not None
    one, known = Interpreted(), Device(0, "simulated", GPU.gpu)
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(driver, "driver", lambda: one)
    monkeypatch.setattr(compile_module, "gpu_build", one.built)
    monkeypatch.setattr(nvrtc, "version", lambda: VERSIONS["nvrtc"])
    monkeypatch.setattr(device, "devices", lambda: [known])
    return one


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    return commands(cli.execute, capfd)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(small_model(), path)
    return path
