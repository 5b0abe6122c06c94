"""The expression language: what an op or a kernel computes, element by element.

Five nodes: `Const`, `Var`, `Ramp`, `Load`, `Op`. The meaning of an op is a row of `semantics.OPS`.

Nodes are immutable and hash-consed (`nodes`): an expression is a DAG whose equal parts are shared. Walks memoise
by identity (`transform` does).

Vectors: a value has `lanes`; a scalar met by a vector is broadcast. Only `Ramp` makes lanes out of scalars, so a
`Load` whose last index is `Ramp(base, lanes)` reads consecutive elements, and any other vector index is a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np

from ..fields import quote, word
from .dtype import DType
from .nodes import TABLE, ExprNode, fact, make, no_node
from .semantics import OPS, Number, compute, fold, is_in_range
from .symbolic import is_symbolic


def _operator(name: str) -> Callable[[Arithmetic, Expr | Number], Expr]:
    return lambda left, right: op(name, left, right)


def _reflected(name: str) -> Callable[[Arithmetic, Number], Expr]:
    return lambda right, left: op(name, left, right)


class Arithmetic(ExprNode):
    """The base of nodes. The operators fold constants, so that index expressions stay small."""

    __slots__ = ()

    children: tuple[Expr, ...]
    """The expressions directly inside."""

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __floordiv__, __mod__ = _operator("floordiv"), _operator("mod")

    def __neg__(self) -> Expr:
        return op("neg", self)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Const(Arithmetic):
    """A literal. Its value has the type that its dtype has in Python."""

    lanes: ClassVar[int] = 1

    value: Number
    dtype: DType

    def __new__(cls, value: Number, dtype: DType) -> Self:
        value = float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)
        # repr tells zeros of either sign apart, and makes all NaN equal.
        key = (cls, repr(value) if dtype.is_float else value, id(dtype))
        node: Self | None = TABLE.get(key, no_node)()
        return node or make(cls, key, (), value, dtype)

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Var(Arithmetic):
    """An axis or a loop variable; always a 64-bit integer."""

    dtype: ClassVar[DType] = DType.I64
    lanes: ClassVar[int] = 1

    name: str

    def __new__(cls, name: str) -> Self:
        key = (cls, name)
        node: Self | None = TABLE.get(key, no_node)()
        return node or make(cls, key, (), name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Ramp(Arithmetic):
    """The vector `base, base + 1, ..., base + lanes - 1`."""

    dtype: ClassVar[DType] = DType.I64

    base: Expr
    lanes: int

    def __new__(cls, base: Expr, lanes: int) -> Self:
        key = (cls, id(base), lanes)
        node: Self | None = TABLE.get(key, no_node)()
        return node or make(cls, key, (base,), base, lanes)

    def __str__(self) -> str:
        return f"{self.base}:+{self.lanes}"


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Load(Arithmetic):
    """The elements of `tensor` at `index` (one expression a dimension).

    `count` (vectors only) is how many leading lanes are read; the others are zero and touch no memory.
    """

    tensor: str
    index: tuple[Expr, ...]
    dtype: DType
    count: int | None = None
    lanes: int = field(init=False)

    def __new__(cls, tensor: str, index: tuple[Expr, ...], dtype: DType, count: int | None = None) -> Self:
        key = (cls, tensor, id(dtype), count, *map(id, index))
        node: Self | None = TABLE.get(key, no_node)()
        if node is None:
            lanes = max([i.lanes for i in index], default=1)
            node = make(cls, key, index, tensor, index, dtype, count, lanes)
        return node

    def __str__(self) -> str:
        count = "" if self.count is None else f" count={self.count}"
        return f"{self.tensor}[{', '.join(map(str, self.index))}{count}]"


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Op(Arithmetic):
    """`name` of `semantics.OPS` applied to `args`, element by element."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType
    lanes: int = field(init=False)

    def __new__(cls, name: str, args: tuple[Expr, ...], dtype: DType) -> Self:
        key = (cls, name, id(dtype), *map(id, args))
        node: Self | None = TABLE.get(key, no_node)()
        if node is None:
            lanes = 1 if name in HORIZONTAL else max([a.lanes for a in args])
            node = make(cls, key, args, name, args, dtype, lanes)
        return node

    def __str__(self) -> str:
        sign = INFIX.get(self.name)
        if sign and len(self.args) == 2:
            return f"({self.args[0]} {sign} {self.args[1]})"
        name = f"cast.{self.dtype.value}" if self.name == "cast" else self.name
        return f"{name}({', '.join(map(str, self.args))})"


