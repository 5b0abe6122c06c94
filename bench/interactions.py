"""How fast pages answer the pointer, in a browser: part of `./dev bench pages`.

A time reaches from when the browser got the event to when the frame is drawn that shows what came of it, as
"interaction to next paint" of the Event Timing API has it, but for moves of the pointer too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .browser import open_browser
from .service import ServiceProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Locator, Page

KINDS = ("pointermove", "pointerdown", "pointerup", "click", "dblclick")
"""The events that are timed."""

WATCH = """(kinds) => {
  window.answered = [];
  const drawn = new MessageChannel();
  let waiting = [];
  drawn.port1.onmessage = () => {
    for (const since of waiting.splice(0)) window.answered.push(performance.now() - since);
  };
  const note = ({ timeStamp }) => {
    if (waiting.push(timeStamp) === 1) requestAnimationFrame(() => drawn.port2.postMessage(0));
  };
  for (const kind of kinds) addEventListener(kind, note, { capture: true, passive: true });
}"""
"""Has the page note, for each event, the milliseconds until the next frame was drawn."""

TAKE = "() => new Promise((done) => setTimeout(() => done(window.answered.splice(0)), 100))"

MOVES = 60
"""Moves of the pointer of one interaction."""

Place = tuple[float, float]
"""In a box: parts of its width and height."""

WIDE = {"width": 1280, "height": 900}


@dataclass(frozen=True, slots=True)
class InteractionTimes:
    """What a browser took to answer the events of an interaction."""

    name: str
    median_ms: float
    longest_ms: float


def measure_interactions(
    program: str, service: ServiceProcess, link: str, paths: Mapping[str, str]
) -> list[InteractionTimes]:
    """Point at, zoom and brush the charts at `paths`: curves, a roofline with its dots, and trials explored.

    `program` is the browser, `link` opens the dashboard.
    """
    with open_browser(program) as browser:
        page = _open(browser, link, service.url)
        curves, roofline, trials = (service.url + paths[name] for name in ("curves", "roofline", "trials"))
        return _chart(page, "curves", curves) + _chart(page, "roofline", roofline) + _brushes(page, trials)


def _open(browser: Browser, link: str, home: str) -> Page:
    page = browser.new_context(viewport=WIDE).new_page()  # type: ignore[arg-type]
    page.goto(link)
    page.wait_for_url(f"{home}/")
    return page


def _chart(page: Page, name: str, address: str) -> list[InteractionTimes]:
    """The first chart of a page with several series: its crosshair, zoom and series."""
    _visit(page, address, "figure[data-figure] .plane")
    figure = page.locator("figure[data-figure]:has(button.switch)").first
    plane = figure.locator(".plane")
    return [
        _time(page, f"{name}, crosshair", lambda: _move(page, _box(plane), (0.1, 0.5), (0.9, 0.4))),
        _time(page, f"{name}, zoom", lambda: _drag(page, _box(plane), (0.2, 0.3), (0.7, 0.8))),
        _time(page, f"{name}, whole again", plane.dblclick),
        _time(page, f"{name}, series off", figure.locator("button.switch").first.click),
    ]


def _brushes(page: Page, address: str) -> list[InteractionTimes]:
    """Trials explored: along an axis, over the dots, and what lights up."""
    _visit(page, address, "figure.parallel.brushed .ink")
    axes, dots = (page.locator(f"figure.{kind}.brushed .ink") for kind in ("parallel", "scatter"))
    return [
        _time(page, "trials, dot lit", lambda: _move(page, _box(dots), (0.1, 0.2), (0.9, 0.8))),
        _time(page, "trials, range of an axis", lambda: _drag(page, _box(axes), (1.0, 0.98), (1.0, 0.4))),
        _time(page, "trials, box over dots", lambda: _drag(page, _box(dots), (0.1, 0.1), (0.7, 0.8))),
    ]


def _visit(page: Page, address: str, there: str) -> None:
    page.goto(address)
    page.locator("[data-again]").first.wait_for(state="detached")
    page.locator(there).first.wait_for()
    page.evaluate(WATCH, list(KINDS))


def _time(page: Page, name: str, act: Callable[[], object]) -> InteractionTimes:
    page.evaluate(TAKE)
    act()
    answered = page.evaluate(TAKE)
    return InteractionTimes(name, median(answered), max(answered))


def _box(part: Locator) -> FloatRect:
    part.scroll_into_view_if_needed()
    box = part.bounding_box()
    assert box is not None
    return box


def _move(page: Page, box: FloatRect, begin: Place, end: Place) -> None:
    """Move the pointer between two places in a box."""
    for step in range(MOVES + 1):
        x, y = (a + (b - a) * step / MOVES for a, b in zip(begin, end, strict=True))
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def _drag(page: Page, box: FloatRect, begin: Place, end: Place) -> None:
    """The same with its button down."""
    page.mouse.move(box["x"] + begin[0] * box["width"], box["y"] + begin[1] * box["height"])
    page.mouse.down()
    _move(page, box, begin, end)
    page.mouse.up()
