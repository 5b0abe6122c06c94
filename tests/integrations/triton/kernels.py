"""A kernel of Triton for tests, in a file of its own: Triton reads the source."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def add(x, BLOCK: tl.constexpr):
    """Adds one to each element."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + 1)
