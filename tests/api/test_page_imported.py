"""What was imported is called so on every page: its times are none of this machine, and no gain is told by them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunewright.db.job import JobSpec, JobState, SearchBudget, SpecTask
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Record
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.text import IMPORTED

from .examples import good, others, product, record_line
from .page import whole

pytestmark = pytest.mark.usefixtures("prompt_pages")

FOREIGN_S = 5e-7
"""A time that an import may claim, and that no such machine computes the product in."""


def import_record(store: Store, task: Task, target: Any, schedule: Schedule, kind: str = "trial") -> None:
    line = record_line(task, target, schedule, good(FOREIGN_S), kind)
    assert store.import_([json.dumps(line)]).added == 1


@pytest.mark.parametrize("kind", ["trial", "confirmation"])
def test_an_imported_best_is_called_so(one: Any, look: Any, kit: Any, kind: str) -> None:
    store, task, target = one.store, product(), kit.target()
    [schedule] = others(task, target, 1)
    import_record(store, task, target, schedule, kind)
    page, view = look(f"/tasks/{task.key}")
    assert (view["best"]["is_imported"], view["best"]["is_confirmed"]) == (True, False)
    said = "The best schedule known takes 500 ns (95% interval of the median: 495 ns to 505 ns), "
    assert f"{said}{IMPORTED}." in page.words
    assert page.words.count(IMPORTED) >= 2  # the sentence and the figure
    for wrong in ("nothing has confirmed yet", "by a trial, not confirmed yet", "in fresh processes, and", "500 ns°"):
        assert wrong not in page.words
    assert "Its time was not taken here" in page.words and view["nearness"] is None
    assert "is possible where" not in page.words and view["analysis"]["points"] == []
    assert "not compared with the reference here" in page.words
    page, view = look(f"/tasks/{task.key}/schedules/{schedule.key}")
    assert IMPORTED in page.words and view["best"]["is_imported"] and "is possible where" not in page.words
    assert "As a trial it took" not in page.words and "chosen by that" not in page.words
    page, view = look("/records", task=task.key, on=target.key)
    [record] = view["records"]
    assert (record["is_imported"], record["is_confirmed"], view["known"], view["imported"]) == (True, False, 1, 1)
    assert page.words.count(IMPORTED) == 2 and "not yet: a trial" not in page.words and "500 ns°" not in page.words
    assert "1 record of this kind, 1 of them imported" in page.words


def test_no_gain_is_told_beside_a_default_that_was_timed_here(one: Any, look: Any, kit: Any) -> None:
    """A default that fails a comparison leaves an imported best in its place; here its sketch is of another version."""
    store, task, target = one.store, product(), kit.target()
    default = default_schedule(task, target)
    [schedule, other] = others(task, target, 2)
    store.add_task(task)
    store.add_target(target)
    store.record(Record(task.key, target.key, schedule, good(1e-3)))
    import_record(store, task, target, default)
    page, view = look(f"/tasks/{task.key}")
    assert view["gain"] is None and view["default"]["is_imported"] and not view["best"]["is_imported"]
    assert "The default takes 500 ns (495 ns to 505 ns), which was imported: the two were timed on" in page.words
    assert "as fast" not in page.words
    page, view = look(f"/tasks/{task.key}/schedules/{schedule.key}")
    assert "the two were timed on different machines" in page.words and "as fast" not in page.words
    import_record(store, task, target, other)
    page, view = look(f"/tasks/{task.key}/schedules/{other.key}")
    assert "both" not in page.words and "imported too: nobody here knows" in page.words
    assert "elsewhere, and imported: not here yet" in page.words
    [*rows] = look(f"/tasks/{task.key}")[1]["rows"]
    assert [row["is_imported"] for row in rows] == [True, True, False]


def test_imported_trials_are_counted_apart(one: Any, look: Any, kit: Any) -> None:
    store, task, target = one.store, product(), kit.target()
    store.add_task(task)
    store.add_target(target)
    first, *rest = others(task, target, 4)
    store.record(Record(task.key, target.key, first, good(1e-3)))
    for schedule in rest:
        import_record(store, task, target, schedule)
    page, view = look(f"/tasks/{task.key}")
    assert (view["trials"], view["imported"], view["shown"], view["analysis"]["sampled"]) == (1, 3, 4, 1)
    assert "1 of all jobs, and 3 imported" in page.words


def test_the_fleet_covers_what_it_timed(one: Any, shown_client: Any, kit: Any) -> None:
    store, target = one.store, kit.target()
    kit.enlist(store, target)
    timed, imported, nothing = product(), product(32), product(16)
    for task in (timed, imported, nothing):
        store.add_task(task)
    tasks = tuple(SpecTask(task.key, 1) for task in (timed, imported, nothing))
    store.jobs.submit(JobSpec("ab" * 32, target.key, tasks, {}), "m", SearchBudget(100))
    store.record(Record(timed.key, target.key, others(timed, target, 1)[0], good(1e-3)))
    import_record(store, imported, target, others(imported, target, 1)[0])
    page, view = whole(shown_client.get("/fleet")), shown_client.get("/v1/pages/fleet").json()
    [line] = view["coverage"]
    assert (line["tasks"], line["imported"], line["lacking"]) == (1, 1, 2)
    assert {gap["task"]: gap["is_imported"] for gap in view["gaps"]} == {imported.key: True, nothing.key: False}
    assert "1, and 1 imported" in page.words and "imported alone" in page.words


def test_a_target_has_one_peak(one: Any, look: Any, kit: Any) -> None:
    """That which a job measured, on the pages of tasks that it had nothing to do with too."""
    store, target = one.store, kit.target()
    store.add_target(target)
    store.add_task(product())
    store.record(Record(product().key, target.key, others(product(), target, 1)[0], good(1e-3)))
    assert "estimated peak" in look(f"/tasks/{product().key}")[0].words
    for number, peak in enumerate((92.0, 207.0, 92.0, None, "x", 0.0)):
        other = product(16 + number)
        store.add_task(other)
        spec = JobSpec("ab" * 32, target.key, (SpecTask(other.key, 1),), {})
        store.jobs.submit(spec, "m", SearchBudget(100))
        lease = store.jobs.lease([target.key], "host-1:1")
        store.jobs.finish(lease, JobState.SUCCEEDED, result={"peak_gflops": peak})
    page, view = look(f"/tasks/{product().key}")
    assert (view["ceilings"]["peak_flops_s"], view["ceilings"]["is_measured"]) == (207e9, True)
    assert "measured peak 207 GFLOP/s" in page.words and "estimated peak" not in page.words
