"""Instructions on matrix registers: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const
from tunewright.codegen.ir import interp
from tunewright.codegen.ir.ir import (
    Alloc,
    Block,
    Buffer,
    Do,
    For,
    Kernel,
    LoopKind,
    Scope,
    Stmt,
    Store,
    words_of,
)
from tunewright.codegen.ir.matrix import COLUMN, ROW
from tunewright.codegen.llvm.emit import emit
from tunewright.codegen.verify import verify
from tunewright.codegen.verify_context import VerifyError

from ..search_space.oracle import MATRICES

I32 = DType.I32
ROWS, COLUMNS, WORDS = 3, 5, 2
LEFT, RIGHT = Buffer("x", (2, ROWS, 4 * WORDS), DType.U8), Buffer("w", (WORDS, 4 * COLUMNS), DType.I8)
OUT = Buffer("y", (2, ROWS, COLUMNS), I32)
row, column = Var(ROW), Var(COLUMN)


def register(name: str, *number: Expr) -> Load:
    return Load(name, (*number, row, column), I32)


A, B, C = register("a"), register("b"), register("c")


def multiply(place: Expr, *more: Stmt, out: Load | None = None, c: Load = C) -> tuple[Stmt, ...]:
    """y = x w, of one of two matrices."""
    return (
        Do("matrix.zero", (c,), ()),
        Do("matrix.load", (A,), (Load("x.words", (place, row, column), I32),)),
        Do("matrix.load", (B,), (Load("w.words", (row, column), I32),)),
        Do("matrix.dot4", (c,), (A, B)),
        *more,
        Do("matrix.store", (out or Load("y", (place, row, column), I32),), (c,)),
    )


def kernel(*body: Stmt, **shapes: tuple[int, ...]) -> Kernel:
    inside: Stmt = Block(body)
    for name, shape in ({"a": (ROWS, WORDS), "b": (WORDS, COLUMNS), "c": (ROWS, COLUMNS)} | shapes).items():
        inside = Alloc(Buffer(name, shape, I32, Scope.MATRIX), inside)
    phase = For("i", 2, inside, LoopKind.PARALLEL)
    return Kernel((LEFT, RIGHT, OUT), (), Block((phase,)), words=(words_of(LEFT), words_of(RIGHT)))


def test_they_multiply_unsigned_by_signed_bytes() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, LEFT.shape, np.uint8), rng.integers(-128, 128, RIGHT.shape, np.int8)
    y = np.zeros(OUT.shape, np.int32)
    plain = kernel(*multiply(Var("i")))
    verify(plain)
    interp.run(plain, [x, w, y])
    weights = w.reshape(WORDS, COLUMNS, 4).transpose(0, 2, 1).reshape(4 * WORDS, COLUMNS).astype(np.int32)
    np.testing.assert_array_equal(y, x.astype(np.int32) @ weights)


def refused(built: Kernel, word: str) -> None:
    with pytest.raises(VerifyError, match=word):
        verify(built)


OTHER = Load("y", (Var("i"), row, column * 2), I32)


@pytest.mark.parametrize(
    ("built", "word"),
    [
        (kernel(*multiply(Var("i") + 1)), "limit 1"),
        (kernel(*multiply(Var("i")), c=(4, COLUMNS)), r"is not \[4, 5\]"),
        (kernel(*multiply(Var("i")), c=(17, COLUMNS)), "up to 16 rows"),
        (kernel(*multiply(Var("i")), c=(ROWS, 17)), "of 16 words"),
        (kernel(*multiply(Var("i")), c=(ROWS,)), "up to 16 rows"),
        (kernel(*multiply(Var("i"), c=register("c", const(0))), c=(7, ROWS, COLUMNS)), "9 registers, of 8"),
        (kernel(*multiply(Var("i"), c=register("c", Var("i"))), c=(2, ROWS, COLUMNS)), "loop is not unrolled"),
        (kernel(*multiply(Var("i"), c=register("d"))), "no buffer d"),
        (kernel(*multiply(Var("i"), out=OTHER)), "no matrix with rows of neighbours"),
        (kernel(*multiply(Var("i"), out=C)), "one operand in memory"),
        (
            kernel(Do("matrix.load", (A,), (Load("x", (Var("i"), row, column), DType.U8),))),
            "not of the words of a register",
        ),
        (kernel(*multiply(Var("i"), Do("matrix.dot2_bf16", (C,), (A, B)))), "sums of int32 by int32 are not int32"),
        (kernel(*multiply(Var("i"), Do("matrix.dot4", (C,), (A,)))), "1 results of 1 operands"),
        (kernel(*multiply(Var("i"), Do("matrix.zero", (Load("c", (column, row), I32),), ()))), "no whole register"),
        (kernel(*multiply(Var("i"), Store("c", (const(0), const(0)), const(1, I32)))), "only instructions"),
    ],
)
def test_what_no_machine_does_is_refused(built: Kernel, word: str) -> None:
    refused(built, word)


def test_the_processor_is_told_the_shapes(golden: Any) -> None:
    golden("matrix_amx.ll", str(emit(kernel(*multiply(Var("i"))), MATRICES, "k")))
