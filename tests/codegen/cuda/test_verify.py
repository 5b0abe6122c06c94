"""The rules that kernels of GPUs keep beside those of all kernels."""

from __future__ import annotations

import pytest

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Ramp, Var, const, op
from tunewright.codegen.ir import Alloc, Barrier, Buffer, Do, For, If, Kernel, LoopKind, Scope, Stmt, Store
from tunewright.codegen.verify import VerifyError, verify

from .kernels import F32, added, block, multiplied, turned

Y = Buffer("y", (64,), F32)
R = Buffer("r", (1,), F32, Scope.REGISTER)
HERE = Load("r", (const(0),), F32)


def of_threads(body: Stmt, threads: int = 64, buffer: Buffer = R) -> Kernel:
    inside = For("t", threads, Alloc(buffer, body), LoopKind.THREAD)
    return Kernel((Y,), (), block(For("b", 1, inside, LoopKind.BLOCK)))


@pytest.mark.parametrize(
    "kernel", [added(65), turned(33, 7), multiplied(32, 8, 32)], ids=["added", "turned", "product"]
)
def test_what_is_right_passes(kernel):
    verify(kernel)


def half(begin: int) -> Load:
    """32 of 64 registers."""
    return Load("r", (Ramp(const(begin), 32),), F32)


SHUFFLE = Do("shfl.xor.1", (HERE,), (HERE,))
WRONG = {
    "a barrier that not all come to": (of_threads(If(op("lt", Var("t"), 3), Barrier())), "not all threads"),
    "an instruction that not all lanes come to": (
        of_threads(If(op("lt", Var("t"), 3), SHUFFLE)),
        "not all 32 threads",
    ),
    "a warp that is not whole": (of_threads(SHUFFLE, threads=33), "not all 32 threads"),
    "an instruction that there isn't": (of_threads(Do("mul.wide", (HERE,), (HERE,))), "no such instruction"),
    "too few operands": (of_threads(Do("shfl.xor.1", (HERE,), ())), "1 results of 0 operands"),
    "an operand elsewhere": (
        of_threads(Do("shfl.xor.1", (HERE,), (Load("y", (Var("t"),), F32),))),
        "4 bytes of any type in register is wanted",
    ),
    "an operand of another size": (
        of_threads(
            Do("shfl.xor.1", (Load("r", (Ramp(const(0), 2),), F32),), (HERE,)),
            buffer=Buffer("r", (2,), F32, Scope.REGISTER),
        ),
        "4 bytes of any type in register is wanted",
    ),
    "what is added to is not the result": (
        of_threads(Do("hold.f32.32", (half(0),), (half(32),)), buffer=Buffer("r", (64,), F32, Scope.REGISTER)),
        "is not what is added to",
    ),
    "too many threads": (of_threads(Store("r", (const(0),), const(0.0)), threads=1025), "a block has 1024 at most"),
    "a thread's own shared memory": (
        of_threads(block(), buffer=Buffer("r", (1,), F32, Scope.SHARED)),
        "registers alone",
    ),
    "a loop of threads in one": (of_threads(For("u", 2, block(), LoopKind.THREAD)), "right inside block loops"),
    "no threads": (
        Kernel((Y,), (), block(For("b", 64, Store("y", (Var("b"),), const(0.0)), LoopKind.BLOCK))),
        "only shared memory may be",
    ),
    "a barrier without threads": (Kernel((), (), block(Barrier())), "not all threads"),
    "an instruction on a processor": (
        Kernel((), (), block(Alloc(R, SHUFFLE))),
        "instructions are for threads of a GPU",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name):
    kernel, why = WRONG[name]
    with pytest.raises(VerifyError, match=why):
        verify(kernel)


def test_a_condition_that_looks_at_memory_keeps_threads_apart():
    flags = Buffer("flags", (1,), DType.BOOL)
    body = If(Load("flags", (const(0),), DType.BOOL), Barrier())
    loop = For("b", 1, For("t", 64, body, LoopKind.THREAD), LoopKind.BLOCK)
    with pytest.raises(VerifyError, match="not all threads"):
        verify(Kernel((flags,), (), block(loop)))
