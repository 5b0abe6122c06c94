"""Artifact: a kernel as object code, with all that it takes to call it. Light to import: nothing here compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .ir import Buffer, Packing


@dataclass(frozen=True, slots=True)
class Phase:
    """One function `void symbol(const void *const *buffers, int64_t begin, int64_t end)`.

    The threads share 0 .. iterations - 1 between them, and all have returned before the next phase starts. A phase
    of one iteration must be called once.
    """

    symbol: str
    iterations: int


@dataclass(frozen=True, slots=True)
class Artifact:
    """A kernel built for a target. `buffers` of a phase are `params`, then `scratch`, each aligned to its elements."""

    object_code: bytes = field(repr=False)  # relocatable, with no reference to other objects but libm's
    sha256: str  # of the object code
    phases: tuple[Phase, ...]
    params: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    packings: Mapping[str, Packing] = field(hash=False)

    def __str__(self) -> str:
        lines = [f"artifact {self.sha256[:12]}, {len(self.object_code):,} bytes"]
        lines += [f"  {phase.symbol} x {phase.iterations}" for phase in self.phases]
        lines += [f"  param {buffer}" for buffer in self.params]
        lines += [f"  scratch {buffer}" for buffer in self.scratch]
        return "\n".join(lines)
