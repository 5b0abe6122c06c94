"""The state of each element of a buffer while a kernel of a GPU is interpreted: its value, its accesses, and
asynchronous copies and products under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..instructions.instruction import Instruction, OperandSpec, swizzle_bytes
from ..ir.access import SEVERAL, AccessLog, Array, BoundsError, RaceError, ThreadElements, UndefinedRead
from ..ir.ir import Buffer, Scope

WRITTEN, FENCED = 2, 1
"""The state of an element that asynchronous products can't see yet: written, or written and fenced, which makes it
visible at the next barrier of the block. 0: visible."""


@dataclass(slots=True)
class BufferState:
    """A buffer's elements, flat, for each owner: the device, a block or a thread."""

    buffer: Buffer
    data: Array
    undefined: NDArray[np.bool_]
    pending_writes: NDArray[np.bool_]  # by asynchronous copies or products
    pending_reads: NDArray[np.bool_]  # by asynchronous products
    invisible: NDArray[np.uint8]  # to asynchronous products: see WRITTEN
    is_fenced: bool = False  # since the last barrier
    threads: AccessLog | None = None
    blocks: AccessLog | None = None

    @staticmethod
    def of(buffer: Buffer, data: Array, *, defined: bool = False) -> BufferState:
        none = np.zeros(data.shape, np.bool_)
        return BufferState(buffer, data, np.full(data.shape, not defined), none, none.copy(), none.astype(np.uint8))

    def fence(self) -> None:
        """A fence: writes so far become visible to products."""
        self.is_fenced = self.buffer.scope is not Scope.REGISTER
        self.invisible[self.invisible == WRITTEN] = FENCED if self.is_fenced else 0

    def sync(self) -> None:
        """A barrier of all threads of a block."""
        if self.is_fenced:
            self.invisible[self.invisible == FENCED] = 0
        self.is_fenced = False
        if self.threads is not None:
            self.threads.forget()

    def read(self, elements: ThreadElements) -> Array:
        """The values of elements. Raises UndefinedRead."""
        undefined = self.undefined[elements.where]
        if undefined.any():
            raise UndefinedRead(f"{elements.first_name(undefined)} is read before anything wrote it")
        return self.data[elements.where]

    def put(self, elements: ThreadElements, values: Array) -> None:
        """Store values of threads."""
        self.data[elements.where] = values
        self.undefined[elements.where] = False
        self.invisible[elements.where] = WRITTEN

    def refuse_pending_writes(self, elements: ThreadElements) -> None:
        """Raises RaceError where a pending copy or product writes to the elements."""
        pending_writes = self.pending_writes[elements.where]
        if pending_writes.any():
            raise RaceError(f"{elements.first_name(pending_writes)} is touched before what comes to it was waited for")

    def refuse_pending_reads(self, elements: ThreadElements) -> None:
        """Raises RaceError where a pending product reads the elements."""
        pending_reads = self.pending_reads[elements.where]
        if pending_reads.any():
            raise RaceError(
                f"{elements.first_name(pending_reads)} is written before the product that reads it was waited for"
            )

    def refuse_invisible(self, elements: ThreadElements, by: str) -> None:
        """Raises RaceError where a product can't see the values yet."""
        invisible = self.invisible[elements.where] > 0
        if invisible.any():
            raise RaceError(f"{by} reads {elements.first_name(invisible)}, which was not shown to it")

    def note_shared_read(self, elements: ThreadElements) -> None:
        """Note a read by a product, which all threads of the group execute."""
        if self.threads is not None:
            self.threads.reader[elements.where] = SEVERAL


class AsyncCopy(NamedTuple):
    """An asynchronous copy under way."""

    memory: BufferState
    elements: ThreadElements
    values: Array


class AsyncProduct(NamedTuple):
    """A product under way: its sums, and what it reads of shared memory."""

    sums: Sequence[tuple[BufferState, ThreadElements]]
    reads: Sequence[tuple[BufferState, ThreadElements]]


Work = TypeVar("Work")


@dataclass(slots=True)
class AsyncWork(Generic[Work]):
    """Work that was started and not waited for: uncommitted work, and committed groups."""

    uncommitted: list[Work] = field(default_factory=list)
    groups: list[list[Work]] = field(default_factory=list)

    def commit(self) -> None:
        self.groups.append(self.uncommitted)
        self.uncommitted = []

    def wait(self, pending: int) -> list[Work]:
        """Remove and return all groups but the newest `pending`, as one list."""
        done, self.groups = self.groups[: -pending or None], self.groups[len(self.groups) - pending :]
        return [work for group in done for work in group]

    @property
    def pending(self) -> list[Work]:
        return [work for group in (*self.groups, self.uncommitted) for work in group]


def check_alignment(name: str, elements: ThreadElements, operand: OperandSpec) -> None:
    """Raises BoundsError unless an operand in memory begins on a multiple of its size."""
    if operand.scope is Scope.REGISTER or not len(elements.where):
        return
    buffer = elements.buffer
    uneven = elements.where % prod(buffer.shape) * buffer.dtype.size_bytes % operand.size_bytes != 0
    uneven[:, 1:] = False
    if uneven.any():
        raise BoundsError(f"{name}: {elements.first_name(uneven)} is not on a multiple of {operand.size_bytes} bytes")


def check_matrices(instruction: Instruction, reads: Sequence[tuple[BufferState, ThreadElements]]) -> None:
    """Raises BoundsError unless the parts of a matrix that threads name lie where the unit expects them."""
    for operand, (memory, elements) in zip(instruction.ins, reads, strict=False):  # the last ones are sums
        matrix = operand.matrix
        if matrix is None:
            continue
        size, each = prod(memory.buffer.shape), memory.buffer.dtype.size_bytes
        begin = reads[matrix.begin][1].where[:: instruction.threads, :1] % size * each
        expected = (begin + np.array(matrix.offsets_bytes)).reshape(-1, 1)
        expected = swizzle_bytes(expected) if matrix.is_swizzled else expected
        wrong = np.zeros(elements.where.shape, np.bool_)
        wrong[:, :1] = elements.where[:, :1] % size * each != expected
        if wrong.any():
            raise BoundsError(f"{instruction.name}: {elements.first_name(wrong)} is not where the matrix has it")
