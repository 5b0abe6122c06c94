"""LLVM IR as text from a Kernel: one function a phase, and one for each microkernel.

    define void @symbol_p0(ptr %args, i64 %begin, i64 %end)

`args` points at the addresses of the parameters, then of the scratch buffers, each aligned to its elements. A parallel
phase runs the iterations begin .. end - 1 of its loop; any other phase ignores both. A microkernel gets the addresses
of its buffers, then its integers. Nothing is said about aliasing, so buffers may be shared in place, and no name of a
kernel reaches the text.

Common subexpressions and loop-invariant code need no pass: see `listing` for where an instruction goes, and `contents`
for what is known of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import zip_longest
from math import prod
from operator import itemgetter
from typing import NamedTuple

from .abreast import in_order, parts
from .accesses import Picked, load, store
from .address import Address, AddressBook
from .contents import Contents, Memory, Place
from .dtype import DType
from .expr import HORIZONTAL, Const, Expr, Load, Op, Ramp, Var
from .functions import MICROKERNEL, Callees, Function, Source
from .instructions import literal, memory_type, select, splat, type_name
from .ir import Alloc, Barrier, Block, Buffer, Do, For, If, Kernel, LoopKind, Prefetch, Scope, Stmt, Store
from .listing import LOCAL, Listing, Value
from .math import expand, is_expandable
from .meaning import fold
from .microkernel import Microkernel, called, integer
from .nodes import fact
from .target import Target


class Steady(NamedTuple):
    """What follows from loop variables alone, and is known as long as they stay what they are."""

    values: dict[Expr, Value]
    places: dict[tuple[int, str], Place]  # by the identity of an address, and the base

    def sizes(self) -> tuple[int, int]:
        """How much is known."""
        return len(self.values), len(self.places)

    def shrink(self, sizes: tuple[int, int]) -> None:
        """Take back what was added since this much was known."""
        values, places = sizes
        while len(self.values) > values:
            self.values.popitem()
        while len(self.places) > places:
            self.places.popitem()


def emit(kernel: Kernel, target: Target, symbol: str) -> Source:
    """The functions of a kernel: `symbol_p0`, `symbol_p1`, ... in the order of its phases, and `symbol_m0`, ...

    Raises ValueError for an op that its dtype doesn't have, for a parallel loop inside a phase, and for lanes that
    don't match.
    """
    book = AddressBook()
    buffers = (*kernel.params, *kernel.scratch)
    callees = Callees(symbol, partial(_microkernel, target))
    phases = [
        _Function(book, target, callees).phase(f"{symbol}_p{number}", phase, buffers)
        for number, phase in enumerate(kernel.body.body)
    ]
    return Source(target.triple, tuple(phases), callees.functions)


@lru_cache(maxsize=256)
def _microkernel(target: Target, microkernel: Microkernel) -> Function:
    """A microkernel as a function. Those of a task are asked for again and again."""
    return _Function(AddressBook(), target).microkernel(microkernel)


def _parameters(buffers: Iterable[str], integers: Iterable[str]) -> str:
    """What stands between the parentheses of a microkernel's definition, or of a call."""
    return ", ".join((*(f"ptr {name}" for name in buffers), *(f"i64 {name}" for name in integers)))


