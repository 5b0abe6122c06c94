"""An interpreter of kernels that checks every access.

A kernel is translated to Python once and then run, vectors as one-dimensional numpy arrays. The text consists of names
made here; those of the kernel never enter it. Arithmetic is that of `OPS`, written with Python's operators where numpy
gives them the same meaning, because they are several times faster on single elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, NoReturn

import numpy as np

from ..expr.dtype import DType
from ..expr.expr import HORIZONTAL, INFIX, Const, Expr, Load, Op, Ramp, Var, apply
from ..expr.index import contiguous
from ..expr.semantics import OPS
from .access import (
    AccessLog,
    Array,
    BoundsError,
    ThreadElements,
    UndefinedRead,
    element_name,
    flat_parameters,
)
from .ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    Fetch,
    For,
    If,
    Kernel,
    LoopKind,
    Prefetch,
    Roles,
    Stmt,
    Store,
    bytes_name,
    loop_nest,
    written_buffers,
)
from .matrix import MATRIX_INSTRUCTIONS, expand


def run(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Execute a kernel on its parameters (inputs then outputs), writing the outputs in place.

    A parameter that the kernel stores to is an output: what it held before counts as undefined. Raises BoundsError,
    UndefinedRead or RaceError on the first access that is wrong, and ValueError if the arrays don't fit the parameters.
    The kernel should have passed `verify`: dtypes and lanes are not checked here.
    """
    program = _PythonProgram(kernel)
    memory = {buffer.name: (buffer, array) for buffer, array in flat_parameters(kernel, arrays)}
    memory |= {b.name: (b, np.empty(prod(b.shape), b.dtype.numpy)) for b in kernel.scratch}
    memory |= {words.name: (words, memory[bytes_name(words.name)][1].view(words.dtype.numpy)) for words in kernel.words}
    for buffer, array in memory.values():
        program.bind(buffer, array)
    with np.errstate(all="ignore"):
        program.execute()


@dataclass(slots=True)
class _IterationLog:
    """The elements of a buffer that the running iteration of a parallel loop has touched, and all before it."""

    buffer: Buffer
    reads: bytearray  # flags, a byte an element
    writes: bytearray
    earlier: AccessLog

    @staticmethod
    def empty(buffer: Buffer) -> _IterationLog:
        size = prod(buffer.shape)
        return _IterationLog(buffer, bytearray(size), bytearray(size), AccessLog.empty(size, "iteration"))

    def end(self, iteration: int) -> None:
        """Compare an iteration with all before it. Raises RaceError."""
        for flags, note in ((self.writes, self.earlier.write), (self.reads, self.earlier.read)):
            where = np.flatnonzero(np.frombuffer(flags, np.uint8))
            by = np.full(len(where), iteration)
            note(ThreadElements(self.buffer, where, by), by)
            flags[:] = bytes(len(flags))


@dataclass(frozen=True, slots=True)
class _Slot:
    """A buffer, and the number at the end of the names that its arrays have in the program."""

    buffer: Buffer
    number: int
    is_defined: bool = False  # defined from the start, so that reads need no check
    is_logged: bool = False  # written inside a parallel loop, so that accesses are noted


@dataclass(frozen=True, slots=True)
class _Span:
    """Elements of a flat buffer as program text: one, a slice of consecutive ones, or an array of indices."""

    start: str
    count: int  # number of elements
    lanes: int
    is_consecutive: bool

    @property
    def text(self) -> str:
        return f"{self.start}:{self.start}+{self.count}" if self.is_consecutive else self.start

    @property
    def is_scattered(self) -> bool:
        return self.lanes > 1 and not self.is_consecutive


