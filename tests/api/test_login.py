"""The page for those who have no session, and how a key becomes one."""

import pytest

from tunewright.api.dashboard.html import assets, own_page
from tunewright.api.http.access import COOKIE
from tunewright.api.http.local_key import local_key
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope

from .conftest import problem
from .page import Page, checked

HTML = {"Accept": "text/html,*/*"}


@pytest.fixture
def browser(one):
    """A browser without a session that is on a page of the service."""
    return one.client(token="", headers=HTML | {"Origin": one.url, "Sec-Fetch-Site": "same-origin"})


def log_in(browser, key, to="/"):
    return browser.post("/login", data={"key": key, "to": to})


@pytest.mark.parametrize("path", ["/", "/jobs/1?x=seconds", "/records?op=a%20b", "/fleet", "/problems/no-key"])
def test_strangers_get_a_page_with_a_field_for_a_key(browser, path):
    answer = browser.get(path)
    page = checked(answer, 401)
    [field] = page.of("input", name="key")
    assert field["type"] == "password"
    assert page.of("form", method="post", action="/login")
    assert [one["value"] for one in page.of("input", name="to")] == [path]
    [script] = page.of("script")
    assert script["src"].startswith("/static/show.js")
    assert "Log in" in page.words and not [one for one in page.of("p", role="alert") if "hidden" not in one]
    assert browser.get(script["src"]).status_code == 200
    for sheet in page.of("link"):
        assert browser.get(sheet["href"]).status_code == 200


def test_files_of_pages_are_public(one):
    stranger = one.client(token="")
    for name in assets():
        assert stranger.get(f"/static/{name}").status_code == 200
    problem(stranger.get("/static/app.py"), "not-found", 404)
    problem(stranger.get("/static/style.css", headers={"Host": "evil.example"}), "wrong-host", 421)
    problem(stranger.get("/static/style.css", headers={"Sec-Fetch-Site": "cross-site"}), "cross-origin", 403)


def test_a_key_opens_the_page_that_was_asked_for(one, browser):
    first = log_in(browser, f" {one.token}\n", "/jobs/7?x=seconds")
    assert (first.status_code, first.headers["location"]) == (303, "/jobs/7?x=seconds")
    cookie = first.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
    assert one.token not in str(first.headers)
    assert browser.get("/").status_code == browser.get("/records").status_code == 200
    assert browser.post("/v1/jobs/1:cancel").status_code == 404
    refused = browser.post("/v1/records", content=b"")  # a session imports nothing, whatever its key may
    assert problem(refused, "missing-scope", 403)["detail"] == "the scope records:write is needed"


def test_a_session_has_what_its_key_has(one, browser):
    key = one.key(KeyScope.JOBS_READ, KeyScope.RECORDS_WRITE, expires_in_s=100)
    first = log_in(browser, key)
    assert 90 <= int(first.headers["set-cookie"].partition("Max-Age=")[2].partition(";")[0]) <= 100
    assert browser.get("/").status_code == 200
    for refused in (browser.get("/records"), browser.post("/v1/jobs/1:cancel"), browser.post("/v1/records")):
        assert refused.status_code == 403


