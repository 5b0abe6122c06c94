"""Trials explored: what is dragged or typed filters marks, table and address, and a reload shows the same."""

from __future__ import annotations

import io
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from .conftest import Show
from .site import Shown
from .test_pages import serious, settled

pytestmark = pytest.mark.slow

MOST_MS = 100.0
"""The longest that marks may take to follow the pointer."""

KEPT = """() => Object.fromEntries([...document.querySelectorAll("figure.brushed")].map((one) => [
  one.classList.contains("parallel") ? "parallel" : "scatter",
  [...one.querySelectorAll(".marks .kept")].flatMap((path) => path.getAttribute("d").split("M").slice(1)).length,
]))"""
"""Figure -> how many of its marks are kept."""

STRONG = """() => [...document.querySelectorAll("figure.brushed canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let strong = 0;
  for (let n = 0; n < data.length; n += 4) {
    const colours = data.slice(n, n + 3);
    if (data[n + 3] > 128 && Math.max(...colours) - Math.min(...colours) > 60) strong += 1;
  }
  return strong;
})"""
"""Of each figure the pixels of marks in a strong colour."""

CHOICES = """() => {
  const pick = document.querySelector("figure.parallel .pick[data-values]");
  return [pick.dataset.column, +pick.dataset.place, pick.dataset.values.split(" ")];
}"""
"""The first axis of choices: its column, where it is from left to right, and the choices."""

FRAME = """() => new Promise((done) => {
  const begin = performance.now();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
})"""


def explored(show: Show, shown: Shown, query: str = "", **settings: Any) -> Page:
    path = shown.paths["task"].replace("?", "/trials?") + query
    return settled(show(path, **settings)[0])


def listed(page: Page) -> int:
    """How many trials the table has."""
    return int(page.locator("#trials strong").first.inner_text().replace(",", ""))


def numbers(page: Page) -> list[int]:
    """Of the trials in the table, each within its job."""
    texts = page.locator("#trials td[data-name='Job'] small").all_inner_texts()
    return [int(text.removeprefix("trial").replace(",", "")) for text in texts]


