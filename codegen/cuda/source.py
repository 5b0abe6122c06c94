"""CUDA C as text from a Kernel: one function a phase, and how it is launched.

    extern "C" __global__ void symbol_p0(const float* p0, float* p1, ...)

The parameters are the kernel's, then its scratch buffers. Nothing is said about aliasing, so buffers may be shared in
place, and no name of a kernel reaches the text. Shared memory is asked for at the launch, registers are local arrays
whose indices are constants once loops are unrolled. What is common to expressions, and what does not change in a loop,
the compiler finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import gcd, isinf, isnan, prod
from typing import NamedTuple

from ..dtype import DType
from ..expr import HORIZONTAL, Const, Expr, Load, Op, Ramp, Var, substitute, walk
from ..index import contiguous, form
from ..ir import (
    Alloc,
    Barrier,
    Block,
    Buffer,
    Do,
    For,
    If,
    Kernel,
    LoopKind,
    Prefetch,
    Scope,
    Stmt,
    Store,
    nested,
    written_in,
)
from ..nodes import fact
from .gpu import EXCHANGED_ALIGN, WIDEST_BYTES
from .instructions import INSTRUCTIONS, definitions

TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "Half",
    DType.BF16: "Brain",
    DType.I64: "long long",
    DType.I32: "int",
    DType.I8: "signed char",
    DType.U8: "unsigned char",
    DType.BOOL: "bool",
}
"""What elements are called."""

MOST_COUNTED = (1 << 31) - 1
"""Elements of a buffer that are counted in 32 bits."""

MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
"""Blocks of a grid along x, y, z."""

SMEM_ALIGN = 128
"""Of buffers in shared memory: a row of its banks."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "/", "mod": "%", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||",
}  # fmt: skip
"""Operands of "floordiv" and "mod" are not negative."""

WHOLE = frozenset({"floordiv", "mod", "shl", "shr"})
"""Ops on whole numbers alone."""

FUNCTIONS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "exp": "exp", "log": "log",
             "erf": "erf", "tanh": "tanh", "pow": "pow", "abs": "fabs", "fma": "fma"}  # fmt: skip
"""Of CUDA's mathematics library, for double; an f at the end is for float."""

PRELUDE = """\
template <typename T, int N> struct alignas(sizeof(T) * N) Lanes { T at[N]; };
template <typename T> static __device__ __forceinline__ T least(T a, T b) { return b < a || b != b ? b : a; }
template <typename T> static __device__ __forceinline__ T largest(T a, T b) { return b > a || b != b ? b : a; }
template <typename T> static __device__ __forceinline__ T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
template <typename To, typename From> static __device__ __forceinline__ To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To result;
  memcpy(&result, &x, sizeof(To));
  return result;
}
"""
"""What every text begins with. Of NaN and a number, `least` and `largest` give NaN."""

NARROW = {
    DType.F16: """\
struct Half {
  unsigned short bits;
  Half() = default;
  explicit __device__ __forceinline__ Half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  explicit __device__ __forceinline__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
""",
    DType.BF16: """\
struct Brain {
  unsigned short bits;
  Brain() = default;
  explicit __device__ __forceinline__ Brain(float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  explicit __device__ __forceinline__ operator float() const { return __int_as_float(bits << 16); }
};
""",
}
"""Types of memory, defined where they are used. They are only cast. CUDA's own take its headers to compile."""


class Launch(NamedTuple):
    """How a phase is started."""

    symbol: str
    grid: tuple[int, int, int]  # blocks along x, y, z
    threads: int  # of a block
    smem_bytes: int  # shared memory of a block


class Source(NamedTuple):
    """The text of a kernel, and its launches in order."""

    text: str
    launches: tuple[Launch, ...]


def emit(kernel: Kernel, symbol: str) -> Source:
    """The source of a kernel that has passed `verify`: functions `symbol_p0`, `symbol_p1`, ... of its phases.

    Raises ValueError for what no GPU does: a phase without blocks, or with more than a grid has, and an op that its
    dtype doesn't have.
    """
    buffers = (*kernel.params, *kernel.scratch)
    written = written_in(kernel.body)
    used = _Used()
    functions, launches = [], []
    for number, phase in enumerate(kernel.body.body):
        one = _Function(buffers, written, used)
        launch, text = one.text(f"{symbol}_p{number}", phase)
        functions.append(text)
        launches.append(launch)
    return Source("\n".join([PRELUDE + used.definitions, *functions]), tuple(launches))


