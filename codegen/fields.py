"""Checked fields of plain data of any origin, with error messages for people.

Python's own messages ("list indices must be integers") would reveal internals.
"""

from __future__ import annotations

import json
import math
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

MOST_DIGITS = 1000
"""Digits of a whole number; Python reads 4300."""

JSON_FAULTS = {
    "Expecting value": "a value is missing",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Extra data": "there is more behind its end",
    "Unterminated string starting at": "a text has no end",
    "Invalid control character at": "a text has a control character",
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": "a byte order mark precedes it",
}
"""What is wrong where, by Python's words for it."""

Word = TypeVar("Word", bound=StrEnum)


def read_json(text: str) -> Any:
    """Data from JSON of any origin. Raises ValueError in words for people, or JSONDecodeError: see `json_fault`."""
    return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_refuse_constant)


def json_fault(message: str) -> str:
    """What is wrong with JSON, for people, from the message of a JSONDecodeError."""
    if message in JSON_FAULTS:
        return JSON_FAULTS[message]
    return "a text has a wrong escape" if "escape" in message else "a comma is too many"


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits; it may have {MOST_DIGITS:,}")
    return int(text)


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{abridge(text, MAX_SHOWN)} is too large for a number")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def quote(value: object, most: int = MAX_SHOWN) -> str:
    """A value for people: a text in quotes, anything else as JSON has it; with "..." behind it where it is cut off."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = repr(text[:most]) if isinstance(value, str) else text[:most]
    return shown if len(text) <= most else f"{shown}..."


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


def check_number(name: str, value: Any) -> float:
    """The value, if it is a number, whole or not. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {quote(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is {quote(value)}, too large for a number") from None


def check_items(name: str, value: Any, count: int) -> Any:
    """The value, if it is an array of so many items. Raises ValueError."""
    items = check_type(name, value, list)
    if len(items) != count:
        raise ValueError(f"{name} has {len(items)} items, not {count}")
    return items


def check_ranges(where: str, numbers: object, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raises ValueError unless each attribute is a whole number from the first to the last of its range."""
    for name, (low, high) in ranges.items():
        value = getattr(numbers, name)
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{where}: {name} must be a whole number in {low} .. {high}, not {quote(value)}")


def word(name: str, value: Any, kind: type[Word], besides: Collection[Word] = ()) -> Word:
    """The member of an enumeration that a text names, one `besides` these. Raises ValueError."""
    members = [member for member in kind if member not in besides]
    if isinstance(value, str) and value in {member.value for member in members}:
        return kind(value)
    raise ValueError(f"{name} is {quote(value)}, not one of {', '.join(members)}")


def check_names(data: Any, required: Collection[str], allowed: Collection[str]) -> None:
    """Raises ValueError unless an object has all fields that are required, and none but those allowed."""
    if not isinstance(data, dict):
        raise ValueError(f"{quote(data)} is not an object")
    if missing := [name for name in required if name not in data]:
        raise ValueError(f"{', '.join(map(quote, missing))} {'is' if len(missing) == 1 else 'are'} missing")
    if unknown := [quote(name) for name in data if name not in allowed]:
        raise ValueError(f"there is no field {unknown[0]}")
