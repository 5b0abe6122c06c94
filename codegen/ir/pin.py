"""Symbolic kernels: loop IR with symbolic numbers, but for those that code must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index

from ..expr.expr import Expr, Load, Substitution, const, loads, transform
from ..expr.symbolic import Trace, is_symbolic
from .ir import Alloc, Block, Buffer, For, If, Kernel, LoopKind, Stmt, Store, expressions, rewrite, statements


def pin(kernel: Kernel, trace: Trace) -> Kernel:
    """The kernel with plain numbers where code needs them: in local memory, copied loops, and lanes in use.

    They become conditions of the trace, and every number that a condition tells is plain everywhere.
    """
    for stmt in statements(kernel.body):
        match stmt:
            case Alloc(buffer):
                for extent in buffer.shape:
                    index(extent)
            case For(extent=extent, kind=LoopKind.UNROLL):
                index(extent)
        counts = [load.count for load in loads(*expressions(stmt))]
        counts += [stmt.count] if isinstance(stmt, Store) else []
        for count in counts:
            if count is not None:
                index(count)
    for packing in kernel.packings.values():
        for extent in (*packing.padded, *(extent for split in packing.splits for extent in split)):
            index(extent)
    return PlainNumbers(trace, trace.pinned()).kernel(kernel)


@dataclass(frozen=True, slots=True)
class PlainNumbers:
    """Numbers of a trace that are plain."""

    trace: Trace
    values: Mapping[int, int]

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel with these numbers plain everywhere."""
        known = Substitution({self.trace.name(number): const(value) for number, value in self.values.items()})

        def fresh(node: Expr) -> Expr:
            return transform(known(node), self._plain_lanes)

        packings = {
            name: replace(
                packing,
                padded=self.numbers(packing.padded),
                splits=tuple(map(self.numbers, packing.splits)),
            )
            for name, packing in kernel.packings.items()
        }
        params, scratch, words = (
            tuple(map(self.buffer, group)) for group in (kernel.params, kernel.scratch, kernel.words)
        )
        body = self.statement(rewrite(kernel.body, fresh))
        assert isinstance(body, Block)
        return Kernel(params, scratch, body, packings, words)

    def number(self, number: int) -> int:
        known = self.values.get(number.number) if is_symbolic(number) else None
        return number if known is None else known

    def numbers(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(self.number, numbers))

    def buffer(self, buffer: Buffer) -> Buffer:
        return replace(buffer, shape=self.numbers(buffer.shape))

    def statement(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Block(body):
                return Block(tuple(map(self.statement, body)))
            case For(extent=extent, body=inner):
                return replace(stmt, extent=self.number(extent), body=self.statement(inner))
            case Alloc(buffer, inner):
                return Alloc(self.buffer(buffer), self.statement(inner))
            case If(then=then):
                return replace(stmt, then=self.statement(then))
            case Store(count=count) if count is not None:
                return replace(stmt, count=self.number(count))
        return stmt

    def _plain_lanes(self, node: Expr) -> Expr:
        if isinstance(node, Load) and node.count is not None:
            return Load(node.tensor, node.index, node.dtype, self.number(node.count))
        return node
