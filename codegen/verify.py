"""The rules of the loop IR, checked without running anything.

`verify` is for kernels that a sketch wrote: what it refuses is a bug in the sketch. The emitters rely on every rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

from .expr.dtype import FLOATS, INTEGERS, NARROW, DType
from .expr.expr import (
    COMPARISONS,
    HORIZONTAL,
    OF_WORDS,
    TRANSCENDENTAL,
    ZIPS,
    Const,
    Expr,
    Load,
    Op,
    Ramp,
    Var,
    arity,
    const,
    loads,
    op,
    transform,
    variables,
)
from .expr.index import Domain, Ranges, contiguous
from .expr.math import has_expansion
from .expr.nodes import fact
from .expr.semantics import OPS
from .gpu import BLOCK_THREADS, SM_REGISTERS, THREAD_REGISTERS, WARP
from .instructions.bulk import FETCH_RANKS, MOST_BOX, MOST_STEP, fetch_swizzle
from .instructions.instruction import OperandSpec
from .instructions.table import INSTRUCTIONS
from .instructions.warpgroup import CHUNK_BYTES, GROUP, ROW_BYTES
from .ir.ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    Fetch,
    For,
    Grid,
    If,
    Kernel,
    LoopKind,
    Packing,
    Prefetch,
    Roles,
    Scope,
    Stmt,
    Store,
    ThreadRole,
    accessed_buffers,
    bytes_name,
    single_words_of,
    words_of,
    written_buffers,
)
from .ir.matrix import COLUMN, MATRIX_INSTRUCTIONS, ROW, expand, register_fault
from .ir.matrix import fault as matrix_fault

NUMBERS = frozenset((*FLOATS, *INTEGERS))
BOOLS = frozenset({DType.BOOL})

DTYPES: Mapping[str, frozenset[DType]] = {
    **dict.fromkeys(("sqrt", "floor", "ceil", "round", *TRANSCENDENTAL - {"pow"}), frozenset(FLOATS)),
    **dict.fromkeys(("floordiv", "mod", "shl", "shr", "bitand", "bitor", "bitxor"), frozenset(INTEGERS)),
    **dict.fromkeys(("and", "or", "not"), BOOLS),
    **dict.fromkeys(OF_WORDS, frozenset({DType.I32})),
    "widen_bytes": frozenset({DType.I16}),
    **dict.fromkeys(("eq", "ne", "min", "max"), NUMBERS | BOOLS),
    **dict.fromkeys(("select", "cast", *ZIPS), NUMBERS | BOOLS | NARROW),
}
"""Types of the operands of an op; all other ops take NUMBERS."""


class VerifyError(Exception):
    """A kernel breaks a rule. Says in which statement, which value, and which limit."""


def verify(kernel: Kernel, ranges: Ranges = MappingProxyType({})) -> None:
    """Check a kernel. Raises VerifyError. `ranges` are those of variables without a loop, such as symbolic numbers.

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
    for words in kernel.words:
        _words(kernel, words)
        buffers[words.name] = words
    context = _Context(buffers, frozenset(kernel.packings), {}, Domain(ranges), ())
    for phase in kernel.body.body:
        match phase:
            case For(kind=LoopKind.PARALLEL):
                context.enter(phase).statement(phase.body)
            case For(kind=LoopKind.BLOCK):
                context.grid(Grid.of(phase))
            case _:
                context.statement(phase)


def _buffer(buffer: Buffer, scopes: set[Scope]) -> None:
    if buffer.scope not in scopes:
        raise VerifyError(f"buffer {buffer}: can't be {buffer.scope} here")
    if any(extent < 1 for extent in buffer.shape):
        raise VerifyError(f"buffer {buffer}: every extent must be 1 at least")


def _words(kernel: Kernel, words: Buffer) -> None:
    """Check the words of a buffer: no phase that writes one form of it has to do with the other."""
    name = bytes_name(words.name)
    if not any(
        buffer.name == name and words in _forms(buffer, words.dtype) for buffer in kernel.params + kernel.scratch
    ):
        raise VerifyError(f"words {words}: no buffer {name} has as many bytes")
    for phase in kernel.body.body:
        if {name, words.name} <= accessed_buffers(phase) and not written_buffers(phase).isdisjoint((name, words.name)):
            raise VerifyError(f"words {words}: a phase writes them or the bytes, and has to do with both")


