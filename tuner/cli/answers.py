"""The output of commands: answers, messages, and interrupts."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from tunewright.codegen.write_faults import naming

from ..errors import Refused
from ..text import printable

PIPE_COLUMNS = 160
"""Width of tables where there is no terminal that they must fit into."""

SILENT = logging.NullHandler()


class CommandInterrupt(Exception):
    """Ctrl-C; its text says in which state the work is left."""


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Go on where it `is_confirmed` by an option, or somebody at the terminal says yes. Raises Refused otherwise."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} There is nobody to ask: --yes says so")
    if not typer.confirm(question, err=True):
        raise Refused("nothing was done")


def messages() -> Console:
    """Standard error, for progress and messages."""
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, stderr: bool = False) -> Console:
    """Nothing in a text is a command to this console: texts may come out of models."""
    width = None if terminal else PIPE_COLUMNS
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer of a command: plain data, as JSON or as `render` prints it for people.

    `alone` names the entry that is for a script to take: for people it alone is the output, and what `render` prints
    beside it is a message. `footer` is a message that comes last.
    """

    data: Mapping[str, Any]
    render: Callable[[Console, Any], None]
    alone: str = ""
    footer: str = ""
    exit_code: int = 0

    def give(self, as_json: bool) -> None:
        """Print it, and the notes in it."""
        notes = self.data.get("notes", ())
        for note in () if isinstance(notes, str) else notes:  # a text is what people noted of a job
            print(f"note: {printable(note)}", file=sys.stderr)
        with naming(STDOUT):
            try:
                self._print(as_json)
                sys.stdout.flush()  # here a full disk can be told of
            except OSError:
                drop_stdout()
                raise
        if self.footer:
            messages().print(self.footer, soft_wrap=True)

    def _print(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps(self.data, allow_nan=False))
        elif self.alone:
            print(self.data[self.alone])
            self.render(messages(), self.data)
        else:
            self.render(_console(sys.stdout.isatty()), self.data)


STDOUT = "standard output"
"""Its name in errors."""


def drop_stdout() -> None:
    """Let standard output lead nowhere: at its end Python writes what is left, and where it can't, ends with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def quiet_lookups() -> None:
    """Don't print the log of lookups where no logging is set up: answers have it as notes."""
    logging.getLogger("tunewright.lookup").addHandler(SILENT)


@contextmanager
def quiet_stdout(is_quiet: bool) -> Iterator[None]:
    """Send the output of libraries to standard error, so that standard output has the answer alone."""
    if not is_quiet:
        yield
        return
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
