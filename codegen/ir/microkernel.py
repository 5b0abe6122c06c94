"""Microkernels: statements that run long inside the loops of a kernel, as functions of their own.

Kernels of one task differ mostly in the loops around the same few tiles. So a tile is written without those loops.
Instead it has integer parameters: the sums by which the variables of the loops enter its addresses and conditions.
Kernels whose tiles need the same integers share one, which is compiled once. The name is that of BLIS: Van Zee and van
de Geijn, ACM Transactions on Mathematical Software 41(3), 2015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from ..expr.dtype import DType
from ..expr.expr import Expr, Load, Var, loads, rebuild, variables
from ..expr.index import NOTHING, Form, build, form
from ..expr.symbolic import is_symbolic
from .ir import Alloc, Block, Buffer, For, If, Scope, Stmt, Store, accessed_buffers, expressions, rewrite, statements

MIN_STORES = 2000
"""Least stores, most of them to registers, of a statement that becomes a microkernel: a call takes as long as some ten,
so half a percent at most. Kernels of 43 operators took 0.997 times as long with microkernels as without, in the
geometric mean, on one core of a Xeon with AVX-512.
"""


@dataclass(frozen=True, slots=True)
class Microkernel:
    """A statement with no variables but its own and `integer(0)`, `integer(1)`, ..., which each call gives values."""

    body: Alloc
    integers: int
    buffers: tuple[Buffer, ...]  # buffers that it touches but doesn't allocate


class Call(NamedTuple):
    """A statement as a call of a microkernel. The integers depend on loop variables alone."""

    microkernel: Microkernel
    integers: tuple[Expr, ...]


def integer(number: int) -> Var:
    """The variable of an integer parameter of a microkernel. No loop has such a variable."""
    return Var(f"%{number}")


def extract_call(stmt: Alloc, buffers: Mapping[str, Buffer]) -> Call | None:
    """A statement as a call, where `buffers` are visible; None if it runs too short for one.

    Also None where it uses registers of the surrounding code, which a function can't share, or where an outer variable
    selects a register.
    """
    if stmt.buffer.scope is not Scope.REGISTER or _stores(stmt) < MIN_STORES:
        return None
    inside = list(statements(stmt))
    own = {part.buffer.name: part.buffer for part in inside if isinstance(part, Alloc)}
    names = accessed_buffers(stmt) - own.keys()
    outer = tuple([_as_seen(buffer) for name, buffer in buffers.items() if name in names])
    loops = frozenset(part.var for part in inside if isinstance(part, For))
    extents = [part.extent for part in inside if isinstance(part, For)]
    if any(is_symbolic(number) for number in chain(extents, *(buffer.shape for buffer in outer))):
        return None  # a microkernel has no such numbers but in its integers
    if any(buffer.scope is Scope.REGISTER for buffer in outer) or not _register_variables(inside, own) <= loops:
        return None
    integers = _Integers(loops)
    body = rewrite(stmt, integers)
    assert isinstance(body, Alloc)
    return Call(Microkernel(body, len(integers.values), outer), tuple(integers.values))


def _as_seen(buffer: Buffer) -> Buffer:
    """A buffer without its first extent, where that is symbolic: no address depends on it."""
    is_open = bool(buffer.shape) and is_symbolic(buffer.shape[0])
    return replace(buffer, shape=(1, *buffer.shape[1:])) if is_open else buffer


def _stores(stmt: Stmt) -> int:
    """Stores that are executed if all conditions hold."""
    match stmt:
        case Block(body):
            return sum(map(_stores, body))
        case For(extent=extent, body=inner):
            return extent * _stores(inner)
        case Alloc(body=inner) | If(then=inner):
            return _stores(inner)
    return int(isinstance(stmt, Store))


def _register_variables(inside: Sequence[Stmt], own: Mapping[str, Buffer]) -> frozenset[str]:
    """The variables in indices of registers."""
    stores = [part for part in inside if isinstance(part, Store)]
    accesses: list[Store | Load] = [*stores, *loads(*(root for part in inside for root in expressions(part)))]
    registers = [access for access in accesses if access.tensor in own and own[access.tensor].scope is Scope.REGISTER]
    return frozenset().union(*(variables(at) for access in registers for at in access.index))


class _Integers:
    """Rewrites expressions: each sum of multiples of values known before the call becomes one integer parameter.

    Sums that differ by a constant alone share one.
    """

    def __init__(self, own: frozenset[str]) -> None:
        self.values: list[Expr] = []
        self._own = own
        self._parameters: dict[frozenset[tuple[Expr, int]], tuple[Var, int]] = {}  # integer, and the constant in it
        self._done: dict[Expr, Expr] = {}

    def __call__(self, node: Expr) -> Expr:
        result = self._done.get(node)
        if result is None:
            result = self._done[node] = self._rewrite(node)
        return result

    def _rewrite(self, node: Expr) -> Expr:
        if variables(node) <= self._own:
            return node
        # Sums of data may pass 64 bits on their way, which a form doesn't.
        if node.dtype is not DType.I64 or loads(node):
            return self._inside(node)
        total = form(node)
        inside, outside = Form({}, total.constant), NOTHING
        for atom, scale in total.terms.items():
            if atom.lanes == 1 and self._own.isdisjoint(variables(atom)):  # can be computed before the call
                outside = outside.plus(Form({atom: 1}, 0), scale)
            else:
                inside = inside.plus(form(self._inside(atom)), scale)
        fresh = self._sum(inside, outside)
        return fresh if fresh.lanes == node.lanes else self._inside(node)  # lanes that are all alike may cancel

    def _sum(self, inside: Form, outside: Form) -> Expr:
        if not outside.terms:
            return build(inside)
        key = frozenset(outside.terms.items())
        if key not in self._parameters:
            self._parameters[key] = integer(len(self.values)), inside.constant
            self.values.append(build(outside.plus(Form({}, inside.constant))))
        variable, constant = self._parameters[key]
        return build(Form({variable: 1}, -constant).plus(inside))

    def _inside(self, node: Expr) -> Expr:
        return rebuild(node, tuple(map(self, node.children)))
