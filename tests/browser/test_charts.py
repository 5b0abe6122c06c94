"""Charts answer: by pointer, by keys and by touch, on pages as they are and on pages made for these tests."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect

from tunewright.api.dashboard.drawing.charts import agreement, histogram, roofline
from tunewright.api.dashboard.drawing.figure import Figure, Mark, Point, Series
from tunewright.api.dashboard.drawing.scales import AxisSpec, Scale, Unit, scale, value_text
from tunewright.api.http.middleware import POLICY

from .conftest import Show
from .site import HOSTILE, Shown, Site, model
from .test_pages import PHONE, serious, settled

pytestmark = pytest.mark.slow

DRAWN = "/drawn"
"""Where a page is that the tests make, of the service as far as the browser sees."""

TRIALS = AxisSpec("trials", Unit.COUNT, include=(0.0,))
SPEEDUP = AxisSpec("speedup", Unit.TIMES)

TEXTS = """(frame) => [...frame.querySelectorAll("text")].filter((one) => one.textContent).map((one) => {
  const box = one.closest("svg");
  return [one.textContent, one.getAttribute("x"), one.getAttribute("y"), box.getAttribute("x"), box.getAttribute("y")];
})"""
"""All words of a drawing, with their places."""

EXTENTS = """(frame) => [...frame.querySelectorAll(".data .line, .data .fill")].map((one) => {
  const { x, y, width, height } = one.getBBox();
  return [x, y, width, height];
})"""
"""Where the lines and columns of a drawing lie."""

DOTS = """(frame) => [...frame.querySelectorAll(".data .dots, .data .dots path")]
  .flatMap((one) => (one.getAttribute("d") ?? "").split("M").filter(Boolean)).length"""

PORT = """async ({ values, scales }) => {
  const { Scale, valueText } = await import("/static/scales.js");
  const texts = values.map(([unit, value]) => valueText(value, unit));
  const ticks = scales.map(([low, high, unit, isLog, most]) => {
    const made = new Scale(low, high, unit, isLog);
    return [made.ticks(most), made.ticksWithin(33)].map((all) => all.map(({ text, place }) => [text, place]));
  });
  return [texts, ticks];
}"""
"""What the script makes of values and of scales."""

STREAM = "/v1/jobs/1/events"


def steps(name: str, *places: tuple[float, float], href: str | None = None) -> Series:
    return Series(name, [Point(*place) for place in places], href=href)


def curves(end: float = 100) -> Figure:
    """Three curves, the last of which is the highest by far."""
    series = [
        steps("first", (0, 1), (20, 1.5), (60, 2)),
        steps("second <b>", (10, 1.25), (40, 1.75)),
        steps("third", (0, 1), (50, 9), href="/records"),
    ]
    return Figure("steps", "Speed-up of all", TRIALS, SPEEDUP, series, until=end, name="curves")


def cloud(count: int = 60) -> Figure:
    """A roofline with candidates below it, of which one is a link."""
    draw = random.Random(4)
    points = [
        Point(float(f"{10 ** draw.uniform(-1, 2):.4g}"), float(f"{10 ** draw.uniform(9, 11):.4g}"))
        for _ in range(count)
    ]
    points[0] = points[0]._replace(tip="1.23 ms", href="/records")
    return roofline(
        "Below the roofline",
        points,
        peak_flops_s=3e11,
        bandwidths={"L1": 1e12, "memory": 2e10},
        marks=[Mark(30, 2e11, "best", "/records"), Mark(3, 1e10, "default")],
        is_measured=True,
        nothing="-",
    )


def samples() -> Figure:
    return histogram(
        "Samples", AxisSpec("time", Unit.TIME), [1e-3 * (1 + 0.001 * n * n) for n in range(19)] + [9e-3], names="sample"
    )


def pairs() -> Figure:
    points = [Point(1e-3, 1.1e-3), Point(2e-4, 1.5e-4, "0.15 ms", "/records"), Point(5e-4, 4e-4)]
    return agreement("Predicted and measured", points, marks=[Mark(1e-4, 9e-5, "best")])


def many() -> Figure:
    """More curves than have a colour, in time, on an axis of clocks."""
    draw = random.Random(9)
    series = [
        steps(f"task {n}", *((60.0 * k, 1e-3 * draw.uniform(0.1, 1) / (k + 1)) for k in range(6))) for n in range(9)
    ]
    clock = AxisSpec("searching", Unit.CLOCK, include=(0.0,))
    return Figure("steps", "Best times", clock, AxisSpec("time of a run", Unit.TIME, is_log=True), series, until=400)


FIGURES = {"curves": curves, "cloud": cloud, "samples": samples, "pairs": pairs, "many": many}


def document(*drawings: Markup, stream: str = "") -> str:
    """A page with charts, which loads what all pages do."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Charts</title>'
        '<link rel="icon" href="/static/icon.svg">'
        '<link rel="stylesheet" href="/static/tokens.css"><link rel="stylesheet" href="/static/charts.css">'
        '<link rel="stylesheet" href="/static/style.css">'
        '<script type="module" src="/static/live.js"></script><script type="module" src="/static/charts.js"></script>'
        f'</head><body data-stream="{stream}"><header><p id="live"></p></header><main id="main"><h1>Charts</h1>'
        f'<p id="said" hidden></p><div id="all" data-live>{"".join(drawings)}</div></main></body></html>'
    )


