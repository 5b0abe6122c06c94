"""Peers on a GPU, as far as they can be tried without one: ONNX Runtime on its processor, and a PyTorch of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tunewright.tuner.errors import Refused
from tunewright.tuner.peers import cuda_runtimes
from tunewright.tuner.peers.cuda_runtimes import CUDA_PEERS, PROVIDER, CudaPeer, check_cuda_peers, cuda_fault
from tunewright.tuner.peers.runtimes import PEERS, PeerFailed
from tunewright.tuner.peers.torch_cuda import RUNS, WARMING

from .conftest import small_model

FEEDS = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}


def outputs_for(x: Any) -> Any:
    """Of the small model."""
    w, b = (numpy_helper.to_array(one) for one in small_model().graph.initializer)
    scores = np.exp(np.maximum(x @ w + b, 0))
    return scores / scores.sum(axis=1, keepdims=True)


class FakeDriver:
    """Counts what it timed."""

    stream_pointer = 4711
    device = SimpleNamespace(number=0)

    def __init__(self) -> None:
        self.runs = 0

    def time(self, run: Callable[[], None], count: int, *, is_cold: bool = True) -> list[float]:
        assert not is_cold
        for _ in range(count):
            run()
        self.runs += count
        return [1e-3] * count


class FakeRuntime:
    """ONNX Runtime, whose memory of a GPU is that of the processor. What it does with graphs is up to the test."""

    def __init__(self, onnxruntime: Any) -> None:
        self.__version__ = "1.99"
        self.SessionOptions = onnxruntime.SessionOptions
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=self._value)
        self.options: list[dict[str, str]] = []
        self.loads, self.captures = True, True
        self.InferenceSession = self._session
        self._onnxruntime = onnxruntime

    def _value(self, array: Any, device: str, number: int) -> Any:
        assert (device, number) == ("cuda", 0)
        return self._onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu", 0)

    def _session(self, source: Any, options: Any, providers: Any) -> Any:
        [(name, own_options)] = providers
        assert name == PROVIDER
        self.options.append(own_options)
        session = self._onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        found = [PROVIDER] if self.loads else []
        setattr(session, "get_providers", lambda: found)  # noqa: B010
        if own_options["enable_cuda_graph"] == "1" and not self.captures:
            setattr(session, "run_with_iobinding", self._refuse)  # noqa: B010
        return session

    def _refuse(self, binding: Any) -> None:
        raise RuntimeError("all compute graph nodes have not been\npartitioned to the CUDA EP")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime(pytest.importorskip("onnxruntime"))
    monkeypatch.setattr(cuda_runtimes, "import_silent", lambda name: fake)
    return fake


def opened(name: str, driver: FakeDriver) -> CudaPeer:
    any_driver: Any = driver
    return CUDA_PEERS[name](small_model().SerializeToString(), dict(FEEDS), {}, any_driver)


@pytest.mark.parametrize("captures", [True, False])
def test_onnx_runtime(runtime: FakeRuntime, captures: bool) -> None:
    runtime.captures = captures
    driver = FakeDriver()
    peer = opened("onnxruntime", driver)
    assert isinstance(peer, CudaPeer) and peer.version == "1.99"
    assert [one["enable_cuda_graph"] for one in runtime.options] == ["0", "1"]
    assert all((one["user_compute_stream"], one["use_tf32"]) == ("4711", "0") for one in runtime.options)
    for _ in range(2):
        [result] = peer.run()
        np.testing.assert_allclose(result, outputs_for(FEEDS["x"]), rtol=1e-5)
    assert peer.device_s() == 1e-3 and driver.runs == RUNS
    assert "what queues one is in its time" in peer.note
    assert ("not been partitioned to the CUDA EP" in peer.note) is not captures


def test_onnx_runtime_without_its_libraries(runtime: FakeRuntime) -> None:
    """It runs the model on the processor then, and says so in its log alone."""
    runtime.loads = False
    with pytest.raises(PeerFailed, match="needs the libraries of CUDA and cuDNN"):
        opened("onnxruntime", FakeDriver())


def test_onnx_runtime_of_what_is_no_model(runtime: FakeRuntime) -> None:
    any_driver: Any = FakeDriver()
    with pytest.raises(PeerFailed):
        CUDA_PEERS["onnxruntime"](b"no model", dict(FEEDS), {}, any_driver)


class FakeTensor(np.ndarray[Any, Any]):
    """As PyTorch's, as far as it is asked."""

    def cuda(self) -> FakeTensor:
        return self.copy()

    def cpu(self) -> FakeTensor:
        return self

    def numpy(self) -> Any:
        return np.array(self)

    def contiguous(self, **_: Any) -> FakeTensor:
        return self

    def copy_(self, other: FakeTensor) -> None:
        self[...] = other


