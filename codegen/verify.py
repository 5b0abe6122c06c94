"""The rules of the loop IR, checked without running anything.

`verify` is for kernels that a sketch wrote: what it refuses is a bug in the sketch. The emitters rely on every rule.
Those of values are in `verify_context`, those of GPUs in `verify_gpu`.
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType

from .expr.dtype import DType
from .expr.index import Domain, Ranges
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
    accessed_buffers,
    bytes_name,
    single_words_of,
    words_of,
    written_buffers,
)
from .ir.matrix import MATRIX_INSTRUCTIONS, expand, fault
from .verify_context import Context, VerifyError, check_buffer
from .verify_gpu import enter_grid, enter_roles, verify_barrier, verify_fetch, verify_instruction


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
        check_buffer(buffer, {Scope.GLOBAL})
        buffers[buffer.name] = buffer
    for name, packing in kernel.packings.items():
        _packing(name, packing, {p.name: p for p in kernel.params}.get(name))
    for words in kernel.words:
        _words(kernel, words)
        buffers[words.name] = words
    context = Context(buffers, frozenset(kernel.packings), {}, Domain(ranges), ())
    for phase in kernel.body.body:
        match phase:
            case For(kind=LoopKind.PARALLEL):
                _statement(context.enter(phase), phase.body)
            case For(kind=LoopKind.BLOCK):
                grid = Grid.of(phase)
                _statement(enter_grid(context, grid), grid.body)
            case _:
                _statement(context, phase)


def _words(kernel: Kernel, words: Buffer) -> None:
    """Check the words of a buffer: no phase that writes one form of it has to do with the other."""
    name = bytes_name(words.name)
    if not any(
        buffer.name == name and words in _forms(buffer, words.dtype) for buffer in kernel.params + kernel.scratch
    ):
        raise VerifyError(f"words {words}: no buffer {name} has as many bytes")
    is_given = name in {buffer.name for buffer in kernel.params}
    is_input = is_given and written_buffers(kernel.body).isdisjoint((name, words.name))
    if not is_input and any(isinstance(phase, For) and phase.kind is LoopKind.BLOCK for phase in kernel.body.body):
        raise VerifyError(f"words {words}: those of a GPU are of what is given to the kernel")
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


def _statement(context: Context, stmt: Stmt) -> None:
    match stmt:
        case Block(body):
            for part in body:
                _statement(context, part)
        case For(kind=LoopKind.PARALLEL | LoopKind.BLOCK, var=var):
            raise context.fail(f"{stmt.kind} {var}", f"only a phase can be a {stmt.kind} loop")
        case For(kind=LoopKind.THREAD, var=var):
            raise context.fail(f"thread {var}", "only what is right inside block loops can be a thread loop")
        case For(body=body):
            _statement(context.enter(stmt), body)
        case If(condition, then):
            context.values(condition)
            if condition.dtype is not DType.BOOL or condition.lanes != 1:
                raise context.fail(f"if {condition}", "the condition must be one bool")
            path = (*context.path, f"if {condition}")
            domain, threads = context.domain.assume(condition), context.threads.under(condition)
            _statement(context.within(domain=domain, path=path, threads=threads), then)
        case Alloc(buffer, body):
            if context.threads.loops and buffer.scope is not Scope.REGISTER:
                raise context.fail(f"alloc {buffer}", "a thread allocates registers alone")
            _statement(context.allocate(buffer), body)
        case Barrier():
            verify_barrier(context)
        case Fetch():
            verify_fetch(context, stmt)
        case Roles(roles):
            for inside, body in enter_roles(context, roles):
                _statement(inside, body)
        case Do(name) if name in MATRIX_INSTRUCTIONS:
            _matrix_instruction(context, stmt)
        case Do():
            verify_instruction(context, stmt)
        case Prefetch(tensor, index):
            context.values(*index)
            if tensor not in context.buffers or len(index) != len(context.buffers[tensor].shape):
                raise context.fail(f"prefetch {tensor}", "there is no such buffer of that rank")
        case Store():
            _store(context, stmt)


def _matrix_instruction(context: Context, stmt: Do) -> None:
    """Check an instruction of a processor, and what it does as loops."""
    if context.threads.loops:
        raise context.fail(stmt.name, "GPUs have no such instruction")
    if why := fault(stmt, context.buffers):
        raise context.fail(stmt.name, why)
    _statement(context, expand(stmt, context.buffers))


def _store(context: Context, stmt: Store) -> None:
    context.values(stmt.value, *stmt.index)
    target = (stmt.tensor, stmt.index, stmt.count)
    if target not in context.checked:
        context.access(stmt)
        if stmt.tensor in context.constants:
            raise context.fail(stmt, f"{stmt.tensor} is a packed constant")
        context.checked.add(target)
    dtype, lanes = context.buffers[stmt.tensor].dtype, max([i.lanes for i in stmt.index], default=1)
    if stmt.value.dtype is not dtype:
        raise context.fail(stmt, f"a value of {stmt.value.dtype} into {dtype}")
    if stmt.value.lanes not in (1, lanes):
        raise context.fail(stmt, f"a value of {stmt.value.lanes} lanes to {lanes} places")
