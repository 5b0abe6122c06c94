"""From the loop IR to a run: kernels that `build` compiled, chained in a program over planned memory."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Load, Var, op
from tunewright.codegen.host import detect
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, LoopKind, Store
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.memory import aligned_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.plan import Access, ArenaProblem, plan
from tunewright.codegen.runtime.pool import ThreadPool

from .arena_proof import check

SIZE = 101


def reverse() -> Kernel:
    """y[i] = x[n - 1 - i] / 4 + i in two phases, so each thread reads what others wrote to scratch."""
    x, y, s = (Buffer(name, (SIZE,), DType.F32) for name in "xys")
    i = Var("i")
    first = Store("s", (i,), Load("x", (i,), DType.F32) * Const(0.25, DType.F32))
    second = Store("y", (i,), Load("s", (SIZE - 1 - i,), DType.F32) + op("cast", i, dtype=DType.F32))
    phases = tuple(For("i", SIZE, store, LoopKind.PARALLEL) for store in (first, second))
    return Kernel((x, y), (s,), Block(phases))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_built_kernels_run_in_a_planned_arena(threads):
    artifact = build(reverse(), detect(threads))
    size_bytes = SIZE * 4
    steps = tuple(Access((f"t{n}",), (f"t{n + 1}",), (size_bytes,)) for n in range(4))
    memory = ArenaProblem(steps, {f"t{n}": size_bytes for n in range(5)}, {"t0", "t4"}, {})
    planned = plan(memory)
    check(memory, planned)
    arena = aligned_empty((planned.size_bytes,), DType.U8)

    def place(name):
        return name if name in memory.pinned else arena.ctypes.data + planned.offsets[name]

    calls = [
        (artifact, [place(step.reads[0]), place(step.writes[0]), *(arena.ctypes.data + at for at in scratch)])
        for step, scratch in zip(steps, planned.scratch, strict=True)
    ]
    x, y = aligned_empty((SIZE,), DType.F32), aligned_empty((SIZE,), DType.F32)
    with ThreadPool(threads) as pool, Program(calls, pool) as program:
        for start in range(20):
            expected: np.ndarray = np.linspace(-start, 50, SIZE, dtype=np.float32)
            x[:] = expected
            program.run({"t0": x, "t4": y})
            for _ in steps:
                expected = expected[::-1] / 4 + np.arange(SIZE, dtype=np.float32)
            assert (y == expected).all()
