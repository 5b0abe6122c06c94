"""Instruction: one of NVIDIA GPUs that no expression stands for: what it is in CUDA C, and what it means in numpy.

An operand is some consecutive elements: registers of each thread, or memory from an address on that each thread names.
Meanings see all warps of a block at once: an operand is an array (warps, 32, elements).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..gpu import WARP
from ..ir.ir import Scope

Array = NDArray[Any]

F16, BF16, F32, S8, U8, S32 = (
    np.dtype(name) for name in (np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.uint8, np.int32)
)


class Matrix(NamedTuple):
    """The part of a matrix in shared memory that the threads of an instruction address together, 16 bytes each.

    The unit that reads it is given the start alone and expects rows of 128 bytes, whose chunks of 16 are exchanged
    (`swizzle_bytes`) if `is_swizzled`. The addresses of the threads must agree with that.
    """

    begin: int  # the number, among `ins`, of the operand whose first thread addresses its start
    offsets_bytes: tuple[int, ...]  # of each thread: from the start to its part, before the exchange
    is_swizzled: bool = True


def swizzle_bytes(offset: Array) -> Array:
    """Offsets of bytes after the swizzle of 128 bytes, which puts chunk c of row r in place of chunk c ^ r % 8."""
    return np.asarray(offset ^ (offset >> 3 & 0x70))


class OperandSpec(NamedTuple):
    """Consecutive elements: in registers, from a multiple of four bytes on; in memory, of the size of them all."""

    scope: Scope
    dtype: np.dtype[Any] | None  # None: any
    size_bytes: int
    matrix: Matrix | None = None  # of which it is a part

    def is_match(self, dtype: np.dtype[Any], count: int) -> bool:
        """Whether `count` elements of a type match."""
        return self.dtype in (None, dtype) and count * dtype.itemsize == self.size_bytes

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes of {self.dtype or 'any type'} in {self.scope}"


def in_registers(dtype: np.dtype[Any] | None, size_bytes: int) -> OperandSpec:
    """An operand in registers of each thread."""
    return OperandSpec(Scope.REGISTER, dtype, size_bytes)


def in_shared(size_bytes: int, dtype: np.dtype[Any] | None = None, matrix: Matrix | None = None) -> OperandSpec:
    """An operand in shared memory."""
    return OperandSpec(Scope.SHARED, dtype, size_bytes, matrix)


class Order(StrEnum):
    """When the results of an instruction are available, or which effects it orders."""

    IMMEDIATE = "immediate"
    ASYNC = "async"  # results may come at any time until their group was waited for
    COMMIT = "commit"  # uncommitted work becomes a group; of a barrier, an arrival with the bytes to expect
    WAIT = "wait"  # until all but the newest `pending` groups are done; of a barrier, until its phase is over
    FENCE = "fence"  # writes of threads to memory of a scope so far become visible to products
    SYNC = "sync"  # the threads that execute it together see each other's writes


class Queue(StrEnum):
    """Instructions that are committed and waited for together."""

    COPIES = "copies"
    PRODUCTS = "products"  # read their operands and add to their sums while threads go on; one sees the sums of another
    NAMED = "named"  # barriers of the block, by number: two warpgroups meet there, one of which may go on at once
    BARRIER = "barrier"  # in shared memory, the first operand: it counts the bytes that come


def nothing() -> tuple[()]:
    """The meaning of an instruction without operands."""
    return ()


def same(values: Array) -> tuple[Array]:
    """The meaning of an instruction that copies its operand or leaves it unchanged."""
    return (values,)


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a GPU. `meaning` takes the arrays of `ins` and gives those of `outs`."""

    name: str
    body: str  # of its device function, in CUDA C
    section: str  # of "PTX ISA", release 9.0
    outs: tuple[OperandSpec, ...] = ()
    ins: tuple[OperandSpec, ...] = ()
    parameters: str = ""  # of the device function: pointers to outs, then to ins
    meaning: Callable[..., tuple[Array, ...]] = nothing
    capability: int = 80  # the least compute capability
    order: Order = Order.IMMEDIATE
    pending: int = 0
    size_bytes: int = 0  # bytes that a barrier then expects
    arrivals: int = 0  # arrivals that end a phase, where it sets up a barrier
    threads: int = WARP  # threads that execute it together
    queue: Queue | None = None
    fences: Scope | None = None
    is_in_place: bool = False  # the result is the last operand, with more added
    arch: str = ""  # the only architecture that has it; "": all from the capability on

    @property
    def definition(self) -> str:
        """The device function."""
        return f"static __device__ __forceinline__ void {self._symbol}({self.parameters}) {{\n{self.body}}}\n"

    def call(self, addresses: Sequence[str]) -> str:
        """A call of it, with pointers to whatever types."""
        kinds = (pointer.rpartition(" ")[0] for pointer in self.parameters.split(", ") if pointer)
        pairs = zip(kinds, addresses, strict=True)
        arguments = ", ".join(f"reinterpret_cast<{kind}>({address})" for kind, address in pairs)
        return f"{self._symbol}({arguments});"

    @property
    def _symbol(self) -> str:
        return self.name.replace(".", "_")


# Inline assembly.


class Sums(NamedTuple):
    """A type of sums: in numpy, in CUDA C, and as a register constraint."""

    dtype: np.dtype[Any]
    kind: str
    letter: str


SUMS = {"f32": Sums(F32, "float", "f"), "s32": Sums(S32, "int", "r")}
"""Types of sums by their names in instructions."""

OPERANDS = {"f16": F16, "bf16": BF16, "tf32": F32, "s8": S8, "u8": U8}
"""Types of operands by their names in instructions."""


def asm(words: str, inputs: str = "", gap: str = " ") -> str:
    """A statement without results, which accesses of memory are not moved across."""
    return f'  asm volatile("{words};"{gap}::{inputs and f" {inputs} "}: "memory");\n'


def slots(first: int, count: int) -> str:
    """Operands of an `asm` as a vector, e.g. {%0, %1}."""
    return "{" + ", ".join([f"%{n}" for n in range(first, first + count)]) + "}"


def constraints(constraint: str, array: str, count: int) -> str:
    """The elements of an array as operands of an `asm`, e.g. "r"(a[0]), "r"(a[1])."""
    return ", ".join([f'"{constraint}"({array}[{n}])' for n in range(count)])
