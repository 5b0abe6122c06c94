"""The fleet over HTTP: processes that are drained, and devices that rest."""

from __future__ import annotations

import pytest

from tunewright.db.access import KeyScope
from tunewright.db.fleet import TunerDevice, TunerOrders, TunerWish

from .conftest import TARGET, problem
from .page import whole

DEVICE = "host-1/0"


@pytest.fixture
def report(one):
    """What a tuner process hears as it reports."""
    return lambda: one.store.fleet.report("t1", [TunerDevice(DEVICE, TARGET.key)])


def test_a_process_is_drained(one, client, report):
    for _ in range(2):
        answer = client.post("/v1/workers/t1:drain")
        assert answer.status_code == 200, answer.text
        assert (answer.json()["id"], answer.json()["wish"]) == ("t1", "drain")
    assert "asked to drain" in whole(client.get("/fleet")).words
    assert not whole(client.get("/fleet")).of("button", **{"data-post": "/v1/workers/t1:drain"})
    assert report() == TunerOrders(TunerWish.DRAIN)


def test_a_device_rests_and_is_used_again(one, client, report):
    answer = client.post("/v1/devices:rest", json={"device": DEVICE, "minutes": 30, "reason": "its\nfan"})
    assert answer.json() == {"device": DEVICE, "tuners": ["t1"]}
    assert "asked to rest" in whole(client.get("/fleet")).words
    [order] = report().devices
    assert order.device == DEVICE and order.reason.startswith("its fan (ordered by key ")
    assert order.left_s is not None and 1700.0 < order.left_s <= 1800.0
    assert "asked to rest" not in whole(client.get("/fleet", headers={"Cache-Control": "no-cache"})).words
    assert client.post("/v1/devices:lift", json={"device": DEVICE}).status_code == 200
    [order] = report().devices
    assert order.left_s is None


def test_who_ordered_it_is_told_after_the_longest_reason(one, client, report):
    client.post("/v1/devices:rest", json={"device": DEVICE, "minutes": 30, "reason": "x" * 200}).raise_for_status()
    [order] = report().devices
    assert len(order.reason) == 200
    text, _, by = order.reason.partition(" (ordered by key ")
    assert set(text) == {"x"} and by.removesuffix(")") in {key.id for key in one.store.keys.list()}


@pytest.mark.parametrize("scope", sorted(set(KeyScope) - {KeyScope.FLEET_WRITE, KeyScope.LOGIN}))
def test_no_other_scope_may(one, scope, report):
    client = one.client(one.key(scope))
    for path, body in (
        ("/v1/workers/t1:drain", None),
        ("/v1/devices:rest", {"device": DEVICE, "minutes": 5}),
        ("/v1/devices:lift", {"device": DEVICE}),
    ):
        problem(client.post(path, json=body), "missing-scope", 403)
    assert report() == TunerOrders()


def test_who_may_not_gets_no_buttons(one):
    page = whole(one.client(one.key(KeyScope.JOBS_READ)).get("/fleet"))
    assert not [tag for tag in page.of("button") if "data-post" in tag] and not page.of("form", id="rest")
    assert whole(one.client().get("/fleet")).of("button", **{"data-post": "/v1/workers/t1:drain"})


def test_what_is_not_there(client):
    for name in ("t2", "x" * 64):
        problem(client.post(f"/v1/workers/{name}:drain"), "no-such-worker", 404)
    problem(client.post(f"/v1/workers/{'x' * 65}:drain"), "invalid-request", 422)
    problem(client.post("/v1/devices:lift", json={"device": "host-9"}), "no-such-worker", 404)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"minutes": 0}, "#/minutes"),
        ({"minutes": 10_081}, "#/minutes"),
        ({"device": " "}, "#/device"),
        ({"device": "x" * 301}, "#/device"),
        ({"reason": "x" * 201}, "#/reason"),
    ],
)
def test_what_is_wrong_is_told_of_the_field(client, change, pointer):
    answer = client.post("/v1/devices:rest", json={"device": DEVICE, "minutes": 5} | change)
    assert problem(answer, "invalid-request", 422)["errors"][0]["pointer"] == pointer


def test_a_session_of_a_link_may_but_only_from_own_pages(one, report):
    _, code = one.store.keys.create("link", {KeyScope.LOGIN}, 60)
    browser = one.client(token="")
    browser.get("/login", params={"code": code})
    problem(browser.post("/v1/workers/t1:drain"), "cross-origin", 403)
    assert report() == TunerOrders()
    assert browser.post("/v1/workers/t1:drain", headers={"Origin": one.url}).status_code == 200
