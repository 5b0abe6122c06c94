"""Listing: the lines of a function, and where an instruction goes.

What depends on loop variables alone is written once, at the head of the outermost loop that knows them all, and found
again by its text. Anything else is written where it stands, and found again inside its basic block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

from .dtype import DType
from .meaning import Number

LOCAL = 1 << 30
"""The depth of a value that only its own basic block knows. Loops count from 1, and 0 is the whole function."""


class Value(NamedTuple):
    """An operand: its text without the type, and the depth of the loop that knows it."""

    text: str
    dtype: DType
    lanes: int
    depth: int
    number: Number | None = None  # the value, where known


class Listing:
    """The lines of one function, written front to back but for the heads of loops, which are filled in as needed."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # where the next one is added
        self._frame: list[str] = []  # allocas
        self._heads: list[list[str]] = [[]]  # by depth
        self._parts: list[list[str]] = [self._frame, self._heads[0], self.lines]
        self._names = 0
        self._found: dict[str, str] = {}  # instruction -> name, for depths below LOCAL
        self._enter("%entry")

    def __str__(self) -> str:
        return "\n".join(chain.from_iterable(self._parts))

    def once(self, instruction: str, depth: int = LOCAL) -> str:
        """The name of an instruction's value; the same instruction is written once where it is known."""
        known = self._local if depth == LOCAL else self._found
        name = known.get(instruction)
        if name is None:
            self._names += 1
            name = known[instruction] = f"%v{self._names}"
            (self.lines if depth == LOCAL else self._heads[depth]).append(f"  {name} = {instruction}")
        return name

    def here(self, instruction: str) -> str:
        """The name of the value of an instruction written here, whatever was written before."""
        name = self._name("v")
        self.lines.append(f"  {name} = {instruction}")
        return name

    def alloca(self, extent: int, kind: str) -> str:
        """The name of memory for so many elements on the stack."""
        name = self._name("m")
        self._frame.append(f"  {name} = alloca [{extent} x {kind}], align 64")
        return name

    @contextmanager
    def loop(self, first: str, last: str, is_empty: bool) -> Iterator[Value]:
        """What is written meanwhile runs for the value that is given, first .. last - 1.

        `is_empty`: whether that may be no value at all.
        """
        entry, header, after = self._block, self._name("b"), self._name("b")
        if is_empty:
            some = self.once(f"icmp slt i64 {first}, {last}")
            self.lines.append(f"  br i1 {some}, label {header}, label {after}")
        else:
            self.lines.append(f"  br label {header}")
        counter, top = self._name("i"), [""]
        self._heads.append([])
        self.lines = []
        self._parts += [top, self._heads[-1], self.lines]
        self._enter(header)
        yield Value(counter, DType.I64, 1, len(self._heads) - 1)
        following = self.once(f"add nuw nsw i64 {counter}, 1")
        again = self.once(f"icmp ne i64 {following}, {last}")
        self.lines += [f"  br i1 {again}, label {header}, label {after}", f"{after[1:]}:"]
        top[0] = f"{header[1:]}:\n  {counter} = phi i64 [ {first}, {entry} ], [ {following}, {self._block} ]"
        self._heads.pop()
        self._enter(after)

    @contextmanager
    def branch(self, condition: str) -> Iterator[None]:
        """What is written meanwhile runs where a condition holds."""
        inside, after = self._name("b"), self._name("b")
        self.lines += [f"  br i1 {condition}, label {inside}, label {after}", f"{inside[1:]}:"]
        self._enter(inside)
        yield
        self.lines += [f"  br label {after}", f"{after[1:]}:"]
        self._enter(after)

    def _enter(self, block: str) -> None:
        """From here on the lines belong to another basic block."""
        self._block = block
        self._local: dict[str, str] = {}  # instruction -> name

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"%{letter}{self._names}"
