"""Peers on a GPU of this machine: ONNX Runtime on its CUDA provider, and PyTorch.

Each tells what a run takes on the device, with inputs and outputs there. `run` brings the inputs from the memory of
this machine, and the outputs back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..errors import Refused
from ..foreign import exceptions, import_silent
from .runtimes import FOREIGN_FAULTS, Peer, PeerFailed, one_line
from .torch_cuda import (
    RUNS,
    Recording,
    compile_program,
    to_array,
    to_device,
    to_tensor,
    torch_failures,
    torch_fault,
)

if TYPE_CHECKING:
    from tunewright.codegen.cuda.driver import Driver

PROVIDER = "CUDAExecutionProvider"
"""ONNX Runtime's name of what runs models on NVIDIA's GPUs."""

WAITING = "it waits for the device after each run, so what queues one is in its time there"
"""The note on ONNX Runtime: what it has captured is launched and waited for (its `CUDAGraphManager::Replay`)."""


@runtime_checkable
class CudaPeer(Peer, Protocol):
    """A peer on a GPU."""

    @property
    def note(self) -> str:
        """What is to be known of its times on the device, for people, without a full stop; mostly empty."""
        ...

    def device_s(self) -> float:
        """Seconds of a run on the device, from warm caches: the median of some. Raises PeerFailed."""
        ...


CudaOpener = Callable[[Path | bytes, Mapping[str, Any], Mapping[str, int], "Driver"], CudaPeer]
"""Loads a model: its path or bytes, all inputs by label in the model's order, open dimensions by name, the GPU.

Raises PeerFailed.
"""


class OnnxRuntimeCuda:
    """ONNX Runtime on its CUDA provider, with all its optimisations, computing in float32 as the others do (no TF32).

    As a CUDA graph where it takes the whole model to the device, else as it comes.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], dims: Mapping[str, int], driver: Driver) -> None:
        self._runtime = import_silent("onnxruntime")
        self.version: str = self._runtime.__version__
        self.note = WAITING
        self._model, self._dims, self._driver = model, dims, driver
        self._arrays = [np.ascontiguousarray(array) for array in feeds.values()]
        self._faults: tuple[type[Exception], ...] = (
            *exceptions("onnxruntime.capi.onnxruntime_pybind11_state"),
            *FOREIGN_FAULTS,
        )
        try:
            plain = self._open(is_graph=False)
            results = plain.run(None, dict(feeds))
            self._inputs, self._outputs = list(map(self._place, self._arrays)), list(map(self._place, results))
            self._bind(plain, list(feeds))
        except self._faults as error:
            raise PeerFailed(one_line(error)) from error
        try:
            self._bind(self._open(is_graph=True), list(feeds))
            self._queue()
        except self._faults as error:
            self._bind(plain, list(feeds))
            self.note = f"no CUDA graph of it could be made ({one_line(error)}), and {WAITING}"

    def _open(self, *, is_graph: bool) -> Any:
        options = self._runtime.SessionOptions()
        options.log_severity_level = 4
        for name, extent in self._dims.items():
            options.add_free_dimension_override_by_name(name, extent)
        provider = {
            "user_compute_stream": str(self._driver.stream_pointer),
            "enable_cuda_graph": str(int(is_graph)),
            "use_tf32": "0",
        }
        source = self._model if isinstance(self._model, bytes) else str(self._model)
        session = self._runtime.InferenceSession(source, options, providers=[(PROVIDER, provider)])
        if PROVIDER not in session.get_providers():  # it falls back to the processor and says so in its log alone
            raise PeerFailed("its CUDA provider does not load here: it needs the libraries of CUDA and cuDNN")
        return session

    def _place(self, array: Any) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(array, "cuda", self._driver.device.number)

    def _bind(self, session: Any, labels: Sequence[str]) -> None:
        """Have a session run from and to the same memory of the device each time."""
        binding = session.io_binding()
        for label, value in zip(labels, self._inputs, strict=True):
            binding.bind_ortvalue_input(label, value)
        for output, value in zip(session.get_outputs(), self._outputs, strict=True):
            binding.bind_ortvalue_output(output.name, value)
        self._session, self._binding = session, binding

    def _queue(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def run(self) -> list[Any]:
        try:
            for value, array in zip(self._inputs, self._arrays, strict=True):
                value.update_inplace(array)
            self._queue()
            return [value.numpy() for value in self._outputs]
        except self._faults as error:
            raise PeerFailed(one_line(error)) from error

    def device_s(self) -> float:
        """See `CudaPeer`."""
        try:
            return median(self._driver.time(self._queue, RUNS, is_cold=False))
        except self._faults as error:
            raise PeerFailed(one_line(error)) from error


class TorchEagerCuda:
    """PyTorch, each op as it comes, recorded as one CUDA graph. In float32 without TF32, in convolutions too."""

    note = ""

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], dims: Mapping[str, int], driver: Driver) -> None:
        with torch_failures():
            import torch

            from tunewright.graph.onnx_import import load

            from .torch_module import translate

            self.version: str = torch.__version__
            self._torch = torch
            torch.backends.cudnn.allow_tf32 = False
            arrays = [np.ascontiguousarray(array) for array in feeds.values()]
            self._arrays = [to_tensor(torch, array) for array in arrays]
            self._inputs = [to_device(torch, array) for array in arrays]
            program = self._program(translate(load(model, dims)).cuda())
            self._recording = Recording(torch, driver, lambda: program(*self._inputs))

    def _program(self, module: Any) -> Any:
        return module

    def run(self) -> list[Any]:
        with torch_failures():
            for tensor, array in zip(self._inputs, self._arrays, strict=True):
                tensor.copy_(array)
            self._recording.replay()
            return [to_array(self._torch, tensor) for tensor in self._recording.outputs]

    def device_s(self) -> float:
        """See `CudaPeer`."""
        return self._recording.sample_s()


class TorchCompiledCuda(TorchEagerCuda):
    """PyTorch through torch.compile, which tries what there is, for minutes."""

    def _program(self, module: Any) -> Any:
        return compile_program(self._torch, module, mode="max-autotune-no-cudagraphs")


CUDA_PEERS: Mapping[str, CudaOpener] = {
    "onnxruntime": OnnxRuntimeCuda,
    "torch": TorchEagerCuda,
    "torch.compile": TorchCompiledCuda,
}
"""Every peer on a GPU by its name, which is that on a processor."""


def cuda_fault(name: str) -> str:
    """The reason why a peer can't be had on a GPU here, with what to do; empty where it can."""
    if name != "onnxruntime":
        return torch_fault()
    install = "pip install onnxruntime-gpu"
    if find_spec(name) is None:
        return f"{name} is not installed: {install}"
    with suppress(ImportError, OSError):
        if PROVIDER in import_silent(name).get_available_providers():
            return ""
    return f"this {name} has no CUDA provider: {install}"


def check_cuda_peers(names: Sequence[str]) -> None:
    """Raises Refused where a peer is unknown on GPUs, or can't be had here, and says what to do."""
    for name in names:
        if name not in CUDA_PEERS:
            raise Refused(f"no peer on a GPU is called {name!r}; there are {', '.join(CUDA_PEERS)}")
        if fault := cuda_fault(name):
            raise Refused(fault)
