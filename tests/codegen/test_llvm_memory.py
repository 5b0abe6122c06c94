from __future__ import annotations

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir.ir import Buffer, Scope
from tunewright.codegen.llvm.function import LOCAL, SsaValue
from tunewright.codegen.llvm.memory import BufferPointer, MemoryRange, MemoryState

REGISTERS = BufferPointer.of(Buffer("acc", (4, 8), DType.F32, Scope.REGISTER), "%m1")
X, Y = (BufferPointer.of(Buffer(name, (64,), DType.F32))._replace(base=f"%{name}") for name in "xy")


def place(memory: BufferPointer, offset: int, lanes: int = 8, used: int | None = None) -> MemoryRange:
    return MemoryRange(memory.base, offset, lanes, lanes if used is None else used)


def value(text: str, lanes: int = 8) -> SsaValue:
    return SsaValue(text, DType.F32, lanes, LOCAL)


def test_a_store_to_a_global_buffer_may_change_any_other() -> None:
    known = MemoryState()
    known.read(X, place(X, 0), value("%a"))
    assert known.get(X, place(X, 0)) == value("%a")
    assert known.get(X, place(X, 0, used=3)) is None
    known.write(Y, place(Y, 0), value("%b"))
    assert known.get(X, place(X, 0)) is None
    assert known.get(Y, place(Y, 0)) == value("%b")


def test_slots_of_registers_change_alone() -> None:
    known = MemoryState()
    for slot in range(4):
        known.write(REGISTERS, place(REGISTERS, 32 * slot), value(f"%{slot}"))
    known.write(REGISTERS, place(REGISTERS, 32), value("%new"))
    assert known.get(REGISTERS, place(REGISTERS, 0)) == value("%0")
    assert known.get(REGISTERS, place(REGISTERS, 32)) == value("%new")
    known.write(X, place(X, 0), value("%x"))
    assert known.get(REGISTERS, place(REGISTERS, 0)) == value("%0")


def test_slots_that_overlap_forget_each_other() -> None:
    known = MemoryState()
    known.write(REGISTERS, place(REGISTERS, 0), value("%0"))
    known.write(REGISTERS, place(REGISTERS, 32), value("%1"))
    known.write(REGISTERS, place(REGISTERS, 36, 1), value("%one", 1))
    assert known.get(REGISTERS, place(REGISTERS, 0)) == value("%0")
    assert known.get(REGISTERS, place(REGISTERS, 32)) is None
    assert known.get(REGISTERS, place(REGISTERS, 36, 1)) == value("%one", 1)
