"""The steps of a program as pool.ll reads them: rows, and the arrays of pointers that they point to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..artifact import Artifact
from ..expr.dtype import DType
from ..ir.ir import Buffer
from .control import COPY_BYTES, ENDLESS, Control, ControlKind, Move
from .memory import address_of, aligned_block, room_bytes


@dataclass(frozen=True, slots=True)
class BindingSlice:
    """A part of the memory that a name is bound to, from an offset on."""

    name: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class MovingOperand:
    """Memory that moves with the loops around a step, the outermost first."""

    base: int | BindingSlice
    moves: tuple[Move, ...]


Operand = NDArray[np.generic] | int | str | BindingSlice | MovingOperand
"""Memory of one parameter: an array, an address that the caller keeps alive, or what each run binds to a name anew."""

Call = tuple[Artifact, Sequence[Operand]]

Address = tuple[int, int]
"""A number, and that of the cell whose address is added to it, -1 for none."""


class Cells:
    """The cells of the arrays of pointers that hold addresses in a name's memory; there may be thousands."""

    def __init__(self) -> None:
        self._cells: list[int] = []
        self._offsets_bytes: list[int] = []
        self._wholes: dict[tuple[DType, int], Buffer] = {}
        self._ends_bytes: dict[DType, int] = {}  # where the parts of a type end

    def add(self, cell: int, buffer: Buffer | None, offset_bytes: int | None) -> None:
        """Add a cell: for all of the memory (None), or for a part that begins at an offset."""
        self._cells.append(cell)
        self._offsets_bytes.append(offset_bytes or 0)
        if buffer is None:
            return
        if offset_bytes is None:
            self._wholes[buffer.dtype, buffer.size_bytes] = buffer
        else:
            end_bytes = offset_bytes + buffer.size_bytes
            self._ends_bytes[buffer.dtype] = max(self._ends_bytes.get(buffer.dtype, 0), end_bytes)

    def fill(self, arguments: NDArray[np.int64], memory: NDArray[np.generic] | int) -> None:
        """Write the addresses of all cells. Raises ValueError if an array is too small or of another type."""
        start = memory if isinstance(memory, int) else self._check(memory)
        if len(self._cells) == 1:
            arguments[self._cells[0]] = start + self._offsets_bytes[0]
        else:
            arguments[self._cells] = np.add(self._offsets_bytes, start)

    def cells(self) -> list[tuple[int, int]]:
        """The number of each cell, and the offset of what it points to."""
        return list(zip(self._cells, self._offsets_bytes, strict=True))

    def _check(self, array: NDArray[np.generic]) -> int:
        """The address of an array, which must hold all buffers and parts."""
        for buffer in self._wholes.values():
            _check(buffer, array)
        for dtype, end_bytes in self._ends_bytes.items():
            if array.dtype != dtype.numpy or array.nbytes < end_bytes:
                raise ValueError(f"{end_bytes} bytes of {dtype} can't be in {array.dtype}{list(array.shape)}")
        return _readable_at(array)


@dataclass(slots=True)
class _StepRow:
    """A row that pool.ll calls %Step; instead of iterations a jump has its target."""

    function: int
    arguments: int  # the number of the first cell
    iterations: int


@dataclass(slots=True)
class _OpenBlock:
    """A branch or loop whose end is to come: the jump that leads behind it, and the first row and cells of a loop."""

    jump: _StepRow
    begin: int = 0
    cells: int = 0


@dataclass(slots=True)
class Layout:
    """The rows and arrays of pointers of a program's steps.

    `arguments` are all arrays, one behind the other; `steps` has a row for each step; `firsts` the number of the first
    row of each call, with that of all behind the last; `names` the cells that each run fills; `stops` the reasons of
    stops, of which a run that comes to one leaves the number, from 1 on, in `stop_number`; `owned` is memory to be kept
    alive. `halt` is a word at which loops end where it is not zero.
    """

    arguments: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 3), np.int64))
    firsts: list[int] = field(default_factory=list)
    names: dict[str, Cells] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    stop_number: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    halt: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    owned: list[object] = field(default_factory=list)


