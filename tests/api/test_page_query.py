"""Addresses of pages: the same page but for some changes, without what is so by default."""

from __future__ import annotations

import pytest

from tunewright.api.dashboard.compare.view import CompareAsked
from tunewright.api.dashboard.job.view import JobPageAsked
from tunewright.api.dashboard.jobs import JobsAsked
from tunewright.api.dashboard.page_query import PageQuery
from tunewright.api.dashboard.task.explorer_view import ExplorerAsked
from tunewright.api.dashboard.task.view import TaskAsked, TrialSort

KEY = "0" * 64


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        (JobPageAsked(), {}),
        (JobPageAsked.model_validate({"tab": "model", "run": "default"}), {"tab": "model", "run": "default"}),
        (JobPageAsked(start=25, before=7, cursor="next"), {"start": 25}),
        (JobsAsked.model_validate({"state": ["queued"], "sort": "newest"}), {"state": ["queued"]}),
        (CompareAsked(job=[1, 2], start=20), {"job": [1, 2]}),
        (TaskAsked(task=KEY, target=KEY, desc=True, sort=TrialSort.TIME), {"target": KEY, "desc": True}),
        (ExplorerAsked(task=KEY, target=KEY, knobs={"tile": "8.."}), {"target": KEY, "knob.tile": "8.."}),
    ],
)
def test_a_query_has_what_is_not_so_by_default(asked: PageQuery, query: dict[str, object]) -> None:
    assert asked.query() == query


def test_changes_are_told_and_may_be_back_to_the_default() -> None:
    asked = JobPageAsked.model_validate({"tab": "trials", "status": ["ok"], "start": 25})
    assert asked.query(cursor="next") == {"tab": "trials", "start": 25, "status": ["ok"], "cursor": "next"}
    assert asked.query(tab="overview", status=[], start=0) == {}


def test_what_has_to_be_told_has_no_default() -> None:
    assert (TaskAsked.plain("target"), TaskAsked.plain("nothing"), TaskAsked.plain("sort")) == (None, None, "time")
