"""Peers compute what ONNX Runtime does: PyTorch by our own translation of each op."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.bench.suite import MODELS
from tunewright.bench.suite.network import Network
from tunewright.tuner.models.model import example_feeds, open_model
from tunewright.tuner.peers.runtimes import PEERS, PeerFailed, how_to_install, module_of

from .processes import python_path


def windows(net: Network) -> str:
    x = net.input("x", (1, 4, 12, 12))
    weight = net.weight((8, 2, 3, 3), 18)
    uneven = net.add("Conv", x, weight, pads=[0, 1, 2, 1], group=2, dilations=[1, 1])
    x = net.add("MaxPool", uneven, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x = net.add("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    x = net.add("ConvTranspose", x, net.weight((8, 4, 2, 2), 8), net.shift(4), strides=[2, 2])
    scale = net.constant(np.ones(4, np.float32))
    x = net.add("BatchNormalization", x, scale, net.shift(4), net.shift(4), scale)
    return net.add("GlobalAveragePool", net.add("Clip", x, net.scalar(-1), net.scalar(2)))


def movement(net: Network) -> str:
    x = net.input("x", (2, 6, 5))
    first, second = net.add_split("Split", x, net.integers(2, 4), axis=1, count=2)
    part = net.add("Slice", second, net.integers(1), net.integers(4), net.integers(1), net.integers(2))
    x = net.transpose(net.add("Concat", first, part, axis=1), 0, 2, 1)
    x = net.add("Gather", x, net.constant(np.array([[2, 0], [1, 3]])), axis=2)
    x = net.add("Expand", net.reshape(x, 2, 1, 20), net.integers(2, 3, 20))
    shifted = net.add("Sub", x, net.add("ReduceMax", x, net.integers(2), keepdims=1))
    whole = net.add("Cast", net.add("Mul", shifted, net.scalar(10)), to=7)
    return net.add("Add", net.add("Cast", net.add("Div", whole, net.integers(3)), to=1), shifted)


def functions(net: Network) -> str:
    x = net.input("x", (6, 16))
    for op in ("Erf", "HardSigmoid", "Tanh", "Sigmoid", "HardSwish", "Softmax"):
        x = net.add(op, x)
    x = net.gelu(net.silu(net.layer_norm(x, 16)))
    return net.add("Gemm", x, net.weight((16, 4), 16), net.weight((6, 4), 4))


def saved(build: Any) -> bytes:
    net = Network("network")
    return net.onnx(build(net))


CASES = {
    "windows": saved(windows),
    "movement": saved(movement),
    "functions": saved(functions),
    "mlp": MODELS["mlp"](),
    "lstm_tagger": MODELS["lstm_tagger"](),
}


@pytest.mark.parametrize("name", ["openvino", "torch", "tvm"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_results_are_those_of_onnx_runtime(name: str, case: str) -> None:
    pytest.importorskip(module_of(name))
    pytest.importorskip("onnxruntime")
    if (name, case) == ("tvm", "lstm_tagger"):
        pytest.skip("TVM reads no LSTM from ONNX")
    model = CASES[case]
    feeds = example_feeds(open_model(model))
    right = PEERS["onnxruntime"](model, feeds, 1, {}).run()
    for found, wanted in zip(PEERS[name](model, feeds, 1, {}).run(), right, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_op_without_a_translation() -> None:
    pytest.importorskip("torch")
    net = Network("network")
    model = net.onnx(net.add("Det", net.input("x", (3, 3))))
    with pytest.raises(PeerFailed, match="no translation of Det"):
        PEERS["torch"](model, {"x": np.zeros((3, 3), np.float32)}, 1, {})


def test_each_peer_says_what_brings_it() -> None:
    assert how_to_install("torch.compile") == "pip install 'tunewright[torch]'"
    assert how_to_install("tvm") == "pip install apache-tvm"
    assert how_to_install("openvino") == "pip install 'tunewright[bench]'"


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_nothing_is_left_in_the_home(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    model, home = tmp_path / "model.onnx", tmp_path / "home"
    model.write_bytes(CASES["functions"])
    home.mkdir()
    program = (
        "import sys, numpy as np; from pathlib import Path; from tunewright.tuner.peers.runtimes import PEERS; "
        "PEERS[sys.argv[1]](Path(sys.argv[2]), {'x': np.zeros((6, 16), np.float32)}, 1, {}).run()"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ORT_"))}
    env |= python_path() | {"HOME": str(home)}
    subprocess.run([sys.executable, "-P", "-c", program, name, str(model)], env=env, check=True)
    assert not list(home.iterdir())
