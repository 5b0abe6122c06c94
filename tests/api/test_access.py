"""Who gets in: keys, scopes, hosts, origins, rates."""

import asyncio
import re

import httpx
import pytest

from tunewright.api.http.access import COOKIE, OPEN, Hosts
from tunewright.api.http.local_key import local_key
from tunewright.api.http.service import Options
from tunewright.db.access import KeyScope
from tunewright.tuner.cli import keys
from tunewright.tuner.errors import Refused

from ..waiting import wait_for
from .conftest import problem

UNKNOWN = ["/", "/v1", "/v1/nothing", "/problems/no-key", "/docs", "/openapi.json", "/favicon.ico"]


def routes(one):
    """Every method and path of the OpenAPI document, with something in place of the parameters."""
    for path, operations in one.app.openapi()["paths"].items():
        for method in operations:
            yield (
                method.upper(),
                re.sub(r"\{[^}]*sha256\}|\{\w*key\}", "0" * 64, path).replace("{job_id}", "1").replace("{name}", "x"),
            )


def test_nobody_gets_anything_without_a_key(one):
    client = one.client(token="")
    asked = {(method, path) for method, path in routes(one) if path not in OPEN and path != "/login"}
    assert len(asked) > 12
    for method, path in sorted(
        asked | {("GET", path) for path in UNKNOWN} | {("PROPFIND", "/v1/jobs"), ("OPTIONS", "/v1/jobs")}
    ):
        answer = client.request(method, path)
        assert "bearer" in answer.headers["www-authenticate"].lower()
        problem(answer, "no-key", 401)


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_needs_no_key_and_no_name(one, path):
    answer = one.client(token="").get(path, headers={"Host": "10.1.2.3:8433"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer tw_",
        "Bearer x",
        "Basic dTpw",
        "Bearer tw_abcdefghijkl_" + "A" * 43,
        "Bearer tw_\xe9",
        "bearer " * 900 + "x",
    ],
)
def test_wrong_keys(one, header):
    problem(one.client(token="").get("/v1/jobs", headers={"Authorization": header.encode("latin-1")}), "no-key", 401)


def test_a_key_may_do_what_its_scopes_say(one):
    reader = one.client(one.key(KeyScope.JOBS_READ))
    assert reader.get("/v1/jobs").status_code == 200
    assert "jobs:write" in problem(reader.post("/v1/jobs/1:cancel"), "missing-scope", 403)["detail"]
    problem(reader.get("/metrics"), "missing-scope", 403)
    assert one.client(one.key(KeyScope.METRICS)).get("/metrics").status_code == 200
    problem(one.client(one.key(KeyScope.LOGIN, expires_in_s=60)).get("/v1/jobs"), "missing-scope", 403)


def test_keys_end(one, monkeypatch):
    monkeypatch.setattr("tunewright.api.http.access.TRUST_S", 0.1)
    expiring, token = one.key(expires_in_s=0.2), one.key()
    assert one.client(expiring).get("/v1/jobs").status_code == 200
    assert one.client(token).get("/v1/jobs").status_code == 200
    one.store.keys.revoke(token.split("_")[1])
    ending = one.client(expiring), one.client(token)
    wait_for(lambda: {client.get("/v1/jobs").status_code for client in ending} == {401})
    problem(one.client(expiring).get("/v1/jobs"), "no-key", 401)
    problem(one.client(token).get("/v1/jobs"), "no-key", 401)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "192.168.1.7:80", "", "a b", "127.0.0.1@evil.example"]
)
def test_other_hosts_are_refused(one, client, host):
    problem(client.get("/v1/jobs", headers={"Host": host}), "wrong-host", 421)
    problem(client.get("/nothing", headers={"Host": host}), "wrong-host", 421)


def test_which_hosts_are_answered_for():
    local = Hosts("127.0.0.1", ("*.tune.example", "Box"))
    for name in ("localhost", "LOCALHOST:8433", "127.0.0.1:1", "[::1]:8433", "a.tune.example", "box", "localhost."):
        assert local.answers_for(name), name
    for name in ("tune.example", "example", "10.0.0.1", "[fe80::1]", "[::1", "localhost:", "localhost:123456"):
        assert not local.answers_for(name), name
    assert Hosts("0.0.0.0", ()).answers_for("10.0.0.1:8433")
    assert not Hosts("0.0.0.0", ()).answers_for("example.org")
    assert Hosts("tuner.example", ()).answers_for("tuner.example:8433")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_other_sites_are_refused(client, method, headers):
    problem(client.request(method, "/v1/jobs", headers=headers), "cross-origin", 403)


def test_own_pages_are_not(one, client):
    same = {"Origin": one.url, "Sec-Fetch-Site": "same-origin"}
    assert client.get("/v1/jobs", headers=same).status_code == 200
    assert client.post("/v1/jobs/1:cancel", headers=same).status_code == 404
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    assert client.get("/", headers=visit).status_code == 200
    assert client.get("/", headers={"Sec-Fetch-Site": "none"}).status_code == 200