class StepWriter:
    """Lays the steps of a program out. `functions` are those of `STEP_SYMBOLS`.

    Raises ValueError on operands that don't match and on blocks that don't nest.
    """

    def __init__(self, functions: Mapping[str, int]) -> None:
        self._functions = functions
        self._layout = Layout()
        self._cells: list[Address] = []
        self._rows: list[_StepRow] = []
        self._blocks: list[_OpenBlock] = []
        self._moves: dict[int, list[tuple[int, int, Move]]] = {}  # loop -> cell, cell of what it moves from, move
        self._loop_cells: list[tuple[int, int]] = []  # the first cells of steps of loops, and the number of the loop
        self._ends: list[_StepRow] = []  # jumps to the end
        self._zero = -1  # the cell of an address at which is a zero

    def lay_out(self, calls: Sequence[Call | Control[Operand]], addresses: Sequence[Mapping[str, int]]) -> Layout:
        """The layout. `addresses` has the functions of each artifact, in order."""
        scratch_at = self._scratch(calls)
        functions = iter(addresses)
        for call in calls:
            self._layout.firsts.append(len(self._rows))
            if isinstance(call, Control):
                self._control(call)
            else:
                self._call(*call, next(functions), scratch_at)
        if self._blocks:
            raise ValueError("a block has no end")
        self._layout.firsts.append(len(self._rows))
        for jump in self._ends:
            jump.iterations = len(self._rows)
        self._write()
        return self._layout

    def _scratch(self, calls: Sequence[Call | Control[Operand]]) -> int:
        """Address of a block with room for the scratch of any one call: calls don't overlap in time."""
        sizes = [
            sum(room_bytes(b.size_bytes) for b in call[0].scratch)
            for call in calls
            if not isinstance(call, Control) and len(call[1]) == len(call[0].params)
        ]
        block = aligned_block(max(sizes, default=0))
        self._layout.owned.append(block)
        return block.ctypes.data

    def _call(
        self, artifact: Artifact, operands: Sequence[Operand], functions: Mapping[str, int], scratch_at: int
    ) -> None:
        start = len(self._cells)
        buffers = [*artifact.params, *artifact.scratch]
        if len(operands) == len(artifact.params):
            sizes_bytes = (room_bytes(buffer.size_bytes) for buffer in artifact.scratch)
            operands = [*operands, *list(accumulate(sizes_bytes, initial=scratch_at))[:-1]]
        if len(operands) != len(buffers):
            raise ValueError(f"{len(operands)} operands for {len(artifact.params)} params")
        self._add_operands(operands, buffers, *artifact.numbers)
        for phase in artifact.phases:
            if phase.iterations > 0:
                self._rows.append(_StepRow(functions[phase.symbol], start, phase.iterations))

    def _add_operands(self, operands: Sequence[Operand | None], buffers: Sequence[Buffer | None], *numbers: int) -> int:
        """Add an array of pointers, null for None, with numbers behind them; gives its first cell."""
        start = len(self._cells)
        self._cells += [(0, -1)] * len(operands) + [(number, -1) for number in numbers]
        for cell, (operand, buffer) in enumerate(zip(operands, buffers, strict=True), start):
            if operand is not None:
                self._fill(cell, operand, buffer)
        return start

    def _fill(self, cell: int, operand: Operand, buffer: Buffer | None) -> None:
        match operand:
            case str():
                self._layout.names.setdefault(operand, Cells()).add(cell, buffer, None)
            case BindingSlice(name, offset_bytes):
                self._layout.names.setdefault(name, Cells()).add(cell, buffer, offset_bytes)
            case int():
                self._cells[cell] = operand, -1
            case MovingOperand(base, moves):
                self._move(cell, base, moves)
            case _:
                self._layout.owned.append(operand)
                self._cells[cell] = (_readable_at(operand) if buffer is None else _check(buffer, operand)), -1

    def _move(self, cell: int, base: int | BindingSlice, moves: Sequence[Move]) -> None:
        """Let a cell move: by each loop from a cell that the loop around it moves, the first from the base."""
        source = len(self._cells)
        self._cells += [(0, -1)] * len(moves)
        self._fill(source, base, None)
        for number, move in enumerate(moves):
            to = cell if number + 1 == len(moves) else source + number + 1
            self._moves.setdefault(move.loop, []).append((to, source + number, move))

    # Control flow

    def _control(self, control: Control[Operand]) -> None:
        match control.kind:
            case ControlKind.COPY:
                start = self._add_operands(control.operands, [None, None], control.size)
                if control.size:
                    self._rows.append(_StepRow(self._functions["tw_copy"], start, -(-control.size // COPY_BYTES)))
            case ControlKind.ROUTINE:
                start = self._add_operands(control.operands, [None] * len(control.operands), *control.numbers)
                self._rows.append(_StepRow(self._functions[control.note], start, control.size))
            case ControlKind.IF:
                self._blocks.append(_OpenBlock(self._jump(self._add_operands(control.operands, [None]))))
            case ControlKind.ELSE:
                behind = self._jump(self._zero_cell())
                self._end_block()
                self._blocks.append(_OpenBlock(behind))
            case ControlKind.END_IF:
                self._end_block()
            case ControlKind.STOP:
                self._stop(control.note)
            case ControlKind.LOOP:
                self._start_loop(control)
            case ControlKind.END_LOOP:
                self._end_loop(control)

    def _jump(self, cell: int) -> _StepRow:
        """Add a jump, whose target is not known yet: it is taken where the byte is 0 to which the cell points."""
        row = _StepRow(0, cell, 0)
        self._rows.append(row)
        return row

    def _end_block(self) -> _OpenBlock:
        if not self._blocks:
            raise ValueError("a block ends that did not begin")
        block = self._blocks.pop()
        block.jump.iterations = len(self._rows)
        return block

    def _zero_cell(self) -> int:
        if self._zero < 0:
            zero = np.zeros(1, np.int64)
            self._layout.owned.append(zero)
            self._zero = len(self._cells)
            self._cells.append((zero.ctypes.data, -1))
        return self._zero

    def _stop(self, reason: str) -> None:
        """Note the number of the reason, and jump to the end."""
        layout = self._layout
        layout.stops.append(reason)
        number = np.array([len(layout.stops)], np.int64)
        start = self._add_operands([layout.stop_number, number], [None, None], number.nbytes)
        self._rows.append(_StepRow(self._functions["tw_copy"], start, 1))
        self._ends.append(self._jump(self._zero_cell()))

    def _start_loop(self, control: Control[Operand]) -> None:
        words, trips, condition = control.operands
        if not isinstance(words, int):
            raise ValueError("the words of a loop have one address")
        self._loop_row("tw_loop_start", control.loop, (words, trips, condition), control.size)
        flags = len(self._cells)
        self._cells += [(words + 16, -1), (words + 24, -1)]
        jump = self._jump(flags)
        self._blocks.append(_OpenBlock(jump, len(self._rows), flags))

    def _loop_row(self, function: str, loop: int, operands: Sequence[Operand | None], most: int) -> None:
        """Add a step with the %Loop of control.ll."""
        start = self._add_operands(operands, [None] * 3, most, 0, 0, self._layout.halt.ctypes.data)
        self._loop_cells.append((start, loop))
        self._rows.append(_StepRow(self._functions[function], start, 1))

    def _end_loop(self, control: Control[Operand]) -> None:
        if not self._blocks or not self._blocks[-1].begin:
            raise ValueError("a loop ends that did not begin")
        block = self._blocks[-1]
        words, _ = self._cells[block.cells]
        (condition,) = control.operands
        self._loop_row("tw_loop_next", control.loop, (words - 16, None, condition), ENDLESS)
        self._jump(block.cells + 1).iterations = block.begin
        self._end_block()

    def _write(self) -> None:
        """Write cells and rows as arrays, now that all addresses are known."""
        layout = self._layout
        tables: dict[int, tuple[int, int]] = {}  # loop -> its moves' first cell, and how many there are
        for loop, moves in self._moves.items():
            tables[loop] = len(self._cells), len(moves)
            for to, source, move in moves:
                self._cells += [(0, to), (0, source), (move.phase, -1), (move.mask, -1), (move.stride_bytes, -1)]
        for start, loop in self._loop_cells:
            table, count = tables.get(loop, (-1, 0))
            self._cells[start + 4 : start + 6] = [(0, table), (count, -1)]
        layout.arguments = np.array([value for value, _ in self._cells], np.int64)
        at = layout.arguments.ctypes.data
        for cell, (value, base) in enumerate(self._cells):
            if base >= 0:
                layout.arguments[cell] = value + at + 8 * base
        rows = [(row.function, at + 8 * row.arguments, row.iterations) for row in self._rows]
        layout.steps = np.array(rows, np.int64).reshape(-1, 3)


def _check(buffer: Buffer, array: NDArray[np.generic]) -> int:
    """The address of an array that serves as memory of `buffer`. Raises ValueError if it doesn't match."""
    if array.dtype != buffer.dtype.numpy or array.nbytes != buffer.size_bytes:
        raise ValueError(f"{buffer} can't be an array of {array.dtype}{list(array.shape)}")
    return _readable_at(array)


def _readable_at(array: NDArray[np.generic]) -> int:
    """Where an array begins that kernels can read. Raises ValueError for any other."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        shape = list(array.shape)
        raise ValueError(f"a buffer can't be an array of {shape} that is not contiguous or not aligned to its elements")
    return address_of(array)
