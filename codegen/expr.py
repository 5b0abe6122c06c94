"""The expression language: what an op or a kernel computes, element by element.

Five nodes: `Const`, `Var`, `Ramp`, `Load`, `Op`. An op's meaning in numpy is a row of `OPS`, so one table serves the
oracle, the interpreter and constant folding.

Nodes are immutable, and no two are alike: making one that there is already gives that one. So equal means identical,
hashing is free, an expression is a DAG whose equal parts are shared, and whatever follows from a node alone is worked
out once for all that contain it (`fact`). Walks memoise by identity (`transform` does).

Vectors: a value has `lanes`; a scalar met by a vector is broadcast. Only `Ramp` makes lanes out of scalars, so a
`Load` whose last index is `Ramp(base, lanes)` reads consecutive elements, and any other vector index is a gather.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, ClassVar, Self, TypeVar
from weakref import ref

import numpy as np

from .dtype import DType

Number = int | float | bool
Key = tuple[object, ...]

_NODES: dict[Key, _Entry] = {}
"""Every node there is, under its class and fields: children and dtypes by identity, which is as good as equality."""

_MAKING = RLock()
"""Held to add a node or to take one out, so that threads don't make two alike."""

Node = TypeVar("Node", bound="Arithmetic")


class Arithmetic:
    """What nodes have in common. The operators fold constants, so that index expressions stay small."""

    __slots__ = ("__weakref__", "children", "facts")
    __match_args__: tuple[str, ...] = ()

    children: tuple[Expr, ...]
    """The expressions directly inside."""

    facts: dict[Callable[..., Any], Any]
    """What was worked out about the node: see `fact`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    def __add__(self, other: Expr | Number) -> Expr:
        return op("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return op("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return op("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return op("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return op("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return op("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return op("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return op("div", other, self)

    def __floordiv__(self, other: Expr | Number) -> Expr:
        return op("floordiv", self, other)

    def __mod__(self, other: Expr | Number) -> Expr:
        return op("mod", self, other)

    def __neg__(self) -> Expr:
        return op("neg", self)


class _Entry(ref[Any]):
    """A node in the table, and the key it is under there."""

    __slots__ = ("key",)

    key: Key


def _nowhere() -> None:
    """What stands in for a reference to a node that there isn't."""


def _forget(gone: _Entry, nodes: dict[Key, _Entry] = _NODES, making: RLock = _MAKING) -> None:
    """Take out a node that is gone, unless there is another one like it by now. Works while Python shuts down."""
    with making:
        if nodes.get(gone.key) is gone:
            del nodes[gone.key]


