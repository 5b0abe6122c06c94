"""LLVM's spelling of types, constants, ops and vector accesses: a table from op and dtype to instruction text.

Conventions. BOOL is i1 in a register, i8 in memory. Narrow floats are only cast, chosen and moved, as words of 16 bits:
LLVM would move them through float32, by a library that need not be there. `min` and `max` of
floats pass NaN on from either side as numpy does (free on ARM, and on x86 where one side is constant; else x86 needs
three instructions for one, two with masks) and don't order -0 and +0. Nothing is contracted or reassociated but `hsum`
and `hprod` of floats, whose order is free. `fma` rounds once where the machine fuses, twice where it doesn't. Floats
out of an integer's range, shifts past the width and integers divided by zero give any value.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from math import nan
from typing import NamedTuple

import numpy as np

from ..expr.dtype import DType
from ..expr.expr import COMPARISONS, ZIPS, Op
from ..expr.semantics import EIGHTHS, Number
from . import words
from .narrow import CASTS
from .types import Emit, Widths, constant_of, vector_of

SCALARS = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "i16",
    DType.BF16: "i16",
    DType.I64: "i64",
    DType.I32: "i32",
    DType.I16: "i16",
    DType.I8: "i8",
    DType.U64: "i64",
    DType.U32: "i32",
    DType.U16: "i16",
    DType.U8: "i8",
    DType.BOOL: "i1",
}

# Op -> instruction for floats, signed integers, unsigned integers, booleans; @ marks an intrinsic.
BINARY: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "add": ("fadd", "add", "add", "or"),
    "sub": ("fsub", "sub", "sub", None),
    "mul": ("fmul", "mul", "mul", "and"),
    "div": ("fdiv", "sdiv", "udiv", None),
    "rem": ("frem", "srem", "urem", None),
    "floordiv": (None, "udiv", "udiv", None),  # operands are not negative
    "mod": (None, "urem", "urem", None),
    "min": ("@minimum", "@smin", "@umin", "and"),
    "max": ("@maximum", "@smax", "@umax", "or"),
    "and": (None, None, None, "and"),
    "or": (None, None, None, "or"),
    "shl": (None, "shl", "shl", None),
    "shr": (None, "ashr", "lshr", None),
    "bitand": (None, "and", "and", None),
    "bitor": (None, "or", "or", None),
    "bitxor": (None, "xor", "xor", None),
}

DIVISIONS = frozenset({"sdiv", "udiv", "srem", "urem"})
"""Instructions at which a processor may stop the program."""

F16C_BITS = 256
"""Width of the vectors of those x86 that cast float16 by an instruction."""

UNARY = {"sqrt": "@sqrt", "floor": "@floor", "ceil": "@ceil", "round": "@roundeven", "abs": "@fabs"}
"""Op -> intrinsic, for floats."""

REDUCTIONS: dict[str, tuple[str, str, str, str]] = {
    "hsum": ("fadd", "add", "add", "or"),
    "hprod": ("fmul", "mul", "mul", "and"),
    "hmax": ("fmax", "smax", "umax", "or"),
    "hmin": ("fmin", "smin", "umin", "and"),
}

COMPARE = {
    "lt": ("fcmp olt", "icmp slt", "icmp ult", "icmp ult"),
    "le": ("fcmp ole", "icmp sle", "icmp ule", "icmp ule"),
    "eq": ("fcmp oeq", "icmp eq", "icmp eq", "icmp eq"),
    "ne": ("fcmp une", "icmp ne", "icmp ne", "icmp ne"),
}


@cache
def _column(dtype: DType) -> int:
    if dtype.is_float:
        return 0
    return 2 if dtype.is_unsigned else 3 if dtype is DType.BOOL else 1


@cache
def type_name(dtype: DType, lanes: int = 1) -> str:
    """The type of a value in a register."""
    return vector_of(SCALARS[dtype], lanes)


@cache
def memory_type(dtype: DType, lanes: int = 1) -> str:
    """The type of a value in memory: BOOL is a byte there."""
    return type_name(DType.U8 if dtype is DType.BOOL else dtype, lanes)


def vector_in_memory(dtype: DType, lanes: int) -> str:
    """As `memory_type`, but a vector even for one lane."""
    return f"<{lanes} x {memory_type(dtype)}>"


@cache
def suffix(dtype: DType, lanes: int) -> str:
    """The suffix of an intrinsic's name for the type of a value in memory: f32, v16i8."""
    scalar = f"{'f' if dtype.is_float and not dtype.is_narrow else 'i'}{8 * dtype.size_bytes}"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def literal(value: Number, dtype: DType) -> str:
    """A scalar constant."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    if dtype.is_narrow:
        return str(int(dtype.numpy.type(value).view(np.uint16)))
    rounded = ctypes.c_float(value).value if dtype is DType.F32 else float(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def splat(value: Number, dtype: DType, lanes: int) -> str:
    """A constant with the same value in each lane."""
    return constant_of(SCALARS[dtype], literal(value, dtype), lanes)


def select(
    op: Op,
    lanes: int,
    args: Sequence[str],
    condition_lanes: int,
    widths: Widths,
    emit: Emit,
) -> str:
    """Write the instructions of an op on operands of `lanes` lanes each; the name of the result.

    The condition of "select" alone may have fewer. Raises ValueError for an op that the dtype doesn't have.
    """
    name = op.name
    source = op.args[0].dtype
    column = _column(source)
    kind = type_name(source, lanes)
    is_known = any(arg.startswith("splat") for arg in args)  # LLVM then knows that a constant is no NaN
    if name in ("min", "max") and source.is_float and lanes > 1 and widths.x86 >= 512 and not is_known:
        return _extreme("ogt" if name == "max" else "olt", source, lanes, args[0], args[1], emit)
    if name in BINARY and (word := BINARY[name][column]):
        if word in DIVISIONS and (args[1].startswith("%") or args[1] == splat(0, source, lanes)):
            args = [args[0], _divisor(word, source, lanes, args[0], args[1], emit)]
        if word in ("fdiv", "frem") and lanes > 1 and op.args[0].lanes > 1 and op.args[1].lanes > 1:
            args = [args[0], _fence(source, lanes, args[1], emit)]  # LLVM takes 0 / 0 for 0 in lanes of known zeros
        return emit(_binary(word, source, lanes, args[0], args[1]))
    if name in COMPARISONS:
        return emit(f"{COMPARE[name][column]} {kind} {args[0]}, {args[1]}")
    if name == "select":
        choice = type_name(op.dtype, lanes)
        condition = type_name(DType.BOOL, condition_lanes)
        return emit(f"select {condition} {args[0]}, {choice} {args[1]}, {choice} {args[2]}")
    if name == "fma":
        return _fma(source, lanes, args, emit)
    if name in ("dot4", "dot4_small"):
        return words.dot4(lanes, args, widths, emit, is_small=name == "dot4_small")
    if name == "dot2":
        return words.dot2(lanes, args, widths, emit)
    if name == "dot2_bf16":
        return words.dot2_bf16(lanes, args, widths, emit)
    if name == "widen_bytes":
        return words.widen_bytes(lanes, args[0], emit)
    if name == "cast":
        return _cast(source, op.dtype, lanes, args[0], widths, emit)
    if name == "bitcast":
        return _bitcast(source, op.dtype, lanes, args[0], emit)
    if name in ZIPS:
        return _zip(source, lanes, args, 1 if name == "zip_high" else 0, emit)
    if name == "exp2_bits":
        return _exp2_bits(lanes, args[0], widths.x86, emit)
    if name in REDUCTIONS:
        return _reduction(name, source, lanes, args[0], emit)
    return _unary(name, source, lanes, args[0], emit)


def _binary(word: str, dtype: DType, lanes: int, left: str, right: str) -> str:
    kind = type_name(dtype, lanes)
    if word[0] != "@":
        return f"{word} {kind} {left}, {right}"
    # x86 tests the first operand for NaN beside the comparison. The right one is tested: on the left stands, in a
    # reduction, what the iterations hand on, and the test would lengthen their chain.
    flag = "nsz " if dtype.is_float else ""
    return f"call {flag}{kind} @llvm.{word[1:]}.{suffix(dtype, lanes)}({kind} {right}, {kind} {left})"


def _divisor(word: str, dtype: DType, lanes: int, left: str, right: str, emit: Emit) -> str:
    """Where integers have no quotient, 1 in place of the right one, since a processor may stop the program there.

    That is what divides by zero, as lanes beyond an edge may, and the least number over -1.
    """
    kind, bools = type_name(dtype, lanes), type_name(DType.BOOL, lanes)
    bad = emit(f"icmp eq {kind} {right}, {splat(0, dtype, lanes)}")
    if word in ("sdiv", "srem"):
        least = emit(f"icmp eq {kind} {left}, {splat(int(np.iinfo(dtype.value).min), dtype, lanes)}")
        over = emit(f"icmp eq {kind} {right}, {splat(-1, dtype, lanes)}")
        bad = emit(f"or {bools} {bad}, {emit(f'and {bools} {least}, {over}')}")
    return emit(f"select {bools} {bad}, {kind} {splat(1, dtype, lanes)}, {kind} {right}")


def _extreme(better: str, dtype: DType, lanes: int, left: str, right: str, emit: Emit) -> str:
    """The smaller or larger of floats by masks: two instructions instead of three, with the test for NaN off the chain.

    x86's own minimum and maximum answer with the left operand where either is NaN, so that its NaN passes. Where the
    right one is NaN, it stays.
    """
    kind, bools = type_name(dtype, lanes), type_name(DType.BOOL, lanes)
    best = emit(f"select {bools} {emit(f'fcmp {better} {kind} {right}, {left}')}, {kind} {right}, {kind} {left}")
    return emit(f"select {bools} {emit(f'fcmp ord {kind} {right}, {right}')}, {kind} {best}, {kind} {right}")


def _zip(dtype: DType, lanes: int, args: Sequence[str], half: int, emit: Emit) -> str:
    kind = type_name(dtype, lanes)
    shuffle = emit(f"shufflevector {kind} {args[0]}, {kind} {args[1]}, <{lanes} x i32> <{_picks(lanes, half)}>")
    if not dtype.is_float or dtype.is_narrow:
        return shuffle
    # LLVM looks for shorter ways through all rounds of a transposition, which takes longer than all else it does, and
    # finds none.
    return _fence(dtype, lanes, shuffle, emit)


def _fence(dtype: DType, lanes: int, arg: str, emit: Emit) -> str:
    """The value, of which LLVM does not see how it was made. That costs no instruction."""
    kind = type_name(dtype, lanes)
    return emit(f"call {kind} @llvm.arithmetic.fence.{suffix(dtype, lanes)}({kind} {arg})")


@cache
def _picks(lanes: int, half: int) -> str:
    return ", ".join(f"i32 {half * (lanes // 2) + n // 2 + n % 2 * lanes}" for n in range(lanes))


def _fma(dtype: DType, lanes: int, args: Sequence[str], emit: Emit) -> str:
    kind = type_name(dtype, lanes)
    if dtype.is_float:
        operands = f"{kind} {args[0]}, {kind} {args[1]}, {kind} {args[2]}"
        return emit(f"call {kind} @llvm.fmuladd.{suffix(dtype, lanes)}({operands})")
    return emit(f"add {kind} {emit(f'mul {kind} {args[0]}, {args[1]}')}, {args[2]}")


def _unary(name: str, dtype: DType, lanes: int, arg: str, emit: Emit) -> str:
    kind = type_name(dtype, lanes)
    match name, _column(dtype):
        case "neg", 0:
            return emit(f"fneg {kind} {arg}")
        case "neg", 1 | 2:
            return emit(f"sub {kind} {splat(0, dtype, lanes)}, {arg}")
        case "abs", 1:
            return emit(f"call {kind} @llvm.abs.{suffix(dtype, lanes)}({kind} {arg}, i1 false)")
        case ("abs", 2 | 3) | ("floor" | "ceil" | "round", 1 | 2 | 3):
            return arg
        case "not", 3:
            return emit(f"xor {kind} {arg}, {splat(True, dtype, lanes)}")
        case word, 0 if word in UNARY:
            return emit(f"call {kind} @llvm.{UNARY[word][1:]}.{suffix(dtype, lanes)}({kind} {arg})")
    raise ValueError(f"{name} of {dtype} has no instruction")


def _exp2_bits(lanes: int, arg: str, x86_bits: int, emit: Emit) -> str:
    kind = type_name(DType.I32, lanes)
    table = ", ".join(f"i32 {EIGHTHS[lane % 8]}" for lane in range(lanes))
    match lanes:
        case 16 if x86_bits >= 512:
            part = emit(f"call {kind} @llvm.x86.avx512.permvar.si.512({kind} <{table}>, {kind} {arg})")
        case 8 if x86_bits >= 256:
            part = emit(f"call {kind} @llvm.x86.avx2.permd({kind} <{table}>, {kind} {arg})")
        case _:
            part = _eighth(lanes, arg, emit)
    return emit(f"add {kind} {emit(f'shl {kind} {arg}, {splat(20, DType.I32, lanes)}')}, {part}")


def _eighth(lanes: int, arg: str, emit: Emit) -> str:
    """The value of `EIGHTHS` for the lowest three bits, by selects between constants."""
    kind, bools = type_name(DType.I32, lanes), type_name(DType.BOOL, lanes)
    left = [splat(value, DType.I32, lanes) for value in EIGHTHS]
    for bit in (1, 2, 4):
        masked = emit(f"and {kind} {arg}, {splat(bit, DType.I32, lanes)}")
        odd = emit(f"icmp ne {kind} {masked}, {splat(0, DType.I32, lanes)}")
        pairs = zip(left[::2], left[1::2], strict=True)
        left = [emit(f"select {bools} {odd}, {kind} {yes}, {kind} {no}") for no, yes in pairs]
    return left[0]


def _reduction(name: str, dtype: DType, lanes: int, arg: str, emit: Emit) -> str:
    if lanes == 1:
        return arg
    word, result, operand = REDUCTIONS[name][_column(dtype)], type_name(dtype), f"{type_name(dtype, lanes)} {arg}"
    type_suffix = f"v{lanes}i1" if dtype is DType.BOOL else suffix(dtype, lanes)
    if word in ("fadd", "fmul"):
        start = literal(-0.0 if word == "fadd" else 1.0, dtype)  # the neutral elements
        return emit(f"call reassoc {result} @llvm.vector.reduce.{word}.{type_suffix}({result} {start}, {operand})")
    if dtype.is_float:  # a reduction that looks for NaN at each step takes three times as long
        unordered = emit(f"fcmp uno {operand}, {arg}")
        has_nan = emit(f"call i1 @llvm.vector.reduce.or.v{lanes}i1(<{lanes} x i1> {unordered})")
        best = emit(f"call nnan nsz {result} @llvm.vector.reduce.{word}.{type_suffix}({operand})")
        return emit(f"select i1 {has_nan}, {result} {literal(nan, dtype)}, {result} {best}")
    return emit(f"call {result} @llvm.vector.reduce.{word}.{type_suffix}({operand})")


def _cast(source: DType, target: DType, lanes: int, arg: str, widths: Widths, emit: Emit) -> str:
    before, after = type_name(source, lanes), type_name(target, lanes)
    unsigned = source.is_unsigned or source is DType.BOOL
    wider = target.size_bytes > source.size_bytes or source is DType.BOOL
    match source.is_float, target.is_float:
        case _ if source is target:
            return arg
        case _ if (source, target) in CASTS and (DType.BF16 in (source, target) or 0 < widths.x86 < F16C_BITS):
            return CASTS[source, target](lanes, arg, emit)
        case _ if DType.F16 in (source, target) and DType.F32 in (source, target):
            return _cast_half(source, lanes, arg, emit)
        case is_float, _ if target is DType.BOOL:
            return emit(f"{'fcmp une' if is_float else 'icmp ne'} {before} {arg}, {splat(0, source, lanes)}")
        case True, True:
            word = "fpext" if wider else "fptrunc"
        case True, False:
            word = "fptoui" if target.is_unsigned else "fptosi"
        case False, True:
            word = "uitofp" if unsigned else "sitofp"
        case _ if source.size_bytes == target.size_bytes and source is not DType.BOOL:
            return arg
        case _:
            word = ("zext" if unsigned else "sext") if wider else "trunc"
    return emit(f"{word} {before} {arg} to {after}")


def _cast_half(source: DType, lanes: int, arg: str, emit: Emit) -> str:
    """Between float16 and float32, by the machine's instruction."""
    word, half, single = (vector_of(kind, lanes) for kind in ("i16", "half", "float"))
    if source is DType.F16:
        return emit(f"fpext {half} {emit(f'bitcast {word} {arg} to {half}')} to {single}")
    return emit(f"bitcast {half} {emit(f'fptrunc {single} {arg} to {half}')} to {word}")


