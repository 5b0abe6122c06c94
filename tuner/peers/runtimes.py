"""Peer: a runtime with a model loaded; ONNX Runtime, OpenVINO, PyTorch and TVM as peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..errors import Refused
from ..foreign import exceptions, import_silent
from ..session.maps import fed_inputs


class PeerFailed(Exception):
    """A peer can't read or run the model: what it said, on one line."""


FOREIGN_FAULTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""Exceptions of a runtime written in Python on what it doesn't support."""


class Peer(Protocol):
    """A runtime with a model loaded and compiled."""

    @property
    def version(self) -> str: ...

    def run(self) -> list[Any]:
        """The model's outputs, in its order, for the inputs given when it was opened. Raises PeerFailed."""
        ...


Opener = Callable[[Path | bytes, Mapping[str, Any], int, Mapping[str, int]], Peer]
"""Loads a model: its path or bytes, all inputs by label in the model's order, threads, open dimensions by name."""


def one_line(error: Exception) -> str:
    """The message of an error, cut to a line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class OnnxRuntime:
    """ONNX Runtime on the CPU, with all its graph optimisations or none of them."""

    def __init__(
        self,
        model: Path | bytes,
        feeds: Mapping[str, Any],
        threads: int,
        dims: Mapping[str, int],
        *,
        is_optimised: bool = True,
    ) -> None:
        onnxruntime = import_silent("onnxruntime")
        self.version: str = onnxruntime.__version__
        self._feeds = dict(feeds)
        self._errors = exceptions("onnxruntime.capi.onnxruntime_pybind11_state")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if not is_optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for name, extent in dims.items():
            options.add_free_dimension_override_by_name(name, extent)
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except self._errors as error:
            raise PeerFailed(one_line(error)) from error
        if any(argument.type.startswith("map(") for argument in self._session.get_inputs()):
            self._feeds = fed_inputs(model, feeds)

    def run(self) -> list[Any]:
        try:
            return list(self._session.run(None, self._feeds))
        except self._errors as error:
            raise PeerFailed(one_line(error)) from error


class OpenVino:
    """OpenVINO on the CPU, tuned for latency, computing in float32 as the others do."""

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        openvino = import_silent("openvino")
        self.version: str = openvino.__version__.partition("-")[0]
        core = openvino.Core()
        # Without the precision hint it computes in bfloat16 where the processor can.
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        try:
            read = core.read_model(model if isinstance(model, bytes) else str(model))
            shapes = {
                port: openvino.PartialShape(list(a.shape)) for port, a in zip(read.inputs, feeds.values(), strict=True)
            }
            if shapes:
                read.reshape(shapes)
            self._request = core.compile_model(read, "CPU", options).create_infer_request()
        except RuntimeError as error:
            raise PeerFailed(one_line(error)) from error
        self._feeds = list(feeds.values())

    def run(self) -> list[Any]:
        try:
            results = self._request.infer(self._feeds, share_inputs=True)
        except RuntimeError as error:
            raise PeerFailed(one_line(error)) from error
        return list(results.values())


class TorchEager:
    """PyTorch, each op as it comes. Pictures and their weights lie channels last, where its convolutions are fastest.

    The number of threads is one of the process: all models that PyTorch runs in it share the last one set.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        import torch

        from tunewright.graph.onnx_import import ModelError, load

        from .torch_module import translate

        self.version: str = torch.__version__
        self._torch = torch
        torch.set_num_threads(threads)
        try:
            self._module: Any = translate(load(model, dims))
        except (ModelError, *FOREIGN_FAULTS) as error:
            raise PeerFailed(one_line(error)) from error
        self._inputs = [_channels_last(torch, torch.from_numpy(array)) for array in feeds.values()]

    def run(self) -> list[Any]:
        try:
            with self._torch.no_grad():
                return [result.numpy() for result in self._module(*self._inputs)]
        except FOREIGN_FAULTS as error:
            raise PeerFailed(one_line(error)) from error


class TorchCompiled(TorchEager):
    """PyTorch through torch.compile, with the weights frozen so that it packs them. It compiles when it is opened.

    It needs a C++ compiler on the machine.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        super().__init__(model, feeds, threads, dims)
        from torch._inductor import config

        # What an earlier model left would count against this one: after some variants it gives up compiling.
        self._torch.compiler.reset()
        self._module = self._torch.compile(self._module, dynamic=False)
        with config.patch(freezing=True):  # as an option of torch.compile it comes too late to treat weights as known
            self.run()


def _channels_last(torch: Any, array: Any) -> Any:
    return array.contiguous(memory_format=torch.channels_last) if array.ndim == 4 else array


ALL_PERFORMANCE_CORES = 1
"""The mode of TVM's thread pool that uses all performance cores."""


class Tvm:
    """TVM, compiled for this processor by its default pipeline, without any search: tuning it takes hours.

    The number of threads is one of the process: all models that TVM runs in it share the last one set.
    """

    def __init__(self, model: Path | bytes, feeds: Mapping[str, Any], threads: int, dims: Mapping[str, int]) -> None:
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        from tunewright.codegen.host import detect
        from tunewright.graph.onnx_import import ModelError, read_model

        self.version: str = tvm.__version__
        shapes = {label: list(array.shape) for label, array in feeds.items()}
        target = tvm.target.Target({"kind": "llvm", "mcpu": detect().cpu, "num-cores": threads})
        try:
            tvm.get_global_func("runtime.config_threadpool")(ALL_PERFORMANCE_CORES, threads)
            module = from_onnx(read_model(model)[0], shape_dict=shapes, keep_params_in_input=False)
            self._machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
            self._inputs = [tvm.runtime.tensor(array) for array in feeds.values()]
        except (ModelError, *FOREIGN_FAULTS) as error:
            raise PeerFailed(one_line(error)) from error

    def run(self) -> list[Any]:
        try:
            result = self._machine["main"](*self._inputs)
            return [value.numpy() for value in ([result] if hasattr(result, "numpy") else result)]
        except FOREIGN_FAULTS as error:
            raise PeerFailed(one_line(error)) from error


PEERS: Mapping[str, Opener] = {
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "torch": TorchEager,
    "torch.compile": TorchCompiled,
    "tvm": Tvm,
}
"""Every peer by its name, which begins with that of its module."""

ASKED_FOR = frozenset({"torch", "torch.compile", "tvm"})
"""Measured by `tunewright bench` only where they are named: they are slow, or compile for a minute."""

_BENCH = "'tunewright[bench]'"
_PACKAGES = {"torch": "'tunewright[torch]'", "tvm": "apache-tvm"}


def module_of(name: str) -> str:
    """The module of a peer."""
    return name.partition(".")[0]


def is_installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return find_spec(module_of(name)) is not None


def how_to_install(name: str) -> str:
    """The command that installs a peer."""
    return f"pip install {_PACKAGES.get(module_of(name), _BENCH)}"


def check_peers(names: Sequence[str]) -> None:
    """Raises Refused where a peer is unknown or not installed, and says what to do."""
    for name in names:
        if name not in PEERS:
            raise Refused(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
        if not is_installed(name):
            raise Refused(f"{module_of(name)} is not installed: {how_to_install(name)}")
