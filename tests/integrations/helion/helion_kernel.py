"""A program that runs a kernel of Helion's, interpreted on the processor, after a search among two configs."""

from typing import Any

import helion
import helion.language as hl
import torch
from helion.autotuner import FiniteSearch
from helion.autotuner.remote_cache import RemoteAutotuneCache

CONFIGS = [helion.Config(block_sizes=[64, 128]), helion.Config(block_sizes=[32, 128])]


def search(kernel: Any, arguments: Any, **_: Any) -> Any:
    return RemoteAutotuneCache(FiniteSearch(kernel, arguments, configs=CONFIGS))


@helion.kernel(backend="pallas", static_shapes=True, autotuner_fn=search)  # type: ignore[untyped-decorator]
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


if __name__ == "__main__":
    x = torch.randn(64, 128)
    torch.testing.assert_close(add(x, x), 2 * x)
