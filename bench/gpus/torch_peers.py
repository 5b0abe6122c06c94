"""What PyTorch has for a workload or a model on a GPU: cuBLAS and kernels of its own, and those that it compiles.

Nothing of this has met a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from subprocess import SubprocessError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tunewright.bench.turns import Sample
from tunewright.codegen.cuda.driver import CupyDriver
from tunewright.graph.onnx_import import load
from tunewright.tuner.errors import Refused
from tunewright.tuner.peers import PeerFailed
from tunewright.tuner.peers.peer import FOREIGN_FAULTS, one_line

RUNS, ROUNDS = 20, 15
"""Runs of a sample, which is their median, and samples of each program."""

WARMING = 3
"""Runs before one is recorded: they compile, choose algorithms and take memory."""

COMPILED: Mapping[str, Mapping[str, Any]] = {
    "inductor": {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"},
    "triton": {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"},
}
"""Options of torch.compile, by what is measured."""


class Peers(NamedTuple):
    """Samples of each that runs, by name; of the others, what they say."""

    samples: dict[str, Sample]
    missing: dict[str, str]


@contextmanager
def _failing() -> Iterator[None]:
    """What PyTorch raises, as PeerFailed."""
    try:
        yield
    except FOREIGN_FAULTS as error:
        raise PeerFailed(one_line(error)) from error


def check() -> None:
    """Raises Refused where there is no PyTorch that runs on a GPU."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise Refused(f"PyTorch, to compare with: {one_line(error)}: pip install torch") from error
    if not torch.cuda.is_available():
        raise Refused(f"PyTorch {torch.__version__} finds no GPU: install one that is built for CUDA")


def versions() -> dict[str, str]:
    """Of PyTorch and what it brings along."""
    import torch

    return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


@_failing()
def kernels(kind: str, arrays: Sequence[NDArray[Any]], driver: CupyDriver) -> Peers:
    """Samples of an operation from a cold second-level cache: as it comes, and compiled; and of a copy.

    Raises PeerFailed where it fails as it comes.
    """
    import torch
    from torch.nn import functional

    operations: Mapping[str, Callable[..., Any]] = {
        "product": torch.matmul,
        "product of bytes": torch._int_mm,  # noqa: SLF001 - the only one of PyTorch's own whose sums are int32
        "softmax": lambda x: functional.softmax(x, -1),
        "attention": lambda q, k, v: functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=1.0),
        "layer norm": lambda x, scale: functional.layer_norm(x, scale.shape, scale),
    }
    operation, operands = operations[kind], [_tensor(torch, array) for array in arrays]
    found = Peers({"torch": _sample(torch, driver, lambda: operation(*operands), is_cold=True)}, {})
    for name, options in COMPILED.items():
        compiled = _compiled(torch, operation, options=dict(options))
        _add(found, name, partial(_sample, torch, driver, partial(compiled, *operands), is_cold=True))
    copy = torch.empty_like(operands[0])
    found.samples["copy"] = _sample(torch, driver, lambda: copy.copy_(operands[0]), is_cold=True)
    return found


@_failing()
def models(data: bytes, feeds: Sequence[NDArray[Any]], driver: CupyDriver) -> tuple[list[NDArray[Any]], Peers]:
    """Outputs of a model, and samples of it: op by op, and compiled, each replayed as a graph. Raises as `kernels`."""
    import torch

    from tunewright.tuner.peers.torch_module import translate

    module = translate(load(data, {})).cuda()
    inputs = [_tensor(torch, array) for array in feeds]
    inputs = [one.contiguous(memory_format=torch.channels_last) if one.ndim == 4 else one for one in inputs]
    with torch.no_grad():
        outputs = [one.float().cpu().numpy() for one in module(*inputs)]
    found = Peers({"torch eager": _sample(torch, driver, lambda: module(*inputs), is_cold=False)}, {})
    compiled = _compiled(torch, module, mode="max-autotune-no-cudagraphs")
    _add(found, "torch.compile", partial(_sample, torch, driver, partial(compiled, *inputs), is_cold=False))
    return outputs, found


def _compiled(torch: Any, program: Any, **how: Any) -> Any:
    """A program through torch.compile, which compiles it at its first run.

    What it made before is forgotten: it is kept by code, which programs share, and after some variants
    (`recompile_limit`) they run op by op, as cuBLAS would. Should that happen still, it is an error.
    """
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # noqa: SLF001 - where its documentation has it
    return torch.compile(program, dynamic=False, **how)


def _add(found: Peers, name: str, sample: Callable[[], Sample]) -> None:
    """One more peer, among the missing ones where it can't be compiled."""
    try:
        found.samples[name] = sample()
    except _compiler_faults() as error:
        found.missing[name] = one_line(error)


def _compiler_faults() -> tuple[type[Exception], ...]:
    """What torch.compile raises: it starts other compilers, too, and Triton's errors have a base of their own."""
    known = *FOREIGN_FAULTS, ImportError, OSError, SubprocessError
    try:
        from triton.errors import TritonError
    except ImportError:
        return known
    return *known, TritonError


def _sample(torch: Any, driver: CupyDriver, run: Callable[[], Any], *, is_cold: bool) -> Sample:
    """As one graph on the driver's stream and by its events: all programs are timed alike, and no Python is in it."""
    with torch.no_grad():
        for _ in range(WARMING):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    stream = torch.cuda.ExternalStream(driver.stream_pointer)

    def replay() -> None:
        with _failing(), torch.cuda.stream(stream):
            graph.replay()

    return lambda: median(driver.time(replay, RUNS, is_cold=is_cold))


def _tensor(torch: Any, array: NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()
