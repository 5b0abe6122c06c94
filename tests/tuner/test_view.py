"""What `tune` and `jobs watch` show on a terminal while a job runs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tunewright.db.job import SearchBudget
from tunewright.search_space.measurement import Measurement, Status
from tunewright.tuner.search import view as views
from tunewright.tuner.search.progress import Progress
from tunewright.tuner.search.stage import JobStage
from tunewright.tuner.search.view import FurtherGain, JobMoment, TaskFigures, progress_view, shares
from tunewright.tuner.text import BARS, sparkline, trials_done

OP = "Conv + BatchNormalization + Relu + Add + Clip + MaxPool of a name that never ends"

LINES = (
    TaskFigures(OP, 12, 12, 1234, 0.1234, 0.0000987, 0.4213, 0.1),
    TaskFigures("\x1b[31mGemm", 3, 0, 7, None, None, 0.2, 0.0),
)

MOMENT = JobMoment(
    stage=JobStage.SEARCHING,
    trials=120,
    budget=200,
    elapsed_s=6.0,
    left_s=4.0,
    speedup=1.04,
    remaining_gain=0.015,
    known=0,
    tasks=LINES,
    taken_at=0.0,
    failed={"crash": 2, "wrong_result": 1},
    again=FurtherGain(70.0, 0.021, OP, 0.0123),
)


def test_trials_that_nothing_bounds() -> None:
    unbounded = replace(MOMENT, budget=None)
    assert "1.04x as fast by trials so far, 120 trials, 0:06 elapsed" in drawn(unbounded)
    assert "going on with the job: 120 trials were done before" in drawn(unbounded)
    assert "going on with the job: 120 of 200 trials were done before" in drawn(MOMENT)


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "time", SimpleNamespace(monotonic=lambda: 0.0))


def drawn(*moments: JobMoment, width: int = 120, height: int = 30, encoding: str = "utf-8") -> str:
    """The live view after these moments."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None, highlight=False)
    view = views._LiveView(console)
    for moment in moments:
        view.show(moment)
    console.print(view.render())
    out.seek(0)
    return out.read()


def curve(*speedups: float) -> list[JobMoment]:
    return [replace(MOMENT, trials=10 * n, speedup=speedup) for n, speedup in enumerate(speedups)]


class TestTheTable:
    def test_what_part_of_a_run_each_task_takes(self) -> None:
        rows = drawn(MOMENT).splitlines()
        [head] = [row for row in rows if "default ms" in row]
        assert head.split()[-3:] == ["of", "all", "before"]
        [conv] = [row for row in rows if row.strip().startswith("Conv")]
        assert conv.split()[-5:] == ["123.4°", "0.09870°", "1250.25x°", "10.0%", "42.1%"]

    def test_times_of_trials_are_marked_until_they_are_confirmed(self) -> None:
        assert "° by trials, not confirmed" in drawn(MOMENT)
        assert "°" not in drawn(replace(MOMENT, tasks=LINES[1:]))  # nothing is known yet
        confirmed = drawn(
            replace(MOMENT, tasks=(replace(LINES[0], is_confirmed=True, is_default_confirmed=True), LINES[1]))
        )
        assert "0.09870" in confirmed and "°" not in confirmed
        found_since = drawn(replace(MOMENT, tasks=(replace(LINES[0], is_default_confirmed=True), LINES[1])))
        assert "123.4 " in found_since and "0.09870°" in found_since and "1250.25x°" in found_since

    def test_a_sum_of_noisy_times_is_noisy(self) -> None:
        quiet, noisy = (replace(MOMENT, speedup=2.0, noise=noise) for noise in ("", "it was busy"))
        assert "2.00x as fast by trials so far" in drawn(quiet) and "~" not in drawn(quiet)
        assert "~2.00x as fast by trials so far" in drawn(noisy) and "rely on it: it was busy" in drawn(noisy)

    @pytest.mark.parametrize("width", [80, 99, 100, 160])
    def test_every_number_is_whole(self, width: int) -> None:
        out = drawn(*curve(1.0, 1.5), MOMENT, width=width)
        assert all(len(line) <= width for line in out.splitlines())
        for number in ("0 of 3", "1234", "123.4", "0.09870", "1250.25x", "10.0%"):
            assert number in out, number
        assert ("42.1%" in out) == (width >= views.WIDE)

    def test_where_it_is_not_known_what_they_took_before(self) -> None:
        lines = tuple(replace(line, before_share=None) for line in LINES)
        assert "before" not in drawn(replace(MOMENT, tasks=lines)).splitlines()[1]

    @pytest.mark.parametrize("width", [80, 120])
    @pytest.mark.parametrize("height", [16, 24, 50])
    def test_it_has_room(self, height: int, width: int) -> None:
        moment = replace(MOMENT, tasks=LINES[:1] * 100, note="improved")
        out = drawn(*curve(1.0, 1.5), moment, height=height, width=width)
        assert len(out.splitlines()) <= height
        assert re.search(r"and \d+ more", out)

    def test_no_terminal_obeys_a_name(self) -> None:
        assert "\x1b[31m" not in drawn(MOMENT) and "\\x1b[31mGemm" in drawn(MOMENT)


