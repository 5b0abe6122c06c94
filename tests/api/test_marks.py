"""Marks of figures, wherever the command line tells them: each that occurs has its legend, and no legend is alone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from rich.console import Console

from tunewright.api.client import Job, JobEvent, commands
from tunewright.api.client.watch import JobMonitor
from tunewright.codegen.codec import from_json
from tunewright.tuner.cli import bench_report, lookup_tables, run, task_details, tune_report
from tunewright.tuner.search import view as views
from tunewright.tuner.text import NOISE_LEGEND, NOISE_MARK, TRIAL_LEGEND, TRIAL_MARK

from ..tuner.test_cli_tables import MEASURED, MEASURED_ON_GPU, TASK, TUNED
from .test_client import JOB

NOISE = "others took 40% of the processors"

WAYS = list(product((True, False), ("", NOISE)))
"""Whether a time is confirmed, and what disturbed it."""

SHOWN: dict[str, Any] = {
    "key": "a" * 64,
    "op": "Conv ~1 ms°",  # names have any letters
    "flops": 100,
    "target": "cpu:x",
    "task": {"inputs": [], "outputs": []},
    "spaces": [],
    "schedule": TASK["schedule"],
    "match": "exact",
    "expected_ms": 1.0,
    "prediction": None,
}

RAN: dict[str, Any] = {
    "inputs": [],
    "outputs": [],
    "tasks": MEASURED["tasks"],
    "first_run_ms": 1.0,
    "runtime": "",
    "fallback": {"NonZero ~1 ms°": 1},
    "reasons": [],
}


def tuned(is_confirmed: bool, noise: str) -> dict[str, Any]:
    provenance = {"noise": noise} if noise else {}
    task = {"confirmed": is_confirmed, "noise": noise, "provenance": provenance, "op": "Conv ~1 ms°", "job_trials": 3}
    return TUNED | {"tasks": [TASK | task], "noise": noise}


def measured(is_confirmed: bool, noise: str) -> dict[str, Any]:
    told = {"status": "ok", "median_ms": 1.0, "low_ms": 0.9, "high_ms": 1.1, "trial_ms": None, "imported": False}
    return SHOWN | {"measured": told | {"confirmed": is_confirmed, "noise": noise}}


def listed(is_confirmed: bool, noise: str) -> list[Job]:
    result = tuned(True, noise)
    return [from_json(Job, JOB | {"result": result} if is_confirmed else JOB | {"progress": result | {"noise": ""}})]


def begun(is_confirmed: bool, noise: str) -> Job:
    """One that has no result: of all its tasks together it tells trials."""
    sums = {"default_ms": 3.0, "tuned_ms": 2.0, "speedup": 1.5, "noise": noise}
    told = {"stage": "confirming", "trials": 7, "confirmed": int(is_confirmed), "to_confirm": 1} | sums
    return from_json(Job, JOB | {"state": "running", "holder": "host:1", "result": None, "progress": told})


def untimed(is_confirmed: bool, noise: str) -> dict[str, Any]:
    """Nothing is known of the one task, and the model was not timed: what disturbed is of no figure."""
    task = TASK | {"confirmed": is_confirmed, "noise": noise, "default_ms": None, "best_ms": None, "gflops": None}
    return TUNED | {"tasks": [task | {"fraction_of_peak": None}], "noise": noise, "whole_model": "it has no weights"}


def taskless(is_confirmed: bool, noise: str) -> dict[str, Any]:
    del is_confirmed
    whole = {"default_interval_ms": (1476.0, 1494.0), "fallback": {"NonZero": 1}, "fallback_share": 0.99}
    return TUNED | {"tasks": [], "noise": noise} | whole


def watched(is_confirmed: bool, noise: str) -> views.JobMoment:
    view = JobMonitor(from_json(Job, JOB | {"state": "running"}))
    [task, *_] = from_json(Job, JOB).tasks
    data = {"task_key": task.key, "op": "Conv ~1 ms°", "default_ms": 2.0, "best_ms": 1.0, "noise": noise}
    view.update(JobEvent(7, 1, "confirmed" if is_confirmed else "default", data, datetime.now(UTC)))
    return view.moment()


def render_moment(console: Console, moment: views.JobMoment) -> None:
    live = views._LiveView(console)
    live.show(replace(moment, note=""))
    console.print(live.render())


CASES: dict[str, tuple[Callable[..., None], Callable[[bool, str], Any]]] = {
    "tune, jobs show": (tune_report.render, tuned),
    "tune without tasks": (tune_report.render, taskless),
    "tune without times": (tune_report.render, untimed),
    "jobs list": (commands.render_jobs, listed),
    "jobs show of one that goes on": (commands.render_job, begun),
    "tasks": (lookup_tables.render_tasks, tuned),
    "lookup": (lookup_tables.render_lookup, tuned),
    "show": (task_details.render, measured),
    "run": (run.render, lambda is_confirmed, noise: RAN),
    "bench": (bench_report.render, lambda is_confirmed, noise: MEASURED | {"noise": noise}),
    "bench on a GPU": (bench_report.render, lambda is_confirmed, noise: MEASURED_ON_GPU | {"noise": noise}),
    "submit --watch": (render_moment, watched),
}


def printed(render: Callable[..., None], data: Any) -> str:
    out = io.StringIO()
    render(Console(file=out, width=160, height=40, markup=False, emoji=False, highlight=False), data)
    return out.getvalue()


def marks(out: str) -> list[bool]:
    """Whether each mark is at a figure, names of models aside."""
    figures = re.sub(r"(Conv|NonZero) ~1 ms°", "", out)
    return [re.search(rf"{NOISE_MARK}\d", figures) is not None, re.search(rf"[\w\]%]{TRIAL_MARK}", figures) is not None]


@pytest.mark.parametrize(("is_confirmed", "noise"), WAYS)
@pytest.mark.parametrize("name", CASES)
def test_each_mark_has_its_legend_and_no_legend_is_alone(name: str, is_confirmed: bool, noise: str) -> None:
    render, made = CASES[name]
    out = printed(render, made(is_confirmed, noise))
    legends = [out.count(f"{NOISE_MARK} {NOISE_LEGEND}"), out.count(f"{TRIAL_MARK} {TRIAL_LEGEND}")]
    assert legends == marks(out), out
    assert (f"{NOISE_LEGEND}: {NOISE}" in out) == bool(legends[0])


def test_the_reason_is_that_of_a_figure_that_is_marked() -> None:
    """Where there is no gain nothing is marked, however busy the machine was."""
    [quiet], [noisy] = listed(True, "no figure is marked for this"), listed(True, NOISE)
    flat = from_json(Job, quiet.to_json() | {"result": quiet.result | FLAT})  # type: ignore[operator]
    out = printed(commands.render_jobs, [flat, noisy])
    assert out.count(NOISE_MARK) == 2 and f"{NOISE_LEGEND}: {NOISE}" in out


FLAT = {"default_ms": 2.0, "tuned_ms": 2.0}

ALWAYS = ("tune, jobs show", "tasks", "lookup", "show", "submit --watch")
"""What tells times of tasks."""


@pytest.mark.parametrize("name", [*ALWAYS, "tune without tasks", "bench", "jobs list"])
def test_what_was_taken_on_a_busy_machine_is_marked(name: str) -> None:
    render, made = CASES[name]
    assert marks(printed(render, made(True, NOISE))) == [True, False]


@pytest.mark.parametrize("name", [*ALWAYS, "jobs list"])
def test_what_is_by_trials_is_marked(name: str) -> None:
    render, made = CASES[name]
    assert marks(printed(render, made(False, ""))) == [False, True]


def test_a_job_that_goes_on_is_told_by_its_trials() -> None:
    out = printed(commands.render_job, begun(True, NOISE))
    assert "the sum of its tasks: ~3.00 ms° by default, ~2.00 ms° so far: ~1.50x° as fast" in out
    assert "at work on it: host:1; timing default and best schedules side by side: 1 of 1 task\n" in out
    paused = printed(commands.render_job, replace(begun(True, ""), state="paused", holder=""))
    assert "it was paused while timing default and best schedules side by side: 1 of 1 task\n" in paused
    assert "so far: no gain" in printed(commands.render_job, replace(begun(True, ""), progress=FLAT))
    assert "as fast" not in printed(commands.render_job, replace(begun(True, ""), progress={"trials": 1}))


def test_a_confirmed_default_beside_a_trial_has_no_mark_in_the_sum_either() -> None:
    job = begun(True, "")
    out = printed(commands.render_job, replace(job, progress={**(job.progress or {}), "is_default_tried": False}))
    assert "the sum of its tasks: 3.00 ms by default, 2.00 ms° so far: 1.50x° as fast" in out
    assert f"{TRIAL_MARK} {TRIAL_LEGEND}" in out


def test_a_confirmed_sum_is_told_from_a_model_that_was_timed() -> None:
    """While a job times the whole model, all its tasks are confirmed: no mark, and no interval."""
    [timed], summed = listed(True, ""), replace(begun(True, ""), progress=SUMMED)
    assert commands.SUM_LEGEND in printed(commands.render_jobs, [timed, summed])
    assert commands.SUM_LEGEND not in printed(commands.render_jobs, [timed, *listed(False, "")])
    flat = replace(summed, progress=SUMMED | FLAT)
    assert commands.SUM_LEGEND not in printed(commands.render_jobs, [flat])


SUMMED = {"stage": "running", "trials": 60, "default_ms": 3.0, "tuned_ms": 2.0, "is_tried": False}


def test_all_figures_of_a_task_are_marked() -> None:
    [row] = [line for line in printed(tune_report.render, tuned(False, NOISE)).splitlines() if "1234.5" in line]
    assert row.split("1 ms°")[1].split() == [
        "12",
        "3",
        "~123",
        "ms°",
        "~98.7",
        "µs°",
        "~1250.25x°",
        "~54.3%°",
        "~1234.5°",
    ]


def test_a_model_without_tasks_is_told_as_any_other() -> None:
    out = printed(tune_report.render, taskless(True, NOISE))
    assert "the whole model: ~1.48 s (1.48 s to 1.49 s)" in out
    assert "~99% of the model's time is in 1 NonZero" in out


def test_of_several_reasons_one_is_an_example() -> None:
    data = tuned(True, NOISE)
    out = printed(tune_report.render, data | {"tasks": [data["tasks"][0] | {"noise": "another"}]})
    assert f"{NOISE_LEGEND}, for example: {NOISE}\n" in out


def test_a_schedule_has_the_reasons_of_both_its_times_as_on_pages() -> None:
    data = measured(True, NOISE)
    beside = {"trial_ms": 1.2, "trial_noise": "its times lie apart"}
    prediction = {"expected_ms": 1.1, "deviation": 0.5, "judged_on": 12, "contributions": []}
    out = printed(task_details.render, data | {"measured": data["measured"] | beside, "prediction": prediction})
    assert f"{NOISE_LEGEND}: {NOISE}; or, at another time, its times lie apart\n" in out


def imported(noise: str = "") -> Mapping[str, Any]:
    data = tuned(False, noise)
    tasks = [data["tasks"][0] | {"basis": basis} for basis in ("imported", "measured")]
    return data | {"tasks": tasks}


@pytest.mark.parametrize("render", [lookup_tables.render_tasks, lookup_tables.render_lookup])
def test_one_record_is_marked_alike(render: Callable[..., None]) -> None:
    out = printed(render, imported(NOISE))
    assert "~98.7 µs, imported" in out and "~98.7 µs°" in out
    assert "imported: by another database, not measured here" in out
    assert "imported" not in printed(render, tuned(True, ""))


def test_what_was_imported_is_not_called_tuned() -> None:
    assert "1 of 2 tasks are tuned for cpu:x:8x256, 1 by what was imported" in printed(
        lookup_tables.render_lookup, imported()
    )


@pytest.mark.parametrize(
    ("match", "basis"), [("sibling", "sibling"), ("nearest", "scaled"), ("predicted", "predicted")]
)
def test_what_was_not_measured_here_is_told_in_words(match: str, basis: str) -> None:
    task = tuned(False, "")["tasks"][0] | {"match": match, "basis": basis}
    out = printed(lookup_tables.render_lookup, TUNED | {"tasks": [task]})
    assert f"98.7 µs, {basis}" in out and marks(out) == [False, False]
    assert f"\n{basis}: " in out


def test_what_was_imported_is_shown_as_such() -> None:
    data = measured(False, "")
    out = printed(task_details.render, data | {"measured": data["measured"] | {"imported": True}})
    assert "measured by another database, not here, 1.00 ms (900 µs to 1.10 ms)" in out


def test_rows_that_are_left_out_have_no_legend() -> None:
    lines = [
        views.TaskFigures("Conv", 1, 1, 3, 2e-3, 1e-3, is_confirmed=n < 9, is_default_confirmed=n < 9)
        for n in range(10)
    ]
    moment = replace(watched(True, ""), tasks=tuple(lines))
    out = io.StringIO()
    render_moment(Console(file=out, width=100, height=12, markup=False, highlight=False), moment)
    assert "more" in out.getvalue() and TRIAL_MARK not in out.getvalue()


@pytest.mark.parametrize(("label", "name"), [("", str(JOB["model"])[:12]), ("small.onnx", "small.onnx")])
def test_a_job_without_a_label_is_named_by_its_model(label: str, name: str) -> None:
    """As on the pages."""
    job = from_json(Job, JOB | {"label": label})
    for text in (printed(commands.render_state, job), printed(commands.render_jobs, [job])):
        assert name in text
