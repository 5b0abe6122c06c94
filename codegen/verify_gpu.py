"""The rules of launches of a GPU: threads, their roles, barriers, boxes that are fetched, and instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from .expr.expr import Load, Var, const, op
from .expr.index import contiguous
from .gpu import BLOCK_THREADS, SM_REGISTERS, THREAD_REGISTERS, WARP
from .instructions.bulk import FETCH_RANKS, MOST_BOX, MOST_STEP, fetch_swizzle
from .instructions.instruction import OperandSpec
from .instructions.table import INSTRUCTIONS
from .instructions.warpgroup import CHUNK_BYTES, GROUP, ROW_BYTES
from .ir.ir import Do, Fetch, Grid, Scope, Stmt, ThreadRole
from .verify_context import Context


def enter_grid(context: Context, grid: Grid) -> Context:
    """The context of the statements of each thread of a launch, which is checked so far."""
    inside = context
    for loop in grid.blocks:
        inside = inside.enter(loop)
    for buffer in grid.shared:
        inside = inside.allocate(buffer)
    if not grid.threads or any(buffer.scope is not Scope.SHARED for buffer in grid.shared):
        wrong = "Alloc" if grid.threads else type(grid.body).__name__
        raise inside.fail(wrong, "between the blocks and the threads only shared memory may be")
    for loop in grid.threads:
        threads = replace(inside.threads, loops=(*inside.threads.loops, loop))
        inside = inside.enter(loop).within(threads=threads)
    if grid.block_threads > BLOCK_THREADS:
        raise inside.fail(f"{grid.block_threads} threads", f"a block has {BLOCK_THREADS} at most")
    return inside


def enter_roles(context: Context, roles: Sequence[ThreadRole]) -> Iterator[tuple[Context, Stmt]]:
    """The context and the statements of each role, whose threads and registers are checked."""
    if len(context.threads.loops) != 1 or not context.threads.is_whole_block:
        raise context.fail("roles", "they share out the threads of one loop, all of which come here")
    [loop] = context.threads.loops
    if sum(role.threads for role in roles) != loop.extent or any(role.threads % WARP for role in roles):
        raise context.fail("roles", f"{[role.threads for role in roles]} threads, in whole warps, of {loop.extent}")
    thread, begin = Var(loop.var), 0
    for role in roles:
        end = begin + role.threads
        if role.registers % 8 or role.registers > THREAD_REGISTERS + 1:
            raise context.fail("roles", f"{role.registers} registers of a thread: a multiple of 8, at most 256")
        if role.registers and role.threads % GROUP:
            raise context.fail("roles", f"registers of {role.threads} threads: only warpgroups change theirs")
        domain = context.domain.assume(op("le", begin, thread)).assume(op("lt", thread, end))
        path = (*context.path, f"role of threads {begin} to {end - 1}")
        threads = replace(context.threads, role=range(begin, end))
        yield context.within(domain=domain, path=path, threads=threads), role.body
        begin = end
    if sum(role.threads * role.registers for role in roles) > SM_REGISTERS:
        raise context.fail("roles", f"{[role.registers for role in roles]} registers of threads: there are not so many")


def verify_barrier(context: Context) -> None:
    """Check that all threads of a block come to a barrier."""
    if not context.threads.is_whole_block:
        names = ", ".join(context.threads.divergent)
        raise context.fail("barrier", f"not all threads of a block come here: {names}")


def verify_fetch(context: Context, stmt: Fetch) -> None:
    """Check that the engine can copy the box, and that the target is laid out for it."""
    view, target = stmt.map, stmt.target
    context.values(*stmt.coordinates, target, stmt.barrier)
    source, into = context.buffers.get(view.tensor), context.buffers[target.tensor]
    if source is None or source.scope is not Scope.GLOBAL or {source.dtype, into.dtype} != {view.dtype}:
        raise context.fail(f"fetch {view}", f"of {source} into {into}")
    if into.scope is not Scope.SHARED or context.buffers[stmt.barrier.tensor].scope is not Scope.SHARED:
        raise context.fail(f"fetch {view}", "its target and its barrier are in shared memory")
    ranks = {len(numbers) for numbers in (view.extents, view.strides, view.box, view.all_steps, stmt.coordinates)}
    if len(ranks) > 1 or len(view.box) not in FETCH_RANKS:
        raise context.fail(f"fetch {view}", "it has 2 to 5 dimensions")
    reach = 1 + sum((extent - 1) * stride for extent, stride in zip(view.extents, view.strides, strict=True))
    each = view.dtype.size_bytes
    if reach > prod(source.shape) or view.strides[-1] != 1 or any(n * each % CHUNK_BYTES for n in view.strides[:-1]):
        raise context.fail(f"fetch {view}", f"rows of {source} begin on multiples of {CHUNK_BYTES} bytes")
    if view.all_steps[-1] != 1 or not all(1 <= step <= MOST_STEP for step in view.all_steps):
        raise context.fail(f"fetch {view}", f"steps are 1 to {MOST_STEP}, the last one 1")
    most = max(extent * step for extent, step in zip(view.box, view.all_steps, strict=True))
    if most > MOST_BOX or view.box[-1] != into.shape[-1] or view.box[-1] * each != ROW_BYTES:
        why = f"a box spans at most {MOST_BOX} places a dimension, and rows of {ROW_BYTES} bytes"
        raise context.fail(f"fetch {view}", why)
    begin = max((d + 1 for d, at in enumerate(target.index) if at != const(0)), default=0)
    if prod(view.box) > prod(into.shape[begin:]):
        raise context.fail(f"fetch {view}", f"a box does not fit into {into} from {target} on")
    if into.swizzle != fetch_swizzle(view.dtype):
        raise context.fail(f"fetch {view}", f"chunks of {into} are not exchanged as the engine does")


def verify_instruction(context: Context, stmt: Do) -> None:
    """Check an instruction, its operands, and that the threads come to it that execute it together."""
    instruction = INSTRUCTIONS.get(stmt.name)
    if instruction is None:
        raise context.fail(stmt.name, "there is no such instruction")
    active = context.threads
    if not active.loops:
        raise context.fail(stmt.name, "instructions are for threads of a GPU")
    threads = active.role if active.role is not None else range(active.loops[-1].extent)
    is_whole = threads.start % instruction.threads == 0 and len(threads) % instruction.threads == 0
    if instruction.threads > 1 and (not is_whole or active.loops[-1].var in active.divergent_in_group):
        raise context.fail(stmt.name, f"not all {instruction.threads} threads that execute it together come here")
    if len(stmt.outs) != len(instruction.outs) or len(stmt.ins) != len(instruction.ins):
        raise context.fail(stmt.name, f"{len(stmt.outs)} results of {len(stmt.ins)} operands")
    for node, operand in zip((*stmt.outs, *stmt.ins), (*instruction.outs, *instruction.ins), strict=True):
        _operand(context, stmt.name, node, operand)
    if instruction.is_in_place and stmt.outs[0] != stmt.ins[-1]:
        raise context.fail(stmt.name, f"{stmt.outs[0]} is not what is added to, {stmt.ins[-1]}")
    for node in stmt.outs:
        if node.tensor in context.constants:
            raise context.fail(stmt.name, f"{node.tensor} is a packed constant")


def _operand(context: Context, name: str, node: Load, operand: OperandSpec) -> None:
    """Check what an instruction reads or writes."""
    context.values(node)
    buffer = context.buffers[node.tensor]
    if buffer.scope is not operand.scope or not operand.is_match(buffer.dtype.numpy, node.lanes):
        raise context.fail(name, f"{node} of {buffer} where {operand} is wanted")
    if node.count is not None or (node.lanes > 1 and not contiguous(node.index)):
        raise context.fail(name, f"{node}: an operand is all of some consecutive elements")
