"""What a client keeps: a 304 says of it all that the whole answer said, since browsers take its headers over."""

import re

import pytest

from tunewright.api.dashboard import page as page_routes
from tunewright.api.dashboard.html import assets
from tunewright.api.http.etags import is_match

from .conftest import TARGET, make_task, store_best

OF_ONE_ANSWER = {"date", "x-request-id", "content-length", "transfer-encoding", "content-type", "content-encoding"}
"""Headers of a message or its body. A 304 has no body to describe."""

KEPT = {
    "/": "text/html",
    "/jobs/{job}": "text/html",
    "/compare?job={job}": "text/html",
    "/tasks/{task}?target={target}": "text/html",
    "/tasks/{task}/schedules/{schedule}?target={target}": "text/html",
    "/tasks/{task}/trials?target={target}": "text/html",
    "/records": "text/html",
    "/cost-model": "text/html",
    "/fleet": "text/html",
    "/search": "text/html",
    "/keys": "text/html",
    "/v1/pages/jobs": "application/json",
    "/v1/pages/jobs/{job}": "application/json",
    "/v1/pages/compare?job={job}": "application/json",
    "/v1/pages/tasks/{task}?target={target}": "application/json",
    "/v1/pages/tasks/{task}/schedules/{schedule}?target={target}": "application/json",
    "/v1/pages/tasks/{task}/trials?target={target}": "application/json",
    "/v1/pages/records": "application/json",
    "/v1/pages/cost-model": "application/json",
    "/v1/pages/fleet": "application/json",
    "/v1/pages/search": "application/json",
    "/v1/pages/keys": "application/json",
    "/v1/logs/{namespace}/{log}": "application/json",
    "/v1/logs/{namespace}:snapshot": "application/jsonl",
    "/v1/records/{task}?target={target}": "application/json",
    "/v1/snapshots/{target}": "application/jsonl",
    "/v1/openapi.json": "application/json",
}

FILES = {"/static/style.css": "text/css", "/static/style.css?v=" + assets()["style.css"].version: "text/css"}
"""No routes of the interface, so that the document does not tell of them."""


def test_these_are_all_that_are_kept(one):
    described = one.app.openapi()["paths"]
    told = [path for path, methods in described.items() if "304" in methods.get("get", {}).get("responses", {})]
    named = [re.sub(r"\{(\w+?)(_id|_key)?\}", r"{\1}", path) for path in told]
    assert sorted(named) == sorted(path.partition("?")[0] for path in KEPT)


@pytest.mark.parametrize("path", [*KEPT, *FILES])
def test_an_answer_that_is_unchanged_has_the_headers_of_the_whole(one, shown_client, kit, monkeypatch, path):
    monkeypatch.setattr(page_routes, "KEEP_S", 3600.0)
    client, task = shown_client, make_task()
    record = store_best(one.store, task)
    model = kit.send(client, 8)
    job = client.post("/v1/jobs", json={"model": model}).json()["id"]
    assert client.put("/v1/logs/triton/k", json={"value": "v"}).status_code == 200
    names = {"job": job, "task": task.key, "target": TARGET.key, "namespace": "triton", "log": "k"}
    address = path.format(**names, schedule=record.schedule.key)
    first = client.get(address, headers={"Accept-Encoding": "gzip"})
    assert first.status_code == 200, first.text
    assert first.headers["content-type"].partition(";")[0] == (KEPT | FILES)[path]
    same = client.get(address, headers={"If-None-Match": first.headers["etag"], "Accept-Encoding": "gzip"})
    assert same.status_code == 304
    expected, found = (
        {name: value for name, value in answer.headers.items() if name not in OF_ONE_ANSWER} for answer in (first, same)
    )
    assert found == expected
    assert "content-type" not in same.headers
    assert ("script-src 'self'" in found["content-security-policy"]) == (KEPT.get(path) == "text/html")


def test_every_answer_at_an_address_has_one_policy(one, client):
    """Also refusals: none of them may take a page's style away."""
    stranger = one.client(token="")
    for path in ("/", "/records", "/fleet", "/jobs/99", "/problems/x", "/login"):
        answers = [client.get(path), stranger.get(path), client.get(path, headers={"Host": "evil.example"})]
        answers += [client.get(path, headers={"Accept": "text/html"}), client.delete(path)]
        assert {answer.headers["content-security-policy"] for answer in answers} == {
            client.get("/").headers["content-security-policy"]
        }


@pytest.mark.parametrize(
    ("header", "matches"),
    [(None, False), ("*", True), ('"a"', True), ('W/"a"', True), ('"b", "a"', True), ('"b"', False), ("a", False)],
)
def test_what_matches(header, matches):
    assert is_match(header, '"a"') is matches
