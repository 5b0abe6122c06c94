"""A program as data of a shared object, for instance.ll: what `Program` is in this process.

Steps are laid out as for a run here, at addresses of a space that no process has: each word that holds such an address
tells what it is to point to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..artifact import Artifact
from ..llvm.shared_object import DataBlock
from .control import Control
from .layout import Call, Layout, Operand, StepWriter
from .library import STEP_SYMBOLS

NOWHERE = 0x5A5A << 48
"""The first address of the space: none of x86-64's, which agree in their highest bits."""

ROOM = 1 << 40
"""Between two blocks of it."""

ARENA = "arena"
"""The block that each instance has memory of its own for."""


class AddressSpace:
    """Addresses for blocks that have none yet."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._order: list[str] = []

    def address(self, name: str, offset_bytes: int = 0) -> int:
        """An address in the block of that name."""
        number = self._names.setdefault(name, len(self._order))
        if number == len(self._order):
            self._order.append(name)
        return NOWHERE + number * ROOM + offset_bytes

    def locate(self, word: int) -> tuple[str, int] | None:
        """Block and offset of an address; None for any other word."""
        number, offset_bytes = divmod(word - NOWHERE, ROOM)
        return (self._order[number], offset_bytes) if 0 <= number < len(self._order) else None


@dataclass(frozen=True, slots=True)
class Source:
    """Where an output comes from that kernels don't write to where the caller wants it: a block, or another port."""

    block: str
    offset_bytes: int
    input: int = -1  # its number, if it is one
    output: int = -1  # likewise


