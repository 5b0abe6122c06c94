"""The program `tunewright` without its commands: common options and exit codes."""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from ..errors import Refused, Unavailable, message, refusals
from ..interrupts import INTERRUPTED, run
from ..settings import DEBUG_LADDER, settings
from ..text import printable
from .answers import CommandAnswer, CommandInterrupt, drop_stdout, quiet_lookups, quiet_stdout
from .options import JsonOption


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what sys.stderr is at that moment."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """The base class assigns one."""


def switch_on(level: int) -> None:
    """Make the loggers of the first `level` steps of DEBUG_LADDER write to standard error. Twice does no harm."""
    for name in DEBUG_LADDER[1 : level + 1]:
        logger = logging.getLogger(f"tunewright.{name}")
        logger.setLevel(logging.DEBUG)
        if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
            handler = _StderrHandler()
            handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
            logger.addHandler(handler)
        logger.propagate = False


FAULT, BAD_INPUT = 1, 2
"""Exit codes, beside `INTERRUPTED`."""

PANELS = {
    "Tune and run": ("tune", "retime", "bench", "run", "compile"),
    "Look at": ("tasks", "lookup", "lock", "show", "report"),
    "Service": ("serve", "submit", "jobs", "work", "key", "log", "webhook", "audit"),
    "Database": ("export", "import", "void", "backup", "restore", "db"),
    "This machine": ("doctor",),
}
"""The parts of the help, and the commands in each, in order; also of those that the service adds."""


Work = TypeVar("Work", bound=Callable[..., CommandAnswer])


class ProgramGroup(TyperGroup):
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
    cls=ProgramGroup,
    help="Finds fast kernels for an ONNX model on this machine, keeps every result, and runs the tuned model.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
db_app = typer.Typer(help="The database itself.", no_args_is_help=True)
app.add_typer(db_app, name="db")


def command(program: typer.Typer = app, name: str | None = None, **attributes: Any) -> Callable[[Work], Work]:
    """Make a function the command of its name: it takes options, and `--json` besides, and its answer is printed.

    With `--json` nothing but the answer is on standard output, whatever libraries print. `attributes` are Typer's.
    """

    def add(work: Work) -> Work:
        def run_command(*, as_json: bool, **options: Any) -> None:
            with quiet_stdout(as_json):
                reply = work(**options)
            reply.give(as_json)
            if reply.exit_code:
                raise typer.Exit(reply.exit_code)

        signature = inspect.signature(work, eval_str=True)
        as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
        run_command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), as_json], return_annotation=None
        )
        run_command.__name__, run_command.__doc__ = work.__name__, work.__doc__
        program.command(name, **attributes)(run_command)
        return work

    return add


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

    return exit_code(work, "--json" in arguments)


def exit_code(work: Callable[[], int], as_json: bool = False) -> int:
    """Run `work` and return its exit code; an error that the user can mend ends in one line."""
    quiet_lookups()
    try:
        try:
            switch_on(settings().debug)
        except ValueError as error:
            raise Refused(str(error)) from error
        code = work()
        return _report_error("interrupted", as_json, INTERRUPTED) if code == INTERRUPTED else code
    except (CommandInterrupt, KeyboardInterrupt) as error:
        return _report_error(str(error) or "interrupted", as_json, INTERRUPTED)
    except TyperException as error:
        text = usage_message(error)  # nothing where help was printed, for want of a command
        return _report_error(text, as_json, BAD_INPUT) if text else BAD_INPUT
    except BrokenPipeError:  # whoever read the answer has seen enough
        drop_stdout()
        return 0
    except Unavailable as error:
        return _report_error(message(error), as_json, FAULT)
    except refusals() as error:
        return _report_error(message(error), as_json, BAD_INPUT)


def _report_error(text: str, as_json: bool, code: int) -> int:
    line = printable(text)
    print(f"error: {line}" if code != INTERRUPTED else line, file=sys.stderr)
    if as_json:
        with suppress(OSError):  # it may be standard output that is full
            print(json.dumps({"error": {"message": line}}), flush=True)
    return code


def main() -> None:
    """The program, without the commands of the service."""
    run(lambda: execute)


BOUNDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}
"""Bounds of numbers: the parser's words and plain ones."""


def usage_message(error: TyperException) -> str:
    """One line that says what is wrong and what would be right. Empty where help was printed instead."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    program = context.command_path if context else "tunewright"
    if match := re.search(r"No such command '(.*)'\.", text, re.DOTALL):
        return f"no command {match[1]!r}; see {program} --help"
    if match := re.fullmatch(r"No such option: (\S+)(.*)", text, re.DOTALL):
        return f"no option {match[1]}; see {program} --help"
    if match := re.match(r"Missing (?:argument|option) '([^']*)'\.", text):  # behind it what it may be
        return f"{match[1]} is missing; see {program} --help"
    if match := re.fullmatch(r"Option '(\S+)' requires an argument\.", text):
        return f"{match[1]} needs a value"
    if match := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", text, re.DOTALL):
        return f"{match[1]!r} is one argument too many; see {program} --help"
    return _value_message(text, _value_suffix(error))


def _value_message(text: str, suffix: str) -> str:
    match = re.fullmatch(r"Invalid value for '(.*?)': (?:Value error, )?(.*)", text, re.DOTALL)
    if not match:
        return text
    name, fault = match[1], match[2]
    if bound := re.search(r"(greater than or equal to|less than or equal to) ([\d.]+)", fault):
        return f"{name} must be {BOUNDS[bound[1]]} {bound[2]}{suffix}"
    if "valid integer" in fault:
        return f"{name} must be a whole number{suffix}"
    if "valid number" in fault or "finite number" in fault:
        return f"{name} must be a number{suffix}"
    if choices := re.fullmatch(r"'(.*)' is not one of (.*?)\.?", fault, re.DOTALL):
        return f"{name} must be {_alternatives(choices[2])}, not {choices[1]!r}"
    return f"{name}: {fault}"


def _value_suffix(error: TyperException) -> str:
    """The rejected value as the end of a message, where the parser has it."""
    faults: Any = getattr(error.__cause__, "errors", None)
    entries = faults() if callable(faults) else []
    return f", not {str(entries[0]['input'])[:40]}" if entries and "input" in entries[0] else ""


def _alternatives(quoted: str) -> str:
    """The names in "'a', 'b', 'c'" as "a, b or c"."""
    *others, last = re.findall(r"'([^']*)'", quoted)
    return f"{', '.join(others)} or {last}" if others else str(last)
