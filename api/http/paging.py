"""Paging: lists come in pages, and a cursor of one leads to the next."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import Field

from tunewright.db.bounds import LARGEST_ID

from .problems import Problem, invalid
from .schemas.base import Answer

Cursor = Annotated[
    str | None, Query(max_length=200, description="Where to go on: `next` of the page before.", examples=["NDI"])
]
Limit = Annotated[int, Query(ge=1, le=200, description="Most items of a page.")]

Item = TypeVar("Item")
Row = TypeVar("Row")


class Page(Answer, Generic[Item]):
    """A part of a list, the newest first unless the route says otherwise."""

    items: list[Item]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")


def cut(rows: Sequence[Row], limit: int, place: Callable[[Row], str | int]) -> tuple[Sequence[Row], str | None]:
    """The rows of a page of so many, and the cursor behind the last of them: None where `rows` has no more than that.

    So ask for one row more than the page has. `place` says where in the list a row is.
    """
    page = rows[:limit]
    return page, _cursor_of(place(page[-1])) if len(rows) > limit else None


def _cursor_of(place: str | int) -> str:
    """A place in a list, as a cursor. Clients are not to read anything from it."""
    return base64.urlsafe_b64encode(str(place).encode()).decode().rstrip("=")


def text_of(cursor: str | None) -> str | None:
    """The place that a cursor stands for; None for none. Raises Problem for what is no cursor."""
    if cursor is None:
        return None
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise bad_cursor() from None


def number_of(cursor: str | None) -> int | None:
    """The place of a cursor in a list whose places are numbers. Raises Problem."""
    text = text_of(cursor)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > LARGEST_ID:
        raise bad_cursor()
    return int(text)


def bad_cursor() -> Problem:
    """The problem of a cursor that leads nowhere."""
    return invalid("query", ["cursor"], "this is no cursor of this list")
