"""LLVM's spelling of vector accesses: leading lanes of a vector in memory, and lanes picked out of one or two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .dtype import DType
from .instructions import Emit, memory_type, suffix, type_name, vector_in_memory


def load(dtype: DType, lanes: int, used: int, where: str, masks: bool, emit: Emit) -> str:
    """Place what loads the leading lanes from a pointer, zeros in the others: the name of the value.

    `masks`: whether the machine has masked loads.
    """
    kind, size = memory_type(dtype, lanes), dtype.size_bytes
    if used == lanes:
        name = emit(f"load {kind}, ptr {where}, align {size}")
    elif masks:
        operands = f"ptr align {size} {where}, {_mask(lanes, used)}, {kind} zeroinitializer"
        name = emit(f"call {kind} @llvm.masked.load.{suffix(dtype, lanes)}.p0({operands})")
    else:
        part = vector_in_memory(dtype, used)
        short = emit(f"load {part}, ptr {where}, align {size}")
        choice = _choice(min(lane, used) for lane in range(lanes))
        name = emit(f"shufflevector {part} {short}, {part} zeroinitializer, {choice}")
    return emit(f"icmp ne {kind} {name}, zeroinitializer") if dtype is DType.BOOL else name


def store(dtype: DType, lanes: int, used: int, where: str, value: str, masks: bool, emit: Emit) -> str:
    """The instruction that stores the leading lanes of a value, of the type that it has in memory, to a pointer.

    `masks`: whether the machine has masked stores; without them a shorter vector is placed first.
    """
    kind, size = memory_type(dtype, lanes), dtype.size_bytes
    if used == lanes:
        return f"store {kind} {value}, ptr {where}, align {size}"
    if masks:
        operands = f"{kind} {value}, ptr align {size} {where}, {_mask(lanes, used)}"
        return f"call void @llvm.masked.store.{suffix(dtype, lanes)}.p0({operands})"
    part = vector_in_memory(dtype, used)
    short = emit(f"shufflevector {kind} {value}, {kind} poison, {_choice(range(used))}")
    return f"store {part} {short}, ptr {where}, align {size}"


class Picked(NamedTuple):
    """Elements that lie close together, as lanes of one or two vectors.

    The vectors begin at the lowest and end at the highest, so that nothing else than what is between is read.
    """

    starts: tuple[int, ...]  # of the vectors, in elements
    used: int  # leading lanes of each
    lanes: tuple[int, ...]  # of each element; the second vector's follow those of the first

    @staticmethod
    def of(offsets: Sequence[int], lanes: int) -> Picked | None:
        """Elements at these offsets; None if they are two at most, or lie too far apart."""
        low, span = min(offsets), max(offsets) - min(offsets) + 1
        if len(offsets) <= 2 or span > 2 * lanes:
            return None
        beyond = max(0, span - lanes)  # where the second vector begins, from the first
        picks = tuple(n - low if n - low < lanes else n - low - beyond + lanes for n in offsets)
        return Picked((low, low + beyond) if beyond else (low,), min(lanes, span), picks)

    def value(self, dtype: DType, lanes: int, vectors: Sequence[str], emit: Emit) -> str:
        """Place what picks the elements out of the vectors, zeros after them: the name of the value."""
        kind, spare = type_name(dtype, lanes), lanes - len(self.lanes)
        second = vectors[1] if len(vectors) > 1 else "zeroinitializer"
        choice = _choice((*self.lanes, *[lanes] * spare))  # a lane of zeros, or whatever, to be replaced by zeros
        name = emit(f"shufflevector {kind} {vectors[0]}, {kind} {second}, {choice}")
        if not spare or len(vectors) == 1:
            return name
        return emit(f"select {_mask(lanes, len(self.lanes))}, {kind} {name}, {kind} zeroinitializer")


def _mask(lanes: int, used: int) -> str:
    """The leading lanes, as the mask of a load or store."""
    bits = ", ".join("i1 true" if lane < used else "i1 false" for lane in range(lanes))
    return f"<{lanes} x i1> <{bits}>"


def _choice(lanes: Iterable[int]) -> str:
    """A shuffle's choice of lanes."""
    picks = [f"i32 {lane}" for lane in lanes]
    return f"<{len(picks)} x i32> <{', '.join(picks)}>"
