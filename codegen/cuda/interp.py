"""What a kernel of a GPU means: an interpreter that runs threads side by side, and checks every access.

Each statement is run by all threads of many blocks before the next one is. Real ones run in any order between two
barriers; so an element that one thread wrote may be touched by another only behind a barrier, and this is what is
checked. What an asynchronous copy writes may not be touched until it was waited for, by whomever; no more may the sums
of a product that goes on by itself, nor what it reads be written. It sees what threads wrote once they said so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..expr import Expr, Load, evaluate
from ..interp import Array, BoundsError, RaceError
from ..ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    For,
    If,
    Kernel,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    nested,
    written_in,
)
from .gpu import WARP
from .instruction import Instruction, Operand, Order, Queue, exchanged
from .instructions import INSTRUCTIONS
from .memory import Memory, Notes, Places

MOST_THREADS = 1 << 14
"""Threads that run side by side, where blocks have not more: what each has in registers takes memory."""


def run(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Execute a kernel on its parameters (inputs then outputs), writing the outputs in place.

    A parameter that the kernel stores to is an output: what it held before counts as undefined. Raises BoundsError,
    UndefinedRead or RaceError on the first access that is wrong, and ValueError if the arrays don't fit the parameters.
    The kernel should have passed `verify`.
    """
    stored = written_in(kernel.body)
    memories: dict[str, Memory] = {}
    for buffer, array in zip(kernel.params, arrays, strict=True):
        if array.shape != buffer.shape or array.dtype != buffer.dtype.numpy or not array.flags.c_contiguous:
            raise ValueError(f"parameter {buffer}: the array is {array.dtype}{list(array.shape)}")
        memories[buffer.name] = Memory.of(buffer, array.reshape(-1), defined=buffer.name not in stored)
    for buffer in kernel.scratch:
        memories[buffer.name] = Memory.of(buffer, np.empty(prod(buffer.shape), buffer.dtype.numpy))
    with np.errstate(all="ignore"):
        for phase in kernel.body.body:
            _launch(phase, memories)


class _Copy(NamedTuple):
    """An asynchronous copy under way."""

    memory: Memory
    places: Places
    values: Array


class _Product(NamedTuple):
    """A product under way: its sums, and what it reads of shared memory."""

    sums: Sequence[tuple[Memory, Places]]
    reads: Sequence[tuple[Memory, Places]]


