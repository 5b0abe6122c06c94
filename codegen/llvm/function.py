"""Functions of a kernel in LLVM IR, phases and microkernels: where an instruction goes, and the modules they form.

An instruction that depends on loop variables alone is written once, at the head of the outermost loop that knows them
all. Any other is written where it stands, once in its basic block. Equal instructions are recognised by their text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

from ..expr.dtype import DType
from ..expr.expr import Expr, Load, Op, loads
from ..expr.semantics import Number
from ..ir.ir import Prefetch, Stmt, Store

LOCAL = 1 << 30
"""The depth of a value that only its own basic block knows. Loops count from 1, and 0 is the whole function."""


PREFETCH_DATA = "i32 0, i32 3, i32 1"
"""Arguments of a prefetch: to be read, into all levels of cache, as data."""


class SsaValue(NamedTuple):
    """An operand: its text without the type, and the depth of the loop that knows it."""

    text: str
    dtype: DType
    lanes: int
    depth: int
    number: Number | None = None  # the value, where known


class FunctionBuilder:
    """The lines of one function, written front to back but for the heads of loops, which are filled in as needed."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # where the next one is added
        self._frame: list[str] = []  # allocas
        self._heads: list[list[str]] = [[]]  # by depth
        self._parts: list[list[str]] = [self._frame, self._heads[0], self.lines]
        self._names = 0
        self._names_by_text: dict[str, str] = {}  # instruction -> name, for depths below LOCAL
        self._enter("%entry")

    def __str__(self) -> str:
        return "\n".join(chain.from_iterable(self._parts))

    def once(self, instruction: str, depth: int = LOCAL) -> str:
        """The name of an instruction's value; the same instruction is written once where it is known."""
        names = self._local if depth == LOCAL else self._names_by_text
        name = names.get(instruction)
        if name is None:
            self._names += 1
            name = names[instruction] = f"%v{self._names}"
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
    def loop(self, first: str, last: str, is_empty: bool) -> Iterator[SsaValue]:
        """A context whose lines run for each value, first .. last - 1, of the counter that it yields.

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
        yield SsaValue(counter, DType.I64, 1, len(self._heads) - 1)
        following = self.once(f"add nuw nsw i64 {counter}, 1")
        again = self.once(f"icmp ne i64 {following}, {last}")
        self.lines += [f"  br i1 {again}, label {header}, label {after}", f"{after[1:]}:"]
        top[0] = f"{header[1:]}:\n  {counter} = phi i64 [ {first}, {entry} ], [ {following}, {self._block} ]"
        self._heads.pop()
        self._enter(after)

    @contextmanager
    def branch(self, condition: str) -> Iterator[None]:
        """A context whose lines run where a condition holds."""
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


MICROKERNEL = "microkernel"
"""The provisional name of a microkernel, until its text decides the real one."""


def parameters(buffers: Iterable[str], integers: Iterable[str]) -> str:
    """The parameters of a microkernel's definition, or the arguments of a call."""
    return ", ".join((*(f"ptr {name}" for name in buffers), *(f"i64 {name}" for name in integers)))


class Function(NamedTuple):
    """`define void @name(parameters)`. A note is a comment above it."""

    name: str
    parameters: str
    body: str
    note: str = ""

    @property
    def declaration(self) -> str:
        """The declaration for modules that call the function."""
        return f"declare void @{self.name}({self.parameters})"

    def __str__(self) -> str:
        note = f"; {self.note}\n" if self.note else ""
        return f"{note}define void @{self.name}({self.parameters}) nounwind {{\n{self.body}\n}}"


class LlvmSource(NamedTuple):
    """The functions of a kernel: its phases, in order, and the microkernels that they call. As text one module."""

    triple: str
    phases: tuple[Function, ...]
    microkernels: tuple[Function, ...]
    numbers: tuple[str, ...] = ()  # names of the symbolic numbers that the phases read, in order

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that become an object each: that of the phases, and one for each microkernel."""
        declarations = [function.declaration for function in self.microkernels]
        phases = self._module((*declarations, *self.phases))
        return phases, *(self._module((function,)) for function in self.microkernels)

    def __str__(self) -> str:
        return self._module((*self.phases, *self.microkernels))

    def _module(self, parts: Iterable[object]) -> str:
        return "\n\n".join([f'target triple = "{self.triple}"', *map(str, parts)]) + "\n"

    def rename(self, names: Mapping[str, str]) -> LlvmSource:
        """The source with other names for some functions, in definitions and calls."""

        def rename_function(function: Function) -> Function:
            body = function.body
            for old, new in names.items():
                body = body.replace(f"@{old}(", f"@{new}(")
            return function._replace(name=names.get(function.name, function.name), body=body)

        phases, microkernels = (tuple(map(rename_function, group)) for group in (self.phases, self.microkernels))
        return LlvmSource(self.triple, phases, microkernels, self.numbers)


PLAIN = (Store, Prefetch)
"""Statements that stand together; any other is a part of its own."""

REGISTERS = 8
"""Vector registers for each chain: its values, its share of the constants, and what other statements keep."""


def split_body(
    body: Sequence[Stmt], is_long: Callable[[Expr], bool], registers: int
) -> Iterator[tuple[list[Stmt], list[Store]]]:
    """A body cut up: each part with its stores of long values, which may all be computed before the part begins.

    Stores and prefetches make parts, any other statement is one. Nothing in a part before such a store writes to what
    its value loads. That buffers may share memory in place doesn't matter: what a name holds is read before the value
    of another name takes its place.
    """
    part: list[Stmt] = []
    ahead: list[Store] = []
    written: set[str] = set()
    plain = True

    def has_room(slow: Store) -> bool:
        return len(ahead) < registers // REGISTERS and written.isdisjoint(x.tensor for x in loads(slow.value))

    for stmt in body:
        after, plain = plain, isinstance(stmt, PLAIN)
        slow = stmt if isinstance(stmt, Store) and is_long(stmt.value) else None
        if part and (not (plain and after) or (slow and not has_room(slow))):
            yield part, ahead
            part, ahead, written = [], [], set()
        part.append(stmt)
        if slow:
            ahead.append(slow)
        if isinstance(stmt, Store):
            written.add(stmt.tensor)
    yield part, ahead


def evaluation_order(value: Expr) -> list[Expr]:
    """The loads and ops that a value needs in any case, each once, parts before what needs them."""
    done: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        if node in done or not isinstance(node, Op | Load):
            return
        if isinstance(node, Op):
            # Under a condition without loads, only one choice may ever be computed.
            open_choice = node.name == "select" and not loads(node.args[0])
            for arg in node.args[:1] if open_choice else node.args:
                visit(arg)
        done[node] = None

    visit(value)
    return list(done)
