"""Jobs compared, in a browser: what got slower since, and why, by the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .conftest import Show
from .site import Shown

pytestmark = pytest.mark.slow


def test_a_planted_regression_is_found_and_no_other(shown: Shown, show: Show) -> None:
    page, _ = show(shown.paths["compare"])
    rows = page.locator("#flagged tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.locator(f'[title="{shown.slower_task}"]')).to_be_visible()
    expect(rows).to_contain_text("+20.0%")
    expect(rows).to_contain_text("the same schedule, built by the same versions")
    expect(page.locator("#verdict")).to_contain_text("1 of 6 tasks is slower")
    page.get_by_role("link", name="Tasks", exact=True).click()
    expect(page.locator("#task-table .finding.slower")).to_have_count(1)
    expect(page.locator("#task-table .finding.equal")).to_have_count(5)


def test_the_keyboard_leads_from_a_job_to_its_comparison(shown: Shown, show: Show) -> None:
    """With the job before it of its model; and on to another by its number."""
    first, second = shown.compared
    page, _ = show(f"/jobs/{second}")
    page.get_by_role("link", name=f"Compare with job {first}", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Job {second} since job {first}")
    page.get_by_label("Compare with job").focus()
    page.keyboard.type(str(shown.job))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(f"Job {second} since job {shown.job}")
    expect(page.locator("#runs tbody tr")).to_have_count(2)
    expect(page.locator("#runs")).to_contain_text("they are of different models")
    expect(page.locator("#flagged tr")).to_have_count(0)
