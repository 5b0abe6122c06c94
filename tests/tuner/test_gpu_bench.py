"""`bench --target cuda`, on a GPU that the interpreter stands in for, beside peers that compute what it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.cuda import device
from tunewright.codegen.cuda.driver import Clock, Driver
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.tuner.cli import comparison
from tunewright.tuner.peers import cuda_runtimes, runtimes
from tunewright.tuner.peers.runtimes import PeerFailed
from tunewright.tuner.session.session import InferenceSession

from ..commands import Command
from ..workers.simulated import WARM_S
from .interpreted import Interpreted, model_of

PEER_S = 0.25e-3


class FakePeer:
    """Runs a model in a session of ours on the processor, off by a little, or with another outcome."""

    version = "1.2.3"
    note = ""
    error = 0.0

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], dims: Mapping[str, int], driver: Driver) -> None:
        assert driver.name == "a simulated GPU" and not dims
        with InferenceSession(model, threads=1) as session:
            self._outputs = [output + self.error for output in session.run(None, dict(feeds))]

    def run(self) -> list[Any]:
        return self._outputs

    def device_s(self) -> float:
        return PEER_S


class Noted(FakePeer):
    note = "it waits for the device"
    error = 1e-3


class Broken(FakePeer):
    def device_s(self) -> float:
        raise PeerFailed("operation not permitted when stream is capturing")


@pytest.fixture
def _peers(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"onnxruntime": FakePeer, "torch": Noted, "torch.compile": Broken}
    monkeypatch.setattr(comparison, "CUDA_PEERS", peers)
    monkeypatch.setattr(comparison, "cuda_fault", lambda name: "")
    monkeypatch.setattr(cuda_runtimes, "cuda_fault", lambda name: "")


@pytest.mark.slow
@pytest.mark.usefixtures("_peers")
def test_a_model_beside_its_peers(home: Path, gpu: Interpreted, command: Command) -> None:
    answer = command("bench", home / "small.onnx", "--target", "cuda", "--default", "--json")
    data = answer.data
    told = [line.partition(":")[0] for line in answer.err.splitlines() if not line.startswith("note")]
    assert told == [
        "opening onnxruntime",
        "opening torch",
        "opening torch.compile",
        "opening tunewright",
        "timing in turn",
    ]
    names = {"tunewright", "tunewright, default", "onnxruntime", "torch"}
    assert data["device"].keys() == {"name", "driver", "cuda", "clock_mhz", "ms", "intervals_ms", "samples"}
    assert data["device"]["ms"].keys() == data["device"]["intervals_ms"].keys() == data["intervals_ms"].keys() == names
    assert data["device"]["ms"]["tunewright"] == pytest.approx(1e3 * WARM_S) == pytest.approx(data["kernels_ms"])
    assert data["device"]["ms"]["torch"] == pytest.approx(1e3 * PEER_S)
    assert (data["device"]["name"], data["device"]["driver"]) == ("a simulated GPU", "580.159.04")
    assert (data["device"]["cuda"], data["device"]["clock_mhz"]) == ("13.0", [1000, 1000])
    assert data["device"]["samples"] >= 9
    assert data["peers"].keys() == {"onnxruntime", "torch"} and data["tunewright_ms"] > 0
    assert data["failures"] == {"torch.compile": "operation not permitted when stream is capturing"}
    assert data["reference"] == "onnxruntime" and data["max_rel_err"] < 1e-5
    assert data["peer_rel_err"]["torch"] > 1e-4
    assert "torch: it waits for the device" in data["notes"]
    assert data["threads"] is None and data["target"].startswith("cuda:") and data["peak_mb"] == {}
    assert data["versions"]["torch"] == "1.2.3"


@pytest.mark.usefixtures("_peers")
def test_its_table(home: Path, gpu: Interpreted, command: Command) -> None:
    out = command("bench", home / "small.onnx", "--target", "cuda", "--against", "torch,torch.compile").out
    rows = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert "500.0 \N{MICRO SIGN}s" in rows["tunewright"] and "1.00x" in rows["tunewright"]
    assert "250.0 \N{MICRO SIGN}s" in rows["torch"] and "0.50x" in rows["torch"]
    assert "torch.compile can't run this model: operation not permitted" in out
    assert "on a simulated GPU, driver 580.159.04, CUDA 13.0, 1000 MHz, medians of " in out
    assert "largest error against torch: " in out
    assert "threads on" not in out


def test_alone(home: Path, gpu: Interpreted, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no peer can be had, each is told with what would bring it."""
    monkeypatch.setattr(comparison, "cuda_fault", lambda name: f"no {name[:5]}: pip install it")
    answer = command("bench", home / "small.onnx", "--target", "cuda")
    assert answer.code == 0
    assert answer.err.startswith("not measured: no onnxr: pip install it; no torch: pip install it\n")
    assert "largest error" not in answer.out


