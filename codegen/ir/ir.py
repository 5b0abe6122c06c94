"""The loop IR: a Kernel is phases of loops over buffers.

Read `Kernel` first, then the statements: `Block`, `For`, `If`, `Store`, `Prefetch`, `Alloc`. Expressions are those of
`codegen.expr`; a `Load` names a buffer. All extents are static, so an odd size is a second, smaller loop beside the
first (or lanes switched off by `count`), never a bound computed at run time. In a symbolic kernel some extents,
and some numbers in expressions, are those of a `Trace` (`expr.symbolic`): static too, but of several sizes.

Parallelism is a loop kind. Each top-level statement of a kernel is a *phase*. On a CPU the threads share the
iterations of its `parallel` loop and meet at a barrier before the next phase; a phase that is no parallel loop runs
on one thread.

On a GPU a phase is a launch: `block` loops, the innermost of which runs fastest; in them what a block shares; in there
`thread` loops, the innermost of which are the lanes of a warp where an instruction needs all of them. All threads of a
block run the same statements, but for those that `Roles` shares out. They meet at a `Barrier`, and `Fetch` has a box of
a tensor copied into shared memory.

`Do` is an instruction that no expression stands for, of a GPU or on the matrix registers of a processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..expr.dtype import DType
from ..expr.expr import Expr, Load, Substitution, loads
from .tensor_map import TensorMap


class LoopKind(StrEnum):
    """The way in which the iterations of a loop run."""

    SERIAL = "serial"
    UNROLL = "unroll"  # copied out; the variable is a constant in each copy
    PARALLEL = "parallel"  # shared by the threads of a CPU; top level only
    BLOCK = "block"  # one block of a GPU's grid each; top level only
    THREAD = "thread"  # one thread of a block each


class Scope(StrEnum):
    """Where a buffer lives and who sees it."""

    GLOBAL = "global"  # all threads: parameters and scratch
    SHARED = "shared"  # one iteration of a parallel loop: its stack; or one block: its shared memory
    REGISTER = "register"  # one thread; every index a constant once loops are unrolled
    MATRIX = "matrix"  # one thread of a processor: registers of rows and columns, the last two dimensions


@dataclass(frozen=True, slots=True)
class Swizzle:
    """An order of elements in shared memory in which rows that are read together lie in different banks.

    In the number of an element, `bits` bits from bit `base` on are combined, by exclusive or, with those that are
    `shift` bits higher. So each 2^base neighbours stay together.
    """

    bits: int
    base: int
    shift: int

    def position(self, number: Any) -> Any:
        """The position in memory of the element with a number; of an array of numbers too."""
        high = number >> (self.base + self.shift)
        return number ^ ((high & ((1 << self.bits) - 1)) << self.base)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for a dense tensor of static shape, row-major, but for a swizzle."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scope: Scope = Scope.GLOBAL
    swizzle: Swizzle | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance in elements between neighbours along each dimension."""
        return tuple(prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.size_bytes

    def __str__(self) -> str:
        swizzle = f" {self.swizzle}" if self.swizzle else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(repr, self.shape))}] {self.scope}{swizzle}"


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For:
    """`body` for var = 0 .. extent - 1."""

    var: str
    extent: int
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL


@dataclass(frozen=True, slots=True)
class If:
    """`then` where the scalar `condition` holds."""

    condition: Expr
    then: Stmt


@dataclass(frozen=True, slots=True)
class Store:
    """Write `value` to `tensor` at `index`; vectors as in `Load`, `count` leading lanes of them."""

    tensor: str
    index: tuple[Expr, ...]
    value: Expr
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Ask for the memory around `tensor[index]`, to be near when it is read. `index` may be outside of the tensor."""

    tensor: str
    index: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Alloc:
    """`buffer` (shared or register) exists inside `body`; its content starts undefined."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of a block meet; what any of them wrote is seen by all behind it."""


