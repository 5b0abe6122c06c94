"""The view of records: what to use for tasks, searched; and one lookup tried by hand, rung by rung."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import Field

from tunewright.db.known import Found
from tunewright.db.sql_store import SqlStore
from tunewright.search_space.measurement import NOISE
from tunewright.tuner.lookup import Match

from ..paging import bad_cursor, cut, text_of
from ..schemas import Answer, LookupItem, ScheduleShown
from .said import KnobValues, Provenance, Said
from .targets import TargetName, target_names

ROWS = 50
"""Records on one page."""

KNOWN_SINCE = datetime(1971, 1, 1, tzinfo=UTC)
"""What is said to be older was stored by a version that kept no moments."""


class Age(StrEnum):
    """How old a record is at most."""

    ANY = ""
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"

    @property
    def since(self) -> datetime | None:
        """When the oldest of them was made; None where any will do."""
        return datetime.now(UTC) - timedelta(hours=HOURS[self]) if self in HOURS else None


HOURS = {Age.HOUR: 1, Age.DAY: 24, Age.WEEK: 7 * 24, Age.MONTH: 30 * 24, Age.YEAR: 365 * 24}


class RecordSort(StrEnum):
    """How the records are ordered, by when they were measured."""

    NEWEST = "newest"
    OLDEST = "oldest"


class RecordsAsked(Answer):
    """Which records were asked for, and what is to be looked up."""

    op: Said = Field("", description="Text in what the task is.")
    shape: Said = Field("", description="Text in its shapes.")
    target: Said = Field("", description="Key of a target.")
    age: Age = Age.ANY
    sort: RecordSort = RecordSort.NEWEST
    cursor: str | None = None
    task: Said = Field("", description="Key of the task to look up.")
    on: Said = Field("", description="Key of the target to look it up for.")

    @property
    def is_narrowed(self) -> bool:
        """Whether some records were not asked for."""
        return bool(self.op or self.shape or self.target or self.age)


class RecordLine(Answer):
    """What to use for a task on a target."""

    task: Said = Field(description="Its key.")
    op: Said
    shape: Said = Field(description="Empty where an older version stored it.")
    target: TargetName
    sketch: Said = Field(description="How it is written.")
    median_ms: float
    interval_ms: tuple[float, float] | None = Field(description="95% interval of the median.")
    is_confirmed: bool = Field(description="Whether it won a comparison in fresh processes; else it is of a trial.")
    noise: Said = Field(description="Why the machine was too busy to rely on the time; empty where it was not.")
    created_at: datetime | None = Field(description="When it was measured; null: an older version stored it.")


class Rung(Answer):
    """A rung of the ladder, and what came of it."""

    match: Said
    is_reached: bool = Field(description="Whether it was asked: none above it had an answer.")
    is_answer: bool


class SourceLine(Answer):
    """Where a schedule was measured that was not measured for the task and target asked for."""

    task: Said = Field(description="Its key.")
    op: Said
    shape: Said
    target: TargetName
    median_ms: float | None = Field(description="The time measured there; null where there is another one by now.")


class ScheduleTried(ScheduleShown):
    """A schedule that a lookup answers with, as far as a page has room for it."""

    sketch: Said
    values: KnobValues


class ItemTried(LookupItem):
    """What a lookup answers, as far as a page has room for it."""

    op: Said | None = None
    schedule: ScheduleTried | None = None
    provenance: Provenance | None = None


class Tried(Answer):
    """A lookup, by the code that answers `POST /v1/lookups`."""

    target: TargetName
    shape: Said = Field(description="Of the task; empty where it is not known.")
    item: ItemTried
    rungs: list[Rung] = Field(description="From the top.")
    source: SourceLine | None


class RecordsPage(Answer):
    """Records, and a lookup."""

    asked: RecordsAsked
    records: list[RecordLine] = Field(description="The newest first, or last, as was asked for.")
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")
    known: int = Field(description="Tasks that there is a record of, on each target, whatever was asked for.")
    targets: list[TargetName] = Field(description="The targets that something is known of.")
    tried: Tried | None = Field(description="What came of the lookup; null where none was asked for.")


def records_page(store: SqlStore, asked: RecordsAsked, item: LookupItem | None) -> RecordsPage:
    """The records asked for, and what was looked up, if anything. Raises Problem for what is no cursor, StoreError."""
    names = target_names(store)
    found, following = _found(store, asked)
    return RecordsPage(
        asked=asked,
        records=[_line(one, names) for one in found],
        next=following,
        known=sum(store.known.covered().values()),
        targets=[TargetName(key=key, name=name) for key, name in names.items()],
        tried=None if item is None else _tried(store, asked, item, names),
    )


def _found(store: SqlStore, asked: RecordsAsked) -> tuple[list[Found], str | None]:
    try:
        found = store.known.search(
            op=asked.op or None,
            shape=asked.shape or None,
            target_key=asked.target or None,
            since=asked.age.since,
            is_oldest_first=asked.sort is RecordSort.OLDEST,
            after=text_of(asked.cursor),
            limit=ROWS + 1,
        )
    except ValueError:
        raise bad_cursor() from None
    page, following = cut(found, ROWS, lambda one: one.place)
    return list(page), following


def _line(found: Found, names: Mapping[str, str]) -> RecordLine:
    best = found.best
    return RecordLine(
        task=best.task_key,
        op=best.op,
        shape=found.shape,
        target=TargetName.known(best.target_key, names),
        sketch=best.sketch,
        median_ms=1e3 * best.median_s,
        interval_ms=None if best.low_s is None or best.high_s is None else (1e3 * best.low_s, 1e3 * best.high_s),
        is_confirmed=best.is_confirmed,
        noise=best.measurement.provenance.get(NOISE, ""),
        created_at=found.created_at if found.created_at >= KNOWN_SINCE else None,
    )


def _tried(store: SqlStore, asked: RecordsAsked, item: LookupItem, names: Mapping[str, str]) -> Tried:
    source = item.source
    tasks = store.tasks([asked.task, source.task] if source else [asked.task])
    task = tasks.get(asked.task)
    origin = None
    if source is not None:
        there, best = tasks.get(source.task), store.known.best([source.task], [source.target])
        at = best.get((source.task, source.target))
        origin = SourceLine(
            task=source.task,
            op=there.op if there else "",
            shape=there.shape if there else "",
            target=TargetName(key=source.target, name=source.target_name),
            median_ms=1e3 * at.median_s if at else None,
        )
    return Tried(
        target=TargetName.known(asked.on, names),
        shape=task.shape if task else "",
        item=ItemTried.model_validate(item.model_dump()),
        rungs=_rungs(item),
        source=origin,
    )


UNKNOWN = "unknown"
"""The match of a task that nobody has defined."""

RUNGS = (Match.EXACT, Match.SIBLING, Match.NEAREST, Match.PREDICTED, Match.DEFAULT)
"""Of the ladder, from the top. The last has other names where the default is known to fail."""


def _rungs(item: LookupItem) -> list[Rung]:
    """What came of each rung. A task that is unknown gets no further than the first; so does one without time left."""
    last = len(RUNGS) - 1
    place = {rung.value: n for n, rung in enumerate(RUNGS)}.get(item.match, last)
    reached, answer = set(range(place + 1)), {place}
    if item.match == UNKNOWN:
        reached, answer = {0}, set()
    elif item.match == "default" and item.schedule is None:
        reached = {0, last}
    return [Rung(match=rung.value, is_reached=n in reached, is_answer=n in answer) for n, rung in enumerate(RUNGS)]
