"""Symbolic numbers: what is computed from them is recorded, and what is decided by them becomes a condition.

A `SymbolicInt` stands where an int does, in shapes, extents and indices. It has a value, and a number in a `Trace`.
Code that computes with it runs as it would with the value, and the trace keeps each number that comes of it, and each
comparison with its outcome. At other values of the symbols that give the same outcomes, the same code would have done
the same with the numbers that `Trace.replay` computes. So what it made holds for these values too. Where a plain int is
wanted, as by `range` or a format, the value itself becomes a condition.

PyTorch's symbolic shapes work so, with `SymInt` and guards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeGuard

MOST = 1 << 56
"""Numbers of a trace are below it, of either sign. Larger ones stand for infinity: comparisons with them are clear."""

PREFIX = "$"
"""What the names of symbolic numbers begin with, as variables of expressions. No loop has such a name."""

_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {"<": operator.lt, "==": operator.eq}

_serial = count()


def is_symbolic_name(name: str) -> bool:
    """Whether a variable stands for a symbolic number."""
    return name.startswith(PREFIX)


class TraceNumber(NamedTuple):
    """A number of a trace as an operand, where an int is a plain one."""

    number: int


Operand = TraceNumber | int
_Key = tuple[str, Operand, Operand]


@dataclass(slots=True, eq=False)
class Trace:
    """What was computed and decided, at certain values of the symbols."""

    symbols: int  # how many there are: the first numbers
    values: list[int]  # of all numbers
    steps: list[_Key] = field(default_factory=list)  # of the numbers behind the symbols
    guards: dict[_Key, bool] = field(default_factory=dict)  # comparisons and their outcomes
    _numbers: dict[_Key, int] = field(default_factory=dict)
    _serial: int = field(default_factory=lambda: next(_serial))

    @staticmethod
    def of(values: Sequence[int]) -> tuple[Trace, list[int]]:
        """A trace with a symbol for each value, in the place of ints."""
        trace = Trace(len(values), list(values))
        symbols: list[Any] = [SymbolicInt(trace, number) for number in range(len(values))]
        return trace, symbols

    def compute(self, op: str, left: Operand, right: Operand) -> SymbolicInt:
        """The result of an arithmetic op; equal ones are one number. Raises ZeroDivisionError: an outcome, too."""
        if op in ("//", "%") and isinstance(right, TraceNumber) and self.decide("==", right, 0):
            raise ZeroDivisionError
        key = op, left, right
        number = self._numbers.get(key)
        if number is None:
            self.values.append(_ARITHMETIC[op](_value(self.values, left), _value(self.values, right)))
            number = self._numbers[key] = len(self.values) - 1
            self.steps.append(key)
        return SymbolicInt(self, number)

    def decide(self, op: str, left: Operand, right: Operand) -> bool:
        """The outcome of a comparison, which becomes a condition."""
        outcome = _COMPARISONS[op](_value(self.values, left), _value(self.values, right))
        if not any(isinstance(plain, int) and abs(plain) >= MOST for plain in (left, right)):
            self.guards[op, left, right] = outcome
        return outcome

    def name(self, number: int) -> str:
        """The name of a number as a variable, unlike those of other traces."""
        return f"{PREFIX}{self._serial}.{number}"

    def by_name(self, name: str) -> SymbolicInt:
        """The number that a variable stands for."""
        return SymbolicInt(self, int(name.rpartition(".")[2]))

    def ranges(self) -> dict[str, tuple[Any, Any]]:
        """Each number as a variable, with both ends of its range: itself."""
        numbers = [SymbolicInt(self, number) for number in range(len(self.values))]
        return {number.name: (number, number) for number in numbers}

    def pinned(self) -> dict[int, int]:
        """The numbers that the conditions leave one value, and what is computed from such alone."""
        known: dict[int, int] = {}
        for (op, left, right), outcome in self.guards.items():
            match op, left, right:
                case ("==", TraceNumber(number), int()) | ("==", int(), TraceNumber(number)) if outcome:
                    known[number] = self.values[number]
        for number, (_, left, right) in enumerate(self.steps, self.symbols):
            if all(isinstance(operand, int) or operand.number in known for operand in (left, right)):
                known[number] = self.values[number]
        return known

    def replay(self, symbols: Sequence[int]) -> list[int] | None:
        """All numbers at other values of the symbols; None where a condition does not hold."""
        values = list(symbols)
        for op, left, right in self.steps:
            divisor = _value(values, right)
            if not divisor and op in ("//", "%"):
                return None
            values.append(_ARITHMETIC[op](_value(values, left), divisor))
        if any(abs(value) >= MOST for value in values):
            return None
        for (op, left, right), outcome in self.guards.items():
            if _COMPARISONS[op](_value(values, left), _value(values, right)) is not outcome:
                return None
        return values


def _value(values: Sequence[int], operand: Operand) -> int:
    return values[operand.number] if isinstance(operand, TraceNumber) else operand


class SymbolicInt:
    """A number of a trace, in the place of an int."""

    __slots__ = ("number", "trace")

    def __init__(self, trace: Trace, number: int) -> None:
        self.trace, self.number = trace, number

    @property
    def name(self) -> str:
        """Its name as a variable of expressions."""
        return self.trace.name(self.number)

    def __repr__(self) -> str:
        return f"{PREFIX}{self.number}"

    # Arithmetic, which is recorded.

    def _compute(self, op: str, left: object, right: object) -> Any:
        if not isinstance(left, int | SymbolicInt) or not isinstance(right, int | SymbolicInt):
            return NotImplemented
        known = _simplify(op, left, right)
        return self.trace.compute(op, _operand(left), _operand(right)) if known is None else known

    def __add__(self, other: object) -> Any:
        return self._compute("+", self, other)

    __radd__ = __add__

    def __sub__(self, other: object) -> Any:
        return self._compute("-", self, other)

    def __rsub__(self, other: object) -> Any:
        return self._compute("-", other, self)

    def __mul__(self, other: object) -> Any:
        return self._compute("*", self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Any:
        return self._compute("//", self, other)

    def __rfloordiv__(self, other: object) -> Any:
        return self._compute("//", other, self)

    def __mod__(self, other: object) -> Any:
        return self._compute("%", self, other)

    def __rmod__(self, other: object) -> Any:
        return self._compute("%", other, self)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    # Comparisons, which become conditions.

    def _decide(self, op: str, left: object, right: object) -> Any:
        if not isinstance(left, int | SymbolicInt) or not isinstance(right, int | SymbolicInt):
            return NotImplemented
        if _operand(left) == _operand(right):
            return op == "=="
        return self.trace.decide(op, _operand(left), _operand(right))

    def __lt__(self, other: object) -> Any:
        return self._decide("<", self, other)

    def __gt__(self, other: object) -> Any:
        return self._decide("<", other, self)

    def __le__(self, other: object) -> Any:
        more = self._decide("<", other, self)
        return more if more is NotImplemented else not more

    def __ge__(self, other: object) -> Any:
        less = self._decide("<", self, other)
        return less if less is NotImplemented else not less

    def __eq__(self, other: object) -> Any:
        return self._decide("==", self, other)

    def __hash__(self) -> int:
        return hash((id(self.trace), self.number))

    def __bool__(self) -> bool:
        return self != 0

    # All else is done with the plain value, which becomes a condition.

    def __index__(self) -> int:
        value = self.trace.values[self.number]
        self.trace.decide("==", TraceNumber(self.number), value)
        return value

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, form: str) -> str:
        return format(int(self), form)

    def __truediv__(self, other: Any) -> Any:
        return int(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / int(self)

    def __pow__(self, other: Any) -> Any:
        return int(self) ** other

    def __or__(self, other: Any) -> Any:
        return int(self) | other

    def __and__(self, other: Any) -> Any:
        return int(self) & other

    def __lshift__(self, other: Any) -> Any:
        return int(self) << other

    def __rshift__(self, other: Any) -> Any:
        return int(self) >> other

    def __rlshift__(self, other: Any) -> Any:
        return other << int(self)

    def bit_length(self) -> int:
        return int(self).bit_length()


def is_symbolic(number: object) -> TypeGuard[SymbolicInt]:
    """Whether a number is symbolic."""
    return isinstance(number, SymbolicInt)


def is_plain(number: int, value: int) -> bool:
    """Whether a number is this one whatever the symbols are."""
    return not is_symbolic(number) and number == value


def plain_at(values: Sequence[int]) -> Callable[[int], int]:
    """What gives each number its value among those of a trace."""
    return lambda number: values[number.number] if is_symbolic(number) else number


def _operand(value: int | SymbolicInt) -> Operand:
    return TraceNumber(value.number) if isinstance(value, SymbolicInt) else value


def _simplify(op: str, left: int | SymbolicInt, right: int | SymbolicInt) -> int | SymbolicInt | None:
    """The result where no number need be made for it. Only plain ints are looked at: no condition comes of it."""
    match op, left, right:
        case ("+", SymbolicInt(), int(far)) | ("+" | "-", int(far), SymbolicInt()) if abs(far) >= MOST:
            return far
        case "-", SymbolicInt(), int(far) if abs(far) >= MOST:
            return -far
        case ("*", SymbolicInt() as near, int(far)) | ("*", int(far), SymbolicInt() as near) if abs(far) >= MOST:
            return 0 if near == 0 else far if near > 0 else -far
        case "//", int(far), SymbolicInt() as near if abs(far) >= MOST:
            return far if near > 0 else -far
        case ("+" | "-", SymbolicInt(), int(0)) | ("*" | "//", SymbolicInt(), int(1)):
            return left
        case ("+", int(0), SymbolicInt()) | ("*", int(1), SymbolicInt()):
            return right
        case ("*", int(0), _) | ("*", _, int(0)) | ("%", _, int(1)):
            return 0
        case ("-", SymbolicInt(number=one), SymbolicInt(number=other)) if one == other:
            return 0
    return None
