"""Pages as people come to them: again, back from another, in a second tab, as strangers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tunewright.db.access import KeyScope

from .conftest import PATIENCE_MS, WIDE, Seen, Show, watch
from .site import Shown, Site, model
from .test_pages import serious

pytestmark = pytest.mark.slow

PHONE: ViewportSize = {"width": 380, "height": 740}

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

REPORTS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.effectiveDirective} ${event.blockedURI}`))"""
"""A page says on its console what its policy kept it from; some of that browsers say nowhere."""

LOOKS = """() => {
  const root = getComputedStyle(document.documentElement);
  return {
    paper: root.backgroundColor,
    head: getComputedStyle(document.querySelector("header")).display,
    isScripted: document.documentElement.classList.contains("scripted"),
    isFollowing: Boolean(document.body.dataset.stream),
  };
}"""


def looks_right(page: Page, *, is_scripted: bool = True) -> None:
    """It has its styles and its scripts, in light and in dark, and follows what happens."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(LOOKS)
        channels = [int(part) for part in re.findall(r"\d+", found["paper"])[:3]]
        assert (sum(channels) > 3 * 128) == (scheme == "light"), (page.url, found)
        assert (found["head"], found["isScripted"]) == ("flex", is_scripted), (page.url, found)
    if found["isFollowing"]:
        expect(page.locator("#live")).to_have_text(re.compile("live|ended"))


def tab(context: BrowserContext) -> tuple[Page, Seen]:
    """One more page of a browser, and what it does."""
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.add_init_script(REPORTS)
    return page, watch(page)


def test_pages_stay_whole(show: Show, shown: Shown) -> None:
    page, _ = show("/")
    page.add_init_script(REPORTS)
    other, seen = tab(page.context)
    for name, path in shown.paths.items():
        page.goto(path)
        looks_right(page)
        page.reload()
        looks_right(page)
        page.evaluate("() => fetch(location.href, { headers: { Accept: 'text/html' } })")  # as live.js does
        page.goto("/cost-model" if name == "fleet" else "/fleet")
        page.go_back()
        looks_right(page)
        other.goto(path)
        looks_right(other)
    assert not seen.faults


def test_pages_go_on_after_a_reload(show: Show, site: Site, shown: Shown) -> None:
    page, _ = show("/")
    other, seen = tab(page.context)
    for one in (page, other):
        one.goto("/")
        one.reload()
        looks_right(one)
    job = site.submit(model(40, 56), "later.onnx", trials=8, target=shown.elsewhere.key)
    for one in (page, other):
        expect(one.locator(f"#job-{job}")).to_be_visible()
    site.steer(job, "cancel")
    assert not seen.faults


@pytest.fixture(scope="module")
def keeping(program: str, browser: Browser) -> Iterator[Browser]:
    """A browser that keeps pages as they are when one goes on to another, to go back to them: as people have it."""
    launch = browser.browser_type.launch
    one = launch(executable_path=program, args=["--disable-gpu"], ignore_default_args=["--disable-back-forward-cache"])
    yield one
    one.close()


def test_page_that_was_kept_goes_on(keeping: Browser, site: Site, shown: Shown, session: Any) -> None:
    with keeping.new_context(base_url=site.url, storage_state=session, viewport=WIDE) as context:
        page, seen = tab(context)
        page.goto("/")
        looks_right(page)
        page.evaluate("() => { window.isKept = true }")
        page.goto("/fleet")
        looks_right(page)
        page.go_back(wait_until="commit")  # it is not loaded again
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        assert page.evaluate("() => window.isKept")
        looks_right(page)
        job = site.submit(model(48, 56), "still-later.onnx", trials=8, target=shown.elsewhere.key)
        expect(page.locator(f"#job-{job}")).to_be_visible()
        site.steer(job, "cancel")
        assert not seen.faults


def test_stranger_logs_in_with_a_key(browser: Browser, site: Site, shown: Shown) -> None:
    _, key = site.store.keys.create("of a person", {KeyScope.JOBS_READ, KeyScope.JOBS_WRITE, KeyScope.RECORDS_READ})
    path = shown.paths["records"]
    with browser.new_context(base_url=site.url, viewport=PHONE) as context:
        page, seen = tab(context)
        for _ in range(2):
            refused = page.goto(path)
            assert refused is not None and refused.status == 401
            looks_right(page, is_scripted=False)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert not serious(page)
            page.reload()
        field = page.get_by_label("API key")
        expect(field).to_be_focused()
        field.fill("tw_" + 12 * "a" + "_" + 43 * "A")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
        looks_right(page, is_scripted=False)
        assert page.get_by_label("API key").input_value() == ""
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{site.url}{path}")
        looks_right(page)
        other, _ = tab(context)
        other.goto(shown.paths["job"])
        looks_right(other)
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("link", name="Log in again")).to_be_visible()
        page.go_back()  # as the browser kept it
        expect(page.get_by_label("API key")).to_be_visible()
        looks_right(page, is_scripted=False)
        expect(page.get_by_label("API key")).to_be_visible()
        assert other.reload().status == 401  # type: ignore[union-attr]
        looks_right(other, is_scripted=False)
        seen.forget("status of 401")
        assert not seen.faults


def test_stranger_logs_in_without_scripts(browser: Browser, site: Site) -> None:
    _, key = site.store.keys.create("of another person", {KeyScope.JOBS_READ, KeyScope.RECORDS_READ})
    with browser.new_context(base_url=site.url, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/fleet")
        page.locator("[name=key]").fill(key)
        page.locator("button.first").click()
        expect(page.locator("h1")).to_have_text("Fleet")
