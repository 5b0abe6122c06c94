"""What people do on the pages, and what the pages do by themselves."""

from __future__ import annotations

import base64
import gzip
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Page, Route, expect

from .conftest import Show
from .site import Shown, Site, model

NOTE = """() => {
  window.told = [];
  const look = () => {
    const words = document.querySelector("#glance .figures").innerText;
    if (told.at(-1) !== words) told.push(words);
  };
  new MutationObserver(look).observe(document.querySelector("main"), { childList: true, subtree: true });
}"""
"""Keep what the figures of a job say, as long as the page is not loaded anew."""

TITLES = """() => {
  window.told = [];
  new MutationObserver(() => told.push(document.title)).observe(document.head, { childList: true, subtree: true });
}"""
"""Keep what the page is called, one after the other."""

DROP = """([name, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
  return transfer;
}"""

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def state(page: Page) -> Any:
    """Of the job that a page is about."""
    return page.locator("#head .state")


def press(page: Page, word: str) -> None:
    page.get_by_role("button", name=word, exact=True).click()


def press_slowly(page: Page, word: str) -> None:
    """Press, and release after the page was looked at again: the first look is over when the second begins."""
    button = page.get_by_role("button", name=word, exact=True)
    button.hover()
    page.mouse.down()
    held = button.element_handle()
    for _ in range(2):
        with page.expect_response(page.url):
            pass
    assert held.evaluate("(one) => one.isConnected")
    page.mouse.up()


def times_s(page: Page) -> list[float]:
    """The times in the table of trials, without those that failed."""
    texts = page.locator("#trials tbody td:nth-of-type(2)").all_inner_texts()
    cells = [text.strip().strip("~°").split() for text in texts]
    return [float(cell[0]) * UNITS[cell[1]] for cell in cells if len(cell) == 2]


def test_link_lets_one_browser_in(browser: Browser, site: Site) -> None:
    link = site.link()
    with browser.new_context(base_url=site.url) as context:
        page = context.new_page()
        refused = page.goto("/")
        assert refused is not None
        assert refused.status == 401
        page.goto(link)
        page.wait_for_url(f"{site.url}/")
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        press(page, "Log out")
        expect(page.locator("main")).to_contain_text("tunewright key link")
        for path in ("/", link):
            refused = page.goto(path)
            assert refused is not None
            assert refused.status == 401


