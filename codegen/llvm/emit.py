"""LLVM IR as text from a Kernel: one function a phase, and one for each microkernel.

    define void @symbol_p0(ptr %args, i64 %begin, i64 %end)

`args` points at the addresses of the parameters, then of the scratch buffers, each aligned to its elements. A parallel
phase runs the iterations begin .. end - 1 of its loop; any other phase ignores both. A microkernel gets the addresses
of its buffers, then its integers. Nothing is said about aliasing, so buffers may be shared in place, and no name of a
kernel reaches the text.

Common subexpressions and loop-invariant code need no pass: see `FunctionBuilder` for where an instruction goes, and
`MemoryState` for what is known of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import zip_longest

from ..expr.dtype import DType
from ..expr.expr import HORIZONTAL, Const, Expr, Load, Op, Ramp, Var
from ..expr.math import expand, is_expandable
from ..expr.quantise import without_divisions
from ..expr.semantics import fold
from ..ir.ir import (
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
    Scope,
    Stmt,
    Store,
    bytes_name,
)
from ..ir.matrix import pitch
from ..ir.microkernel import Microkernel, extract_call, integer
from ..target import Target
from .access import MemoryAccess, has_loads
from .function import (
    LOCAL,
    MICROKERNEL,
    PREFETCH_DATA,
    Function,
    FunctionBuilder,
    LlvmSource,
    SsaValue,
    evaluation_order,
    parameters,
    split_body,
)
from .matrix import INTRINSICS, MatrixRegisters, call, first_element
from .memory import AddressBook
from .ops import literal, select, splat, type_name
from .types import Widths
from .variables import NumberTable, Variables


def emit(kernel: Kernel, target: Target, symbol: str) -> LlvmSource:
    """The functions of a kernel: `symbol_p0`, `symbol_p1`, ... in the order of its phases, and `symbol_m0`, ...

    Raises ValueError for an op that its dtype doesn't have, for a parallel loop inside a phase, and for lanes that
    don't match.
    """
    book = AddressBook()
    numbers = {buffer.name: number for number, buffer in enumerate((*kernel.params, *kernel.scratch))}
    arguments = [(buffer, numbers[buffer.name]) for buffer in (*kernel.params, *kernel.scratch)]
    arguments += [(words, numbers[bytes_name(words.name)]) for words in kernel.words]
    callees: dict[Function, str] = {}  # the microkernels that phases call, each once, and their provisional names
    table = NumberTable(len(numbers))

    def callee(microkernel: Microkernel) -> str:
        return callees.setdefault(_microkernel(target, microkernel), f"{symbol}_m{len(callees)}")

    phases = [
        _FunctionEmitter(book, target, callee, table).phase(f"{symbol}_p{number}", phase, arguments)
        for number, phase in enumerate(kernel.body.body)
    ]
    microkernels = tuple(function._replace(name=name) for function, name in callees.items())
    return LlvmSource(target.triple, tuple(phases), microkernels, tuple(table.numbers))


@lru_cache(maxsize=256)
def _microkernel(target: Target, microkernel: Microkernel) -> Function:
    """A microkernel as a function. Those of a task are asked for again and again."""
    return _FunctionEmitter(AddressBook(), target).microkernel(microkernel)


class _FunctionEmitter:
    """The emitter of one function. `callee` gives the name of a microkernel to be called; in one there are none."""

    def __init__(
        self,
        book: AddressBook,
        target: Target,
        callee: Callable[[Microkernel], str] | None = None,
        table: NumberTable | None = None,
    ) -> None:
        self._callee = callee
        self._registers = target.vector_registers
        self._widths = Widths.of(target)
        self._has_fma = target.has_fma
        self._builder = FunctionBuilder()
        self._once = self._builder.once
        self._variables = Variables(self._builder, table)
        self._memory = MemoryAccess(
            self._builder, self._variables, book, self._value, has_masks=self._widths.x86 >= 512
        )
        self._early_values: dict[int, dict[Expr, SsaValue]] = {}  # by the identity of a store, as `_memo`
        self._memo: dict[Expr, SsaValue] = {}  # values of the present statement
        self._matrices = MatrixRegisters(Block(()))  # of a phase
        self._splits: dict[int, list[tuple[list[Stmt], list[Store]]]] = {}  # identity of a Block -> its parts

    def phase(self, name: str, phase: Stmt, arguments: Sequence[tuple[Buffer, int]]) -> Function:
        """A phase, with the buffers of its kernel and their numbers in `%args`."""
        self._memory.add_arguments(arguments)
        self._matrices = MatrixRegisters(phase)
        self._builder.lines += self._matrices.configure(self._builder)
        note = ""
        match phase:
            case For(var, extent, body, LoopKind.PARALLEL):
                note = f"iterations 0 .. {extent - 1!r} in parallel"
                self._loop(var, "%begin", "%end", body)
            case _:
                self._statement(phase)
        return Function(name, "ptr %args, i64 %begin, i64 %end", self._body(), note)

    def microkernel(self, microkernel: Microkernel) -> Function:
        """A microkernel, which has no other name yet."""
        pointers = [f"%p{number}" for number in range(len(microkernel.buffers))]
        integers = [f"%x{number}" for number in range(microkernel.integers)]
        for pointer, buffer in zip(pointers, microkernel.buffers, strict=True):
            self._memory.add(buffer, pointer)
        for number, text in enumerate(integers):
            self._variables.define(integer(number).name, text)
        self._statement(microkernel.body)
        return Function(MICROKERNEL, parameters(pointers, integers), self._body())

    def _body(self) -> str:
        self._builder.lines += self._matrices.release()
        return f"entry:\n{self._builder}\n  ret void"

    # Statements.

    def _statement(self, stmt: Stmt) -> None:
        match stmt:
            case Store():
                self._store(stmt)
            case Prefetch():
                self._prefetch(stmt)
            case Block(body):
                cut = self._splits.get(id(stmt))
                if cut is None:
                    cut = self._splits[id(stmt)] = list(split_body(body, is_expandable, self._registers))
                for part, ahead in cut:
                    if ahead:
                        self._compute(ahead)
                    for inner in part:
                        self._statement(inner)
            case For(kind=LoopKind.PARALLEL | LoopKind.BLOCK | LoopKind.THREAD):
                raise ValueError(f"{stmt.kind} loop {stmt.var} inside a phase of a processor")
            case For(var, extent, body, kind) if kind is LoopKind.UNROLL or extent <= 1:
                self._unroll(var, extent, body)
            case For(var, extent, body):
                self._loop(var, "0", self._variables.number(extent), body)
            case If(condition, then):
                self._branch(condition, then)
            case Alloc(_, body):
                if not (self._callee and self._call(stmt, self._callee)):
                    with self._memory.allocate(stmt):
                        self._statement(body)
            case Do(name) if name in INTRINSICS:
                self._matrix_instruction(stmt)
            case Barrier() | Do() | Fetch() | Roles():
                raise ValueError(f"{type(stmt).__name__} in a kernel for a processor")

    def _unroll(self, var: str, extent: int, body: Stmt) -> None:
        """Copy `body` for each value. Several copies differ by their constants, so none calls a microkernel."""
        callee = self._callee
        if extent > 1:
            self._callee = None
        with self._variables.bind(var) as assign:
            for value in range(extent):
                assign(SsaValue(str(value), DType.I64, 1, 0, value))
                self._statement(body)
        self._callee = callee

    def _loop(self, var: str, first: str, last: str, body: Stmt) -> None:
        """Run `body` for var = first .. last - 1. Only the range of a parallel loop may be empty."""
        with self._builder.loop(first, last, is_empty=first != "0") as counter, self._variables.bind(var) as assign:
            assign(counter)
            self._forget()
            self._statement(body)
        self._forget()

    def _branch(self, condition: Expr, then: Stmt) -> None:
        self._memo.clear()
        value = self._value(expand(condition))
        if value.number is not None:
            if value.number:
                self._statement(then)
            return
        with self._builder.branch(value.text):
            self._forget()
            self._statement(then)
        self._forget()

    def _forget(self) -> None:
        """Forget the values that are known in one basic block alone."""
        self._memory.forget()
        self._memo = {}

    def _call(self, stmt: Alloc, callee: Callable[[Microkernel], str]) -> bool:
        """Call a microkernel, if the statement is one."""
        call = extract_call(stmt, self._memory.buffers)
        if call is None:
            return False
        self._memo.clear()
        pointers = [self._memory.buffer(buffer.name).base for buffer in call.microkernel.buffers]
        integers = [self._value(expand(value)).text for value in call.integers]
        self._builder.lines.append(f"  call void @{callee(call.microkernel)}({parameters(pointers, integers)})")
        self._forget()
        return True

    def _store(self, stmt: Store) -> None:
        # Other values of variables, or other contents of memory, than for the last statement.
        self._memo = self._early_values.pop(id(stmt), {})
        memory, address = self._memory.locate(stmt)
        value = self._broadcast(self._value(self._expand(stmt.value)), address.lanes)
        self._memory.store(stmt, memory, address, value)

    def _expand(self, value: Expr) -> Expr:
        """What is stored, in ops that the machine has."""
        return expand(without_divisions(value) if self._has_fma else value)

    def _compute(self, stores: Sequence[Store]) -> None:
        """Compute values ahead of the stores that need them, side by side."""
        values = [self._expand(stmt.value) for stmt in stores]
        memos = [self._early_values.setdefault(id(stmt), {}) for stmt in stores]
        for nodes in zip_longest(*map(evaluation_order, values)):
            for self._memo, node in zip(memos, nodes, strict=True):
                if node is not None:
                    self._value(node)
        self._memo = {}

    def _prefetch(self, stmt: Prefetch) -> None:
        self._memo.clear()
        dtype = self._memory.buffer(stmt.tensor).dtype
        where = self._memory.pointer(Load(stmt.tensor, stmt.index, dtype))
        self._builder.lines.append(f"  call void @llvm.prefetch.p0(ptr {where}, {PREFETCH_DATA})")

    def _matrix_instruction(self, stmt: Do) -> None:
        self._memo.clear()
        registers, address, pitch_bytes = [], "", 0
        for operand in (*stmt.outs, *stmt.ins):
            memory = self._memory.buffer(operand.tensor)
            if memory.buffer.scope is Scope.MATRIX:
                number = [int(self._value(e).number or 0) for e in operand.index[:-2]]
                registers.append(self._matrices.number(operand.tensor, number))
            else:
                address = self._memory.pointer(first_element(operand))
                pitch_bytes = pitch(operand, memory.buffer) * memory.size_bytes
        self._builder.lines.append(call(stmt, registers, address, pitch_bytes))
        self._forget()

    # Values.

    def _value(self, node: Expr) -> SsaValue:
        if isinstance(node, Var):
            return self._variables.value(node.name)
        result = self._memo.get(node) or self._variables.invariants.values.get(node)
        if result is None:
            match node:
                case Load():
                    result = self._memory.load(node)
                case Op():
                    result = self._op(node)
                case Const(value, dtype):
                    result = SsaValue(literal(value, dtype), dtype, 1, 0, value)
                case Ramp(base, lanes):
                    result = self._ramp(self._value(base), lanes)
            is_local = result.depth == LOCAL or has_loads(node)
            (self._memo if is_local else self._variables.invariants.values)[node] = result
        return result

    def _ramp(self, base: SsaValue, lanes: int) -> SsaValue:
        first = 0 if base.number is None else int(base.number)
        steps = f"<{', '.join(f'i64 {first + lane}' for lane in range(lanes))}>"
        if base.number is not None:
            return SsaValue(steps, DType.I64, lanes, 0)
        start = self._broadcast(base, lanes)
        text = self._once(f"add {type_name(DType.I64, lanes)} {start.text}, {steps}", base.depth)
        return SsaValue(text, DType.I64, lanes, base.depth)

    def _op(self, node: Op) -> SsaValue:
        first = self._value(node.args[0])
        if node.name == "select" and first.number is not None:
            return self._value(node.args[1 if first.number else 2])
        args = [first]
        lanes, depth, known = first.lanes, first.depth, first.number is not None
        for inner in node.args[1:]:
            arg = self._value(inner)
            args.append(arg)
            lanes, depth, known = max(lanes, arg.lanes), max(depth, arg.depth), known and arg.number is not None
        across = node.name in HORIZONTAL
        if known and not across and not (node.name == "fma" and node.dtype.is_float):  # LLVM rounds it as the machine
            numbers = [arg.number for arg in args if arg.number is not None]
            number = fold(node.name, [arg.dtype for arg in node.args], numbers, node.dtype)
            return SsaValue(literal(number, node.dtype), node.dtype, 1, 0, number)
        if across:
            lanes = node.args[0].lanes
        scalar_condition = node.name == "select" and first.lanes == 1
        wide = args[1:] if scalar_condition else args
        texts = [arg.text if arg.lanes == lanes else self._broadcast(arg, lanes).text for arg in wide]
        if scalar_condition:
            texts.insert(0, first.text)
        emit_once = self._once if depth == LOCAL else partial(self._once, depth=depth)
        name = select(node, lanes, texts, first.lanes, self._widths, emit_once)
        return SsaValue(name, node.dtype, 1 if across else lanes, depth)

    def _broadcast(self, value: SsaValue, lanes: int) -> SsaValue:
        if value.lanes == lanes:
            return value
        if value.lanes > 1:
            raise ValueError(f"a vector of {value.lanes} lanes where {lanes} are wanted")
        if value.number is not None:
            return SsaValue(splat(value.number, value.dtype, lanes), value.dtype, lanes, 0)
        kind, element, depth = type_name(value.dtype, lanes), type_name(value.dtype), value.depth
        first = self._once(f"insertelement {kind} poison, {element} {value.text}, i64 0", depth)
        text = self._once(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer", depth)
        return SsaValue(text, value.dtype, lanes, depth)