def _made(cls: type[Node], key: Key, children: tuple[Expr, ...], *values: object) -> Node:
    """The node of a class with these values of its fields. `key` tells it from all others."""
    with _MAKING:
        node: Node | None = _NODES.get(key, _nowhere)()
        if node is None:
            node = object.__new__(cls)
            for put, value in zip(_SLOTS[cls], (children, {}, *values), strict=True):
                put(node, value)
            entry = _NODES[key] = _Entry(node, _forget)
            entry.key = key
        return node


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Const(Arithmetic):
    """A literal. Its value has the type that its dtype has in Python."""

    lanes: ClassVar[int] = 1

    value: Number
    dtype: DType

    def __new__(cls, value: Number, dtype: DType) -> Self:
        value = float(value) if dtype.is_float else bool(value) if dtype is DType.BOOL else int(value)
        # Of floats, zeros of either sign are two, and NaN is one.
        key = (cls, repr(value) if dtype.is_float else value, id(dtype))
        found: Self | None = _NODES.get(key, _nowhere)()
        return found or _made(cls, key, (), value, dtype)

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
        found: Self | None = _NODES.get(key, _nowhere)()
        return found or _made(cls, key, (), name)

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
        found: Self | None = _NODES.get(key, _nowhere)()
        return found or _made(cls, key, (base,), base, lanes)

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
        found: Self | None = _NODES.get(key, _nowhere)()
        if found is None:
            lanes = max([i.lanes for i in index], default=1)
            found = _made(cls, key, index, tensor, index, dtype, count, lanes)
        return found

    def __str__(self) -> str:
        count = "" if self.count is None else f" count={self.count}"
        return f"{self.tensor}[{', '.join(map(str, self.index))}{count}]"


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Op(Arithmetic):
    """`name` of `OPS` applied to `args`, element by element."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType
    lanes: int = field(init=False)

    def __new__(cls, name: str, args: tuple[Expr, ...], dtype: DType) -> Self:
        key = (cls, name, id(dtype), *map(id, args))
        found: Self | None = _NODES.get(key, _nowhere)()
        if found is None:
            lanes = 1 if name in HORIZONTAL else max([a.lanes for a in args])
            found = _made(cls, key, args, name, args, dtype, lanes)
        return found

    def __str__(self) -> str:
        sign = INFIX.get(self.name)
        if sign and len(self.args) == 2:
            return f"({self.args[0]} {sign} {self.args[1]})"
        name = f"cast.{self.dtype.value}" if self.name == "cast" else self.name
        return f"{name}({', '.join(map(str, self.args))})"


Expr = Const | Var | Ramp | Load | Op
NODES = (Const, Var, Ramp, Load, Op)

_SLOTS: Mapping[type[Any], tuple[Callable[[Any, Any], None], ...]] = {
    cls: tuple([getattr(cls, name).__set__ for name in ("children", "facts", *cls.__slots__)]) for cls in NODES
}
"""What sets the fields of a frozen node."""

Fact = TypeVar("Fact")


def fact(function: Callable[[Expr], Fact]) -> Callable[[Expr], Fact]:
    """A function of a node alone, worked out once in the life of the node. Not for what may be None."""

    def known(node: Expr) -> Fact:
        found: Fact | None = node.facts.get(function)
        if found is None:
            found = node.facts[function] = function(node)
        return found

    return known


INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip

COMPARISONS = frozenset({"lt", "le", "eq", "ne"})
TRANSCENDENTAL = frozenset({"exp", "log", "erf", "tanh", "sigmoid", "pow"})
"""Ops that no instruction computes: `codegen.math` expands them before emission."""

HORIZONTAL = frozenset({"hsum", "hmax", "hmin", "hprod"})
"""Ops that reduce the lanes of one vector to a scalar."""

ZIPS = frozenset({"zip_low", "zip_high"})
"""Ops that take lanes from two vectors in turn: from their lower halves, from their upper halves."""


EIGHTHS = (0, -289342, -509968, -655657, -719629, -694486, -572163, -343865)
"""What is added to k << 20 to give the bits of 2^(k/8 - 127) as a float32, by the lowest three bits of k."""


def _erf(x: Any) -> Any:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


def _zipped(a: Any, b: Any, half: int) -> Any:
    lanes = np.stack(np.broadcast_arrays(a, b), -1)
    middle = lanes.shape[-2] // 2
    kept = lanes[..., middle:, :] if half else lanes[..., :middle, :]
    return kept.reshape(*lanes.shape[:-2], 2 * middle)


def _truncated(a: Any, b: Any) -> Any:
    if np.issubdtype(np.asarray(a).dtype, np.floating):
        return np.divide(a, b)
    quotient = np.floor_divide(np.abs(a), np.abs(b))
    return np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -quotient, quotient)


OPS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _truncated,  # IEEE for floats, towards zero for integers as in C
    "floordiv": np.floor_divide,  # index arithmetic: dividend >= 0, divisor > 0
    "mod": np.mod,  # likewise
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,  # half to even
    "fma": lambda a, b, c: a * b + c,  # the machine may round once instead of twice
    "exp": np.exp,
    "log": np.log,
    "erf": _erf,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "pow": np.power,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
    "shl": np.left_shift,
    "shr": np.right_shift,  # arithmetic
    "cast": lambda x: x,  # the dtype of the node converts; floats go to integers towards zero
    "bitcast": lambda x: x,  # same width, same bits
    "exp2_bits": lambda k: np.left_shift(k, 20) + np.array(EIGHTHS, np.int32)[np.bitwise_and(k, 7)],
    "hsum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "hmax": lambda x: np.max(x, axis=-1, keepdims=True),
    "hmin": lambda x: np.min(x, axis=-1, keepdims=True),
    "hprod": lambda x: np.prod(x, axis=-1, keepdims=True),
    "zip_low": lambda a, b: _zipped(a, b, 0),
    "zip_high": lambda a, b: _zipped(a, b, 1),
}
"""Every op and its meaning on numpy arrays (lanes are the last axis)."""

UNARY = HORIZONTAL | {
    "neg", "abs", "sqrt", "floor", "ceil", "round", "exp", "log", "erf", "tanh", "sigmoid", "not", "cast", "bitcast",
    "exp2_bits",
}  # fmt: skip


def arity(name: str) -> int:
    """How many arguments an op of `OPS` takes."""
    return 1 if name in UNARY else 3 if name in ("fma", "select") else 2


def const(value: Number, dtype: DType | None = None) -> Const:
    """A literal; without a dtype, bool, int and float become BOOL, I64 and F32.

    Floats are rounded to their dtype. Raises ValueError if another dtype can't hold the value: 0.5 is no I64.
    """
    if dtype is None:
        dtype = DType.BOOL if isinstance(value, bool) else DType.I64 if isinstance(value, int) else DType.F32
    if type(value) is int and dtype is DType.I64 and -(1 << 63) <= value < 1 << 63:
        return Const(value, dtype)
    if dtype.is_float:
        if abs(value) < SAFE:
            return Const(float(dtype.numpy.type(value)), dtype)
        with np.errstate(over="ignore"):
            return Const(float(dtype.numpy.type(value)), dtype)
    if (isinstance(value, float) and not value.is_integer()) or not fits(int(value), dtype):
        raise ValueError(f"{value} is no {dtype}")
    return Const(value, dtype)


LIMITS: Mapping[DType, tuple[int, int]] = {
    dtype: (0, 1) if dtype is DType.BOOL else (int(np.iinfo(dtype.value).min), int(np.iinfo(dtype.value).max))
    for dtype in DType
    if not dtype.is_float
}
"""The least and the largest value of each dtype of whole numbers, and of BOOL."""

SAFE = 1e38
"""Floats below it are no more than any dtype can hold."""


def fits(value: int, dtype: DType) -> bool:
    """Whether an integer dtype, or BOOL, holds the value."""
    least, largest = LIMITS[dtype]
    return least <= value <= largest


def op(name: str, *args: Expr | Arithmetic | Number, dtype: DType | None = None) -> Expr:
    """Apply `name`, folding constants, the integer identities x+0, x*1, x*0, x//1, x%1, and constant conditions.

    A Python number takes the dtype of the other operand. `dtype` is needed for `cast` and `bitcast` alone.
    """
    nodes: tuple[Any, ...] = args
    for arg in args:
        if not isinstance(arg, Arithmetic):
            nodes = _nodes(name, args)
            break
    if dtype is None:
        dtype = DType.BOOL if name in COMPARISONS else nodes[-1].dtype
    return applied(name, nodes, dtype)


def _nodes(name: str, args: tuple[Any, ...]) -> tuple[Expr, ...]:
    """Arguments with numbers made literals."""
    like: DType | None = None
    for arg in args[1:] if name == "select" else args:  # the condition says nothing about the dtype of the choices
        if isinstance(arg, NODES):
            like = arg.dtype
    return tuple([arg if isinstance(arg, NODES) else const(arg, like) for arg in args])


def applied(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """As `op`, where nothing is left open."""
    for arg in args:
        if type(arg) is Const:
            return _folded(name, args, dtype)
    if name == "cast" and args[0].dtype is dtype:
        return args[0]
    return Op(name, args, dtype)


def _folded(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """An op of which some arguments are known."""
    values = [a.value for a in args if isinstance(a, Const)]
    if len(values) == len(args) and name not in HORIZONTAL:
        return Const(evaluated(name, [a.dtype for a in args], values, dtype), dtype)
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
    """An op on two integers, one of which is known."""
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


INDEXING: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "min": min,
    "max": max,
}
"""Arithmetic on indices, without the cost of numpy's scalars."""


