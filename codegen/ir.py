"""The loop IR: a Kernel is phases of loops over buffers.

Read `Kernel` first, then the statements: `Block`, `For`, `If`, `Store`, `Prefetch`, `Alloc`. Expressions are those of
`codegen.expr`; a `Load` names a buffer. All extents are static, so an odd size is a second, smaller loop beside the
first (or lanes switched off by `count`), never a bound computed at run time.

Parallelism is a loop kind. Each top-level statement of a kernel is a *phase*. On a CPU the threads share the
iterations of its `parallel` loop and meet at a barrier before the next phase; a phase that is no parallel loop runs
on one thread.

On a GPU a phase is a launch: `block` loops, the innermost of which runs fastest; in them what a block shares; in there
`thread` loops, the innermost of which are the lanes of a warp where an instruction needs all of them. All threads of a
block run the same statements. They meet at a `Barrier`, and `Do` is an instruction that no expression stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtype import DType
from .expr import Expr, Load, Substitution, loads


class LoopKind(StrEnum):
    """How the iterations of a loop are run."""

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


@dataclass(frozen=True, slots=True)
class Swizzle:
    """An order of elements in shared memory in which rows that are read together lie in different banks.

    Of the number of an element its bits from `base` on, `bits` of them, are combined (exclusive or) with those `shift`
    above. So what lies within 2^base elements stays together.
    """

    bits: int
    base: int
    shift: int

    def place(self, number: Any) -> Any:
        """Where the element of a number is; of an array of them too."""
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
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}] {self.scope}{swizzle}"


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
    """Ask for the memory around `tensor[index]`, to be near when it is read. The place may be outside of the tensor."""

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
    """An instruction of a GPU, by its name in `cuda.instructions`. Each operand is what a load of it reads."""

    name: str
    outs: tuple[Load, ...]
    ins: tuple[Load, ...]


Stmt = Block | For | If | Store | Prefetch | Alloc | Barrier | Do


Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """A constant parameter's layout, made once when a model is compiled.

    The kernel's parameter has this layout instead of the tensor's: multiply axis d of the tensor by the matrix
    `maps[d]` (in double precision), permute the axes by `order`, pad each with zeros to `padded`, split axis d into
    `splits[d]` (outermost first), permute all split parts by `parts`, and see the last `joined` of them as one.
    """

    order: tuple[int, ...]
    padded: tuple[int, ...]
    splits: tuple[tuple[int, ...], ...]
    parts: tuple[int, ...]
    maps: tuple[tuple[int, Matrix], ...] = ()  # (axis, its matrix), each axis once at most
    joined: int = 1

    @staticmethod
    def in_order(order: tuple[int, ...], padded: tuple[int, ...], maps: tuple[tuple[int, Matrix], ...] = ()) -> Packing:
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
        return np.ascontiguousarray(self.arranged(array))

    def arranged(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """What `apply` gives, but as a view of the array or of a copy, in whatever strides that has."""
        array = self._mapped(array).transpose(self.order)
        if array.shape != self.padded:
            array = np.pad(array, [(0, p - s) for p, s in zip(self.padded, array.shape, strict=True)])
        array = array.reshape([extent for split in self.splits for extent in split])
        return array.transpose(self.parts).reshape(self.shape)

    def _mapped(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        if not self.maps:
            return array
        exact = array.astype(np.float64)
        for axis, matrix in self.maps:
            exact = np.moveaxis(np.tensordot(np.array(matrix), exact, (1, axis)), 0, axis)
        return exact.astype(array.dtype)

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
        maps = ((int(one["axis"]), tuple(tuple(map(float, row)) for row in one["matrix"])) for one in data["maps"])
        return Packing(
            order=tuple(map(int, data["order"])),
            padded=tuple(map(int, data["padded"])),
            splits=tuple(tuple(map(int, split)) for split in data["splits"]),
            parts=tuple(map(int, data["parts"])),
            maps=tuple(maps),
            joined=int(data["joined"]),
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """One task's code: `params` (inputs then outputs, in the task's order), `scratch`, and the phases in `body`."""

    params: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    body: Block
    packings: dict[str, Packing] = field(default_factory=dict)

    def __str__(self) -> str:
        return render(self)


def replaced(stmt: Stmt, values: Mapping[str, Expr]) -> Stmt:
    """The statement with variables replaced in every expression."""
    return rewritten(stmt, Substitution(values))


def rewritten(stmt: Stmt, fresh: Callable[[Expr], Expr]) -> Stmt:
    """The statement with what `fresh` gives for every expression."""
    match stmt:
        case Block(body):
            return Block(tuple([rewritten(part, fresh) for part in body]))
        case For(var, extent, body, kind):
            return For(var, extent, rewritten(body, fresh), kind)
        case If(condition, then):
            return If(fresh(condition), rewritten(then, fresh))
        case Alloc(buffer, body):
            return Alloc(buffer, rewritten(body, fresh))
        case Prefetch(tensor, index):
            return Prefetch(tensor, tuple(map(fresh, index)))
        case Store(tensor, index, value, count):
            place, new = tuple(map(fresh, index)), fresh(value)
            return stmt if place == index and new is value else Store(tensor, place, new, count)
        case Do(name, outs, ins):
            return Do(name, _operands(outs, fresh), _operands(ins, fresh))
        case Barrier():
            return stmt


def _operands(operands: tuple[Load, ...], fresh: Callable[[Expr], Expr]) -> tuple[Load, ...]:
    return tuple([Load(one.tensor, tuple(map(fresh, one.index)), one.dtype, one.count) for one in operands])


def nested(stmt: Stmt, kind: LoopKind) -> tuple[list[For], Stmt]:
    """The loops of a kind that a statement begins with, the outermost first, and what is inside."""
    loops = []
    while isinstance(stmt, For) and stmt.kind is kind:
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def statements(stmt: Stmt) -> Iterator[Stmt]:
    """A statement and all inside it, each before what it contains."""
    yield stmt
    match stmt:
        case Block(body):
            for part in body:
                yield from statements(part)
        case For(body=inner) | Alloc(body=inner) | If(then=inner):
            yield from statements(inner)


def written_in(stmt: Stmt) -> frozenset[str]:
    """Names of the buffers that a statement writes to."""
    found = set()
    for part in statements(stmt):
        match part:
            case Store(tensor):
                found.add(tensor)
            case Do(outs=outs):
                found.update(one.tensor for one in outs)
    return frozenset(found)


def touched_in(stmt: Stmt) -> frozenset[str]:
    """Names of the buffers that a statement of a processor reads, writes or asks for."""
    inside = list(statements(stmt))
    found = {one.tensor for part in inside for one in loads(*expressions(part))}
    return frozenset(found.union(part.tensor for part in inside if isinstance(part, Store | Prefetch)))


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """What a statement of a processor says itself, without those inside it."""
    match stmt:
        case Store(_, index, value):
            return *index, value
        case Prefetch(_, index):
            return index
        case If(condition):
            return (condition,)
    return ()


def render(kernel: Kernel) -> str:
    """The kernel as text: one line a statement, indented."""
    packed = {name: f" packed {packing}" for name, packing in kernel.packings.items()}
    lines = [f"param {b}{packed.get(b.name, '')}" for b in kernel.params]
    lines += [f"scratch {b}" for b in kernel.scratch]
    lines.extend(_lines(kernel.body, 0))
    return "\n".join(lines) + "\n"


def _lines(stmt: Stmt, depth: int) -> Iterator[str]:
    pad = "  " * depth
    match stmt:
        case Block(body):
            for part in body:
                yield from _lines(part, depth)
        case For(var, extent, body, kind):
            yield f"{pad}{kind} {var} < {extent}:"
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
