"""Loops: the memory traffic of the tiles of points, all points at once.

A `TensorAccess` says which elements of a tensor a stage touches, and how large the footprint of a tile is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.expr import Const, Expr, Load, Op, free_vars, loads
from tunewright.codegen.expr.index import linear
from tunewright.codegen.target import Target
from tunewright.graph.task import Stage, Task
from tunewright.search_space.space import Tiling

Floats = NDArray[np.float64]  # [points], or [levels, points]; [1] of what is the same for all
Tile = Mapping[str, Floats]  # axis -> extent

LEVELS = 4
"""Tile levels in features. A sketch with fewer repeats its outermost, one with more loses those just inside it."""

MAX_STAGES = 1000
"""Most stages whose accesses are cached."""

LINE_BYTES = 64
"""Bytes of a cache line, on every processor that is tuned for."""


@dataclass(frozen=True)
class Dimension:
    """The index of one dimension of an access, as a function of the axes of the stage."""

    size: int
    terms: Mapping[str, int]  # axis -> how far one step of it moves the index; 0 where that isn't regular
    offsets: tuple[int, ...]  # constant parts of the loads, ascending

    @cached_property
    def is_regular(self) -> bool:
        """Whether the index is linear in the axes."""
        return all(self.terms.values())

    @cached_property
    def is_axis(self) -> bool:
        """Whether the index is an axis, from wherever on: there are as many values between its ends as steps."""
        return len(self.terms) == 1 == len(self.offsets) and abs(next(iter(self.terms.values()))) == 1

    def extent(self, tile: Tile) -> Floats:
        """The number of values that the index takes over a tile: at most those between its ends, or one a step."""
        steps = product([tile[axis] for axis in self.terms])
        if len(self.offsets) > 1:
            steps = steps * len(self.offsets)
        reach: Floats = np.minimum(steps, float(self.size))
        if not self.is_regular or self.is_axis:
            return reach
        hull: Floats | float = 1.0 + self.offsets[-1] - self.offsets[0]
        for axis, step in self.terms.items():
            hull = hull + abs(step) * (tile[axis] - 1.0)
        return np.asarray(np.minimum(reach, hull))


@dataclass(frozen=True)
class TensorAccess:
    """The elements of one tensor that a stage reads or writes; loads that differ by constants only are one access."""

    tensor: str
    element_bytes: int
    constant: bool
    dimensions: tuple[Dimension, ...]

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes that decide which elements."""
        return frozenset(axis for dimension in self.dimensions for axis in dimension.terms)

    def elements(self, tile: Tile) -> Floats:
        """Distinct elements touched by one pass over a tile."""
        return product(self.extents(tile))

    def footprint_bytes(self, tile: Tile) -> Floats:
        """Bytes of the cache lines touched by one pass over a tile."""
        return self.lines_bytes(self.extents(tile))

    def extents(self, tile: Tile) -> list[Floats]:
        """The number of values that the index of each dimension takes over a tile."""
        return [dimension.extent(tile) for dimension in self.dimensions]

    def row_extents(
        self, extents: Sequence[Floats], whole: Sequence[Floats], axis: str, tile: Tile
    ) -> Iterator[Floats]:
        """The extents over `tile`, given those over one that differs in `axis` alone, and those over the whole.

        Along that axis the tile is as long as the whole.
        """
        for dimension, extent, longest in zip(self.dimensions, extents, whole, strict=True):
            if axis not in dimension.terms:
                yield extent
            else:
                yield longest if len(dimension.terms) == 1 else dimension.extent(tile)

    def lines_bytes(self, extents: Sequence[Floats]) -> Floats:
        """Bytes of the cache lines that hold a box of these extents."""
        run_bytes = (extents[-1] if extents else np.ones(1)) * self.element_bytes
        return product(extents[:-1]) * np.ceil(run_bytes / LINE_BYTES) * LINE_BYTES

    def stride(self, axis: str) -> int | None:
        """Elements in memory between neighbours along an axis; None where that isn't regular."""
        distance = 0
        for position, dimension in enumerate(self.dimensions):
            if axis in dimension.terms:
                if not dimension.is_regular:
                    return None
                distance += dimension.terms[axis] * prod(d.size for d in self.dimensions[position + 1 :])
        return abs(distance)


@lru_cache(maxsize=MAX_STAGES)
def accesses(task: Task, stage: Stage, vector_axis: str = "") -> tuple[TensorAccess, ...]:
    """The accesses of a stage: its output, then reads along the vector lanes, then the rest; largest first."""
    extents = stage.extents
    output = _access(task, extents, stage.output, [stage.index], stage.body.dtype.size_bytes)
    groups: dict[tuple[object, ...], list[Load]] = {}
    for load in loads(stage.body):
        movement = tuple(frozenset(_terms(i)[0].items()) for i in load.index)
        groups.setdefault((load.tensor, movement), []).append(load)
    reads = [
        _access(task, extents, group[0].tensor, [load.index for load in group], group[0].dtype.size_bytes)
        for group in groups.values()
    ]
    whole = {name: np.array([float(extent)]) for name, extent in extents.items()}
    reads.sort(key=lambda access: (access.stride(vector_axis) != 1, -float(access.footprint_bytes(whole)[0])))
    return (output, *reads)


