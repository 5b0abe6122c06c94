"""Space: every legal schedule of one sketch for one task, as integer matrices.

A point is a row of choice numbers, one column a knob; a set of points is a matrix. Sampling, validity, mutation and
features work on whole matrices, and nothing is lowered to be scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.graph.task import Axis, Stage

from .schedule import Illegal, Schedule

Rows = NDArray[np.int64]  # [points, knobs], choice numbers
Columns = Mapping[str, NDArray[np.int64]]  # knob name -> [points], knob values
Size = NDArray[np.int64] | int  # one for each point, or the same for all

ENUMERABLE = 1 << 18
"""Combinations up to which a space is written out whole: then a sample can't miss what is left of it."""

DRAWN = 256
"""Combinations drawn at least in a round of sampling, however few points are wanted: most may be illegal."""

DRAWS = 20
"""Rounds of sampling at most."""

SPENT = 16
"""Legal points drawn for one that is new, from which on a space has hardly any that were not drawn."""


def point_columns(values: Mapping[str, int], *others: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """The columns of a point, by its knob values, or of several."""
    return {name: np.array([value, *(other[name] for other in others)]) for name, value in values.items()}


def whole_extents(axes: Sequence[Axis]) -> dict[str, Size]:
    """Axis -> its extent."""
    return {axis.name: axis.extent for axis in axes}


def flat_extents(axes: Sequence[Axis], count: NDArray[np.int64]) -> dict[str, Size]:
    """Axis -> the extent of so many neighbours in the flat order of some axes, of which the last moves first."""
    extents: dict[str, Size] = {}
    for axis in reversed(axes):
        extents[axis.name] = np.clip(count, 1, axis.extent)
        count = -(-count // axis.extent)
    return extents


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice. `choices` ascend where they are sizes, so that neighbours in number are neighbours in kind.

    `says`: what any choice but the first one means, as a sentence with {} for the value, where it can be said alone.
    `is_apart`: only some spaces of its sketch have it, and kernels of these are of another kind: a cost model learns
    nothing of them from the others. Schedules without it have its first choice: they were stored before it was there.
    """

    name: str
    choices: tuple[int, ...]
    says: str = ""
    is_apart: bool = False


KNOB_MEANINGS: Mapping[str, str] = {
    "along": "which axis lies along the lanes, the best being 0",
    "lanes": "elements in a vector of the tile",
    "vectors": "vectors beside each other in a tile",
    "vectors_0": "vectors beside each other, of the first product",
    "vectors_1": "vectors beside each other, of the second product",
    "tile": "extent of a tile across the lanes",
    "tile_0": "extent of a tile across the lanes, of the first kind",
    "tile_1": "extent of a tile across the lanes, of the second kind",
    "tile_rows": "rows of a tile",
    "tile_columns": "columns of a tile",
    "rows": "rows that go through each pass together",
    "round": "vectors of a row taken at once",
    "unroll": "copies of the innermost body",
    "order": "channels outside rows (0), between (1), inside columns (2)",
    "columns_inside": "whether tiles go along the columns first (1)",
    "held": "whether weights are kept as they are multiplied (1)",
    "ahead": "whether what comes next is fetched ahead (1)",
    "parts": "parts that a long fold is cut into",
    "block": "rows of a block",
    "block_rows": "tiles of rows in a chunk, 0 for all",
    "block_columns": "tiles of columns in a chunk, 0 for all",
    "block_channels": "tiles of channels in a chunk, 0 for all",
    "block_planes": "planes in a chunk",
    "chunks": "chunks that blocks are shared out to",
    "chunk_rows": "rows in a chunk",
    "chunk_tiles": "tiles of the result in a chunk, 0 for all",
    "chunk_points": "points in a chunk",
}
"""What the values of knobs mean that more than one task has. The cost model has a column for each: see its `roles`."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The loop extents that a set of points gives to the stage with the most work, for features.

    `tiles` goes from the innermost level outwards; each level maps every axis of the stage, reduction axes too, to
    the extent [points] that one pass over that level covers. `chunks` [points] is how many chunks the parallel loop
    has. `vector_axis` is the axis laid along the lanes ("": none), or an array [points] of them where a knob decides.
    """

    stage: Stage
    tiles: tuple[Mapping[str, NDArray[np.int64]], ...]
    vector_axis: str | NDArray[np.str_]
    chunks: NDArray[np.int64]

    @staticmethod
    def of(
        stage: Stage,
        vector_axis: str | NDArray[np.str_],
        columns: Columns,
        levels: Sequence[Mapping[str, Size]],
        chunks: NDArray[np.int64] | None = None,
    ) -> Tiling:
        """The tiling of points, by their columns.

        Each of the levels is as the one inside of it, but for the axes of the stage that it names; innermost they have
        1. The whole stage follows as the last level, and no extent is beyond it. `chunks`, where none are given: as
        many as the last of `levels` takes to cover the stage.
        """
        ones = np.ones_like(next(iter(columns.values())))
        extents = {axis.name: ones * axis.extent for axis in (*stage.axes, *stage.reduce)}
        tiles = [dict.fromkeys(extents, ones)]
        for level in levels:
            named = {name: np.minimum(size, extents[name]) for name, size in level.items() if name in extents}
            tiles.append(tiles[-1] | named)
        if chunks is None:
            chunks = ones
            for axis in stage.axes:
                chunks = chunks * -(-axis.extent // tiles[-1][axis.name])
        return Tiling(stage, (*tiles[1:], extents), vector_axis, chunks)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What the blocks of a set of points take of a GPU's multiprocessor [points], for features and limits."""

    threads: NDArray[np.int64]
    registers: NDArray[np.int64]  # of a thread, an estimate
    smem_bytes: NDArray[np.int64]
    on_tensor_cores: bool = False  # whether these multiply


@dataclass(frozen=True)
class Space:
    """The knobs, which combinations are legal, and what they mean for the loops.

    `preferred`: knob -> the value that the sketch's rule of thumb comes to, legal or not: `default` follows from it.
    `first_choice`: whether `default` is for tasks that nothing is known of, or for searches to try. `block`: the blocks
    of points on a GPU.
    """

    sketch: str
    version: int
    knobs: tuple[Knob, ...]
    legal: Callable[[Columns], NDArray[np.bool_]]
    tiling: Callable[[Columns], Tiling]
    preferred: Mapping[str, int]
    first_choice: bool = True
    block: Callable[[Columns], BlockShape] | None = None

    @property
    def size(self) -> int:
        """Combinations of choices, legal or not."""
        return prod(len(knob.choices) for knob in self.knobs)

    @cached_property
    def _choices(self) -> list[NDArray[np.int64]]:
        return [np.array(knob.choices, np.int64) for knob in self.knobs]

    @cached_property
    def _radix(self) -> NDArray[np.int64]:
        return np.array([len(knob.choices) for knob in self.knobs], np.int64)

    @cached_property
    def _weights(self) -> NDArray[np.int64]:
        """The weights of columns in `codes`."""
        if self.size < 1 << 63:
            return np.array([prod(map(int, self._radix[:i])) for i in range(len(self.knobs))], np.int64)
        # No 64-bit number can tell all points apart, and powers of a radix would drop whole columns modulo 2^64.
        odd = np.random.default_rng(0).integers(0, 1 << 63, len(self.knobs), np.uint64) * np.uint64(2) + np.uint64(1)
        return odd.view(np.int64)

    @property
    def is_empty(self) -> bool:
        """Whether no point is legal; none that was found, where there are too many combinations to write out."""
        return self._default_row is None

    @cached_property
    def default(self) -> Schedule:
        """The preferred point; where it is not legal, the nearest that is. Raises Illegal where the space is empty."""
        if self._default_row is None:
            raise Illegal(f"sketch {self.sketch}: none of {self.size} combinations is within the limits of the target")
        return self.schedule(self._default_row)

    @cached_property
    def _default_row(self) -> NDArray[np.int64] | None:
        if not self.size:
            return None
        pairs = zip(self.knobs, self._choices, strict=True)
        preferred = np.array(
            [np.abs(choices - self.preferred[knob.name]).argmin() for knob, choices in pairs], np.int64
        )
        if self.valid(preferred[None])[0]:
            return preferred
        legal = self.points if self.size <= ENUMERABLE else self.sample(DRAWN, np.random.default_rng(0))
        return legal[np.abs(legal - preferred).sum(1).argmin()] if len(legal) else None

    @cached_property
    def points(self) -> Rows:
        """Every legal point, in the order of `codes`. Raises ValueError where `size` is above ENUMERABLE."""
        if self.size > ENUMERABLE:
            raise ValueError(f"{self.size} combinations are too many to write out, limit {ENUMERABLE}")
        columns = {}
        for knob, choices, weight in zip(self.knobs, self._choices, self._weights, strict=True):
            columns[knob.name] = np.tile(np.repeat(choices, weight), self.size // (len(choices) * int(weight)))
        codes = np.flatnonzero(np.broadcast_to(self.legal(columns), self.size))
        return codes[:, None] // self._weights % self._radix  # of the legal ones alone: division is slow

    def columns(self, rows: Rows) -> Columns:
        """Knob values of points."""
        return {knob.name: self._choices[i][rows[:, i]] for i, knob in enumerate(self.knobs)}

    def valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Which points are legal."""
        return np.broadcast_to(self.legal(self.columns(rows)), len(rows))  # without knobs there is no column to size it

    def schedule(self, row: NDArray[np.int64]) -> Schedule:
        """The point as a schedule."""
        values = tuple((knob.name, int(knob.choices[n])) for knob, n in zip(self.knobs, row, strict=True))
        return Schedule(self.sketch, self.version, values)

    def row(self, schedule: Schedule) -> NDArray[np.int64]:
        """The schedule as a point. Raises Illegal if it is not in this space."""
        row = np.array(self._numbers(schedule), np.int64)
        if not self.valid(row[None])[0]:
            raise Illegal(f"{schedule} breaks a limit of its sketch")
        return row

    def rows(self, schedules: Sequence[Schedule]) -> tuple[Rows, NDArray[np.int64]]:
        """The schedules that are in this space, as points, and the index of each among the schedules.

        Looking at the limits of all of them at once takes a tenth of `row` for each.
        """
        numbers, indices = [], []
        for index, schedule in enumerate(schedules):
            if (schedule.sketch, schedule.version) == (self.sketch, self.version):
                with suppress(Illegal):
                    numbers.append(self._numbers(schedule))
                    indices.append(index)
        rows = np.array(numbers, np.int64).reshape(len(numbers), len(self.knobs))
        legal = self.valid(rows) if numbers else np.ones(0, np.bool_)
        return rows[legal], np.array(indices, np.int64)[legal]

    def _numbers(self, schedule: Schedule) -> list[int]:
        """The choice numbers, whether legal together or not. Raises Illegal where a value is no choice."""
        if (schedule.sketch, schedule.version) != (self.sketch, self.version):
            raise Illegal(f"{schedule} is not of sketch {self.sketch} version {self.version}")
        values = self._implied | dict(schedule.values)
        if values.keys() != self._number_of.keys():  # in any order: a JSON store may have sorted them
            names = ", ".join(dict(schedule.values)) or "none", ", ".join(self._number_of) or "none"
            raise Illegal(f"the knobs of {schedule} are {names[0]}, those of the space {names[1]}")
        try:
            return [numbers[values[name]] for name, numbers in self._number_of.items()]
        except KeyError:
            name, choices = next((k.name, k.choices) for k in self.knobs if values[k.name] not in k.choices)
            raise Illegal(f"{name}={values[name]} is none of {', '.join(map(str, choices))}") from None

    @cached_property
    def _implied(self) -> dict[str, int]:
        """Knob name -> value, of those that a schedule may lack."""
        return {knob.name: knob.choices[0] for knob in self.knobs if knob.is_apart}

    @cached_property
    def _number_of(self) -> dict[str, dict[int, int]]:
        """Knob name -> value -> choice number."""
        return {knob.name: {value: n for n, value in enumerate(knob.choices)} for knob in self.knobs}

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Up to `count` distinct legal points at random.

        Fewer where the space has no more, or where it is too large to write out and mostly illegal.
        """
        if self.size <= ENUMERABLE:
            return self.points[rng.permutation(len(self.points))[:count]]
        rows = np.empty((0, len(self.knobs)), np.int64)
        batch = max(2 * count, DRAWN)
        for _ in range(DRAWS):
            drawn = rng.integers(0, self._radix, (batch, len(self.knobs)))
            legal = drawn[self.valid(drawn)]
            before, rows = len(rows), self.distinct(np.concatenate([rows, legal]))
            if len(rows) >= count or SPENT * (len(rows) - before) < len(legal):
                break
            batch = min(max(2 * (count - len(rows)) * batch // max(len(legal), 1), DRAWN), max(8 * count, DRAWN))
        return rows[:count]

    def distinct(self, rows: Rows) -> Rows:
        """The distinct rows, in order of first appearance. Sorting numbers takes a tenth of sorting rows."""
        _, first = np.unique(self.codes(rows), return_index=True)
        return rows[np.sort(first)]

    def mutate(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """One knob of each point changed at random; the illegal results are left out."""
        free = np.flatnonzero(self._radix > 1)
        if not len(rows) or not len(free):
            return rows[:0]
        fresh = rows.copy()
        points = np.arange(len(rows))
        knobs = free[rng.integers(0, len(free), len(rows))]
        radix = self._radix[knobs]
        fresh[points, knobs] = (fresh[points, knobs] + rng.integers(1, radix)) % radix
        return fresh[self.valid(fresh)]

    def neighbours(self, rows: Rows) -> Rows:
        """The distinct legal points one choice up or down on one knob from any of `rows`."""
        up = np.eye(len(self.knobs), dtype=np.int64)
        fresh = (rows[:, None] + np.concatenate([up, -up])).reshape(2 * rows.size, len(self.knobs))
        inside = np.concatenate([rows < self._radix - 1, rows > 0], axis=1)  # only the knob that moved may be outside
        fresh = fresh[inside.ravel()]
        return self.distinct(fresh[self.valid(fresh)])

    def cross(self, left: Rows, right: Rows, rng: np.random.Generator) -> Rows:
        """Each knob from either parent at random; the illegal results are left out."""
        fresh = np.where(rng.random(left.shape) < 0.5, left, right)
        return fresh[self.valid(fresh)] if len(fresh) else fresh

    def codes(self, rows: Rows) -> NDArray[np.int64]:
        """One number a point, the same in every process. Distinct points have distinct ones.

        In a space of 2^63 combinations or more it is a hash: two points share one about once in 2^50 pairs.
        """
        return rows @ self._weights
