"""Which stores compute their values side by side, an op of each in turn.

A machine looks ahead some hundred instructions. Of chains of many ops that stand one after the other it sees hardly two
at a time, and waits for each op. With the chains interleaved in the text it always finds one that is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .expr import Expr, Load, Op, loads
from .ir import Prefetch, Stmt, Store

PLAIN = (Store, Prefetch)
"""Statements that stand together; any other is a part of its own."""

REGISTERS = 8
"""Vector registers for each chain: its values, its share of the constants, and what other statements keep."""


def parts(
    body: Sequence[Stmt], is_long: Callable[[Expr], bool], registers: int
) -> Iterator[tuple[list[Stmt], list[Store]]]:
    """A body cut up: each part with its stores of long values, which may all be computed before the part begins.

    Stores and prefetches make parts, any other statement is one. Nothing in a part before such a store writes to what
    its value loads. That buffers may share memory in place doesn't matter: what a name holds is read before the value
    of another name takes its place.
    """
    part: list[Stmt] = []
    ahead: list[Store] = []
    written: set[str] = set()
    plain = True

    def fits(slow: Store) -> bool:
        return len(ahead) < registers // REGISTERS and written.isdisjoint(x.tensor for x in loads(slow.value))

    for stmt in body:
        after, plain = plain, isinstance(stmt, PLAIN)
        slow = stmt if isinstance(stmt, Store) and is_long(stmt.value) else None
        if part and (not (plain and after) or (slow and not fits(slow))):
            yield part, ahead
            part, ahead, written = [], [], set()
        part.append(stmt)
        if slow:
            ahead.append(slow)
        if isinstance(stmt, Store):
            written.add(stmt.tensor)
    yield part, ahead


def in_order(value: Expr) -> list[Expr]:
    """The loads and ops that a value needs in any case, each once, parts before what needs them."""
    done: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        if node in done or not isinstance(node, Op | Load):
            return
        if isinstance(node, Op):
            # Of what stands under a condition that loads nothing, one choice may be all that is ever computed.
            open_choice = node.name == "select" and not loads(node.args[0])
            for arg in node.args[:1] if open_choice else node.args:
                visit(arg)
        done[node] = None

    visit(value)
    return list(done)
