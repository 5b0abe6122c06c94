"""Sheets: what a cost model works out of points, kept, for a search scores most of its points again and again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from tunewright.search_space.space import Rows, Space

from .forest import Members, Values

Codes = NDArray[np.int64]  # [points], see `Space.codes`
Slots = NDArray[np.int64]  # [points], where a sheet has them; -1: nowhere

NO_CODE = np.iinfo(np.int64).max
"""Behind all codes of a sheet, so that none is looked for past the end."""


class Sheet:
    """Of points of one space: features, ranks by what was learned before, and ranks by all that is learned.

    `features`, of which a point has `width`, and `below` work out the first two, once; the last are worked out anew
    after each `forget_ranks`.
    """

    def __init__(
        self, space: Space, width: int, features: Callable[[Rows], Values], below: Callable[[Values], Members]
    ) -> None:
        self._space, self._work_out, self._rank = space, features, below
        self._codes: Codes = np.array([NO_CODE])  # ascending
        self._slots: Slots = np.array([-1])  # of these
        self._values: Values = np.empty((0, width), np.float32)
        self._below = below(self._values)
        self._ranks, self._is_ranked = self._below, np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._values)

    def forget_ranks(self) -> None:
        """The layer on top is another one."""
        self._is_ranked[:] = False

    def slots(self, rows: Rows) -> Slots:
        """Where the points are, those that were unknown too."""
        codes = self._space.codes(rows)
        slots = self._found(codes)
        unknown = np.flatnonzero(slots < 0)
        if len(unknown):
            added, first = np.unique(codes[unknown], return_index=True)
            self._add(added, rows[unknown[first]])
            slots = self._found(codes)
        return slots

    def values(self, slots: Slots) -> Values:
        """Their features."""
        return self._values[slots]

    def below(self, slots: Slots) -> Members:
        """Their ranks by what was learned before."""
        return self._below[:, slots]

    def ranks(self, slots: Slots, above: Callable[[Values], Members]) -> Members:
        """Their ranks by all that is learned; `above` is what the layer on top adds."""
        late = slots[~self._is_ranked[slots]]
        if len(late):
            self._ranks[:, late] = self._below[:, late] + above(self._values[late])
            self._is_ranked[late] = True
        return self._ranks[:, slots]

    def _found(self, codes: Codes) -> Slots:
        nearest = np.searchsorted(self._codes, codes)
        return np.where(self._codes[nearest] == codes, self._slots[nearest], -1)

    def _add(self, codes: Codes, rows: Rows) -> None:
        """New points, their codes ascending."""
        values = self._work_out(rows)
        below, slots = self._rank(values), len(self) + np.arange(len(rows))
        # In place: what is there isn't copied each time.
        self._values.resize((len(self) + len(rows), values.shape[1]), refcheck=False)
        self._values[slots] = values
        self._below = np.concatenate([self._below, below], axis=1)
        self._ranks = np.concatenate([self._ranks, below], axis=1)
        self._is_ranked = np.concatenate([self._is_ranked, np.zeros(len(rows), np.bool_)])
        at = np.searchsorted(self._codes, codes)
        self._codes, self._slots = np.insert(self._codes, at, codes), np.insert(self._slots, at, slots)


class Sheets:
    """The sheets of a cost model, those used last: while they have more than `points` points others are dropped."""

    def __init__(self, points: int) -> None:
        self._points = points
        self._sheets: OrderedDict[Hashable, Sheet] = OrderedDict()

    def sheet(self, key: Hashable, made: Callable[[], Sheet]) -> Sheet:
        """The sheet of that name, which is `made` where there is none, or where it alone has too many points."""
        sheet = self._sheets.pop(key, None)
        if sheet is None or len(sheet) > self._points:
            sheet = made()
        points = len(sheet) + sum(map(len, self._sheets.values()))
        while points > self._points:
            _, dropped = self._sheets.popitem(last=False)
            points -= len(dropped)
        self._sheets[key] = sheet
        return sheet

    def forget_ranks(self) -> None:
        """The layer on top of the model is another one."""
        for sheet in self._sheets.values():
            sheet.forget_ranks()
