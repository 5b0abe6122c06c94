"""What PyTorch has for a workload or a model on a GPU: cuBLAS and kernels of its own, and those that it compiles.

Nothing of this has met a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.bench.turns import Sample
from tunewright.codegen.cuda.driver import CupyDriver
from tunewright.graph.onnx_import import load

RUNS, ROUNDS = 20, 15
"""Runs of a sample, which is their median, and samples of each program."""

WARMING = 3
"""Runs before one is recorded: they compile, choose algorithms and take memory."""

COMPILED: Mapping[str, Mapping[str, Any]] = {
    "inductor": {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"},
    "triton": {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"},
}
"""Options of torch.compile, by what is measured."""


def versions() -> dict[str, str]:
    """Of PyTorch and what it brings along."""
    import torch

    return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


def kernels(kind: str, arrays: Sequence[NDArray[Any]], driver: CupyDriver) -> dict[str, Sample]:
    """By name, samples of an operation from a cold second-level cache: as it comes, and compiled; and of a copy."""
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
    found = {"torch": _sample(torch, driver, lambda: operation(*operands), is_cold=True)}
    for name, options in COMPILED.items():
        compiled = torch.compile(operation, dynamic=False, options=dict(options))
        found[name] = _sample(torch, driver, partial(compiled, *operands), is_cold=True)
    copy = torch.empty_like(operands[0])
    found["copy"] = _sample(torch, driver, lambda: copy.copy_(operands[0]), is_cold=True)
    return found


def models(
    data: bytes, feeds: Sequence[NDArray[Any]], driver: CupyDriver
) -> tuple[list[NDArray[Any]], dict[str, Sample]]:
    """Outputs of a model, and by name samples of it: op by op, and compiled, each replayed as a graph."""
    import torch

    from tunewright.tuner.peers.torch_module import translate

    module = translate(load(data, {})).cuda()
    inputs = [_tensor(torch, array) for array in feeds]
    inputs = [one.contiguous(memory_format=torch.channels_last) if one.ndim == 4 else one for one in inputs]
    compiled = torch.compile(module, mode="max-autotune-no-cudagraphs", dynamic=False)
    with torch.no_grad():
        outputs = [one.float().cpu().numpy() for one in module(*inputs)]
    return outputs, {
        "torch eager": _sample(torch, driver, lambda: module(*inputs), is_cold=False),
        "torch.compile": _sample(torch, driver, lambda: compiled(*inputs), is_cold=False),
    }


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
        with torch.cuda.stream(stream):
            graph.replay()

    return lambda: median(driver.time(replay, RUNS, is_cold=is_cold))


def _tensor(torch: Any, array: NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()