@dataclass(slots=True)
class _PythonProgram:
    """A kernel as Python: one function a phase. `names` is what the functions see."""

    kernel: Kernel
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    slots: dict[str, _Slot] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    done: dict[int, str] = field(default_factory=dict)  # node id -> its name in the present statement
    depth: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.names |= {"empty": np.empty, "frombuffer": np.frombuffer, "product": product, "uint8": np.uint8}
        self.names |= {"outside": _refuse_outside, "undefined": _refuse_undefined, "padded": _pad}
        outputs = written_buffers(self.kernel.body)
        for buffer in self.kernel.params + self.kernel.scratch + self.kernel.words:
            complete = buffer not in self.kernel.scratch and buffer.name not in outputs
            self.slots[buffer.name] = _Slot(buffer, self.number(), complete)
        outer = self.slots
        for number, phase in enumerate(self.kernel.body.body):
            self.slots = dict(outer)
            self.emit(f"def phase{number}():")
            with self.indent():
                self.phase(phase)

    def bind(self, buffer: Buffer, data: Array) -> None:
        """Give a parameter or scratch buffer its memory, flat."""
        slot = self.slots[buffer.name]
        self.names[f"data{slot.number}"] = data
        self.names[f"unset{slot.number}"] = bytearray(b"\1" * data.size)

    def execute(self) -> None:
        exec(compile("\n".join(self.lines), "<kernel>", "exec"), self.names)  # noqa: S102 - text made above, no foreign names
        for number in range(len(self.kernel.body.body)):
            self.names[f"phase{number}"]()

    def emit(self, line: str) -> None:
        self.lines.append(" " * self.depth + line)

    def number(self) -> int:
        self.count += 1
        return self.count

    def fresh(self, kind: str) -> str:
        return f"{kind}_{self.number()}"

    def keep(self, kind: str, value: object) -> str:
        """A name for a value that the program uses."""
        name = self.fresh(kind)
        self.names[name] = value
        return name

    @contextmanager
    def indent(self) -> Iterator[None]:
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1

    def phase(self, stmt: Stmt) -> None:
        match stmt:
            case For(var, extent, body, LoopKind.PARALLEL):
                written = written_buffers(body)
                self.slots |= {name: replace(s, is_logged=True) for name, s in self.slots.items() if name in written}
                logs = {slot.number: _IterationLog.empty(slot.buffer) for slot in self.slots.values() if slot.is_logged}
                for number, log in logs.items():
                    self.emit(f"reads{number} = {self.keep('reads', log.reads)}")
                    self.emit(f"writes{number} = {self.keep('writes', log.writes)}")
                with self.loops([(var, extent)]):
                    self.statement(body)
                    for log in logs.values():
                        self.emit(f"{self.keep('end', log.end)}({self.variables[var]})")
            case _:
                self.statement(stmt)

    @contextmanager
    def loops(self, ranges: Sequence[tuple[str, int]]) -> Iterator[None]:
        """The inside of perfectly nested loops. One `for` runs them all, as Python nests no more than 20 of them."""
        for var, _ in ranges:
            self.variables[var] = self.fresh("v")
        targets = ", ".join(self.variables[var] for var, _ in ranges)
        extents = ", ".join(f"range({extent})" for _, extent in ranges)
        self.emit(f"for {targets} in {extents if len(ranges) == 1 else f'product({extents})'}:")
        with self.indent():
            yield

    def statement(self, stmt: Stmt) -> None:
        self.done.clear()
        match stmt:
            case Block(body):
                for part in body:
                    self.statement(part)
            case For(kind=LoopKind.BLOCK | LoopKind.THREAD):
                raise ValueError(f"a {stmt.kind} loop is of GPUs: cuda.interp runs it")
            case For():
                loops, inner = loop_nest(stmt)
                with self.loops([(loop.var, loop.extent) for loop in loops]):
                    self.statement(inner)
            case If(condition, then):
                self.emit(f"if {self.value(condition)}:")
                with self.indent():
                    self.statement(then)
            case Alloc(buffer, body):
                self.alloc(buffer)
                self.statement(body)
            case Store():
                self.store(stmt)
            case Prefetch():
                self.emit("pass")
            case Do(name) if name in MATRIX_INSTRUCTIONS:
                self.statement(expand(stmt, {name: slot.buffer for name, slot in self.slots.items()}))
            case Barrier() | Do() | Fetch() | Roles():
                raise ValueError(f"{type(stmt).__name__} is of GPUs: cuda.interp runs it")

    def alloc(self, buffer: Buffer) -> None:
        slot = self.slots[buffer.name] = _Slot(buffer, self.number())
        unset = self.keep("flags", b"\1" * prod(buffer.shape))
        self.emit(f"data{slot.number} = empty({prod(buffer.shape)}, {self.keep('dtype', buffer.dtype.numpy)})")
        self.emit(f"unset{slot.number} = bytearray({unset})")

    def store(self, stmt: Store) -> None:
        slot = self.slots[stmt.tensor]
        value = self.value(stmt.value)
        span = self.span(stmt, slot)
        if stmt.value.lanes > span.count:
            value = f"{value}[:{span.count}]"
        self.emit(f"data{slot.number}[{span.text}] = {value}")
        if not slot.is_defined:
            self.mark(f"unset{slot.number}", span, 0)
        if slot.is_logged:
            self.mark(f"writes{slot.number}", span, 1)

    def mark(self, flags: str, span: _Span, flag: int) -> None:
        """Set the flags of elements."""
        if span.is_consecutive:
            self.emit(f"{flags}[{span.text}] = {self.keep('flags', bytes([flag]) * span.count)}")
        else:
            flags = f"frombuffer({flags}, uint8)" if span.is_scattered else flags
            self.emit(f"{flags}[{span.text}] = {flag}")

    def load(self, node: Load) -> str:
        slot = self.slots[node.tensor]
        span = self.span(node, slot)
        if not slot.is_defined:
            flags = f"unset{slot.number}"
            if span.is_consecutive:
                test = f"{flags}.find(1, {span.start}, {span.start}+{span.count}) >= 0"
            else:
                test = (
                    f"frombuffer({flags}, uint8)[{span.text}].any()" if span.is_scattered else f"{flags}[{span.text}]"
                )
            wrong = f"undefined({self.keep('buffer', slot.buffer)}, {flags}, {span.start}, {span.count})"
            self.emit(f"if {test}: {wrong}")
        if slot.is_logged:
            self.mark(f"reads{slot.number}", span, 1)
        read = f"data{slot.number}[{span.text}]"
        return f"padded({read}, {span.lanes})" if span.count < span.lanes else read

    def span(self, access: Load | Store, slot: _Slot) -> _Span:
        """Where an access goes, its bounds checked."""
        lanes = max((i.lanes for i in access.index), default=1)
        count = access.count or lanes
        consecutive = lanes > 1 and contiguous(access.index)
        positions, tests, terms = [], [], []
        for index, extent, stride in zip(access.index, slot.buffer.shape, slot.buffer.strides, strict=True):
            position = self.value(index.base if consecutive and isinstance(index, Ramp) else index)
            if index.lanes > 1 and not consecutive:
                position = position if count == lanes else f"{position}[:{count}]"
                tests.append(f"0 <= {position}.min() and {position}.max() < {extent}")
            else:
                tests.append(f"0 <= {position} < {extent - (count - 1 if consecutive and index.lanes > 1 else 0)}")
            positions.append(position)
            terms.append(position if stride == 1 else f"{position} * {stride}")
        if tests:
            kept = self.keep("access", access), self.keep("buffer", slot.buffer)
            wrong = f"outside({', '.join((*kept, *positions))})"
            self.emit(f"if not ({' and '.join(tests)}): {wrong}")
        start = self.fresh("p")
        self.emit(f"{start} = {' + '.join(terms) or '0'}")
        return _Span(start, count, lanes, consecutive)

    def value(self, node: Expr) -> str:
        """The name of a value, computed by lines before the one that uses it."""
        if id(node) not in self.done:
            match node:
                case Var(name):
                    text = self.variables[name]
                case Const(value, DType.I64 | DType.BOOL):
                    text = f"({value})"
                case Const(value, dtype):
                    text = self.keep("c", dtype.numpy.type(value))
                case _:
                    result = self.compound(node)
                    text = self.fresh("t")
                    self.emit(f"{text} = {result}")
            self.done[id(node)] = text
        return self.done[id(node)]

    def compound(self, node: Expr) -> str:
        match node:
            case Ramp(base, lanes):
                return f"{self.value(base)} + {self.keep('lanes', np.arange(lanes))}"
            case Load():
                return self.load(node)
            case Op(args=args):
                return self.op(node, *map(self.value, args))
        raise TypeError(f"{node} is no compound")

    def op(self, node: Op, *args: str) -> str:
        """The text of one op. Single I64 and BOOL values may be Python's own, all others are numpy's."""
        kinds = {a.dtype for a in node.args}
        plain = node.lanes == 1 and node.name not in HORIZONTAL
        match node.name, args:
            case ("add" | "sub" | "mul" | "lt" | "le" | "eq" | "ne", (a, b)):
                return f"{a} {INFIX[node.name]} {b}"
            case ("floordiv" | "mod", (a, b)) if node.dtype is DType.I64:
                return f"{a} {INFIX[node.name]} {b}"
            case ("div", (a, b)) if node.dtype.is_float:
                return f"{a} / {b}"
            case ("fma", (a, b, c)):
                return f"{a} * {b} + {c}"
            case ("neg", (a,)):
                return f"-{a}"
            case ("min" | "max", (a, b)) if plain and node.dtype is DType.I64:
                return f"{a} if {a} {'<' if node.name == 'min' else '>'} {b} else {b}"
            case ("and" | "or", (a, b)) if plain:
                return f"{a} {node.name} {b}"
            case ("not", (a,)) if plain:
                return f"not {a}"
            case ("select", (a, b, c)) if plain:
                return f"{b} if {a} else {c}"
            case ("cast", (a,)) if plain and node.dtype.is_float:
                return f"{self.keep('dtype', node.dtype.numpy.type)}({a})"
        if kinds == {node.dtype} and node.dtype.is_float and node.name not in HORIZONTAL:
            return f"{self.keep('op', OPS[node.name])}({', '.join(args)})"
        meaning: Callable[..., Any] = partial(apply, node)
        return f"{self.keep('op', meaning)}({', '.join(args)})" + ("[0]" if node.name in HORIZONTAL else "")


def _pad(values: Array, lanes: int) -> Array:
    result = np.zeros(lanes, values.dtype)
    result[: len(values)] = values
    return result


def _refuse_outside(access: Load | Store, buffer: Buffer, *positions: Any) -> NoReturn:
    lanes = max(i.lanes for i in access.index)
    count = "" if lanes == 1 else f" ({access.count or lanes} lanes)"
    index = [p.tolist() if isinstance(p, np.ndarray) else int(p) for p in positions]
    raise BoundsError(f"{buffer.name}{index}{count} is outside shape {list(buffer.shape)}")


def _refuse_undefined(buffer: Buffer, unset: bytearray, start: Any, count: int) -> NoReturn:
    numbers = range(start, start + count) if np.ndim(start) == 0 else start.tolist()
    first = next(number for number in numbers if unset[number])
    raise UndefinedRead(f"{element_name(buffer, first)} is read before anything wrote it")