def _access(
    task: Task, extents: Mapping[str, int], tensor: str, indices: Sequence[tuple[Expr, ...]], element_bytes: int
) -> TensorAccess:
    tensors_by_name = {t.name: t for t in (*task.inputs, *task.temporaries, *task.outputs)}.get(tensor)
    dimensions = []
    for position, index in enumerate(indices[0]):
        terms, _ = _terms(index)
        offsets = tuple(sorted({_terms(other[position])[1] for other in indices}))
        reach = 1 + offsets[-1] - offsets[0] + sum(abs(step) * (extents[axis] - 1) for axis, step in terms.items())
        dimensions.append(Dimension(tensors_by_name.shape[position] if tensors_by_name else reach, terms, offsets))
    return TensorAccess(
        tensor, element_bytes, tensors_by_name is not None and tensors_by_name.constant, tuple(dimensions)
    )


def _terms(index: Expr) -> tuple[Mapping[str, int], int]:
    """Steps by axis, and the constant part. A clamp moves as what it clamps; another shape gives steps of 0."""
    while isinstance(index, Op) and index.name in ("min", "max") and any(isinstance(a, Const) for a in index.args):
        index = next(a for a in index.args if not isinstance(a, Const))
    form = linear(index)
    return (form.coefficients, form.constant) if form else (dict.fromkeys(free_vars(index), 0), 0)


def product(factors: Sequence[Floats]) -> Floats:
    """The product of arrays; 1 of none."""
    return reduce(np.multiply, factors) if factors else np.ones(1)