class _Used:
    """What functions use that is to be defined."""

    def __init__(self) -> None:
        self.types: set[DType] = set()
        self.instructions: set[str] = set()

    def type_name(self, dtype: DType) -> str:
        self.types.add(dtype)
        return TYPES[dtype]

    @property
    def definitions(self) -> str:
        narrow = "".join(text for dtype, text in NARROW.items() if dtype in self.types)
        return narrow + definitions(self.instructions)


class _Function:
    """The text of one phase."""

    def __init__(self, buffers: Sequence[Buffer], written: frozenset[str], used: _Used) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._made = 0
        self._used = used
        self._buffers = {buffer.name: buffer for buffer in buffers}
        self._pointers = {buffer.name: f"p{number}" for number, buffer in enumerate(buffers)}
        self._params = [
            f"{'' if buffer.name in written else 'const '}{used.type_name(buffer.dtype)}* p{number}"
            for number, buffer in enumerate(buffers)
        ]
        self._vars: dict[str, str] = {}
        self._smem_bytes = 0
        self._innermost = ""  # variable of the innermost loop of threads
        self._memo: dict[tuple[Expr, str], list[str]] = {}  # of the statement that is written: the lanes of values
        self._shared: set[Expr] = set()  # of it, what is used more than once
        self._index = TYPES[DType.I64 if any(prod(b.shape) > MOST_COUNTED for b in buffers) else DType.I32]

    def text(self, symbol: str, phase: Stmt) -> tuple[Launch, str]:
        """How it is launched, and the whole function."""
        blocks, stmt = nested(phase, LoopKind.BLOCK)
        if not 1 <= len(blocks) <= len(MOST_BLOCKS):
            raise ValueError(f"a phase of {len(blocks)} block loops: a grid has 1 to {len(MOST_BLOCKS)}")
        grid = [loop.extent for loop in reversed(blocks)] + [1] * (len(MOST_BLOCKS) - len(blocks))
        if any(extent > most for extent, most in zip(grid, MOST_BLOCKS, strict=True)):
            raise ValueError(f"a grid of {grid} blocks: {MOST_BLOCKS} are the most")
        for loop, axis in zip(reversed(blocks), "xyz", strict=False):
            self._define(loop, f"blockIdx.{axis}")
        while isinstance(stmt, Alloc):
            self._share(stmt.buffer)
            stmt = stmt.body
        threads, body = nested(stmt, LoopKind.THREAD)
        self._innermost = threads[-1].var if threads else ""
        count = left = prod(loop.extent for loop in threads)
        for loop in threads:
            inner = left // loop.extent
            place = f"threadIdx.x / {inner}" if inner > 1 else "threadIdx.x"
            self._define(loop, place if left == count else f"{place} % {loop.extent}")
            left = inner
        self._statement(body)
        head = f'extern "C" __global__ void __launch_bounds__({count}) {symbol}({", ".join(self._params)}) {{'
        if self._smem_bytes:
            head += f"\n  extern __shared__ __align__({EXCHANGED_ALIGN}) unsigned char smem[];"
        launch = Launch(symbol, (grid[0], grid[1], grid[2]), count, self._smem_bytes)
        return launch, "\n".join([head, *self._lines, "}\n"])

    def _define(self, loop: For, value: str) -> None:
        name = self._variable(loop)
        self._emit(f"const {self._index} {name} = {value};")

    def _variable(self, loop: For) -> str:
        name = self._vars[loop.var] = self._fresh("v")
        return name

    def _share(self, buffer: Buffer) -> None:
        """A place in the shared memory of the block."""
        name = self._pointers[buffer.name] = self._fresh("s")
        self._buffers[buffer.name] = buffer
        kind = self._used.type_name(buffer.dtype)
        align = EXCHANGED_ALIGN if buffer.swizzle else SMEM_ALIGN
        begin = -(-self._smem_bytes // align) * align
        self._emit(f"{kind}* {name} = reinterpret_cast<{kind}*>(smem + {begin});")
        self._smem_bytes = begin + -(-buffer.size_bytes // SMEM_ALIGN) * SMEM_ALIGN

    def _emit(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)

    def _fresh(self, letter: str) -> str:
        self._made += 1
        return f"{letter}{self._made}"

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
                name = self._variable(stmt)
                with self._braces(f"for ({self._index} {name} = 0; {name} < {extent}; ++{name})"):
                    self._statement(body)
                del self._vars[var]
            case If(condition, then):
                self._begin(condition)
                with self._braces(f"if ({self._scalar(condition)})"):
                    self._statement(then)
            case Alloc(buffer, body):
                outer = self._buffers.get(buffer.name), self._pointers.get(buffer.name, "")
                name = self._pointers[buffer.name] = self._fresh("r")
                self._buffers[buffer.name] = buffer
                type_name = self._used.type_name(buffer.dtype)
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
                self._used.instructions.add(name)
                operands = self._named_by_threads(stmt)
                self._begin(*(index for operand in operands for index in operand.index))
                self._emit(INSTRUCTIONS[name].call([self._place(operand, 0) for operand in operands]))

    def _named_by_threads(self, stmt: Do) -> list[Load]:
        """The operands of an instruction; of a matrix what the first of its threads names, where it begins."""
        one = INSTRUCTIONS[stmt.name]
        first = {self._innermost: Var(self._innermost) // one.threads * one.threads}
        found = []
        for node, operand in zip((*stmt.outs, *stmt.ins), (*one.outs, *one.ins), strict=True):
            index = tuple(substitute(at, first) for at in node.index) if operand.matrix else node.index
            found.append(replace(node, index=index))
        return found

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
                place = self._place(stmt, first)
                self._emit(f"*reinterpret_cast<Lanes<{kind}, {width}>*>({place}) = {{{{{whole}}}}};")

    # Memory

    def _width(self, access: Load | Store, buffer: Buffer, used: int) -> int:
        """Elements that are moved at once."""
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
        """The number of an element."""
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
        name = self._fresh("n")
        self._emit(f"const {self._index} {name} = {number};")
        return f"({name} ^ (({name} >> {base + shift} & {(1 << bits) - 1}) << {base}))"

    def _place(self, access: Load | Store, lane: int) -> str:
        return f"{self._pointers[access.tensor]} + ({self._number(access, lane)})"

    def _element(self, access: Load | Store, lane: int) -> str:
        return f"{self._pointers[access.tensor]}[{self._number(access, lane)}]"

    # Values

    def _begin(self, *roots: Expr) -> None:
        """Another statement: nothing of what was computed for the last one is there any more."""
        self._memo = {}
        uses = Counter(part for node in walk(*roots) for part in node.children)
        self._shared = {node for node, count in uses.items() if count > 1}

    def _scalar(self, node: Expr) -> str:
        [text] = self._lanes(node)
        return text

    def _lanes(self, node: Expr, whole: str = TYPES[DType.I64]) -> list[str]:
        """The text of each lane of a value. `whole` is the type of its whole numbers: that of indices, inside of one.

        Conditions that go by loops alone are as indices are. What data are in is no loop's: 64 bits, also in an index.
        """
        if not _goes_by_loops(node):
            whole = TYPES[DType.I64]
        elif node.dtype is DType.BOOL:
            whole = self._index
        found = self._memo.get((node, whole))
        if found is None:
            match node:
                case Var(name):
                    found = [self._vars[name] if whole == self._index else f"(({whole}){self._vars[name]})"]
                case Const(value, dtype):
                    found = [_literal(value, dtype, whole)]
                case Ramp(base, lanes):
                    [first] = self._lanes(base, whole)
                    found = [f"({first} + {lane})" for lane in range(lanes)]
                case Load():
                    found = self._load(node)
                case Op():
                    found = self._op(node, whole)
                    if node in self._shared:
                        kind = whole if node.dtype is DType.I64 else TYPES[node.dtype]
                        found = [self._named(kind, text) for text in found]
            self._memo[node, whole] = found
        return found

    def _named(self, kind: str, text: str) -> str:
        name = self._fresh("t")
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
                texts.append(self._named_element(buffer, self._element(node, first)))
            else:
                name = self._fresh("l")
                whole = f"Lanes<{kind}, {width}>"
                self._emit(f"const {whole} {name} = *reinterpret_cast<const {whole}*>({self._place(node, first)});")
                texts += [f"{name}.at[{lane}]" for lane in range(width)]
        return texts + [_literal(0, buffer.dtype, TYPES[DType.I64])] * (node.lanes - used)

    def _named_element(self, buffer: Buffer, element: str) -> str:
        name = self._fresh("l")
        self._emit(f"const {TYPES[buffer.dtype]} {name} = {element};")
        return name

    def _op(self, node: Op, whole: str) -> list[str]:
        args = [self._lanes(arg, whole) for arg in node.args]
        if node.name in HORIZONTAL:
            word = {"hsum": "add", "hprod": "mul", "hmax": "max", "hmin": "min"}[node.name]
            total = args[0][0]
            for text in args[0][1:]:
                total = _text(word, node.dtype, node.dtype, [total, text], whole)
            return [total]
        lanes = max(map(len, args))
        spread = [texts * lanes if len(texts) == 1 else texts for texts in args]
        return [
            _text(node.name, node.args[0].dtype, node.dtype, list(each), whole) for each in zip(*spread, strict=True)
        ]


@fact
def _goes_by_loops(node: Expr) -> bool:
    """Whether a value goes by loops alone: no data are in it."""
    return not isinstance(node, Load) and all(map(_goes_by_loops, node.children))


def _text(name: str, source: DType, dtype: DType, args: list[str], whole: str) -> str:
    """An op on operands of a type; `whole` is what I64 is called. Raises ValueError where there is none."""
    is_plain = not (source is DType.BOOL and name in ("add", "mul")) and not (source.is_float and name in WHOLE)
    if name in INFIX and is_plain:
        return f"({args[0]} {INFIX[name]} {args[1]})"
    match name, args:
        case (("add" | "max"), (a, b)) if source is DType.BOOL:
            return f"({a} || {b})"
        case (("mul" | "min"), (a, b)) if source is DType.BOOL:
            return f"({a} && {b})"
        case "min", (a, b):
            return f"least({a}, {b})"
        case "max", (a, b):
            return f"largest({a}, {b})"
        case "neg", (a,):
            return f"(-{a})"
        case "not", (a,):
            return f"(!{a})"
        case "select", (a, b, c):
            return f"({a} ? {b} : {c})"
        case "cast", (a,) if dtype is DType.BOOL:
            return f"({a} != 0)"
        case "cast", (a,):
            kind = whole if dtype is DType.I64 else TYPES[dtype]
            return f"(({kind}){a})"
        case "bitcast", (a,):
            return f"bits<{TYPES[dtype]}>({a})"
        case "sigmoid", (a,) if source.is_float:
            return f"sigmoid({a})"
        case "fma", (a, b, c) if not source.is_float:
            return f"({a} * {b} + {c})"
        case "abs", (a,) if not source.is_float:
            return a if source in (DType.U8, DType.BOOL) else f"({a} < 0 ? -{a} : {a})"
        case (("floor" | "ceil" | "round"), (a,)) if not source.is_float:
            return a
    if name in FUNCTIONS and source.is_float:
        return f"{FUNCTIONS[name]}{'f' if source is DType.F32 else ''}({', '.join(args)})"
    raise ValueError(f"{name} of {source} is no op of a GPU")


def _literal(value: float, dtype: DType, whole: str) -> str:
    """A number as text; `whole` is what I64 is called."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        text = f"{int(value)}{'ll' if dtype is DType.I64 and whole == TYPES[DType.I64] else ''}"
        return f"({text})" if value < 0 else text
    if dtype.is_narrow:
        return f"(({TYPES[dtype]}){_literal(value, DType.F32, whole)})"
    kind = TYPES[dtype]
    if isnan(value):
        return f"bits<{kind}>({'0x7fc00000' if dtype is DType.F32 else '0x7ff8000000000000ll'})"
    if isinf(value):
        sign = "-" if value < 0 else ""
        return f"({sign}bits<{kind}>({'0x7f800000' if dtype is DType.F32 else '0x7ff0000000000000ll'}))"
    text = float(value).hex() + ("f" if dtype is DType.F32 else "")
    return f"({text})" if text.startswith("-") else text