def query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def drag(page: Page, figure: str, begin: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag over a drawing, between places in it as parts of its width and height."""
    box = page.locator(f"figure.{figure}.brushed .ink").bounding_box()
    assert box is not None
    (x, y), (to_x, to_y) = ((box["x"] + a * box["width"], box["y"] + b * box["height"]) for a, b in (begin, end))
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move((x + to_x) / 2, (y + to_y) / 2)
    page.mouse.move(to_x, to_y)


def picture(part: Locator) -> np.ndarray:
    """How a part of the page looks: the values of its colours, 0 to 255."""
    return np.asarray(Image.open(io.BytesIO(part.screenshot())).convert("RGB"), np.float64)


def test_a_range_of_an_axis_filters_marks_table_and_address(show: Show, shown: Shown) -> None:
    page = explored(show, shown)
    everything = listed(page)
    assert page.evaluate(KEPT)["parallel"] == everything
    drag(page, "parallel", (1.0, 0.995), (1.0, 0.7))  # the faster times, on the last axis
    assert page.evaluate(FRAME) < MOST_MS * 5  # the machine is shared; by itself a frame takes a tenth of that
    kept = page.evaluate(KEPT)["parallel"]
    assert 0 < kept < everything
    page.mouse.up()
    expect(page.get_by_role("link", name="Take back the range of time")).to_be_visible()
    assert re.fullmatch(r"[\d.]*\.\.[\d.]+", query(page)["time"][0])
    expect(page.locator("#trials strong").first).not_to_have_text(f"{everything:,}")
    fewer = listed(page)
    assert abs(fewer - kept) <= 1 and page.evaluate(KEPT)["parallel"] == fewer
    page.reload()
    assert listed(settled(page)) == fewer and page.evaluate(KEPT)["scatter"] <= fewer
    assert page.locator("#ranges [name=time]").input_value() == query(page)["time"][0]
    drag(page, "parallel", (1.0, 0.5), (1.0, 0.5))  # a click takes it back
    page.mouse.up()
    expect(page.locator("#trials strong").first).to_have_text(f"{everything:,}")
    assert "time" not in query(page)


def test_a_box_over_the_dots_chooses_of_both_axes(show: Show, shown: Shown) -> None:
    page = explored(show, shown)
    everything = listed(page)
    drag(page, "scatter", (0.0, 0.0), (0.5, 1.0))
    page.mouse.up()
    expect(page.get_by_role("link", name="Take back the range of trial of its job")).to_be_visible()
    expect(page.locator("#trials strong").first).not_to_have_text(f"{everything:,}")
    found = query(page)
    assert re.fullmatch(r"\.\.\d+", found["trial"][0])
    assert 0 < listed(page) < everything
    assert page.locator("figure.scatter .chosen").is_visible()


def test_a_range_of_a_whole_axis_is_none(show: Show, shown: Shown) -> None:
    """Not even one without those that failed."""
    page = explored(show, shown)
    everything = listed(page)
    drag(page, "parallel", (1.0, 1.0), (1.0, 0.0))
    page.mouse.up()
    page.evaluate(FRAME)
    assert "time" not in query(page) and page.locator("#ranges [name=time]").input_value() == ""
    assert listed(page) == everything == page.evaluate(KEPT)["parallel"]


def test_a_tap_chooses_a_value(show: Show, shown: Shown) -> None:
    page = explored(show, shown, has_touch=True)
    expect(page.locator(".by-finger")).to_be_visible()
    expect(page.locator(".by-mouse")).to_be_hidden()
    everything = listed(page)
    column, place, choices = page.evaluate(CHOICES)
    drawing = page.locator("figure.parallel.brushed .ink")
    drawing.scroll_into_view_if_needed()

    def tap(number: int) -> None:
        box = drawing.bounding_box()
        assert box is not None
        up = (number + 0.5) / len(choices)
        page.touchscreen.tap(box["x"] + place * box["width"], box["y"] + (1 - up) * box["height"])

    for number in (0, len(choices) - 1):  # the second in the place of the first
        tap(number)
        expect(page.locator("#marks .choices code")).to_have_text(column.removeprefix("knob."))
        assert query(page)[column] == [choices[number]]
        expect(page.locator("#marks .choices a").first).to_contain_text(f" {choices[number]} ")
        assert 0 < listed(page) < everything
    tap(len(choices) - 1)  # takes it back
    expect(page.locator("#trials strong").first).to_have_text(f"{everything:,}")
    assert column not in query(page)


def test_what_is_left_out_stays_faint(show: Show, shown: Shown) -> None:
    """However many lines lie above each other."""
    page = explored(show, shown, "&trial=999999..")
    assert page.evaluate(KEPT) == {"parallel": 0, "scatter": 0}
    assert page.evaluate(STRONG) == [0, 0]
    page = explored(show, shown)
    assert min(page.evaluate(STRONG)) > 0


def test_a_pointer_over_nothing_does_no_harm(show: Show, shown: Shown) -> None:
    """Where no trial is drawn, and then some are."""
    page, seen = show(shown.paths["task"].replace("?", "/trials?") + "&status=voided")
    settled(page)
    scatter = page.locator("figure.scatter.brushed")
    assert scatter.locator(".marks").count() == 0
    scatter.hover()
    page.evaluate(FRAME)
    page.locator("#ranges [name=status][value=ok]").check()
    expect(scatter.locator("canvas")).to_be_visible()
    drag(page, "parallel", (1.0, 0.995), (1.0, 0.7))
    page.evaluate(FRAME)
    assert 0 < page.evaluate(KEPT)["parallel"] < listed(page)
    page.mouse.up()
    assert not seen.faults


def test_what_is_drawn_is_what_is_printed(show: Show, shown: Shown) -> None:
    """Marks are on a canvas, which has them where their paths have them, and as the eye sees it in their colours."""
    page = explored(show, shown)
    drag(page, "parallel", (1.0, 0.995), (1.0, 0.7))
    for figure in ("parallel", "scatter"):
        drawing = page.locator(f"figure.{figure}.brushed svg.frame")
        assert drawing.locator("canvas").count() == 1
        page.emulate_media(media="screen")
        drawn = picture(drawing)
        page.emulate_media(media="print")
        printed = picture(drawing)
        assert drawn.shape == printed.shape and np.abs(drawn - printed).mean() < 2.0
        drawing.evaluate("(one) => one.querySelectorAll('.marks path').forEach((path) => path.remove())")
        assert np.abs(printed - picture(drawing)).mean() > np.abs(drawn - printed).mean()  # the paths were printed
    page.keyboard.press("Escape")
    page.mouse.up()


def test_escape_leaves_it_as_it_was(show: Show, shown: Shown) -> None:
    page = explored(show, shown)
    before = page.evaluate(KEPT)
    drag(page, "parallel", (1.0, 0.9), (1.0, 0.7))
    page.keyboard.press("Escape")
    page.mouse.up()
    assert page.evaluate(KEPT) == before
    assert "time" not in query(page)


def test_ranges_are_typed(show: Show, shown: Shown) -> None:
    """With the keyboard alone."""
    page = explored(show, shown)
    everything, first = listed(page), min(numbers(page))  # which trials a task has differs from search to search
    page.locator("#choose summary").focus()
    page.keyboard.press("Enter")
    for _ in range(50):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "trial":
            break
    page.keyboard.type(f"..{first}")
    page.keyboard.press("Enter")
    expect(page.locator("#trials strong").first).not_to_have_text(f"{everything:,}")
    assert query(page)["trial"] == [f"..{first}"] and max(numbers(page)) == first
    assert page.evaluate("document.activeElement.name") == "trial"  # who types is left where they are
    assert not serious(page)


def test_rows_and_marks_light_up_together(show: Show, shown: Shown) -> None:
    page = explored(show, shown)
    row = page.locator("#trials tr[data-mark]").nth(2)
    row.locator("a").first.focus()
    expect(row).to_have_class("lit")
    for figure in ("parallel", "scatter"):
        assert page.locator(f"figure.{figure} .marks .lit").get_attribute("d")
    page.locator("#trials tr[data-mark]").nth(1).hover()
    expect(row).not_to_have_class("lit")


def test_without_a_script_a_form_does_the_same(show: Show, shown: Shown) -> None:
    page = explored(show, shown, java_script_enabled=False)
    everything = listed(page)
    page.locator("#choose summary").click()
    page.locator("#ranges [name=trial]").fill("..4")
    page.locator("#ranges [name=x]").select_option("created")
    page.get_by_role("button", name="Show these").click()
    assert 0 < listed(page) <= 4 < everything
    assert query(page)["trial"] == ["..4"] and query(page)["x"] == ["created"]
    assert page.locator("figure.parallel .chosen").count() == 1