class Loops:
    """The tiles of a set of points, at `LEVELS` levels from the innermost outwards, and the whole.

    What differs from level to level is worked out for all of them at once: [levels, points], or [1] of what is the same
    for all.
    """

    def __init__(self, task: Task, target: Target, tiling: Tiling, vector_axis: str) -> None:
        stage = tiling.stage
        self.stage = stage
        self.target = target
        self.spatial = [axis.name for axis in stage.axes]
        self.reduced = [axis.name for axis in stage.reduce]
        self.whole: Tile = {a.name: np.array([float(a.extent)]) for a in stage.axes + stage.reduce}
        self.levels: Tile = {
            axis: np.minimum(extents, self.whole[axis]) for axis, extents in _levels(tiling, self.whole).items()
        }
        self.innermost: Tile = {axis: extents[0] for axis, extents in self.levels.items()}
        self.last_level = max(min(len(tiling.tiles), LEVELS) - 2, 0)  # just inside the whole; a block's on GPUs
        self._traffic_bytes: dict[float, Floats] = {}
        self.chunks = np.maximum(tiling.chunks.astype(np.float64), 1.0)
        self.vector_axis = vector_axis
        self.accesses = accesses(task, stage, vector_axis)
        self.lanes = max(target.lanes(stage.body.dtype.size_bytes), 1) if vector_axis in self.whole else 1

    def volume(self, tile: Tile, axes: Sequence[str]) -> Floats:
        """Points of a tile over some of the axes."""
        return product([tile[axis] for axis in axes])

    def passes(self, tile: Tile, axes: Sequence[str]) -> Floats:
        """The number of tiles that cover the whole over some of the axes, partial ones included."""
        return product([np.ceil(self.whole[axis] / tile[axis]) for axis in axes])

    @cached_property
    def boxes(self) -> list[list[Floats]]:
        """Extents in each access's dimensions, at the levels."""
        return [access.extents(self.levels) for access in self.accesses]

    @cached_property
    def whole_boxes(self) -> list[list[Floats]]:
        """Extents in each access's dimensions, of the whole."""
        return [access.extents(self.whole) for access in self.accesses]

    @cached_property
    def parts_bytes(self) -> list[Floats]:
        """Footprint of each access, at the levels."""
        return [access.lines_bytes(box) for access, box in zip(self.accesses, self.boxes, strict=True)]

    @cached_property
    def footprints_bytes(self) -> Floats:
        """Footprint of all accesses together [levels, points]."""
        return self._broadcast(sum(self.parts_bytes))

    @cached_property
    def whole_bytes(self) -> Floats:
        """Footprint of the whole [1]."""
        boxes = zip(self.accesses, self.whole_boxes, strict=True)
        return np.asarray(sum(access.lines_bytes(box) for access, box in boxes))

    @cached_property
    def passes_at(self) -> Floats:
        """The number of tiles of each level in one run [levels, points]."""
        return self._broadcast(self.passes(self.levels, self.spatial + self.reduced))

    def _broadcast(self, values: Floats | float) -> Floats:
        """Broadcast values to [levels, points]."""
        return np.broadcast_to(values, (LEVELS, len(self.chunks)))

    @cached_property
    def reduction_run(self) -> Floats:
        """Points of the reduction that are folded while the innermost tile's results stay in registers.

        Levels that add reduction only, and no other axis, go on with the same registers.
        """
        inner, *outer = self._broadcast(self.volume(self.levels, self.reduced))
        run: Floats = inner
        same = np.ones((LEVELS - 1, 1), np.bool_)
        for axis in self.spatial:
            extents = self.levels[axis]
            same = same & (extents[1:] == extents[0])
        for volume, is_same in zip(outer, np.logical_and.accumulate(same), strict=True):
            run = np.where(is_same, np.maximum(run, volume), run)
        return run

    def vectors(self, tile: Tile, axes: Sequence[str]) -> Floats:
        """Vector operations that one pass over a tile's `axes` takes; a partly filled vector counts whole."""
        parts = [np.ceil(tile[axis] / self.lanes) if axis == self.vector_axis else tile[axis] for axis in axes]
        return product(parts)

    @cached_property
    def moved_bytes(self) -> Floats:
        """Bytes that all passes over the tiles of a level bring in [levels, points].

        A tile finds what it shares with the one before it. Around the innermost tile the next one lies along an axis
        of the reduction, for its results stay in registers. Further out that isn't known: the best axis is assumed.
        """
        innermost = self._moved_bytes(slice(1), self.reduced)
        further = self._moved_bytes(slice(1, LEVELS), self.spatial + self.reduced)
        return np.concatenate([innermost, further])

    def _moved_bytes(self, levels: slice, next_axes: Sequence[str]) -> Floats:
        tile = {axis: extents[levels] for axis, extents in self.levels.items()}
        passes = self.passes_at[levels]
        bytes_moved = self.footprints_bytes[levels] * passes
        for axis in next_axes:
            if self.whole[axis][0] > 1:
                row = {**tile, axis: self.whole[axis]}
                runs = passes / np.ceil(self.whole[axis] / tile[axis])
                bytes_moved = np.minimum(bytes_moved, np.asarray(sum(self._rows_bytes(levels, axis, row))) * runs)
        return bytes_moved

    def _rows_bytes(self, levels: slice, axis: str, row: Tile) -> Iterator[Floats]:
        """Footprint of each access over the tiles of some levels in a row along an axis."""
        known = zip(self.accesses, self.boxes, self.whole_boxes, self.parts_bytes, strict=True)
        for access, box, whole, part in known:
            if axis not in access.axes:
                yield _at_levels(part, levels)
            else:
                extents = [_at_levels(extent, levels) for extent in box]
                yield access.lines_bytes([*access.row_extents(extents, whole, axis, row)])

    def traffic_bytes(self, cache_bytes: float) -> Floats:
        """Bytes that pass into a cache of this size in one warm run: the least of the levels whose tiles fit.

        Nothing moves if the whole fits.
        """
        if cache_bytes not in self._traffic_bytes:
            self._traffic_bytes[cache_bytes] = self._traffic(cache_bytes)
        return self._traffic_bytes[cache_bytes]

    def _traffic(self, cache_bytes: float) -> Floats:
        usable = 0.8 * cache_bytes  # the rest goes to streams passing through and to unlucky placement
        traffic = self.moved_bytes[0]
        for level_bytes, footprint in zip(self.moved_bytes[1:], self.footprints_bytes[1:], strict=True):
            traffic = np.where(footprint <= usable, np.minimum(traffic, level_bytes), traffic)
        return np.where(self.whole_bytes <= usable, 0.0, traffic)


def split_by_vector_axis(tiling: Tiling, points: int) -> list[tuple[str, NDArray[np.int64], Tiling]]:
    """Split points by their vector axis: the axis, the numbers of its points, and their tiling."""
    if isinstance(tiling.vector_axis, str):
        return [(tiling.vector_axis, np.arange(points), tiling)]
    parts = []
    for axis in np.unique(tiling.vector_axis):
        members = np.flatnonzero(tiling.vector_axis == axis)
        tiles = tuple({name: extent[members] for name, extent in tile.items()} for tile in tiling.tiles)
        parts.append((str(axis), members, Tiling(tiling.stage, tiles, str(axis), tiling.chunks[members])))
    return parts


def _levels(tiling: Tiling, axes: Iterable[str]) -> Tile:
    """Extents of tiles [levels, points] along each axis: some levels left out of many, the last repeated of few."""
    tiles = tiling.tiles
    if len(tiles) > LEVELS:
        tiles = (*tiles[: LEVELS - 1], tiles[-1])
    extents = {}
    for axis in axes:
        extents[axis] = np.empty((LEVELS, len(tiling.chunks)))
        for level in range(LEVELS):
            extents[axis][level] = tiles[min(level, len(tiles) - 1)][axis]
    return extents


def _at_levels(values: Floats, levels: slice) -> Floats:
    """The values at some levels."""
    return values[levels] if values.ndim > 1 else values
