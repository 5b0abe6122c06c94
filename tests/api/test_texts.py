"""Texts of views: none is longer than a page has room for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from pydantic import TypeAdapter

from tunewright.api import dashboard
from tunewright.api.dashboard.views import LONGEST, LONGEST_REPORT, MOST_FACTS, LongText, Provenance, Text
from tunewright.api.http.schemas import launchable
from tunewright.api.http.schemas.base import Answer

OPEN = {("TextShown", "text")}
"""What `tuner.explain.texts` has cut already, at a line."""

CURSORS = {"cursor", "next"}


def models() -> Iterator[type[Answer]]:
    """All that views are made of."""
    names = [module.name for module in walk_packages(dashboard.__path__, f"{dashboard.__name__}.")]
    for name in (*names, launchable.__name__):
        module = import_module(name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and issubclass(kind, Answer):
                yield kind


def texts(schema: Any) -> Iterator[dict[str, Any]]:
    """The texts in a field, by its JSON schema; what refers to other models is left to them."""
    if isinstance(schema, list):
        for part in schema:
            yield from texts(part)
    elif isinstance(schema, dict):
        if schema.get("type") == "string":
            yield schema
        for part in schema.values():
            yield from texts(part)


def test_no_text_of_a_view_is_without_a_limit():
    found = [
        (model.__name__, name, text)
        for model in models()
        for name, field in model.model_json_schema()["properties"].items()
        for text in texts(field)
    ]
    assert len(found) > 100
    limits = {"maxLength", "pattern", "enum", "const", "format"}
    free = [(model, name) for model, name, text in found if limits.isdisjoint(text) and name not in CURSORS]
    assert set(free) <= OPEN


@pytest.mark.parametrize(("kind", "longest"), [(Text, LONGEST), (LongText, LONGEST_REPORT)])
def test_who_says_too_much_is_cut_and_it_shows(kind, longest):
    said = TypeAdapter(kind)
    assert said.validate_python("x" * longest) == "x" * longest
    assert said.validate_python("x" * 5000) == "x" * (longest - 3) + "..."
    assert TypeAdapter(kind | None).validate_python(None) is None


def test_a_provenance_of_any_size():
    told = {f"{n} {'n' * 400}": "v" * 400 for n in range(MOST_FACTS + 1)}
    found = TypeAdapter(Provenance).validate_python(told)
    assert len(found) == MOST_FACTS
    assert {len(text) for entry in found.items() for text in entry} == {LONGEST}
