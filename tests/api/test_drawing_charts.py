"""Charts: well-formed and harmless whatever they are given, small, and as they were kept."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

import tunewright.api.dashboard.drawing
from tunewright.api.dashboard.drawing import svg
from tunewright.api.dashboard.drawing.bars import Bar, Share, bars, nest, shares
from tunewright.api.dashboard.drawing.charts import agreement, histogram, roofline
from tunewright.api.dashboard.drawing.figure import LINKS, Figure, Mark, Point, Series
from tunewright.api.dashboard.drawing.scales import AxisSpec, Unit
from tunewright.tuner.text import printable

TRIALS = AxisSpec("trials", Unit.COUNT, include=(0.0,))
TIME = AxisSpec("time of a run", Unit.TIME, is_log=True)
HOSTILE = "</title><script>alert(1)</script>\x00\x1b[2J\u202e\"'&\ud800"
LEVELS = {"L1": 1.2e12, "L2": 3e11, "memory": 2.5e10}
CSS = (Path(tunewright.api.dashboard.drawing.__file__).parent.parent / "static" / "charts.css").read_text(
    encoding="utf-8"
)


def parsed(markup: Markup) -> ET.Element:
    """The markup as XML; it is of this package alone, has no script and no style of its own."""
    assert isinstance(markup, Markup)
    root = ET.fromstring(str(markup))
    for node in root.iter():
        assert node.tag not in ("script", "style", "foreignObject")
        assert not any(name == "style" or name == "id" or name.startswith("on") for name in node.attrib)
        assert node.get("href", "/").startswith(("/", "#", "?", "http"))
    return root


def told(drawn: Markup) -> dict[str, Any]:
    """What the script is told of the figure that was drawn."""
    data: dict[str, Any] = json.loads(parsed(drawn).get("data-figure", ""))
    return data


def candidates(count: int, href: str | None = None) -> list[Point]:
    draw = random.Random(7)
    return [Point(10 ** draw.gauss(1, 0.4), 10 ** draw.uniform(9, 11), "1.23 ms", href) for _ in range(count)]


def steps(
    title: str, x: AxisSpec, y: AxisSpec, curves: list[Series], until: float | None = None, nothing: str = "-"
) -> Markup:
    return Figure("steps", title, x, y, curves, nothing=nothing, until=until).draw()


def curve(name: str, places: list[tuple[float, float]], note: str = "", href: str | None = None) -> Series:
    return Series(name, [Point(*place) for place in places], note=note, href=href)


def scatter(
    points: list[Point], axis: AxisSpec, other: AxisSpec | None = None, words: str = "", *marks: Mark
) -> Markup:
    return Figure("scatter", words, axis, other or axis, [Series("candidate", points, "dots")], marks, words).draw()


def step_chart() -> Markup:
    curves = [
        curve(f"Conv 1x{64 * n}x56x56", [(0, 3e-3 / n), (40 * n, 2e-3 / n), (300, 1e-3 / n)], f"{n} ms", f"/tasks/{n}")
        for n in range(1, 10)
    ]
    return steps("Best time of each task so far", TRIALS, TIME, curves, until=400, nothing="Nothing.")


def loop(kind: str, var: str, extent: int | str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "var": var, "extent": extent, "parts": list(parts)}


def both_sides(parts: list[Share]) -> Markup:
    return shares("Where the time goes", parts, before="default", after="tuned", nothing="Nothing.")


def share_chart() -> Markup:
    return both_sides([Share(f"task {n}", 1e-3 / n, 4e-4 / n, f"/tasks/{n}") for n in range(1, 10)])


def roof(points: list[Point], bandwidths: dict[str, float], title: str = "Roofline") -> Markup:
    figure = roofline(title, points, peak_flops_s=2.9e11, bandwidths=bandwidths, is_measured=False, nothing="-")
    return figure.draw()


def roof_chart() -> Markup:
    marks = [Mark(30, 2.4e11, "best", "/best"), Mark(2.5, 1.2e10, "default")]
    points = [
        Point(3, 1e10),
        Point(9, 4e10, "2 ms"),
        Point(20, 9e10, "1 ms", "/tasks/a/schedules/b?target=c"),
    ]
    return roofline(
        "Roofline", points, peak_flops_s=2.9e11, bandwidths=LEVELS, marks=marks, is_measured=True, nothing="Nothing."
    ).draw()


def agreement_chart() -> Markup:
    points = [Point(1e-3, 1.1e-3), Point(2e-4, 1.5e-4, "0.15 ms", "/x")]
    return agreement("Predicted against measured", points, marks=[Mark(1e-4, 9e-5, "best")]).draw()


def failure_chart() -> Markup:
    rows = [Bar("timeout", 120, "120"), Bar("wrong result", 3, "3")]
    return bars("Failures", rows, heads=("kind", "candidates"), nothing="Nothing failed.")


def reason_chart() -> Markup:
    rows = [Bar("bytes from memory", 0.8, "1.74x faster", "0.03 here, 0.5 by default"), Bar("spills", -0.3, "slower")]
    return bars("Why the model prefers it", rows, heads=("what", "effect"), kind="effect", nothing="Nothing.")


def time_chart() -> Markup:
    values = [1e-3 * 1.01**n for n in range(200)]
    return histogram("Times of the candidates", TIME, values, names="candidate").draw()


def outlier_chart() -> Markup:
    values = [1e-3 * (1 + 0.001 * n) for n in range(19)] + [9e-3]
    return histogram("Its samples", AxisSpec("time of a run", Unit.TIME), values, names="sample").draw()


def nest_chart() -> Markup:
    inner = loop("unroll", "i", 8, {"text": "acc[i] += a[i, k] * b[k]"})
    return nest("Loops of the best", [loop("parallel", "n", 56, loop("serial", "k", 64, inner), {"text": "store"})])


def empty_chart() -> Markup:
    return steps("Best time of each task so far", TRIALS, TIME, [], nothing="No tuner has begun with this job so far.")


CHARTS = {
    "steps": step_chart,
    "shares": share_chart,
    "roofline": roof_chart,
    "agreement": agreement_chart,
    "failures": failure_chart,
    "reasons": reason_chart,
    "times": time_chart,
    "outliers": outlier_chart,
    "nest": nest_chart,
    "empty": empty_chart,
}


def lines(drawn: Markup) -> str:
    """The markup with an element a line, so that a difference can be read."""
    return re.sub(r"(<(?:svg|g|li|tr|figure|ul|path|text|line)\b)", r"\n\1", str(drawn)).strip() + "\n"


@pytest.mark.parametrize("name", CHARTS)
def test_chart_is_as_it_was_kept(name: str, golden: Callable[[str, str], None]) -> None:
    drawn = CHARTS[name]()
    parsed(drawn)
    golden(f"drawing_{name}.html", lines(drawn))


@pytest.mark.parametrize("name", CHARTS)
def test_every_class_of_a_chart_is_in_the_style_sheet(name: str) -> None:
    known = set(re.findall(r"\.([a-z][a-z0-9-]*)", CSS))
    used = {word for node in parsed(CHARTS[name]()).iter() for word in node.get("class", "").split()}
    silent = {"bar", "blank", "data", "histogram", "named", "scatter", "serial", "step", "steps", "unseen"}
    assert used - known <= silent


@pytest.mark.parametrize("name", CHARTS)
def test_every_drawing_says_what_it_shows(name: str) -> None:
    root = parsed(CHARTS[name]())
    for box in root.iter("svg"):
        if box.get("role"):
            assert [child.tag for child in box][:2] == ["title", "desc"]
            assert all(child.text for child in list(box)[:2])
            has_links = any(True for _ in box.iter("a"))
            assert box.get("role") == ("group" if has_links else "img")
    assert any(box.get("role") for box in root.iter("svg")) or root.find(".//caption") is not None or name == "nest"


def test_all_words_are_escaped() -> None:
    mark = Mark(1e-3, 2e-3, "best")
    step = {"text": HOSTILE}
    parts = (step, loop(HOSTILE, HOSTILE, HOSTILE, step))
    axis = AxisSpec(HOSTILE, Unit.TIME, is_log=True)
    for drawn in (
        steps(HOSTILE, axis, axis, [curve(HOSTILE, [(1, 1), (2, 0.5)], HOSTILE)] * 9, nothing=HOSTILE),
        steps(HOSTILE, axis, axis, [], nothing=HOSTILE),
        scatter([Point(1, 1, HOSTILE)], axis, axis, HOSTILE, mark),
        roof([Point(1, 1, HOSTILE)], {HOSTILE: 1}, HOSTILE),
        agreement(HOSTILE, [Point(1, 1, HOSTILE)], marks=[mark]).draw(),
        shares(HOSTILE, [Share(HOSTILE, 1, 2)] * 9, before=HOSTILE, after=HOSTILE, nothing=HOSTILE),
        bars(HOSTILE, [Bar(HOSTILE, 1, *[HOSTILE] * 3)], heads=(HOSTILE, HOSTILE), nothing=HOSTILE),
        bars(HOSTILE, [Bar(HOSTILE, -1, *[HOSTILE] * 3)], heads=(HOSTILE, HOSTILE), kind="effect", nothing=HOSTILE),
        histogram(HOSTILE, axis, [1, 2], names=HOSTILE).draw(),
        nest(HOSTILE, parts),
    ):
        root = parsed(drawn)
        assert any("<script>" in (node.text or "") for node in root.iter())


@pytest.mark.parametrize(
    "href", ["javascript:alert(1)", "//evil.example", "/\\evil", "/\t/evil", "data:text/html,x", "", "/a b", " /a"]
)
def test_no_link_leads_to_a_script_or_by_accident_elsewhere(href: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        svg.link(href, "text")


def test_links_within_the_site_and_to_the_web_are_made() -> None:
    assert svg.link("/tasks/1?a=b&c=d", "x") == '<a href="/tasks/1?a=b&amp;c=d">x</a>'
    assert svg.link("https://tuning.example/jobs/1", "x") == '<a href="https://tuning.example/jobs/1">x</a>'
    assert svg.link(None, "<x>") == "&lt;x&gt;"


FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=20), st.booleans(), st.sampled_from(Unit))
def test_any_numbers_can_be_drawn(spots: list[tuple[float, float]], is_log: bool, unit: Unit) -> None:
    x, y = AxisSpec("x", unit, is_log), AxisSpec("y", unit, is_log)
    parsed(steps("t", x, y, [curve("a", spots), curve("b", spots[:3])], nothing="-"))
    parsed(scatter([Point(*spot) for spot in spots], x, y))
    parsed(agreement("t", [Point(*spot) for spot in spots]).draw())
    parsed(histogram("t", x, [spot[0] for spot in spots], names="value").draw())
    parsed(bars("t", [Bar("a", spot[0], "b") for spot in spots], heads=("a", "b"), kind="effect", nothing="-"))
    parsed(both_sides([Share("a", *spot) for spot in spots]))


def test_a_thousand_points_are_small() -> None:
    href = f"/tasks/{'a' * 64}/schedules/{'b' * 64}?target={'c' * 20}"
    drawn = roof(candidates(1000, href), LEVELS)
    assert len(drawn) < 120_000
    assert len(parsed(drawn).findall(".//a")) == LINKS
    assert sum(map(bool, told(drawn)["series"][-1]["hrefs"])) == LINKS
    plain = [Point(float(f"{p.x:.4g}"), float(f"{p.y:.4g}")) for p in candidates(2000)]
    assert len(roof(plain, {})) < 75_000


def test_forty_curves_are_small_and_six_of_them_have_colours() -> None:
    draw = random.Random(5)
    curves = [curve(f"task {n}", [(t, 2e-3 * 0.99**t * draw.random()) for t in range(40)]) for n in range(40)]
    drawn = steps("Best", TRIALS, TIME, curves, nothing="-")
    assert len(drawn) < 100_000
    kinds = [node.get("class", "") for node in parsed(drawn).iter("path") if "line" in node.get("class", "").split()]
    assert kinds.count("line other") == 34 + 1  # and the key of the legend
    assert {f"line series-{n}" for n in range(6)} <= set(kinds)
    assert "34 more" in drawn


def test_the_script_is_told_exact_values() -> None:
    draw = random.Random(3)
    points = [Point(draw.random(), draw.random(), "a tip" if n < 2 else "", "/x" if n == 1 else None) for n in range(9)]
    data = told(
        scatter([*points, Point(nan, 1)], AxisSpec("x", Unit.SHARE), TIME, "", Mark(0.5, 0.25, "best", "/best"))
    )
    [series] = data["series"]
    assert series["points"] == [value for point in points for value in point[:2]]
    assert (series["tips"], series["hrefs"]) == (["a tip", "a tip"], ["", "/x"])
    assert data["marks"] == [{"x": 0.5, "y": 0.25, "kind": "best", "href": "/best"}]
    assert [(data[axis]["label"], data[axis]["unit"], data[axis]["log"]) for axis in "xy"] == [
        ("x", "share", False),
        ("time of a run", "time", True),
    ]
    assert data["x"]["low"] < min(p.x for p in points) and data["y"]["high"] > max(p.y for p in points)


def test_zero_is_told_and_nothing_is_not() -> None:
    data = told(steps("t", TRIALS, AxisSpec("y"), [curve("", [(0, 0), (1, 0)]), curve("b", [(0, 1)])], until=0))
    assert data["until"] == 0
    assert data["series"][0] == {"shape": "steps", "kind": "candidate", "points": [0, 0, 1, 0]}
    assert "marks" not in data


def test_what_the_script_is_told_can_not_end_where_it_stands() -> None:
    names = [HOSTILE, "'><script>alert(1)</script>", '"}', "&#39;", "\\u003c", "</figure>", "]]>", "\u2028"]
    drawn = steps(HOSTILE, TRIALS, AxisSpec("'\"<"), [curve(name, [(0, 1), (1, 2)], href="/'") for name in names])
    [data] = re.findall(r"<figure [^>]*data-figure='([^'<>]*)'>", drawn)
    assert not set(re.sub(r"&(amp|lt|gt|#39);", "", data)) & set("&<>'")
    assert [series["name"] for series in told(drawn)["series"]] == list(map(printable, names))
    assert told(drawn)["y"]["label"] == "'\"<"


@pytest.mark.parametrize("name", ["steps", "roofline", "agreement"])
def test_each_line_of_a_legend_says_what_it_is_of(name: str) -> None:
    drawn = CHARTS[name]()
    data, count = told(drawn), len(told(drawn)["series"])
    of = [line.get("data-of") for line in parsed(drawn).iter("li")]
    switched = {str(n) for n in range(count)} if name != "steps" else {*map(str, range(6)), "rest"}
    assert len(of) == len(set(of)) and set(of) == switched | {mark["kind"] for mark in data.get("marks", [])}


def test_a_curve_holds_each_value_until_the_next_and_on_to_the_end() -> None:
    drawn = steps(
        "Best", TRIALS, AxisSpec("y", include=(0.0, 4.0)), [curve("a", [(50, 2), (0, 4)])], until=100, nothing="-"
    )
    line = next(node for node in parsed(drawn).iter("path") if node.get("class") == "line series-0")
    assert line.get("d") == "M0 0H500V500H1000"


def test_points_without_a_place_are_left_out() -> None:
    drawn = scatter([Point(0, 1), Point(nan, 1), Point(1, inf), Point(1, -1)], TIME)
    assert "No candidate has been measured yet." in re.sub(r"<.*?>", "", drawn)


def test_a_side_that_is_not_known_is_not_drawn() -> None:
    drawn = both_sides([Share("a", 1.0, 0.5), Share("b", 1.0, None)])
    assert "default" in drawn
    assert "tuned" not in drawn


def test_shares_of_both_sides_have_one_scale() -> None:
    root = parsed(both_sides([Share("a", 3.0, 0.5), Share("b", 1.0, 0.5)]))
    widths = [node.get("width") for node in root.iter("rect") if node.get("height") == "30"]
    assert widths == ["75%", "25%", "12.5%", "12.5%"]
    assert "75.0% → 50.0%" in root.itertext()


def test_what_is_far_beyond_the_others_does_not_shrink_them() -> None:
    root = parsed(outlier_chart())
    columns = [node for node in root.iter("path") if node.get("d", "").endswith("z")]
    bins = [(node.get("class"), node.findtext("title")) for node in columns]
    assert len([kind for kind, _ in bins if kind == "fill candidate"]) > 10
    assert bins[-1] == ("fill other", "2 above 1.02 ms, the 90th percentile")
    assert "2 above 1.02 ms, the 90th percentile" in [node.text for node in root.iter("text")]
    together = [1.0 + 0.01 * n for n in range(20)]
    for values in (together, [*together, 1.3], [1.0], [1.0, 9.0]):  # nothing is far from the others, or what they are
        assert "percentile" not in histogram("t", AxisSpec("x"), values, names="value").draw()


def test_bars_of_both_signs_leave_from_zero() -> None:
    root = parsed(
        bars("Why", [Bar("a", 3.0, "x"), Bar("b", -1.0, "y")], heads=("what", "effect"), kind="effect", nothing="-")
    )
    boxes = [(node.get("class"), node.get("x"), node.get("width")) for node in root.iter("rect")]
    assert boxes == [("fill best", "25%", "75%"), ("fill failed", "0%", "25%")]


def test_best_and_default_are_told_apart_by_shape_and_label() -> None:
    root = parsed(roof_chart())
    shapes = {node.get("class"): node.get("d") for node in root.iter("path") if "mark" in node.get("class", "")}
    assert shapes["mark best"] != shapes["mark default"]
    assert {"best", "default"} <= {node.text for node in root.iter("text")}
