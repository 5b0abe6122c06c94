"""Tables for people: a number is never cut. Where there is little room, names fold and columns are left out."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 100
"""Columns of a terminal from which on nothing is left out."""

LEAST = 72
"""What a table takes in any case; a terminal that is narrower breaks its lines."""


def is_wide(console: Console) -> bool:
    """Whether everything has room."""
    return console.width >= WIDE


def key_letters(console: Console) -> int:
    """Letters of a task's key to show: enough to name it."""
    return 12 if is_wide(console) else 8


def new_table(console: Console, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table with columns of texts, the first of which stays whole while the others fold, and columns of numbers."""
    width = None if console.width >= LEAST else LEAST
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, width=width)
    for place, name in enumerate(names):
        table.add_column(name, no_wrap=place == 0, overflow="fold", max_width=None if place == 0 else 44)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print it whole, whatever the width of the terminal."""
    console.print(table, crop=False)
