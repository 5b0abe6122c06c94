"""An interpreter of kernels of a GPU: it runs threads side by side, and checks every access.

Each statement is run by all threads of many blocks before the next one is. Real ones run in any order between two
barriers; so an element that one thread wrote may be touched by another only behind a barrier, and this is what is
checked. What an asynchronous copy writes may not be touched by any thread until it was waited for. Nor may the sums of
an asynchronous product; and what it reads may not be written. A product sees what threads wrote only after their fence.

Roles take turns: each goes on until it waits at a barrier in shared memory for what another has to do. What threads did
before they arrived there is visible to those that wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy as clone
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..expr.expr import Expr, Load, evaluate
from ..gpu import WARP
from ..instructions.instruction import Instruction, Order, Queue
from ..instructions.table import INSTRUCTIONS
from ..instructions.warpgroup import GROUP
from ..ir.access import AccessLog, Array, BoundsError, RaceError, ThreadElements, flat_parameters
from ..ir.ir import (
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
    Prefetch,
    Roles,
    Scope,
    Stmt,
    Store,
    ThreadRole,
    bytes_name,
    written_buffers,
)
from .barriers import Barriers, Reads, Turns
from .buffer_state import (
    AsyncCopy,
    AsyncProduct,
    AsyncWork,
    BufferState,
    check_alignment,
    check_matrices,
)

MOST_THREADS = 1 << 14
"""Threads that run side by side (or one block, if larger): the registers of each take memory."""


def run(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Execute a kernel on its parameters (inputs then outputs), writing the outputs in place.

    A parameter that the kernel stores to is an output: what it held before counts as undefined. Raises BoundsError,
    UndefinedRead or RaceError on the first access that is wrong, and ValueError if the arrays don't fit the parameters.
    The kernel should have passed `verify`.
    """
    outputs = written_buffers(kernel.body)
    memories: dict[str, BufferState] = {}
    for buffer, array in flat_parameters(kernel, arrays):
        memories[buffer.name] = BufferState.of(buffer, array, defined=buffer.name not in outputs)
    for words in kernel.words:
        data = memories[bytes_name(words.name)].data.view(words.dtype.numpy)
        memories[words.name] = BufferState.of(words, data, defined=True)
    for buffer in kernel.scratch:
        memories[buffer.name] = BufferState.of(buffer, np.empty(prod(buffer.shape), buffer.dtype.numpy))
    with np.errstate(all="ignore"):
        for phase in kernel.body.body:
            _launch(phase, memories)