def test_model_is_sent_watched_and_understood(show: Show, site: Site) -> None:
    site.await_tuner()
    page, seen = show("/")
    if page.locator("#submit:not([open])").count():
        page.locator("#submit summary").click()
    data: FilePayload = {"name": "by-hand.onnx", "mimeType": "application/octet-stream", "buffer": model(96, 160, 64)}
    page.set_input_files("#submit [type=file]", data)
    page.get_by_label("Max trials").fill("40")
    press(page, "Tune")
    page.wait_for_url("**/jobs/*")
    expect(page.get_by_role("heading", level=1)).to_have_text("by-hand.onnx")
    visits = len(seen.visits)
    page.evaluate(NOTE)
    expect(page.locator("#live")).to_have_text("live")
    expect(state(page)).to_have_text("succeeded")
    expect(page.locator("#live")).to_have_text("ended")
    assert len(page.evaluate("told")) > 1
    assert len(seen.visits) == visits
    expect(page.locator("#curves svg")).not_to_have_count(0)

    page.get_by_role("link", name="Tasks", exact=True).click()
    expect(page.locator("#multiples svg")).not_to_have_count(0)
    page.locator("#task-table tbody th a").first.click()
    expect(page.locator("#why-title")).to_be_visible()
    page.get_by_role("link", name="Trials", exact=True).click()
    trials = page.locator("#trials")
    assert len(times_s(page)) > 5
    assert times_s(page) == sorted(times_s(page))
    trials.locator("th a", has_text="Time").click()
    expect(trials.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    assert times_s(page) == sorted(times_s(page), reverse=True)
    trials.locator("th a", has_text="When").click()
    expect(trials.locator("th[aria-sort]")).to_have_text("When")
    moments = trials.locator("tbody time").evaluate_all("all => all.map((one) => Date.parse(one.dateTime))")
    assert len(moments) > 5
    assert moments == sorted(moments, reverse=True)

    trials.locator("tbody th a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("schedule of MatMul")
    page.get_by_role("link", name="Generated code", exact=True).click()
    page.get_by_role("link", name="Assembly", exact=True).click()
    expect(page.locator("#text pre")).to_contain_text(re.compile(r"\bret"))


@pytest.mark.slow
def test_job_is_dropped_and_steered(show: Show, site: Site) -> None:
    site.await_tuner()
    page, _ = show("/")
    jobs, _ = show("/")
    text = base64.b64encode(model(384, 512, 256)).decode()
    transfer = page.evaluate_handle(DROP, ["dropped.onnx", text])
    page.dispatch_event("h1", "dragover", {"dataTransfer": transfer})
    expect(page.locator("html")).to_have_class(re.compile("dropping"))
    page.dispatch_event("h1", "drop", {"dataTransfer": transfer})
    expect(page.locator("html")).not_to_have_class(re.compile("dropping"))
    page.get_by_label("Max trials").fill("100000")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/*")
    row = jobs.locator(f"#job-{page.url.rpartition('/')[2]}")
    expect(row).to_contain_text("dropped.onnx")
    expect(state(page)).to_have_text("running")
    press_slowly(page, "Pause")
    expect(state(page)).to_have_text("paused")
    expect(row.locator(".state")).to_have_text("paused")
    press(page, "Resume")
    expect(state(page)).to_have_text("running")
    page.once("dialog", lambda dialog: dialog.dismiss())
    press(page, "Cancel")
    expect(page.locator("#head")).not_to_contain_text("asked to")
    page.once("dialog", lambda dialog: dialog.accept())
    press(page, "Cancel")
    expect(state(page)).to_have_text("cancelled")
    expect(page.locator("#live")).to_have_text("ended")
    expect(row.locator(".state")).to_have_text("cancelled")
    assert row.get_by_role("button").count() == 0


@pytest.mark.slow
def test_a_job_goes_on(show: Show, site: Site, shown: Shown) -> None:
    """By a button: in place while it is unfinished, as another job once it is finished."""
    job = site.submit(model(40, 56), "longer.onnx", trials=8, target=shown.elsewhere.key)
    page, _ = show(f"/jobs/{job}")
    press(page, "Go on for 200 trials")
    expect(page.locator("#glance .figures")).to_contain_text("of 208")
    assert page.url.endswith(f"/jobs/{job}")
    site.steer(job, "cancel")
    expect(state(page)).to_have_text("cancelled")
    press(page, "Go on for 10 minutes")
    expect(state(page)).to_have_text("queued")
    assert not page.url.endswith(f"/jobs/{job}")
    expect(page.locator("#glance .figures")).to_contain_text("of 10:00")
    site.steer(int(page.url.rpartition("/")[2]), "cancel")


@pytest.mark.slow
def test_focus_stays_where_it_was(show: Show, site: Site, shown: Shown) -> None:
    page, _ = show("/")
    expect(page.locator("#live")).to_have_text("live")
    twice = page.locator(f"#job-{shown.job} a[href='/jobs/{shown.job}']")
    expect(twice).to_have_count(2)
    twice.last.focus()
    job = site.submit(model(40, 48), "shortly.onnx", trials=8, target=shown.elsewhere.key)
    expect(page.locator(f"#job-{job}")).to_be_visible()
    expect(twice.last).to_be_focused()
    site.steer(job, "cancel")


def test_refusal_is_told(show: Show) -> None:
    page, seen = show("/")
    if page.locator("#submit:not([open])").count():
        page.locator("#submit summary").click()
    data: FilePayload = {"name": "no-model.onnx", "mimeType": "application/octet-stream", "buffer": b"something else"}
    page.set_input_files("#submit [type=file]", data)
    press(page, "Tune")
    expect(page.get_by_role("alert")).to_contain_text("model")
    seen.forget("status of 4")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("packed.onnx", gzip.compress(b"model", mtime=0), "packed.onnx does not begin as an ONNX model"),
        ("junk.onnx", b"junk", "must be unpacked"),
        ("none.onnx", b"", "none.onnx is empty."),
    ],
)
def test_what_can_not_be_a_model_is_told_as_it_is_chosen(show: Show, name: str, data: bytes, words: str) -> None:
    page, seen = show("/")
    if page.locator("#submit:not([open])").count():
        page.locator("#submit summary").click()
    page.set_input_files("#submit [type=file]", {"name": name, "mimeType": "application/octet-stream", "buffer": data})
    expect(page.get_by_role("alert")).to_contain_text(words)
    good: FilePayload = {"name": "good.onnx", "mimeType": "application/octet-stream", "buffer": model(24, 40)}
    page.set_input_files("#submit [type=file]", good)
    expect(page.locator("#said")).to_be_hidden()
    assert not any("/v1/models" in address for address in seen.asked)


def test_what_went_wrong_is_told_as_it_is(show: Show, shown: Shown) -> None:
    page, seen = show(f"{shown.paths['unfinished']}?tab=settings")
    page.evaluate("void (navigator.clipboard.writeText = async () => { throw new Error('the clipboard is full'); })")
    page.locator("[data-copy='#curl']").click()
    expect(page.get_by_role("alert")).to_have_text("the clipboard is full")
    page.context.set_offline(True)
    press(page, "Resume")
    expect(page.get_by_role("alert")).to_have_text("The server can't be reached.")
    seen.forget("net::ERR_")


def speak(page: Page, *words: str) -> None:
    """Have each stream of events tell of one change and end, the next begin soon, and nothing come after the last."""
    left = list(words)

    def answer(route: Route) -> None:
        if left:
            route.fulfill(content_type="text/event-stream", body=f"id: 1\ndata: {left.pop(0)}\n\n")
        else:
            route.fulfill(status=204)

    page.route("**/v1/jobs/*/events*", answer)


@pytest.mark.slow
def test_last_change_is_looked_at_when_it_came_before_a_look(show: Show, shown: Shown) -> None:
    """The server may show again then what was before it."""
    page, _ = show("/")
    speak(page, "one", "another")
    page.goto(shown.paths["unfinished"])
    expect(page.locator("#live")).to_have_text("ended")
    looks = "() => performance.getEntriesByType('resource').filter((one) => one.name === location.href).length"
    page.wait_for_function(f"{looks} === 2")


@pytest.mark.slow
def test_older_page_never_takes_the_place_of_a_newer_one(show: Show, shown: Shown) -> None:
    page, _ = show(shown.paths["unfinished"])
    speak(page, "one")
    held: list[Route] = []

    def answer(route: Route) -> None:
        if route.request.resource_type != "fetch":
            route.continue_()
        elif not held:
            held.append(route)
        else:
            route.fulfill(content_type="text/html", body="<title>newer</title>")

    page.route(page.url, answer)
    page.route("**/v1/jobs/*:resume", lambda route: route.fulfill(json={}))
    with page.expect_request(lambda one: one.url == page.url and one.resource_type == "fetch"):
        page.reload()
    page.evaluate(TITLES)
    with page.expect_response("**/v1/jobs/*:resume"):
        press(page, "Resume")
    page.evaluate("() => fetch('/v1/jobs')")  # so long it takes to ask for what may be asked for at once
    held[0].fulfill(content_type="text/html", body="<title>older</title>")
    page.wait_for_function("() => told.length === 2")
    assert page.evaluate("told") == ["older", "newer"]


@pytest.mark.slow
def test_page_goes_on_when_the_service_comes_back(show: Show, site: Site) -> None:
    site.await_tuner()
    job = site.submit(model(320, 448, 288), "lasting.onnx", trials=100_000)
    page, seen = show(f"/jobs/{job}")
    visits = len(seen.visits)
    done = page.locator("#standing progress")
    page.evaluate(NOTE)
    expect(page.locator("#live")).to_have_text("live")
    expect(state(page)).to_have_text("running")
    site.stop()
    expect(page.locator("#live")).to_have_text("reconnecting")
    before = int(done.get_attribute("value") or 0)
    told = page.evaluate("told.length")
    site.start()
    expect(page.locator("#live")).to_have_text("live")
    page.wait_for_function("(before) => document.querySelector('#standing progress').value > before", arg=before)
    assert page.evaluate("told.length") > told
    assert len(seen.visits) == visits
    site.steer(job, "cancel")
    expect(state(page)).to_have_text("cancelled")
    expect(page.locator("#live")).to_have_text("ended")
    seen.forget("net::ERR_|status of 503")