def test_a_session_ends_with_its_key(one, browser, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.access.TRUST_S", 0.0)
    key = one.key()
    log_in(browser, key)
    assert browser.get("/").status_code == 200
    one.store.keys.revoke(key.split("_")[1])
    assert "The session has ended" in checked(browser.get("/"), 401).words
    assert log_in(browser, key).status_code == 401


def test_logging_out_leaves_the_key(one, browser):
    log_in(browser, one.token)
    assert "/login" in Page(browser.post("/logout").text).links()
    assert browser.get("/").status_code == 401
    assert one.client().get("/").status_code == 200


@pytest.mark.parametrize("wrong", ["tw_abcdefghijkl_" + "A" * 43, "hunter2", "<script>alert(1)</script>", "é" * 200])
def test_a_wrong_key_is_told_on_the_page_and_not_shown(browser, wrong):
    answer = log_in(browser, wrong, "/fleet")
    page = checked(answer, 401)
    assert "unknown, expired or revoked" in page.words
    assert [one["value"] for one in page.of("input", name="to")] == ["/fleet"]
    assert wrong not in answer.text
    assert COOKIE not in browser.cookies


def test_other_faults_of_a_key_are_told_on_the_page(one, browser, tmp_path, monkeypatch):
    answer = log_in(browser, one.key(KeyScope.RECORDS_READ))
    assert "jobs:read" in checked(answer, 403).words
    link = one.key(KeyScope.LOGIN, expires_in_s=60)
    assert log_in(browser, link).status_code == 403
    assert browser.get("/login", params={"code": link}).status_code == 200  # it was not used up
    local = local_key(tmp_path / "local_key", one.store).read_text().strip()
    assert log_in(browser, local).status_code == 303
    monkeypatch.setattr("tunewright.api.dashboard.session.is_this_machine", lambda peer: False)
    assert "own machine" in checked(log_in(browser, local), 401).words
    assert checked(browser.post("/login", content=b"\xff"), 400).of("input", name="key")
    assert checked(browser.post("/login", content=b"x" * 20_000), 413).of("input", name="key")
    assert browser.post("/login", content=b"").status_code == 401


def test_programs_get_problem_documents(one):
    program = one.client(token="", headers={"Origin": one.url})
    problem(program.post("/login", data={"key": "hunter2"}), "no-key", 401)
    assert program.post("/login", data={"key": one.token}).status_code == 303


def test_other_sites_log_nobody_in(one):
    """Neither into their own session, which would have the user work for them."""
    for headers in ({}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused = one.client(token="").post("/login", data={"key": one.token}, headers=headers)
        problem(refused, "cross-origin", 403)
        assert "set-cookie" not in refused.headers


@pytest.mark.usefixtures("within_a_minute")
def test_guesses_are_limited(serve):
    with serve(Options(failures_per_minute=3)) as one:
        browser = one.client(token="", headers=HTML | {"Origin": one.url})
        assert [log_in(browser, "hunter2").status_code for _ in range(5)] == [401, 401, 401, 429, 429]
        assert log_in(browser, one.token).status_code == 429


@pytest.mark.usefixtures("within_a_minute")
def test_sessions_share_the_limits_of_their_key(serve):
    with serve(Options(changes_per_minute=3)) as one:
        browser = one.client(token="", headers=HTML | {"Origin": one.url})
        assert [log_in(browser, one.token).status_code for _ in range(4)] == [303, 303, 303, 429]
        problem(one.client().post("/v1/jobs/1:cancel"), "rate-limited", 429)


@pytest.mark.parametrize(
    ("address", "leads_to"),
    [
        ("/", "/"),
        ("/jobs/7", "/jobs/7"),
        ("/tasks/ab/schedules/cd?target=ef&text=ir", "/tasks/ab/schedules/cd?target=ef&text=ir"),
        ("/records?op=a%20b&shape=%5B1%5D", "/records?op=a%20b&shape=%5B1%5D"),
        ("/jobs/1\r\nSet-Cookie: a=b", "/jobs/1Set-Cookie:%20a=b"),
        ("/jobs/\\evil.example", "/jobs/%5Cevil.example"),
    ],
)
def test_pages_to_go_on_to(address, leads_to):
    assert own_page(address) == leads_to


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/jobs/1",
        "//evil.example/jobs/1",
        "///evil.example",
        "/\\evil.example/jobs/1",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/login?code=x",
        "/logout",
        "/v1/jobs",
        "//[/jobs/1",
        "http:/jobs/1",
        " //evil.example",
        "/records?" + "a" * 4000,
        "",
    ],
)
def test_nothing_else_is_led_to(one, browser, address):
    assert own_page(address) == "/"
    assert log_in(browser, one.token, address).headers["location"] == "/"
