"""Memory accesses of a function: pointers to its buffers, loads and stores, and vectors that are gathered of elements.

What is known to be in memory is not loaded again: see `MemoryState`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from operator import itemgetter

from ..expr.dtype import DType
from ..expr.expr import Expr, Load, Var
from ..expr.nodes import fact
from ..expr.symbolic import is_symbolic
from ..ir.ir import Alloc, Buffer, Scope, Store
from .function import LOCAL, FunctionBuilder, SsaValue
from .memory import Address, AddressBook, BufferPointer, MemoryRange, MemoryState
from .ops import Shuffle, load, memory_type, store, type_name
from .variables import Variables


class MemoryAccess:
    """The buffers of one function, and the instructions that read and write them.

    `value` computes what an address depends on. `has_masks`: whether the machine has masked loads and stores.
    """

    def __init__(
        self,
        builder: FunctionBuilder,
        variables: Variables,
        book: AddressBook,
        value: Callable[[Expr], SsaValue],
        *,
        has_masks: bool,
    ) -> None:
        self._builder = builder
        self._once = builder.once
        self._variables = variables
        self._book = book
        self._value = value
        self._has_masks = has_masks
        self._state = MemoryState()
        self._arguments: dict[str, int] = {}  # buffer -> its number among those of the kernel
        self._pointers: dict[str, BufferPointer] = {}
        self._allocas: dict[int, str] = {}  # identity of an Alloc -> pointer

    # Buffers.

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """The buffers that are visible, by name."""
        return {name: memory.buffer for name, memory in self._pointers.items()}

    def add_arguments(self, arguments: Sequence[tuple[Buffer, int]]) -> None:
        """Add buffers of a kernel, whose numbers are those of their addresses in `%args`."""
        for buffer, number in arguments:
            self._arguments[buffer.name] = number
            self._pointers[buffer.name] = BufferPointer.of(buffer)

    def add(self, buffer: Buffer, pointer: str) -> None:
        """Add a buffer at a pointer."""
        self._pointers[buffer.name] = BufferPointer.of(buffer, pointer)

    @contextmanager
    def allocate(self, stmt: Alloc) -> Iterator[None]:
        """A context in which there is a buffer on the stack, or in matrix registers."""
        buffer = stmt.buffer
        pointer = self._allocas.get(id(stmt))
        if buffer.scope is Scope.MATRIX:
            pointer = buffer.name  # it is no memory
        elif pointer is None:
            pointer = self._builder.alloca(prod(buffer.shape), memory_type(buffer.dtype))
            self._allocas[id(stmt)] = pointer
        outer = self._pointers.get(buffer.name)
        self.add(buffer, pointer)
        is_shared = buffer.scope is Scope.SHARED  # stays on the stack, where those of other times may share its place
        if is_shared:
            self._builder.lines.append(f"  call void @llvm.lifetime.start.p0(ptr {pointer})")
        yield
        if is_shared:
            self._builder.lines.append(f"  call void @llvm.lifetime.end.p0(ptr {pointer})")
        if outer is None:
            del self._pointers[buffer.name]
        else:
            self._pointers[buffer.name] = outer

    def buffer(self, name: str) -> BufferPointer:
        """A buffer whose base pointer is known."""
        memory = self._pointers[name]
        if not memory.base:  # an argument that nothing has touched so far
            slot = self._at("%args", 8 * self._arguments[name], 0)
            memory = self._pointers[name] = memory._replace(base=self._once(f"load ptr, ptr {slot}", 0))
        return memory

    # Addresses.

    def locate(self, access: Load | Store) -> tuple[BufferPointer, Address]:
        """The buffer that is accessed, and the address in it."""
        memory = self.buffer(access.tensor)
        return memory, self._book.address(access, memory.buffer)

    def pointer(self, element: Load) -> str:
        """A pointer to an element."""
        memory_range = self._range(*self.locate(element))
        return self._at(memory_range.pointer, memory_range.offset)

    def _range(self, memory: BufferPointer, address: Address) -> MemoryRange:
        """The memory range of an access. Terms known furthest outside are added first, constants last."""
        key = (id(address), memory.base)
        memory_range = self._variables.invariants.ranges.get(key)
        if memory_range is not None:
            return memory_range
        parts: list[tuple[int, int, str]] = []
        steady, offset = True, address.offset
        for expr, scale in address.terms:
            if isinstance(expr, Var):
                text, _, _, depth, number = self._variables.value(expr.name)
            else:
                text, _, _, depth, number = self._value(expr)
                steady = steady and depth != LOCAL and not has_loads(expr)
            if number is None:
                parts.append((depth, scale, text))
            else:
                offset += scale * int(number)
        pointer = self._displace(memory.base, parts) if parts else memory.base
        memory_range = MemoryRange(pointer, offset, address.lanes, address.used)
        if steady:
            self._variables.invariants.ranges[key] = memory_range
        return memory_range

    def _displace(self, pointer: str, parts: list[tuple[int, int, str]]) -> str:
        """A pointer moved by multiples of values: by their depths, scales and texts."""
        for depth, scale, text in sorted(parts, key=itemgetter(0)):
            if not is_symbolic(scale) and scale > 0:
                pointer = self._once(f"getelementptr [{scale} x i8], ptr {pointer}, i64 {text}", depth)
            else:
                offset = self._once(f"mul i64 {text}, {self._variables.number(scale)}", depth)
                pointer = self._once(f"getelementptr i8, ptr {pointer}, i64 {offset}", depth)
            if depth < LOCAL:
                # A mask of ones costs no instruction, but ends LLVM's view of the pointer as a function of the loops.
                # Its pass that rewrites such functions (LSR) takes most of the time of large unrolled bodies, to no
                # gain where few pointers and constant offsets are all there is.
                pointer = self._once(f"call ptr @llvm.ptrmask.p0.i64(ptr {pointer}, i64 -1)", depth)
        return pointer

    def _at(self, pointer: str, offset: int, depth: int = LOCAL) -> str:
        if offset == 0:
            return pointer
        return self._once(f"getelementptr i8, ptr {pointer}, i64 {self._variables.number(offset)}", depth)

    # Loads and stores.

    def forget(self) -> None:
        """Forget what is known to be in memory: another basic block begins."""
        self._state = MemoryState()

    def load(self, node: Load) -> SsaValue:
        """The value that is loaded."""
        memory, address = self.locate(node)
        if address.lanes > 1 and address.step != memory.size_bytes:
            return self._gather(node, memory, address)
        return self._read(memory, self._range(memory, address))

    def store(self, stmt: Store, memory: BufferPointer, address: Address, value: SsaValue) -> None:
        """Store a value that has as many lanes as the address, both as from `locate`."""
        if address.lanes > 1 and address.step != memory.size_bytes:
            self._scatter(stmt, memory, address, value)
        else:
            self._write(memory, self._range(memory, address), value)

    def _read(self, memory: BufferPointer, memory_range: MemoryRange) -> SsaValue:
        value = self._state.get(memory, memory_range)
        if value is None:
            where = self._at(memory_range.pointer, memory_range.offset)
            text = load(memory.dtype, memory_range.lanes, memory_range.used, where, self._has_masks, self._builder.here)
            value = SsaValue(text, memory.dtype, memory_range.lanes, LOCAL)
            self._state.read(memory, memory_range, value)
        return value

    def _write(self, memory: BufferPointer, memory_range: MemoryRange, value: SsaValue) -> None:
        self._state.write(memory, memory_range, value)
        where = self._at(memory_range.pointer, memory_range.offset)
        dtype, lanes, text = memory.dtype, memory_range.lanes, value.text
        if dtype is DType.BOOL:
            text = self._once(f"zext {type_name(dtype, lanes)} {text} to {memory_type(dtype, lanes)}", LOCAL)
        line = store(dtype, lanes, memory_range.used, where, text, self._has_masks, self._builder.here)
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


@fact
def has_loads(node: Expr) -> bool:
    """Whether a value depends on memory."""
    return isinstance(node, Load) or any(map(has_loads, node.children))