def serve(page: Page, make: Callable[[], str]) -> None:
    """Have the browser find the page that is made, with the policy of all pages."""
    headers = {"Content-Security-Policy": POLICY}
    page.route(
        re.compile(f"{DRAWN}$"), lambda route: route.fulfill(content_type="text/html", body=make(), headers=headers)
    )


Draw = Callable[..., Page]


@pytest.fixture
def draw(show: Show) -> Draw:
    """`draw(figure, ...)` gives a page that shows these figures."""

    def begin(*figures: Figure, address: str = "", **settings: Any) -> Page:
        page, _ = show("/fleet", **settings)
        serve(page, lambda: document(*(figure.draw() for figure in figures)))
        page.goto(DRAWN + address)
        expect(page.locator(".plane")).to_have_count(len(figures))
        return page

    return begin


def spoken(page: Page) -> str:
    """What is told aloud of the first chart."""
    return str(page.locator("figure [aria-live]").first.text_content())


def readout(page: Page) -> Locator:
    return page.locator(".readout:visible")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def named(page: Page, part: str, chart: str = "curves") -> Locator:
    """A control of a chart."""
    return page.locator(f"#chart-{chart}-{part}")


def spot(page: Page, place: tuple[float, float]) -> tuple[float, float]:
    """Pixels of a place in the frame of the first chart: from its left and from its bottom, 0 to 1."""
    box = page.locator("svg.frame").first.evaluate(
        """(frame) => {
          const style = getComputedStyle(frame);
          const box = frame.getBoundingClientRect();
          const sides = ["Left", "Right", "Top", "Bottom"];
          const [left, right, top, bottom] = sides.map((side) => parseFloat(style[`padding${side}`]));
          return [box.left + left, box.top + top, box.width - left - right, box.height - top - bottom];
        }"""
    )
    return box[0] + place[0] * box[2], box[1] + (1 - place[1]) * box[3]


