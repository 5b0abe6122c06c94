"""Dataclasses as JSON data and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import pytest

from tunewright.codegen.codec import IN_MS, JsonName, from_json, to_json


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer:
    number: Annotated[int, JsonName("id")]
    colour: Colour
    at: datetime
    inner: tuple[Inner, ...]
    counts: Mapping[str, int]
    anything: Any
    pair: tuple[float, str] | None = None
    time_s: Annotated[float | None, IN_MS] = None
    edges_s: Annotated[tuple[float, float] | None, IN_MS] = None
    settings: dict[str, Any] = field(default_factory=dict)


OUTER = Outer(
    7,
    Colour.BLUE,
    datetime(2026, 11, 20, 9, 30, tzinfo=UTC),
    (Inner("a", (1, 2)), Inner("b")),
    {"x": 3},
    [None, {"y": 0.5}],
    (1.5, "z"),
    0.25,
    (0.125, 0.5),
    {"dims": {"n": 1}},
)

DATA = {
    "id": 7,
    "colour": "blue",
    "at": "2026-11-20T09:30:00+00:00",
    "inner": [{"name": "a", "sizes": [1, 2]}, {"name": "b", "sizes": []}],
    "counts": {"x": 3},
    "anything": [None, {"y": 0.5}],
    "pair": [1.5, "z"],
    "time_ms": 250.0,
    "edges_ms": [125.0, 500.0],
    "settings": {"dims": {"n": 1}},
}


def test_what_is_written_is_read_again() -> None:
    data = to_json(OUTER)
    assert list(data.items()) == list(DATA.items())
    assert from_json(Outer, json.loads(json.dumps(data))) == OUTER


def test_what_has_a_default_may_be_missing_and_more_may_be_there() -> None:
    names = ("id", "colour", "at", "inner", "counts", "anything")
    read = from_json(Outer, {name: DATA[name] for name in names} | {"later": 1})
    assert (read.pair, read.time_s, read.edges_s, read.settings) == (None, None, None, {})
    assert from_json(Outer, DATA | {"pair": [2, "w"]}).pair == (2.0, "w")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (None, "null is not an object"),
        ([], r"\[\] is not an object"),
        ({name: value for name, value in DATA.items() if name != "id"}, "'id' is missing"),
        (DATA | {"id": True}, "id is true, not a whole number"),
        (DATA | {"id": None}, "id is null, not a whole number"),
        (DATA | {"colour": "green"}, "colour is 'green', not one of red, blue"),
        (DATA | {"at": 3}, "at is 3, not a text"),
        (DATA | {"at": "soon"}, "soon"),
        (DATA | {"inner": [{"name": "a", "sizes": ["1"]}]}, "sizes is '1', not a whole number"),
        (DATA | {"inner": {}}, "inner is {}, not an array"),
        (DATA | {"counts": {"x": "3"}}, r"counts.x is '3', not a whole number"),
        (DATA | {"pair": [1.0]}, "pair has 1 items, not 2"),
        (DATA | {"time_ms": 10**400}, "too large for a number"),
        (DATA | {"time_ms": "long"}, "time_ms is 'long', not a number"),
    ],
)
def test_other_data_is_refused(data: object, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        from_json(Outer, data)
