"""What writing entries changes: rows that are new, rows that are changed, and which of them are served from then on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .choice import LogRival, choose
from .entry import Cost, CostEvidence, EntryState, LogEntry, digest

Place = tuple[bytes, int]
"""The digest of a key, and the number of an environment: of the values that one of is served."""


@dataclass(slots=True)
class Stored:
    """A value of a place, as far as writing depends on it. `row_id` is None for one that is new."""

    row_id: int | None
    rival: LogRival
    is_served: bool
    is_changed: bool = False


@dataclass(slots=True)
class LogUpdate:
    """The values of some places of a namespace, and what becomes of them. Revisions count up from `revision`."""

    revision: int
    added: list[tuple[Stored, Place, LogEntry]] = field(default_factory=list)
    improved: int = 0
    _stored: dict[Place, dict[bytes, Stored]] = field(default_factory=lambda: defaultdict(dict))

    def know(self, place: Place, stored: Stored) -> None:
        """Hear of a row that is there."""
        self._stored[place][stored.rival.choice] = stored

    def write(self, place: Place, entry: LogEntry) -> None:
        """Add an entry, or what it tells of a value that is there: its cost, where it is known as well or better.

        A value without a cost that is written again is the newest then, unless it is served already. What people
        decided about a value stays.
        """
        values, choice = self._stored[place], digest(entry.value)
        there = values.get(choice)
        if there is None:
            rival = LogRival(choice, entry.state, entry.cost, self._next())
            values[choice] = stored = Stored(None, rival, is_served=False, is_changed=True)
            self.added.append((stored, place, entry))
        elif (cost := better(entry.cost, there.rival.cost)) != there.rival.cost or self._is_stale(place, there):
            self._change(there, cost=cost)
            self.improved += 1
        self._choose(place)

    def decide(self, place: Place, choice: bytes, state: EntryState) -> bool:
        """Set the state of a value. Whether it is there."""
        there = self._stored[place].get(choice)
        if there is not None and there.rival.state is not state:
            self._change(there, state=state)
            self._choose(place)
        return there is not None

    def changed(self) -> Iterator[Stored]:
        """Rows that are there and change."""
        for values in self._stored.values():
            yield from (stored for stored in values.values() if stored.is_changed and stored.row_id is not None)

    def _choose(self, place: Place) -> None:
        values = self._stored[place].values()
        served = choose(stored.rival for stored in values)
        for stored in values:
            if stored.is_served and stored.rival is not served:
                stored.is_served, stored.is_changed = False, True  # no news: what is served instead is
            elif stored.rival is served and not stored.is_served:
                stored.is_served = True
                self._change(stored)

    def _is_stale(self, place: Place, stored: Stored) -> bool:
        """Whether a value without a cost has to be written anew to be served: another one is newer."""
        rivals = [other.rival for other in self._stored[place].values()]
        return not stored.is_served and all(rival.cost.evidence is CostEvidence.NONE for rival in rivals)

    def _change(self, stored: Stored, **changes: Any) -> None:
        stored.rival = replace(stored.rival, revision=self._next(), **changes)
        stored.is_changed = True

    def _next(self) -> int:
        self.revision += 1
        return self.revision


def better(told: Cost, known: Cost) -> Cost:
    """Which of two costs of a value counts, in whatever order they are told.

    The one with the stronger evidence, else of more samples, else the least: what disturbs a measurement adds to it.
    """
    return max(known, told, key=_weight)  # of equals the one that is known


def _weight(cost: Cost) -> tuple[float, ...]:
    low_s, high_s = (0.0, 0.0) if cost.time_s is None else cost.interval_s
    return cost.evidence.rank, cost.samples, -(cost.time_s or 0.0), -low_s, -high_s


def places(entries: Iterable[LogEntry], environment_ids: dict[bytes, int]) -> list[Place]:
    """The place of each entry."""
    return [(digest(entry.key.encode()), environment_ids[entry.environment.digest]) for entry in entries]
