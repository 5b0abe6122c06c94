"""Faults that pydantic finds are told in words for people."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic_core.core_schema import ErrorType

from tunewright.api.http.request_faults import PATTERNS, fault_text


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
        ({"precision": "fp16"}, "#/precision", "must be 'as given', 'bf16' or 'int8 activations'"),
        ({"color": 1}, "#/color", "there is no such field"),
        ({"dims": [1]}, "#/dims", "must be an object"),
        ({"trials": True}, "#/trials", "must be a whole number"),
        ({"trials": "5"}, "#/trials", "must be a whole number"),
        ({"trials": 0.5}, "#/trials", "must be a whole number"),
        ({"minutes": True}, "#/minutes", "must be a number"),
        ({"minutes": "5"}, "#/minutes", "must be a number"),
        ({"label": 5}, "#/label", "must be a text"),
        ({"dims": {"n": "5"}}, "#/dims/n", "must be a whole number"),
        ({"seed": 2**53}, "#/seed", f"must be at most {2**32 - 1}"),
        ([], "#", "must be an object"),
    ],
)
def test_of_a_body(client: Any, body: Any, pointer: str, said: str) -> None:
    whole = {"model": "ab" * 32} | body if body and isinstance(body, dict) else body
    answer = client.post("/v1/jobs", json=whole)
    assert answer.status_code == 422
    assert {"in": "body", "pointer": pointer, "detail": said} in answer.json()["errors"]


BODY = '{"model": "%s", %%s}' % ("ab" * 32)


@pytest.mark.parametrize(
    ("content", "pointer", "said"),
    [
        (BODY % '"label": "\\ud800"', "#/label", "must be a text; half a surrogate pair is no character"),
        (BODY % '"minutes": NaN', "#/minutes", "must be a number; NaN and Infinity are none"),
        (BODY % f'"trials": {"9" * 5000}', "#", "a number in it has too many digits"),
        (BODY % '"trials"', "#", "this is no JSON: a colon is missing at character 87"),
        ('{"model": ', "#", "this is no JSON: a value is missing at character 11"),
        ('{"model": "x",}', "#", "this is no JSON: a name in double quotes is missing at character 15"),
        (b'{"model": "\xff"}', "#", "it is no text in UTF-8, from byte 12 on"),
        ("[" * 200_000, "#", "it is nested too deeply"),
    ],
)
def test_of_a_body_that_no_library_writes(client: Any, content: str | bytes, pointer: str, said: str) -> None:
    answer = client.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"in": "body", "pointer": pointer, "detail": said}]


@pytest.mark.parametrize("target", [None, 5, [], True])
def test_of_a_value_of_one_form_or_another(client: Any, target: Any) -> None:
    answer = client.post("/v1/lookups", json={"target": target, "tasks": ["ab" * 32]})
    assert answer.status_code == 422
    told = [{"in": "body", "pointer": "#/target", "detail": "must be a text, or an object"}]
    assert answer.json()["errors"] == told


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=" + "9" * 5000, "has too many digits"),
        ("limit=1e3", "must be a whole number"),
        ("limit=9007199254740993", "must be at most"),
    ],
)
def test_of_a_query(client: Any, query: str, said: str) -> None:
    [error] = client.get(f"/v1/jobs?{query}").json()["errors"]
    assert (error["in"], error["pointer"]) == ("query", "#/limit") and error["detail"].startswith(said)
    assert "e+" not in error["detail"]


def test_lengths_are_counted_in_words() -> None:
    assert fault_text({"type": "too_short", "ctx": {"min_length": 1}}) == "must have at least 1 item"
    assert fault_text({"type": "too_long", "ctx": {"max_length": 50}}) == "must have at most 50 items"
    assert fault_text({"type": "string_too_short", "ctx": {"min_length": 1}}) == "must have at least 1 character"


def test_an_empty_choice_is_called_that(client: Any) -> None:
    [error] = client.get("/v1/records?age=eon").json()["errors"]
    assert error["detail"] == "must be empty, 'hour', 'day', 'week', 'month' or 'year'"


def test_limits_have_all_their_digits() -> None:
    fault = {"type": "less_than_equal", "ctx": {"le": 2**53 - 1}, "msg": "", "loc": ()}
    assert fault_text(fault) == "must be at most 9007199254740991"
    assert fault_text(fault | {"ctx": {"le": 0.5}}) == "must be at most 0.5"


def test_nothing_is_told_in_the_words_of_pydantic() -> None:
    """Whatever kind of fault it finds that has no words of ours."""
    ours = {"value_error"}  # its message is that of the error, which this package raised
    for kind in set(get_args(ErrorType)) - ours:
        fault = {"type": kind, "msg": "Input should be a valid thing", "loc": ("body", 0)}
        context = {"error": "Expecting value", "pattern": "", "expected": "1"}
        bounds = dict.fromkeys(("gt", "ge", "lt", "le", "min_length", "max_length"), 1)
        assert "Input" not in fault_text(fault | {"ctx": context | bounds}), kind


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
