"""One record has one mark for noise, wherever it is shown, and no reason is longer than a line has room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunewright.search_space.measurement import DRIFT, NOISE, Record
from tunewright.search_space.sketches import default_schedule
from tunewright.tuner.cli import lookup, lookup_tables, task_details
from tunewright.tuner.lookup import ladder
from tunewright.tuner.noise import LONGEST_NOISE

from .examples import Tried, good, others, product, tried

pytestmark = pytest.mark.usefixtures("prompt_pages")


DISTURBED = {
    "quiet": good(1e-3),
    "spread": replace(good(1e-3), low_s=0.5e-3, high_s=1.5e-3),  # which no note says
    "spread of few": replace(good(1e-3), samples_s=(1e-3,) * 3, low_s=0.5e-3, high_s=1.5e-3),  # which have no interval
    "noted": replace(good(1e-3), provenance={NOISE: "others took 40%"}),
    "timed beside what was held up once": replace(good(1e-3), provenance={DRIFT: "0.08"}),  # by an older version
    "slow moment": replace(good(1e-3), provenance={DRIFT: "0.5"}),
    "strange": replace(good(1e-3), provenance={DRIFT: "nan or not"}),
    "endless": replace(good(1e-3), provenance={NOISE: "x" * 1999}),
}
"""The same time, and what may be known of its noise."""

RELIABLE = "quiet", "slow moment", "strange"


def told_by_commands(made: Tried) -> dict[str, str]:
    """The noise of the best that commands tell, by their names."""
    found = ladder.lookup_measured(made.store, [made.task], made.target)[made.task.key]
    shown = task_details._measurement_json(made.store, made.task, made.target, found.schedule) or {}
    return {
        "show": shown["noise"],
        "show, of the trial": shown["trial_noise"],
        "tasks": lookup._task_json(found)["noise"],
        "lookup": lookup_tables._noise(found.to_json()),
    }


@pytest.mark.parametrize("kind", DISTURBED)
def test_one_record_has_one_mark(one: Any, look: Any, kit: Any, kind: str) -> None:
    made = tried(one.store, kit.target(), 0)
    [best] = others(made.task, made.target, 1)
    made.record(best, DISTURBED[kind])
    task_page, task = look(made.path())
    schedule_page, schedule = look(made.path(best))
    records_page, records = look("/records", task=made.task.key, on=made.target.key)
    [row] = [row for row in task["rows"] if row["schedule"]["key"] == best.key]
    told = {
        "best": task["best"]["noise"],
        "row": row["noise"],
        "point": next(point["noise"] for point in task["analysis"]["points"] if point["schedule"] == best.key),
        "gain": task["gain"]["noise"],
        "trial": schedule["trial"]["noise"],
        "record": records["records"][0]["noise"],
        **told_by_commands(made),
    }
    assert len(set(told.values())) == 1, told
    reason = told["best"]
    assert bool(reason) is (kind not in RELIABLE) and len(reason) <= LONGEST_NOISE
    for page in (task_page, schedule_page, records_page):
        figures = page.words.count("1.00 ms°")
        assert figures and page.words.count("~1.00 ms°") == (figures if reason else 0)


@pytest.mark.parametrize("samples", [3, 5])
def test_few_samples_have_no_interval_wherever_they_are_told(one: Any, look: Any, kit: Any, samples: int) -> None:
    made = tried(one.store, kit.target(), 0)
    [best] = others(made.task, made.target, 1)
    made.record(best, good(1e-3, samples))
    task_page, task = look(made.path())
    schedule_page, schedule = look(made.path(best))
    records_page, records = look("/records", task=made.task.key, on=made.target.key)
    [row] = [row for row in task["rows"] if row["schedule"]["key"] == best.key]
    found = ladder.lookup_measured(made.store, [made.task], made.target)[made.task.key]
    shown = task_details._measurement_json(made.store, made.task, made.target, found.schedule) or {}
    told = {
        "best": task["best"]["interval_ms"],
        "row": row["interval_ms"],
        "trial": schedule["trial"]["interval_ms"],
        "record": records["records"][0]["interval_ms"],
        "lookup on a page": records["tried"]["item"]["interval_ms"],
        "lookup": found.to_json()["interval_ms"],
        "show": shown["low_ms"] and [shown["low_ms"], shown["high_ms"]],
    }
    expected = pytest.approx([0.99, 1.01]) if samples == 5 else None
    assert all(interval == expected for interval in told.values()), told
    for page in (task_page, schedule_page, records_page):
        assert ("990 µs to 1.01 ms" in page.words) is (samples == 5)


def test_the_noise_of_the_default_marks_no_other_time(one: Any, look: Any, kit: Any) -> None:
    task, target = product(), kit.target()
    one.store.add_task(task)
    one.store.add_target(target)
    noisy = replace(good(2e-3), provenance={NOISE: "others took 40%"})
    for schedule, measured in ((others(task, target, 1)[0], good(1e-3)), (default_schedule(task, target), noisy)):
        one.store.record(Record(task.key, target.key, schedule, measured))
    page, view = look(f"/tasks/{task.key}")
    assert view["best"]["noise"] == "" and view["gain"]["default_noise"] == view["gain"]["noise"] == "others took 40%"
    assert "~1.00 ms" not in page.words and "The default takes ~2.00 ms" in page.words and "~2.00x" in page.words