def _forms(buffer: Buffer, dtype: DType) -> tuple[Buffer, ...]:
    """The words of a buffer, as they may be declared."""
    words = words_of(buffer, dtype)
    return (words, single_words_of(buffer, dtype)) if words.shape[-1] == 1 else (words,)


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
class _Context:
    """The context of a statement: visible buffers and loops, and known facts."""

    buffers: Mapping[str, Buffer]
    constants: frozenset[str]  # packed parameters
    loops: Mapping[str, LoopKind]
    domain: Domain
    path: tuple[str, ...]
    threads: tuple[For, ...] = ()  # the thread loops of a GPU, that of the lanes of a warp last
    divergent: frozenset[str] = frozenset()  # variables of threads that decide whether a thread executes this
    divergent_in_group: frozenset[str] = frozenset()  # of those, the ones that decide it within a warpgroup
    role: range | None = None  # the threads of the role around
    checked: set[object] = field(
        default_factory=set
    )  # values and targets of stores that were checked here or further out
    domains: dict[int | None, Domain] = field(default_factory=dict)  # the domain for each count of leading lanes

    def within(self, **more: Any) -> _Context:
        """An inner context, where everything that is known here holds too."""
        domains: dict[int | None, Domain] = {None: more["domain"]} if "domain" in more else self.domains
        return replace(self, checked=set(self.checked), domains=domains, **more)

    def fail(self, what: object, why: str) -> VerifyError:
        where = f"in {' > '.join(self.path)}: " if self.path else ""
        if isinstance(what, Store):
            what = f"{what.tensor}[{', '.join(map(str, what.index))}] = {what.value}"
        return VerifyError(f"{where}{str(what)[:200]}: {why}")

    def enter(self, loop: For) -> _Context:
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

    def grid(self, grid: Grid) -> None:
        """Check a launch of a GPU, down to the statements of each thread."""
        inside = self
        for loop in grid.blocks:
            inside = inside.enter(loop)
        for buffer in grid.shared:
            inside = inside.allocate(buffer)
        if not grid.threads or any(buffer.scope is not Scope.SHARED for buffer in grid.shared):
            wrong = "Alloc" if grid.threads else type(grid.body).__name__
            raise inside.fail(wrong, "between the blocks and the threads only shared memory may be")
        for loop in grid.threads:
            inside = inside.enter(loop).within(threads=(*inside.threads, loop))
        if grid.block_threads > BLOCK_THREADS:
            raise inside.fail(f"{grid.block_threads} threads", f"a block has {BLOCK_THREADS} at most")
        inside.statement(grid.body)

    def allocate(self, buffer: Buffer) -> _Context:
        """The context inside an Alloc."""
        if buffer.name in self.buffers:
            raise self.fail(f"alloc {buffer}", "there is a buffer of that name")
        _buffer(buffer, {Scope.SHARED, Scope.REGISTER, Scope.MATRIX})
        if buffer.scope is Scope.MATRIX and (why := register_fault(buffer, self.buffers.values())):
            raise self.fail(f"alloc {buffer}", why)
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
                divergent = self.divergent | self.divergence(condition)
                in_group = self.divergent_in_group | self.divergence(transform(condition, _of_group))
                domain = self.domain.assume(condition)
                self.within(domain=domain, path=path, divergent=divergent, divergent_in_group=in_group).statement(then)
            case Alloc(buffer, body):
                if self.threads and buffer.scope is not Scope.REGISTER:
                    raise self.fail(f"alloc {buffer}", "a thread allocates registers alone")
                self.allocate(buffer).statement(body)
            case Barrier():
                if not self.threads or self.divergent or self.role is not None:
                    raise self.fail("barrier", f"not all threads of a block come here: {', '.join(self.divergent)}")
            case Fetch():
                self.fetch(stmt)
            case Roles(roles):
                self.share_out(roles)
            case Do(name) if name in MATRIX_INSTRUCTIONS:
                self.matrix_instruction(stmt)
            case Do():
                self.instruction(stmt)
            case Prefetch(tensor, index):
                self.values(*index)
                if tensor not in self.buffers or len(index) != len(self.buffers[tensor].shape):
                    raise self.fail(f"prefetch {tensor}", "there is no such buffer of that rank")
            case Store():
                self.store(stmt)

    def divergence(self, condition: Expr) -> frozenset[str]:
        """The thread variables that a condition may differ by: all of them where it looks at memory."""
        names = frozenset(loop.var for loop in self.threads)
        return names if loads(condition) else names & variables(condition)

    def share_out(self, roles: tuple[ThreadRole, ...]) -> None:
        """Check the body of each role."""
        if len(self.threads) != 1 or self.divergent or self.role is not None:
            raise self.fail("roles", "they share out the threads of one loop, all of which come here")
        [loop] = self.threads
        if sum(role.threads for role in roles) != loop.extent or any(role.threads % WARP for role in roles):
            raise self.fail("roles", f"{[role.threads for role in roles]} threads, in whole warps, of {loop.extent}")
        thread, begin = Var(loop.var), 0
        for role in roles:
            end = begin + role.threads
            if role.registers % 8 or role.registers > THREAD_REGISTERS + 1:
                raise self.fail("roles", f"{role.registers} registers of a thread: a multiple of 8, at most 256")
            if role.registers and role.threads % GROUP:
                raise self.fail("roles", f"registers of {role.threads} threads: only warpgroups change theirs")
            domain = self.domain.assume(op("le", begin, thread)).assume(op("lt", thread, end))
            path = (*self.path, f"role of threads {begin} to {end - 1}")
            self.within(domain=domain, path=path, role=range(begin, end)).statement(role.body)
            begin = end
        if sum(role.threads * role.registers for role in roles) > SM_REGISTERS:
            raise self.fail(
                "roles", f"{[role.registers for role in roles]} registers of threads: there are not so many"
            )

    def fetch(self, stmt: Fetch) -> None:
        """Check that the engine can copy the box, and that the target is laid out for it."""
        view, target = stmt.map, stmt.target
        self.values(*stmt.coordinates, target, stmt.barrier)
        source, into = self.buffers.get(view.tensor), self.buffers[target.tensor]
        if source is None or source.scope is not Scope.GLOBAL or {source.dtype, into.dtype} != {view.dtype}:
            raise self.fail(f"fetch {view}", f"of {source} into {into}")
        if into.scope is not Scope.SHARED or self.buffers[stmt.barrier.tensor].scope is not Scope.SHARED:
            raise self.fail(f"fetch {view}", "its target and its barrier are in shared memory")
        ranks = {len(numbers) for numbers in (view.extents, view.strides, view.box, view.all_steps, stmt.coordinates)}
        if len(ranks) > 1 or len(view.box) not in FETCH_RANKS:
            raise self.fail(f"fetch {view}", "it has 2 to 5 dimensions")
        reach = 1 + sum((extent - 1) * stride for extent, stride in zip(view.extents, view.strides, strict=True))
        each = view.dtype.size_bytes
        if (
            reach > prod(source.shape)
            or view.strides[-1] != 1
            or any(n * each % CHUNK_BYTES for n in view.strides[:-1])
        ):
            raise self.fail(f"fetch {view}", f"rows of {source} begin on multiples of {CHUNK_BYTES} bytes")
        if view.all_steps[-1] != 1 or not all(1 <= step <= MOST_STEP for step in view.all_steps):
            raise self.fail(f"fetch {view}", f"steps are 1 to {MOST_STEP}, the last one 1")
        most = max(extent * step for extent, step in zip(view.box, view.all_steps, strict=True))
        if most > MOST_BOX or view.box[-1] != into.shape[-1] or view.box[-1] * each != ROW_BYTES:
            why = f"a box spans at most {MOST_BOX} places a dimension, and rows of {ROW_BYTES} bytes"
            raise self.fail(f"fetch {view}", why)
        begin = max((d + 1 for d, at in enumerate(target.index) if at != const(0)), default=0)
        if prod(view.box) > prod(into.shape[begin:]):
            raise self.fail(f"fetch {view}", f"a box does not fit into {into} from {target} on")
        if into.swizzle != fetch_swizzle(view.dtype):
            raise self.fail(f"fetch {view}", f"chunks of {into} are not exchanged as the engine does")

    def instruction(self, stmt: Do) -> None:
        instruction = INSTRUCTIONS.get(stmt.name)
        if instruction is None:
            raise self.fail(stmt.name, "there is no such instruction")
        if not self.threads:
            raise self.fail(stmt.name, "instructions are for threads of a GPU")
        threads = self.role if self.role is not None else range(self.threads[-1].extent)
        is_whole = threads.start % instruction.threads == 0 and len(threads) % instruction.threads == 0
        if instruction.threads > 1 and (not is_whole or self.threads[-1].var in self.divergent_in_group):
            raise self.fail(stmt.name, f"not all {instruction.threads} threads that execute it together come here")
        if len(stmt.outs) != len(instruction.outs) or len(stmt.ins) != len(instruction.ins):
            raise self.fail(stmt.name, f"{len(stmt.outs)} results of {len(stmt.ins)} operands")
        for node, operand in zip((*stmt.outs, *stmt.ins), (*instruction.outs, *instruction.ins), strict=True):
            self.operand(stmt.name, node, operand)
        if instruction.is_in_place and stmt.outs[0] != stmt.ins[-1]:
            raise self.fail(stmt.name, f"{stmt.outs[0]} is not what is added to, {stmt.ins[-1]}")
        for node in stmt.outs:
            if node.tensor in self.constants:
                raise self.fail(stmt.name, f"{node.tensor} is a packed constant")

    def matrix_instruction(self, stmt: Do) -> None:
        """Check an instruction of a processor, and what it does as loops."""
        if self.threads:
            raise self.fail(stmt.name, "GPUs have no such instruction")
        if why := matrix_fault(stmt, self.buffers):
            raise self.fail(stmt.name, why)
        self.statement(expand(stmt, self.buffers))

    def operand(self, name: str, node: Load, operand: OperandSpec) -> None:
        """Check what an instruction reads or writes."""
        self.values(node)
        buffer = self.buffers[node.tensor]
        if buffer.scope is not operand.scope or not operand.is_match(buffer.dtype.numpy, node.lanes):
            raise self.fail(name, f"{node} of {buffer} where {operand} is wanted")
        if node.count is not None or (node.lanes > 1 and not contiguous(node.index)):
            raise self.fail(name, f"{node}: an operand is all of some consecutive elements")

    def store(self, stmt: Store) -> None:
        self.values(stmt.value, *stmt.index)
        target = (stmt.tensor, stmt.index, stmt.count)
        if target not in self.checked:
            self.access(stmt)
            if stmt.tensor in self.constants:
                raise self.fail(stmt, f"{stmt.tensor} is a packed constant")
            self.checked.add(target)
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
            self.register(access, access.index, lanes)
        if buffer.scope is Scope.MATRIX:
            if not {ROW, COLUMN} & self.loops.keys():
                raise self.fail(access, "only instructions access matrix registers")
            self.register(access, access.index[:-2], lanes)
        if not self.domain.is_empty:
            self.inside(access, buffer)
        return buffer

    def register(self, access: Load | Store, number: Sequence[Expr], lanes: int) -> None:
        for node in loads(*access.index):
            raise self.fail(access, f"a register's index depends on {node}")
        for index in number:
            for name in variables(index):
                if self.loops[name] is not LoopKind.UNROLL:
                    raise self.fail(access, f"a register's index depends on {name}, whose loop is not unrolled")
        if lanes > 1 and not contiguous(access.index):
            raise self.fail(access, "a register vector must be consecutive elements")

    def inside(self, access: Load | Store, buffer: Buffer) -> None:
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
                self.value(node)
                checked.add(node)

    def value(self, node: Expr) -> None:
        match node:
            case Op():
                fault = _fault(node)
                if fault:
                    raise self.fail(node, fault)
                if node.name in ("floordiv", "mod"):
                    self.quotient(*node.args)
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

    def quotient(self, dividend: Expr, divisor: Expr) -> None:
        """Check the operands of "floordiv" and "mod": of negative ones machines and numpy give different results."""
        for operand, least in ((dividend, 0), (divisor, 1)):
            if self.domain.interval(operand)[0] < least and not self.domain.is_empty:
                raise self.fail(operand, f"it may be less than {least}, in a division of indices")


