"""Programs of PyTorch on a GPU, each recorded as one CUDA graph, so that no Python is timed. Light to import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .runtimes import FOREIGN_FAULTS, PeerFailed, one_line

if TYPE_CHECKING:
    from tunewright.codegen.cuda.driver import Driver

RUNS = 20
"""Runs of a sample, whose median it is."""

WARMING = 3
"""Runs before one is recorded: they compile, choose algorithms and take memory."""

BFLOAT16 = "bfloat16"
"""An element type that PyTorch takes from no array, and gives none of."""


def torch_fault() -> str:
    """The reason why there is no PyTorch that runs on a GPU, with what to do; empty where there is one."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"PyTorch, to compare with: {one_line(error)}: pip install torch"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no GPU: install one that is built for CUDA"
    return ""


def torch_versions() -> Mapping[str, str]:
    """The versions of PyTorch, CUDA and cuDNN."""
    import torch

    return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


def torch_faults() -> tuple[type[Exception], ...]:
    """The exceptions of PyTorch: torch.compile starts other compilers, and Triton's errors have a base of their own."""
    faults = PeerFailed, *FOREIGN_FAULTS, ImportError, OSError, SubprocessError
    try:
        from triton.errors import TritonError
    except ImportError:
        return faults
    return *faults, TritonError


@contextmanager
def torch_failures() -> Iterator[None]:
    """A context that raises PyTorch's exceptions as PeerFailed."""
    try:
        yield
    except torch_faults() as error:
        raise PeerFailed(one_line(error)) from error


def to_device(torch: Any, array: NDArray[Any]) -> Any:
    """A copy of an array in the memory of the GPU. Pictures lie channels last, where its convolutions are fastest."""
    tensor = to_tensor(torch, array).cuda()
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def to_tensor(torch: Any, array: NDArray[Any]) -> Any:
    """The array as a tensor of this machine's memory."""
    if array.dtype.name == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(torch: Any, tensor: Any) -> Any:
    """A tensor of the GPU as an array of this machine, row by row."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(np.dtype(BFLOAT16))
    return tensor.cpu().numpy()


def compile_program(torch: Any, program: Any, **options: Any) -> Any:
    """A program through torch.compile, which compiles it at its first run.

    The cache is emptied: it is keyed by code, which programs share, and after some variants (`recompile_limit`) they
    would run op by op. If that happens still, it is an error.
    """
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # noqa: SLF001 - where its documentation has it
    return torch.compile(program, dynamic=False, **options)


class Recording:
    """A program as a CUDA graph: `outputs` are what it makes, in the same memory each time it is replayed.

    Raises what `torch_faults` lists where it can't be run or recorded.
    """

    def __init__(self, torch: Any, driver: Driver, run: Callable[[], Any]) -> None:
        self._torch, self._driver = torch, driver
        with torch.no_grad():
            for _ in range(WARMING):
                run()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self.outputs = run()
        self._stream = torch.cuda.ExternalStream(driver.stream_pointer)

    def replay(self) -> None:
        """Queue it on PyTorch's current stream."""
        self._graph.replay()

    def sample_s(self, *, is_cold: bool = False) -> float:
        """Seconds of a run on the device: the median of RUNS, each from a cold second-level cache if it says so.

        Raises PeerFailed.
        """
        with torch_failures(), self._torch.cuda.stream(self._stream):  # once, so that it is in no time
            return median(self._driver.time(self._graph.replay, RUNS, is_cold=is_cold))