Expr = Const | Var | Ramp | Load | Op
NODES = (Const, Var, Ramp, Load, Op)

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip

COMPARISONS = frozenset({"lt", "le", "eq", "ne"})
_ANGLES = frozenset({"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"})
TRANSCENDENTAL = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "pow"}) | _ANGLES
"""Ops that no instruction computes: `codegen.expr.math` expands them before emission."""

TRANSCENDENTAL_OPS = 12
"""Operations that a transcendental op counts as."""

HORIZONTAL = frozenset({"hsum", "hmax", "hmin", "hprod"})
"""Ops that reduce the lanes of one vector to a scalar."""

ZIPS = frozenset({"zip_low", "zip_high"})
"""Ops that take lanes from two vectors in turn: from their lower halves, from their upper halves."""

DOTS = frozenset({"dot2", "dot2_bf16", "dot4", "dot4_small"})
"""Sums of products of the small numbers in words, and a total."""

OF_WORDS = DOTS | {"exp2_bits"}
"""Ops of 32-bit words alone."""

UNARY = HORIZONTAL | _ANGLES | {
    "neg", "abs", "sqrt", "floor", "ceil", "round", "exp", "log", "erf", "tanh", "sigmoid", "not", "cast", "bitcast",
    "exp2_bits", "widen_bytes",
}  # fmt: skip


def arity(name: str) -> int:
    """The number of arguments of an op of `semantics.OPS`."""
    return 1 if name in UNARY else 3 if name in DOTS or name in ("fma", "select") else 2


def const(value: Number, dtype: DType | None = None) -> Const:
    """A literal; without a dtype, bool, int and float become BOOL, I64 and F32.

    Floats are rounded to their dtype. Raises ValueError if another dtype can't hold the value: 0.5 is no I64. A
    symbolic number is a variable, which stands for a literal of 64 bits.
    """
    if is_symbolic(value):
        if dtype is None or dtype is DType.I64:
            return cast("Const", Var(value.name))
        value = int(value)
    if dtype is None:
        dtype = DType.BOOL if isinstance(value, bool) else DType.I64 if isinstance(value, int) else DType.F32
    if type(value) is int and dtype is DType.I64 and -(1 << 63) <= value < 1 << 63:
        return Const(value, dtype)
    if dtype.is_float:
        if abs(value) < SAFE:
            return Const(float(dtype.numpy.type(value)), dtype)
        with np.errstate(over="ignore"):
            return Const(float(dtype.numpy.type(value)), dtype)
    if (isinstance(value, float) and not value.is_integer()) or not is_in_range(int(value), dtype):
        raise ValueError(f"{value} is no {dtype}")
    return Const(value, dtype)


SAFE = 1e38
"""Floats below it are no more than any dtype can hold."""


def op(name: str, *args: Expr | Arithmetic | Number, dtype: DType | None = None) -> Expr:
    """Apply `name`, folding constants, the integer identities x+0, x*1, x*0, x//1, x%1, and constant conditions.

    A Python number takes the dtype of the other operand. `dtype` is for `cast`, `bitcast` and `widen_bytes` alone.
    """
    nodes: tuple[Any, ...] = args
    for arg in args:
        if not isinstance(arg, Arithmetic):
            nodes = _nodes(name, args)
            break
    if dtype is None:
        dtype = DType.BOOL if name in COMPARISONS else nodes[-1].dtype
    return fold_op(name, nodes, dtype)


