"""What is known at a statement while a kernel is verified, and the rules of values in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .expr.dtype import DType
from .expr.expr import Const, Expr, Load, Op, Ramp, Var, loads, transform, variables
from .expr.index import Domain, contiguous
from .expr.op_types import op_fault
from .instructions.warpgroup import GROUP
from .ir.ir import Buffer, For, LoopKind, Scope, Store
from .ir.matrix import COLUMN, ROW, register_fault


class VerifyError(Exception):
    """A kernel breaks a rule. Says in which statement, which value, and which limit."""


@dataclass(frozen=True, slots=True)
class ActiveThreads:
    """The threads of a block of a GPU that execute a statement. On a processor there are none."""

    loops: tuple[For, ...] = ()  # that of the lanes of a warp last
    divergent: frozenset[str] = frozenset()  # variables that decide whether a thread executes it
    divergent_in_group: frozenset[str] = frozenset()  # of those, the ones that decide it within a warpgroup
    role: range | None = None  # the threads of the role around

    @property
    def is_whole_block(self) -> bool:
        """Whether all threads of a block come to the statement."""
        return bool(self.loops) and not self.divergent and self.role is None

    def under(self, condition: Expr) -> ActiveThreads:
        """Those for which a condition holds."""
        if not self.loops:
            return self
        divergent = self.divergent | self._divergence(condition)
        in_group = self.divergent_in_group | self._divergence(transform(condition, _of_group))
        return replace(self, divergent=divergent, divergent_in_group=in_group)

    def _divergence(self, condition: Expr) -> frozenset[str]:
        """The thread variables that a condition may differ by: all of them where it looks at memory."""
        names = frozenset(loop.var for loop in self.loops)
        return names if loads(condition) else names & variables(condition)


def _of_group(node: Expr) -> Expr:
    """Replace the number of a warpgroup by a constant: all of its threads have it in common."""
    match node:
        case Op("floordiv", (Var(), Const(value)), _) if int(value) % GROUP == 0:
            return Const(0, DType.I64)
    return node


NO_THREADS = ActiveThreads()


def check_buffer(buffer: Buffer, scopes: set[Scope]) -> None:
    """Raises VerifyError unless a buffer is of some of these scopes, and has elements."""
    if buffer.scope not in scopes:
        raise VerifyError(f"buffer {buffer}: can't be {buffer.scope} here")
    if any(extent < 1 for extent in buffer.shape):
        raise VerifyError(f"buffer {buffer}: every extent must be 1 at least")


@dataclass(slots=True)
class Context:
    """The context of a statement: visible buffers and loops, and known facts."""

    buffers: Mapping[str, Buffer]
    constants: frozenset[str]  # packed parameters
    loops: Mapping[str, LoopKind]
    domain: Domain
    path: tuple[str, ...]
    threads: ActiveThreads = NO_THREADS
    checked: set[object] = field(default_factory=set)  # values and targets of stores, here or further out
    domains: dict[int | None, Domain] = field(default_factory=dict)  # the domain for each count of leading lanes

    def within(self, **more: Any) -> Context:
        """An inner context, where everything that is known here holds too."""
        domains: dict[int | None, Domain] = {None: more["domain"]} if "domain" in more else self.domains
        return replace(self, checked=set(self.checked), domains=domains, **more)

    def fail(self, what: object, why: str) -> VerifyError:
        """The error of a statement or value."""
        where = f"in {' > '.join(self.path)}: " if self.path else ""
        if isinstance(what, Store):
            what = f"{what.tensor}[{', '.join(map(str, what.index))}] = {what.value}"
        return VerifyError(f"{where}{str(what)[:200]}: {why}")

    def enter(self, loop: For) -> Context:
        """The context inside a loop."""
        text = f"{loop.kind} {loop.var} < {loop.extent!r}"
        if loop.var in self.loops:
            raise self.fail(text, f"an outer loop has the variable {loop.var}")
        if loop.extent < 1:
            raise self.fail(text, "the extent must be 1 at least")
        return self.within(
            domain=self.domain.with_loop(loop.var, loop.extent),
            loops={**self.loops, loop.var: loop.kind},
            path=(*self.path, text),
        )

    def allocate(self, buffer: Buffer) -> Context:
        """The context inside an Alloc."""
        if buffer.name in self.buffers:
            raise self.fail(f"alloc {buffer}", "there is a buffer of that name")
        check_buffer(buffer, {Scope.SHARED, Scope.REGISTER, Scope.MATRIX})
        if buffer.scope is Scope.MATRIX and (why := register_fault(buffer, self.buffers.values())):
            raise self.fail(f"alloc {buffer}", why)
        return self.within(buffers={**self.buffers, buffer.name: buffer})

    def access(self, access: Load | Store) -> Buffer:
        """The buffer that a load or store touches, with everything about its index checked."""
        buffer = self.buffers.get(access.tensor)
        if buffer is None:
            raise self.fail(access, f"there is no buffer {access.tensor}")
        if len(access.index) != len(buffer.shape):
            raise self.fail(access, f"{len(access.index)} indices for the {len(buffer.shape)} dimensions of {buffer}")
        counts = [i.lanes for i in access.index]
        lanes = max(counts, default=1)
        if lanes > 1 and not {1, lanes}.issuperset(counts):
            raise self.fail(access, f"indices of {counts} lanes")
        if access.count is not None and not (lanes > 1 and 1 <= access.count <= lanes):
            raise self.fail(access, f"count {access.count} of {lanes} lanes")
        if buffer.scope is Scope.REGISTER:
            self._register(access, access.index, lanes)
        if buffer.scope is Scope.MATRIX:
            if not {ROW, COLUMN} & self.loops.keys():
                raise self.fail(access, "only instructions access matrix registers")
            self._register(access, access.index[:-2], lanes)
        if not self.domain.is_empty:
            self._inside(access, buffer)
        return buffer

    def _register(self, access: Load | Store, number: Sequence[Expr], lanes: int) -> None:
        """Check that unrolling makes the number of a register constant."""
        for node in loads(*access.index):
            raise self.fail(access, f"a register's index depends on {node}")
        for index in number:
            for name in variables(index):
                if self.loops[name] is not LoopKind.UNROLL:
                    raise self.fail(access, f"a register's index depends on {name}, whose loop is not unrolled")
        if lanes > 1 and not contiguous(access.index):
            raise self.fail(access, "a register vector must be consecutive elements")

    def _inside(self, access: Load | Store, buffer: Buffer) -> None:
        """Check that each index is proven to be inside of the buffer."""
        domain = self.domains.get(access.count)
        if domain is None:
            domain = self.domains[access.count] = replace(self.domain, count=access.count)
        for d, (index, extent) in enumerate(zip(access.index, buffer.shape, strict=True)):
            if index.dtype is not DType.I64:
                raise self.fail(access, f"index {d} of {buffer.name} is {index.dtype}, not {DType.I64}")
            bounds = domain.bounds(index)
            if bounds is None:
                raise self.fail(access, f"index {d} of {buffer.name}, {index}, depends on data and is not clamped")
            if bounds[0] < 0 or bounds[1] >= extent:
                spread = f"{bounds[0]} .. {bounds[1]}"
                raise self.fail(access, f"index {d} of {buffer.name}, {index}, is in {spread}, the limit {extent - 1}")

    def values(self, *roots: Expr) -> None:
        """Check every node of expressions, parts before what they are part of."""
        checked = self.checked
        for node in roots:
            if node not in checked:
                if node.children:
                    self.values(*node.children)
                self._value(node)
                checked.add(node)

    def _value(self, node: Expr) -> None:
        match node:
            case Op():
                fault = op_fault(node)
                if fault:
                    raise self.fail(node, fault)
                if node.name in ("floordiv", "mod"):
                    self._quotient(*node.args)
            case Load():
                buffer = self.access(node)
                if node.dtype is not buffer.dtype:
                    raise self.fail(node, f"reads {node.dtype} from {buffer}")
            case Ramp(base, lanes):
                if base.lanes != 1 or lanes < 2 or base.dtype is not DType.I64:
                    raise self.fail(node, f"{lanes} lanes from a base of {base.lanes} lanes of {base.dtype}")
            case Var(name):
                if name not in self.loops and name not in self.domain.ranges:
                    raise self.fail(node, "there is no loop of that variable")

    def _quotient(self, dividend: Expr, divisor: Expr) -> None:
        """Check the operands of "floordiv" and "mod": of negative ones machines and numpy give different results."""
        for operand, least in ((dividend, 0), (divisor, 1)):
            if self.domain.interval(operand)[0] < least and not self.domain.is_empty:
                raise self.fail(operand, f"it may be less than {least}, in a division of indices")
