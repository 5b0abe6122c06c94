"""Artifact: a kernel as object code, with everything needed to call it. Light to import: nothing here compiles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .expr.symbolic import Trace, plain_at
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
    """A kernel built for a target.

    `buffers` of a phase are `params`, then `scratch`, each aligned to its elements, then `numbers`.
    """

    objects: tuple[bytes, ...] = field(repr=False)  # relocatable, to be linked to each other and to libm
    sha256: str  # of the objects
    phases: tuple[Phase, ...]
    params: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    packings: Mapping[str, Packing] = field(hash=False)
    numbers: tuple[int, ...] = ()  # read behind the addresses of the buffers, 64 bits each

    def __str__(self) -> str:
        lines = [f"artifact {self.sha256[:12]}, {sum(map(len, self.objects)):,} bytes"]
        lines += [f"  {phase.symbol} x {phase.iterations}" for phase in self.phases]
        lines += [f"  param {buffer}" for buffer in self.params]
        lines += [f"  scratch {buffer}" for buffer in self.scratch]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SymbolicArtifact:
    """A kernel built for all values of the symbols of a trace that leave its outcomes as they are."""

    artifact: Artifact  # with symbolic numbers
    trace: Trace

    def at(self, symbols: Sequence[int]) -> Artifact | None:
        """The artifact at values of the symbols; None where it is not for them."""
        values = self.trace.replay(symbols)
        if values is None:
            return None
        own, numbers = self.artifact, plain_at(values)
        params, scratch = (
            tuple(replace(buffer, shape=tuple(map(numbers, buffer.shape))) for buffer in group)
            for group in (own.params, own.scratch)
        )
        phases = tuple(replace(phase, iterations=numbers(phase.iterations)) for phase in own.phases)
        return replace(own, phases=phases, params=params, scratch=scratch, numbers=tuple(map(numbers, own.numbers)))