@pytest.mark.slow
@pytest.mark.usefixtures("_peers")
def test_a_hot_device(home: Path, gpu: Interpreted, command: Command) -> None:
    gpu._clocks = [Clock(1_200_000_000, is_slowed=False), Clock(900_000_000, is_slowed=True)]
    data = command("bench", home / "small.onnx", "--target", "cuda", "--against", "onnxruntime", "--json").data
    assert "a simulated GPU lowered its clock" in data["noise"]
    assert data["device"]["clock_mhz"] == [900, 1200]


def test_an_unknown_clock(home: Path, gpu: Interpreted, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "cuda_fault", lambda name: "none")
    gpu._clocks = [None]
    assert command("bench", home / "small.onnx", "--target", "cuda", "--json").data["device"]["clock_mhz"] is None


def test_nodes_without_a_kernel(
    home: Path, gpu: Interpreted, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "cuda_fault", lambda name: "none")
    (home / "slow.onnx").write_bytes(model_of("without a kernel"))
    data = command("bench", home / "slow.onnx", "--target", "cuda", "--json").data
    assert data["fallback"] == {"Det": 1} and data["kernels_ms"] == pytest.approx(2e3 * WARM_S)


def no_cupy() -> list[Any]:
    raise NoCompiler("No module named 'cupy': pip install 'tunewright[cuda]'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "2"], "threads=2: a GPU has threads of its own"),
        (
            ["--against", "openvino"],
            "no peer on a GPU is called 'openvino'; there are onnxruntime, torch, torch.compile",
        ),
        (["--against", "onnxruntime"], "this onnxruntime has no CUDA provider: pip install onnxruntime-gpu"),
        (["--against", "torch"], "PyTorch"),
    ],
)
def test_what_can_not_be(
    arguments: list[str], words: str, home: Path, gpu: Interpreted, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_runtimes, "find_spec", lambda name: object())
    monkeypatch.setattr(
        cuda_runtimes, "import_silent", lambda name: type("Runtime", (), {"get_available_providers": lambda: ["CPU"]})
    )
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    answer = command("bench", home / "small.onnx", "--target", "cuda", *arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1 + ("warning" in answer.err))
    assert words in answer.err


@pytest.mark.parametrize("is_driver_there", [True, False])
def test_a_machine_without_a_gpu(
    is_driver_there: bool, home: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "cuda_fault", lambda name: pytest.fail("peers are looked for first"))
    if is_driver_there:
        monkeypatch.setattr(device, "devices", no_cupy)
    else:
        monkeypatch.setattr(device, "has_driver", lambda: False)
    answer = command("bench", home / "small.onnx", "--target", "cuda")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert ("pip install 'tunewright[cuda]'" if is_driver_there else "a GPU needs NVIDIA's driver") in answer.err


@pytest.mark.slow
def test_the_outputs_are_those_of_the_first_peer_without_onnx_runtime(
    home: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor too."""

    class Other:
        version = "1"

        def __init__(self, model: Path, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
            self._rows = len(feeds["x"])

        def run(self) -> list[Any]:
            return [np.ones((self._rows, 24), np.float32)]

    monkeypatch.setattr(runtimes, "PEERS", {"openvino": Other})
    monkeypatch.setattr(runtimes, "is_installed", lambda name: True)
    data = command("bench", home / "small.onnx", "--threads", 1, "--against", "openvino", "--json").data
    assert data["reference"] == "openvino" and data["max_rel_err"] > 0.1 and data["device"] is None