class TestTheLines:
    def test_how_trials_failed(self) -> None:
        assert "3 trials of this run failed: 2 crash, 1 wrong_result" in drawn(MOMENT)
        assert "1 trial of this run failed: 1 crash" in drawn(replace(MOMENT, failed={"crash": 1}))
        assert "failed" not in drawn(replace(MOMENT, failed={}))

    def test_what_more_budget_would_bring(self) -> None:
        said = "by trials, 2.1% more is expected of searching for as long again, most of it of Conv + BatchNorma"
        spread = FurtherGain.of(70.0, 0.021, ["Gemm", "Conv"], [0.004, 0.003])
        assert "of single tasks most of Gemm (0.4% of the time" in drawn(replace(MOMENT, again=spread), width=160)
        [line] = [line for line in drawn(MOMENT, width=160).splitlines() if line.startswith("by trials, ")]
        assert line.startswith(said) and line.endswith("... (1.2% of the time of all tasks)")
        assert "most of it" not in drawn(replace(MOMENT, again=FurtherGain(70.0, 0.021)))
        assert "searching for a minute more" in drawn(replace(MOMENT, again=FurtherGain(60.0, 0.021)))
        assert "as long again" not in drawn(replace(MOMENT, again=None))

    def test_the_curve(self) -> None:
        [line] = [line for line in drawn(*curve(1.0, 1.0, 1.5, 1.5, 2.0)).splitlines() if "█" in line]
        bars = line.removeprefix("as fast as by default: 1.00x° ").removesuffix(" 2.00x°").strip()
        assert len(bars) == views.CURVE_CELLS
        assert list(bars) == sorted(bars) and bars[0] == BARS[0] and bars[-1] == BARS[-1]

    def test_both_ends_of_the_curve_are_marked(self) -> None:
        start, *rest = curve(1.0, 1.5, 2.0)
        shown = drawn(replace(start, noise="it was busy"), *rest[:-1], replace(rest[-1], is_tried=False))
        [line] = [line for line in shown.splitlines() if "█" in line]
        assert "default: ~1.00x° " in line and line.rstrip().endswith(" 2.00x")

    def test_where_there_is_no_curve(self) -> None:
        assert "as fast as by default:" not in drawn(*curve(1.0, 1.0, 1.001))
        assert "as fast as by default:" not in drawn(*curve(1.0, 2.0), encoding="ascii")

    def test_the_last_line_is_what_it_was(self) -> None:
        wanted = (
            "searching: 1.04x as fast by trials so far, 120 of 200 trials, 0:06 elapsed, about 0:04 left, "
            "1.5% more expected"
        )
        assert drawn(MOMENT).splitlines()[-1].strip() == wanted

    def test_what_trials_told_is_gone_once_schedules_are_compared(self) -> None:
        """Side by side they may take other times."""
        assert "so far" not in drawn(replace(MOMENT, stage=JobStage.CONFIRMING))


def test_where_there_is_no_terminal_failures_are_told_when_the_search_is_over() -> None:
    lines: list[str] = []
    view = views._LineView(lines.append)
    view.show(MOMENT)
    assert not any("failed" in line for line in lines)
    for stage in (JobStage.LEARNING, JobStage.CONFIRMING):
        view.show(replace(MOMENT, stage=stage, failed={"timeout": 1, "crash": 2}))
    assert [line for line in lines if "failed" in line] == ["3 trials of this run failed: 2 crash, 1 timeout"]
    assert "failed" in lines[-3]


def test_failures_are_counted_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments are taken now and then, but no trial is missed."""
    shown: list[JobMoment] = []
    monkeypatch.setattr(views._LineView, "show", lambda view, moment: shown.append(moment))
    monkeypatch.setattr(views, "MOMENT_S", -1.0)
    at: Any = {"trials": 0, "budget": SearchBudget(9), "elapsed_s": 0.0, "tasks": ()}
    with progress_view(Console(file=io.StringIO())) as watch:
        for status in (Status.CRASH, Status.OK, Status.CRASH, Status.TIMEOUT):
            last: Any = (None, None, Measurement(status))
            watch(Progress(JobStage.SEARCHING, **at, last=last))
        watch(Progress(JobStage.CONFIRMING, **at))
    assert [dict(moment.failed) for moment in shown] == [
        {"crash": 1},
        {"crash": 1},
        {"crash": 2},
        {"crash": 2, "timeout": 1},
        {"crash": 2, "timeout": 1},
    ]


@pytest.mark.parametrize(
    ("counts", "times_s", "parts"),
    [
        ([1, 2], [2.0, 3.0], [0.25, 0.75]),
        ([1, 0], [2.0, None], [1.0, 0.0]),
        ([1, 1], [2.0, None], [None, None]),
        ([0, 0], [2.0, None], [None, None]),
        ([], [], []),
    ],
)
def test_shares(counts: list[int], times_s: list[float | None], parts: list[float | None]) -> None:
    assert shares(counts, times_s) == parts


def test_what_more_is_expected_of() -> None:
    assert FurtherGain.of(60.0, 0.1, ["a", "b", "c"], [0.01, None, 0.02]) == FurtherGain(60.0, 0.1, "c", 0.02)
    assert FurtherGain.of(60.0, 0.1, ["a", "b"], [0.0, None]) == FurtherGain(60.0, 0.1)
    assert FurtherGain.of(60.0, 0.0, [], []) == FurtherGain(60.0, 0.0)


@pytest.mark.parametrize(
    ("values", "drawing"), [([], ""), ([1.0, 1.0], "▁▁"), ([1.0, 2.0, 1.5], "▁█▅"), ([3.0, -1.0], "█▁")]
)
def test_sparklines(values: list[float], drawing: str) -> None:
    assert sparkline(values) == drawing


def test_trials_beyond_what_was_asked_for() -> None:
    """An earlier run of the job was to do more."""
    assert trials_done(72, 40) == "72 trials, 40 asked for"
    assert trials_done(12, 40) == "12 of 40 trials" and trials_done(1, None) == "1 trial"