def test_a_link_opens_one_session(one):
    _, code = one.store.keys.create("link", {KeyScope.LOGIN}, 60)
    browser = one.client(token="", headers={"Accept": "text/html,*/*"})
    first = browser.get("/login", params={"code": code})
    assert first.status_code == 200
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert first.headers["refresh"].endswith("url=/")
    assert browser.get("/").status_code == 200
    assert browser.get("/v1/jobs").status_code == 200
    assert browser.get("/v1/snapshots/x").status_code == 422
    again = one.client(token="").get("/login", params={"code": code})
    problem(again, "no-key", 401)
    problem(one.client(token="").get("/login", params={"code": one.token}), "no-key", 401)
    assert one.client(one.token).get("/v1/jobs").status_code == 200


def test_a_session_changes_things_only_from_own_pages(one):
    _, code = one.store.keys.create("link", {KeyScope.LOGIN}, 60)
    browser = one.client(token="")
    browser.get("/login", params={"code": code})
    problem(browser.post("/v1/jobs/1:cancel"), "cross-origin", 403)
    assert browser.post("/v1/jobs/1:cancel", headers={"Origin": one.url}).status_code == 404
    assert browser.post("/logout", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert COOKIE not in browser.cookies


def test_logging_out_ends_the_session_at_once(one):
    _, code = one.store.keys.create("link", {KeyScope.LOGIN}, 60)
    browser = one.client(token="")
    token = browser.get("/login", params={"code": code}).cookies[COOKIE]
    assert browser.get("/v1/jobs").status_code == 200
    browser.post("/logout", headers={"Origin": one.url})
    problem(one.client(token="", cookies={COOKIE: token}).get("/v1/jobs"), "no-key", 401)


def test_refusals_of_pages_are_pages(one):
    answer = one.client(token="").get("/", headers={"Accept": "text/html"})
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.text.count("<script") == answer.text.count('src="/static/show.js') == 1


@pytest.mark.usefixtures("within_a_minute")
def test_rates(serve):
    options = Options(requests_per_minute=20, changes_per_minute=3, failures_per_minute=2)
    with serve(options) as one:
        client, other = one.client(), one.client(one.key())
        for _ in range(3):
            assert client.post("/v1/jobs/1:cancel").status_code == 404
        assert 1 <= int(client.post("/v1/jobs/1:cancel").headers["retry-after"]) <= 60
        problem(client.post("/v1/jobs/1:cancel"), "rate-limited", 429)
        for _ in range(15):
            assert client.get("/v1/jobs").status_code == 200
        problem(client.get("/v1/jobs"), "rate-limited", 429)
        assert other.get("/v1/jobs").status_code == 200
        stranger = one.client(token="tw_abcdefghijkl_" + "A" * 43)
        for _ in range(2):
            problem(stranger.get("/v1/jobs"), "no-key", 401)
        problem(stranger.get("/v1/jobs"), "rate-limited", 429)
        problem(one.client(token="").get("/login", params={"code": "x"}), "rate-limited", 429)
        assert other.get("/v1/jobs").status_code == 200  # a key that is known is not held up by others' wrong ones


def test_answers_carry_headers(one, client):
    answer = client.get("/v1/jobs", headers={"X-Request-ID": "from-a-proxy"})
    assert answer.headers["x-request-id"] == "from-a-proxy"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"  # or forms would have no origin
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.get("/v1/jobs", headers={"X-Request-ID": "a\tb"}).headers["x-request-id"] != "a\tb"


@pytest.mark.usefixtures("within_a_minute")
def test_wrong_keys_of_others_lock_nobody_out(serve, monkeypatch):
    """One address may be that of many: a proxy's, or this machine's own."""
    monkeypatch.setattr("tunewright.api.http.access.TRUST_S", 0.0)  # each request has its key checked anew
    with serve(Options(failures_per_minute=1)) as one:
        client, revoked = one.client(), one.client(one.key())
        assert client.get("/v1/jobs").status_code == revoked.get("/v1/jobs").status_code == 200
        one.store.keys.revoke(next(key.id for key in one.store.keys.list() if key.name == "test"))
        problem(revoked.get("/v1/jobs"), "no-key", 401)
        problem(revoked.get("/v1/jobs"), "rate-limited", 429)
        assert client.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        ("127.0.0.1", 200),
        ("127.8.9.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("192.0.2.7", 401),
        ("::ffff:192.0.2.7", 401),
        ("localhost", 401),
        ("", 401),
    ],
)
def test_the_local_key_is_good_on_this_machine_alone(one, tmp_path, peer, status):
    token = local_key(tmp_path / "local_key", one.store).read_text().strip()

    async def asked(shown):
        transport = httpx.ASGITransport(one.app, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url=one.url) as client:
            return await client.get("/v1/jobs", headers={"Authorization": f"Bearer {shown}"})

    assert asyncio.run(asked(one.token)).status_code == 200
    for _ in range(2):
        assert asyncio.run(asked(token)).status_code == status
    assert one.client(token).get("/v1/jobs").status_code == 200


def test_no_other_key_has_the_name_of_a_local_one(tmp_path):
    with pytest.raises(Refused, match="begins the names"):
        keys.create("local key in here", [], None, db=f"sqlite:///{tmp_path}/a.db")
