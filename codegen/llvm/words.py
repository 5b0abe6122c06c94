"""Products of small numbers in 32-bit words, by the instructions that add them up as words.

See "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2, and "Arm Architecture Reference Manual for
A-profile", C7.2. Those of integers are exact: what saturates is for small ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from .types import Emit, Widths, constant_of, vector_of

PAIR_SUMS = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}
"""LLVM's name of VPMADDWD by the width of its vectors: sums of two products of signed words each."""

BYTE_PAIR_SUMS = {128: "ssse3.pmadd.ub.sw.128", 256: "avx2.pmadd.ub.sw", 512: "avx512.pmaddubs.w.512"}
"""LLVM's name of VPMADDUBSW: sums of two products each of unsigned by signed bytes, of 16 bits. It saturates."""

VECTORS = (128, 256, 512)
"""Widths of vectors for which there are names of instructions."""

_EIGHT = "splat (i16 8)"


def dot4(lanes: int, args: Sequence[str], widths: Widths, emit: Emit, *, is_small: bool) -> str:
    """By VPDPBUSD or USDOT, by VPMADDUBSW where sums of two products are small, or by VPMADDWD on bytes that are made
    words.
    """
    kind, bits, (left, right, total) = _type(32, lanes), 32 * lanes, args
    if bits <= widths.dot and bits in VECTORS:
        name = f"x86.avx512.vpdpbusd.{bits}" if widths.x86 else f"aarch64.neon.usdot.v{lanes}i32.v{4 * lanes}i8"
        return emit(f"call {kind} @llvm.{name}({kind} {total}, {_bytes(lanes, left, right, emit)})")
    if bits in PAIR_SUMS and bits <= widths.pair:
        if is_small:
            operands = _bytes(lanes, left, right, emit)
            pairs = emit(f"call {_type(16, 2 * lanes)} @llvm.x86.{BYTE_PAIR_SUMS[bits]}({operands})")
            return _add_pairs(lanes, total, pairs, "splat (i16 1)", emit)
        return _dot4_of_words(lanes, left, right, total, emit)
    low, top = constant_of("i32", 255, lanes), constant_of("i32", 24, lanes)
    for byte in range(4):
        up, down = (constant_of("i32", shift, lanes) for shift in (24 - 8 * byte, 8 * byte))
        first = emit(f"and {kind} {emit(f'lshr {kind} {left}, {down}')}, {low}")
        second = emit(f"ashr {kind} {emit(f'shl {kind} {right}, {up}')}, {top}")
        total = emit(f"add {kind} {total}, {emit(f'mul {kind} {first}, {second}')}")
    return total


def _dot4_of_words(lanes: int, left: str, right: str, total: str, emit: Emit) -> str:
    kind = _type(16, 2 * lanes)
    halves = emit(f"bitcast {_type(32, lanes)} {left} to {kind}")
    even = emit(f"and {kind} {halves}, splat (i16 255)"), _signed_bytes(lanes, right, 0, emit)
    odd = emit(f"lshr {kind} {halves}, {_EIGHT}"), _signed_bytes(lanes, right, 1, emit)
    for first, second in (even, odd):
        total = _add_pairs(lanes, total, first, second, emit)
    return total


def dot2_bf16(lanes: int, args: Sequence[str], widths: Widths, emit: Emit) -> str:
    """By VDPBF16PS or BFDOT, which take subnormals for 0, or as float32."""
    kind, bits, (left, right, total) = vector_of("float", lanes), 32 * lanes, args
    if bits <= widths.bf16 and bits in VECTORS:
        halves = vector_of("bfloat", 2 * lanes)
        name = f"x86.avx512bf16.dpbf16ps.{bits}" if widths.x86 else f"aarch64.neon.bfdot.v{lanes}f32.v{2 * lanes}bf16"
        pairs = (emit(f"bitcast {_type(32, lanes)} {words} to {halves}") for words in (left, right))
        return emit(f"call {kind} @llvm.{name}({kind} {total}, {', '.join(f'{halves} {part}' for part in pairs)})")
    for part in (_upper_half, _lower_half):
        first, second = (part(lanes, words, emit) for words in (left, right))
        operands = ", ".join(f"{kind} {operand}" for operand in (first, second, total))
        total = emit(f"call {kind} @llvm.fmuladd.{'f32' if lanes == 1 else f'v{lanes}f32'}({operands})")
    return total


