"""The page of a search: one box over jobs, tasks, models, owners and tags."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from tunewright.db.access import Key, KeyScope
from tunewright.db.finder import FoundName
from tunewright.db.store import Store

from ..http.access import needs
from ..http.problems import ProblemKind
from ..http.schemas.base import Answer
from ..http.service import ServiceDep
from .job_line import JobLine, line_of
from .page import add_page
from .page_query import PageQuery
from .views import TargetName, Text, target_names

router = APIRouter(tags=["pages"])

MOST_HITS = 10
"""Hits of each kind."""

LONGEST_QUESTION = 200


class SearchAsked(PageQuery):
    """What was searched for."""

    q: str = Field(
        default="",
        max_length=LONGEST_QUESTION,
        description="Words, in any case; what is found has the first eight of them.",
    )


class TaskHit(Answer):
    """A task."""

    task: Text = Field(description="Its key.")
    op: Text
    shape: Text
    target: TargetName | None = Field(description="One that has a record of it; null: none has.")
    targets: int = Field(description="How many have.")


class ModelHit(Answer):
    """A model that was sent."""

    model: Text = Field(description="Its digest.")
    label: Text


class NameHit(Answer):
    """A tag or an owner."""

    id: Text = Field(description="Of an owner's key; empty for a tag.")
    name: Text
    jobs: int = Field(description="How many have it.")


class SearchPage(Answer):
    """What was found: what is called just so, then what begins so, then the rest, the newest first."""

    asked: SearchAsked
    jobs: list[JobLine]
    tasks: list[TaskHit] = Field(description="None for a key without the scope `records:read`.")
    models: list[ModelHit]
    owners: list[NameHit]
    tags: list[NameHit]
    is_cut: bool = Field(description="Whether more was found of a kind than is listed.")

    @property
    def hits(self) -> int:
        """How many are listed."""
        return len(self.jobs) + len(self.tasks) + len(self.models) + len(self.owners) + len(self.tags)


async def task_reader(key: Annotated[Key, needs(KeyScope.JOBS_READ)]) -> str:
    """Who is shown tasks: the scope for them, or empty."""
    return KeyScope.RECORDS_READ.value if KeyScope.RECORDS_READ in key.scopes else ""


@add_page(router, "/search", "search.html", summary="Search", refusals=(ProblemKind.INVALID,))
def search(
    service: ServiceDep, query: Annotated[SearchAsked, Query()], viewer: Annotated[str, Depends(task_reader)]
) -> SearchPage:
    """Jobs, tasks, models, owners and tags that have all of the words in what they are called."""
    store, finder, words = service.store, service.store.finder, query.q
    jobs, names = finder.jobs(words, MOST_HITS + 1), target_names(store)
    owner_names = store.keys.owner_names([job.owner for job in jobs if job.owner])
    found = (
        [line_of(job, names, owner_names) for job in jobs],
        _tasks(store, words, names) if viewer else [],
        [ModelHit.show(model, model=model.sha256) for model in finder.models(words, MOST_HITS + 1)],
        [_name(owner) for owner in finder.owners(words, MOST_HITS + 1)],
        [_name(tag) for tag in finder.tags(words, MOST_HITS + 1)],
    )
    listed = dict(zip(("jobs", "tasks", "models", "owners", "tags"), (hits[:MOST_HITS] for hits in found), strict=True))
    return SearchPage.show(asked=query, is_cut=any(len(hits) > MOST_HITS for hits in found), **listed)


def _tasks(store: Store, words: str, names: dict[str, str]) -> list[TaskHit]:
    return [
        TaskHit.show(
            task,
            task=task.task_key,
            target=TargetName.known(task.target_key, names) if task.target_key else None,
        )
        for task in store.finder.tasks(words, MOST_HITS + 1)
    ]


def _name(found: FoundName) -> NameHit:
    return NameHit.show(found)
