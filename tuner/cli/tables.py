"""Tables for people: a number is never cut. Where there is little room, names fold and columns are left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..text import legends, printable

WIDE = 100
"""Columns of a terminal from which on nothing is left out."""

LEAST = 72
"""The least width of a table; a narrower terminal breaks its lines."""


_ROOMY = Console(width=10 * WIDE)


def is_wide(console: Console) -> bool:
    """Whether the console has room for all columns."""
    return console.width >= WIDE


def key_letters(console: Console) -> int:
    """Letters of a task's key to show: enough to name it."""
    return 12 if is_wide(console) else 8


class OpName:
    """The name of a task in a cell, such as Transpose+Conv+Relu: where it has no room it breaks behind a +."""

    def __init__(self, op: str) -> None:
        self._parts = re.findall(r"[^+]*\+*", printable(op))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest part on, it is whole in all of them."""
        return Measurement(max(map(cell_len, self._parts)), cell_len("".join(self._parts)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many parts on each line as there is room for; a longer part is broken as any other word."""
        line = ""
        for part in self._parts:
            if line and cell_len(line + part) > options.max_width:
                yield Text(line.strip())
                line = ""
            line += part
        yield Text(line.strip())


def new_table(console: Console, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table with columns of texts, the first of which stays whole while the others fold, and columns of numbers."""
    width = None if console.width >= LEAST else LEAST
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, width=width)
    for place, name in enumerate(names):
        table.add_column(name, no_wrap=place == 0, overflow="fold", max_width=None if place == 0 else 44)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def figures(table: Table) -> list[str]:
    """The texts of the cells, without names out of models, which are `Text` and may contain any mark."""
    return [cell for column in table.columns for cell in column.cells if isinstance(cell, str)]


def print_legends(console: Console, figures: Iterable[str], reasons: Iterable[str] = ()) -> None:
    """Print the meanings of the marks in figures, see `text.legends`."""
    for line in legends(figures, reasons):
        console.print(line, soft_wrap=True)


def is_too_wide(table: Table) -> bool:
    """Whether the table needs more than `WIDE` columns."""
    return Measurement.get(_ROOMY, _ROOMY.options, table).maximum > WIDE


def print_table(console: Console, table: Table) -> None:
    """Print it whole, whatever the width of the terminal."""
    console.print(table, crop=False)
