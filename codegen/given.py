"""Given: fields of plain data that may come from anywhere, with words for people about what is wrong with them.

Python's own words for the same ("list indices must be integers") would tell of its insides.
"""

from __future__ import annotations

from collections.abc import Collection
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


def shown(value: object) -> str:
    """A value for people: quoted, and not all of a long one."""
    return repr(str(value)[:MAX_SHOWN])


def item(data: Any, name: str, kind: type[Any]) -> Any:
    """A field of an object, of this kind. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{shown(data)} is not an object")
    if name not in data:
        raise ValueError(f"{name!r} is missing")
    return typed(name, data[name], kind)


def typed(name: str, value: Any, kind: type[Any]) -> Any:
    """The value, if it is of this kind; a tuple is an array too. Raises ValueError."""
    is_one = isinstance(value, kind) or (kind is list and isinstance(value, tuple))
    if not is_one or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {shown(value)}, not {WORDS[kind]}")
    return value


def word(name: str, value: Any, kind: type[Word]) -> Word:
    """The member of an enumeration that a text names. Raises ValueError."""
    if isinstance(value, str) and value in {one.value for one in kind}:
        return kind(value)
    raise ValueError(f"{name} is {shown(value)}, not one of {', '.join(kind)}")


def check_names(data: Any, required: Collection[str], allowed: Collection[str]) -> None:
    """Raises ValueError unless an object has all fields that are required, and none but those allowed."""
    if not isinstance(data, dict):
        raise ValueError(f"{shown(data)} is not an object")
    if missing := [name for name in required if name not in data]:
        raise ValueError(f"{', '.join(map(repr, missing))} {'is' if len(missing) == 1 else 'are'} missing")
    if unknown := [shown(name) for name in data if name not in allowed]:
        raise ValueError(f"there is no field {unknown[0]}")
