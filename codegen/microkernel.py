"""Microkernels: what runs long inside the loops of a kernel, as a function of its own.

Kernels of one task differ mostly in the loops around the same few tiles. So a tile is written without those loops: it
gets integers instead, in which all is summed up that their variables do to its addresses and conditions. Then it is
the same for all loops, and is compiled once. The name is that of BLIS: Van Zee and van de Geijn, ACM Transactions on
Mathematical Software 41(3), 2015.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .dtype import DType
from .expr import Const, Expr, Load, Op, Var, loads, rebuilt, variables, walk
from .index import NOTHING, Form, build, form
from .ir import Alloc, Block, Buffer, For, If, Prefetch, Scope, Stmt, Store, rewritten, statements

WORTH = 2000
"""Stores, most of them to registers, from which on a call costs nothing: it takes as long as some ten of them."""


@dataclass(frozen=True, slots=True)
class Microkernel:
    """A statement with no variables but its own and `argument(0)`, `argument(1)`, ..., which each call gives values."""

    body: Alloc
    arguments: int
    buffers: tuple[Buffer, ...]  # those that it touches but doesn't allocate


class Call(NamedTuple):
    """A statement as a call of a microkernel. The values depend on loop variables alone."""

    microkernel: Microkernel
    values: tuple[Expr, ...]


def argument(number: int) -> Var:
    """What stands for an integer that a microkernel gets. No loop has such a variable."""
    return Var(f"%{number}")


def called(stmt: Alloc, buffers: Mapping[str, Buffer]) -> Call | None:
    """A statement as a call, where `buffers` are visible; None if it runs too short for one.

    Nor is it one if it needs registers from around it, which a function can't share.
    """
    if stmt.buffer.scope is not Scope.REGISTER or _stores(stmt) < WORTH:
        return None
    inside = list(statements(stmt))
    own = {part.buffer.name for part in inside if isinstance(part, Alloc)}
    touched = _touched(inside) - own
    around = tuple([buffer for name, buffer in buffers.items() if name in touched])
    if any(buffer.scope is Scope.REGISTER for buffer in around):
        return None
    arguments = _Arguments(frozenset(part.var for part in inside if isinstance(part, For)))
    body = rewritten(stmt, arguments)
    assert isinstance(body, Alloc)
    return Call(Microkernel(body, len(arguments.values), around), tuple(arguments.values))


def _stores(stmt: Stmt) -> int:
    """How many are executed, if all conditions hold."""
    match stmt:
        case Block(body):
            return sum(map(_stores, body))
        case For(extent=extent, body=inner):
            return extent * _stores(inner)
        case Alloc(body=inner) | If(then=inner):
            return _stores(inner)
    return int(isinstance(stmt, Store))


def _touched(inside: list[Stmt]) -> set[str]:
    """Names of the buffers that statements read, write or ask for."""
    found: set[str] = set()
    for part in inside:
        match part:
            case Store(tensor, index, value):
                found |= {tensor, *(x.tensor for x in loads(*index, value))}
            case Prefetch(tensor, index):
                found |= {tensor, *(x.tensor for x in loads(*index))}
            case If(condition):
                found |= {x.tensor for x in loads(condition)}
    return found


class _Arguments:
    """Rewrites expressions: each sum of multiples of what is known before the call becomes one argument.

    Sums that differ by a constant alone share one, so that neighbours are told apart inside.
    """

    def __init__(self, own: frozenset[str]) -> None:
        self.values: list[Expr] = []  # of the arguments
        self._own = own
        self._known: dict[frozenset[tuple[Expr, int]], tuple[Var, int]] = {}  # argument, and the constant in it
        self._done: dict[Expr, Expr] = {}

    def __call__(self, node: Expr) -> Expr:
        found = self._done.get(node)
        if found is None:
            found = self._done[node] = self._rewritten(node)
        return found

    def _rewritten(self, node: Expr) -> Expr:
        if variables(node) <= self._own:
            return node
        if node.dtype is not DType.I64:
            return self._inside(node)
        total = form(node)
        inside, outside = Form({}, total.constant), NOTHING
        for atom, scale in total.terms.items():
            if self._is_known(atom):
                outside = outside.plus(Form({atom: 1}, 0), scale)
            else:
                inside = inside.plus(form(self._inside(atom)), scale)
        if not outside.terms:
            return build(inside)
        key = frozenset(outside.terms.items())
        if key not in self._known:
            self._known[key] = argument(len(self.values)), total.constant
            self.values.append(build(outside.plus(Form({}, total.constant))))
        given, constant = self._known[key]
        return build(Form({given: 1}, -constant).plus(inside))

    def _inside(self, node: Expr) -> Expr:
        return rebuilt(node, tuple(map(self, node.children)))

    def _is_known(self, atom: Expr) -> bool:
        """Whether it can be computed before the call: a division by what may be zero stands under a condition."""
        return atom.lanes == 1 and self._own.isdisjoint(variables(atom)) and not any(map(_is_bound, walk(atom)))


def _is_bound(node: Expr) -> bool:
    """Whether it has to stay where it is: it reads memory, or may divide by zero."""
    match node:
        case Load():
            return True
        case Op("div" | "floordiv" | "mod", (_, divisor), dtype) if not dtype.is_float:
            return not (isinstance(divisor, Const) and divisor.value)
    return False
