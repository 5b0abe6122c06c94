"""Point tables: features and ranks of points, kept because a search scores most of its points again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from tunewright.search_space.space import Rows, Space

from .forest import Members, Values

Codes = NDArray[np.int64]  # [points]; `Space.codes` of points
Slots = NDArray[np.int64]  # [points]; rows of a table, -1: not in it

NO_CODE = np.iinfo(np.int64).max
"""Larger than all codes of a table, so that a search never ends behind the last one."""


class PointTable:
    """Points of one space: their features, their ranks by the layers before, and their ranks by all layers.

    `features`, of which a point has `width`, and `below` compute the first two, once; the last are computed again
    after each `forget_ranks`.
    """

    def __init__(
        self, space: Space, width: int, features: Callable[[Rows], Values], below: Callable[[Values], Members]
    ) -> None:
        self._space, self._features, self._rank = space, features, below
        self._codes: Codes = np.array([NO_CODE])  # ascending
        self._slots: Slots = np.array([-1])  # of these
        self._values: Values = np.empty((0, width), np.float32)
        self._below = below(self._values)
        self._ranks, self._is_ranked = self._below, np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._values)

    def forget_ranks(self) -> None:
        """Forget the ranks by all layers, as the layer on top is another one."""
        self._is_ranked[:] = False

    def slots(self, rows: Rows) -> Slots:
        """The slots of points; unknown points are added."""
        codes = self._space.codes(rows)
        slots = self._find(codes)
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            added, first = np.unique(codes[unknown], return_index=True)
            self._add(added, rows[unknown[first]])
            slots = self._find(codes)
        return slots

    def values(self, slots: Slots) -> Values:
        """The features of slots."""
        return self._values[slots]

    def below(self, slots: Slots) -> Members:
        """The ranks of slots by the layers before."""
        return self._below[:, slots]

    def ranks(self, slots: Slots, above: Callable[[Values], Members]) -> Members:
        """The ranks of slots by all layers; `above` computes what the layer on top adds."""
        missing = slots[~self._is_ranked[slots]]
        if len(missing):
            self._ranks[:, missing] = self._below[:, missing] + above(self._values[missing])
            self._is_ranked[missing] = True
        return self._ranks[:, slots]

    def _find(self, codes: Codes) -> Slots:
        nearest = np.searchsorted(self._codes, codes)
        return np.where(self._codes[nearest] == codes, self._slots[nearest], -1)

    def _add(self, codes: Codes, rows: Rows) -> None:
        """New points, their codes ascending."""
        values = self._features(rows)
        below, slots = self._rank(values), len(self) + np.arange(len(rows))
        # In place: what is there isn't copied each time.
        self._values.resize((len(self) + len(rows), values.shape[1]), refcheck=False)
        self._values[slots] = values
        self._below = np.concatenate([self._below, below], axis=1)
        self._ranks = np.concatenate([self._ranks, below], axis=1)
        self._is_ranked = np.concatenate([self._is_ranked, np.zeros(len(rows), np.bool_)])
        at = np.searchsorted(self._codes, codes)
        self._codes, self._slots = np.insert(self._codes, at, codes), np.insert(self._slots, at, slots)


class PointTables:
    """The tables of a cost model that were used last, of about `points` points in all."""

    def __init__(self, points: int) -> None:
        self._points = points
        self._tables: OrderedDict[Hashable, PointTable] = OrderedDict()

    def table(self, key: Hashable, make: Callable[[], PointTable]) -> PointTable:
        """The table of that key; a new one by `make` where there is none, or where it alone has too many points."""
        point_table = self._tables.pop(key, None)
        if point_table is None or len(point_table) > self._points:
            point_table = make()
        points = len(point_table) + sum(map(len, self._tables.values()))
        while points > self._points:
            _, oldest = self._tables.popitem(last=False)
            points -= len(oldest)
        self._tables[key] = point_table
        return point_table

    def forget_ranks(self) -> None:
        """Forget the ranks of all tables by all layers."""
        for table in self._tables.values():
            table.forget_ranks()
