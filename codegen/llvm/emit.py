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
from math import prod
from operator import itemgetter

from ..expr.dtype import DType
from ..expr.expr import HORIZONTAL, Const, Expr, Load, Op, Ramp, Var
from ..expr.math import expand, is_expandable
from ..expr.nodes import fact
from ..expr.quantise import without_divisions
from ..expr.semantics import fold
from ..expr.symbolic import is_symbolic, is_symbolic_name
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
from .function import (
    LOCAL,
    MICROKERNEL,
    PREFETCH_DATA,
    Function,
    FunctionBuilder,
    LlvmSource,
    NumberTable,
    SsaValue,
    evaluation_order,
    parameters,
    split_body,
)
from .matrix import INTRINSICS, MatrixRegisters, call, first_element
from .memory import Address, AddressBook, BufferPointer, LoopInvariants, MemoryRange, MemoryState
from .ops import Shuffle, literal, load, memory_type, select, splat, store, type_name
from .types import Widths


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
        self._book = book
        self._callee = callee
        self._table = table
        self._registers = target.vector_registers
        self._widths = Widths.of(target)
        self._has_fma = target.has_fma
        self._masks = self._widths.x86 >= 512  # whether the machine has masked loads and stores
        self._builder = FunctionBuilder()
        self._once = self._builder.once
        self._early_values: dict[int, dict[Expr, SsaValue]] = {}  # by the identity of a store, as `_memo`
        self._memo: dict[Expr, SsaValue] = {}  # values of the present statement
        self._invariants = LoopInvariants({}, {})
        self._state = MemoryState()
        self._vars: dict[str, SsaValue] = {}
        self._matrices = MatrixRegisters(Block(()))  # of a phase
        self._arguments: dict[str, int] = {}  # buffer -> its number among those of the kernel
        self._buffers: dict[str, BufferPointer] = {}
        self._allocas: dict[int, str] = {}  # identity of an Alloc -> pointer
        self._splits: dict[int, list[tuple[list[Stmt], list[Store]]]] = {}  # identity of a Block -> its parts

    def phase(self, name: str, phase: Stmt, arguments: Sequence[tuple[Buffer, int]]) -> Function:
        """A phase, with the buffers of its kernel and their numbers in `%args`."""
        self._arguments = {buffer.name: number for buffer, number in arguments}
        self._buffers = {buffer.name: BufferPointer.of(buffer) for buffer, _ in arguments}
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
            self._buffers[buffer.name] = BufferPointer.of(buffer, pointer)
        for number, text in enumerate(integers):
            self._vars[integer(number).name] = SsaValue(text, DType.I64, 1, 0)
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
                self._loop(var, "0", self._number(extent), body)
            case If(condition, then):
                self._branch(condition, then)
            case Alloc(buffer, body):
                if not (self._callee and self._call(stmt, self._callee)):
                    self._allocate(stmt, buffer, body)
            case Do(name) if name in INTRINSICS:
                self._matrix_instruction(stmt)
            case Barrier() | Do() | Fetch() | Roles():
                raise ValueError(f"{type(stmt).__name__} in a kernel for a processor")

    def _unroll(self, var: str, extent: int, body: Stmt) -> None:
        """Copy `body` for each value. Several copies differ by their constants, so none calls a microkernel."""
        callee, outer, around, sizes = self._callee, *self._bind(var)
        if extent > 1:
            self._callee = None
        for value in range(extent):
            self._vars[var] = SsaValue(str(value), DType.I64, 1, 0, value)
            self._statement(body)
            self._invariants.shrink(sizes)
        self._callee = callee
        self._release(var, outer, around)

    def _loop(self, var: str, first: str, last: str, body: Stmt) -> None:
        """Run `body` for var = first .. last - 1. Only the range of a parallel loop may be empty."""
        outer, around, sizes = self._bind(var)
        with self._builder.loop(first, last, is_empty=first != "0") as counter:
            self._vars[var] = counter
            self._forget()
            self._statement(body)
        self._invariants.shrink(sizes)
        self._release(var, outer, around)
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
        self._state = MemoryState()
        self._memo = {}

    def _bind(self, var: str) -> tuple[SsaValue | None, LoopInvariants, tuple[int, int]]:
        """Prepare a loop: the outer meaning of its variable, the invariants, and their sizes.

        Invariants added inside are dropped when the variable changes; those with another meaning are set aside.
        """
        outer, around = self._vars.get(var), self._invariants
        if outer is not None:
            self._invariants = LoopInvariants({}, {})
        return outer, around, self._invariants.sizes()

    def _release(self, var: str, outer: SsaValue | None, around: LoopInvariants) -> None:
        """Restore the meaning of a variable outside a loop."""
        self._invariants = around
        if outer is None:
            self._vars.pop(var, None)
        else:
            self._vars[var] = outer

    def _allocate(self, stmt: Alloc, buffer: Buffer, body: Stmt) -> None:
        pointer = self._allocas.get(id(stmt))
        if buffer.scope is Scope.MATRIX:
            pointer = buffer.name  # it is no memory
        elif pointer is None:
            pointer = self._builder.alloca(prod(buffer.shape), memory_type(buffer.dtype))
            self._allocas[id(stmt)] = pointer
        outer = self._buffers.get(buffer.name)
        self._buffers[buffer.name] = BufferPointer.of(buffer, pointer)
        shared = buffer.scope is Scope.SHARED  # stays on the stack, where those of other times may share its place
        if shared:
            self._builder.lines.append(f"  call void @llvm.lifetime.start.p0(ptr {pointer})")
        self._statement(body)
        if shared:
            self._builder.lines.append(f"  call void @llvm.lifetime.end.p0(ptr {pointer})")
        if outer is None:
            del self._buffers[buffer.name]
        else:
            self._buffers[buffer.name] = outer

    def _call(self, stmt: Alloc, callee: Callable[[Microkernel], str]) -> bool:
        """Call a microkernel, if the statement is one."""
        call = extract_call(stmt, {name: memory.buffer for name, memory in self._buffers.items()})
        if call is None:
            return False
        self._memo.clear()
        pointers = [self._memory(buffer.name).base for buffer in call.microkernel.buffers]
        integers = [self._value(expand(value)).text for value in call.integers]
        self._builder.lines.append(f"  call void @{callee(call.microkernel)}({parameters(pointers, integers)})")
        self._forget()
        return True

    def _store(self, stmt: Store) -> None:
        # Other values of variables, or other contents of memory, than for the last statement.
        self._memo = self._early_values.pop(id(stmt), {})
        memory = self._memory(stmt.tensor)
        address = self._book.address(stmt, memory.buffer)
        value = self._broadcast(self._value(self._expand(stmt.value)), address.lanes)
        if address.lanes > 1 and address.step != memory.size_bytes:
            self._scatter(stmt, memory, address, value)
        else:
            self._write(memory, self._range(memory, address), value)

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
        memory = self._memory(stmt.tensor)
        where = self._pointer(Load(stmt.tensor, stmt.index, memory.dtype), memory)
        self._builder.lines.append(f"  call void @llvm.prefetch.p0(ptr {where}, {PREFETCH_DATA})")

    def _matrix_instruction(self, stmt: Do) -> None:
        self._memo.clear()
        registers, address, pitch_bytes = [], "", 0
        for operand in (*stmt.outs, *stmt.ins):
            memory = self._memory(operand.tensor)
            if memory.buffer.scope is Scope.MATRIX:
                number = [int(self._value(e).number or 0) for e in operand.index[:-2]]
                registers.append(self._matrices.number(operand.tensor, number))
            else:
                address = self._pointer(first_element(operand), memory)
                pitch_bytes = pitch(operand, memory.buffer) * memory.size_bytes
        self._builder.lines.append(call(stmt, registers, address, pitch_bytes))
        self._forget()

    # Memory.

    def _memory(self, name: str) -> BufferPointer:
        memory = self._buffers[name]
        if not memory.base:  # an argument that nothing has touched so far
            slot = self._at("%args", 8 * self._arguments[name], 0)
            memory = self._buffers[name] = memory._replace(base=self._once(f"load ptr, ptr {slot}", 0))
        return memory

    def _range(self, memory: BufferPointer, address: Address) -> MemoryRange:
        """The memory range of an access. Terms known furthest outside are added first, constants last."""
        key = (id(address), memory.base)
        memory_range = self._invariants.ranges.get(key)
        if memory_range is not None:
            return memory_range
        parts: list[tuple[int, int, str]] = []
        steady, offset = True, address.offset
        for expr, scale in address.terms:
            if isinstance(expr, Var):
                text, _, _, depth, number = self._variable(expr.name)
            else:
                text, _, _, depth, number = self._value(expr)
                steady = steady and depth != LOCAL and not _has_loads(expr)
            if number is None:
                parts.append((depth, scale, text))
            else:
                offset += scale * int(number)
        pointer = self._displace(memory.base, parts) if parts else memory.base
        memory_range = MemoryRange(pointer, offset, address.lanes, address.used)
        if steady:
            self._invariants.ranges[key] = memory_range
        return memory_range

    def _displace(self, pointer: str, parts: list[tuple[int, int, str]]) -> str:
        """A pointer moved by multiples of values: by their depths, scales and texts."""
        for depth, scale, text in sorted(parts, key=itemgetter(0)):
            if not is_symbolic(scale) and scale > 0:
                pointer = self._once(f"getelementptr [{scale} x i8], ptr {pointer}, i64 {text}", depth)
            else:
                offset = self._once(f"mul i64 {text}, {self._number(scale)}", depth)
                pointer = self._once(f"getelementptr i8, ptr {pointer}, i64 {offset}", depth)
            if depth < LOCAL:
                # A mask of ones costs no instruction, but ends LLVM's view of the pointer as a function of the loops.
                # Its pass that rewrites such functions (LSR) takes most of the time of large unrolled bodies, to no
                # gain where few pointers and constant offsets are all there is.
                pointer = self._once(f"call ptr @llvm.ptrmask.p0.i64(ptr {pointer}, i64 -1)", depth)
        return pointer

    def _pointer(self, element: Load, memory: BufferPointer) -> str:
        memory_range = self._range(memory, self._book.address(element, memory.buffer))
        return self._at(memory_range.pointer, memory_range.offset)

    def _at(self, pointer: str, offset: int, depth: int = LOCAL) -> str:
        if offset == 0:
            return pointer
        return self._once(f"getelementptr i8, ptr {pointer}, i64 {self._number(offset)}", depth)

    def _number(self, number: int) -> str:
        """The text of a number; one that is symbolic is read behind the addresses of the buffers."""
        return self._variable(number.name).text if is_symbolic(number) else str(number)

    def _variable(self, name: str) -> SsaValue:
        known = self._vars.get(name)
        if known is None and self._table is not None and is_symbolic_name(name):
            slot = self._at("%args", 8 * self._table.cell(name), 0)
            known = self._vars[name] = SsaValue(self._once(f"load i64, ptr {slot}", 0), DType.I64, 1, 0)
        if known is None:
            raise KeyError(name)
        return known

    def _load(self, node: Load) -> SsaValue:
        memory = self._memory(node.tensor)
        address = self._book.address(node, memory.buffer)
        if address.lanes > 1 and address.step != memory.size_bytes:
            return self._gather(node, memory, address)
        return self._read(memory, self._range(memory, address))

    def _read(self, memory: BufferPointer, memory_range: MemoryRange) -> SsaValue:
        value = self._state.get(memory, memory_range)
        if value is None:
            where = self._at(memory_range.pointer, memory_range.offset)
            text = load(memory.dtype, memory_range.lanes, memory_range.used, where, self._masks, self._builder.here)
            value = SsaValue(text, memory.dtype, memory_range.lanes, LOCAL)
            self._state.read(memory, memory_range, value)
        return value

    def _write(self, memory: BufferPointer, memory_range: MemoryRange, value: SsaValue) -> None:
        self._state.write(memory, memory_range, value)
        where = self._at(memory_range.pointer, memory_range.offset)
        dtype, lanes, text = memory.dtype, memory_range.lanes, value.text
        if dtype is DType.BOOL:
            text = self._once(f"zext {type_name(dtype, lanes)} {text} to {memory_type(dtype, lanes)}", LOCAL)
        line = store(dtype, lanes, memory_range.used, where, text, self._masks, self._builder.here)
        self._builder.lines.append(f"  {line}")

    def _gather(self, node: Load, memory: BufferPointer, address: Address) -> SsaValue:
        elements = self._elements(node, memory, address)
        if not memory.register and len({element.pointer for element in elements}) == 1:
            shuffle = Shuffle.of([(p.offset - elements[0].offset) // memory.size_bytes for p in elements], node.lanes)
            if shuffle is not None:
                return self._shuffle(memory, elements[0]._replace(lanes=node.lanes, used=shuffle.used), shuffle)
        kind, element = type_name(node.dtype, node.lanes), type_name(node.dtype)
        text = "poison" if address.used == address.lanes else "zeroinitializer"
        for lane, lane_range in enumerate(elements):
            value = self._read(memory, lane_range).text
            text = self._once(f"insertelement {kind} {text}, {element} {value}, i64 {lane}", LOCAL)
        return SsaValue(text, node.dtype, node.lanes, LOCAL)

    def _shuffle(self, memory: BufferPointer, first: MemoryRange, shuffle: Shuffle) -> SsaValue:
        """Elements picked out of vectors, whose starts count from the first of these elements."""
        starts = (first.offset + start * memory.size_bytes for start in shuffle.starts)
        vectors = [self._read(memory, first._replace(offset=offset)).text for offset in starts]
        return SsaValue(shuffle.value(memory.dtype, first.lanes, vectors, self._once), memory.dtype, first.lanes, LOCAL)

    def _scatter(self, stmt: Store, memory: BufferPointer, address: Address, value: SsaValue) -> None:
        kind = type_name(value.dtype, value.lanes)
        for lane, memory_range in enumerate(self._elements(stmt, memory, address)):
            element = self._once(f"extractelement {kind} {value.text}, i64 {lane}", LOCAL)
            self._write(memory, memory_range, SsaValue(element, value.dtype, 1, LOCAL))

    def _elements(self, access: Load | Store, memory: BufferPointer, address: Address) -> list[MemoryRange]:
        """The single elements that a vector access touches, one a lane in use."""
        if address.step is not None:
            pointer, offset, _, used = self._range(memory, address)
            return [MemoryRange(pointer, offset + lane * address.step, 1, 1) for lane in range(used)]
        addresses = self._book.elements(access, memory.buffer)
        first = self._range(memory, addresses[0])
        elements = []
        for element in addresses:
            if element.terms is addresses[0].terms:
                elements.append(first._replace(offset=first.offset + element.offset - addresses[0].offset))
            else:
                elements.append(self._range(memory, element))
        return elements

    # Values.

    def _value(self, node: Expr) -> SsaValue:
        if isinstance(node, Var):
            return self._variable(node.name)
        result = self._memo.get(node) or self._invariants.values.get(node)
        if result is None:
            match node:
                case Load():
                    result = self._load(node)
                case Op():
                    result = self._op(node)
                case Const(value, dtype):
                    result = SsaValue(literal(value, dtype), dtype, 1, 0, value)
                case Ramp(base, lanes):
                    result = self._ramp(self._value(base), lanes)
            (self._memo if result.depth == LOCAL or _has_loads(node) else self._invariants.values)[node] = result
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


@fact
def _has_loads(node: Expr) -> bool:
    """Whether a value depends on memory."""
    return isinstance(node, Load) or any(map(_has_loads, node.children))
