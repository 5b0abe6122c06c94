"""Every page: whole, for everybody, on every screen, and by itself."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize, expect

from tunewright.api.dashboard.task.page import ROWS

from .conftest import WIDE, Show
from .site import Shown

pytestmark = pytest.mark.slow

PAGES = (
    "jobs",
    "narrowed",
    "job",
    "model",
    "unfinished",
    "job-tasks",
    "job-trials",
    "job-cost-model",
    "job-events",
    "job-settings",
    "compare",
    "compared-tasks",
    "task",
    "task-loops",
    "task-roofline",
    "task-trials",
    "task-about",
    "trials",
    "candidate",
    "candidate-loops",
    "candidate-text",
    "difference",
    "candidate-measured",
    "candidate-model",
    "records",
    "cost-model",
    "cost-model-snapshots",
    "cost-model-training",
    "cost-model-features",
    "fleet",
    "search",
)

PHONE: ViewportSize = {"width": 360, "height": 740}

TALL_PHONE: ViewportSize = {"width": 390, "height": 800}

LAPTOP: ViewportSize = {"width": 1200, "height": 800}

MOST_SCREENS = 3
"""That a page takes before anything on it is opened."""

MOST_PHONE_SCREENS = 4
"""That a page of trials takes on a phone."""

FILL_ROWS = """(most) => {
  const body = document.querySelector("table.folded tbody");
  const first = body.querySelector("tr");
  while (body.rows.length < most) body.append(first.cloneNode(true));
}"""
"""Have so many rows in a table of trials."""

MOST_SCRIPT_BYTES = 60_000
"""On first load, compressed."""

MOST_STOPS = 600
"""Presses of the tab key from the begin of a page to its end."""

WORDS = """() => [...document.querySelectorAll("main :is(h1, h2, h3, h4, p, li, th, td, dt, dd, label, summary, text)")]
  .filter((one) => one.checkVisibility() && !one.closest(".scripted-only, .plain-only"))
  .map((one) => {
    const copy = one.cloneNode(true);
    copy.querySelectorAll("time, button, .scripted-only, .plain-only").forEach((other) => other.remove());
    return one.localName + ": " + copy.textContent.replace(/\\s+/g, " ").trim();
  })"""
"""What can be read on a page, but for moments and what only scripts can do."""

STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && one.type !== "hidden")
  .filter((one) => one.tabIndex >= 0 && !one.disabled)
  .map(NAME)"""

NAME = """((one) => [one.localName, one.id, one.name, one.getAttribute("href"), one.dataset.post, one.ariaLabel]
  .join(" "))"""
"""Which element it is, also after it was renewed."""

