"""The program `tunewright` without its commands: what comes before them, and which exit code comes of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from ..errors import Refused, Unavailable, message, refusals
from ..interrupts import INTERRUPTED, run
from ..settings import settings
from ..text import printable
from .answers import Interrupted, quiet_lookups
from .debug import switch_on
from .words import plain

FAULT, BAD_INPUT = 1, 2
"""Exit codes, beside `INTERRUPTED`."""

PANELS = {
    "Tune and run": ("tune", "bench", "run"),
    "Look at": ("tasks", "lookup", "lock", "show", "report"),
    "Service": ("serve", "submit", "jobs", "work", "key"),
    "Database": ("export", "import", "void", "backup", "restore", "db"),
    "This machine": ("doctor",),
}
"""The parts of the help, and the commands in each, in order; also of those that the service adds."""


class Program(TyperGroup):
    """All commands. Their order is that of `PANELS`, whatever the order in which modules declare them."""

    def __init__(self, *, commands: MutableMapping[str, TyperCommand | TyperGroup], **attributes: Any) -> None:
        placed = {}
        for panel, names in PANELS.items():
            for name in filter(commands.__contains__, names):
                placed[name] = commands[name]
                placed[name].rich_help_panel = panel
        super().__init__(commands={**placed, **commands}, **attributes)


app = typer.Typer(
    name="tunewright",
    cls=Program,
    help="Finds fast kernels for an ONNX model on this machine, keeps every result, and runs the tuned model.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
db_app = typer.Typer(help="The database itself.", no_args_is_help=True)
app.add_typer(db_app, name="db")


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options that come before the command."""
    if version:
        typer.echo(f"tunewright {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("tunewright")
    except metadata.PackageNotFoundError:
        return "(a checkout that is not installed)"


def execute(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""

    def work() -> int:
        return int(app(list(arguments), prog_name="tunewright", standalone_mode=False) or 0)

    return guarded(work, "--json" in arguments)


def guarded(work: Callable[[], int], as_json: bool = False) -> int:
    """The exit code of work that users ask for: what they can mend ends in one line, after which nothing is lost."""
    quiet_lookups()
    try:
        try:
            switch_on(settings().debug)
        except ValueError as error:
            raise Refused(str(error)) from error
        code = work()
        return _failed("interrupted", as_json, INTERRUPTED) if code == INTERRUPTED else code
    except (Interrupted, KeyboardInterrupt) as error:
        return _failed(str(error) or "interrupted", as_json, INTERRUPTED)
    except TyperException as error:
        said = plain(error)  # nothing where help was printed, for want of a command
        return _failed(said, as_json, BAD_INPUT) if said else BAD_INPUT
    except BrokenPipeError:  # whoever read the answer has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Unavailable as error:
        return _failed(message(error), as_json, FAULT)
    except refusals() as error:
        return _failed(message(error), as_json, BAD_INPUT)


def _failed(said: str, as_json: bool, code: int) -> int:
    line = printable(said)
    print(f"error: {line}" if code != INTERRUPTED else line, file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"message": line}}))
    return code


def main() -> None:
    """The program, without the commands of the service."""
    run(lambda: execute)
