"""Help texts: each opens beside its mark, on every screen, with the keyboard and without a script."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from .conftest import WIDE, Show
from .site import Shown, Site, model

pytestmark = pytest.mark.slow

PHONE: ViewportSize = {"width": 360, "height": 740}

NEAR_PX = 12
"""Most room between a mark and its text."""

AWAY_MS = 200
"""After which a text is shut that the mouse has left: see help.js."""


def opened(page: Page, place: int) -> tuple[dict[str, float], dict[str, float]]:
    """Where a mark is and its text, which the keyboard opens."""
    mark = page.locator("main .help").nth(place)
    mark.focus()
    page.keyboard.press("Enter")
    text = page.locator(".help-text:popover-open")
    expect(text).to_have_count(1)
    boxes: tuple[Any, Any] = mark.bounding_box(), text.bounding_box()
    return boxes


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize("name", ["jobs", "job-tasks", "fleet"])
def test_a_help_opens_beside_its_mark(
    show: Show, shown: Shown, name: str, has_scripts: bool, viewport: ViewportSize
) -> None:
    page, _ = show(shown.paths[name], viewport=viewport, java_script_enabled=has_scripts)
    for place in range(page.locator("main .help").count()):
        if not page.locator("main .help").nth(place).is_visible():
            continue
        mark, text = opened(page, place)
        below, above = text["y"] - mark["y"] - mark["height"], mark["y"] - text["y"] - text["height"]
        right, left = text["x"] - mark["x"] - mark["width"], mark["x"] - text["x"] - text["width"]
        assert 0 <= max(below, above, right, left) <= NEAR_PX
        assert text["x"] >= 0 and text["x"] + text["width"] <= viewport["width"]
        assert text["y"] >= 0 and text["y"] + text["height"] <= viewport["height"]
        assert max(below, above) <= 0 or max(right, left) <= 0
        page.keyboard.press("Escape")
        expect(page.locator(".help-text:popover-open")).to_have_count(0)
        expect(page.locator("main .help").nth(place)).to_be_focused()


def test_a_help_opens_under_a_mouse_that_rests_and_covers_no_figure(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["jobs"])
    open_one = page.locator(".help-text:popover-open")
    figures = page.locator(".figures > div")
    for place in range(figures.count()):
        figures.nth(place).locator(".help").hover()
        expect(open_one).to_have_count(1)
        text: Any = open_one.bounding_box()
        value: Any = (
            figures.nth(place)
            .locator("dd")
            .evaluate(
                "(one) => { const range = document.createRange(); range.selectNodeContents(one.firstChild);"
                " return range.getBoundingClientRect().toJSON(); }"
            )
        )
        is_beside = text["x"] >= value["right"] or text["x"] + text["width"] <= value["left"]
        assert is_beside or text["y"] >= value["bottom"] or text["y"] + text["height"] <= value["top"]
        page.mouse.move(10, 700)
        expect(open_one).to_have_count(0)
    mark = figures.first.locator(".help")
    mark.hover()
    expect(open_one).to_have_count(1)
    mark.click()
    page.mouse.move(10, 700)
    figures.last.locator(".help").hover()  # once that is open, the first would long be shut
    expect(open_one).to_have_count(1)
    page.keyboard.press("Escape")
    expect(open_one).to_have_count(0)


def test_a_help_stays_open_under_a_mouse_that_goes_into_it_and_escape_shuts_it(show: Show, shown: Shown) -> None:
    """As WCAG 1.4.13 asks: what a pointer opens it can go into, it stays, and it is shut without moving the pointer."""
    page, _ = show(shown.paths["jobs"])
    open_one = page.locator(".help-text:popover-open")
    page.locator(".figures .help").first.hover()
    expect(open_one).to_have_count(1)
    text: Any = open_one.bounding_box()
    page.mouse.move(text["x"] + text["width"] / 2, text["y"] + text["height"] / 2, steps=5)
    page.wait_for_timeout(3 * AWAY_MS)
    expect(open_one).to_have_count(1)
    page.keyboard.press("Escape")
    expect(open_one).to_have_count(0)
    page.wait_for_timeout(3 * AWAY_MS)
    expect(open_one).to_have_count(0)


def test_a_help_is_opened_and_shut_by_the_keyboard_alone(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["jobs"])
    open_one = page.locator(".help-text:popover-open")
    mark = page.locator(".figures .help").first
    while not mark.evaluate("(one) => one === document.activeElement"):
        page.keyboard.press("Tab")
    for key in ("Enter", "Space"):
        page.keyboard.press(key)
        expect(open_one).to_have_count(1)
        page.keyboard.press(key)  # the same mark shuts it
        expect(open_one).to_have_count(0)
        page.keyboard.press(key)
        expect(open_one).to_have_count(1)
        page.keyboard.press("Escape")
        expect(open_one).to_have_count(0)
        expect(mark).to_be_focused()


def test_a_help_stays_open_while_the_page_is_renewed(show: Show, shown: Shown, site: Site) -> None:
    page, _ = show("/")
    expect(page.locator("#live")).to_have_text("live")
    summary = page.locator("#summary")
    opened(page, 0)
    job = site.submit(model(16, 24), "while-reading.onnx", trials=8, target=shown.elsewhere.key)
    expect(page.locator("#jobs")).to_contain_text("while-reading.onnx")
    expect(page.locator(".help-text:popover-open")).to_have_count(1)
    told = summary.inner_text()
    page.keyboard.press("Escape")
    expect(summary).not_to_have_text(told, use_inner_text=True)
    site.steer(job, "cancel")