@dataclass(frozen=True, slots=True)
class StaticPort:
    """An input or output: its size, the name that steps know it by, or where it is copied from."""

    size_bytes: int
    name: str
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bit of CPUID that the code needs: Intel SDM, volume 2, CPUID; `register` counts eax, ebx, ecx, edx."""

    name: str
    leaf: int
    subleaf: int
    register: int
    bit: int


@dataclass(frozen=True, slots=True)
class Requirements:
    """What code needs of processor and system: bits of XCR0 that are on, and matrix registers."""

    bits: Sequence[Requirement]
    xcr0: int
    has_matrices: bool


def static_program(
    calls: Sequence[Call | Control[Operand]],
    symbols: Sequence[Mapping[str, str]],
    space: AddressSpace,
    arena_bytes: int,
    ports: tuple[Sequence[StaticPort], Sequence[StaticPort]],
    requirements: Requirements,
) -> list[DataBlock]:
    """The blocks of a program whose calls' operands are addresses of `space`, or names that ports have.

    `symbols` has, for each artifact in order, its functions' names among those that groups show each other. Raises
    ValueError for a program that may stop.
    """
    functions = {symbol: space.address(symbol) for symbol in STEP_SYMBOLS}
    addresses = [{symbol: space.address(name) for symbol, name in of_call.items()} for of_call in symbols]
    layout = StepWriter(functions).lay_out(calls, addresses)
    if layout.stops:
        raise ValueError(f"the program may stop: {layout.stops[0]}")
    return _ProgramWriter(layout, space).blocks(arena_bytes, ports, requirements)


class _ProgramWriter:
    """Writes the blocks of one program."""

    def __init__(self, layout: Layout, space: AddressSpace) -> None:
        self._layout, self._space = layout, space
        owned = [array for array in layout.owned if isinstance(array, np.ndarray)]
        arrays: list[NDArray[np.generic]] = [layout.halt, *owned]
        self._owned = sorted((array.ctypes.data, array) for array in arrays if array.nbytes)
        self._blocks: dict[str, DataBlock] = {}

    def blocks(
        self,
        arena_bytes: int,
        ports: tuple[Sequence[StaticPort], Sequence[StaticPort]],
        requirements: Requirements,
    ) -> list[DataBlock]:
        layout = self._layout
        begin, count = layout.arguments.ctypes.data, len(layout.arguments)
        words, pointers = layout.arguments.copy(), dict[int, tuple[str, int]]()
        moved: dict[str, list[int]] = {ARENA: [], "own": []}
        for cell, word in enumerate(layout.arguments.tolist()):
            target = self._locate(word)
            if begin <= word < begin + 8 * count:
                words[cell] = word - begin
                moved["own"].append(cell)
            elif target is not None and target[0] == ARENA:
                words[cell] = target[1]
                moved[ARENA].append(cell)
            elif target is not None:
                words[cell], pointers[8 * cell] = 0, target
        self._add("arguments", words, pointers)
        self._add_steps(begin)
        self._add("arena_cells", moved[ARENA])
        self._add("own_cells", moved["own"])
        for side, of_side in zip(("inputs", "outputs"), ports, strict=True):
            self._add_ports(side, of_side)
        self._add_requirements(requirements.bits)
        counts = (count, len(layout.steps), arena_bytes, len(moved[ARENA]), len(moved["own"]))
        self._add_program(counts, [len(of_side) for of_side in ports], requirements)
        return list(self._blocks.values())

    def _add(
        self, name: str, words: Sequence[int] | NDArray[np.int64], pointers: Mapping[int, tuple[str, int]] | None = None
    ) -> None:
        content = np.array([*words, 0], np.int64).tobytes()  # no block is empty
        self._blocks[name] = DataBlock(name, content, pointers or {})

    def _locate(self, word: int) -> tuple[str, int] | None:
        """What a word points to; None where it is a number."""
        target = self._space.locate(word)
        number = bisect_right(self._owned, word, key=lambda item: item[0]) - 1
        if target is not None or number < 0:
            return target
        address, array = self._owned[number]
        if word >= address + array.nbytes:
            return None
        name = f"memory{number}"
        self._blocks.setdefault(name, DataBlock(name, array.tobytes()))
        return name, word - address

    def _add_steps(self, begin: int) -> None:
        rows, pointers = self._layout.steps.copy(), dict[int, tuple[str, int]]()
        for number, (function, arguments, _) in enumerate(self._layout.steps.tolist()):
            rows[number, 1] = arguments - begin
            if function:
                target = self._locate(function)
                assert target is not None
                rows[number, 0], pointers[24 * number] = 0, target
        self._add("steps", rows.reshape(-1), pointers)

    def _add_ports(self, side: str, ports: Sequence[StaticPort]) -> None:
        words: list[int] = []
        pointers: dict[int, tuple[str, int]] = {}
        for number, port in enumerate(ports):
            known = self._layout.names.get(port.name)
            cells = known.cells() if known is not None and port.source is None else []
            self._add(f"{side}{number}_cells", [word for cell in cells for word in cell])
            pointers[8 * (len(words) + 2)] = f"{side}{number}_cells", 0
            kind, value, offset_bytes = 0, 0, 0
            if port.source is not None:
                kind = _kind(port.source)
                value, offset_bytes = max(port.source.input, port.source.output, 0), port.source.offset_bytes
                if kind == 2:
                    pointers[8 * (len(words) + 4)] = port.source.block, 0
            words += (port.size_bytes, len(cells), 0, kind, value, offset_bytes)
        self._add(side, words, pointers)

    def _add_requirements(self, bits: Sequence[Requirement]) -> None:
        words: list[int] = []
        pointers: dict[int, tuple[str, int]] = {}
        for number, bit in enumerate(bits):
            self._blocks[f"name{number}"] = DataBlock(f"name{number}", bit.name.encode() + b"\0")
            pointers[8 * (len(words) + 4)] = f"name{number}", 0
            words += (bit.leaf, bit.subleaf, bit.register, bit.bit, 0)
        self._add("requirements", words, pointers)

    def _add_program(self, counts: Sequence[int], ports: Sequence[int], requirements: Requirements) -> None:
        cells, steps, arena_bytes, arena_cells, own_cells = counts
        words = [
            0, cells, 0, steps, arena_bytes, 0, arena_cells, 0, own_cells, 0, ports[0], 0, ports[1],
            0, len(requirements.bits), requirements.xcr0, int(requirements.has_matrices),
        ]  # fmt: skip
        names = ("arguments", "steps", "arena_cells", "own_cells", "inputs", "outputs", "requirements")
        pointers = {8 * cell: (name, 0) for cell, name in zip((0, 2, 5, 7, 9, 11, 13), names, strict=True)}
        self._add("tw_program", words, pointers)


def _kind(source: Source) -> int:
    """The kind of a source, as instance.ll numbers them."""
    if source.output >= 0:
        return 4
    if source.input >= 0:
        return 3
    return 1 if source.block == ARENA else 2


def functions_of(artifacts: Sequence[Artifact]) -> list[dict[str, str]]:
    """For each artifact a name of its own for each of its functions; equal code shares them."""
    numbers: dict[tuple[bytes, ...], int] = {}
    return [
        {
            phase.symbol: f"k{numbers.setdefault(artifact.objects, len(numbers))}_{phase.symbol}"
            for phase in artifact.phases
        }
        for artifact in artifacts
    ]
