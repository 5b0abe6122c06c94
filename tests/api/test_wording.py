"""Faults that pydantic finds are told in words for people."""

from __future__ import annotations

from typing import Any

import pytest

from tunewright.api.http.problems import PATTERNS


@pytest.mark.parametrize(
    ("body", "pointer", "said"),
    [
        ({}, "#/model", "it is missing"),
        ({"model": "x"}, "#/model", "must be 64 hexadecimal digits, in lower case"),
        ({"trials": 0}, "#/trials", "must be at least 1"),
        ({"trials": 1.5}, "#/trials", "must be a whole number"),
        ({"trials": "many"}, "#/trials", "must be a whole number"),
        ({"minutes": "x"}, "#/minutes", "must be a number"),
        ({"strategy": "guess"}, "#/strategy", "must be 'evolutionary' or 'random'"),
        ({"color": 1}, "#/color", "there is no such field"),
        ({"dims": [1]}, "#/dims", "must be an object"),
        ([], "#", "must be an object"),
    ],
)
def test_of_a_body(client: Any, body: Any, pointer: str, said: str) -> None:
    whole = {"model": "ab" * 32} | body if body and isinstance(body, dict) else body
    answer = client.post("/v1/jobs", json=whole)
    assert answer.status_code == 422
    assert {"in": "body", "pointer": pointer, "detail": said} in answer.json()["errors"]


def test_every_pattern_of_a_route_has_words(client: Any) -> None:
    patterns = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            patterns.update([node["pattern"]] if isinstance(node.get("pattern"), str) else [])
            node = list(node.values())
        for one in node if isinstance(node, list) else ():
            collect(one)

    described = client.get("/v1/openapi.json").json()
    collect(described["paths"])
    collect([schema for name, schema in described["components"]["schemas"].items() if name.endswith("Asked")])
    assert patterns and patterns <= PATTERNS.keys()


def test_who_sends_no_key_hears_how(one: Any) -> None:
    answer = one.client(token="").get("/v1/jobs")
    assert answer.json()["detail"] == "send an API key in the header `Authorization: Bearer KEY`"
