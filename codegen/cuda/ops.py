"""Ops on values and numbers, as text in CUDA C."""

from __future__ import annotations

from math import isinf, isnan

from ..expr.dtype import DType

TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "Half",
    DType.BF16: "Brain",
    DType.I64: "long long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "signed char",
    DType.U64: "unsigned long long",
    DType.U32: "unsigned int",
    DType.U16: "unsigned short",
    DType.U8: "unsigned char",
    DType.BOOL: "bool",
}
"""CUDA C's names of element types."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "/", "mod": "%", "shl": "<<", "shr": ">>",
    "bitand": "&", "bitor": "|", "bitxor": "^", "rem": "%",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip
"""Operands of "floordiv" and "mod" are not negative."""

WHOLE = frozenset({"floordiv", "mod", "rem", "shl", "shr", "bitand", "bitor", "bitxor"})
"""Ops on whole numbers alone."""

SHORT = frozenset({DType.I16, DType.I8, DType.U16, DType.U8})
WRAPPING = frozenset({"add", "sub", "mul", "div", "neg", "abs", "shl", "fma"})
"""Ops whose results may be beyond the type of their operands."""

FUNCTIONS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "exp": "exp", "log": "log",
             "erf": "erf", "tanh": "tanh", "pow": "pow", "abs": "fabs", "fma": "fma", "sin": "sin", "cos": "cos",
             "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
             "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "rem": "fmod"}  # fmt: skip
"""Functions of CUDA's mathematics library for double; an f at the end is for float."""


def op_text(name: str, source: DType, dtype: DType, args: list[str], whole: str) -> str:
    """An op on operands of a type; `whole` is the type for I64. Raises ValueError for an op that a GPU lacks."""
    if source is dtype and dtype in SHORT and name in WRAPPING:  # C computes in int
        return f"(({TYPES[dtype]}){_text(name, source, dtype, args, whole)})"
    return _text(name, source, dtype, args, whole)


def _text(name: str, source: DType, dtype: DType, args: list[str], whole: str) -> str:
    is_plain = not (source is DType.BOOL and name in ("add", "mul")) and not (source.is_float and name in WHOLE)
    if name in INFIX and is_plain:
        return f"({args[0]} {INFIX[name]} {args[1]})"
    match name, args:
        case (("add" | "max"), (a, b)) if source is DType.BOOL:
            return f"({a} || {b})"
        case (("mul" | "min"), (a, b)) if source is DType.BOOL:
            return f"({a} && {b})"
        case (("min" | "max"), (a, b)):
            kind = f"<{TYPES[dtype]}>" if dtype in SHORT else ""
            return f"{'least' if name == 'min' else 'largest'}{kind}({a}, {b})"
        case "pow", (a, b) if not source.is_float:
            return f"integer_power({a}, {b})"
        case "neg", (a,):
            return f"(-{a})"
        case "not", (a,):
            return f"(!{a})"
        case "select", (a, b, c):
            return f"({a} ? {b} : {c})"
        case "cast", (a,) if dtype is DType.BOOL:
            return f"({a} != 0)"
        case "cast", (a,):
            kind = whole if dtype is DType.I64 else TYPES[dtype]
            return f"(({kind}){a})"
        case "bitcast", (a,):
            return f"bits<{TYPES[dtype]}>({a})"
        case "sigmoid", (a,) if source.is_float:
            return f"sigmoid({a})"
        case "fma", (a, b, c) if not source.is_float:
            return f"({a} * {b} + {c})"
        case "abs", (a,) if not source.is_float:
            return a if source.is_unsigned or source is DType.BOOL else f"({a} < 0 ? -{a} : {a})"
        case (("floor" | "ceil" | "round"), (a,)) if not source.is_float:
            return a
    if name in FUNCTIONS and source.is_float:
        return f"{FUNCTIONS[name]}{'f' if source is DType.F32 else ''}({', '.join(args)})"
    raise ValueError(f"{name} of {source} is no op of a GPU")


def literal(value: float, dtype: DType, whole: str) -> str:
    """A number as text; `whole` is the type for I64."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        is_long = dtype is DType.U64 or (dtype is DType.I64 and whole == TYPES[DType.I64])
        text = f"{int(value)}{'u' if dtype in (DType.U32, DType.U64) else ''}{'ll' if is_long else ''}"
        return f"({text})" if value < 0 else text
    if dtype.is_narrow:
        return f"(({TYPES[dtype]}){literal(value, DType.F32, whole)})"
    kind = TYPES[dtype]
    if isnan(value):
        return f"bits<{kind}>({'0x7fc00000' if dtype is DType.F32 else '0x7ff8000000000000ll'})"
    if isinf(value):
        sign = "-" if value < 0 else ""
        return f"({sign}bits<{kind}>({'0x7f800000' if dtype is DType.F32 else '0x7ff0000000000000ll'}))"
    text = float(value).hex() + ("f" if dtype is DType.F32 else "")
    return f"({text})" if text.startswith("-") else text
