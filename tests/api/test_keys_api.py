"""Keys over HTTP: who may make which, and where their text is."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timedelta

import pytest

from tunewright.api.http.local_key import SCOPES
from tunewright.db.access import LOCAL, MADE_DAYS, SESSION_OF, KeyScope

from .conftest import problem
from .page import whole

ASKED = {"name": "farm", "scopes": ["jobs:read"]}


@pytest.fixture
def giver(one):
    """A client with a key that may read jobs and make keys."""
    return one.client(one.key(KeyScope.JOBS_READ, KeyScope.KEYS_WRITE))


def log_in(one, token):
    """A browser with a session of a key, on a page of the service."""
    browser = one.client(token="", headers={"Origin": one.url, "Sec-Fetch-Site": "same-origin"})
    assert browser.post("/login", data={"key": token}).status_code == 303
    return browser


def test_a_key_is_made_used_listed_and_revoked(one, giver, caplog):
    caplog.set_level(logging.DEBUG)
    answer = giver.post("/v1/keys", json=ASKED | {"days": 2})
    assert answer.status_code == 201 and answer.headers["cache-control"] == "no-store"
    made = answer.json()
    token = made.pop("key")
    assert (made["name"], made["scopes"], made["namespaces"]) == ("farm", ["jobs:read"], None)
    assert made["expires_at"] and made["revoked_at"] is None
    assert one.client(token).get("/v1/jobs").status_code == 200
    listed = giver.get("/v1/keys").json()["items"]
    assert listed[0]["id"] == made["id"]
    for text in (json.dumps(listed), giver.get("/v1/pages/keys").text, giver.get("/keys").text, caplog.text):
        assert token.split("_", 2)[2] not in text
    for _ in range(2):
        assert giver.post(f"/v1/keys/{made['id']}:revoke").json()["revoked_at"]
    assert one.store.keys.check(token) is None
    assert made["id"] in caplog.text


@pytest.mark.parametrize("scope", sorted(set(KeyScope) - {KeyScope.KEYS_WRITE, KeyScope.LOGIN}))
def test_no_other_scope_manages_keys(one, scope):
    client = one.client(one.key(scope))
    for answer in (
        client.get("/v1/keys"),
        client.post("/v1/keys", json=ASKED),
        client.post(f"/v1/keys/{'a' * 12}:revoke"),
        client.get("/keys"),
        client.get("/v1/pages/keys"),
    ):
        assert "keys:write" in problem(answer, "missing-scope", 403)["detail"]
    assert len(one.store.keys.list()) == 2


def test_a_key_gives_only_what_it_has(one, giver):
    for scopes in (["work"], ["jobs:read", "records:void"]):
        refused = problem(giver.post("/v1/keys", json=ASKED | {"scopes": scopes}), "not-granted", 403)
        assert scopes[-1] in refused["detail"]
    problem(giver.post("/v1/keys", json=ASKED | {"scopes": ["login"]}), "invalid-request", 422)
    token = one.key(KeyScope.KEYS_WRITE, expires_in_s=60)
    made = one.client(token).post("/v1/keys", json={"name": "x", "scopes": ["keys:write"], "days": 30}).json()
    [maker] = [key for key in giver.get("/v1/keys").json()["items"] if key["id"] == token.split("_")[1]]
    assert made["expires_at"] == maker["expires_at"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": ""}, "#/name"),
        ({"name": "  "}, "#/name"),
        ({"name": "x" * 201}, "#/name"),
        ({"name": f"{LOCAL}/home"}, "#/name"),
        ({"name": f"{SESSION_OF}x"}, "#/name"),
        ({"scopes": []}, "#/scopes"),
        ({"scopes": ["root"]}, "#/scopes/0"),
        ({"days": 0}, "#/days"),
        ({"days": 1e9}, "#/days"),
        ({"namespaces": ["Not one"]}, "#/namespaces/0"),
        ({"owner": "me"}, "#/owner"),
    ],
)
def test_what_is_wrong_is_told_of_the_field(one, giver, change, pointer):
    found = problem(giver.post("/v1/keys", json=ASKED | change), "invalid-request", 422)
    assert found["errors"][0]["pointer"] == pointer
    assert len(one.store.keys.list()) == 2


def test_a_key_revokes_only_what_may_do_no_more(one, giver):
    """Neither the key of an administrator nor the local one."""
    admin, local = one.key(*set(KeyScope) - {KeyScope.LOGIN}), one.store.keys.create(f"{LOCAL}/x", SCOPES)[0].id
    browser = log_in(one, one.key(KeyScope.JOBS_READ, KeyScope.KEYS_WRITE))
    for client in (giver, browser):
        for key_id in (admin.split("_")[1], local):
            problem(client.post(f"/v1/keys/{key_id}:revoke"), "not-granted", 403)
    assert giver.get("/keys").text.count(":revoke") == 2
    assert all(key.revoked_at is None for key in one.store.keys.list())
    shown = {key["id"]: key["is_revocable"] for key in giver.get("/v1/pages/keys").json()["keys"]}
    assert not shown[local] and sum(shown.values()) == 2  # itself, and that of the browser
    assert one.client(admin).post(f"/v1/keys/{local}:revoke").json()["revoked_at"]


def test_there_is_no_such_key(giver):
    problem(giver.post(f"/v1/keys/{'a' * 12}:revoke"), "no-such-key", 404)
    problem(giver.post("/v1/keys/..%2fx:revoke"), "not-found", 404)
    problem(giver.post("/v1/keys/short:revoke"), "invalid-request", 422)


def test_a_session_of_a_key_makes_what_the_key_may_and_only_from_own_pages(one):
    token = one.key(KeyScope.JOBS_READ, KeyScope.WORK, KeyScope.KEYS_WRITE)
    browser = log_in(one, token)
    assert browser.post("/v1/keys", json=ASKED | {"scopes": ["work"]}).status_code == 201
    problem(browser.post("/v1/keys", json=ASKED | {"scopes": ["records:read"]}), "not-granted", 403)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        problem(browser.post("/v1/keys", json=ASKED, headers=headers), "cross-origin", 403)
    page = whole(browser.get("/keys", headers={"Accept": "text/html"}))
    disabled = {box["value"] for box in page.of("input", name="scopes") if "disabled" in box}
    assert "records:read" in disabled and not disabled & {"jobs:read", "work", "keys:write"}
    assert "(yours)" in page.words and f"at most {MADE_DAYS}" in page.words
    made = browser.post("/v1/keys", json=ASKED | {"days": 1000}).json()
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lasts == timedelta(days=MADE_DAYS)
    assert "stay in force" in browser.post(f"/v1/keys/{token.split('_')[1]}:revoke").json()["note"]
    assert one.client(made["key"]).post(f"/v1/keys/{made['id']}:revoke").status_code == 403  # it is, without the scope


def test_a_session_of_a_link_makes_none(one):
    _, code = one.store.keys.create("link", {KeyScope.LOGIN}, 60)
    browser = one.client(token="", headers={"Origin": one.url})
    browser.get("/login", params={"code": code})
    problem(browser.post("/v1/keys", json=ASKED), "missing-scope", 403)
    assert "/keys" not in whole(browser.get("/")).links()


def test_names_come_as_text(one, client):
    for name in ("<script>alert(1)</script>", "a\u202egnp"):
        assert client.post("/v1/keys", json=ASKED | {"name": name}).status_code == 201
    one.store.keys.create(f"{LOCAL}/home/somebody", {KeyScope.JOBS_READ})
    text = whole(client.get("/keys")).source
    assert "&lt;script&gt;alert(1)" in text and r"a\u202egnp" in text
    assert "<script>alert" not in text and "\u202e" not in text and "somebody" not in text
    assert "somebody" not in client.get("/v1/keys").text