@dataclass(frozen=True, slots=True)
class Do:
    """An instruction by its name in `codegen.instructions`, or `ir.matrix` for processors.

    Each operand is what a load of it reads. Those on matrix registers read and write an element for each value of the
    variables `matrix.ROW` and `matrix.COLUMN`.
    """

    name: str
    outs: tuple[Load, ...]
    ins: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """One thread has the copy engine bring the box at `coordinates` into shared memory, from `target` on, row-major.

    `barrier` (an element of shared memory) counts its bytes. See `instructions.bulk` for barriers.
    """

    map: TensorMap
    coordinates: tuple[Expr, ...]  # of the first element of the box
    target: Load
    barrier: Load


@dataclass(frozen=True, slots=True)
class ThreadRole:
    """The statements of some threads of a block, while others execute other roles."""

    threads: int  # whole warps
    registers: int  # registers of a thread, a multiple of 8; 0: unchanged
    body: Stmt


@dataclass(frozen=True, slots=True)
class Roles:
    """The threads of a block shared out among roles, in order. No `Barrier` is inside: roles meet at mbarriers."""

    roles: tuple[ThreadRole, ...]


Stmt = Block | For | If | Store | Prefetch | Alloc | Barrier | Do | Fetch | Roles


AxisMatrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """A constant parameter's layout, made once when a model is compiled.

    The kernel's parameter has this layout instead of the tensor's: multiply axis d of the tensor by the matrix
    `maps[d]` (bytes by bytes as such, else in double precision), permute the axes by `order`, pad each with zeros to
    `padded`, split axis d into `splits[d]` (outermost first), permute all split parts by `parts`, and merge the last
    `joined` of them into one axis.
    """

    order: tuple[int, ...]
    padded: tuple[int, ...]
    splits: tuple[tuple[int, ...], ...]
    parts: tuple[int, ...]
    maps: tuple[tuple[int, AxisMatrix], ...] = ()  # (axis, its matrix), each axis once at most
    joined: int = 1

    @staticmethod
    def in_order(
        order: tuple[int, ...], padded: tuple[int, ...], maps: tuple[tuple[int, AxisMatrix], ...] = ()
    ) -> Packing:
        """One that splits nothing."""
        return Packing(order, padded, tuple((extent,) for extent in padded), tuple(range(len(order))), maps)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the packed array."""
        flat = [extent for split in self.splits for extent in split]
        extents = [flat[p] for p in self.parts]
        return (*extents[: -self.joined], prod(extents[-self.joined :]))

    def apply(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Pack an array, contiguous."""
        return np.ascontiguousarray(self.arrange(array))

    def arrange(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """The result of `apply` as a view of the array or of a copy, with any strides."""
        maps = [(axis, np.array(matrix)) for axis, matrix in self.maps]
        if array.dtype == np.uint8 and all(np.array_equal(matrix, matrix.astype(np.uint8)) for _, matrix in maps):
            for axis, matrix in maps:
                array = _multiply_bytes(array, axis, matrix)
        elif maps:
            exact = array.astype(np.float64)
            for axis, matrix in maps:
                exact = np.moveaxis(np.tensordot(matrix, exact, (1, axis)), 0, axis)
            array = exact.astype(array.dtype)
        array = array.transpose(self.order)
        if array.shape != self.padded:
            array = np.pad(array, [(0, p - s) for p, s in zip(self.padded, array.shape, strict=True)])
        array = array.reshape([extent for split in self.splits for extent in split])
        return array.transpose(self.parts).reshape(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {
            "order": list(self.order),
            "padded": list(self.padded),
            "splits": [list(split) for split in self.splits],
            "parts": list(self.parts),
            "maps": [{"axis": axis, "matrix": [list(row) for row in matrix]} for axis, matrix in self.maps],
            "joined": self.joined,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Packing:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        maps = ((int(item["axis"]), tuple(tuple(map(float, row)) for row in item["matrix"])) for item in data["maps"])
        return Packing(
            order=tuple(map(int, data["order"])),
            padded=tuple(map(int, data["padded"])),
            splits=tuple(tuple(map(int, split)) for split in data["splits"]),
            parts=tuple(map(int, data["parts"])),
            maps=tuple(maps),
            joined=int(data["joined"]),
        )


def _multiply_bytes(array: NDArray[np.generic], axis: int, matrix: NDArray[np.float64]) -> NDArray[np.generic]:
    """Bytes multiplied along an axis by a matrix of bytes, few of which are not 0: many times as fast as floats."""
    count = max(int((matrix != 0).sum(1).max()), 1)
    columns = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    shape = [-1 if dim == axis else 1 for dim in range(array.ndim)]
    factors = np.take_along_axis(matrix, columns, 1).astype(np.uint8)
    terms = (np.take(array, columns[:, n], axis) * factors[:, n].reshape(shape) for n in range(count))
    total = next(terms)
    for term in terms:
        total += term
    return total


_WORDS = ".words"


def words_of(buffer: Buffer, dtype: DType = DType.I32) -> Buffer:
    """A buffer of small numbers seen as words, each made of neighbours along the last dimension."""
    *outer, last = buffer.shape
    words = last * buffer.dtype.size_bytes // dtype.size_bytes
    return replace(buffer, name=words_name(buffer.name), shape=(*outer, words), dtype=dtype)


def single_words_of(buffer: Buffer, dtype: DType = DType.I32) -> Buffer:
    """A buffer whose last dimension is one word each, without that dimension."""
    words = words_of(buffer, dtype)
    return replace(words, shape=words.shape[:-1])


def words_name(name: str) -> str:
    """The name of a buffer's words."""
    return name + _WORDS


def bytes_name(words: str) -> str:
    """The name of the buffer whose words these are."""
    return words.removesuffix(_WORDS)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The code of a task: `params` (inputs then outputs, in the task's order), `scratch`, and the phases in `body`.

    `words` (see `words_of`) are bytes of params and scratch under another name.
    """

    params: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    body: Block
    packings: dict[str, Packing] = field(default_factory=dict)
    words: tuple[Buffer, ...] = ()

    def __str__(self) -> str:
        return render(self)


def replace_variables(stmt: Stmt, values: Mapping[str, Expr]) -> Stmt:
    """The statement with variables replaced in every expression."""
    return rewrite(stmt, Substitution(values))


def rewrite(stmt: Stmt, fresh: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `fresh` applied to every expression."""
    match stmt:
        case Block(body):
            return Block(tuple([rewrite(part, fresh) for part in body]))
        case For(var, extent, body, kind):
            return For(var, extent, rewrite(body, fresh), kind)
        case If(condition, then):
            return If(fresh(condition), rewrite(then, fresh))
        case Alloc(buffer, body):
            return Alloc(buffer, rewrite(body, fresh))
        case Prefetch(tensor, index):
            return Prefetch(tensor, tuple(map(fresh, index)))
        case Store(tensor, index, value, count):
            new_index, new_value = tuple(map(fresh, index)), fresh(value)
            is_same = new_index == index and new_value is value
            return stmt if is_same else Store(tensor, new_index, new_value, count)
        case Do(name, outs, ins):
            return Do(name, _operands(outs, fresh), _operands(ins, fresh))
        case Fetch(tensor_map, coordinates, target, barrier):
            target, barrier = _operands((target, barrier), fresh)
            return Fetch(tensor_map, tuple(map(fresh, coordinates)), target, barrier)
        case Roles(roles):
            return Roles(tuple(replace(role, body=rewrite(role.body, fresh)) for role in roles))
        case Barrier():
            return stmt


def _operands(operands: Iterable[Load], fresh: Callable[[Expr], Expr]) -> tuple[Load, ...]:
    return tuple([Load(load.tensor, tuple(map(fresh, load.index)), load.dtype, load.count) for load in operands])


def loop_nest(stmt: Stmt, kind: LoopKind | None = None) -> tuple[list[For], Stmt]:
    """The loops, all or those of a kind, that a statement begins with, the outermost first, and what is inside."""
    loops = []
    while isinstance(stmt, For) and kind in (None, stmt.kind):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


class Grid(NamedTuple):
    """A launch of a GPU: blocks, the buffers that each has in shared memory, and its threads."""

    blocks: list[For]
    shared: list[Buffer]
    threads: list[For]
    body: Stmt  # of each thread

    @staticmethod
    def of(phase: Stmt) -> Grid:
        """The parts of a phase: its block loops, the allocations in them, and the thread loops in those."""
        blocks, stmt = loop_nest(phase, LoopKind.BLOCK)
        shared = []
        while isinstance(stmt, Alloc):
            shared.append(stmt.buffer)
            stmt = stmt.body
        return Grid(blocks, shared, *loop_nest(stmt, LoopKind.THREAD))

    @property
    def block_threads(self) -> int:
        """The number of threads of a block."""
        return prod(loop.extent for loop in self.threads)


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """A statement and all inside it, each before what it contains."""
    yield stmt
    match stmt:
        case Block(body):
            for part in body:
                yield from statements(part)
        case For(body=inner) | Alloc(body=inner) | If(then=inner):
            yield from statements(inner)
        case Roles(roles):
            for role in roles:
                yield from statements(role.body)


def written_buffers(stmt: Stmt) -> frozenset[str]:
    """Names of the buffers that a statement writes to."""
    names = set()
    for part in statements(stmt):
        match part:
            case Store(tensor):
                names.add(tensor)
            case Do(outs=outs):
                names.update(out.tensor for out in outs)
            case Fetch(target=target):
                names.add(target.tensor)
    return frozenset(names)


def accessed_buffers(stmt: Stmt) -> frozenset[str]:
    """Names of the buffers that a statement of a processor reads, writes or asks for."""
    inside = list(statements(stmt))
    names = {load.tensor for part in inside for load in loads(*expressions(part))}
    return frozenset(names.union(part.tensor for part in inside if isinstance(part, Store | Prefetch)))


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement of a processor, without those of inner statements."""
    match stmt:
        case Store(_, index, value):
            return *index, value
        case Prefetch(_, index):
            return index
        case If(condition):
            return (condition,)
        case Do(_, outs, ins):
            return *outs, *ins
    return ()


def render(kernel: Kernel) -> str:
    """The kernel as text: one line a statement, indented."""
    packed = {name: f" packed {packing}" for name, packing in kernel.packings.items()}
    lines = [f"param {b}{packed.get(b.name, '')}" for b in kernel.params]
    lines += [f"scratch {b}" for b in kernel.scratch]
    lines += [f"words {b}" for b in kernel.words]
    lines.extend(_lines(kernel.body, 0))
    return "\n".join(lines) + "\n"


def _lines(stmt: Stmt, depth: int) -> Iterator[str]:
    pad = "  " * depth
    match stmt:
        case Block(body):
            for part in body:
                yield from _lines(part, depth)
        case For(var, extent, body, kind):
            yield f"{pad}{kind} {var} < {extent!r}:"
            yield from _lines(body, depth + 1)
        case If(condition, then):
            yield f"{pad}if {condition}:"
            yield from _lines(then, depth + 1)
        case Store(tensor, index, value, count):
            suffix = "" if count is None else f" count={count}"
            yield f"{pad}{tensor}[{', '.join(map(str, index))}{suffix}] = {value}"
        case Prefetch(tensor, index):
            yield f"{pad}prefetch {tensor}[{', '.join(map(str, index))}]"
        case Alloc(buffer, body):
            yield f"{pad}alloc {buffer}"
            yield from _lines(body, depth)
        case Barrier():
            yield f"{pad}barrier"
        case Do(name, outs, ins):
            results = f"{', '.join(map(str, outs))} = " if outs else ""
            yield f"{pad}{results}{name}({', '.join(map(str, ins))})"
        case Fetch(tensor_map, coordinates, target, barrier):
            yield f"{pad}{target} = fetch {tensor_map} at [{', '.join(map(str, coordinates))}] for {barrier}"
        case Roles(roles):
            for role in roles:
                registers = f", {role.registers} registers" if role.registers else ""
                yield f"{pad}role of {role.threads} threads{registers}:"
                yield from _lines(role.body, depth + 1)
