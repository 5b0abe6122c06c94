"""Texts that must say something: what is space in any dialect of patterns says nothing."""

import re

import pytest
from pydantic import BaseModel, Field, ValidationError

from tunewright.api.http.schemas.base import NOT_BLANK

SPACES = {chr(code) for code in range(0x110000) if chr(code).isspace()} | {"\ufeff"}
"""Python's, and the byte order mark, which is one of ECMAScript's, in whose dialect JSON schemas are read."""


class Said(BaseModel):
    text: str = Field(pattern=NOT_BLANK)


def test_no_space_says_anything():
    everything = "".join(sorted(SPACES))
    assert re.search(NOT_BLANK, everything) is None
    with pytest.raises(ValidationError):
        Said(text=everything)


@pytest.mark.parametrize("text", ["a", " a ", "\x85ü", "\u200d"])
def test_anything_else_does(text):
    assert re.search(NOT_BLANK, text) and Said(text=text)


def test_a_request_is_answered_so(serve):
    with serve() as one:
        answer = one.client().post("/v1/devices:rest", json={"device": "\x85", "minutes": 5})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"in": "body", "pointer": "#/device", "detail": "must not be empty or blank"}]
