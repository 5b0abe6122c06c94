"""The rules of the loop IR, checked without running anything.

`verify` is for kernels that a sketch wrote: what it refuses is a bug in the sketch. The emitters rely on every rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from .cuda.gpu import BLOCK_THREADS
from .cuda.instruction import Operand
from .cuda.instructions import INSTRUCTIONS
from .dtype import DType
from .expr import (
    COMPARISONS,
    HORIZONTAL,
    TRANSCENDENTAL,
    ZIPS,
    Expr,
    Load,
    Op,
    Ramp,
    Var,
    arity,
    loads,
    variables,
)
from .index import Domain, contiguous
from .ir import Alloc, Barrier, Block, Buffer, Do, For, If, Kernel, LoopKind, Packing, Prefetch, Scope, Stmt, Store
from .math import has_expansion
from .meaning import OPS
from .nodes import fact

FLOATS = frozenset({DType.F32, DType.F64})
NARROW = frozenset(dtype for dtype in DType if dtype.is_narrow)
INTEGERS = frozenset({DType.I64, DType.I32, DType.I8, DType.U8})
NUMBERS = FLOATS | INTEGERS
BOOLS = frozenset({DType.BOOL})

DTYPES: Mapping[str, frozenset[DType]] = {
    **dict.fromkeys(("sqrt", "floor", "ceil", "round", "exp", "log", "erf", "tanh", "sigmoid"), FLOATS),
    **dict.fromkeys(("floordiv", "mod", "shl", "shr"), INTEGERS),
    **dict.fromkeys(("and", "or", "not"), BOOLS),
    "exp2_bits": frozenset({DType.I32}),
    **dict.fromkeys(("eq", "ne", "min", "max"), NUMBERS | BOOLS),
    **dict.fromkeys(("select", "cast", *ZIPS), NUMBERS | BOOLS | NARROW),
}
"""What ops take; all others take NUMBERS."""


class VerifyError(Exception):
    """A kernel breaks a rule. Says in which statement, which value, and which limit."""


def verify(kernel: Kernel) -> None:
    """Check a kernel. Raises VerifyError.

    Every name is bound once, every index has the rank of its buffer and is proven to be inside it under the loops and
    conditions around it, dtypes and lanes fit, parallel loops are phases, registers are indexed by what unrolling
    makes constant, and every transcendental op has an expansion. On a GPU all threads of a block come to each barrier,
    all that execute an instruction together to it, and operands are what the instruction takes.
    """
    buffers: dict[str, Buffer] = {}
    for buffer in kernel.params + kernel.scratch:
        if buffer.name in buffers:
            raise VerifyError(f"buffer {buffer.name} exists twice")
        _buffer(buffer, {Scope.GLOBAL})
        buffers[buffer.name] = buffer
    for name, packing in kernel.packings.items():
        _packing(name, packing, {p.name: p for p in kernel.params}.get(name))
    place = _Place(buffers, frozenset(kernel.packings), {}, Domain({}), ())
    for phase in kernel.body.body:
        match phase:
            case For(kind=LoopKind.PARALLEL):
                place.enter(phase).statement(phase.body)
            case For(kind=LoopKind.BLOCK):
                place.grid(phase)
            case _:
                place.statement(phase)


def _buffer(buffer: Buffer, scopes: set[Scope]) -> None:
    if buffer.scope not in scopes:
        raise VerifyError(f"buffer {buffer}: can't be {buffer.scope} here")
    if any(extent < 1 for extent in buffer.shape):
        raise VerifyError(f"buffer {buffer}: every extent must be 1 at least")


def _packing(name: str, packing: Packing, param: Buffer | None) -> None:
    if param is None:
        raise VerifyError(f"packing of {name}: no such parameter")
    rank = len(packing.order)
    if sorted(packing.order) != list(range(rank)) or len(packing.padded) != rank or len(packing.splits) != rank:
        raise VerifyError(f"packing of {name}: order {packing.order}, padded {packing.padded}, splits {packing.splits}")
    if any(prod(split) != extent for split, extent in zip(packing.splits, packing.padded, strict=True)):
        raise VerifyError(f"packing of {name}: splits {packing.splits} don't multiply to padded {packing.padded}")
    if sorted(packing.parts) != list(range(sum(map(len, packing.splits)))):
        raise VerifyError(f"packing of {name}: parts {packing.parts} of splits {packing.splits}")
    if not 1 <= packing.joined <= len(packing.parts):
        raise VerifyError(f"packing of {name}: {packing.joined} of {len(packing.parts)} parts joined")
    axes = [axis for axis, _ in packing.maps]
    if any(not 0 <= axis < rank for axis in axes) or len(set(axes)) < len(axes):
        raise VerifyError(f"packing of {name}: maps along axes {axes} of {rank}")
    if packing.shape != param.shape:
        raise VerifyError(f"packing of {name}: shape {packing.shape}, but the parameter has {param.shape}")


@dataclass(slots=True)
class _Place:
    """A place in a kernel: what is visible there, and what is known."""

    buffers: Mapping[str, Buffer]
    constants: frozenset[str]  # packed parameters
    loops: Mapping[str, LoopKind]
    domain: Domain
    path: tuple[str, ...]
    threads: tuple[For, ...] = ()  # the thread loops of a GPU, that of the lanes of a warp last
    apart: frozenset[str] = frozenset()  # of them, those that decide whether a thread comes here
    passed: set[object] = field(default_factory=set)  # values and targets of stores that were checked here, or around
    counted: dict[int | None, Domain] = field(default_factory=dict)  # the domain for each count of leading lanes

    def within(
        self, *, buffers: Mapping[str, Buffer] | None = None, domain: Domain | None = None, **more: Any
    ) -> _Place:
        """A place inside this one, where all holds that holds here."""
        counted: dict[int | None, Domain] = {None: domain} if domain else self.counted
        return replace(
            self,
            buffers=buffers or self.buffers,
            domain=domain or self.domain,
            passed=set(self.passed),
            counted=counted,
            **more,
        )

    def fail(self, what: object, why: str) -> VerifyError:
        where = f"in {' > '.join(self.path)}: " if self.path else ""
        if isinstance(what, Store):
            what = f"{what.tensor}[{', '.join(map(str, what.index))}] = {what.value}"
        return VerifyError(f"{where}{str(what)[:200]}: {why}")

    def enter(self, loop: For) -> _Place:
        """The place inside a loop."""
        text = f"{loop.kind} {loop.var} < {loop.extent}"
        if loop.var in self.loops:
            raise self.fail(text, f"an outer loop has the variable {loop.var}")
        if loop.extent < 1:
            raise self.fail(text, "the extent must be 1 at least")
        return self.within(
            domain=self.domain.with_loop(loop.var, loop.extent),
            loops={**self.loops, loop.var: loop.kind},
            path=(*self.path, text),
        )

    def grid(self, stmt: Stmt) -> None:
        """A launch of a GPU, down to what each thread does."""
        match stmt:
            case For(kind=LoopKind.BLOCK, body=body):
                self.enter(stmt).grid(body)
            case Alloc(buffer, body) if buffer.scope is Scope.SHARED:
                self.allocated(buffer).grid(body)
            case For(kind=LoopKind.THREAD):
                self.block(stmt)
            case _:
                raise self.fail(type(stmt).__name__, "between the blocks and the threads only shared memory may be")

    def block(self, stmt: Stmt) -> None:
        """The threads of a block."""
        inside = self
        while isinstance(stmt, For) and stmt.kind is LoopKind.THREAD:
            inside = inside.enter(stmt).within(threads=(*inside.threads, stmt))
            stmt = stmt.body
        count = prod(loop.extent for loop in inside.threads)
        if count > BLOCK_THREADS:
            raise self.fail(f"{count} threads", f"a block has {BLOCK_THREADS} at most")
        inside.statement(stmt)

    def allocated(self, buffer: Buffer) -> _Place:
        """The place inside an Alloc."""
        if buffer.name in self.buffers:
            raise self.fail(f"alloc {buffer}", "there is a buffer of that name")
        _buffer(buffer, {Scope.SHARED, Scope.REGISTER})
        return self.within(buffers={**self.buffers, buffer.name: buffer})

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Block(body):
                for part in body:
                    self.statement(part)
            case For(kind=LoopKind.PARALLEL | LoopKind.BLOCK, var=var):
                raise self.fail(f"{stmt.kind} {var}", f"only a phase can be a {stmt.kind} loop")
            case For(kind=LoopKind.THREAD, var=var):
                raise self.fail(f"thread {var}", "only what is right inside block loops can be a thread loop")
            case For(body=body):
                self.enter(stmt).statement(body)
            case If(condition, then):
                self.values(condition)
                if condition.dtype is not DType.BOOL or condition.lanes != 1:
                    raise self.fail(f"if {condition}", "the condition must be one bool")
                path = (*self.path, f"if {condition}")
                apart = self.apart | self.deciding(condition)
                self.within(domain=self.domain.given(condition), path=path, apart=apart).statement(then)
            case Alloc(buffer, body):
                if self.threads and buffer.scope is not Scope.REGISTER:
                    raise self.fail(f"alloc {buffer}", "a thread allocates registers alone")
                self.allocated(buffer).statement(body)
            case Barrier():
                if not self.threads or self.apart:
                    raise self.fail("barrier", f"not all threads of a block come here: {', '.join(self.apart)}")
            case Do():
                self.instruction(stmt)
            case Prefetch(tensor, index):
                self.values(*index)
                if tensor not in self.buffers or len(index) != len(self.buffers[tensor].shape):
                    raise self.fail(f"prefetch {tensor}", "there is no such buffer of that rank")
            case Store():
                self.store(stmt)

    def deciding(self, condition: Expr) -> frozenset[str]:
        """The thread variables that a condition may differ by: all of them where it looks at memory."""
        names = frozenset(loop.var for loop in self.threads)
        return names if loads(condition) else names & variables(condition)

    def instruction(self, stmt: Do) -> None:
        one = INSTRUCTIONS.get(stmt.name)
        if one is None:
            raise self.fail(stmt.name, "there is no such instruction")
        if not self.threads:
            raise self.fail(stmt.name, "instructions are for threads of a GPU")
        if one.threads > 1 and (self.threads[-1].extent % one.threads or self.threads[-1].var in self.apart):
            raise self.fail(stmt.name, f"not all {one.threads} threads that execute it together come here")
        if len(stmt.outs) != len(one.outs) or len(stmt.ins) != len(one.ins):
            raise self.fail(stmt.name, f"{len(stmt.outs)} results of {len(stmt.ins)} operands")
        for node, operand in zip((*stmt.outs, *stmt.ins), (*one.outs, *one.ins), strict=True):
            self.operand(stmt.name, node, operand)
        if one.is_in_place and stmt.outs[0] != stmt.ins[-1]:
            raise self.fail(stmt.name, f"{stmt.outs[0]} is not what is added to, {stmt.ins[-1]}")
        for node in stmt.outs:
            if node.tensor in self.constants:
                raise self.fail(stmt.name, f"{node.tensor} is a packed constant")

    def operand(self, name: str, node: Load, operand: Operand) -> None:
        """Check what an instruction reads or writes."""
        self.values(node)
        buffer = self.buffers[node.tensor]
        if buffer.scope is not operand.scope or not operand.takes(buffer.dtype.numpy, node.lanes):
            raise self.fail(name, f"{node} of {buffer} where {operand} is wanted")
        if node.count is not None or (node.lanes > 1 and not contiguous(node.index)):
            raise self.fail(name, f"{node}: an operand is all of some consecutive elements")

    def store(self, stmt: Store) -> None:
        self.values(stmt.value, *stmt.index)
        target = (stmt.tensor, stmt.index, stmt.count)
        if target not in self.passed:
            self.access(stmt)
            if stmt.tensor in self.constants:
                raise self.fail(stmt, f"{stmt.tensor} is a packed constant")
            self.passed.add(target)
        dtype, lanes = self.buffers[stmt.tensor].dtype, max([i.lanes for i in stmt.index], default=1)
        if stmt.value.dtype is not dtype:
            raise self.fail(stmt, f"a value of {stmt.value.dtype} into {dtype}")
        if stmt.value.lanes not in (1, lanes):
            raise self.fail(stmt, f"a value of {stmt.value.lanes} lanes to {lanes} places")

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
            self.register(access, lanes)
        if not self.domain.empty:
            self.inside(access, buffer)
        return buffer

    def register(self, access: Load | Store, lanes: int) -> None:
        for node in loads(*access.index):
            raise self.fail(access, f"a register's index depends on {node}")
        for index in access.index:
            for name in variables(index):
                if self.loops[name] is not LoopKind.UNROLL:
                    raise self.fail(access, f"a register's index depends on {name}, whose loop is not unrolled")
        if lanes > 1 and not contiguous(access.index):
            raise self.fail(access, "a register vector must be consecutive elements")

    def inside(self, access: Load | Store, buffer: Buffer) -> None:
        domain = self.counted.get(access.count)
        if domain is None:
            domain = self.counted[access.count] = replace(self.domain, count=access.count)
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
        passed = self.passed
        for node in roots:
            if node not in passed:
                if node.children:
                    self.values(*node.children)
                self.value(node)
                passed.add(node)

    def value(self, node: Expr) -> None:
        match node:
            case Op():
                fault = _fault(node)
                if fault:
                    raise self.fail(node, fault)
            case Load():
                buffer = self.access(node)
                if node.dtype is not buffer.dtype:
                    raise self.fail(node, f"reads {node.dtype} from {buffer}")
            case Ramp(base, lanes):
                if base.lanes != 1 or lanes < 2 or base.dtype is not DType.I64:
                    raise self.fail(node, f"{lanes} lanes from a base of {base.lanes} lanes of {base.dtype}")
            case Var(name):
                if name not in self.loops:
                    raise self.fail(node, "there is no loop of that variable")


@fact
def _fault(node: Expr) -> str:
    """What is wrong with an op, wherever it stands; empty if nothing is."""
    if not isinstance(node, Op):
        return ""
    kinds: list[DType] = [a.dtype for a in node.args]
    if node.name not in OPS or len(kinds) != arity(node.name):
        return f"no op {node.name} of {len(kinds)} arguments"
    counts = [a.lanes for a in node.args]
    lanes = max(counts)
    if lanes > 1 and not {1, lanes}.issuperset(counts):
        return f"arguments of {counts} lanes"
    if node.name in HORIZONTAL and lanes == 1:
        return "there are no lanes to join"
    if node.name in ZIPS and (lanes == 1 or lanes % 2):
        return f"there are no halves of {lanes} lanes"
    if not _typed(node.name, kinds, node.dtype):
        return f"{node.name} of {', '.join(kinds)} to {node.dtype}"
    if node.name in TRANSCENDENTAL and not has_expansion(node):
        return f"{node.name} of {node.dtype} has no expansion"
    return ""


def _typed(name: str, kinds: list[DType], result: DType) -> bool:
    """Whether an op takes these dtypes to that one."""
    allowed = DTYPES.get(name, NUMBERS)
    if name == "bitcast":
        return kinds[0].size_bytes == result.size_bytes and not {DType.BOOL, *NARROW} & {kinds[0], result}
    if name == "select":
        return kinds[0] is DType.BOOL and kinds[1] is kinds[2] is result
    if any(kind is not kinds[0] for kind in kinds) or kinds[0] not in allowed:
        return False
    if name == "cast":
        return NARROW.isdisjoint((kinds[0], result)) or DType.F32 in (kinds[0], result)
    return result is (DType.BOOL if name in COMPARISONS else kinds[0])