def _of_group(node: Expr) -> Expr:
    """Replace the number of a warpgroup by a constant: all of its threads have it in common."""
    match node:
        case Op("floordiv", (Var(), Const(value)), _) if int(value) % GROUP == 0:
            return Const(0, DType.I64)
    return node


@fact
def _fault(node: Expr) -> str:
    """The error of an op that does not depend on its context; empty if there is none."""
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
    if not _has_valid_types(node.name, kinds, node.dtype):
        return f"{node.name} of {', '.join(kinds)} to {node.dtype}"
    if node.name in TRANSCENDENTAL and not has_expansion(node):
        return f"{node.name} of {node.dtype} has no expansion"
    return ""


def _has_valid_types(name: str, kinds: list[DType], result: DType) -> bool:
    """Whether an op takes these dtypes to that one."""
    allowed = DTYPES.get(name, NUMBERS)
    if name == "bitcast":
        return kinds[0].size_bytes == result.size_bytes and not {DType.BOOL, *NARROW} & {kinds[0], result}
    if name == "select":
        return kinds[0] is DType.BOOL and kinds[1] is kinds[2] is result
    if name == "dot2_bf16":
        return (*kinds, result) == (DType.I32, DType.I32, DType.F32, DType.F32)
    if any(kind is not kinds[0] for kind in kinds) or kinds[0] not in allowed:
        return False
    if name == "widen_bytes":
        return result is DType.I32
    if name == "cast":
        return NARROW.isdisjoint((kinds[0], result)) or DType.F32 in (kinds[0], result)
    return result is (DType.BOOL if name in COMPARISONS else kinds[0])