@dataclass(slots=True)
class _Phase:
    """Of a barrier in shared memory: what it expects, and what is under way."""

    expected_bytes: int = 0
    copies: list[_Copy] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether just as much comes as was said, so that it ends."""
        return 0 < self.expected_bytes == sum(copy.values.nbytes for copy in self.copies)


Work = TypeVar("Work")


@dataclass(slots=True)
class _UnderWay(Generic[Work]):
    """What was started and is not known to be done: not committed yet, and in groups."""

    started: list[Work] = field(default_factory=list)
    groups: list[list[Work]] = field(default_factory=list)

    def commit(self) -> None:
        self.groups.append(self.started)
        self.started = []

    def wait(self, pending: int) -> list[Work]:
        """What is done when all groups but the newest `pending` are."""
        done, self.groups = self.groups[: -pending or None], self.groups[len(self.groups) - pending :]
        return [work for group in done for work in group]

    @property
    def left(self) -> list[Work]:
        return [work for group in (*self.groups, self.started) for work in group]


def _launch(phase: Stmt, memories: Mapping[str, Memory]) -> None:
    loops, stmt = nested(phase, LoopKind.BLOCK)
    if not loops:
        raise ValueError("a phase of a GPU is a block loop")
    for memory in memories.values():
        memory.blocks = Notes.none(memory.data.size, "block")
    total = prod(loop.extent for loop in loops)
    together = max(1, MOST_THREADS // _threads(stmt))
    for first in range(0, total, together):
        blocks = np.arange(first, min(first + together, total))
        _Team(blocks, dict(memories)).run(loops, stmt)


def _threads(stmt: Stmt) -> int:
    """Of a block."""
    match stmt:
        case Alloc(body=body):
            return _threads(body)
        case For(extent=extent, body=body, kind=LoopKind.THREAD):
            return extent * _threads(body)
    return 1


@dataclass(slots=True)
class _Team:
    """The threads of some blocks at work."""

    blocks: NDArray[np.int64]  # their numbers
    memories: dict[str, Memory]
    names: dict[str, Any] = field(default_factory=dict)  # values of variables; where threads differ, a column of them
    block: NDArray[np.int64] = field(init=False)  # of each thread, counted from the first one here
    active: NDArray[np.int64] = field(init=False)  # the threads that come here
    copies: _UnderWay[_Copy] = field(default_factory=_UnderWay)
    products: _UnderWay[_Product] = field(default_factory=_UnderWay)
    phases: dict[int, _Phase] = field(default_factory=dict)  # that are not over, by the place of their barrier

    @property
    def count(self) -> int:
        return len(self.block)

    def run(self, loops: Sequence[For], stmt: Stmt) -> None:
        """The whole launch of these blocks, by its block loops and what is inside."""
        threads = _threads(stmt)
        self.block = np.repeat(np.arange(len(self.blocks)), threads)
        self.active = np.arange(self.count)
        self._count(loops, self.blocks[self.block])
        while isinstance(stmt, Alloc):
            self.memories[stmt.buffer.name] = self._own(stmt.buffer)
            stmt = stmt.body
        for memory in self.memories.values():
            memory.threads = Notes.none(memory.data.size, "thread")
        inner, stmt = nested(stmt, LoopKind.THREAD)
        self._count(inner, self.active % threads)
        self.statement(stmt)
        if self.copies.left or self.products.left or self.phases:
            raise RaceError("a block ends before its asynchronous copies and products were waited for")

    def _count(self, loops: Sequence[For], number: NDArray[np.int64]) -> None:
        """Variables of nested loops, by the number that they count."""
        for loop in reversed(loops):
            self.names[loop.var] = (number % loop.extent)[:, None]
            number = number // loop.extent

    def _own(self, buffer: Buffer) -> Memory:
        """Memory of each block, or of each thread."""
        owners = self.count if buffer.scope is Scope.REGISTER else len(self.blocks)
        return Memory.of(buffer, np.empty(owners * prod(buffer.shape), buffer.dtype.numpy))

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
                places = self._places(stmt)
                lanes = places.where.shape[1]
                values = np.broadcast_to(self._value(stmt.value), (self.count, max(lanes, stmt.value.lanes)))
                self._write(self.memories[stmt.tensor], places, values[self.active, :lanes])
            case Barrier():
                for memory in self.memories.values():
                    memory.meet()
            case Do():
                self._do(stmt)
            case Prefetch():
                pass

    def _branch(self, condition: Expr, then: Stmt) -> None:
        holds = np.broadcast_to(self._value(condition), (self.count, 1))[:, 0]
        everybody = self.active
        self.active = everybody[holds[everybody]]
        if len(self.active):
            self.statement(then)
        self.active = everybody

    # Values

    def _value(self, node: Expr) -> Any:
        """(threads, lanes), or what can be broadcast to that. Of threads that don't come here it is anything."""
        return evaluate(node, self.names, self._load)

    def _load(self, node: Load, index: Sequence[Any]) -> Array:
        memory = self.memories[node.tensor]
        places = self._located(node, index, memory.buffer)
        return self._of_all(self._read(memory, places), node.lanes)

    # Memory

    def _places(self, access: Load | Store) -> Places:
        return self._located(
            access, [self._value(index) for index in access.index], self.memories[access.tensor].buffer
        )

    def _located(self, access: Load | Store, index: Sequence[Any], buffer: Buffer) -> Places:
        """Where an access goes, its bounds checked."""
        lanes = max((i.lanes for i in access.index), default=1)
        used = lanes if access.count is None else access.count
        total = np.zeros((len(self.active), used), np.int64)
        for place, extent, stride in zip(index, buffer.shape, buffer.strides, strict=True):
            each = np.broadcast_to(place, (self.count, lanes))[self.active, :used]
            if len(each) and (each.min() < 0 or each.max() >= extent):
                wrong = each[(each < 0) | (each >= extent)][0]
                raise BoundsError(f"{access.tensor}: index {wrong} is outside shape {list(buffer.shape)}")
            total += each * stride
        if buffer.swizzle is not None:
            total = buffer.swizzle.place(total)
        if buffer.scope is not Scope.GLOBAL:
            owner = self.active if buffer.scope is Scope.REGISTER else self.block[self.active]
            total += (owner * prod(buffer.shape))[:, None]
        return Places(buffer, total, self.active)

    def _read(self, memory: Memory, places: Places) -> Array:
        memory.refuse_arriving(places)
        found = memory.defined(places)
        self._note(memory, places, is_write=False)
        return found

    def _write(self, memory: Memory, places: Places, values: Array) -> None:
        memory.refuse_arriving(places)
        memory.refuse_lent(places)
        self._note(memory, places, is_write=True)
        memory.put(places, values)

    def _note(self, memory: Memory, places: Places, *, is_write: bool) -> None:
        if memory.buffer.scope is Scope.REGISTER or not len(places.threads):
            return
        shape = places.where.shape
        blocks, threads = self.blocks[self.block[places.threads]], places.threads % (self.count // len(self.blocks))
        for notes, by in ((memory.blocks, blocks), (memory.threads, threads)):
            if notes is not None:
                (notes.wrote if is_write else notes.read)(places, np.broadcast_to(by[:, None], shape))

    # Instructions

    def _do(self, stmt: Do) -> None:
        one = INSTRUCTIONS[stmt.name]
        for node, operand in zip((*stmt.outs, *stmt.ins), (*one.outs, *one.ins), strict=True):
            self._refuse_uneven(stmt.name, self._places(node), operand)
        if one.queue is Queue.BARRIER:
            self._by_barrier(stmt, one)
            return
        if one.order in (Order.COMMIT, Order.WAIT, Order.SHOW) and len(self.active) < self.count:
            raise RaceError(f"{one.name}: some threads come here without the others, and it is for those alone")
        if one.order is Order.COMMIT:
            (self.products if one.queue is Queue.PRODUCTS else self.copies).commit()
        elif one.order is Order.WAIT:
            self._wait(one)
        elif one.order is Order.SHOW:
            for memory in self.memories.values():
                if memory.buffer.scope is one.shows:
                    memory.show()
        else:
            (self._multiply if one.queue is Queue.PRODUCTS else self._execute)(stmt, one)

    def _wait(self, one: Instruction) -> None:
        if one.queue is Queue.COPIES:
            for copy in self.copies.wait(one.pending):
                self._arrive(copy)
            return
        for product in self.products.wait(one.pending):
            for memory, places in product.sums:
                memory.arriving[places.where] = False
            for memory, places in product.reads:
                memory.lent[places.where] = False
                memory.read_by_several(places)  # up to now, for those who did not wait for it
        self._lend()

    def _execute(self, stmt: Do, one: Instruction) -> None:
        """What is done by the threads themselves, but for copies: these only begin."""
        ins = [self._warps(self._load(node, [self._value(index) for index in node.index])) for node in stmt.ins]
        for node, values in zip(stmt.outs, one.meaning(*ins), strict=True):
            memory, places = self.memories[node.tensor], self._places(node)
            flat = values.reshape(-1, values.shape[-1])[self.active]
            if one.order is Order.COMMITTED:
                copy = _Copy(memory, places, flat)
                self._begin(copy)
                self.copies.started.append(copy)
            else:
                self._write(memory, places, flat)

    def _multiply(self, stmt: Do, one: Instruction) -> None:
        """A product, which goes on by itself: it sees what was shown, and what products before it come to."""
        ins, reads = [], []
        for node, operand in zip(stmt.ins, one.ins, strict=True):
            memory, places = self.memories[node.tensor], self._places(node)
            memory.refuse_unseen(places, one.name)
            if operand.scope is Scope.SHARED:
                reads.append((memory, places))
                found = self._read(memory, places)
                memory.read_by_several(places)
            else:
                found = memory.defined(places)
            ins.append(self._warps(self._of_all(found, node.lanes)))
        self._refuse_elsewhere(one, reads)
        sums = [(self.memories[node.tensor], self._places(node)) for node in stmt.outs]
        for (memory, places), values in zip(sums, one.meaning(*ins), strict=True):
            memory.data[places.where] = values.reshape(-1, values.shape[-1])[self.active]
        self.products.started.append(_Product(sums, reads))
        self._lend()

    def _of_all(self, values: Array, lanes: int) -> Array:
        """Values of the threads that come here, as of all, with so many lanes."""
        found = np.zeros((self.count, lanes), values.dtype)
        found[self.active, : values.shape[1]] = values
        return found

    def _lend(self) -> None:
        """What products under way read and write."""
        for product in self.products.left:
            for memory, places in product.sums:
                memory.arriving[places.where] = True
            for memory, places in product.reads:
                memory.lent[places.where] = True

    @staticmethod
    def _refuse_elsewhere(one: Instruction, reads: Sequence[tuple[Memory, Places]]) -> None:
        """What threads name of a matrix lies where the unit that reads it looks, which is told where it begins."""
        matrices = [operand.matrix for operand in one.ins if operand.matrix is not None]
        for matrix, (memory, places) in zip(matrices, reads, strict=True):
            size, each = prod(memory.buffer.shape), memory.buffer.dtype.size_bytes
            begin = reads[matrix.begin][1].where[:: one.threads, :1] % size * each
            wanted = (begin + np.array(matrix.places)).reshape(-1, 1)
            wanted = exchanged(wanted) if matrix.is_exchanged else wanted
            wrong = np.zeros(places.where.shape, np.bool_)
            wrong[:, :1] = places.where[:, :1] % size * each != wanted
            if wrong.any():
                raise BoundsError(f"{one.name}: {places.element(wrong)} is not where the matrix has it")

    @staticmethod
    def _refuse_uneven(name: str, places: Places, operand: Operand) -> None:
        """An operand in memory begins on a multiple of its size."""
        if operand.scope is Scope.REGISTER or not len(places.where):
            return
        buffer = places.buffer
        uneven = places.where % prod(buffer.shape) * buffer.dtype.size_bytes % operand.size_bytes != 0
        uneven[:, 1:] = False
        if uneven.any():
            raise BoundsError(f"{name}: {places.element(uneven)} is not on a multiple of {operand.size_bytes} bytes")

    def _warps(self, values: Array) -> Array:
        """An operand of all threads, as warps; of less than a warp, as if there were more."""
        missing = -self.count % WARP
        whole = np.concatenate([values, np.zeros((missing, values.shape[1]), values.dtype)]) if missing else values
        return whole.reshape(-1, WARP, values.shape[1])

    def _begin(self, copy: _Copy) -> None:
        """It may write at any time from now on."""
        copy.memory.refuse_arriving(copy.places)
        copy.memory.refuse_lent(copy.places)
        self._note(copy.memory, copy.places, is_write=True)
        copy.memory.arriving[copy.places.where] = True

    # Barriers in shared memory, each of which holds the number of its phase

    def _by_barrier(self, stmt: Do, one: Instruction) -> None:
        """What threads do with barriers: all but the first time at once, whoever else does so meanwhile."""
        node = stmt.ins[0] if stmt.ins else stmt.outs[0]
        memory, places = self.memories[node.tensor], self._places(node)
        match one.order:
            case Order.AT_ONCE:
                self._write(memory, places, np.zeros_like(places.where))
            case Order.WAIT:
                last_bits = np.broadcast_to(self._value(stmt.ins[1]), (self.count, 1))[self.active, 0]
                self._await(memory, places, last_bits)
            case Order.COMMIT:
                for phase in self._phases(memory, places):
                    phase.expected_bytes += one.size_bytes
            case Order.COMMITTED:
                self._bring(stmt, self._phases(memory, places))

    def _phases(self, memory: Memory, places: Places) -> list[_Phase]:
        """Those that the barriers of the threads are in."""
        memory.defined(places)
        return [self.phases.setdefault(int(place), _Phase()) for place in places.where[:, 0]]

    def _bring(self, stmt: Do, phases: Sequence[_Phase]) -> None:
        """Begin a copy for each thread that comes here."""
        [to], (_, source) = stmt.outs, stmt.ins
        memory, places = self.memories[to.tensor], self._places(to)
        values = self._read(self.memories[source.tensor], self._places(source))
        for number, phase in enumerate(phases):
            own = slice(number, number + 1)
            copy = _Copy(memory, Places(places.buffer, places.where[own], places.threads[own]), values[own])
            self._begin(copy)
            phase.copies.append(copy)

    def _await(self, memory: Memory, places: Places, last_bits: Array) -> None:
        """Until the phases are over whose numbers end so."""
        self._read(memory, places)
        for place, last_bit in dict(zip(places.where[:, 0].tolist(), last_bits.tolist(), strict=True)).items():
            if memory.data[place] % 2 != last_bit:
                continue  # that one is over
            phase = self.phases.pop(place, None)
            if phase is None or not phase.is_complete:
                raise RaceError(f"{memory.buffer.name}: threads wait for what nobody brings")
            for copy in phase.copies:
                self._arrive(copy)
            memory.data[place] = memory.data[place] + 1

    def _arrive(self, copy: _Copy) -> None:
        copy.memory.arriving[copy.places.where] = False
        self._write(copy.memory, copy.places, copy.values)
