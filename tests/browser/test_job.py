"""The page of a job: its head stays in sight, and no part of it is long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tunewright.api.dashboard.job.view import JobTab
from tunewright.db.job import EventKind, NewEvent
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .conftest import WIDE, Show
from .site import Shown, Site, model
from .test_pages import MOST_SCREENS, PHONE, height

pytestmark = pytest.mark.slow

TASKS = 26
"""One more than a page of tasks has."""

HEAD = """() => {
  const head = document.querySelector("#head");
  const box = head.getBoundingClientRect();
  const middle = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return { top: box.top, height: box.height, isSeen: head.contains(middle), below: scrollY };
}"""

INTERVALS = {"default_interval_ms": [11.91, 12.34], "best_interval_ms": [9.87, 10.21]}


@pytest.fixture(scope="module")
def long_job(site: Site, shown: Shown) -> Iterator[int]:
    """A job with a page of tasks, with trials and events of each: as long as its page may become."""
    sizes = [8 * size for size in range(2, TASKS + 3)]
    settings = {"trials": 10_000, "priority": 9, "target": shown.elsewhere.key}
    job_id = site.submit(model(*sizes), "of-many-tasks.onnx", **settings)
    lease = site.store.jobs.lease([shown.elsewhere.key], "atom-2/77")
    assert lease is not None
    assert lease.job_id == job_id
    for number, task in enumerate(site.store.jobs.get(job_id).spec.tasks):
        about = {"task_key": task.task_key, "op": "MatMul+Relu", "default_ms": 12.1} | INTERVALS
        for trial in range(4):
            found = Measurement(Status.OK, (1e-2,) * 5, 1e-2, 9.9e-3, 1.01e-2, 0.0)
            schedule = Schedule("tiled", 1, (("n", 100 * number + trial),))
            told = [NewEvent(EventKind.IMPROVED, about | {"best_ms": 10.0 - trial, "trial": 4 * number + trial})]
            if trial == 0:
                told.insert(0, NewEvent(EventKind.DEFAULT, about | {"best_ms": 12.1}))
            failed = Measurement(Status.WRONG_RESULT, error="it is off by 0.5 at [3, 4, 5], more than it may be")
            record = Record(task.task_key, shown.elsewhere.key, schedule, failed if trial == 3 else found)
            site.store.record(record, lease, told)
    yield job_id
    site.steer(job_id, "cancel")


@pytest.mark.parametrize("tab", JobTab)
def test_no_part_is_longer_than_three_screens(show: Show, long_job: int, tab: JobTab) -> None:
    page, _ = show(f"/jobs/{long_job}?tab={tab.value}")
    assert height(page) <= MOST_SCREENS * WIDE["height"]
    if tab is JobTab.TASKS:
        assert page.locator("#multiples li").count() == TASKS - 1


def test_first_screen_answers_whether_to_go_on_and_what_to_trust(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["job"])
    for place in (".verdicts", "#parts .stack", "#curves svg"):
        box = page.locator(place).first.bounding_box()
        assert box is not None
        assert box["y"] + min(box["height"], 200) <= WIDE["height"], place


@pytest.mark.parametrize(("viewport", "most_px"), [(WIDE, 90), (PHONE, 120)])
def test_head_stays_and_is_low(show: Show, long_job: int, viewport: dict[str, int], most_px: int) -> None:
    page, _ = show(f"/jobs/{long_job}?tab=tasks", viewport=viewport)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    head = page.evaluate(HEAD)
    assert head["below"] > 0
    assert (head["top"], head["isSeen"]) == (0, True)
    assert head["height"] <= most_px


def test_head_stays_through_a_renewal(show: Show, site: Site, shown: Shown) -> None:
    job_id = site.submit(model(56, 72), "renewed.onnx", trials=8, target=shown.elsewhere.key)
    page, _ = show(f"/jobs/{job_id}", viewport=WIDE | {"height": 300})
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("scrollTo(0, 250)")
    before = page.evaluate(HEAD)
    site.steer(job_id, "pause")
    expect(page.locator("#head .state")).to_have_text("paused")
    after = page.evaluate(HEAD)
    assert (after["top"], after["isSeen"], after["below"]) == (0, True, before["below"]) == (0, True, 250)
    site.steer(job_id, "cancel")


def test_where_a_link_leads_is_not_behind_the_head(show: Show, shown: Shown) -> None:
    page, _ = show(f"{shown.paths['unfinished']}#curves-of", viewport=WIDE | {"height": 500})
    page.evaluate("location.hash = '#where'; location.hash = '#curves-of'")
    head = page.evaluate(HEAD)
    place = page.locator("#curves-of").bounding_box()
    assert place is not None
    assert place["y"] >= head["height"]


def test_small_charts_lead_to_their_tasks(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["job-tasks"])
    first = page.locator("#multiples li").first
    name = first.locator("a").inner_text()
    first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(name.partition(" ")[0])


def test_trials_are_narrowed_to_a_task(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["job-trials"])
    expect(page.locator("#trial-table tbody tr")).not_to_have_count(0)
    task = page.locator("select[name=task]")  # whose label holds its options, too
    name = task.locator("option").nth(1).inner_text().rpartition(" (")[0]
    task.select_option(index=1)
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**task=*")
    tasks = page.locator("#trial-table td[data-name='Task']").all_inner_texts()
    assert set(tasks) == {name}
    page.locator("#trial-table td[data-name='Schedule'] a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("schedule of")