class _Function:
    """What writes one function. A microkernel has no `callees`."""

    def __init__(self, book: AddressBook, target: Target, callees: Callees | None = None) -> None:
        self._book = book
        self._callees = callees
        self._registers = target.vector_registers
        self._x86_bits = target.vector_bits if target.triple.startswith("x86_64") else 0
        self._masks = self._x86_bits >= 512  # whether the machine has masked loads and stores
        self._listing = Listing()
        self._once = self._listing.once
        self._ahead: dict[int, dict[Expr, Value]] = {}  # identity of a store -> what is known of its value, as `_memo`
        self._memo: dict[Expr, Value] = {}  # of the statement that is written
        self._steady = Steady({}, {})
        self._contents = Contents()
        self._vars: dict[str, Value] = {}
        self._arguments: dict[str, int] = {}  # buffer -> its number among those of the kernel
        self._buffers: dict[str, Memory] = {}
        self._allocas: dict[int, str] = {}  # identity of an Alloc -> pointer
        self._cuts: dict[int, list[tuple[list[Stmt], list[Store]]]] = {}  # identity of a Block -> its parts

    def phase(self, name: str, phase: Stmt, buffers: Sequence[Buffer]) -> Function:
        """A phase, with the buffers of its kernel."""
        self._arguments = {buffer.name: number for number, buffer in enumerate(buffers)}
        self._buffers = {buffer.name: Memory.of(buffer) for buffer in buffers}
        note = ""
        match phase:
            case For(var, extent, body, LoopKind.PARALLEL):
                note = f"iterations 0 .. {extent - 1} in parallel"
                self._loop(var, "%begin", "%end", body)
            case _:
                self._statement(phase)
        return Function(name, "ptr %args, i64 %begin, i64 %end", self._body(), note)

    def microkernel(self, microkernel: Microkernel) -> Function:
        """A microkernel, which has no other name yet."""
        pointers = [f"%p{number}" for number in range(len(microkernel.buffers))]
        integers = [f"%x{number}" for number in range(microkernel.integers)]
        for pointer, buffer in zip(pointers, microkernel.buffers, strict=True):
            self._buffers[buffer.name] = Memory.of(buffer, pointer)
        for number, text in enumerate(integers):
            self._vars[integer(number).name] = Value(text, DType.I64, 1, 0)
        self._statement(microkernel.body)
        return Function(MICROKERNEL, _parameters(pointers, integers), self._body())

    def _body(self) -> str:
        return f"entry:\n{self._listing}\n  ret void"

    # Statements.

    def _statement(self, stmt: Stmt) -> None:
        match stmt:
            case Store():
                self._store(stmt)
            case Prefetch():
                self._prefetch(stmt)
            case Block(body):
                cut = self._cuts.get(id(stmt))
                if cut is None:
                    cut = self._cuts[id(stmt)] = list(parts(body, is_expandable, self._registers))
                for part, ahead in cut:
                    if ahead:
                        self._compute(ahead)
                    for inner in part:
                        self._statement(inner)
            case For(kind=LoopKind.PARALLEL | LoopKind.BLOCK | LoopKind.THREAD):
                raise ValueError(f"{stmt.kind} loop {stmt.var} inside a phase of a processor")
            case For(var, extent, body, kind) if kind is LoopKind.UNROLL or extent <= 1:
                self._unrolled(var, extent, body)
            case For(var, extent, body):
                self._loop(var, "0", str(extent), body)
            case If(condition, then):
                self._branch(condition, then)
            case Alloc(buffer, body):
                if not (self._callees and self._called(stmt, self._callees)):
                    self._allocate(stmt, buffer, body)
            case Barrier() | Do():
                raise ValueError(f"{type(stmt).__name__} in a kernel for a processor")

    def _unrolled(self, var: str, extent: int, body: Stmt) -> None:
        """Copy `body` for each value. Several copies differ by their constants, so none calls a microkernel."""
        callees, outer, around, sizes = self._callees, *self._bind(var)
        if extent > 1:
            self._callees = None
        for value in range(extent):
            self._vars[var] = Value(str(value), DType.I64, 1, 0, value)
            self._statement(body)
            self._steady.shrink(sizes)
        self._callees = callees
        self._release(var, outer, around)

    def _loop(self, var: str, first: str, last: str, body: Stmt) -> None:
        """Run `body` for var = first .. last - 1. Only the range of a parallel loop may be empty."""
        outer, around, sizes = self._bind(var)
        with self._listing.loop(first, last, is_empty=first != "0") as counter:
            self._vars[var] = counter
            self._forget()
            self._statement(body)
        self._steady.shrink(sizes)
        self._release(var, outer, around)
        self._forget()

    def _branch(self, condition: Expr, then: Stmt) -> None:
        self._memo.clear()
        value = self._value(expand(condition))
        if value.number is not None:
            if value.number:
                self._statement(then)
            return
        with self._listing.branch(value.text):
            self._forget()
            self._statement(then)
        self._forget()

    def _forget(self) -> None:
        """In another basic block, what was known of this one is so no more."""
        self._contents = Contents()
        self._memo = {}

    def _bind(self, var: str) -> tuple[Value | None, Steady, tuple[int, int]]:
        """For a loop, of whose variable there may be another meaning: that, what is known with it, and how much stays.

        What is added inside is taken back when the variable changes. What was known with another meaning is put aside.
        """
        outer, around = self._vars.get(var), self._steady
        if outer is not None:
            self._steady = Steady({}, {})
        return outer, around, self._steady.sizes()

    def _release(self, var: str, outer: Value | None, around: Steady) -> None:
        """Give a name back the meaning that it has outside a loop."""
        self._steady = around
        if outer is None:
            self._vars.pop(var, None)
        else:
            self._vars[var] = outer

    def _allocate(self, stmt: Alloc, buffer: Buffer, body: Stmt) -> None:
        pointer = self._allocas.get(id(stmt))
        if pointer is None:
            pointer = self._listing.alloca(prod(buffer.shape), memory_type(buffer.dtype))
            self._allocas[id(stmt)] = pointer
        outer = self._buffers.get(buffer.name)
        self._buffers[buffer.name] = Memory.of(buffer, pointer)
        shared = buffer.scope is Scope.SHARED  # stays on the stack, where those of other times may share its place
        if shared:
            self._listing.lines.append(f"  call void @llvm.lifetime.start.p0(ptr {pointer})")
        self._statement(body)
        if shared:
            self._listing.lines.append(f"  call void @llvm.lifetime.end.p0(ptr {pointer})")
        if outer is None:
            del self._buffers[buffer.name]
        else:
            self._buffers[buffer.name] = outer

    def _called(self, stmt: Alloc, callees: Callees) -> bool:
        """Call a microkernel, if the statement is one."""
        call = called(stmt, {name: memory.buffer for name, memory in self._buffers.items()})
        if call is None:
            return False
        self._memo.clear()
        pointers = [self._memory(buffer.name).base for buffer in call.microkernel.buffers]
        integers = [self._value(expand(value)).text for value in call.integers]
        name = callees.name(call.microkernel)
        self._listing.lines.append(f"  call void @{name}({_parameters(pointers, integers)})")
        self._forget()
        return True

    def _store(self, stmt: Store) -> None:
        # Other values of variables, or other contents of memory, than for the last statement.
        self._memo = self._ahead.pop(id(stmt), {})
        memory = self._memory(stmt.tensor)
        address = self._book.address(stmt, memory.buffer)
        value = self._broadcast(self._value(expand(stmt.value)), address.lanes)
        if address.lanes > 1 and address.step != memory.size_bytes:
            self._scatter(stmt, memory, address, value)
        else:
            self._write(memory, self._place(memory, address), value)

    def _compute(self, stores: Sequence[Store]) -> None:
        """Compute values ahead of the stores that need them, side by side."""
        values = [expand(stmt.value) for stmt in stores]
        memos = [self._ahead.setdefault(id(stmt), {}) for stmt in stores]
        for nodes in zip_longest(*map(in_order, values)):
            for self._memo, node in zip(memos, nodes, strict=True):
                if node is not None:
                    self._value(node)
        self._memo = {}

    def _prefetch(self, stmt: Prefetch) -> None:
        self._memo.clear()
        memory = self._memory(stmt.tensor)
        place = self._place(memory, self._book.address(Load(stmt.tensor, stmt.index, memory.dtype), memory.buffer))
        # To be read, into all levels of cache, as data.
        where = self._at(place.pointer, place.offset)
        self._listing.lines.append(f"  call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 3, i32 1)")

    # Memory.

    def _memory(self, name: str) -> Memory:
        memory = self._buffers[name]
        if not memory.base:  # an argument that nothing has touched so far
            slot = self._at("%args", 8 * self._arguments[name], 0)
            memory = self._buffers[name] = memory._replace(base=self._once(f"load ptr, ptr {slot}", 0))
        return memory

    def _place(self, memory: Memory, address: Address) -> Place:
        """Where lane 0 of an access is. What is known furthest outside is added first, constants last."""
        key = (id(address), memory.base)
        place = self._steady.places.get(key)
        if place is not None:
            return place
        parts: list[tuple[int, int, str]] = []
        steady, offset = True, address.offset
        for expr, scale in address.terms:
            if isinstance(expr, Var):
                text, _, _, depth, number = self._vars[expr.name]
            else:
                text, _, _, depth, number = self._value(expr)
                steady = steady and depth != LOCAL and not _reads(expr)
            if number is None:
                parts.append((depth, scale, text))
            else:
                offset += scale * int(number)
        pointer = self._moved(memory.base, parts) if parts else memory.base
        place = Place(pointer, offset, address.lanes, address.used)
        if steady:
            self._steady.places[key] = place
        return place

    def _moved(self, pointer: str, parts: list[tuple[int, int, str]]) -> str:
        """A pointer moved by multiples of values: by their depths, scales and texts."""
        for depth, scale, text in sorted(parts, key=itemgetter(0)):
            if scale > 0:
                pointer = self._once(f"getelementptr [{scale} x i8], ptr {pointer}, i64 {text}", depth)
            else:
                moved = self._once(f"mul i64 {text}, {scale}", depth)
                pointer = self._once(f"getelementptr i8, ptr {pointer}, i64 {moved}", depth)
            if depth < LOCAL:
                # A mask of ones costs no instruction, but ends LLVM's view of the pointer as a function of the loops.
                # Its pass that rewrites such functions (LSR) takes most of the time of large unrolled bodies, to no
                # gain where few pointers and constant offsets are all there is.
                pointer = self._once(f"call ptr @llvm.ptrmask.p0.i64(ptr {pointer}, i64 -1)", depth)
        return pointer

    def _at(self, pointer: str, offset: int, depth: int = LOCAL) -> str:
        return self._once(f"getelementptr i8, ptr {pointer}, i64 {offset}", depth) if offset else pointer

    def _load(self, node: Load) -> Value:
        memory = self._memory(node.tensor)
        address = self._book.address(node, memory.buffer)
        if address.lanes > 1 and address.step != memory.size_bytes:
            return self._gather(node, memory, address)
        return self._read(memory, self._place(memory, address))

    def _read(self, memory: Memory, place: Place) -> Value:
        found = self._contents.get(memory, place)
        if found is None:
            found = Value(self._fetch(memory, place), memory.dtype, place.lanes, LOCAL)
            self._contents.read(memory, place, found)
        return found

    def _write(self, memory: Memory, place: Place, value: Value) -> None:
        self._contents.wrote(memory, place, value)
        self._put(memory, place, value.text)

    def _fetch(self, memory: Memory, place: Place) -> str:
        """Load a place: the name of the value."""
        where = self._at(place.pointer, place.offset)
        return load(memory.dtype, place.lanes, place.used, where, self._masks, self._listing.here)

    def _put(self, memory: Memory, place: Place, text: str) -> None:
        """Store a value to a place."""
        where = self._at(place.pointer, place.offset)
        dtype, lanes = memory.dtype, place.lanes
        if dtype is DType.BOOL:
            text = self._once(f"zext {type_name(dtype, lanes)} {text} to {memory_type(dtype, lanes)}", LOCAL)
        self._listing.lines.append(f"  {store(dtype, lanes, place.used, where, text, self._masks, self._listing.here)}")

    def _gather(self, node: Load, memory: Memory, address: Address) -> Value:
        places = self._elements(node, memory, address)
        if not memory.register and len({place.pointer for place in places}) == 1:
            picked = Picked.of([(p.offset - places[0].offset) // memory.size_bytes for p in places], node.lanes)
            if picked is not None:
                return self._picked(memory, places[0]._replace(lanes=node.lanes, used=picked.used), picked)
        kind, element = type_name(node.dtype, node.lanes), type_name(node.dtype)
        text = "poison" if address.used == address.lanes else "zeroinitializer"
        for lane, place in enumerate(places):
            value = self._read(memory, place)
            text = self._once(f"insertelement {kind} {text}, {element} {value.text}, i64 {lane}", LOCAL)
        return Value(text, node.dtype, node.lanes, LOCAL)

    def _picked(self, memory: Memory, first: Place, picked: Picked) -> Value:
        """Elements picked out of vectors, whose starts count from the first of these places."""
        starts = (first.offset + start * memory.size_bytes for start in picked.starts)
        vectors = [self._read(memory, first._replace(offset=offset)).text for offset in starts]
        text = picked.value(memory.dtype, first.lanes, vectors, self._once)
        return Value(text, memory.dtype, first.lanes, LOCAL)

    def _scatter(self, stmt: Store, memory: Memory, address: Address, value: Value) -> None:
        kind = type_name(value.dtype, value.lanes)
        for lane, place in enumerate(self._elements(stmt, memory, address)):
            element = self._once(f"extractelement {kind} {value.text}, i64 {lane}", LOCAL)
            self._write(memory, place, Value(element, value.dtype, 1, LOCAL))

    def _elements(self, access: Load | Store, memory: Memory, address: Address) -> list[Place]:
        """The single elements that a vector access touches, one a lane in use."""
        if address.step is not None:
            pointer, offset, _, used = self._place(memory, address)
            return [Place(pointer, offset + lane * address.step, 1, 1) for lane in range(used)]
        elements = self._book.elements(access, memory.buffer)
        first = self._place(memory, elements[0])
        places = []
        for element in elements:
            if element.terms is elements[0].terms:
                places.append(first._replace(offset=first.offset + element.offset - elements[0].offset))
            else:
                places.append(self._place(memory, element))
        return places

    # Values.

    def _value(self, node: Expr) -> Value:
        if isinstance(node, Var):
            return self._vars[node.name]
        found = self._memo.get(node) or self._steady.values.get(node)
        if found is None:
            match node:
                case Load():
                    found = self._load(node)
                case Op():
                    found = self._op(node)
                case Const(value, dtype):
                    found = Value(literal(value, dtype), dtype, 1, 0, value)
                case Ramp(base, lanes):
                    found = self._ramp(self._value(base), lanes)
            (self._memo if found.depth == LOCAL or _reads(node) else self._steady.values)[node] = found
        return found

    def _ramp(self, base: Value, lanes: int) -> Value:
        first = 0 if base.number is None else int(base.number)
        steps = f"<{', '.join(f'i64 {first + lane}' for lane in range(lanes))}>"
        if base.number is not None:
            return Value(steps, DType.I64, lanes, 0)
        start = self._broadcast(base, lanes)
        text = self._once(f"add {type_name(DType.I64, lanes)} {start.text}, {steps}", base.depth)
        return Value(text, DType.I64, lanes, base.depth)

    def _op(self, node: Op) -> Value:
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
        if known and not across:
            numbers = [arg.number for arg in args if arg.number is not None]
            number = fold(node.name, [arg.dtype for arg in node.args], numbers, node.dtype)
            return Value(literal(number, node.dtype), node.dtype, 1, 0, number)
        if across:
            lanes = node.args[0].lanes
        scalar_condition = node.name == "select" and first.lanes == 1
        wide = args[1:] if scalar_condition else args
        texts = [arg.text if arg.lanes == lanes else self._broadcast(arg, lanes).text for arg in wide]
        if scalar_condition:
            texts.insert(0, first.text)
        place = self._once if depth == LOCAL else partial(self._once, depth=depth)
        name = select(node, lanes, texts, first.lanes, self._x86_bits, place)
        return Value(name, node.dtype, 1 if across else lanes, depth)

    def _broadcast(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        if value.lanes > 1:
            raise ValueError(f"a vector of {value.lanes} lanes where {lanes} are wanted")
        if value.number is not None:
            return Value(splat(value.number, value.dtype, lanes), value.dtype, lanes, 0)
        kind, element, depth = type_name(value.dtype, lanes), type_name(value.dtype), value.depth
        first = self._once(f"insertelement {kind} poison, {element} {value.text}, i64 0", depth)
        text = self._once(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer", depth)
        return Value(text, value.dtype, lanes, depth)


@fact
def _reads(node: Expr) -> bool:
    """Whether a value depends on memory."""
    return isinstance(node, Load) or any(map(_reads, node.children))
