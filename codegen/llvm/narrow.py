"""Casts between float32 and the narrow floats in LLVM IR, by arithmetic on their bits.

For machines without an instruction for them, where LLVM would call a library that need not be there. Narrow floats are
words of 16 bits. Rounding is to the nearest, half to even. What follows for float16 is in the manner of F. Giesen,
"Half to float done quick" and "Float to half conversions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..expr.dtype import DType
from .types import Emit, constant_of, vector_of


class _Words:
    """LLVM's names of types and constants of some lanes, and instructions on 32 bits."""

    def __init__(self, lanes: int, emit: Emit) -> None:
        self._lanes = lanes
        self.emit = emit
        self.whole, self.short, self.float, self.flag = map(self.of, ("i32", "i16", "float", "i1"))

    def of(self, word: str) -> str:
        return vector_of(word, self._lanes)

    def number(self, value: int) -> str:
        return constant_of("i32", value, self._lanes)

    def __call__(self, word: str, left: str, right: str | int) -> str:
        right = self.number(right) if isinstance(right, int) else right
        return self.emit(f"{word} {self.whole} {left}, {right}")

    def bits(self, value: str, kind: str, to: str) -> str:
        return self.emit(f"bitcast {kind} {value} to {to}")

    def choose(self, condition: str, yes: str, no: str) -> str:
        return self.emit(f"select {self.flag} {condition}, {self.whole} {yes}, {self.whole} {no}")

    def widen(self, value: str) -> str:
        """The bits of two bytes as 32."""
        return self.emit(f"zext {self.short} {value} to {self.whole}")

    def shorten(self, bits: str) -> str:
        return self.emit(f"trunc {self.whole} {bits} to {self.short}")


def _brain_to_float(lanes: int, value: str, emit: Emit) -> str:
    """bfloat16 is the upper half of a float32."""
    words = _Words(lanes, emit)
    return words.bits(words("shl", words.widen(value), 16), words.whole, words.float)


def _float_to_brain(lanes: int, value: str, emit: Emit) -> str:
    words = _Words(lanes, emit)
    bits = words.bits(value, words.float, words.whole)
    upper = words("lshr", bits, 16)
    rounded = words("lshr", words("add", bits, words("add", words("and", upper, 1), 0x7FFF)), 16)
    unordered = emit(f"fcmp uno {words.float} {value}, {value}")
    return words.shorten(words.choose(unordered, words("or", upper, 0x40), rounded))


def _half_to_float(lanes: int, value: str, emit: Emit) -> str:
    """Its bits in the place of those of a float32 make a number too small by 2^112, also where it is subnormal."""
    words = _Words(lanes, emit)
    bits = words.widen(value)
    size, sign = words("and", bits, 0x7FFF), words("shl", words("and", bits, 0x8000), 16)
    shifted = words.bits(words("shl", size, 13), words.whole, words.float)
    factor = words.bits(words.number((127 + 112) << 23), words.whole, words.float)
    scaled = words.bits(emit(f"fmul {words.float} {shifted}, {factor}"), words.float, words.whole)
    special = words("icmp ugt", size, 0x7BFF)
    magnitude = words.choose(special, words("or", scaled, 0x7F800000), scaled)
    return words.bits(words("or", magnitude, sign), words.whole, words.float)


def _float_to_half(lanes: int, value: str, emit: Emit) -> str:
    """Subnormal results are rounded by an addition whose sum has their last bit as its own."""
    words = _Words(lanes, emit)
    bits = words.bits(value, words.float, words.whole)
    size, sign = words("and", bits, 0x7FFFFFFF), words("lshr", words("and", bits, 0x80000000), 16)
    magic = ((127 - 15) + (23 - 10) + 1) << 23
    least = words.bits(words.number(magic), words.whole, words.float)
    sum_ = emit(f"fadd {words.float} {words.bits(size, words.whole, words.float)}, {least}")
    subnormal = words("sub", words.bits(sum_, words.float, words.whole), magic)
    odd = words("and", words("lshr", size, 13), 1)
    shifted = words("sub", words("add", words("add", size, odd), 0xFFF), (127 - 15) << 23)
    finite = words.choose(words("icmp ult", size, (127 - 14) << 23), subnormal, words("lshr", shifted, 13))
    special = words.choose(words("icmp ugt", size, 0x7F800000), words.number(0x7E00), words.number(0x7C00))
    magnitude = words.choose(words("icmp ult", size, (127 + 16) << 23), finite, special)
    return words.shorten(words("or", magnitude, sign))


CASTS: Mapping[tuple[DType, DType], Callable[[int, str, Emit], str]] = {
    (DType.BF16, DType.F32): _brain_to_float,
    (DType.F32, DType.BF16): _float_to_brain,
    (DType.F16, DType.F32): _half_to_float,
    (DType.F32, DType.F16): _float_to_half,
}
"""Emitters of casts: lanes, value and `emit` to the name of the result."""
