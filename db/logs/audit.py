"""Audit of the log: keys on which machines of one fleet would not agree.

A fleet is the machines of one device and toolchain. Their environments differ in versions alone, such as that of the
driver, so one key may be served differently to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, groupby
from typing import Any

from sqlalchemy import Row, exists, select
from sqlalchemy.orm import Session

from ..database import Database, DatabasePart, read_session
from .choice import LogRival, ties
from .difference import rival_to_json
from .entry import LogEnvironment
from .logs import Namespace
from .rows import Environments, in_order, is_served, light, rival_of
from .tables import EnvironmentRow, LogEntryRow

ROWS_AT_ONCE = 5000
"""Entries that are read at once, without their values."""

Fleet = tuple[str, str]
"""A device and a toolchain."""


class FindingKind(StrEnum):
    """What is found about a key."""

    DISAGREEMENT = "disagreement"  # environments of one fleet are served different values
    TIE = "tie"  # the costs of several values can't be told apart: which is served follows from their digests
    MISSING = "missing"  # some environments of a fleet have no value


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A key of which something is found in a fleet.

    `rivals`: what each environment is served; of a tie the values that are as good, of one environment. `lacking`: the
    environments that have none.
    """

    kind: FindingKind
    key: str
    rivals: tuple[tuple[LogEnvironment, LogRival], ...]
    lacking: tuple[LogEnvironment, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        device, toolchain = _fleet(self.rivals[0][0])
        return {
            "kind": self.kind.value,
            "key": self.key,
            "device": device,
            "toolchain": toolchain,
            "served": [_place(environment) | rival_to_json(rival) for environment, rival in self.rivals],
            "lacking": [_place(environment) for environment in self.lacking],
        }


class LogAudit(DatabasePart):
    """Findings of a namespace, in order of the digests of keys: pages of its entries are read one after the other.

    `keys` counts those that were looked at.
    """

    def __init__(self, database: Database, space: Namespace) -> None:
        super().__init__(database)
        self.space = space
        self.keys = 0
        self._environments = Environments()

    def __iter__(self) -> Iterator[LogFinding]:
        fleets = self._fleets()
        for _, rows in groupby(chain.from_iterable(self._pages()), lambda row: row.key_digest):
            self.keys += 1
            yield from _findings(list(rows), self._environments.known, fleets)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The findings as JSON data, and at last a summary: how many keys there are, and findings of each kind."""
        counts = dict.fromkeys(map(str, FindingKind), 0)
        for finding in self:
            counts[finding.kind] += 1
            yield finding.to_json()
        yield {"summary": {"keys": self.keys, **counts}}

    def _pages(self) -> Iterator[list[Row[Any]]]:
        after = None
        while page := self._page(after):
            yield page
            after = page[-1]

    @read_session
    def _page(self, session: Session, after: Row[Any] | None) -> list[Row[Any]]:
        columns = *light(self.space.release_id), LogEntryRow.key
        rows = session.execute(in_order(self.space.id, columns, after, ROWS_AT_ONCE)).all()
        self._environments.read(session, {row.environment_id for row in rows})
        return list(rows)

    @read_session
    def _fleets(self, session: Session) -> Mapping[Fleet, set[int]]:
        """The environments of each fleet that anything is served in."""
        entry = LogEntryRow.namespace_id == self.space.id, LogEntryRow.environment_id == EnvironmentRow.id
        numbers = list(
            session.scalars(select(EnvironmentRow.id).where(exists().where(*entry, is_served(self.space.release_id))))
        )
        known, fleets = self._environments.read(session, numbers), defaultdict[Fleet, set[int]](set)
        for number in numbers:
            fleets[_fleet(known[number])].add(number)
        return fleets


def _findings(
    rows: list[Row[Any]], known: Mapping[int, LogEnvironment], fleets: Mapping[Fleet, set[int]]
) -> Iterator[LogFinding]:
    """What is found of a key, of all its rows. Most have nothing, so rivals are made where there is something."""
    key = rows[0].key
    served: dict[Fleet, dict[int, Row[Any]]] = defaultdict(dict)
    for number, of_place in groupby(rows, lambda row: row.environment_id):
        environment, place = known[number], list(of_place)
        equals = ties(map(rival_of, place)) if len(place) > 1 else ()
        if len(equals) > 1:
            yield LogFinding(FindingKind.TIE, key, tuple((environment, rival) for rival in equals))
        served[_fleet(environment)].update((number, row) for row in place if row.is_served)
    for fleet, told in served.items():
        lacking = fleets[fleet] - told.keys() if told else ()
        is_agreed = len({row.choice for row in told.values()}) < 2
        if is_agreed and not lacking:
            continue
        rivals = tuple((known[number], rival_of(row)) for number, row in sorted(told.items()))
        if not is_agreed:
            yield LogFinding(FindingKind.DISAGREEMENT, key, rivals)
        if lacking:
            yield LogFinding(FindingKind.MISSING, key, rivals, tuple(known[number] for number in sorted(lacking)))


def _fleet(environment: LogEnvironment) -> Fleet:
    return environment.device, environment.toolchain


def _place(environment: LogEnvironment) -> dict[str, Any]:
    return {"fingerprint": environment.fingerprint, "versions": environment.to_json()["versions"]}
