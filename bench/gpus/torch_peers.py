"""PyTorch on a GPU as a peer for kernels and models: its libraries, its own kernels, and those that it compiles."""

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
from tunewright.codegen.cuda.driver import Driver
from tunewright.graph.onnx_import import load
from tunewright.tuner.errors import Refused
from tunewright.tuner.peers.runtimes import FOREIGN_FAULTS, PeerFailed, one_line

from . import cublaslt

RUNS, ROUNDS = 20, 15
"""Runs of a sample, whose median it is, and samples of each program."""

WARMING = 3
"""Runs before one is recorded: they compile, choose algorithms and take memory."""

COMPILE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "inductor": {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"},
    "triton": {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"},
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


@contextmanager
def _peer_failures() -> Iterator[None]:
    """Raise PyTorch's exceptions as PeerFailed."""
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
    """The versions of PyTorch, CUDA and cuDNN."""
    import torch

    return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}


@_peer_failures()
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
    operation, operands = operations[kind], [_tensor(torch, array) for array in arrays]
    peers = Peers({"torch": _sample(torch, driver, lambda: operation(*operands), is_cold=True)}, {}, {})
    if kind in PRODUCTS:
        _add(peers, CUBLASLT, partial(_product, driver, operands, operation(*operands), peers.algorithms))
    if kind == "attention":
        _add(peers, "cudnn", partial(_sample, torch, driver, partial(_run_cudnn, operation, operands), is_cold=True))
    for name, options in COMPILE_OPTIONS.items() if compiles else ():
        compiled = _compile(torch, operation, options=dict(options))
        _add(peers, name, partial(_sample, torch, driver, partial(compiled, *operands), is_cold=True))
    copy = torch.empty_like(operands[0])
    peers.samples["copy"] = _sample(torch, driver, lambda: copy.copy_(operands[0]), is_cold=True)
    return peers


def _run_cudnn(operation: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """PyTorch's attention by cuDNN's kernel. Raises RuntimeError where there is none."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return operation(*operands)


@_peer_failures()
def models(data: bytes, feeds: Sequence[NDArray[Any]], driver: Driver) -> tuple[list[NDArray[Any]], Peers]:
    """Outputs of a model, and samples of it, eager and compiled, each replayed as a graph. Raises as `kernels`."""
    import torch

    from tunewright.tuner.peers.torch_module import translate

    module = translate(load(data, {})).cuda()
    inputs = [_tensor(torch, array) for array in feeds]
    inputs = [tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor for tensor in inputs]
    with torch.no_grad():
        outputs = [tensor.float().cpu().numpy() for tensor in module(*inputs)]
    peers = Peers({"torch eager": _sample(torch, driver, lambda: module(*inputs), is_cold=False)}, {}, {})
    compiled = _compile(torch, module, mode="max-autotune-no-cudagraphs")
    _add(peers, "torch.compile", partial(_sample, torch, driver, partial(compiled, *inputs), is_cold=False))
    return outputs, peers


def _compile(torch: Any, program: Any, **options: Any) -> Any:
    """A program through torch.compile, which compiles it at its first run.

    The cache is emptied: it is keyed by code, which programs share, and after some variants (`recompile_limit`) they
    would run op by op. If that happens still, it is an error.
    """
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # noqa: SLF001 - where its documentation has it
    return torch.compile(program, dynamic=False, **options)


def _add(peers: Peers, name: str, sample: Callable[[], Sample]) -> None:
    """Add a peer, to `missing` if it can't be compiled or fails."""
    try:
        peers.samples[name] = sample()
    except _peer_faults() as error:
        peers.missing[name] = one_line(error)


def _peer_faults() -> tuple[type[Exception], ...]:
    """The exceptions of a peer: torch.compile starts other compilers, and Triton's errors have a base of their own."""
    faults = PeerFailed, *FOREIGN_FAULTS, ImportError, OSError, SubprocessError
    try:
        from triton.errors import TritonError
    except ImportError:
        return faults
    return *faults, TritonError


def _sample(torch: Any, driver: Driver, run: Callable[[], Any], *, is_cold: bool) -> Sample:
    """A sample of a program as one graph on the driver's stream, so that no Python is timed."""
    with torch.no_grad():
        for _ in range(WARMING):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    stream = torch.cuda.ExternalStream(driver.stream_pointer)

    def replay() -> None:
        with _peer_failures(), torch.cuda.stream(stream):
            graph.replay()

    return lambda: median(driver.time(replay, RUNS, is_cold=is_cold))


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


def _tensor(torch: Any, array: NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()
