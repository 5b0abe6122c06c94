"""The rules that kernels of GPUs keep beside those of all kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Ramp, Var, const, op
from tunewright.codegen.ir.ir import (
    Alloc,
    Barrier,
    Buffer,
    Do,
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
)
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.codegen.verify import verify
from tunewright.codegen.verify_context import VerifyError

from .kernels import F32, TILE, added, block, fetched, lowest_halves, multiplied, one_box, turned

Y = Buffer("y", (64,), F32)
R = Buffer("r", (1,), F32, Scope.REGISTER)
HERE = Load("r", (const(0),), F32)


def of_threads(body: Stmt, threads: int = 64, buffer: Buffer = R) -> Kernel:
    inside = For("t", threads, Alloc(buffer, body), LoopKind.THREAD)
    return Kernel((Y,), (), block(For("b", 1, inside, LoopKind.BLOCK)))


@pytest.mark.parametrize(
    "kernel",
    [added(65), turned(33, 7), multiplied(32, 8, 32), fetched(33, 12)],
    ids=["added", "turned", "product", "fetched"],
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


def test_words_are_of_what_is_given():
    kernel = lowest_halves(64)
    verify(kernel)
    x, z = kernel.params
    stored = Store("x", (Var("t"),), const(0, DType.U8))
    grid = For("b", 1, For("t", 64, stored, LoopKind.THREAD), LoopKind.BLOCK)
    for wrong in (replace(kernel, params=(z,), scratch=(x,)), replace(kernel, body=block(*kernel.body.body, grid))):
        with pytest.raises(VerifyError, match="those of a GPU are of what is given"):
            verify(wrong)


def test_a_condition_that_looks_at_memory_keeps_threads_apart():
    flags = Buffer("flags", (1,), DType.BOOL)
    body = If(Load("flags", (const(0),), DType.BOOL), Barrier())
    loop = For("b", 1, For("t", 64, body, LoopKind.THREAD), LoopKind.BLOCK)
    with pytest.raises(VerifyError, match="not all threads"):
        verify(Kernel((flags,), (), block(loop)))


def of_roles(*roles: ThreadRole, threads: int = 384) -> Kernel:
    return of_threads(Roles(roles), threads)


NOTHING = block()
WRONG_ROLES = {
    "more threads than there are": (of_roles(ThreadRole(256, 0, NOTHING), ThreadRole(256, 0, NOTHING)), "of 384"),
    "threads that have no role": (of_roles(ThreadRole(128, 0, NOTHING)), "of 384"),
    "no whole warps": (of_roles(ThreadRole(368, 0, NOTHING), ThreadRole(16, 0, NOTHING)), "in whole warps"),
    "a barrier": (of_roles(ThreadRole(384, 0, Barrier())), "not all threads of a block come here"),
    "roles in a role": (
        of_roles(ThreadRole(384, 0, Roles((ThreadRole(384, 0, NOTHING),)))),
        "share out the threads of one loop",
    ),
    "roles of some threads": (
        of_threads(If(op("lt", Var("t"), 32), Roles((ThreadRole(64, 0, NOTHING),)))),
        "share out the threads of one loop",
    ),
    "an odd number of registers": (of_roles(ThreadRole(384, 100, NOTHING)), "a multiple of 8, at most 256"),
    "registers that no thread has": (
        of_roles(ThreadRole(128, 264, NOTHING), threads=128),
        "a multiple of 8, at most 256",
    ),
    "registers of a warp": (
        of_roles(ThreadRole(352, 0, NOTHING), ThreadRole(32, 24, NOTHING)),
        "only warpgroups change theirs",
    ),
    "registers that there are not": (
        of_roles(ThreadRole(256, 248, NOTHING), ThreadRole(128, 24, NOTHING)),
        "there are not so many",
    ),
    "an instruction of more threads than it has": (
        of_roles(ThreadRole(32, 0, Do("wgmma.fence", (), ())), ThreadRole(352, 0, NOTHING)),
        "not all 128 threads",
    ),
    "an instruction of threads that are not together": (
        of_roles(
            ThreadRole(64, 0, NOTHING), ThreadRole(128, 0, Do("wgmma.fence", (), ())), ThreadRole(192, 0, NOTHING)
        ),
        "not all 128 threads",
    ),
    "what another role's threads would touch": (
        of_roles(ThreadRole(128, 0, Store("y", (Var("t"),), const(0.0))), ThreadRole(256, 0, NOTHING)),
        "is in 0 .. 127, the limit 63",
    ),
}


@pytest.mark.parametrize("name", WRONG_ROLES)
def test_wrong_roles_are_refused(name):
    kernel, why = WRONG_ROLES[name]
    with pytest.raises(VerifyError, match=why):
        verify(kernel)


def test_a_role_knows_which_threads_it_has():
    first, second = (Store("y", (at,), const(0.0)) for at in (Var("t"), Var("t") - 64))
    verify(of_roles(ThreadRole(64, 0, first), ThreadRole(64, 0, second), threads=128))
    with pytest.raises(VerifyError, match=r"role of threads 0 to 63: .* is in -64 .. -1"):
        verify(of_roles(ThreadRole(64, 0, second), ThreadRole(64, 0, first), threads=128))


SEEN = TensorMap("x", F32, (100, 64), (64, 1), (64, 32))
ORIGIN = const(0), const(0)
SIZE = 6400

WRONG_BOXES = {
    "rows that begin unevenly": (
        one_box(replace(SEEN, extents=(100, 63), strides=(63, 1)), ORIGIN, SIZE),
        "begin on multiples of 16 bytes",
    ),
    "no neighbours": (
        one_box(replace(SEEN, extents=(100, 32), strides=(64, 2)), ORIGIN, SIZE),
        "begin on multiples of 16 bytes",
    ),
    "a tensor that ends behind its buffer": (one_box(SEEN, ORIGIN, SIZE - 1), "rows of x"),
    "rows of another size": (
        one_box(replace(SEEN, box=(64, 16)), ORIGIN, SIZE, replace(TILE, shape=(64, 16))),
        "rows of 128 bytes",
    ),
    "rows that the target has not": (
        one_box(SEEN, ORIGIN, SIZE, replace(TILE, shape=(64, 64))),
        "rows of 128 bytes",
    ),
    "too many rows": (one_box(replace(SEEN, box=(264, 32)), ORIGIN, SIZE), "at most 256 places a dimension"),
    "more rows than the target has": (one_box(replace(SEEN, box=(72, 32)), ORIGIN, SIZE), "does not fit into tile"),
    "one dimension": (
        one_box(TensorMap("x", F32, (SIZE,), (1,), (32,)), ORIGIN[:1], SIZE),
        "it has 2 to 5 dimensions",
    ),
    "a place of another rank": (one_box(SEEN, ORIGIN[:1], SIZE), "it has 2 to 5 dimensions"),
    "a target that is not swizzled": (
        one_box(SEEN, ORIGIN, SIZE, replace(TILE, swizzle=None)),
        "not exchanged as the engine does",
    ),
    "a target that is swizzled otherwise": (
        one_box(SEEN, ORIGIN, SIZE, replace(TILE, swizzle=Swizzle(3, 3, 3))),
        "not exchanged as the engine does",
    ),
    "a target of another type": (
        one_box(SEEN, ORIGIN, SIZE, replace(TILE, dtype=DType.I32)),
        "of x: float32.* into tile: int32",
    ),
    "no such tensor": (one_box(replace(SEEN, tensor="z"), ORIGIN, SIZE), "of None into tile"),
    "a tensor in shared memory": (one_box(replace(SEEN, tensor="tile"), ORIGIN, SIZE), "shared.* into tile"),
}


@pytest.mark.parametrize("name", WRONG_BOXES)
def test_wrong_boxes_are_refused(name):
    kernel, why = WRONG_BOXES[name]
    with pytest.raises(VerifyError, match=why):
        verify(kernel)


def test_a_right_box_passes():
    verify(one_box(SEEN, ORIGIN, SIZE))
    verify(one_box(SEEN, (const(-5), const(80)), SIZE))  # beyond the edges there are zeros