FOCUS = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  const card = one.closest(".multiples li");  // which is marked in the place of its link
  const marked = [style, ...(card ? [getComputedStyle(card)] : [])];
  const isMarked = marked.some((each) => each.outlineStyle !== "none" && parseFloat(each.outlineWidth) > 0);
  const head = document.querySelector(".head:not(:focus-within)")?.getBoundingClientRect();
  const isBehind = head && box.top >= head.top && box.bottom <= head.bottom;
  return { name: NAME(one), isMarked, isSeen: box.width > 0 && box.bottom > 0 && box.top < innerHeight && !isBehind };
}"""

PASSED_OVER = """() => [...document.querySelectorAll("a[href][tabindex='-1']")]
  .filter((one) => ![...document.querySelectorAll("a[href]")].some(
    (other) => other.tabIndex >= 0 && other.getAttribute("href") === one.getAttribute("href")))
  .map((one) => one.getAttribute("href"))"""
"""Where only the pointer can go."""


CUT_OFF = """() => [...document.querySelectorAll(".scroll")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
  .map((one) => `${one.innerText.slice(0, 60)}: ${one.scrollWidth} in ${one.clientWidth}`)"""
"""Tables that are wider than their place."""

WIDEST = {
    "State": ["paused, minutes over: too noisy to tell", "build-machine-7:28725"],
    "Trials": ["12,345 of 100,000 trials"],
    "Speed-up": ["~12.62x\N{DEGREE SIGN}", "by its tasks, 12.09x to 12.24x"],
    "Time left": ["about 85 min", "1:59:59 spent"],
    "More expected": ["12.3%", "0.05% a minute", "too noisy to tell what more to expect"],
    "Changed": ["12 min ago"],
}
"""The most that the cells of a job may say, by their names: a line of text, and smaller ones below it."""

FILL = """(widest) => {
  for (const [name, [text, ...notes]] of Object.entries(widest))
    for (const cell of document.querySelectorAll(`#jobs td[data-name="${name}"]`)) {
      const line = Object.assign(document.createElement("span"), { textContent: text, className: "nowrap" });
      if (name === "State") line.className = "state noisy";
      cell.replaceChildren(line, ...notes.map((note) =>
        Object.assign(document.createElement("small"), { textContent: note })));
      if (name === "Trials") cell.prepend(document.createElement("progress"));
    }
}"""
"""Put that into all rows of the list."""

BARS = """() => [...document.querySelectorAll(".scroll")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
  .map((one) => parseFloat(getComputedStyle(one, "::-webkit-scrollbar").height))"""
"""How high the bars are of those that must be scrolled; browsers under test draw none."""


def settled(page: Page) -> Page:
    """The page once all that takes long is on it."""
    expect(page.locator("[data-again]")).to_have_count(0)
    return page


def words(page: Page) -> list[str]:
    """What can be read, but for how long something was there by now, and how large a part of that it was at work."""
    found: list[str] = page.evaluate(WORDS)
    return [re.sub(r"[\d.]+%|[\d:]+ since|oldest for [\d:]+", "", text) for text in found]


def serious(page: Page, *rules: str) -> list[str]:
    """What keeps people from using the page, by axe: by some of its rules, or all."""
    options: dict[str, Any] = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary']}"
        for one in Axe().run(page, options=options).response["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_for_everybody(show: Show, shown: Shown, name: str) -> None:
    page, seen = show(shown.paths[name])
    assert 0 < seen.script_bytes() < MOST_SCRIPT_BYTES
    assert not serious(settled(page))
    page.emulate_media(color_scheme="dark")
    assert not serious(page, "color-contrast")
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert not serious(page, "scrollable-region-focusable", "target-size")


def height(page: Page) -> int:
    found: int = settled(page).evaluate("document.documentElement.scrollHeight")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_page_fits_its_window(show: Show, shown: Shown, name: str) -> None:
    """It has three screens at most, and in a window of a laptop no column is cut off."""
    page, _ = show(shown.paths[name])
    assert height(page) <= MOST_SCREENS * WIDE["height"]
    page.set_viewport_size(LAPTOP)
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("name", ["job-trials", "task-trials"])
def test_trials_are_few_screens_of_a_phone(show: Show, shown: Shown, name: str) -> None:
    """Also where there are as many as a page has."""
    page, _ = show(shown.paths[name], viewport=TALL_PHONE)
    settled(page).evaluate(FILL_ROWS, ROWS)
    assert page.locator("table.folded tbody tr").count() == ROWS
    assert height(page) <= MOST_PHONE_SCREENS * TALL_PHONE["height"]


def test_trials_are_not_wider_than_a_phone(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["task-trials"], viewport=PHONE)
    box = settled(page).locator("#trials .scroll")
    assert box.evaluate("(one) => one.scrollWidth <= one.clientWidth")


@pytest.mark.parametrize("name", PAGES)
def test_everything_is_shown_without_scripts(show: Show, shown: Shown, name: str) -> None:
    page, _ = show(shown.paths[name])
    with_scripts = words(settled(page))
    plain, _ = show(shown.paths[name], java_script_enabled=False)
    assert len(with_scripts) > 5
    assert words(plain) == with_scripts
    assert plain.locator(".scripted-only:visible").count() == 0


def stops(page: Page) -> list[str]:
    """What the tab key should reach, in this order."""
    found: list[str] = settled(page).evaluate(STOPS.replace("NAME", NAME))
    return found


def walked(page: Page) -> list[dict[str, Any]]:
    """What the tab key reaches, from the begin of the page to its end."""
    look = FOCUS.replace("NAME", NAME)
    reached: list[dict[str, Any]] = []
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(look)
        if stop is None:
            break
        reached.append(stop)
    return reached


@pytest.mark.parametrize("name", PAGES)
def test_everything_is_reached_by_keys(show: Show, shown: Shown, name: str) -> None:
    page, _ = show(shown.paths[name])
    for _ in range(3):
        wanted, reached = stops(page), walked(page)
        if stops(page) == wanted:
            break
        page.reload()  # it was renewed in the middle of the walk
    assert [stop["name"] for stop in reached] == wanted
    assert [stop for stop in reached if not (stop["isMarked"] and stop["isSeen"])] == []
    assert "#main" in reached[0]["name"]  # the way past the navigation
    assert page.evaluate(PASSED_OVER) == []


def test_there_are_no_more_pages(shown: Shown) -> None:
    assert tuple(shown.paths) == PAGES


@pytest.mark.parametrize("width", [1200, 1280, 1310, 1366, 1440])
def test_jobs_at_work_and_their_buttons_are_not_cut_off(show: Show, shown: Shown, width: int) -> None:
    """With as much in each cell as there may be."""
    page, _ = show("/?state=paused&state=succeeded", viewport=LAPTOP | {"width": width})
    settled(page).evaluate(FILL, WIDEST)
    assert page.locator("#jobs button").count() >= 2
    assert page.evaluate(CUT_OFF) == []


def test_a_table_without_room_has_a_bar_to_scroll_it(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["task-trials"], viewport=LAPTOP | {"width": 700})
    bars: list[float] = settled(page).evaluate(BARS)
    assert bars and min(bars) > 0