def _launch(phase: Stmt, memories: Mapping[str, BufferState]) -> None:
    grid = Grid.of(phase)
    if not grid.blocks:
        raise ValueError("a phase of a GPU is a block loop")
    for memory in memories.values():
        memory.blocks = AccessLog.empty(memory.data.size, "block")
    total = prod(loop.extent for loop in grid.blocks)
    together = max(1, MOST_THREADS // grid.block_threads)
    for first in range(0, total, together):
        blocks = np.arange(first, min(first + together, total))
        _Team(blocks, dict(memories)).run(grid)


@dataclass(slots=True)
class _Team:
    """The threads of some blocks, and their state."""

    blocks: NDArray[np.int64]  # their numbers
    memories: dict[str, BufferState]
    names: dict[str, Any] = field(default_factory=dict)  # values of variables; where threads differ, a column of them
    block: NDArray[np.int64] = field(init=False)  # the block of each thread, counted from the first one here
    active: NDArray[np.int64] = field(init=False)  # the active threads
    threads: int = 0  # threads of a block that execute these statements
    copies: AsyncWork[AsyncCopy] = field(default_factory=AsyncWork)
    products: AsyncWork[AsyncProduct] = field(default_factory=AsyncWork)
    barriers: Barriers = field(default_factory=Barriers)  # shared by all roles
    turns: Turns | None = None  # the scheduler of roles, inside `Roles`
    reads: Reads = field(default_factory=Reads)  # reads of the role

    @property
    def count(self) -> int:
        return len(self.block)

    def run(self, grid: Grid) -> None:
        """Run a launch for these blocks."""
        threads = self.threads = grid.block_threads
        self.block = np.repeat(np.arange(len(self.blocks)), threads)
        self.active = np.arange(self.count)
        self._count(grid.blocks, self.blocks[self.block])
        for buffer in grid.shared:
            self.memories[buffer.name] = self._own(buffer)
        for memory in self.memories.values():
            memory.threads = AccessLog.empty(memory.data.size, "thread")
        self._count(grid.threads, self.active % threads)
        self.statement(grid.body)
        self._refuse_unfinished()
        if self.barriers.has_copies:
            raise RaceError("a block ends before all that its barriers expect was waited for")

    def _refuse_unfinished(self) -> None:
        if self.copies.pending or self.products.pending:
            raise RaceError("a block ends before its asynchronous copies and products were waited for")

    def _count(self, loops: Sequence[For], number: NDArray[np.int64]) -> None:
        """Set the variables of nested loops from the linear number of an iteration."""
        for loop in reversed(loops):
            self.names[loop.var] = (number % loop.extent)[:, None]
            number = number // loop.extent

    def _own(self, buffer: Buffer) -> BufferState:
        """Memory of each block, or of each thread."""
        owners = self.count if buffer.scope is Scope.REGISTER else len(self.blocks)
        return BufferState.of(buffer, np.empty(owners * prod(buffer.shape), buffer.dtype.numpy))

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Block(body):
                for part in body:
                    self.statement(part)
            case For(var, extent, body):
                for value in range(extent):
                    self.names[var] = np.int64(value)
                    self.statement(body)
            case If(condition, then):
                self._branch(condition, then)
            case Alloc(buffer, body):
                outer = self.memories.get(buffer.name)
                self.memories[buffer.name] = self._own(buffer)
                self.statement(body)
                if outer is not None:
                    self.memories[buffer.name] = outer
            case Store():
                elements = self._elements(stmt)
                lanes = elements.where.shape[1]
                values = np.broadcast_to(self._value(stmt.value), (self.count, max(lanes, stmt.value.lanes)))
                self._write(self.memories[stmt.tensor], elements, values[self.active, :lanes])
            case Barrier():
                for memory in self.memories.values():
                    memory.sync()
            case Do():
                self._do(stmt)
            case Fetch():
                self._fetch(stmt)
            case Roles(roles):
                self._run_roles(roles)
            case Prefetch():
                pass

    def _run_roles(self, roles: Sequence[ThreadRole]) -> None:
        """Run each role by its threads of all blocks, in turns."""
        turns = Turns(sum(-(-role.threads // GROUP) for role in roles))
        number = np.arange(self.count) % self.threads
        begin, works = 0, []
        for role in roles:
            each = min(role.threads, GROUP)  # warpgroups go on by themselves
            for first in range(begin, begin + role.threads, each):
                own = np.flatnonzero((number >= first) & (number < first + each))
                works.append(partial(self._subteam(own, each, turns).play, role.body))
            begin += role.threads
        turns.run(works)

    def _subteam(self, threads: NDArray[np.int64], count: int, turns: Turns) -> _Team:
        """A team of some threads of each block, which takes turns with others."""
        team = clone(self)
        team.names, team.memories = dict(self.names), dict(self.memories)
        team.active, team.threads, team.turns = threads, count, turns
        team.copies, team.products, team.reads = AsyncWork(), AsyncWork(), Reads()
        return team

    def play(self, stmt: Stmt) -> None:
        """Run a role from begin to end."""
        self.statement(stmt)
        self._refuse_unfinished()

    @property
    def _is_partial(self) -> bool:
        """Whether only some threads of a block or role are active."""
        return len(self.active) < self.threads * len(np.unique(self.block[self.active]))

    def _branch(self, condition: Expr, then: Stmt) -> None:
        is_taken = np.broadcast_to(self._value(condition), (self.count, 1))[:, 0]
        threads = self.active
        self.active = threads[is_taken[threads]]
        if len(self.active):
            self.statement(then)
        self.active = threads

    def _value(self, node: Expr) -> Any:
        """A value as (threads, lanes), or an array that broadcasts to that; arbitrary for inactive threads."""
        return evaluate(node, self.names, self._load)

    def _load(self, node: Load, index: Sequence[Any]) -> Array:
        memory = self.memories[node.tensor]
        elements = self._locate(node, index, memory.buffer)
        if self.turns is not None and memory.buffer.scope is Scope.SHARED:
            self.reads.note(memory, elements)
        return self._of_all(self._read(memory, elements), node.lanes)

    # Memory

    def _elements(self, access: Load | Store) -> ThreadElements:
        return self._locate(access, [self._value(index) for index in access.index], self.memories[access.tensor].buffer)

    def _locate(self, access: Load | Store, index: Sequence[Any], buffer: Buffer) -> ThreadElements:
        """The elements of an access, its bounds checked."""
        lanes = max((i.lanes for i in access.index), default=1)
        used = lanes if access.count is None else access.count
        total = np.zeros((len(self.active), used), np.int64)
        offset = 0  # by indices that are one for all threads and lanes: most are, of registers
        for at, extent, stride in zip(index, buffer.shape, buffer.strides, strict=True):
            if not np.ndim(at) and 0 <= (number := int(at)) < extent:
                offset += number * stride
                continue
            each = np.broadcast_to(at, (self.count, lanes))[self.active, :used]
            if len(each) and (each.min() < 0 or each.max() >= extent):
                wrong = each[(each < 0) | (each >= extent)][0]
                raise BoundsError(f"{access.tensor}: index {wrong} is outside shape {list(buffer.shape)}")
            total += each * stride
        total += offset
        if buffer.swizzle is not None:
            total = buffer.swizzle.position(total)
        if buffer.scope is not Scope.GLOBAL:
            owner = self.active if buffer.scope is Scope.REGISTER else self.block[self.active]
            total += (owner * prod(buffer.shape))[:, None]
        return ThreadElements(buffer, total, self.active)

    def _read(self, memory: BufferState, elements: ThreadElements) -> Array:
        memory.refuse_pending_writes(elements)
        values = memory.read(elements)
        self._note(memory, elements, is_write=False)
        return values

    def _write(self, memory: BufferState, elements: ThreadElements, values: Array) -> None:
        memory.refuse_pending_writes(elements)
        memory.refuse_pending_reads(elements)
        self._note(memory, elements, is_write=True)
        memory.put(elements, values)

    def _note(self, memory: BufferState, elements: ThreadElements, *, is_write: bool) -> None:
        if memory.buffer.scope is Scope.REGISTER or not len(elements.threads):
            return
        shape = elements.where.shape
        blocks, threads = self.blocks[self.block[elements.threads]], elements.threads % (self.count // len(self.blocks))
        for notes, by in ((memory.blocks, blocks), (memory.threads, threads)):
            if notes is not None:
                (notes.write if is_write else notes.read)(elements, np.broadcast_to(by[:, None], shape))

    # Instructions

    def _do(self, stmt: Do) -> None:
        instruction = INSTRUCTIONS[stmt.name]
        for node, operand in zip((*stmt.outs, *stmt.ins), (*instruction.outs, *instruction.ins), strict=True):
            check_alignment(stmt.name, self._elements(node), operand)
        if instruction.queue is Queue.BARRIER:
            self._by_barrier(stmt, instruction)
            return
        if instruction.queue is Queue.NAMED:
            self._by_name(stmt, instruction)
            return
        if instruction.order in (Order.COMMIT, Order.WAIT, Order.FENCE) and self._is_partial:
            raise RaceError(f"{stmt.name}: some threads come here without the others, and it is for those alone")
        if instruction.order is Order.COMMIT:
            (self.products if instruction.queue is Queue.PRODUCTS else self.copies).commit()
        elif instruction.order is Order.WAIT:
            self._wait(instruction)
        elif instruction.order is Order.SYNC:
            for memory in self.memories.values():
                if memory.threads is not None:
                    memory.threads.sync_warps()
            self.reads.sync_warps()
        elif instruction.order is Order.FENCE:
            for memory in self.memories.values():
                if memory.buffer.scope is instruction.fences:
                    memory.fence()
        else:
            (self._multiply if instruction.queue is Queue.PRODUCTS else self._execute)(stmt, instruction)

    def _wait(self, instruction: Instruction) -> None:
        if instruction.queue is Queue.COPIES:
            for copy in self.copies.wait(instruction.pending):
                self._arrive(copy)
            return
        for product in self.products.wait(instruction.pending):
            for memory, elements in product.sums:
                memory.pending_writes[elements.where] = False
            for memory, elements in product.reads:
                memory.pending_reads[elements.where] = False
                memory.note_shared_read(elements)  # up to now, for those who did not wait for it
                if self.turns is not None:
                    self.reads.note_warps(memory, elements)
        self._mark_pending()

    def _execute(self, stmt: Do, instruction: Instruction) -> None:
        """Execute a synchronous instruction, or begin an asynchronous copy."""
        ins = [self._warps(self._load(node, [self._value(index) for index in node.index])) for node in stmt.ins]
        for node, values in zip(stmt.outs, instruction.meaning(*ins), strict=True):
            memory, elements = self.memories[node.tensor], self._elements(node)
            flat = values.reshape(-1, values.shape[-1])[self.active]
            if instruction.order is Order.ASYNC:
                copy = AsyncCopy(memory, elements, flat)
                self._begin(copy)
                self.copies.uncommitted.append(copy)
            else:
                self._write(memory, elements, flat)

    def _multiply(self, stmt: Do, instruction: Instruction) -> None:
        """Begin an asynchronous product: it sees memory that was shown to it, and the sums of products before it."""
        ins, reads = [], []
        for node in stmt.ins:
            memory, elements = self.memories[node.tensor], self._elements(node)
            memory.refuse_invisible(elements, instruction.name)
            if node not in stmt.outs:
                reads.append((memory, elements))
                values = self._read(memory, elements)
                memory.note_shared_read(elements)
            else:
                values = memory.read(elements)
            ins.append(self._warps(self._of_all(values, node.lanes)))
        check_matrices(instruction, reads)
        sums = [(self.memories[node.tensor], self._elements(node)) for node in stmt.outs]
        for (memory, elements), results in zip(sums, instruction.meaning(*ins), strict=True):
            memory.data[elements.where] = results.reshape(-1, results.shape[-1])[self.active]
            memory.undefined[elements.where] = False
        self.products.uncommitted.append(AsyncProduct(sums, reads))
        self._mark_pending()

    def _of_all(self, values: Array, lanes: int) -> Array:
        """Values of the active threads, extended to all threads and `lanes` lanes."""
        result = np.zeros((self.count, lanes), values.dtype)
        result[self.active, : values.shape[1]] = values
        return result

    def _mark_pending(self) -> None:
        """Mark the memory that pending products read and write."""
        for product in self.products.pending:
            for memory, elements in product.sums:
                memory.pending_writes[elements.where] = True
            for memory, elements in product.reads:
                memory.pending_reads[elements.where] = True

    def _warps(self, values: Array) -> Array:
        """An operand of all threads as warps, padded to whole warps."""
        missing = -self.count % WARP
        whole = np.concatenate([values, np.zeros((missing, values.shape[1]), values.dtype)]) if missing else values
        return whole.reshape(-1, WARP, values.shape[1])

    def _begin(self, copy: AsyncCopy) -> None:
        """Begin a copy, which may write at any time from now on."""
        copy.memory.refuse_pending_writes(copy.elements)
        copy.memory.refuse_pending_reads(copy.elements)
        self._note(copy.memory, copy.elements, is_write=True)
        copy.memory.pending_writes[copy.elements.where] = True

    def _by_name(self, stmt: Do, instruction: Instruction) -> None:
        """Execute an instruction of a named barrier: a warpgroup of each block arrives, and may wait for another."""
        assert self.turns is not None
        numbers = np.broadcast_to(self._value(stmt.ins[0]), (self.count, 1))[self.active, 0].tolist()
        for block, number in dict.fromkeys(zip(self.block[self.active].tolist(), numbers, strict=True)):
            count = self.barriers.arrive_named(block, number)
            self.turns.progress()
            if instruction.order is Order.WAIT:
                self.turns.wait(partial(self.barriers.has_pair_met, block, number, count), instruction.name)

    def _by_barrier(self, stmt: Do, instruction: Instruction) -> None:
        """Execute an instruction of a barrier in shared memory."""
        node = stmt.ins[0] if stmt.ins else stmt.outs[0]
        memory, elements = self.memories[node.tensor], self._elements(node)
        match instruction.order:
            case Order.IMMEDIATE:
                self._write(memory, elements, np.zeros_like(elements.where))
                self.barriers.set_up(memory, elements, instruction.arrivals)
            case Order.WAIT:
                last_bits = np.broadcast_to(self._value(stmt.ins[1]), (self.count, 1))[self.active, 0]
                self._await(memory, elements, last_bits)
            case Order.COMMIT:
                self.barriers.arrive(memory, elements, instruction.size_bytes, self.reads)
                self._progress()
            case Order.ASYNC:
                [to], (_, source) = stmt.outs, stmt.ins
                values = self._read(self.memories[source.tensor], self._elements(source))
                self._begin_copies(self.memories[to.tensor], self._elements(to), values, node)

    def _begin_copies(self, memory: BufferState, elements: ThreadElements, values: Array, barrier: Load) -> None:
        """Begin a copy for each active thread, counted by its barrier."""
        phases = self.barriers.phases(self.memories[barrier.tensor], self._elements(barrier))
        for number, phase in enumerate(phases):
            own = slice(number, number + 1)
            copy = AsyncCopy(memory, elements.of(own), values[own])
            self._begin(copy)
            phase.copies.append(copy)
        self._progress()

    def _fetch(self, stmt: Fetch) -> None:
        """Begin to copy a box for each active thread."""
        values, memory = self._box(stmt), self.memories[stmt.target.tensor]
        swizzle, index = memory.buffer.swizzle, [self._value(at) for at in stmt.target.index]
        first = self._locate(stmt.target, index, replace(memory.buffer, swizzle=None)).where
        where = first + np.arange(values.shape[1])
        begin = first - first % prod(memory.buffer.shape)
        where = begin + swizzle.position(where - begin) if swizzle else where
        self._begin_copies(memory, ThreadElements(memory.buffer, where, self.active), values, stmt.barrier)

    def _of_active(self, node: Expr) -> NDArray[np.int64]:
        """An index of each active thread."""
        return np.asarray(np.broadcast_to(self._value(node), (self.count, 1))[self.active, 0])

    def _box(self, stmt: Fetch) -> Array:
        """The box of each thread, zeros outside of the tensor."""
        view, count = stmt.map, len(self.active)
        rank = len(view.box)
        where = np.zeros((count, *view.box), np.int64)
        is_inside = np.ones(where.shape, np.bool_)
        for d, (at, extent, stride) in enumerate(zip(stmt.coordinates, view.extents, view.strides, strict=True)):
            along = (np.arange(view.box[d]) * view.all_steps[d]).reshape([-1 if n == d else 1 for n in range(rank)])
            coordinate = self._of_active(at).reshape(-1, *[1] * rank) + along
            is_inside &= (coordinate >= 0) & (coordinate < extent)
            where += coordinate * stride
        where, is_inside = where.reshape(count, -1), is_inside.reshape(count, -1)
        source = self.memories[view.tensor]
        values = self._read(source, ThreadElements(source.buffer, np.where(is_inside, where, 0), self.active))
        return np.where(is_inside, values, np.zeros_like(values))

    def _await(self, memory: BufferState, elements: ThreadElements, last_bits: Array) -> None:
        """Wait for the phases with this last bit of their number."""
        self._read(memory, elements)
        for element, last_bit in dict(zip(elements.where[:, 0].tolist(), last_bits.tolist(), strict=True)).items():
            is_over = partial(self.barriers.is_over, memory, element, last_bit)
            if self.turns is not None:
                self.turns.wait(is_over, memory.buffer.name)
            elif not is_over():
                raise RaceError(f"{memory.buffer.name}: threads wait for what nobody brings")
            self._end(memory, element, last_bit)

    def _end(self, memory: BufferState, element: int, last_bit: int) -> None:
        """End a phase: its copies have arrived, and memory that others have read may be overwritten."""
        phase = self.barriers.end(memory, element, last_bit)
        if phase is None:
            return
        for copy in phase.copies:
            self._arrive(copy)
            copy.memory.invisible[copy.elements.where] = 0  # products and the copy engine are of one proxy
            if self.turns is not None and not self._is_partial and copy.memory.threads is not None:
                copy.memory.threads.forget_at(copy.elements)
        for read in phase.reads:
            read.order()

    def _progress(self) -> None:
        """Note progress that other roles may wait for."""
        if self.turns is not None:
            self.turns.progress()

    def _arrive(self, copy: AsyncCopy) -> None:
        copy.memory.pending_writes[copy.elements.where] = False
        self._write(copy.memory, copy.elements, copy.values)
