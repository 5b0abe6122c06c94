"""Barriers in shared memory between those who fetch and those who multiply: one for each stage that is filled in turn.

Stages are counted from 0 on, over all tiles of a block: number n fills stage n % stages for the n // stages-th time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.codegen.gpu import WARP
from tunewright.codegen.ir.ir import Block, Buffer, Do, If, Scope, Stmt, Store

from .shared_tile import THREAD, unroll

PHASE = Buffer("phase", (1,), DType.I32, Scope.REGISTER)
"""The register in which a thread names the phase of a barrier."""


@dataclass(frozen=True, slots=True)
class StageBarriers:
    """Stages of one operand, or of several that come together, with two barriers each."""

    name: str
    count: int
    size_bytes: int  # of one
    warps: int  # that read them

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        """The buffers in shared memory: full barriers and empty barriers."""
        full, empty = (Buffer(name, (self.count,), DType.I64, Scope.SHARED) for name in (self._full, self._empty))
        return full, empty

    @property
    def _full(self) -> str:
        return f"{self.name}_full"

    @property
    def _empty(self) -> str:
        return f"{self.name}_empty"

    def begin(self) -> Stmt:
        """Set all barriers up, by one thread."""
        stage = Var("s")
        full, empty = (Load(name, (stage,), DType.I64) for name in (self._full, self._empty))
        body = Block((Do("mbarrier.init.1", (full,), ()), Do(f"mbarrier.init.{self.warps}", (empty,), ())))
        return unroll(body, s=self.count)

    def full(self, number: Expr) -> Load:
        """The barrier that counts the bytes of stage `number`."""
        return Load(self._full, (number % self.count,), DType.I64)

    def fill(self, number: Expr) -> Stmt:
        """Wait until stage `number` is free, and say how many bytes come. For the thread that fetches."""
        expected = Do(f"mbarrier.expect.{self.size_bytes}", (), (self.full(number),))
        empty = Load(self._empty, (number % self.count,), DType.I64)
        # The phase before the first counts as over.
        return Block((Block(wait(empty, number // self.count + 1)), expected))

    def skip(self, number: Expr) -> Stmt:
        """Let stage `number` pass, once it is free, without anything in it. For the thread that fetches."""
        empty = Load(self._empty, (number % self.count,), DType.I64)
        return Block((*wait(empty, number // self.count + 1), Do("mbarrier.arrive", (), (self.full(number),))))

    def await_full(self, number: Expr) -> Stmt:
        """Wait until stage `number` has come."""
        return Block(wait(self.full(number), number // self.count))

    def release(self, number: Expr) -> Stmt:
        """Say that a warp has read stage `number`."""
        arrive = Do("mbarrier.arrive", (), (Load(self._empty, (number % self.count,), DType.I64),))
        return If(op("eq", Var(THREAD) % WARP, 0), arrive)


def wait(barrier: Load, phase: Expr) -> tuple[Stmt, Stmt]:
    """Wait until a phase is over, by its last bit."""
    own = Load(PHASE.name, (const(0),), DType.I32)
    last_bit = Store(PHASE.name, own.index, op("cast", phase % 2, dtype=DType.I32))
    return last_bit, Do("mbarrier.wait", (), (barrier, own))
