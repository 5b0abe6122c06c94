"""Instruction: one of NVIDIA GPUs that no expression stands for: what it is in CUDA C, and what it means in numpy.

An operand is some consecutive elements, of each thread's own registers or at a place in memory that each thread names.
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

from ..ir import Scope
from .gpu import WARP

Array = NDArray[Any]

F16, BF16, F32, S8, U8, S32 = (
    np.dtype(name) for name in (np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.uint8, np.int32)
)


class Matrix(NamedTuple):
    """What threads that execute an instruction together name of a matrix in shared memory, 16 bytes each.

    The unit that reads it is told where it begins alone. It takes it to lie in rows of 128 bytes whose chunks of 16 are
    exchanged (`exchanged`), if they are; so what the threads name must be just there.
    """

    begin: int  # the number, among `ins`, of the operand at which it begins, with what the first of them names
    places: tuple[int, ...]  # of each of them: how many bytes further what it names lies, before the exchange
    is_exchanged: bool = True


def exchanged(place: Array) -> Array:
    """Where bytes of shared memory lie that is swizzled by 128 bytes: chunk c of row r in place of chunk c ^ r % 8."""
    return np.asarray(place ^ (place >> 3 & 0x70))


class Operand(NamedTuple):
    """Consecutive elements: in registers, from a multiple of four bytes on; in memory, of the size of them all."""

    scope: Scope
    dtype: np.dtype[Any] | None  # None: any
    size_bytes: int
    matrix: Matrix | None = None  # that it is a part of

    def takes(self, dtype: np.dtype[Any], count: int) -> bool:
        """Whether so many elements of a type are what it wants."""
        return self.dtype in (None, dtype) and count * dtype.itemsize == self.size_bytes

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes of {self.dtype or 'any type'} in {self.scope}"


class Order(StrEnum):
    """When its results are there, or what it orders."""

    AT_ONCE = "at once"
    COMMITTED = "committed"  # they may come at any time until the group that they are committed to was waited for
    COMMIT = "commit"  # what was started and not committed is a group; of a barrier, what it is to expect
    WAIT = "wait"  # until all but the newest `pending` groups are there; of a barrier, until all is that it expects
    SHOW = "show"  # what threads wrote so far to memory of a scope is to be seen by products


class Queue(StrEnum):
    """What is committed and waited for together."""

    COPIES = "copies"
    PRODUCTS = "products"  # read their operands and add to their sums while threads go on; one sees the sums of another
    BARRIER = "barrier"  # in shared memory, the first operand: it counts the bytes that come


def nothing() -> tuple[()]:
    """The meaning of what has no operands."""
    return ()


def same(values: Array) -> tuple[Array]:
    """The meaning of what moves its operand, or leaves it where it is."""
    return (values,)


@dataclass(frozen=True, slots=True)
class Instruction:
    """See the module. `meaning` takes the arrays of `ins` and gives those of `outs`."""

    name: str
    outs: tuple[Operand, ...]
    ins: tuple[Operand, ...]
    pointers: tuple[str, ...]  # types and names of the parameters of a device function: places of outs, then of ins
    body: str  # of that function, in CUDA C
    meaning: Callable[..., tuple[Array, ...]]
    reference: str
    capability: int  # the least compute capability
    order: Order = Order.AT_ONCE
    pending: int = 0
    size_bytes: int = 0  # that a barrier is to expect
    threads: int = WARP  # that execute it together
    queue: Queue | None = None
    shows: Scope | None = None
    is_in_place: bool = False  # the result is the last operand, with more added
    arch: str = ""  # the only architecture that has it; "": all from the capability on

    @property
    def definition(self) -> str:
        """The device function."""
        return f"static __device__ __forceinline__ void {self._symbol}({', '.join(self.pointers)}) {{\n{self.body}}}\n"

    def call(self, places: Sequence[str]) -> str:
        """A call of it, with pointers to whatever types."""
        kinds = (pointer.rpartition(" ")[0] for pointer in self.pointers)
        given = ", ".join(f"reinterpret_cast<{kind}>({place})" for kind, place in zip(kinds, places, strict=True))
        return f"{self._symbol}({given});"

    @property
    def _symbol(self) -> str:
        return self.name.replace(".", "_")
