"""Tuners of products on a GPU, served: how many candidates each tries, and in what time.

Triton's autotuner times a list of configurations, PyTorch's compiler its templates beside NVIDIA's libraries, Helion
searches. Each call has empty caches where a folder of its own is given for them, and compiles on all cores it may use.
What a tuner imports, and the first use of the device, are in no time. Runs in an environment that has PyTorch, Triton
and, for its own, Helion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

from tunewright.bench.rivals.serving import Call, Tell, serve

Candidates = tuple[int, float | None]
"""The number of candidates that were timed, and the seconds of the fastest one as its tuner timed it."""


INDUCTOR_OPTIONS: Mapping[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
"""Options of torch.compile with which it tunes products."""


class Product(NamedTuple):
    """Operands of a product in float16, in the memory of the device."""

    left: Any
    right: Any


def tune_by_triton(operands: Product, limit_s: float) -> Callable[[], Candidates]:
    """Triton's autotuner. It has no limit."""
    import torch
    import triton

    from tunewright.bench.rivals import triton_product

    tuner = triton.autotune(triton_product.configurations(), key=["ROWS", "DEPTH", "COLUMNS"])(triton_product.product)
    (rows, depth), (_, columns) = operands.left.shape, operands.right.shape
    output = torch.empty(rows, columns, dtype=torch.float16, device="cuda")

    def grid(chosen: Any) -> tuple[int]:
        return (rows // chosen["TILE_ROWS"] * (columns // chosen["TILE_COLUMNS"]),)

    def tune() -> Candidates:
        tuner[grid](*operands, output, rows, depth, columns)
        times_ms = [times[0] if isinstance(times, list) else times for times in tuner.configs_timings.values()]
        return len(times_ms), min(times_ms) / 1e3

    return tune


def tune_by_inductor(operands: Product, limit_s: float) -> Callable[[], Candidates]:
    """PyTorch's compiler, as it tunes products. It has no limit."""
    import torch
    from torch._inductor import select_algorithm

    times_ms: list[float] = []
    select_algorithm.add_feedback_saver(lambda timings, *_: times_ms.extend(timings.values()))
    compiled = torch.compile(torch.matmul, dynamic=False, options=dict(INDUCTOR_OPTIONS))

    def tune() -> Candidates:
        compiled(*operands)
        return len(times_ms), min(times_ms) / 1e3 if times_ms else None

    return tune


def tune_by_helion(effort: str) -> Callable[[Product, float], Callable[[], Candidates]]:
    """Helion's search with an effort. It begins no new round after the limit."""

    def prepare(operands: Product, limit_s: float) -> Callable[[], Candidates]:
        import helion
        from helion.autotuner.metrics import register_post_autotune_hook

        from tunewright.bench.rivals.helion_product import product

        searches: list[Any] = []
        register_post_autotune_hook(searches.append)
        kernel = helion.kernel(
            product, static_shapes=True, autotune_effort=effort, autotune_budget_seconds=int(limit_s)
        )

        def tune() -> Candidates:
            kernel(*operands)
            return sum(search.num_configs_tested for search in searches), searches[-1].best_perf_ms / 1e3

        return tune

    return prepare


TUNERS = {
    "triton": (tune_by_triton, ("triton",)),
    "inductor": (tune_by_inductor, ("torch", "triton")),
    "helion quick": (tune_by_helion("quick"), ("helion", "triton")),
    "helion full": (tune_by_helion("full"), ("helion", "triton")),
}
"""How each is prepared, and the packages whose versions are told."""


def tune(tell: Tell, tuner: str, rows: int, depth: int, columns: int, limit_s: float) -> dict[str, Any]:
    """Tune a product for the first time in this process."""
    import torch

    prepare, packages = TUNERS[tuner]
    operands = Product(
        torch.randn(rows, depth, dtype=torch.float16, device="cuda"),
        torch.randn(depth, columns, dtype=torch.float16, device="cuda"),
    )
    run = prepare(operands, limit_s)
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    candidates, best_s = run()
    torch.cuda.synchronize()
    return {
        "candidates": candidates,
        "time_s": time.perf_counter() - start_s,
        "best_s": best_s,
        "versions": {package: version(package) for package in packages},
    }


CALLS: dict[str, Call] = {"tune": tune}

if __name__ == "__main__":
    serve(CALLS)
