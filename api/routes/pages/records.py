"""The page of records: what is known, searched, and the ladder of lookups tried by hand."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from tunewright.db.access import Scope

from ...problems import Kind
from ...schemas import SHA256, LookupAsked, LookupItem
from ...service import Here, in_thread
from ...views.records import Age, RecordsAsked, RecordSort, RecordsPage, records_page
from ..answering import Answering, Lookups
from .offering import offer

LONGEST_CURSOR = 400
"""Characters of a cursor, which has a moment and two keys."""

router = APIRouter(tags=["pages"])


async def records(
    here: Here,
    lookups: Lookups,
    op: Annotated[str, Query(max_length=200, description="Only tasks with this in what they are.")] = "",
    shape: Annotated[str, Query(max_length=200, description="Only tasks with this in their shapes.")] = "",
    target: Annotated[
        str, Query(pattern=f"^({SHA256})?$", description="Only records of the target of this key; empty: of any.")
    ] = "",
    age: Annotated[Age, Query(description="Only records that are no older; empty: of any age.")] = Age.ANY,
    sort: Annotated[RecordSort, Query(description="Which come first, by when they were measured.")] = RecordSort.NEWEST,
    cursor: Annotated[
        str | None, Query(max_length=LONGEST_CURSOR, description="Where to go on: `next` of the page before.")
    ] = None,
    task: Annotated[str, Query(pattern=f"^({SHA256})?$", description="Key of a task to look up; needs `on`.")] = "",
    on: Annotated[str, Query(pattern=f"^({SHA256})?$", description="Key of the target to look it up for.")] = "",
) -> RecordsPage:
    """What is best for tasks, the newest first unless told; and what a lookup of one task answers, rung by rung."""
    asked = RecordsAsked(op=op, shape=shape, target=target, age=age, sort=sort, cursor=cursor, task=task, on=on)
    item = await looked_up(lookups, task, on) if task and on else None
    return await in_thread(partial(records_page, here.store, asked, item))


async def looked_up(lookups: Answering, task_key: str, target_key: str) -> LookupItem:
    """The answer that `POST /v1/lookups` gives for one task now. Raises Problem for an unknown target, StoreError."""
    await lookups.prepared()  # what is remembered of it and changed since is forgotten
    asked = LookupAsked(target=target_key, tasks=[task_key], is_model=False)
    read = await in_thread(partial(lookups.read, target_key, None, asked, [task_key]))
    return LookupItem.model_validate_json(read.items[task_key].text)


offer(
    router,
    "/records",
    "records.html",
    records,
    summary="Records",
    refusals=(Kind.INVALID, Kind.NO_SUCH_TARGET),
    scope=Scope.RECORDS_READ,
)
