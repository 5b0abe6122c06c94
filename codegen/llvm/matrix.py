"""Instructions on matrix registers as LLVM's intrinsics, whose operands are numbers of registers: see `ir.matrix`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..expr.expr import Load, const, substitute
from ..ir.ir import Alloc, Do, Scope, Stmt, statements
from ..ir.matrix import COLUMN, REGISTERS, ROW
from .function import FunctionBuilder

INTRINSICS = {
    "matrix.zero": "tilezero",
    "matrix.load": "tileloadd64",
    "matrix.store": "tilestored64",
    "matrix.dot4": "tdpbusd",
    "matrix.dot2_bf16": "tdpbf16ps",
}
"""The intrinsic of each instruction, behind "llvm.x86."."""

PALETTE = 1
"""The number of the only layout of registers there is: eight of 1 KiB."""


class MatrixRegisters:
    """The numbers of the matrix registers of a function, and their shapes, which the processor is told at its begin."""

    def __init__(self, body: Stmt) -> None:
        """Raises ValueError where there are too few."""
        self._buffers = {
            part.buffer.name: part.buffer
            for part in statements(body)
            if isinstance(part, Alloc) and part.buffer.scope is Scope.MATRIX
        }
        self._first: dict[str, int] = {}
        used = 0
        for buffer in self._buffers.values():
            self._first[buffer.name] = used
            used += prod(buffer.shape[:-2])
        if used > REGISTERS:
            raise ValueError(f"{used} matrix registers, of {REGISTERS}")

    def number(self, name: str, index: Sequence[int]) -> int:
        """The number of one of a buffer's registers."""
        outer = self._buffers[name].shape[:-2]
        return self._first[name] + (int(np.ravel_multi_index(tuple(index), outer)) if outer else 0)

    def configure(self, builder: FunctionBuilder) -> list[str]:
        """The lines at the begin of a function, where there are any registers: see LDTILECFG in the manual."""
        if not self._buffers:
            return []
        pointer = builder.alloca(64, "i8")
        setup = np.zeros(64, np.uint8)
        setup[0] = PALETTE
        for name, buffer in self._buffers.items():
            rows, words = buffer.shape[-2:]
            for number in range(self._first[name], self._first[name] + prod(buffer.shape[:-2])):
                setup[16 + 2 * number] = 4 * words  # bytes of a row
                setup[48 + number] = rows
        values = ", ".join(f"i64 {value}" for value in setup.view("<u8"))
        return [
            f"  store <8 x i64> <{values}>, ptr {pointer}, align 64",
            f"  call void @llvm.x86.ldtilecfg(ptr {pointer})",
        ]

    def release(self) -> list[str]:
        """The line before a return: a thread whose registers are in use is switched more slowly."""
        return ["  call void @llvm.x86.tilerelease()"] if self._buffers else []


def call(stmt: Do, registers: Sequence[int], address: str = "", pitch_bytes: int = 0) -> str:
    """The line of an instruction on some registers, results first; with what it loads or stores."""
    operands = [f"i8 {number}" for number in registers]
    if address:
        operands += [f"ptr {address}", f"i64 {pitch_bytes}"]
    return f"  call void @llvm.x86.{INTRINSICS[stmt.name]}({', '.join(operands)})"


def first_element(operand: Load) -> Load:
    """The element of a matrix in memory that its first row begins with."""
    begin = {ROW: const(0), COLUMN: const(0)}
    return Load(operand.tensor, tuple(substitute(e, begin) for e in operand.index), operand.dtype)
