"""What goes wrong with a database for reasons outside of the program."""

from __future__ import annotations


class StoreError(Exception):
    """The database can't be opened, read or written, or refuses the change: one line for people."""


class NotFound(StoreError):
    """The job, task, target, model or key that was named is not in the database."""


class Unreachable(StoreError):
    """The database server can't be reached, or went away: trying again later may work."""
