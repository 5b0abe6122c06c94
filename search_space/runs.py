"""Runs: neighbouring tiles of one size along an axis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TileRun:
    """Neighbouring tiles of one size along an axis: tile t begins at t * size + offset."""

    first: int  # number of the first tile
    count: int
    size: int
    offset: int = 0

    @property
    def start(self) -> int:
        """Where the first tile begins."""
        return self.first * self.size + self.offset

    @property
    def numbers(self) -> range:
        """The numbers of its tiles."""
        return range(self.first, self.first + self.count)


def balance(extent: int, size: int) -> int:
    """Return the most even size of tiles, where as many cover an extent as of `size`."""
    return -(-extent // -(-extent // size))


def runs(extent: int, size: int) -> list[TileRun]:
    """Tiles that cover an extent, of a balanced size or one less: those of few rows keep a machine least busy."""
    tiles = -(-extent // size)
    small = tiles * size - extent
    full = tiles - small
    return [TileRun(0, full, size), *([TileRun(full, small, size - 1, full)] if small else [])]
