"""Formula: an expression or a store as one short line for people.

Writing stops where the line is full. Parts that an expression shares are written out at each use, so the whole text of
a small model could be larger than memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunewright.codegen.expr.expr import INFIX, Const, Expr, Load, Op, Ramp, Var, const
from tunewright.codegen.ir.ir import Prefetch, Store

MOST_LETTERS = 120
"""Letters of a formula."""

MOST_DEEP = 24
"""Depth of nested ops that are written."""

CUT = "..."
"""Stands for a part that is left out."""

BINDING = {
    "or": 1, "and": 2, "lt": 3, "le": 3, "eq": 3, "ne": 3,
    "add": 4, "sub": 4, "fma": 4, "mul": 5, "div": 5, "floordiv": 5, "mod": 5, "neg": 6,
}  # fmt: skip
"""Precedence of ops; those written as calls have the highest."""

CALL = 7

SMALL = 1 << 62
"""Numbers below it may change their sign, whatever their type."""


class _LineFull(Exception):
    """The line has no more room."""


class _LineWriter:
    """Collects a line up to a number of letters."""

    def __init__(self, most_letters: int) -> None:
        self.parts: list[str] = []
        self._left = most_letters

    def put(self, text: str) -> None:
        self._left -= len(text)
        if self._left < 0:
            raise _LineFull
        self.parts.append(text)

    def expression(self, node: Expr, binding: int = 0, depth: int = 0) -> None:
        """The expression, in brackets where what is around it binds as tightly as `binding`, or tighter."""
        if depth > MOST_DEEP:
            self.put(CUT)
            return
        match node:
            case Const(value):
                self.put(_number(value))
            case Var(name):
                self.put(name)
            case Ramp(base, lanes):
                self.put("(" if binding else "")
                self.expression(base, BINDING["add"], depth + 1)
                self.put(f":+{lanes}{')' if binding else ''}")
            case Load(tensor, index, _, count):
                self.element(tensor, index, count, depth + 1)
            case Op():
                self._op(node, binding, depth + 1)

    def element(self, tensor: str, index: Sequence[Expr], count: int | None, depth: int = 0) -> None:
        """An element of a tensor, or a vector of them. The dot that names of registers begin with is left out."""
        self.put(f"{tensor.lstrip('.')}[")
        self.arguments(index, depth)
        self.put("]" if count is None else f" count={count}]")

    def arguments(self, nodes: Sequence[Expr], depth: int) -> None:
        for number, node in enumerate(nodes):
            self.put(", " if number else "")
            self.expression(node, 0, depth)

    def _op(self, node: Op, binding: int, depth: int) -> None:
        own = BINDING.get(node.name, CALL)
        self.put("(" if own <= binding else "")
        match node:
            case Op("fma", (left, right, rest)):
                self._infix("*", left, right, BINDING["mul"], depth)
                self.put(" + ")
                self.expression(rest, own, depth)
            case Op("neg", (part,)):
                self.put("-")
                self.expression(part, own, depth)
            case Op("add", (left, Const(value))) if -SMALL < value < 0:
                self._infix("-", left, const(-value, node.dtype), own, depth)
            case Op(name, (left, right)) if name in INFIX:
                self._infix(INFIX[name], left, right, own, depth)
            case Op(name, args, dtype):
                self.put(f"{dtype.value if name == 'cast' else name}(")
                self.arguments(args, depth)
                self.put(")")
        self.put(")" if own <= binding else "")

    def _infix(self, sign: str, left: Expr, right: Expr, own: int, depth: int) -> None:
        self.expression(left, own - 1, depth)
        self.put(f" {sign} ")
        self.expression(right, own, depth)


def formula(node: Expr, most_letters: int = MOST_LETTERS) -> str:
    """An expression as one line, cut where it is longer."""
    writer = _LineWriter(most_letters - len(CUT))
    try:
        writer.expression(node)
    except _LineFull:
        writer.parts.append(CUT)
    return "".join(writer.parts)


def store_formula(store: Store, most_letters: int = MOST_LETTERS) -> str:
    """A store as one line: `a[i] = b`, or `a[i] += b` where it adds to the old value."""
    writer = _LineWriter(most_letters - len(CUT))
    try:
        writer.element(store.tensor, store.index, store.count)
        sign, parts = _assignment(store)
        writer.put(f" {sign} ")
        for number, part in enumerate(parts):
            writer.put(" * " if number else "")
            writer.expression(part, BINDING["mul"] - 1 if len(parts) > 1 else 0)
    except _LineFull:
        writer.parts.append(CUT)
    return "".join(writer.parts)


def prefetch_formula(prefetch: Prefetch, most_letters: int = MOST_LETTERS) -> str:
    """A prefetch as one line."""
    writer = _LineWriter(most_letters - len(CUT))
    try:
        writer.put("ask early for ")
        writer.element(prefetch.tensor, prefetch.index, None)
    except _LineFull:
        writer.parts.append(CUT)
    return "".join(writer.parts)


def _assignment(store: Store) -> tuple[str, Sequence[Expr]]:
    """The sign of a store, = or +=, and the factors of the value."""
    match store.value:
        case Op("fma", (left, right, Load() as old)) if _is_target(old, store):
            return "+=", (left, right)
        case Op("add", (Load() as old, rest)) | Op("add", (rest, Load() as old)) if _is_target(old, store):
            return "+=", (rest,)
    return "=", (store.value,)


def _is_target(load: Load, store: Store) -> bool:
    """Whether a load reads what a store writes."""
    return load.tensor == store.tensor and load.index == store.index


def _number(value: float | bool) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