def drag(page: Page, begin: tuple[float, float], end: tuple[float, float], is_released: bool = True) -> None:
    page.mouse.move(*spot(page, begin))
    page.mouse.down()
    page.mouse.move(*spot(page, ((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2)))
    page.mouse.move(*spot(page, end))
    if is_released:
        page.mouse.up()


def ticks(page: Page) -> list[str]:
    """What is written along both axes of the first chart."""
    return page.locator("svg.frame").first.locator(".tick:visible").all_text_contents()


def looks(page: Page) -> list[Any]:
    """The drawings as they are, an element a line, and which switches are on."""
    drawn = page.locator("svg.frame").evaluate_all("(all) => all.map((one) => one.outerHTML.split(/(?=<)/)).flat()")
    pressed = page.locator("figure [aria-pressed]").evaluate_all("(all) => all.map((one) => [one.id, one.ariaPressed])")
    return [drawn, pressed]


def test_the_script_writes_ticks_and_values_as_the_server_does(show: Show) -> None:
    page, _ = show("/fleet")
    draw = random.Random(11)
    special = [
        0.0,
        -0.0,
        0.5,
        2.5,
        0.125,
        9.995e-4,
        0.9995,
        999.5,
        9999.5,
        99999.5,
        1e5,
        1e22,
        5e-324,
        -3.2,
        59.5,
        -5.0,
    ]
    sizes = [sign * 10 ** draw.uniform(-12, 14) for sign in (1, 1, 1, -1) for _ in range(150)]
    halves = [draw.randrange(-(10**6), 10**6) / 8 for _ in range(200)]
    values = [
        (unit, value) for unit in Unit for value in special + sizes + halves if unit is not Unit.CLOCK or value < 1e15
    ]
    scales: list[tuple[Scale, int]] = []
    for unit in Unit:
        for _ in range(120):
            low = draw.choice([0.0, 10 ** draw.uniform(-9, 9), -(10 ** draw.uniform(-3, 3)), float(draw.randrange(50))])
            axis = AxisSpec("", unit, low > 0 and draw.random() < 0.5, draw.choice([(), (0.0,)]))
            scales.append(
                (scale([low, low + 10 ** draw.uniform(-9, 9)], axis, draw.choice([0, 0.03])), draw.choice([3, 5, 6]))
            )
    given = {
        "values": [(unit.value, value) for unit, value in values],
        "scales": [(one.low, one.high, one.unit.value, one.is_log, most) for one, most in scales],
    }
    texts, drawn = page.evaluate(PORT, given)
    wanted = [value_text(value, unit) for unit, value in values]
    assert [(*of, got, right) for of, got, right in zip(values, texts, wanted, strict=True) if got != right] == []
    for (one, most), both in zip(scales, drawn, strict=True):
        for got, right in zip(both, (one.ticks(most), one.ticks_within(33)), strict=True):
            assert [text for text, _ in got] == [tick.text for tick in right], one
            assert [place for _, place in got] == pytest.approx([tick.place for tick in right]), one


@pytest.mark.parametrize("ends", [(1.0, 1.0 + 2**-52), (1e17, 1e17 + 16), (-1e17 - 16, -1e17), (0.0, 5e-324)])
def test_no_scale_is_too_narrow_for_an_end(show: Show, ends: tuple[float, float]) -> None:
    page, _ = show("/fleet")
    _, drawn = page.evaluate(PORT, {"values": [], "scales": [(*ends, "plain", False, 6)]})
    assert all(1 <= len(ticks) <= 6 for ticks in drawn[0])


@pytest.mark.parametrize("name", FIGURES)
def test_the_script_draws_what_the_server_drew(draw: Draw, name: str) -> None:
    page = draw(FIGURES[name]())
    frame, plane = page.locator("svg.frame"), page.locator(".plane")
    before = [frame.evaluate(what) for what in (TEXTS, EXTENTS, DOTS)]
    plane.focus()
    press(page, "+")
    assert frame.evaluate(EXTENTS) != before[1]
    press(page, "Escape")
    texts, extents, dots = [frame.evaluate(what) for what in (TEXTS, EXTENTS, DOTS)]
    assert texts == before[0]
    assert dots == before[2]
    assert len(extents) == len(before[1])
    for got, right in zip(extents, before[1], strict=True):
        assert got == pytest.approx(right, abs=2.0)  # the server draws in whole units


# The crosshair


def number(text: str) -> float:
    return float(text.strip("~°x").replace(",", ""))


def test_the_crosshair_reads_the_curve_of_a_job(show: Show, site: Site, shown: Shown) -> None:
    """By keys, at every step, against the page's twin."""
    path = f"/jobs/{shown.job}"
    made = site.view(path)["model"]["steps"]
    page, _ = show(path)
    figure = page.locator("figure.steps[data-figure]").first
    plane = figure.locator(".plane")
    plane.focus()
    press(page, "Home")
    live, seen = figure.locator("[aria-live]"), {}
    while (text := str(live.text_content())) not in seen:
        seen[text] = True
        press(page, "ArrowRight")
    told = [re.fullmatch(r"\D*([\d,]+), (?:1 )?.*? ([~°\d.]+x[~°]?|-)(?:, .*)?", text) for text in seen]
    assert len(told) > 1 and all(told)
    values = {number(found[1]): found[2] for found in told if found}
    assert {step["trial"] for step in made} <= values.keys()
    for trial, text in values.items():
        held = [step["speedup"] for step in made if step["trial"] <= trial]
        assert (text == "-") if not held else number(text) == pytest.approx(held[-1], abs=0.006)


def test_the_crosshair_reads_each_trial_below_the_roofline(show: Show, site: Site, shown: Shown) -> None:
    path, _, query = shown.paths["task"].partition("?")
    page, _ = show(shown.paths["task-roofline"])
    settled(page)  # once the trials are judged
    points = site.view(path, target=query.partition("=")[2])["analysis"]["points"]
    figure = page.locator("figure.scatter[data-figure]").first
    plane = figure.locator(".plane")
    plane.focus()
    press(page, "Home")
    live, seen = figure.locator("[aria-live]"), set()
    for _ in range(2 * len(points) + 4):
        seen.add(str(live.text_content()))
        press(page, "ArrowRight")
    for point in points:
        if point["flops_s"] is not None:
            x, y = value_text(point["intensity"], Unit.PLAIN), value_text(point["flops_s"], Unit.RATE)
            assert any(text.endswith(f", FLOP per byte from memory {x}, FLOP/s {y}") for text in seen), point


def test_the_pointer_reads_what_holds_there(draw: Draw) -> None:
    page = draw(curves())
    page.mouse.move(*spot(page, (0.3, 0.5)))
    expect(readout(page)).to_have_text("trials 301 first1.50x2 second <b>1.25x3 third1.00x")
    page.mouse.move(*spot(page, (0.05, 0.5)))
    expect(readout(page)).to_have_text("trials 51 first1.00x2 second <b>-3 third1.00x")
    page.mouse.move(*spot(page, (0.5, -0.5)))
    expect(readout(page)).to_have_count(0)
    assert spoken(page) == ""  # a pointer that moves is not read aloud


def test_curves_without_a_colour_are_told_together(draw: Draw) -> None:
    page = draw(many())
    page.mouse.move(*spot(page, (0.5, 0.5)))
    lines = readout(page).locator("div").all_inner_texts()
    assert len(lines) == 7 and lines[-1].startswith("3 more") and " to " in lines[-1]


def test_the_pointer_reads_the_nearest_point(draw: Draw) -> None:
    points = [Point(1, 1, "one of them"), Point(3, 3), Point(9, 2)]
    figure = Figure(
        "scatter",
        "Points",
        AxisSpec("x", include=(0.0, 10.0)),
        AxisSpec("y", include=(0.0, 4.0)),
        [Series("point", points, "dots")],
    )
    page = draw(figure)
    for place, words in {
        (0.12, 0.2): "point: one of themx1y1",
        (0.5, 0.7): "pointx3y3",
        (0.95, 0.95): "pointx9y2",
    }.items():
        page.mouse.move(*spot(page, place))
        expect(readout(page)).to_have_text(words)


def test_the_crosshair_reads_columns(draw: Draw) -> None:
    figure = samples()
    page = draw(figure)
    page.locator(".plane").focus()
    seen: list[str] = []
    press(page, "Home")
    while spoken(page) not in seen:
        seen.append(spoken(page))
        press(page, "ArrowRight")
    assert seen == [point.tip for part in figure.series for point in part.points]


def test_a_tap_shows_the_values_and_a_second_one_follows_the_link(draw: Draw) -> None:
    page = draw(cloud(), viewport=PHONE, has_touch=True, is_mobile=True)
    box = page.locator(".data .dots a").first.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.touchscreen.tap(*middle)
    expect(readout(page)).to_contain_text("1.23 ms")
    assert page.url.endswith(DRAWN)
    page.touchscreen.tap(*middle)
    page.wait_for_url("**/records")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


# Views


def test_a_drag_zooms_and_each_way_back_leads_to_the_whole(draw: Draw) -> None:
    page = draw(curves())
    whole = ticks(page)
    for back in (
        lambda: page.mouse.dblclick(*spot(page, (0.9, 0.9))),
        lambda: press(page, "Escape"),
        lambda: named(page, "whole").click(),
    ):
        page.locator(".plane").focus()
        drag(page, (0.2, 0.2), (0.4, 0.9))
        expect(page).to_have_url(re.compile("#chart-curves=x_20_40"))
        assert ticks(page) != whole
        back()
        expect(named(page, "whole")).to_be_hidden()
        assert ticks(page) == whole
        assert page.url.endswith(DRAWN)


def test_only_curves_that_are_seen_to_their_end_have_a_number_there(draw: Draw) -> None:
    timed = replace(curves(), series=[*curves().series, steps("timed", (100, 9.5))])
    page = draw(timed)
    numbers, keys = page.locator("svg.frame .number"), page.locator(".legend .key path")
    assert numbers.all_text_contents() == ["1", "2", "3", "4"]
    assert [key.split()[0] for key in keys.evaluate_all("(all) => all.map((one) => one.className.baseVal)")] == [
        *3 * ["line"],
        "dot",
    ]
    drag(page, (0.2, 0.2), (0.4, 0.9))
    assert numbers.all_text_contents() == ["1", "2", "3"]


def test_a_drag_over_a_scatter_zooms_both_axes(draw: Draw) -> None:
    page = draw(cloud())
    drag(page, (0.4, 0.3), (0.7, 0.6))
    expect(page).to_have_url(re.compile(r"#chart-below-the-roofline=x_[\d.]+_[\d.]+\*y_\d+_\d+$"))
    page.locator(".plane").focus()
    dots = page.locator("svg.frame").evaluate(DOTS)
    assert 0 < dots < 60
    x, y = (list(map(float, ends)) for ends in re.findall(r"_([\d.]+)_([\d.]+)", page.url))
    press(page, "Home")
    for _ in range(dots + 2):
        told = page.locator(".readout").inner_text()
        assert told
        press(page, "ArrowRight")
    points = next(part.points for part in cloud().series if part.shape == "dots")
    assert dots == sum(x[0] <= point.x <= x[1] and y[0] <= point.y <= y[1] for point in points)


def test_a_drag_that_ends_on_a_link_does_not_follow_it(draw: Draw) -> None:
    page = draw(Figure("steps", "One", TRIALS, SPEEDUP, [steps("a", (0, 1), (50, 2), href="/records")], until=100))
    begin = (0.2, scale([1, 2], SPEEDUP, 0.06).place(1))
    drag(page, begin, (0.4, begin[1]))
    expect(page.locator("[id$=-whole]")).to_be_visible()
    assert DRAWN in page.url


def test_a_series_is_switched_off_and_on(draw: Draw) -> None:
    page = draw(curves())
    whole = looks(page)
    switch = named(page, "of-third")
    expect(switch).to_have_attribute("aria-pressed", "true")
    assert "10x" in ticks(page) or "8x" in ticks(page)
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    assert page.url.endswith("#chart-curves=off_third")
    expect(page.locator(".data .line")).to_have_count(2)
    assert not {"8x", "10x"} & set(ticks(page))  # the others have the room
    page.mouse.move(*spot(page, (0.3, 0.5)))
    expect(readout(page)).not_to_contain_text("third")
    switch.click()
    assert looks(page)[1] == whole[1]
    assert page.url.endswith(DRAWN)


def test_a_mark_and_all_that_has_no_colour_are_switched_off(draw: Draw) -> None:
    page = draw(cloud(), many())
    expect(page.locator(".mark.best")).to_have_count(2)  # and in the legend
    named(page, "of-best", "below-the-roofline").click()
    expect(page.locator(".mark.best")).to_have_count(1)
    named(page, "of-rest", "best-times").click()
    expect(page.locator(".data .other")).to_have_count(0)
    assert page.url.endswith("#chart-below-the-roofline=off_best&chart-best-times=off_rest")


def test_axes_are_logarithmic_where_values_allow_it(draw: Draw) -> None:
    near = replace(curves(), series=curves().series[:2], name="near")
    page = draw(curves(), cloud(), samples(), near)
    assert page.locator(".tools button", has_text="log").all_inner_texts() == ["log y", "log x", "log y"]
    named(page, "log-y").click()
    expect(named(page, "log-y")).to_have_attribute("aria-pressed", "true")
    assert page.url.endswith("#chart-curves=ylog")
    assert {"1x", "2x", "5x"} <= set(ticks(page))
    roof = named(page, "log-x", "below-the-roofline")
    expect(roof).to_have_attribute("aria-pressed", "true")
    roof.click()
    assert page.url.endswith("chart-below-the-roofline=xlin")
    bent = page.locator("svg.frame").nth(1).locator(".line").first.get_attribute("d") or ""
    assert bent.count("L") > 20  # what is straight on logarithmic axes is bent on others


def test_a_link_shows_the_same_view_to_others(draw: Draw, show: Show) -> None:
    page = draw(curves(), cloud(), pairs(), permissions=["clipboard-read", "clipboard-write"])
    drag(page, (0.1, 0.2), (0.8, 0.9))
    named(page, "of-second-b").click()
    named(page, "log-y").click()
    named(page, "log-x", "below-the-roofline").click()
    named(page, "more").click()
    named(page, "link").click()
    expect(named(page, "more")).to_be_focused()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    page.mouse.move(0, 0)
    expect(readout(page)).to_have_count(0)
    wanted = looks(page)
    page.reload()
    expect(page.locator(".plane")).to_have_count(3)
    assert looks(page) == wanted
    other = draw(curves(), cloud(), pairs(), address=link[link.index("#") :])
    assert looks(other) == wanted
    other.evaluate("location.hash = ''")
    expect(named(other, "whole")).to_be_hidden()
    assert looks(other) != wanted


@pytest.mark.parametrize(
    "text",
    [
        "x_9_1",
        "x_NaN_3",
        "x_1e999_2",
        "x_-5_-1*ylog",
        "y_0_0",
        "off_",
        "off_<img src=x>*%00",
        "z_1_2",
        "%",
        "x_1_1.0000000001",
        "y_1_1.0000000000000002",
        "x_1e17_1.0000000000000002e17",
        "x_0_1e-310",
    ],
)
def test_no_address_breaks_a_chart(draw: Draw, text: str) -> None:
    page = draw(curves(), address=f"#chart-curves={text}&other")
    page.locator(".plane").focus()
    press(page, "End", "ArrowLeft", "+", "Escape")
    named(page, "of-third").click()
    assert "off" in page.url and page.url.endswith("off_third") is ("off_" not in text)


def test_keys_alone_do_all(draw: Draw) -> None:
    page = draw(curves(), permissions=["clipboard-read", "clipboard-write"])
    page.locator("body").press("Tab")
    stops: list[str] = []
    while (here := page.evaluate("document.activeElement.id")) not in stops:
        stops.append(here)
        press(page, "Tab")
    assert {
        f"chart-curves-{part}" for part in ("closer", "log-y", "more", "plane", "of-first", "of-second-b", "of-third")
    } <= set(stops)
    page.locator(".plane").focus()
    press(page, "ArrowRight", "ArrowRight")
    assert spoken(page) == "trials 10, 1 first 1.00x, 2 second <b> 1.25x, 3 third 1.00x"
    press(page, "End")
    assert spoken(page).startswith("trials 100,")
    press(page, "Home", "Shift+ArrowRight")
    assert spoken(page).startswith("trials 100,")
    press(page, "ArrowLeft", "+")
    assert page.url.endswith("#chart-curves=x_30_80")
    press(page, "-")
    assert page.url.endswith(DRAWN)
    press(page, "+", "Escape")
    assert page.url.endswith(DRAWN)
    named(page, "log-y").press("Enter")
    named(page, "of-first").press("Space")
    assert page.url.endswith("#chart-curves=ylog*off_first")
    named(page, "more").press("Enter")
    press(page, "Tab")
    expect(named(page, "link")).to_be_focused()
    press(page, "Enter")
    expect(named(page, "more")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    press(page, "Enter")
    expect(named(page, "menu")).to_have_attribute("open", "")
    press(page, "Escape")
    expect(named(page, "menu")).not_to_have_attribute("open", "")


def test_enter_follows_the_link_of_a_point(draw: Draw) -> None:
    page = draw(pairs())
    page.locator(".plane").focus()
    press(page, "Home", "ArrowRight")
    assert "0.15 ms" in spoken(page)
    press(page, "Enter")
    page.wait_for_url("**/records")


# Renewals


def test_a_renewed_page_keeps_all_that_was_done_to_a_chart(draw: Draw) -> None:
    page, held = live(draw, [curves(), curves(200)])
    drag(page, (0.2, 0.2), (0.6, 0.9))
    named(page, "of-third").click()
    named(page, "log-y").click()
    named(page, "more").click()
    page.locator(".plane").focus()
    press(page, "ArrowRight", "ArrowRight")
    before, told, address = looks(page), readout(page).inner_text(), page.url
    old = page.locator("figure").element_handle()
    renew(page, held)
    page.wait_for_function("(old) => !old.isConnected", arg=old)
    assert looks(page) == before
    assert readout(page).inner_text() == told
    assert page.url == address
    expect(page.locator(".plane")).to_be_focused()
    expect(named(page, "menu")).to_have_attribute("open", "")
    press(page, "ArrowRight")
    assert readout(page).inner_text() != told
    named(page, "whole").click()
    assert "200" in ticks(page)


def test_a_renewed_page_does_not_disturb_a_drag(draw: Draw) -> None:
    page, held = live(draw, [curves(), curves(200)])
    old = page.locator("figure").element_handle()
    drag(page, (0.2, 0.2), (0.4, 0.9), is_released=False)
    with page.expect_response(re.compile(f"{DRAWN}$")):
        renew(page, held)
    assert old.evaluate("(one) => one.isConnected")
    page.mouse.move(*spot(page, (0.5, 0.9)))
    page.mouse.up()
    expect(page).to_have_url(re.compile("#chart-curves=x_20_50$"))
    page.wait_for_function("(old) => !old.isConnected", arg=old)
    expect(page).to_have_url(re.compile("#chart-curves=x_20_50$"))
    expect(named(page, "whole")).to_be_visible()


def live(draw: Draw, figures: Sequence[Figure]) -> tuple[Page, list[Route]]:
    """A page with the first figure, and from the second look on with the other one; its stream waits for `renew`."""
    page, held, looks_left = draw(), [], list(figures)

    def hold(route: Route) -> None:
        held.append(route)

    def make() -> str:
        figure = looks_left.pop(0) if len(looks_left) > 1 else looks_left[0]
        return document(figure.draw(), stream=STREAM)

    page.unroute(re.compile(f"{DRAWN}$"))
    serve(page, make)
    page.route(f"**{STREAM}*", hold)
    with page.expect_request(f"**{STREAM}*"):
        page.goto(DRAWN)
    expect(page.locator(".plane")).to_have_count(1)
    return page, held


def renew(page: Page, held: list[Route]) -> None:
    """Tell the page of a change."""
    held[0].fulfill(content_type="text/event-stream", body="id: 1\ndata: a change\n\n")


def test_a_job_at_work_keeps_a_zoom(show: Show, site: Site) -> None:
    site.await_tuner()
    job = site.submit(model(256, 320, 192), "zoomed.onnx", trials=100_000)
    site.await_job(job, lambda one: (one["progress"] or {}).get("trials", 0) >= 20)
    page, _ = show(f"/jobs/{job}")
    figure = page.locator("figure.steps[data-figure]").first
    expect(figure.locator(".plane")).to_be_visible()
    figure.locator("[id$=-closer]").click()
    address = page.url
    assert "#chart-" in address
    labels = figure.locator(".tick:visible").all_text_contents()
    for _ in range(2):
        told = figure.get_attribute("data-figure")
        page.wait_for_function(
            "([one, told]) => document.querySelector(one).dataset.figure !== told",
            arg=["figure.steps[data-figure]", told],
        )
    expect(figure.locator("[id$=-whole]")).to_be_visible()
    assert page.url == address
    assert figure.locator("g.wide .tick").all_text_contents() == [text for text in labels if not text.endswith("x")]
    site.steer(job, "cancel")


# Files


def colours(picture: Image.Image) -> list[tuple[int, ...]]:
    """The colours of a picture, the most frequent first."""
    found: Any = picture.convert("RGB").getcolors(1 << 20)
    return [colour for _, colour in sorted(found, reverse=True)]


def download(page: Page, suffix: str, chart: str) -> bytes:
    named(page, "more", chart).click()
    with page.expect_download() as begun:
        named(page, suffix, chart).click()
    assert begun.value.suggested_filename == f"{chart}.{suffix}"
    return Path(begun.value.path()).read_bytes()


def test_what_is_downloaded_has_the_exact_values(draw: Draw) -> None:
    figure = cloud()
    page = draw(curves(), figure)
    rows = list(csv.reader(io.StringIO(download(page, "csv", "below-the-roofline").decode())))
    assert rows[0] == ["series", "FLOP per byte from memory", "FLOP/s (1/s)", "words"]
    wanted = [(part.name, point.x, point.y, point.tip) for part in figure.series for point in part.points]
    wanted += [(mark.kind, mark.x, mark.y, "") for mark in figure.marks]
    assert [(name, float(x), float(y), tip) for name, x, y, tip in rows[1:]] == wanted
    named(page, "of-third").click()
    rows = list(csv.reader(io.StringIO(download(page, "csv", "curves").decode())))
    assert {row[0] for row in rows[1:]} == {"first", "second <b>"}


@pytest.mark.parametrize("name", ["=1+1", "@x", "-a", '"quoted", twice', "two\nlines"])
def test_no_cell_of_a_download_is_a_formula(draw: Draw, name: str) -> None:
    page = draw(replace(curves(), series=[steps(name, (0, 1)), steps("b", (0, 2))]))
    [_, [cell, *_], _] = csv.reader(io.StringIO(download(page, "csv", "curves").decode(), newline=""))
    assert cell.lstrip("'") == name.replace("\n", "\\n")
    assert cell[0] not in "=+-@"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_looks_right_by_itself(draw: Draw, scheme: str) -> None:
    page = draw(curves(), cloud(), color_scheme=scheme)
    source = download(page, "svg", "curves")
    root = ET.fromstring(source)
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Speed-up of all", "trials", "speedup", "1 first", "2 second <b>", "1", "2", "3"} <= texts
    assert not any("class" in one.attrib or "style" in one.attrib for one in root.iter())
    lines = [one for one in root.iter("{http://www.w3.org/2000/svg}path") if one.get("stroke-width") == "2px"]
    assert len({one.get("stroke") for one in lines}) >= 3
    picture = Image.open(io.BytesIO(download(page, "png", "below-the-roofline")))
    assert picture.size[0] > 1000 and picture.size[1] > 500
    found = colours(picture)
    assert (min(found[0]) > 250) if scheme == "light" else (max(found[0]) < 40)  # its paper
    assert len(found) > 50
    named(page, "more").click()
    page.goto("about:blank")
    page.set_content(source.decode())
    shown = page.locator("svg").first.screenshot()
    assert len(colours(Image.open(io.BytesIO(shown)))) > 50


# For everybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_for_everybody(draw: Draw, scheme: str) -> None:
    page = draw(*(make() for make in FIGURES.values()), color_scheme=scheme)
    page.locator(".plane").first.focus()
    press(page, "ArrowRight", "+")
    named(page, "of-third").click()
    named(page, "more").click()
    assert not serious(page)
    page.set_viewport_size(PHONE)
    assert not serious(page, "target-size", "color-contrast")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_charts_of_one_title_have_names_of_their_own(draw: Draw) -> None:
    page = draw(pairs(), pairs())
    page.locator(".plane").last.focus()
    press(page, "+")
    assert "#chart-predicted-and-measured-2=" in page.url
    ids = page.locator("[id]").evaluate_all("(all) => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_a_name_is_nothing_but_text(draw: Draw) -> None:
    axis = AxisSpec(HOSTILE, Unit.COUNT)
    page = draw(Figure("steps", HOSTILE, axis, axis, [steps(HOSTILE, (0, 1), (9, 2)), steps("b", (0, 1))], until=10))
    page.locator(".plane").focus()
    press(page, "ArrowRight", "+")
    assert page.locator("img").count() == 0
    data = json.loads(page.locator("figure").get_attribute("data-figure") or "")
    assert "<img src=x" in data["series"][0]["name"]
    assert "<img src=x" in readout(page).inner_text()
    rows = download(page, "csv", re.findall(r"#chart-(.*?)=", page.url)[0]).decode()
    assert "<img src=x" in rows


def test_a_page_is_whole_without_the_script(show: Show) -> None:
    page, _ = show("/fleet", java_script_enabled=False)
    serve(page, lambda: document(curves().draw()))
    page.goto(DRAWN)
    expect(page.locator("svg.frame")).to_be_visible()
    expect(page.locator("figure :is(button, details, .readout)")).to_have_count(0)