def _nodes(name: str, args: tuple[Any, ...]) -> tuple[Expr, ...]:
    """Arguments with numbers made literals."""
    like: DType | None = None
    for arg in args[1:] if name == "select" else args:  # the condition says nothing about the dtype of the choices
        if isinstance(arg, NODES):
            like = arg.dtype
    return tuple([arg if isinstance(arg, NODES) else const(arg, like) for arg in args])


def fold_op(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """As `op`, with nodes for arguments and a dtype."""
    for arg in args:
        if type(arg) is Const:
            return _fold_constants(name, args, dtype)
    if name == "cast" and args[0].dtype is dtype:
        return args[0]
    return Op(name, args, dtype)


def _fold_constants(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """An op with some constant arguments."""
    values = [a.value for a in args if isinstance(a, Const)]
    if len(values) == len(args) and name not in HORIZONTAL:
        return Const(fold(name, [a.dtype for a in args], values, dtype), dtype)
    if len(args) == 2 and (dtype is DType.I64 or dtype is DType.I32):
        return _identity(name, args[0], args[1], dtype)
    match name, args:
        case "select", (Const(condition), yes, no):
            return yes if condition else no
        case "and", (Const(condition), rest) | (rest, Const(condition)):
            return rest if condition else const(False)
        case "or", (Const(condition), rest) | (rest, Const(condition)):
            return const(True) if condition else rest
    return Op(name, args, dtype)


def _identity(name: str, left: Expr, right: Expr, dtype: DType) -> Expr:
    """An op on two integers, one of which is constant."""
    rest, known = (left, right) if isinstance(right, Const) else (right, left)
    value = known.value if isinstance(known, Const) else None
    if value == 0:
        if name == "mul":
            return const(0, dtype)
        if name == "add" or (name == "sub" and known is right):
            return rest
    elif value == 1:
        if name == "mul" or (name == "floordiv" and known is right):
            return rest
        if name == "mod" and known is right:
            return const(0, dtype)
    return Op(name, (left, right), dtype)


def apply(node: Op, *values: Any) -> Any:
    """The numpy meaning of one op on the values of its arguments, in the dtype of the node."""
    return compute(node.name, node.dtype, values)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node of a DAG once, parents before children."""
    visited: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node not in visited:
            visited.add(node)
            yield node
            if node.children:
                stack.extend(node.children[::-1])


def narrow_source(node: Expr) -> Expr:
    """The operand of a cast to the type that it is computed in, mostly a load; of another value, itself."""
    if isinstance(node, Op) and node.name == "cast":
        (inner,) = node.args
        if inner.dtype is not node.dtype and inner.dtype.wide is node.dtype:
            return inner
    return node


def loads(*roots: Expr) -> list[Load]:
    """Every distinct load node, in order of appearance."""
    return list(dict.fromkeys([load for root in roots for load in _loads(root)]))


@fact
def _loads(root: Expr) -> tuple[Load, ...]:
    return tuple([node for node in walk(root) if isinstance(node, Load)])


def free_vars(*roots: Expr) -> list[str]:
    """Names of the variables read, each once, in order of appearance."""
    return list(dict.fromkeys([node.name for node in walk(*roots) if isinstance(node, Var)]))


@fact
def variables(node: Expr) -> frozenset[str]:
    """Names of the variables read."""
    if isinstance(node, Var):
        return frozenset((node.name,))
    first, *others = map(variables, node.children) if node.children else (frozenset(),)
    return first.union(*others) if others else first


def rebuild(node: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The node with other children; itself if they are the ones it has."""
    if parts == node.children:
        return node
    match node:
        case Op():
            return fold_op(node.name, parts, node.dtype)
        case Load():
            return Load(node.tensor, parts, node.dtype, node.count)
        case Ramp():
            return Ramp(parts[0], node.lanes)
    return node


def transform(root: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuild a DAG bottom-up: `visit` gets each node with its children already rebuilt, once for a shared node.

    Parts in which nothing changes stay the same objects.
    """
    return _transform(root, visit, {})


def _transform(node: Expr, visit: Callable[[Expr], Expr], done: dict[Expr, Expr]) -> Expr:
    """Not a closure that calls itself: that would keep all of `done` until Python looks for cycles."""
    result = done.get(node)
    if result is None:
        inside = node.children
        whole = rebuild(node, tuple([_transform(part, visit, done) for part in inside])) if inside else node
        result = done[node] = visit(whole)
    return result


def substitute(root: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace variables by expressions."""
    return Substitution(values)(root)


class Substitution:
    """Replaces variables by expressions, in many roots: what they share is replaced once."""

    __slots__ = ("_done", "_names", "_values")

    def __init__(self, values: Mapping[str, Expr]) -> None:
        self._values = {name: value for name, value in values.items() if value is not Var(name)}
        self._names = frozenset(self._values)
        self._done: dict[Expr, Expr] = {}

    def __call__(self, node: Expr) -> Expr:
        result = self._done.get(node)
        if result is None:
            if self._names.isdisjoint(variables(node)):
                return node
            if isinstance(node, Var):
                return self._values[node.name]
            result = self._done[node] = rebuild(node, tuple(map(self, node.children)))
        return result


def evaluate(root: Expr, env: Mapping[str, Any], read: Callable[[Load, Sequence[Any]], Any]) -> Any:
    """The value of an expression in numpy.

    `env` gives each variable an integer or an array; arrays broadcast against each other, so one call evaluates a
    whole grid of points, or of threads. `read` answers a load with the values at the computed indices.
    With ramps, an array variable must have a last axis of length 1, which the lanes then fill. Overflow, division by
    zero and NaN are values, not warnings.
    """
    done: dict[int, Any] = {}

    def go(node: Expr) -> Any:
        if id(node) not in done:
            match node:
                case Const(value, dtype):
                    result: Any = dtype.numpy.type(value)
                case Var(name):
                    result = env[name]
                case Ramp(base, lanes):
                    result = go(base) + np.arange(lanes)
                case Load():
                    result = read(node, [go(i) for i in node.index])
                case Op(args=args):
                    result = apply(node, *map(go, args))
            done[id(node)] = result
        return done[id(node)]

    with np.errstate(all="ignore"):
        return go(root)


def to_json(node: Expr) -> Any:
    """A canonical form of plain lists; equal expressions give equal lists. No vectors, no counts: tasks have none."""
    match node:
        case Const(value, dtype):
            return ["const", dtype.value, value if np.isfinite(value) else str(value)]
        case Var(name):
            return ["var", name]
        case Load(tensor, index, dtype, None):
            return ["load", dtype.value, tensor, *map(to_json, index)]
        case Op(name, args, dtype):
            return ["op", dtype.value, name, *map(to_json, args)]
    raise ValueError(f"{node} has no place in a compute definition")


def from_json(data: Any) -> Expr:
    """The inverse of `to_json`. Raises ValueError on anything that `to_json` can't have written."""
    match data:
        case ["const", str(dtype), bool() | int() | float() | str() as value]:
            return _literal(value, word("dtype", dtype, DType))
        case ["var", str(name)]:
            return Var(name)
        case ["load", str(dtype), str(tensor), *index]:
            return Load(tensor, tuple(map(from_json, index)), word("dtype", dtype, DType))
        case ["op", str(dtype), str(name), *args] if name in OPS and len(args) == arity(name):
            return Op(name, tuple(map(from_json, args)), word("dtype", dtype, DType))
    raise ValueError(f"not an expression: {quote(data)}")


def _literal(value: Number | str, dtype: DType) -> Const:
    if dtype.is_float and not isinstance(value, bool):
        try:
            return const(float(value), dtype)
        except (ValueError, OverflowError):
            raise ValueError(f"{quote(value)} is no {dtype}") from None
    if isinstance(value, bool) is (dtype is DType.BOOL) and isinstance(value, int):
        return const(value, dtype)
    raise ValueError(f"{quote(value)} is no {dtype}")
