"""Instructions on the matrix registers of processors, Intel's AMX: what each is, as loops of the IR.

A register has rows of words. The machine is told beforehand how many of each; here they are the last two dimensions of
the buffer. Source: "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18, and volume 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import prod
from typing import NamedTuple

from ..expr.dtype import DType
from ..expr.expr import Expr, Load, Var, const, op, substitute, variables
from ..expr.index import form
from ..expr.lanes import vectorize
from .ir import Buffer, Do, For, Scope, Stmt, Store

MOST_ROWS, MOST_WORDS, REGISTERS = 16, 16, 8
"""Rows of a matrix register, words of a row, and matrix registers of a thread."""

ROW, COLUMN = ".row", ".column"
"""Variables of what an instruction on matrix registers reads and writes."""

DEPTH = ".depth"
"""The variable along which a product adds up."""


class MatrixInstruction(NamedTuple):
    """An instruction: its name in the manual, how many operands it has, and what it does with them."""

    name: str
    outs: int
    ins: int
    expand: Callable[[Do, Mapping[str, Buffer]], Stmt]


def _row(buffer: Buffer, to: Load, value: Expr) -> Store:
    """A store of a whole row of a register, or of as many words in memory."""
    whole, *index = (vectorize(e, COLUMN, const(0), buffer.shape[-1]) for e in (value, *to.index))
    return Store(to.tensor, tuple(index), whole)


def _zero(stmt: Do, buffers: Mapping[str, Buffer]) -> Stmt:
    [total] = stmt.outs
    buffer = buffers[total.tensor]
    return For(ROW, buffer.shape[-2], _row(buffer, total, const(0, total.dtype)))


def _move(register: Load, stmt: Do, buffers: Mapping[str, Buffer]) -> Stmt:
    [to], [source] = stmt.outs, stmt.ins
    buffer = buffers[register.tensor]
    return For(ROW, buffer.shape[-2], _row(buffer, to, source))


def _dot(name: str, stmt: Do, buffers: Mapping[str, Buffer]) -> Stmt:
    [total], [left, right] = stmt.outs, stmt.ins
    deep = Var(DEPTH)
    value = op(name, _at(left, {COLUMN: deep}), _at(right, {ROW: deep}), total)
    buffer, depth = buffers[total.tensor], buffers[left.tensor].shape[-1]
    return For(ROW, buffer.shape[-2], For(DEPTH, depth, _row(buffer, total, value)))


def _at(operand: Load, values: Mapping[str, Expr]) -> Load:
    return Load(operand.tensor, tuple(substitute(e, values) for e in operand.index), DType.I32)


MATRIX_INSTRUCTIONS: Mapping[str, MatrixInstruction] = {
    "matrix.zero": MatrixInstruction("TILEZERO", 1, 0, _zero),
    "matrix.load": MatrixInstruction("TILELOADD", 1, 1, lambda stmt, buffers: _move(stmt.outs[0], stmt, buffers)),
    "matrix.store": MatrixInstruction("TILESTORED", 1, 1, lambda stmt, buffers: _move(stmt.ins[0], stmt, buffers)),
    "matrix.dot4": MatrixInstruction("TDPBUSD", 1, 2, partial(_dot, "dot4")),
    "matrix.dot2_bf16": MatrixInstruction("TDPBF16PS", 1, 2, partial(_dot, "dot2_bf16")),
}
"""By their names in `Do`. A dot adds to its result what the op of its name does of words: see `expr.semantics`. That of
floats adds even ones and odd ones apart, where the op adds one after the other."""

SUM_TYPES = {"matrix.dot4": DType.I32, "matrix.dot2_bf16": DType.F32}
"""Types of the sums of dots, whose operands are words."""


def is_matrix(operand: Load) -> bool:
    """Whether rows lie at equal distances in memory, and neighbours along COLUMN side by side."""
    forms = [form(e) for e in operand.index]
    steps = [total.terms.get(Var(COLUMN), 0) for total in forms]
    others = {name for total in forms for atom in total.terms if not isinstance(atom, Var) for name in variables(atom)}
    return steps == [*[0] * (len(steps) - 1), 1] and not others & {ROW, COLUMN}


def pitch(operand: Load, buffer: Buffer) -> int:
    """Elements from a row to the next in memory."""
    steps = zip(operand.index, buffer.strides, strict=True)
    return sum(stride * form(e).terms.get(Var(ROW), 0) for e, stride in steps)


def expand(stmt: Do, buffers: Mapping[str, Buffer]) -> Stmt:
    """An instruction as loops that do the same."""
    return MATRIX_INSTRUCTIONS[stmt.name].expand(stmt, buffers)


def register_fault(added: Buffer, buffers: Iterable[Buffer]) -> str:
    """Why no machine has these registers beside those of the other buffers; "" if one may."""
    rows, words = added.shape[-2:] if len(added.shape) > 1 else (0, 0)
    if added.dtype not in SUM_TYPES.values() or rows > MOST_ROWS or words > MOST_WORDS or not rows:
        return f"a register has up to {MOST_ROWS} rows of {MOST_WORDS} words"
    used = sum(prod(buffer.shape[:-2]) for buffer in (*buffers, added) if buffer.scope is Scope.MATRIX)
    return f"{used} registers, of {REGISTERS}" if used > REGISTERS else ""


def fault(stmt: Do, buffers: Mapping[str, Buffer]) -> str:
    """Why no machine has an instruction with these operands, so far as its loops don't show it; "" if one has."""
    instruction = MATRIX_INSTRUCTIONS[stmt.name]
    if (len(stmt.outs), len(stmt.ins)) != (instruction.outs, instruction.ins):
        return f"{len(stmt.outs)} results of {len(stmt.ins)} operands"
    operands = (*stmt.outs, *stmt.ins)
    if unknown := [operand.tensor for operand in operands if operand.tensor not in buffers]:
        return f"there is no buffer {unknown[0]}"
    registers = [operand for operand in operands if buffers[operand.tensor].scope is Scope.MATRIX]
    memory = [operand for operand in operands if operand not in registers]
    if len(registers) != (1 if stmt.name in ("matrix.load", "matrix.store") else len(operands)):
        return "loads and stores have one operand in memory, others none"
    for register in registers:
        if register.index[-2:] != (Var(ROW), Var(COLUMN)):
            return f"{register} is no whole register"
    for operand in memory:
        if buffers[operand.tensor].dtype is not buffers[registers[0].tensor].dtype:
            return f"{operand} is not of the words of a register"
        if not is_matrix(operand):
            return f"{operand} is no matrix with rows of neighbours"
    if stmt.name in SUM_TYPES:
        sums, *words = (buffers[operand.tensor].dtype for operand in operands)
        if sums is not SUM_TYPES[stmt.name] or words != [DType.I32, DType.I32]:
            return f"sums of {words[0]} by {words[1]} are not {sums}"
        total, left, right = (buffers[operand.tensor].shape[-2:] for operand in operands)
        if (left[0], right[1]) != total or left[1] != right[0]:
            return f"{list(left)} by {list(right)} is not {list(total)}"
    return ""