def _bitcast(source: DType, target: DType, lanes: int, arg: str, emit: Emit) -> str:
    if DType.BOOL in (source, target):
        return _cast(source, target, lanes, arg, Widths(), emit)
    before, after = type_name(source, lanes), type_name(target, lanes)
    return arg if before == after else emit(f"bitcast {before} {arg} to {after}")


def load(dtype: DType, lanes: int, used: int, where: str, masks: bool, emit: Emit) -> str:
    """Emit a load of the leading lanes from a pointer, zeros in the others: the name of the value.

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

    `masks`: whether the machine has masked stores; without them a shorter vector is placed first. One lane is a scalar.
    """
    kind, size = memory_type(dtype, lanes), dtype.size_bytes
    if used == lanes:
        return f"store {kind} {value}, ptr {where}, align {size}"
    if used == 1:
        # A mask of one lane won't do: where the value was just cut short by a cast, LLVM 22 stores that lane as wide as
        # it was before, over what comes after it (https://github.com/llvm/llvm-project/issues/179489).
        first = emit(f"extractelement {kind} {value}, i64 0")
        return f"store {memory_type(dtype)} {first}, ptr {where}, align {size}"
    if masks:
        operands = f"{kind} {value}, ptr align {size} {where}, {_mask(lanes, used)}"
        return f"call void @llvm.masked.store.{suffix(dtype, lanes)}.p0({operands})"
    part = vector_in_memory(dtype, used)
    short = emit(f"shufflevector {kind} {value}, {kind} poison, {_choice(range(used))}")
    return f"store {part} {short}, ptr {where}, align {size}"


class Shuffle(NamedTuple):
    """A gather of elements that lie close together, as a shuffle of one or two vectors.

    The vectors begin at the lowest and end at the highest, so that nothing outside of these elements' range is read.
    """

    starts: tuple[int, ...]  # of the vectors, in elements
    used: int  # leading lanes of each
    lanes: tuple[int, ...]  # of each element; the second vector's follow those of the first

    @staticmethod
    def of(offsets: Sequence[int], lanes: int) -> Shuffle | None:
        """Elements at these offsets; None if they are two at most, or lie too far apart."""
        low, span = min(offsets), max(offsets) - min(offsets) + 1
        if len(offsets) <= 2 or span > 2 * lanes:
            return None
        beyond = max(0, span - lanes)  # where the second vector begins, from the first
        picks = tuple(n - low if n - low < lanes else n - low - beyond + lanes for n in offsets)
        return Shuffle((low, low + beyond) if beyond else (low,), min(lanes, span), picks)

    def value(self, dtype: DType, lanes: int, vectors: Sequence[str], emit: Emit) -> str:
        """Emit the shuffle of the vectors, with zeros after the elements: the name of the value."""
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
