"""Checked fields of plain data of any origin, with error messages for people.

Python's own messages ("list indices must be integers") would reveal internals.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

MAX_SHOWN = 40
"""Characters of a value that is shown."""

WORDS: dict[type[Any], str] = {
    dict: "an object",
    list: "an array",
    str: "a text",
    int: "a whole number",
    bool: "true or false",
}

Word = TypeVar("Word", bound=StrEnum)


def quote(value: object) -> str:
    """A value for people, cut off if it is long: a text in quotes, anything else as JSON has it."""
    if isinstance(value, str):
        return repr(value[:MAX_SHOWN])
    return json.dumps(value, default=str)[:MAX_SHOWN]


def abridge(text: str, most: int) -> str:
    """A text cut to at most `most` characters, behind a word, with "..." at the end."""
    if len(text) <= most:
        return text
    return (text[: most - 2].rpartition(" ")[0].rstrip(" ,;:") or text[: most - 3]) + "..."


def item(data: Any, name: str, kind: type[Any]) -> Any:
    """A field of an object, of this kind. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{quote(data)} is not an object")
    if name not in data:
        raise ValueError(f"{name!r} is missing")
    return check_type(name, data[name], kind)


def check_type(name: str, value: Any, kind: type[Any]) -> Any:
    """The value, if it is of this kind; a tuple is an array too. Raises ValueError."""
    is_one = isinstance(value, kind) or (kind is list and isinstance(value, tuple))
    if not is_one or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {quote(value)}, not {WORDS[kind]}")
    return value


def check_ranges(where: str, numbers: object, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raises ValueError unless each attribute is a whole number from the first to the last of its range."""
    for name, (low, high) in ranges.items():
        value = getattr(numbers, name)
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{where}: {name} must be a whole number in {low} .. {high}, not {quote(value)}")


def word(name: str, value: Any, kind: type[Word]) -> Word:
    """The member of an enumeration that a text names. Raises ValueError."""
    if isinstance(value, str) and value in {member.value for member in kind}:
        return kind(value)
    raise ValueError(f"{name} is {quote(value)}, not one of {', '.join(kind)}")


def check_names(data: Any, required: Collection[str], allowed: Collection[str]) -> None:
    """Raises ValueError unless an object has all fields that are required, and none but those allowed."""
    if not isinstance(data, dict):
        raise ValueError(f"{quote(data)} is not an object")
    if missing := [name for name in required if name not in data]:
        raise ValueError(f"{', '.join(map(repr, missing))} {'is' if len(missing) == 1 else 'are'} missing")
    if unknown := [quote(name) for name in data if name not in allowed]:
        raise ValueError(f"there is no field {unknown[0]}")
