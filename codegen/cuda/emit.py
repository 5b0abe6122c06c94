"""CUDA C as text from a Kernel: one function a phase, and how it is launched.

    extern "C" __global__ void symbol_p0(const float* p0, float* p1, ...)

The parameters are the kernel's, then its scratch buffers. Nothing is said about aliasing, so buffers may be shared in
place, and no name of a kernel reaches the text. Shared memory is asked for at the launch, registers are local arrays
whose indices are constants once loops are unrolled. Common subexpressions and loop invariants are left to the compiler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from ..expr.dtype import DType
from ..expr.expr import HORIZONTAL, Const, Expr, Load, Op, Ramp, Var, loads, substitute, walk
from ..expr.index import contiguous, form
from ..expr.nodes import fact
from ..gpu import EXCHANGED_ALIGN, SM_REGISTERS, THREAD_REGISTERS, WIDEST_BYTES
from ..instructions.table import INSTRUCTIONS, device_functions
from ..instructions.warpgroup import GROUP
from ..ir.ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    Fetch,
    For,
    Grid,
    If,
    Kernel,
    LoopKind,
    Prefetch,
    Roles,
    Scope,
    Stmt,
    Store,
    ThreadRole,
    bytes_name,
    statements,
    written_buffers,
)
from ..ir.tensor_map import TensorMap
from .ops import TYPES, literal, op_text
from .prelude import DIVISORS, NARROW, prelude

MOST_COUNTED = (1 << 31) - 1
"""Most elements of a buffer whose indices have 32 bits."""

MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
"""Blocks of a grid along x, y, z."""

GROUP_NUMBER = "warpgroup of the thread"
"""A variable that no kernel has."""

SMEM_ALIGN = 128
"""Alignment of buffers in shared memory: a row of its banks."""


class Launch(NamedTuple):
    """The launch of a phase."""

    symbol: str
    grid: tuple[int, int, int]  # blocks along x, y, z
    threads: int  # of a block
    smem_bytes: int  # shared memory of a block
    maps: tuple[TensorMap, ...] = ()  # parameters behind the pointers

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {
            "symbol": self.symbol,
            "grid": list(self.grid),
            "block": [self.threads, 1, 1],
            "smem_bytes": self.smem_bytes,
            "tensor_maps": [tensor_map.to_json() for tensor_map in self.maps],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Launch:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        x, y, z = map(int, data["grid"])
        threads, *others = map(int, data["block"])
        if others != [1, 1]:
            raise ValueError(f"a block of {data['block']}: threads are along x alone")
        maps = tuple(map(TensorMap.from_json, data.get("tensor_maps", ())))
        return Launch(str(data["symbol"]), (x, y, z), threads, int(data["smem_bytes"]), maps)


class CudaSource(NamedTuple):
    """The text of a kernel, and its launches in order."""

    text: str
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, symbol: str) -> CudaSource:
    """The source of a kernel that has passed `verify`: functions `symbol_p0`, `symbol_p1`, ... of its phases.

    Raises ValueError for what no GPU does: a phase without blocks, or with more than a grid has, and an op that its
    dtype doesn't have.
    """
    written = written_buffers(kernel.body)
    definitions = _Definitions()
    functions, launches = [], []
    for number, phase in enumerate(kernel.body.body):
        emitter = _PhaseEmitter(kernel, written, definitions)
        launch, text = emitter.text(f"{symbol}_p{number}", phase)
        functions.append(text)
        launches.append(launch)
    return CudaSource("\n".join([prelude(functions) + definitions.text, *functions]), tuple(launches))


def _is_of_barriers(stmt: Stmt) -> bool:
    """Whether a statement does nothing but with the barriers of its block."""
    if any(isinstance(part, If) and loads(part.condition) for part in statements(stmt)):
        return False
    inside = [part for part in statements(stmt) if not isinstance(part, Block | If | For)]
    return all(
        isinstance(part, Barrier) or (isinstance(part, Do) and part.name.startswith("mbarrier.init."))
        for part in inside
    )


class _Definitions:
    """The types and device functions that functions use."""

    def __init__(self) -> None:
        self.types: set[DType] = set()
        self.instructions: set[str] = set()
        self.fetch_ranks: set[int] = set()

    def type_name(self, dtype: DType) -> str:
        self.types.add(dtype)
        return TYPES[dtype]

    @property
    def text(self) -> str:
        narrow = "".join(text for dtype, text in NARROW.items() if dtype in self.types)
        return narrow + device_functions(self.instructions, self.fetch_ranks)


class _PhaseEmitter:
    """The text of one phase."""

    def __init__(self, kernel: Kernel, written: frozenset[str], definitions: _Definitions) -> None:
        buffers = (*kernel.params, *kernel.scratch)
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0
        self._definitions = definitions
        self._buffers = {buffer.name: buffer for buffer in buffers}
        self._pointers = {buffer.name: f"p{number}" for number, buffer in enumerate(buffers)}
        self._params = [
            f"{'' if buffer.name in written else 'const '}{definitions.type_name(buffer.dtype)}* p{number}"
            for number, buffer in enumerate(buffers)
        ]
        for words in kernel.words:
            kind, pointer = definitions.type_name(words.dtype), self._pointers[bytes_name(words.name)]
            self._buffers[words.name] = words
            self._pointers[words.name] = f"reinterpret_cast<const {kind}*>({pointer})"
        self._maps: list[TensorMap] = []
        self._vars: dict[str, str] = {}
        self._smem_bytes = 0
        self._threads = 0
        self._block_limit = ""  # least blocks of a multiprocessor, for __launch_bounds__
        self._innermost = ""  # variable of the innermost loop of threads
        self._memo: dict[tuple[Expr, str], list[str]] = {}  # texts of the lanes of values in the present statement
        self._shared: set[Expr] = set()  # values used more than once in it
        self._index = TYPES[DType.I64 if any(prod(b.shape) > MOST_COUNTED for b in buffers) else DType.I32]

    def text(self, symbol: str, phase: Stmt) -> tuple[Launch, str]:
        """The launch and the text of a function."""
        blocks, shared, threads, body = Grid.of(phase)
        if not 1 <= len(blocks) <= len(MOST_BLOCKS):
            raise ValueError(f"a phase of {len(blocks)} block loops: a grid has 1 to {len(MOST_BLOCKS)}")
        grid = [loop.extent for loop in reversed(blocks)] + [1] * (len(MOST_BLOCKS) - len(blocks))
        if any(extent > most for extent, most in zip(grid, MOST_BLOCKS, strict=True)):
            raise ValueError(f"a grid of {grid} blocks: {MOST_BLOCKS} are the most")
        for loop, axis in zip(reversed(blocks), "xyz", strict=False):
            self._vars[loop.var] = self._name_value("v", self._index, f"blockIdx.{axis}")
        for buffer in shared:
            self._share(buffer)
        self._innermost = threads[-1].var if threads else ""
        count = size = self._threads = prod(loop.extent for loop in threads)
        for loop in threads:
            inner = size // loop.extent
            quotient = f"threadIdx.x / {inner}" if inner > 1 else "threadIdx.x"
            number = quotient if size == count else f"{quotient} % {loop.extent}"
            self._vars[loop.var] = self._name_value("v", self._index, number)
            size = inner
        self._name_group(body)
        self._await_previous(body)
        params = ", ".join(
            (*self._params, *(f"const __grid_constant__ TensorMap m{n}" for n in range(len(self._maps))))
        )
        head = f'extern "C" __global__ void __launch_bounds__({count}{self._block_limit}) {symbol}({params}) {{'
        if self._smem_bytes:
            head += f"\n  extern __shared__ __align__({EXCHANGED_ALIGN}) unsigned char smem[];"
        launch = Launch(symbol, (grid[0], grid[1], grid[2]), count, self._smem_bytes, tuple(self._maps))
        return launch, "\n".join([head, *self._lines, "}\n"])

    def _name_group(self, body: Stmt) -> None:
        """Name the number of a thread's warpgroup where matrices are addressed by it, so that it is one for a warp.

        NVIDIA's assembler knows that a value which one lane broadcasts is the same in all of them, and keeps it in a
        uniform register, where addresses of matrices have to be.
        """
        names = {part.name for part in statements(body) if isinstance(part, Do)}
        if any(INSTRUCTIONS[name].threads == GROUP for name in names):
            group = f"__shfl_sync(0xffffffffu, {self._vars[self._innermost]} / {GROUP}, 0)"
            self._vars[GROUP_NUMBER] = self._name_value("w", self._index, group)

    def _await_previous(self, body: Stmt) -> None:
        """Emit the statements of threads, and before the first that may touch memory beyond the block, the wait."""
        parts = body.body if isinstance(body, Block) else (body,)
        own = list(takewhile(_is_of_barriers, parts))
        self._statement(Block(tuple(own)))
        self._emit("await_previous();")
        self._statement(Block(parts[len(own) :]))

    def _share(self, buffer: Buffer) -> None:
        """Declare a buffer in the shared memory of the block."""
        name = self._pointers[buffer.name] = self._fresh("s")
        self._buffers[buffer.name] = buffer
        kind = self._definitions.type_name(buffer.dtype)
        align = EXCHANGED_ALIGN if buffer.swizzle else SMEM_ALIGN
        begin = -(-self._smem_bytes // align) * align
        self._emit(f"{kind}* {name} = reinterpret_cast<{kind}*>(smem + {begin});")
        self._smem_bytes = begin + -(-buffer.size_bytes // SMEM_ALIGN) * SMEM_ALIGN

    def _emit(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)

    def _fresh(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    @contextmanager
    def _braces(self, head: str) -> Iterator[None]:
        self._emit(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self._emit("}")

    # Statements

    def _statement(self, stmt: Stmt) -> None:
        match stmt:
            case Block(body):
                for part in body:
                    self._statement(part)
            case For(var, extent, body, kind):
                self._emit(f"#pragma unroll{'' if kind is LoopKind.UNROLL else ' 1'}")
                name = self._vars[var] = self._fresh("v")
                with self._braces(f"for ({self._index} {name} = 0; {name} < {extent}; ++{name})"):
                    self._statement(body)
                del self._vars[var]
            case If(condition, then):
                self._begin(condition)
                [text] = self._lanes(condition)
                with self._braces(f"if ({text})"):
                    self._statement(then)
            case Alloc(buffer, body):
                outer = self._buffers.get(buffer.name), self._pointers.get(buffer.name, "")
                name = self._pointers[buffer.name] = self._fresh("r")
                self._buffers[buffer.name] = buffer
                type_name = self._definitions.type_name(buffer.dtype)
                self._emit(f"alignas({WIDEST_BYTES}) {type_name} {name}[{prod(buffer.shape)}];")
                self._statement(body)
                if outer[0] is not None:
                    self._buffers[buffer.name], self._pointers[buffer.name] = outer[0], outer[1]
            case Store():
                self._store(stmt)
            case Prefetch():
                pass  # other threads run while one waits
            case Barrier():
                self._emit("__syncthreads();")
            case Do(name):
                self._definitions.instructions.add(name)
                operands = self._operands(stmt)
                self._begin(*(index for operand in operands for index in operand.index))
                self._emit(INSTRUCTIONS[name].call([self._address(operand, 0) for operand in operands]))
            case Fetch():
                self._fetch(stmt)
            case Roles(roles):
                self._emit_roles(roles)

    def _fetch(self, stmt: Fetch) -> None:
        if stmt.map not in self._maps:
            self._maps.append(stmt.map)
        self._definitions.fetch_ranks.add(len(stmt.coordinates))
        self._begin(*stmt.coordinates, *stmt.target.index, *stmt.barrier.index)
        coordinates = [f"(int)({self._lanes(at, self._index)[0]})" for at in reversed(stmt.coordinates)]
        number, to, barrier = self._maps.index(stmt.map), self._address(stmt.target, 0), self._address(stmt.barrier, 0)
        self._emit(f"fetch_{len(coordinates)}d({to}, &m{number}, {barrier}, {', '.join(coordinates)});")

    def _emit_roles(self, roles: Sequence[ThreadRole]) -> None:
        """Emit a branch for each role. Registers move from roles that need fewer (PTX ISA, 9.7.20.5, setmaxnreg)."""
        self._block_limit = ", 1"
        at_first = min(THREAD_REGISTERS + 1, SM_REGISTERS // self._threads // 8 * 8)
        begin = 0
        for role in roles:
            begin += role.threads
            with self._braces(f"{'else ' if begin > role.threads else ''}if (threadIdx.x < {begin})"):
                if role.registers and role.registers != at_first:
                    change = "inc" if role.registers > at_first else "dec"
                    self._emit(f'asm volatile("setmaxnreg.{change}.sync.aligned.u32 {role.registers};");')
                self._statement(role.body)

    def _operands(self, stmt: Do) -> list[Load]:
        """The operands of an instruction; of a matrix, the address of its first thread."""
        instruction = INSTRUCTIONS[stmt.name]
        thread = Var(self._innermost)
        group = Var(GROUP_NUMBER) if instruction.threads == GROUP else thread // instruction.threads
        first = {thread.name: group * instruction.threads}
        operands = []
        for node, operand in zip((*stmt.outs, *stmt.ins), (*instruction.outs, *instruction.ins), strict=True):
            index = tuple(substitute(at, first) for at in node.index) if operand.matrix else node.index
            operands.append(replace(node, index=index))
        return operands

    def _store(self, stmt: Store) -> None:
        self._begin(stmt.value, *stmt.index)
        buffer = self._buffers[stmt.tensor]
        lanes = max([i.lanes for i in stmt.index], default=1)
        used = lanes if stmt.count is None else stmt.count
        values = self._lanes(stmt.value)
        values = values * lanes if len(values) == 1 else values
        width = self._width(stmt, buffer, used)
        kind = TYPES[buffer.dtype]
        for first in range(0, used, width):
            if width == 1:
                self._emit(f"{self._element(stmt, first)} = {values[first]};")
            else:
                whole = ", ".join(values[first : first + width])
                address = self._address(stmt, first)
                self._emit(f"*reinterpret_cast<Lanes<{kind}, {width}>*>({address}) = {{{{{whole}}}}};")

    # Memory

    def _width(self, access: Load | Store, buffer: Buffer, used: int) -> int:
        """Elements of one memory access."""
        if used == 1 or buffer.scope is Scope.REGISTER or not contiguous(access.index):
            return 1
        strides = buffer.strides
        step = used
        for index, stride in zip(access.index, strides, strict=True):
            known = form(index)
            step = gcd(step, known.constant * stride)
            for atom, coefficient in known.terms.items():
                if not isinstance(atom, Ramp):
                    step = gcd(step, coefficient * stride)
        if buffer.swizzle is not None:
            step = gcd(step, 1 << buffer.swizzle.base)
        return max(n for n in (1, 2, 4, 8, 16) if step % n == 0 and n * buffer.dtype.size_bytes <= WIDEST_BYTES)

    def _number(self, access: Load | Store, lane: int) -> str:
        """The linear index of a lane's element."""
        buffer = self._buffers[access.tensor]
        terms = []
        for index, stride in zip(access.index, buffer.strides, strict=True):
            texts = self._lanes(index, self._index)
            text = texts[lane if len(texts) > 1 else 0]
            terms.append(text if stride == 1 else f"{text} * {stride}")
        number = " + ".join(terms) or "0"
        if buffer.swizzle is None:
            return number
        bits, base, shift = buffer.swizzle.bits, buffer.swizzle.base, buffer.swizzle.shift
        name = self._name_value("n", self._index, number)
        return f"({name} ^ (({name} >> {base + shift} & {(1 << bits) - 1}) << {base}))"

    def _address(self, access: Load | Store, lane: int) -> str:
        return f"{self._pointers[access.tensor]} + ({self._number(access, lane)})"

    def _element(self, access: Load | Store, lane: int) -> str:
        return f"{self._pointers[access.tensor]}[{self._number(access, lane)}]"

    # Values

    def _begin(self, *roots: Expr) -> None:
        """Begin a statement: values of the last one are forgotten."""
        self._memo = {}
        uses = Counter(part for node in walk(*roots) for part in node.children)
        self._shared = {node for node, count in uses.items() if count > 1}

    def _lanes(self, node: Expr, whole: str = TYPES[DType.I64]) -> list[str]:
        """The text of each lane of a value. `whole` is the type of its whole numbers: inside an index, that of indices.

        Conditions and values cast to 32 bits use the type of indices if they depend on loops alone. Values that depend
        on data have 64 bits, also in an index.
        """
        if not _has_no_data(node):
            whole = TYPES[DType.I64]
        elif node.dtype in (DType.BOOL, DType.I32):
            whole = self._index
        texts = self._memo.get((node, whole))
        if texts is None:
            match node:
                case Var(name):
                    texts = [self._vars[name] if whole == self._index else f"(({whole}){self._vars[name]})"]
                case Const(value, dtype):
                    texts = [literal(value, dtype, whole)]
                case Ramp(base, lanes):
                    [first] = self._lanes(base, whole)
                    texts = [f"({first} + {lane})" for lane in range(lanes)]
                case Load():
                    texts = self._load(node)
                case Op():
                    texts = self._op(node, whole)
                    if node in self._shared:
                        kind = whole if node.dtype is DType.I64 else TYPES[node.dtype]
                        texts = [self._name_value("t", kind, text) for text in texts]
            self._memo[node, whole] = texts
        return texts

    def _name_value(self, letter: str, kind: str, text: str) -> str:
        name = self._fresh(letter)
        self._emit(f"const {kind} {name} = {text};")
        return name

    def _load(self, node: Load) -> list[str]:
        buffer = self._buffers[node.tensor]
        used = node.lanes if node.count is None else node.count
        width = self._width(node, buffer, used)
        kind = TYPES[buffer.dtype]
        texts: list[str] = []
        for first in range(0, used, width):
            if width == 1:
                texts.append(self._name_value("l", kind, self._element(node, first)))
            else:
                name = self._fresh("l")
                whole = f"Lanes<{kind}, {width}>"
                self._emit(f"const {whole} {name} = *reinterpret_cast<const {whole}*>({self._address(node, first)});")
                texts += [f"{name}.at[{lane}]" for lane in range(width)]
        return texts + [literal(0, buffer.dtype, TYPES[DType.I64])] * (node.lanes - used)

    def _op(self, node: Op, whole: str) -> list[str]:
        args = [self._lanes(arg, whole) for arg in node.args]
        if node.name in HORIZONTAL:
            word = {"hsum": "add", "hprod": "mul", "hmax": "max", "hmin": "min"}[node.name]
            total = args[0][0]
            for text in args[0][1:]:
                total = op_text(word, node.dtype, node.dtype, [total, text], whole)
            return [total]
        if node.name == "div" and (inverse := _inverse(node.args[1])) is not None:
            by, factor = (literal(value, DType.F32, whole) for value in inverse)
            return [f"quotient({text}, {by}, {factor})" for text in args[0]]
        lanes = max(map(len, args))
        spread = [texts * lanes if len(texts) == 1 else texts for texts in args]
        return [
            op_text(node.name, node.args[0].dtype, node.dtype, list(each), whole) for each in zip(*spread, strict=True)
        ]


def _inverse(divisor: Expr) -> tuple[float, float] | None:
    """A known divisor of float32 and its inverse, rounded, if `QUOTIENT` divides by it."""
    if not isinstance(divisor, Const) or divisor.dtype is not DType.F32:
        return None
    value, (least, most) = np.float32(divisor.value), DIVISORS
    return (float(value), float(np.float32(1.0) / value)) if least <= abs(value) <= most else None


@fact
def _has_no_data(node: Expr) -> bool:
    """Whether a value depends on loops alone, not on data."""
    return not isinstance(node, Load) and all(map(_has_no_data, node.children))
