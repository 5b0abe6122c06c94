"""The first page, the search, and what is managed: keys and the fleet."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from tunewright.db.access import KeyScope

from .conftest import PATIENCE_MS, WIDE, Show, watch
from .site import Shown, Site, model
from .test_live import press
from .test_pages import serious

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(browser: Browser, site: Site) -> Iterator[Page]:
    """A page of a session by a key that may do everything."""
    _, token = site.store.keys.create("the admin", set(KeyScope) - {KeyScope.LOGIN})
    with browser.new_context(base_url=site.url, viewport=WIDE) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        seen = watch(page)
        page.goto("/keys")
        seen.forget("status of 401")
        field = page.get_by_label("API key")
        field.fill(token)
        press(page, "Show")
        expect(field).to_have_attribute("type", "text")
        press(page, "Hide")
        press(page, "Log in")
        expect(page.get_by_role("heading", level=1)).to_have_text("Keys")
        yield page
        seen.forget("status of (4|5)")
        assert not seen.faults


def test_the_search_is_reached_and_walked_by_keys(show: Show, shown: Shown) -> None:
    page, _ = show("/records")
    page.keyboard.press("/")
    box = page.get_by_role("searchbox", name="Search jobs, tasks")
    expect(box).to_be_focused()
    page.keyboard.type("small-net")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=small-net")
    expect(box).to_have_value("small-net")
    box.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".hits a").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(box).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{shown.job}")


def test_a_slash_in_a_field_is_a_slash(show: Show) -> None:
    page, _ = show("/")
    field = page.get_by_label("Text")
    field.focus()
    page.keyboard.type("a/b")
    expect(field).to_have_value("a/b")


def test_chosen_jobs_stay_chosen_while_the_page_is_renewed(show: Show, shown: Shown, site: Site) -> None:
    page, _ = show("/")
    compare = page.get_by_role("button", name="Compare", exact=True)
    expect(compare).to_be_disabled()
    boxes = [page.locator(f"#compare-{job}") for job in (shown.job, shown.long)]
    for box in boxes:
        box.check()
    expect(page.locator("#compare-hint")).to_have_text("2 chosen")
    queued = site.submit(model(16, 24), "meanwhile.onnx", trials=8, target=shown.elsewhere.key)
    expect(page.locator(f"#job-{queued}")).to_be_visible()
    for box in boxes:
        expect(box).to_be_checked()
    expect(compare).to_be_enabled()
    with page.expect_request(re.compile("/compare")) as asked:
        compare.click()
    assert asked.value.url.endswith(f"/compare?job={shown.long}&job={shown.job}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    site.steer(queued, "cancel")


@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
def test_the_way_to_compare_is_in_sight_once_a_job_is_chosen(show: Show, shown: Shown, has_scripts: bool) -> None:
    page, _ = show("/", viewport={"width": 390, "height": 600}, java_script_enabled=has_scripts)
    compare = page.locator("#compare button")
    page.locator("#jobs").scroll_into_view_if_needed()
    expect(compare).not_to_be_in_viewport()
    page.locator("#jobs [type=checkbox]").first.check()
    expect(compare).to_be_in_viewport()


def test_a_job_that_leaves_the_list_is_not_counted(show: Show, shown: Shown, site: Site) -> None:
    queued = [site.submit(model(16, n), f"{n}.onnx", trials=8, target=shown.elsewhere.key) for n in (40, 56)]
    page, _ = show("/?state=queued")
    for job in queued:
        page.locator(f"#compare-{job}").check()
    expect(page.locator("#compare-hint")).to_have_text("2 chosen")
    site.steer(queued[0], "cancel")
    expect(page.locator("#compare-hint")).to_have_text("1 chosen")
    site.steer(queued[1], "cancel")


@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
def test_filters_are_folded_until_one_is_set(show: Show, shown: Shown, has_scripts: bool) -> None:
    page, _ = show("/", java_script_enabled=has_scripts)
    more = page.locator(".bar details")
    assert more.get_attribute("open") is None
    more.locator("summary").click()
    page.get_by_label("Model", exact=True).fill("long-net")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/?search=&model=long-net*")
    assert more.get_attribute("open") == ""
    expect(page.locator(f"#job-{shown.long}")).to_be_visible()
    expect(page.locator(f"#job-{shown.job}")).to_have_count(0)


def test_the_tab_that_is_open_is_in_sight_on_a_phone(show: Show, shown: Shown) -> None:
    page, _ = show(f"/jobs/{shown.job}?tab=settings", viewport={"width": 360, "height": 740})
    expect(page.locator(".tabs [aria-current]")).to_be_in_viewport(ratio=0.9)


def test_what_is_wrong_with_a_model_is_told_at_its_field(show: Show) -> None:
    page, seen = show("/")
    page.locator("#submit summary").click()
    file = page.locator("#submit [type=file]")
    press(page, "Tune")
    expect(file).to_be_focused()
    expect(page.locator("#model-fault")).not_to_be_empty()
    data: FilePayload = {"name": "net.onnx", "mimeType": "application/octet-stream", "buffer": model(24, 40)}
    file.set_input_files(data)
    expect(page.locator("#model-fault")).to_be_empty()
    trials = page.get_by_label("Max trials")
    trials.fill("0")
    press(page, "Tune")
    expect(trials).to_be_focused()
    expect(trials).to_have_attribute("aria-invalid", "true")
    expect(trials).to_have_accessible_description(re.compile("1"))
    assert not any("/v1/models" in address for address in seen.asked)
    trials.evaluate("(one) => one.removeAttribute('min')")  # then the server says it
    press(page, "Tune")
    expect(page.locator("#tune-trials-fault")).to_contain_text(re.compile("1"))
    expect(trials).to_be_focused()
    expect(page.locator("#said")).to_be_hidden()
    assert not serious(page)
    seen.forget("status of 422")


def test_a_fault_is_told_at_a_field_of_any_name(show: Show) -> None:
    """What the server says of it is escaped as RFC 6901 has it."""
    page, _ = show("/")
    page.locator("#submit summary").click()
    told = page.evaluate(
        """() => {
          const form = document.querySelector("#submit form");
          const place = Object.assign(document.createElement("p"), { className: "field" });
          const field = Object.assign(document.createElement("input"), { name: "dims.a/b~c" });
          const fault = Object.assign(document.createElement("small"), { className: "fault" });
          place.append(field, fault);
          form.append(place);
          const detail = [{ pointer: "#/dims/a~1b~0c", detail: "is too large" }];
          form.dispatchEvent(new CustomEvent("faults", { detail, cancelable: true, bubbles: true }));
          return fault.textContent;
        }"""
    )
    assert told == "Is too large"


def test_a_key_is_made_shown_once_and_revoked(admin: Page, browser: Browser, site: Site) -> None:
    assert not serious(admin)
    admin.locator("#create summary").click()
    press(admin, "Create")
    name = admin.get_by_label("Name")
    expect(name).to_be_focused()
    expect(name).to_have_accessible_description(re.compile("."))
    name.fill("local key in /root")
    press(admin, "Create")
    expect(admin.locator("#key-name-fault")).to_contain_text("serve makes")
    name.fill("a build farm")
    admin.get_by_role("checkbox", name=re.compile("metrics")).check()
    press(admin, "Create")
    expect(admin.locator("#made")).to_be_focused()
    token = admin.locator("#made-key").inner_text()
    key = site.store.keys.check(token)
    assert key is not None and KeyScope.METRICS in key.scopes and KeyScope.WORK not in key.scopes
    assert not serious(admin)
    press(admin, "Done")
    assert token not in admin.content()
    row = admin.locator("#keys tr", has_text="a build farm")
    admin.on("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    assert site.store.keys.check(token) is None
    admin.reload()
    assert token not in admin.content()


def test_a_device_rests_and_is_lifted(admin: Page, site: Site) -> None:
    site.await_tuner()
    admin.goto("/fleet")
    admin.locator("#rest summary").click()
    assert not serious(admin)
    minutes = admin.get_by_label("Minutes")
    minutes.fill("0")
    press(admin, "Rest")
    expect(minutes).to_be_focused()
    minutes.fill("5")
    admin.get_by_label("Reason").fill("a test")
    press(admin, "Rest")
    lift = admin.get_by_role("button", name=re.compile("Lift"))
    expect(admin.locator("#quarantines")).to_contain_text("a test (ordered by key")
    lift.click()
    expect(admin.locator("#quarantines")).to_contain_text("No device is in quarantine")


def test_who_may_not_has_no_buttons(show: Show) -> None:
    page, _ = show("/")
    expect(page.get_by_role("link", name="Keys")).to_have_count(0)


def test_a_process_is_drained_by_a_button(admin: Page, site: Site) -> None:
    """The last test here: nothing is tuned from then on."""
    site.await_tuner()
    [one] = site.store.fleet.tuners()
    admin.goto("/fleet")
    admin.on("dialog", lambda dialog: dialog.accept())
    press(admin, "Drain")
    expect(admin.locator("#tuners")).not_to_contain_text(f"{one.host}:{one.pid}")
    site.service.start_tuner("tuner-2")
    site.await_tuner()
