"""The page of records: the best schedules of tasks, and the result of one lookup, rung by rung."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from tunewright.db.access import KeyScope
from tunewright.db.best import Hit
from tunewright.db.store import Store
from tunewright.search_space.sketches import current
from tunewright.tuner.lookup.result import Basis, Match
from tunewright.tuner.noise import noise_of_measurement, time_noise

from ..http.paging import bad_cursor, cut, text_of
from ..http.problems import ProblemKind
from ..http.routes.lookup_service import AskedTasks, LookupService, LookupServiceDep
from ..http.schemas.base import FEW_HAVE_NONE, SHA256, Answer
from ..http.schemas.records import Age, LookupItem, ScheduleShown
from ..http.service import ServiceDep, in_thread
from .page import add_page
from .page_query import PageQuery
from .views import IS_IMPORTED, KnobValues, Provenance, TargetName, Text, target_names

router = APIRouter(tags=["pages"])

ROWS = 30
"""Records on one page."""

LONGEST_CURSOR = 400
"""Longest cursor, in characters: it has a moment and two keys."""

KNOWN_SINCE = datetime(1971, 1, 1, tzinfo=UTC)
"""What is said to be older was stored by a version that kept no moments."""


class RecordSort(StrEnum):
    """How the records are ordered, by when they were measured."""

    NEWEST = "newest"
    OLDEST = "oldest"


class RecordsAsked(PageQuery):
    """Which records were asked for, and what is to be looked up."""

    op: str = Field(default="", max_length=200, description="Only tasks with this in what they are.")
    shape: str = Field(default="", max_length=200, description="Only tasks with this in their shapes.")
    target: str = Field(
        default="", pattern=f"^({SHA256})?$", description="Only records of the target of this key; empty: of any."
    )
    age: Age = Field(default=Age.ANY, description="Only records that are no older; empty: of any age.")
    sort: RecordSort = Field(default=RecordSort.NEWEST, description="Which come first, by when they were measured.")
    cursor: str | None = Field(
        default=None, max_length=LONGEST_CURSOR, description="Where to go on: `next` of the page before."
    )
    task: str = Field(default="", pattern=f"^({SHA256})?$", description="Key of a task to look up; needs `on`.")
    on: str = Field(default="", pattern=f"^({SHA256})?$", description="Key of the target to look it up for.")

    @property
    def is_narrowed(self) -> bool:
        """Whether some records were not asked for."""
        return bool(self.op or self.shape or self.target or self.age)


class TimedTask(Answer):
    """The time of the best schedule for a task on a target."""

    task: Text = Field(description="Its key.")
    op: Text
    shape: Text = Field(description="Empty where an older version stored it.")
    target: TargetName
    interval_ms: tuple[float, float] | None = Field(description=FEW_HAVE_NONE)
    is_confirmed: bool = Field(
        description="Whether it won a comparison in fresh processes here; else it is of a trial, or imported."
    )
    is_imported: bool = IS_IMPORTED
    noise: Text = Field(description="Why the machine was too busy to rely on the time; empty where it was not.")

    @property
    def is_of_trial(self) -> bool:
        """Whether the time is of a trial here that nothing confirmed."""
        return not self.is_confirmed and not self.is_imported


class RecordLine(TimedTask):
    """What to use for a task on a target."""

    sketch: Text = Field(description="How it is written.")
    is_usable: bool = Field(description="Whether this version has that sketch. What another one found is not used.")
    median_ms: float
    created_at: datetime | None = Field(description="When it was measured; null: an older version stored it.")


class Rung(Answer):
    """A rung of the ladder, and what came of it."""

    match: Text
    is_reached: bool = Field(description="Whether it was asked: none above it had an answer.")
    is_answer: bool


class SourceLine(TimedTask):
    """Where a schedule was measured that was not measured for the task and target asked for."""

    median_ms: float | None = Field(description="The time measured there; null where there is another one by now.")


class ScheduleTried(ScheduleShown):
    """A schedule that a lookup answers with, as far as a page has room for it."""

    sketch: Text
    values: KnobValues


class LookupItemTrace(LookupItem):
    """What a lookup answers, as far as a page has room for it."""

    op: Text | None = None
    schedule: ScheduleTried | None = None
    provenance: Provenance | None = None

    @property
    def is_of_trial(self) -> bool:
        """Whether the time is of a trial here that nothing confirmed; what nobody measured is of none."""
        return self.basis in (Basis.MEASURED, Basis.SIBLING) and not self.confirmed

    @property
    def noise(self) -> str:
        """Why the machine was too busy to rely on the time; empty where it was not."""
        low_ms, high_ms = self.interval_ms or (None, None)
        return time_noise(self.expected_ms, low_ms, high_ms, self.provenance or {})


class LookupTrace(Answer):
    """A lookup, by the code that answers `POST /v1/lookups`."""

    target: TargetName
    shape: Text = Field(description="Of the task; empty where it is not known.")
    item: LookupItemTrace
    rungs: list[Rung] = Field(description="From the top.")
    source: SourceLine | None


class RecordsPage(Answer):
    """Records, and a lookup."""

    asked: RecordsAsked
    records: list[RecordLine] = Field(description="The newest first, or last, as was asked for.")
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")
    known: int = Field(description="Tasks that there is a record of, on each target, whatever was asked for.")
    imported: int = Field(description="Of them, those of which nothing usable was timed here.")
    targets: list[TargetName] = Field(description="The targets that something is known of.")
    tried: LookupTrace | None = Field(description="What came of the lookup; null where none was asked for.")


@add_page(
    router,
    "/records",
    "records.html",
    summary="Records",
    refusals=(ProblemKind.INVALID, ProblemKind.NO_SUCH_TARGET),
    scope=KeyScope.RECORDS_READ,
)
async def records(
    service: ServiceDep, lookups: LookupServiceDep, query: Annotated[RecordsAsked, Query()]
) -> RecordsPage:
    """What is best for tasks, the newest first unless told; and what a lookup of one task answers, rung by rung."""
    item = await _look_up(lookups, query.task, query.on) if query.task and query.on else None
    return await in_thread(partial(_page, service.store, query, item))


async def _look_up(lookups: LookupService, task_key: str, target_key: str) -> LookupItem:
    """The answer that `POST /v1/lookups` gives for one task now. Raises Problem for an unknown target, StoreError."""
    await lookups.cache()  # what is remembered of it and changed since is forgotten
    items = await in_thread(partial(lookups.read, target_key, None, AskedTasks([task_key]), [task_key]))
    return LookupItem.model_validate_json(items.by_key[task_key].text)


def _page(store: Store, query: RecordsAsked, item: LookupItem | None) -> RecordsPage:
    names = target_names(store)
    hits, following = _search(store, query)
    counts = store.catalog.task_counts().values()
    return RecordsPage(
        asked=query,
        records=[_line(hit, names) for hit in hits],
        next=following,
        known=sum(map(sum, counts)),
        imported=sum(count.imported for count in counts),
        targets=[TargetName(key=key, name=name) for key, name in names.items()],
        tried=None if item is None else _lookup(store, query, item, names),
    )


def _search(store: Store, query: RecordsAsked) -> tuple[list[Hit], str | None]:
    try:
        hits = store.catalog.search(
            op=query.op or None,
            shape=query.shape or None,
            target_key=query.target or None,
            since=query.age.since,
            is_oldest_first=query.sort is RecordSort.OLDEST,
            after=text_of(query.cursor),
            limit=ROWS + 1,
        )
    except ValueError:
        raise bad_cursor() from None
    page, following = cut(hits, ROWS, lambda hit: hit.place)
    return list(page), following


def _line(hit: Hit, names: Mapping[str, str]) -> RecordLine:
    best = hit.best
    return RecordLine.show(
        best,
        hit,
        is_confirmed=best.is_confirmed_here,
        task=best.task_key,
        target=TargetName.known(best.target_key, names),
        is_usable=(best.sketch, best.sketch_version) in current(),
        noise=noise_of_measurement(best.measurement),
        created_at=hit.created_at if hit.created_at >= KNOWN_SINCE else None,
    )


def _lookup(store: Store, query: RecordsAsked, item: LookupItem, names: Mapping[str, str]) -> LookupTrace:
    source = item.source
    tasks = store.tasks([query.task, source.task] if source else [query.task])
    task = tasks.get(query.task)
    origin = None
    if source is not None:
        at = store.catalog.best([source.task], [source.target]).get((source.task, source.target))
        there = tasks.get(source.task)
        time = UNMEASURED
        if at is not None:
            time = {"noise": noise_of_measurement(at.measurement), "is_confirmed": at.is_confirmed_here}
        origin = SourceLine.show(
            at,
            task=source.task,
            op=there.op if there else "",
            shape=there.shape if there else "",
            target=TargetName(key=source.target, name=source.target_name),
            **time,
        )
    return LookupTrace(
        target=TargetName.known(query.on, names),
        shape=task.shape if task else "",
        item=LookupItemTrace.model_validate(item.model_dump()),
        rungs=_rungs(item),
        source=origin,
    )


UNMEASURED: dict[str, object] = {
    "median_ms": None,
    "interval_ms": None,
    "is_confirmed": False,
    "is_imported": False,
    "noise": "",
}
"""What is said of the time of a schedule where there is another one by now."""

UNKNOWN = "unknown"
"""The match of a task that nobody has defined."""

RUNGS = (Match.EXACT, Match.SIBLING, Match.NEAREST, Match.PREDICTED, Match.DEFAULT)
"""The ladder, from the top. The last rung has other names where the default is known to fail."""


def _rungs(item: LookupItem) -> list[Rung]:
    """The rungs of a lookup. An unknown task reaches the first one only; so does one without time left."""
    last = len(RUNGS) - 1
    place = {rung.value: n for n, rung in enumerate(RUNGS)}.get(item.match, last)
    reached, answer = set(range(place + 1)), {place}
    if item.match == UNKNOWN:
        reached, answer = {0}, set()
    elif item.match == "default" and item.schedule is None:
        reached = {0, last}
    return [Rung(match=rung.value, is_reached=n in reached, is_answer=n in answer) for n, rung in enumerate(RUNGS)]