def evaluated(name: str, kinds: Sequence[DType], numbers: Sequence[Number], dtype: DType) -> Number:
    """The value of an op, to a dtype, on numbers of these dtypes."""
    quick = INDEXING.get(name)
    if quick and kinds[0] is DType.I64:
        result: Number = quick(*numbers)
        if fits(int(result), DType.I64):
            return result
    with np.errstate(all="ignore"):
        values = [kind.numpy.type(number) for kind, number in zip(kinds, numbers, strict=True)]
        found: Number = _computed(name, dtype, values).item()
    return found


def apply(node: Op, *values: Any) -> Any:
    """The numpy meaning of one op on the values of its arguments, in the dtype of the node."""
    return _computed(node.name, node.dtype, values)


def _computed(name: str, dtype: DType, values: Sequence[Any]) -> Any:
    if name == "bitcast":
        return np.asarray(values[0]).view(dtype.numpy)
    return np.asarray(OPS[name](*values)).astype(dtype.numpy, copy=False)


def children(node: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside a node."""
    return node.children


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node of a DAG once, parents before children."""
    seen: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if node.children:
                stack.extend(node.children[::-1])


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


def rebuilt(node: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The node with other children; itself if they are the ones it has."""
    if parts == node.children:
        return node
    match node:
        case Op():
            return applied(node.name, parts, node.dtype)
        case Load():
            return Load(node.tensor, parts, node.dtype, node.count)
        case Ramp():
            return Ramp(parts[0], node.lanes)
    return node


def transform(root: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuild a DAG bottom-up: `visit` gets each node with its children already rebuilt, once for a shared node.

    Parts in which nothing changes stay the same objects.
    """
    done: dict[Expr, Expr] = {}

    def go(node: Expr) -> Expr:
        found = done.get(node)
        if found is None:
            inside = node.children
            found = done[node] = visit(rebuilt(node, tuple([go(part) for part in inside])) if inside else node)
        return found

    return go(root)


def substitute(root: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace variables by expressions."""
    return Substitution(values)(root)


class Substitution:
    """Replaces variables by expressions, in many roots: what they share is replaced once."""

    __slots__ = ("_done", "_names", "_values")

    def __init__(self, values: Mapping[str, Expr]) -> None:
        self._values = values
        self._names = frozenset(values)
        self._done: dict[Expr, Expr] = {}

    def __call__(self, node: Expr) -> Expr:
        found = self._done.get(node)
        if found is None:
            if self._names.isdisjoint(variables(node)):
                return node
            if isinstance(node, Var):
                return self._values[node.name]
            found = self._done[node] = rebuilt(node, tuple(map(self, node.children)))
        return found


def evaluate(root: Expr, env: Mapping[str, Any], read: Callable[[Load, Sequence[Any]], Any]) -> Any:
    """The value of an expression in numpy.

    `env` gives each variable an integer or an array; arrays broadcast against each other, so one call evaluates a
    whole grid of points, or of threads. `read` answers a load with the values at the evaluated indices.
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
            return _literal(value, DType(dtype))
        case ["var", str(name)]:
            return Var(name)
        case ["load", str(dtype), str(tensor), *index]:
            return Load(tensor, tuple(map(from_json, index)), DType(dtype))
        case ["op", str(dtype), str(name), *args] if name in OPS and len(args) == arity(name):
            return Op(name, tuple(map(from_json, args)), DType(dtype))
    raise ValueError(f"not an expression: {str(data)[:80]}")


def _literal(value: Number | str, dtype: DType) -> Const:
    if dtype.is_float and not isinstance(value, bool):
        return const(float(value), dtype)
    if isinstance(value, bool) is (dtype is DType.BOOL) and isinstance(value, int):
        return const(value, dtype)
    raise ValueError(f"{str(value)[:80]!r} is no {dtype}")
