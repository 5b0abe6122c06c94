"""Where answers and messages go, and how commands end."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from ..text import printable

PIPE_COLUMNS = 160
"""Width of tables where there is no terminal that they must fit into."""

SILENT = logging.NullHandler()


class Interrupted(Exception):
    """Ctrl-C, and what became of the work."""


def messages() -> Console:
    """Standard error, for progress and messages."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, stderr: bool = False) -> Console:
    """Nothing in a text is a command to this console: texts may come out of models."""
    width = None if terminal else PIPE_COLUMNS
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def answer(data: Mapping[str, Any], render: Callable[[Console, Any], None], as_json: bool = False) -> None:
    """Give the answer of a command, as JSON or as `render` prints it for people."""
    if as_json:
        print(json.dumps(data, allow_nan=False))
    else:
        render(_console(sys.stdout.isatty()), data)


def answer_alone(
    data: Mapping[str, Any], name: str, render: Callable[[Console, Any], None], as_json: bool = False
) -> None:
    """Give the answer of a command whose entry `name` is for a script to take: for people it alone is the output.

    What `render` prints beside it is a message.
    """
    if as_json:
        answer(data, render, as_json)
    else:
        print(data[name])
        render(messages(), data)


def quiet_lookups() -> None:
    """Where no logging is set up, don't print what lookups log: it is among the notes that commands `tell`."""
    logging.getLogger("tunewright.lookup").addHandler(SILENT)


def tell(notes: Iterable[str]) -> None:
    """Say what people should know beside the answer."""
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)


@contextmanager
def quiet_stdout(wanted: bool) -> Iterator[None]:
    """Nothing but the answer gets to standard output: what libraries print goes to standard error."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
