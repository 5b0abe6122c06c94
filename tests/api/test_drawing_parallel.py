"""Parallel coordinates and their scatter: places, bands, and what a script needs to know of the axes."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from tunewright.api.dashboard.drawing.choices import ChoiceScale, MomentScale
from tunewright.api.dashboard.drawing.parallel import DEPTH, Band, BrushAxis, Explored
from tunewright.api.dashboard.drawing.scales import AxisSpec, Unit, scale

TIMES_S = [1e-3, 2e-3, 4e-3, None]
TILES = [1.0, 8.0, 2.0, 1.0]
TIME = BrushAxis(
    "time", "time", scale([1e-3, 4e-3], AxisSpec("time", Unit.TIME, True)), TIMES_S, factor=1e3, fails=True
)
TILE = BrushAxis("knob.tile", "tile", ChoiceScale.of({1.0: "1", 2.0: "2", 8.0: "8"}), TILES, is_whole=True)
DRAWING = Explored([Band("best", 1), Band("fast", 1, False), Band("slow", 1), Band("failed", 1)], "Four trials.")


def paths(drawn: str) -> dict[str, str]:
    """Class -> path data of the marks."""
    return dict(re.findall(r'<path class="([^"]*(?:kept|dropped))" d="([^"]*)"', drawn))


def test_each_trial_is_a_line_at_its_place() -> None:
    drawn = DRAWING.parallel("Trials", [TILE, TIME], "")
    third, low, high = DEPTH / 6, 0.1 * DEPTH, DEPTH
    assert paths(drawn) == {
        "line fast dropped": f"M0 {round(third)} 1 {round((low + high) / 2)}",
        "line failed kept": f"M0 {round(5 * third)} 1 0",
        "line slow kept": f"M0 {round(3 * third)} 1 {round(low)}",
        "line best kept": f"M0 {round(5 * third)} 1 {round(high)}",
    }
    assert list(paths(drawn))[-1] == "line best kept"  # it lies on top
    assert [int(first) for first in re.findall(r'data-first="(\d+)"', drawn)] == [1, 3, 2, 0]
    assert "<title>Trials</title>" in drawn and "Axes: tile, time. Four trials." in drawn
    assert ">failed</text>" in drawn


def test_axes_say_how_they_are_read() -> None:
    drawn = DRAWING.parallel("Trials", [TILE, TIME], "")
    assert 'data-column="knob.tile" data-low="1" data-high="8" data-values="1 2 8" data-whole="1"' in drawn
    assert 'data-column="time" data-low="1" data-high="4" data-log="1" data-part="0.9" data-place="1"' in drawn


def test_what_is_chosen_is_marked() -> None:
    chosen = BrushAxis("knob.tile", "tile", TILE.scale, TILES, chosen=(2.0, 100.0))
    assert chosen.reach() == pytest.approx((1 / 3, 1.0))
    assert BrushAxis("knob.tile", "tile", TILE.scale, TILES, chosen=(3.0, 7.0)).reach() == (0.0, 0.0)
    within = BrushAxis("time", "time", TIME.scale, TIMES_S, chosen=(2e-3, float("inf")), factor=1e3)
    assert within.reach() == pytest.approx((0.5, 1.0))
    assert TILE.reach() is None
    assert DRAWING.parallel("Trials", [chosen, within], "").count('class="chosen"') == 2
    assert DRAWING.scatter("Trials", chosen, within, "").count('class="chosen"') == 1
    assert 'class="chosen"' not in DRAWING.scatter("Trials", TILE, TIME, "")


def test_each_trial_is_a_dot_and_those_without_a_place_are_none() -> None:
    drawn = DRAWING.scatter("Trials", TILE, TIME, "")
    assert paths(drawn) == {
        "dots fast dropped": "M833 500h.1",
        "dots failed kept": "M-9-9",
        "dots slow kept": "M500 0h.1",
        "dots best kept": "M167 1000h.1",
    }
    assert "failed" not in drawn.partition("<ul")[2]  # nor have they a line of the legend


@pytest.mark.parametrize("axes", [[], [TIME]])
def test_nothing_to_draw_is_a_sentence(axes: list[BrushAxis]) -> None:
    assert "Nothing differs." in DRAWING.parallel("Trials", axes, "Nothing differs.")
    nowhere = BrushAxis("time", "time", TIME.scale, [None] * 4)
    assert "Nothing is timed." in DRAWING.scatter("Trials", TILE, nowhere, "Nothing is timed.")


def test_names_are_text() -> None:
    axis = BrushAxis('knob."><script>', "<script>\u202e", ChoiceScale.of({1.0: "<b>"}), [1.0] * 4, words="<i>")
    for drawn in (DRAWING.parallel("<h1>", [axis, axis], ""), DRAWING.scatter("<h1>", axis, axis, "")):
        assert not re.search(r"<(script|b|i|h1)>", drawn) and "\u202e" not in drawn


def test_choices_stand_beside_each_other() -> None:
    choices = ChoiceScale.of({float(4**n): str(4**n) for n in range(12)})
    assert [choices.place(value) for value in (1, 4, 4**11)] == pytest.approx([1 / 24, 3 / 24, 23 / 24])
    assert choices.place(5) == choices.place(16) and choices.place(1e9) == choices.place(4**11)
    assert len(choices.ticks(5)) <= 5 and len(choices.ticks(12)) == 12
    assert [tick.text for tick in choices.ticks_within(200)] == [str(4**n) for n in range(12)]
    assert len(choices.ticks_within(20)) < 6


def test_moments_are_written_as_such() -> None:
    begin = datetime(2026, 11, 20, 9, 30, tzinfo=UTC).timestamp()
    texts = {
        hours: [tick.text for tick in MomentScale(begin, begin + 3600 * hours).ticks(6)]
        for hours in (0.002, 5, 24 * 40)
    }
    assert texts[5][0] == "11-20 10:00"
    assert texts[0.002][0].startswith("09:30:0") and texts[24 * 40][0].startswith("2026-11-")
    assert all(0 < len(each) <= 6 for each in texts.values())
