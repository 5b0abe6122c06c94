"""Errors of a database for reasons outside of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar


class StoreError(Exception):
    """The database can't be opened, read or written, or refuses the change: one line for people."""


class NotFound(StoreError):
    """The named job, task, target, model or key is not in the database."""


class Damaged(StoreError):
    """What is in the database or backup `name` is not what was stored in it."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"{name} is damaged: {fault}")
        self.name = name


class Unreadable(StoreError):
    """A row holds what was never stored in it: no name of the database is known yet, see `translate_errors`."""

    def __init__(self, table: str, column: str) -> None:
        self.fault = f"a row of its table {table} can't be read: its {column} is not what was stored"
        super().__init__(f"the database is damaged: {self.fault}")


Item = TypeVar("Item")


def read_stored(read: Callable[[], Item], table: str, column: str) -> Item:
    """What `read` makes of what a row of the table holds. Raises Unreadable where that can't be read."""
    try:
        return read()
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(table, column) from error


Reason = Literal["disk full", "disk fails", "database read-only"]
"""Why nothing can be stored."""


class Unwritable(StoreError):
    """Nothing can be stored now; reading may work."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class Unreachable(StoreError):
    """The database server can't be reached, or went away: trying again later may work."""
