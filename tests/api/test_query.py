"""Parameters that no route knows are told of, and so are fields of bodies."""

import re

import pytest

from .conftest import problem


def test_a_misspelt_parameter_is_named_beside_the_known_ones(client):
    told = problem(client.get("/v1/jobs", params={"limt": 5, "limit": 5}), "invalid-request", 422)
    known = "cursor, limit, model, owner, search, state, tag, target"
    said = f"there is no such parameter; this route has {known}"
    assert told["errors"] == [{"in": "query", "pointer": "#/limt", "detail": said}]
    assert told["detail"] == f"query #/limt: {said}"
    more = problem(client.get("/v1/workers?a=1&b/~=2&a=3"), "invalid-request", 422)
    assert [error["pointer"] for error in more["errors"]] == ["#/a", "#/b~1~0"]
    assert more["detail"].endswith("this route has none, and 1 more")
    assert (
        len(problem(client.get("/v1/jobs?" + "&".join(f"p{n}" + "=1" for n in range(500))), "invalid-request", 422))
        < 30
    )


def test_a_parameter_that_comes_twice_is_refused_where_one_counts(client):
    told = problem(client.get("/v1/jobs?limit=1&limit=2&state=queued&state=running"), "invalid-request", 422)
    said = "it is given 2 times; give it once"
    assert told["errors"] == [{"in": "query", "pointer": "#/limit", "detail": said}]
    assert told["detail"] == f"query #/limit: {said}"
    assert client.get("/v1/jobs?state=queued&state=running").status_code == 200
    twice = problem(client.get("/v1/pages/records?op=a&op=b"), "invalid-request", 422)  # its query is a model
    assert twice["errors"][0]["pointer"] == "#/op"


def routes(app):
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            yield (
                method.upper(),
                re.sub(r"\{[^}]*sha256\}|\{\w*key\}", "0" * 64, path).replace("{job_id}", "1"),
                operation,
            )


def test_every_route_of_programs_refuses_what_it_does_not_know(one, client):
    """The parameters of the document are all that it takes."""
    for method, path, operation in routes(one.app):
        if not path.startswith("/v1/") and path not in ("/livez", "/readyz", "/metrics"):
            continue
        known = sorted(p["name"] for p in operation.get("parameters", []) if p["in"] == "query")
        told = problem(client.request(method, path, params={"unheard-of": "1"}), "invalid-request", 422)
        [error] = [error for error in told["errors"] if error["pointer"] == "#/unheard-of"]
        assert error["detail"].endswith(", ".join(known) or "none")


@pytest.mark.parametrize("path", ["/", "/fleet", "/static/style.css", "/login"])
def test_pages_pass_over_it(client, path):
    assert client.get(path, params={"utm_source": "mail"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {"model": "0" * 64, "trails": 5}),
        ("PATCH", "/v1/jobs/1", {"priority": 1, "trails": 5}),
        ("POST", "/v1/lookups", {"target": "0" * 64, "tasks": ["0" * 64], "trails": 5}),
    ],
)
def test_unknown_fields_of_bodies_are_refused(client, method, path, body):
    told = problem(client.request(method, path, json=body), "invalid-request", 422)
    assert [error["pointer"] for error in told["errors"]] == ["#/trails"]
