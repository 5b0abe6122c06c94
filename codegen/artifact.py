"""Artifact: a kernel as object code, with everything needed to call it. Light to import: nothing here compiles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .ir.ir import Buffer, Packing


@dataclass(frozen=True, slots=True)
class Phase:
    """One function `void symbol(const void *const *buffers, int64_t begin, int64_t end)`.

    The threads share 0 .. iterations - 1 between them, and all have returned before the next phase starts. A phase
    of one iteration must be called once.
    """

    symbol: str
    iterations: int


def objects_sha256(objects: Iterable[bytes]) -> str:
    """The digest of objects, one behind the other."""
    return hashlib.sha256(b"".join(objects)).hexdigest()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A kernel built for a target. `buffers` of a phase are `params`, then `scratch`, each aligned to its elements."""

    objects: tuple[bytes, ...] = field(repr=False)  # relocatable, to be linked to each other and to libm
    sha256: str  # of the objects
    phases: tuple[Phase, ...]
    params: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    packings: Mapping[str, Packing] = field(hash=False)

    def __str__(self) -> str:
        lines = [f"artifact {self.sha256[:12]}, {sum(map(len, self.objects)):,} bytes"]
        lines += [f"  {phase.symbol} x {phase.iterations}" for phase in self.phases]
        lines += [f"  param {buffer}" for buffer in self.params]
        lines += [f"  scratch {buffer}" for buffer in self.scratch]
        return "\n".join(lines)
