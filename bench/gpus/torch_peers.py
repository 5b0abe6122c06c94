"""PyTorch on a GPU as a peer for kernels and models: its libraries, its own kernels, and those that it compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tunewright.bench.rivals.gpu_tuners import INDUCTOR_OPTIONS
from tunewright.bench.turns import Sample
from tunewright.codegen.cuda.driver import Driver
from tunewright.tuner.errors import Refused
from tunewright.tuner.peers.cuda_runtimes import TorchCompiledCuda, TorchEagerCuda
from tunewright.tuner.peers.runtimes import PeerFailed, one_line
from tunewright.tuner.peers.torch_cuda import (
    RUNS,
    Recording,
    compile_program,
    to_device,
    torch_failures,
    torch_fault,
    torch_faults,
)

from . import cublaslt
from .compile_ahead import compile_ahead

ROUNDS = 15
"""Samples of each program."""

COMPILE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "inductor": INDUCTOR_OPTIONS,
    "triton": {**INDUCTOR_OPTIONS, "max_autotune_gemm_backends": "TRITON"},
}
"""Options of torch.compile, by the name of the peer."""

PRODUCTS = ("product", "product of bytes")
"""Kinds of operations that cuBLASLt has too."""

CUBLASLT = "cublaslt"

MOST_ERROR = 0.02
"""The largest error of an output of cuBLASLt, relative to the largest magnitude of PyTorch's."""


class Peers(NamedTuple):
    """By name: samples of the peers that run, the messages of those that don't, and how many algorithms were timed."""

    samples: dict[str, Sample]
    missing: dict[str, str]
    algorithms: dict[str, int]


def check() -> None:
    """Raises Refused where there is no PyTorch that runs on a GPU."""
    if fault := torch_fault():
        raise Refused(fault)


@torch_failures()
def kernels(kind: str, arrays: Sequence[NDArray[Any]], driver: Driver, *, compiles: bool = False) -> Peers:
    """Samples of an operation from a cold second-level cache: eager, compiled if `compiles`, and of a copy.

    Of a product also by cuBLASLt's fastest algorithm, see `cublaslt`; of attention also by cuDNN.

    Raises PeerFailed where the eager operation fails.
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
    operation, operands = operations[kind], [to_device(torch, array) for array in arrays]
    peers = Peers({"torch": _sample(torch, driver, lambda: operation(*operands))}, {}, {})
    if kind in PRODUCTS:
        _add(peers, CUBLASLT, partial(_product, driver, operands, operation(*operands), peers.algorithms))
    if kind == "attention":
        _add(peers, "cudnn", partial(_sample, torch, driver, partial(_run_cudnn, operation, operands)))
    for name, options in COMPILE_OPTIONS.items() if compiles else ():
        compiled = compile_program(torch, operation, options=dict(options))
        _add(peers, name, partial(_sample, torch, driver, partial(compiled, *operands)))
    copy = torch.empty_like(operands[0])
    peers.samples["copy"] = _sample(torch, driver, lambda: copy.copy_(operands[0]))
    return peers


def _run_cudnn(operation: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """PyTorch's attention by cuDNN's kernel. Raises RuntimeError where there is none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return operation(*operands)


def models(data: bytes, feeds: Mapping[str, NDArray[Any]], driver: Driver) -> tuple[list[NDArray[Any]], Peers]:
    """Outputs of a model, and samples of it, eager and compiled, each replayed as a graph. Raises as `kernels`."""
    eager = TorchEagerCuda(data, feeds, {}, driver)
    peers = Peers({"torch eager": eager.device_s}, {}, {})
    _add(peers, "torch.compile", partial(_compiled, data, feeds, driver))
    return eager.run(), peers


def _compiled(data: bytes, feeds: Mapping[str, NDArray[Any]], driver: Driver) -> Sample:
    """A sample of a compiled model. Raises PeerFailed, also where it takes too long to be compiled."""
    compile_ahead(data, feeds)
    return TorchCompiledCuda(data, feeds, {}, driver).device_s


def _add(peers: Peers, name: str, sample: Callable[[], Sample]) -> None:
    """Add a peer, to `missing` if it can't be compiled or fails."""
    try:
        peers.samples[name] = sample()
    except torch_faults() as error:
        peers.missing[name] = one_line(error)


def _sample(torch: Any, driver: Driver, run: Callable[[], Any]) -> Sample:
    """A sample of a program as one graph, from a cold second-level cache."""
    return partial(Recording(torch, driver, run).sample_s, is_cold=True)


def _product(driver: Driver, operands: Sequence[Any], expected: Any, algorithms: dict[str, int]) -> Sample:
    """A sample of cuBLASLt, as a recorded graph. Raises PeerFailed, also where its output is wrong."""
    left, right = operands
    is_of_bytes = str(left.dtype).endswith("int8")
    if is_of_bytes:
        right = right.t().contiguous()
    product = cublaslt.product(left, right, driver, is_right_transposed=is_of_bytes)
    driver.time(product.run, 1)
    error = float((product.output.float() - expected.float()).abs().max() / expected.float().abs().max())
    if not error <= MOST_ERROR:
        raise PeerFailed(f"the output is off by {error:.3g} of the largest magnitude; {MOST_ERROR} is tolerated")
    algorithms[CUBLASLT] = product.algorithms
    run = driver.capture(product.run)
    return lambda: median(driver.time(run, RUNS))
