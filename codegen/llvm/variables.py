"""Variables of a function: of its loops, of a microkernel's integers, of symbolic numbers; and their invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..expr.dtype import DType
from ..expr.expr import Expr
from ..expr.symbolic import is_symbolic, is_symbolic_name
from .function import FunctionBuilder, SsaValue
from .memory import MemoryRange


class NumberTable:
    """The symbolic numbers that the phases of a kernel read, in the cells behind the addresses of its buffers."""

    def __init__(self, buffers: int) -> None:
        self._buffers = buffers
        self.numbers: dict[str, int] = {}  # name -> its position

    def cell(self, name: str) -> int:
        """The cell of a number, from the first address on."""
        return self._buffers + self.numbers.setdefault(name, len(self.numbers))


class LoopInvariants(NamedTuple):
    """Values and memory ranges that depend on loop variables alone, valid until a variable changes."""

    values: dict[Expr, SsaValue]
    ranges: dict[tuple[int, str], MemoryRange]  # by the identity of an address, and the base

    def sizes(self) -> tuple[int, int]:
        """The number of known values and ranges."""
        return len(self.values), len(self.ranges)

    def shrink(self, sizes: tuple[int, int]) -> None:
        """Drop the values and ranges that were added since `sizes()` gave this."""
        values, ranges = sizes
        while len(self.values) > values:
            self.values.popitem()
        while len(self.ranges) > ranges:
            self.ranges.popitem()


class Variables:
    """The values of the variables of one function. In a microkernel, which has no `table`, no number is symbolic."""

    def __init__(self, builder: FunctionBuilder, table: NumberTable | None = None) -> None:
        self._once = builder.once
        self._table = table
        self._values: dict[str, SsaValue] = {}
        self.invariants = LoopInvariants({}, {})

    @contextmanager
    def bind(self, name: str) -> Iterator[Callable[[SsaValue], None]]:
        """A context in which a variable gets values, by the function that it yields; afterwards it has its outer one.

        Invariants added inside are dropped when the variable changes; those with another meaning are set aside.
        """
        outer, around = self._values.get(name), self.invariants
        if outer is not None:
            self.invariants = LoopInvariants({}, {})
        sizes = self.invariants.sizes()

        def assign(value: SsaValue) -> None:
            self.invariants.shrink(sizes)
            self._values[name] = value

        yield assign
        self.invariants.shrink(sizes)
        self.invariants = around
        if outer is None:
            self._values.pop(name, None)
        else:
            self._values[name] = outer

    def define(self, name: str, text: str) -> None:
        """Give a variable its value in the whole function."""
        self._values[name] = SsaValue(text, DType.I64, 1, 0)

    def value(self, name: str) -> SsaValue:
        """The value of a variable. A symbolic number is read behind the addresses of the buffers. Raises KeyError."""
        known = self._values.get(name)
        if known is not None:
            return known
        if self._table is None or not is_symbolic_name(name):
            raise KeyError(name)
        slot = self._once(f"getelementptr i8, ptr %args, i64 {8 * self._table.cell(name)}", 0)
        self.define(name, self._once(f"load i64, ptr {slot}", 0))
        return self._values[name]

    def number(self, number: int) -> str:
        """The text of a number, which may be symbolic."""
        return self.value(number.name).text if is_symbolic(number) else str(number)
