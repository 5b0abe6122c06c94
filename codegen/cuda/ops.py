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
    DType.I8: "signed char",
    DType.U8: "unsigned char",
    DType.BOOL: "bool",
}
"""CUDA C's names of element types."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "/", "mod": "%", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip
"""Operands of "floordiv" and "mod" are not negative."""

WHOLE = frozenset({"floordiv", "mod", "shl", "shr"})
"""Ops on whole numbers alone."""

FUNCTIONS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "exp": "exp", "log": "log",
             "erf": "erf", "tanh": "tanh", "pow": "pow", "abs": "fabs", "fma": "fma", "sin": "sin", "cos": "cos",
             "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh",
             "asinh": "asinh", "acosh": "acosh", "atanh": "atanh"}  # fmt: skip
"""Functions of CUDA's mathematics library for double; an f at the end is for float."""


def op_text(name: str, source: DType, dtype: DType, args: list[str], whole: str) -> str:
    """An op on operands of a type; `whole` is the type for I64. Raises ValueError for an op that a GPU lacks."""
    is_plain = not (source is DType.BOOL and name in ("add", "mul")) and not (source.is_float and name in WHOLE)
    if name in INFIX and is_plain:
        return f"({args[0]} {INFIX[name]} {args[1]})"
    match name, args:
        case (("add" | "max"), (a, b)) if source is DType.BOOL:
            return f"({a} || {b})"
        case (("mul" | "min"), (a, b)) if source is DType.BOOL:
            return f"({a} && {b})"
        case "min", (a, b):
            return f"least({a}, {b})"
        case "max", (a, b):
            return f"largest({a}, {b})"
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
            return a if source in (DType.U8, DType.BOOL) else f"({a} < 0 ? -{a} : {a})"
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
        text = f"{int(value)}{'ll' if dtype is DType.I64 and whole == TYPES[DType.I64] else ''}"
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
