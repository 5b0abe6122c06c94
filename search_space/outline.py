"""LoopOutline: a schedule in numbers that any compiler knows: tiles by axis, lanes, pieces, packed constants.

What a sketch's knobs mean is its own affair; this is of the loops that they come to. Light to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .description import SchedulePoint


@dataclass(frozen=True, slots=True)
class LoopOutline:
    """The loops of the stage that has the most work, from the registers outwards."""

    output: str  # the tensor that the stage writes
    axes: Mapping[str, int]  # and their extents
    reduce: Mapping[str, int]
    vector_axis: str  # the one along the lanes of a processor; "" for none
    lanes: int
    tiles: tuple[Mapping[str, int], ...]  # what each level of loops covers, register tiles first
    phase: int  # of the stage, among `pieces`
    pieces: tuple[int, ...]  # of each phase: what threads, or blocks of a GPU, share between them
    packed: Mapping[str, tuple[int, ...]]  # constant -> its shape in memory

    @staticmethod
    def of(point: SchedulePoint) -> LoopOutline:
        """That of a schedule."""
        levels = list({tuple(tile.items()): tile for tile in point.tiles[:-1]}.values())
        vector = "" if point.target.gpu else point.vector  # a GPU has threads instead
        shapes = {buffer.name: buffer.shape for buffer in point.kernel.params}
        return LoopOutline(
            point.stage.output,
            {axis.name: axis.extent for axis in point.stage.axes},
            {axis.name: axis.extent for axis in point.stage.reduce},
            vector,
            point.lanes if vector else 1,
            tuple(levels),
            point.main,
            tuple(point.chunks),
            {name: shapes[name] for name in point.kernel.packings},
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {
            "output": self.output,
            "axes": dict(self.axes),
            "reduce": dict(self.reduce),
            "vector_axis": self.vector_axis,
            "lanes": self.lanes,
            "tiles": [dict(tile) for tile in self.tiles],
            "phase": self.phase,
            "pieces": list(self.pieces),
            "packed": {name: list(shape) for name, shape in self.packed.items()},
        }

    @staticmethod
    def from_json(data: Any) -> LoopOutline:
        """Raises KeyError, TypeError or ValueError on data that `to_json` can't have written."""
        return LoopOutline(
            str(data["output"]),
            _extents(data["axes"]),
            _extents(data["reduce"]),
            str(data["vector_axis"]),
            int(data["lanes"]),
            tuple(map(_extents, data["tiles"])),
            int(data["phase"]),
            tuple(map(int, data["pieces"])),
            {str(name): tuple(map(int, shape)) for name, shape in data["packed"].items()},
        )


def _extents(data: Any) -> dict[str, int]:
    return {str(name): int(extent) for name, extent in dict(data).items()}