def _upper_half(lanes: int, words: str, emit: Emit) -> str:
    """The upper halves of words, which are bfloat16, as float32."""
    kind = _type(32, lanes)
    return _as_floats(lanes, emit(f"and {kind} {words}, {constant_of('i32', -1 << 16, lanes)}"), emit)


def _lower_half(lanes: int, words: str, emit: Emit) -> str:
    kind = _type(32, lanes)
    return _as_floats(lanes, emit(f"shl {kind} {words}, {constant_of('i32', 16, lanes)}"), emit)


def _as_floats(lanes: int, words: str, emit: Emit) -> str:
    return emit(f"bitcast {_type(32, lanes)} {words} to {vector_of('float', lanes)}")


def dot2(lanes: int, args: Sequence[str], widths: Widths, emit: Emit) -> str:
    """By VPMADDWD, or by multiplications."""
    kind, bits, (left, right, total) = _type(32, lanes), 32 * lanes, args
    if bits in PAIR_SUMS and bits <= widths.pair:
        first, second = (emit(f"bitcast {kind} {words} to {_type(16, 2 * lanes)}") for words in (left, right))
        return _add_pairs(lanes, total, first, second, emit)
    for shift in (16, 0):
        first, second = (_signed_half(lanes, words, shift, emit) for words in (left, right))
        total = emit(f"add {kind} {total}, {emit(f'mul {kind} {first}, {second}')}")
    return total


def widen_bytes(lanes: int, pairs: str, emit: Emit) -> str:
    """Pairs of signed bytes as signed halves of words."""
    parts, halves = _type(8, 2 * lanes), _type(16, 2 * lanes)
    signed = emit(f"sext {parts} {emit(f'bitcast {_type(16, lanes)} {pairs} to {parts}')} to {halves}")
    return emit(f"bitcast {halves} {signed} to {_type(32, lanes)}")


def _add_pairs(lanes: int, total: str, left: str, right: str, emit: Emit) -> str:
    """The total and sums of two products each of signed halves, of operands that are vectors of these."""
    kind, halves = _type(32, lanes), _type(16, 2 * lanes)
    sums = emit(f"call {kind} @llvm.x86.{PAIR_SUMS[32 * lanes]}({halves} {left}, {halves} {right})")
    return emit(f"add {kind} {total}, {sums}")


def _signed_bytes(lanes: int, words: str, first: int, emit: Emit) -> str:
    """The even or odd bytes of words, as a vector of signed halves."""
    halves = _type(16, 2 * lanes)
    parts = emit(f"bitcast {_type(32, lanes)} {words} to {halves}")
    raised = parts if first else emit(f"shl {halves} {parts}, {_EIGHT}")
    return emit(f"ashr {halves} {raised}, {_EIGHT}")


def _signed_half(lanes: int, words: str, shift: int, emit: Emit) -> str:
    """The lower half of words where `shift` is 16, the upper one where it is 0."""
    kind, sixteen = _type(32, lanes), constant_of("i32", 16, lanes)
    raised = emit(f"shl {kind} {words}, {sixteen}") if shift else words
    return emit(f"ashr {kind} {raised}, {sixteen}")


def _bytes(lanes: int, left: str, right: str, emit: Emit) -> str:
    """The operands of an instruction on the bytes of words."""
    kind = _type(8, 4 * lanes)
    return ", ".join(f"{kind} {emit(f'bitcast {_type(32, lanes)} {words} to {kind}')}" for words in (left, right))


def _type(bits: int, count: int) -> str:
    return vector_of(f"i{bits}", count)