class FakeGraph:
    """Runs what was recorded, into the same memory."""

    def __init__(self) -> None:
        self.program: Callable[[], Any] = lambda: None
        self.outputs: Any = ()

    def replay(self) -> None:
        for mine, fresh in zip(self.outputs, self.program(), strict=True):
            mine[...] = fresh


class FakeTorch(ModuleType):
    """PyTorch of arrays: programs are recorded by noting the one that ran last."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.__version__ = "2.99.0+cu130"
        self.bfloat16 = "bfloat16"
        self.runs = 0
        self.compiled: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.backends = SimpleNamespace(cudnn=SimpleNamespace(allow_tf32=True))
        self.compiler = SimpleNamespace(reset=lambda: None)
        self._dynamo = SimpleNamespace(config=SimpleNamespace(fail_on_recompile_limit_hit=False))
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            synchronize=lambda: None,
            CUDAGraph=FakeGraph,
            graph=self._graph,
            ExternalStream=lambda pointer: pointer,
            stream=lambda pointer: nullcontext(),
        )

    def _graph(self, graph: FakeGraph) -> Any:
        if self.fault is not None:
            raise self.fault
        graph.program = self.program
        graph.outputs = self.program()
        return nullcontext()

    def no_grad(self) -> Any:
        return nullcontext()

    def from_numpy(self, array: Any) -> FakeTensor:
        tensor: FakeTensor = array.view(FakeTensor)
        return tensor

    def compile(self, program: Any, **options: Any) -> Any:
        self.compiled.append(options)
        return program

    def program(self) -> tuple[FakeTensor, ...]:
        return self.module(*self.inputs)

    def translate(self, graph: Any) -> Any:
        self.inputs: Any = ()

        def module(*inputs: FakeTensor) -> tuple[FakeTensor, ...]:
            self.runs += 1
            self.inputs = inputs
            return (outputs_for(inputs[0]).view(FakeTensor),)

        self.module = module
        return SimpleNamespace(cuda=lambda: module)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    translation = ModuleType("torch_module")
    setattr(translation, "translate", fake.translate)  # noqa: B010
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "tunewright.tuner.peers.torch_module", translation)
    return fake


@pytest.mark.parametrize("name", ["torch", "torch.compile"])
def test_pytorch_is_replayed(torch: FakeTorch, name: str) -> None:
    driver = FakeDriver()
    peer = opened(name, driver)
    assert isinstance(peer, CudaPeer) and (peer.version, peer.note) == ("2.99.0+cu130", "")
    assert torch.runs >= WARMING and torch.backends.cudnn.allow_tf32 is False
    for _ in range(2):
        [result] = peer.run()
        assert type(result) is np.ndarray
        np.testing.assert_allclose(result, outputs_for(FEEDS["x"]), rtol=1e-5)
    assert peer.device_s() == 1e-3 and driver.runs == RUNS
    wanted = [{"dynamic": False, "mode": "max-autotune-no-cudagraphs"}] if name == "torch.compile" else []
    assert torch.compiled == wanted


def test_pytorch_that_fails(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.fault = RuntimeError("operation not permitted when\nstream is capturing")
    with pytest.raises(PeerFailed, match="operation not permitted when stream is capturing"):
        opened("torch", FakeDriver())

    def untranslated(graph: object) -> None:
        raise NotImplementedError("no translation of Det to PyTorch")

    monkeypatch.setattr(sys.modules["tunewright.tuner.peers.torch_module"], "translate", untranslated)
    with pytest.raises(PeerFailed, match="no translation of Det"):
        opened("torch.compile", FakeDriver())


def test_each_says_what_brings_it(torch: FakeTorch, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    setattr(runtime, "get_available_providers", lambda: [PROVIDER, "CPUExecutionProvider"])  # noqa: B010
    assert [cuda_fault(name) for name in CUDA_PEERS] == ["", "", ""]
    check_cuda_peers(list(CUDA_PEERS))
    setattr(runtime, "get_available_providers", lambda: ["CPUExecutionProvider"])  # noqa: B010
    assert cuda_fault("onnxruntime") == "this onnxruntime has no CUDA provider: pip install onnxruntime-gpu"
    monkeypatch.setattr(cuda_runtimes, "find_spec", lambda name: None)
    assert cuda_fault("onnxruntime") == "onnxruntime is not installed: pip install onnxruntime-gpu"
    torch.cuda.is_available = lambda: False
    assert cuda_fault("torch") == "PyTorch 2.99.0+cu130 finds no GPU: install one that is built for CUDA"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in cuda_fault("torch.compile")
    with pytest.raises(Refused, match="pip install torch"):
        check_cuda_peers(["torch"])
    with pytest.raises(Refused, match="no peer on a GPU is called 'tvm'"):
        check_cuda_peers(["tvm"])


def test_peers_have_one_name_on_all_targets() -> None:
    assert CUDA_PEERS.keys() < PEERS.keys()
