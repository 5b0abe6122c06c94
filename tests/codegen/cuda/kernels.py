"""Kernels for a GPU, written by hand: small, and each with what the others lack."""

from __future__ import annotations

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Ramp, Var, const, op
from tunewright.codegen.instructions.bulk import fetch_swizzle
from tunewright.codegen.ir.ir import (
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
    Roles,
    Scope,
    Stmt,
    Store,
    Swizzle,
    ThreadRole,
    words_of,
)
from tunewright.codegen.ir.tensor_map import TensorMap

F32 = DType.F32


def block(*body: Stmt) -> Block:
    return Block(body)


def added(size: int, threads: int = 64) -> Kernel:
    """z = x + max(y, 0), one element a thread; the last block has some to spare."""
    x, y, z = (Buffer(name, (size,), F32) for name in "xyz")
    place = Var("b") * threads + Var("t")
    value = Load("x", (place,), F32) + op("max", Load("y", (place,), F32), 0.0)
    body = If(op("lt", place, size), Store("z", (place,), value))
    grid = For("b", -(-size // threads), For("t", threads, body, LoopKind.THREAD), LoopKind.BLOCK)
    return Kernel((x, y, z), (), block(grid))


def lowest_halves(size: int) -> Kernel:
    """z = the lower halves of the bytes of x, four of them a thread, which reads a word."""
    x, z = Buffer("x", (4 * size,), DType.U8), Buffer("z", (size,), DType.I32)
    word = Load("x.words", (Var("t"),), DType.I32)
    body = Store("z", (Var("t"),), op("bitand", word, 0x0F0F0F0F))
    grid = For("b", 1, For("t", size, body, LoopKind.THREAD), LoopKind.BLOCK)
    return Kernel((x, z), (), block(grid), words=(words_of(x),))


def turned(rows: int, columns: int, meets: bool = True, swizzle: Swizzle | None = None) -> Kernel:
    """y = x transposed, by tiles of 32 x 32 in shared memory, which 8 x 32 threads read and write."""
    x, y = Buffer("x", (rows, columns), F32), Buffer("y", (columns, rows), F32)
    tile = Buffer("tile", (32, 32), F32, Scope.SHARED, swizzle)
    down, across, w, t = Var("d") * 32, Var("a") * 32, Var("w"), Var("t")
    row = Var("n") * 8 + w
    read = Store("tile", (row, t), Load("x", (down + row, across + t), F32))
    write = Store("y", (across + row, down + t), Load("tile", (t, row), F32))
    inside = (op("lt", down + row, rows), op("lt", across + t, columns))
    outside = (op("lt", across + row, columns), op("lt", down + t, rows))
    steps: list[Stmt] = [For("n", 4, If(inside[0], If(inside[1], read)), LoopKind.UNROLL)]
    steps += [Barrier()] if meets else []
    steps += [For("n", 4, If(outside[0], If(outside[1], write)), LoopKind.UNROLL)]
    threads = For("w", 8, For("t", 32, Block(tuple(steps)), LoopKind.THREAD), LoopKind.THREAD)
    blocks = For("a", -(-columns // 32), Alloc(tile, threads), LoopKind.BLOCK)
    return Kernel((x, y), (), block(For("d", -(-rows // 32), blocks, LoopKind.BLOCK)))


def multiplied(rows: int, depth: int, columns: int, without: str = "", crossed: bool = False) -> Kernel:
    """c = a b in TF32: blocks of 32 x 32, four warps, what comes next copied meanwhile. All sizes divide evenly.

    `without` names a step to leave out; `crossed`: with two registers of an operand exchanged.
    """
    a, b, c = Buffer("a", (rows, depth), F32), Buffer("b", (depth, columns), F32), Buffer("c", (rows, columns), F32)
    left, right = Buffer("left", (2, 32, 8), F32, Scope.SHARED), Buffer("right", (2, 8, 32), F32, Scope.SHARED)
    fa, fb, fc = (Buffer(n, s, F32, Scope.REGISTER) for n, s in (("fa", (4,)), ("fb", (2,)), ("fc", (2, 4))))
    lane, warp, step = Var("l"), Var("w"), Var("k")
    group, member = lane // 4, lane % 4
    down, across = warp // 2 * 16, warp % 2 * 16

    def copied(stage: Expr, inner: Expr) -> Stmt:
        """Two warps bring a tile of a, two one of b, 16 bytes each thread."""
        number = warp % 2 * 32 + lane
        row, column = number // 2, number % 2 * 4
        one = Do(
            "cp.async.16",
            (Load("left", (stage, row, Ramp(column, 4)), F32),),
            (Load("a", (Var("i") * 32 + row, Ramp(inner * 8 + column, 4)), F32),),
        )
        row, column = number // 8, number % 8 * 4
        other = Do(
            "cp.async.16",
            (Load("right", (stage, row, Ramp(column, 4)), F32),),
            (Load("b", (inner * 8 + row, Ramp(Var("j") * 32 + column, 4)), F32),),
        )
        return block(If(op("lt", warp, 2), one), If(op("le", 2, warp), other), Do("cp.async.commit", (), ()))

    def fragments(stage: Expr) -> Stmt:
        loads: list[Stmt] = []
        for n in range(4):
            half, deep = (n // 2, n % 2) if crossed else (n % 2, n // 2)
            place = stage, down + group + 8 * half, member + 4 * deep
            loads.append(Store("fa", (const(n),), Load("left", place, F32)))
        inside = [
            Store("fb", (const(n),), Load("right", (stage, member + 4 * n, across + Var("q") * 8 + group), F32))
            for n in range(2)
        ]
        sums = Load("fc", (Var("q"), Ramp(const(0), 4)), F32)
        product = Do("mma.m16n8k8.f32.tf32", (sums,), (whole(fa), whole(fb), sums))
        return block(*loads, For("q", 2, block(*inside, product), LoopKind.UNROLL))

    stages = depth // 8
    following = If(op("lt", step + 1, stages), copied((step + 1) % 2, step + 1))
    steps: list[Stmt] = [Do("cp.async.wait.0", (), ())] if without != "wait" else []
    steps += [Barrier()] if without != "barrier" else []
    body: list[Stmt] = [
        For("q", 2, For("e", 4, Store("fc", (Var("q"), Var("e")), const(0.0)), LoopKind.UNROLL), LoopKind.UNROLL),
        copied(const(0), const(0)),
        For("k", stages, block(*steps, following, fragments(step % 2))),
        *([Do("cp.async.wait.0", (), ())] if without == "wait" else []),
    ]
    row, column = Var("i") * 32 + down + group, Var("j") * 32 + across + Var("q") * 8 + member * 2
    result = Store("c", (row + 8 * Var("h"), Ramp(column, 2)), Load("fc", (Var("q"), Ramp(Var("h") * 2, 2)), F32))
    body.append(For("q", 2, For("h", 2, result, LoopKind.UNROLL), LoopKind.UNROLL))
    inside: Stmt = Block(tuple(body))
    for buffer in (fa, fb, fc):
        inside = Alloc(buffer, inside)
    threads: Stmt = For("w", 4, For("l", 32, inside, LoopKind.THREAD), LoopKind.THREAD)
    for buffer in (left, right):
        threads = Alloc(buffer, threads)
    grid = For("i", rows // 32, For("j", columns // 32, threads, LoopKind.BLOCK), LoopKind.BLOCK)
    return Kernel((a, b, c), (), block(grid))


def whole(buffer: Buffer) -> Load:
    """All of a buffer of one dimension."""
    return Load(buffer.name, (Ramp(const(0), buffer.shape[0]),), buffer.dtype)


FULL, EMPTY = Buffer("full", (2,), DType.I64, Scope.SHARED), Buffer("empty", (2,), DType.I64, Scope.SHARED)
"""Barriers of two stages: all has come; all have read it."""

PRODUCER, CONSUMERS, BOX_ROWS, BOX_COLUMNS = 128, 256, 64, 32
"""Threads of the roles of `fetched`, and its boxes of float32: rows of 128 bytes."""


def fetched(rows: int, columns: int, without: str = "", of_half: str = "") -> Kernel:
    """y = x with zeros behind its rows and columns, up to whole boxes: one thread has them fetched, others write them.

    `without` names a step to leave out, `of_half` one that only the first half of the consumers do.
    """
    rounds, panels = -(-rows // BOX_ROWS), -(-columns // BOX_COLUMNS)
    x = Buffer("x", (rows, columns), F32)
    y = Buffer("y", (rounds * BOX_ROWS, panels * BOX_COLUMNS), F32)
    tile = Buffer("tile", (2, BOX_ROWS, BOX_COLUMNS), F32, Scope.SHARED, fetch_swizzle(F32))
    phase = Buffer("phase", (1,), DType.I32, Scope.REGISTER)
    step, thread, reader = Var("k"), Var("t"), Var("t") - PRODUCER
    stage, panel = step % 2, Var("b") * BOX_COLUMNS

    def steps(*named: tuple[str, Stmt]) -> Stmt:
        present = ((name, stmt) for name, stmt in named if name != without)
        half = op("lt", reader, CONSUMERS // 2)
        return Block(tuple(If(half, stmt) if name == of_half else stmt for name, stmt in present))

    def barrier(buffer: Buffer, number: Expr) -> Load:
        return Load(buffer.name, (number,), DType.I64)

    def wait(buffer: Buffer, number: Expr) -> Stmt:
        own = Load("phase", (const(0),), DType.I32)
        last_bit = Store("phase", own.index, op("cast", number % 2, dtype=DType.I32))
        return block(last_bit, Do("mbarrier.wait", (), (barrier(buffer, stage), own)))

    view = TensorMap("x", F32, x.shape, x.strides, (BOX_ROWS, BOX_COLUMNS))
    box_bytes = BOX_ROWS * BOX_COLUMNS * F32.size_bytes
    target = Load("tile", (stage, const(0), const(0)), F32)
    producer = steps(
        ("wait empty", wait(EMPTY, step // 2 + 1)),
        ("expect", Do(f"mbarrier.expect.{box_bytes}", (), (barrier(FULL, stage),))),
        ("fetch", Fetch(view, (step * BOX_ROWS, panel), target, barrier(FULL, stage))),
    )
    row, column = Var("n") * (CONSUMERS // 32) + reader // 32, reader % 32
    copied = Store("y", (step * BOX_ROWS + row, panel + column), Load("tile", (stage, row, column), F32))
    arrive = If(op("eq", thread % 32, 0), Do("mbarrier.arrive", (), (barrier(EMPTY, stage),)))
    consumers = steps(
        ("wait full", wait(FULL, step // 2)),
        ("copy", For("n", BOX_ROWS // (CONSUMERS // 32), copied, LoopKind.UNROLL)),
        ("sync", Do("warp.sync", (), ())),
        ("arrive", arrive),
    )
    begin = steps(
        ("init full", Do("mbarrier.init.1", (barrier(FULL, Var("s")),), ())),
        ("init empty", Do(f"mbarrier.init.{4 if of_half == 'arrive' else 8}", (barrier(EMPTY, Var("s")),), ())),
    )
    roles = Roles(
        (
            ThreadRole(PRODUCER, 24, If(op("eq", thread, 0), Alloc(phase, For("k", rounds, producer)))),
            ThreadRole(CONSUMERS, 240, Alloc(phase, For("k", rounds, consumers))),
        )
    )
    body: Stmt = block(If(op("eq", thread, 0), For("s", 2, begin, LoopKind.UNROLL)), Barrier(), roles)
    body = For("t", PRODUCER + CONSUMERS, body, LoopKind.THREAD)
    for buffer in (FULL, EMPTY, tile):
        body = Alloc(buffer, body)
    return Kernel((x, y), (), block(For("b", panels, body, LoopKind.BLOCK)))


TILE = Buffer("tile", (BOX_ROWS, BOX_COLUMNS), F32, Scope.SHARED, fetch_swizzle(F32))
"""Where a box lies."""


def one_box(view: TensorMap, place: tuple[Expr, ...], size: int, tile: Buffer = TILE) -> Kernel:
    """y = a box of `size` elements, which one thread has fetched and its warp waits for."""
    thread, full, phase = Var("t"), Load("full", (const(0),), DType.I64), Load("phase", (const(0),), DType.I32)
    begin = block(
        Do("mbarrier.init.1", (full,), ()),
        Do("mbarrier.expect.8192", (), (full,)),
        Fetch(view, place, Load(tile.name, (const(0),) * len(tile.shape), tile.dtype), full),
    )
    copied = Store("y", (Var("n"), thread), Load(tile.name, (Var("n"), thread), tile.dtype))
    body: Stmt = block(
        If(op("eq", thread, 0), begin),
        Barrier(),
        Store("phase", phase.index, const(0, DType.I32)),
        Do("mbarrier.wait", (), (full, phase)),
        Barrier(),
        For("n", BOX_ROWS, copied),
    )
    body = For("t", 32, Alloc(Buffer("phase", (1,), DType.I32, Scope.REGISTER), body), LoopKind.THREAD)
    for buffer in (FULL, tile):
        body = Alloc(buffer, body)
    x, y = Buffer("x", (size,), view.dtype), Buffer("y", (BOX_ROWS, 32), tile.dtype)
    return Kernel((x, y), (), block(For("b", 1, body, LoopKind.BLOCK)))
