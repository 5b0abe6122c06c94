"""The command line: `tunewright COMMAND`. What the commands do is in `commands`, imported when one is called.

Answers go to standard output, progress and messages to standard error. With `--json` the answer is one JSON object,
and nothing else is on standard output. Exit codes: 0 done, 1 something that is needed does not work, 2 the input or
the options can't be used, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.exceptions import TyperException

from .commands.options import parse_dims, parse_names
from .debug import switch_on
from .errors import Refused, message, refusals
from .settings import settings
from .text import printable
from .words import plain

FAULT, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes; 130 is what shells give to what Ctrl-C ended."""

KEPT = "stopped; what was measured is kept, and the same command goes on from there"
"""What is said after Ctrl-C in a tuning job."""

PIPE_COLUMNS = 160
"""Width of tables where there is no terminal that they must fit into."""


def _named(url: str | None) -> str | None:
    """The URL given. Raises Refused for an empty one: an unset variable must not mean the default database."""
    if url is not None and not url.strip():
        raise Refused("--db is empty; give an SQLAlchemy URL such as sqlite:///tuning.db, or leave the option out")
    return url


def _sensible(threads: int | None) -> int | None:
    """The number given, with a warning where it is more than this process may use at once."""
    if threads is not None:
        from tunewright.codegen.host import available_cores

        cores = len(available_cores())
        if threads > cores:
            have = f"the {cores} processors" if cores > 1 else "the one processor"
            print(f"warning: --threads {threads} is more than {have} that this process may use", file=sys.stderr)
    return threads


app = typer.Typer(
    name="tunewright",
    help="Finds fast kernels for an ONNX model on this machine, keeps every result, and runs the tuned model.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
db_app = typer.Typer(help="The database itself.", no_args_is_help=True)
app.add_typer(db_app, name="db")

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="SQLAlchemy URL of the database.",
        show_default="in your data folder",
        callback=_named,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=NUMBER", help="Bind an open dimension; may be given several times."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=4096,
        help="Threads that kernels run on.",
        show_default="all processors",
        callback=_sensible,
    ),
]


class Interrupted(Exception):
    """Ctrl-C, and what became of the work."""


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


@app.command()
def tune(
    model: ModelArgument,
    target: Annotated[
        Literal["auto", "cpu"], typer.Option(help="What to tune for: the best device here, or the processor.")
    ] = "auto",
    trials: Annotated[int, typer.Option(min=1, help="Most trials of the job, over all its runs.")] = 200,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Most minutes of searching in this run.", show_default="no limit")
    ] = None,
    db: DbOption = None,
    pool: Annotated[Literal["local", "ray"], typer.Option(help="Where candidates are measured.")] = "local",
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="The Ray cluster to join.", show_default="one started here")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed tries candidates in the same order.")] = 0,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    strategy: Annotated[
        Literal["evolutionary", "random"], typer.Option(help="How candidates are chosen.")
    ] = "evolutionary",
    as_json: JsonOption = False,
) -> None:
    """Search for fast kernels of a model's tasks. The same command goes on where it was stopped."""
    from .commands import tune as command

    with _quiet_stdout(as_json):
        try:
            data = command.tune(
                messages(),
                model,
                live=None if not settings().debug else False,  # a live view and log lines would mix
                db=db,
                target=target,
                trials=trials,
                minutes=minutes,
                pool=pool,
                ray_address=ray_address,
                seed=seed,
                threads=threads,
                dims=parse_dims(dims or ()),
                strategy=strategy,
            )
        except KeyboardInterrupt:
            raise Interrupted(KEPT) from None
    answer(data, command.render, as_json)
    messages().print(f"every result is kept in {printable(_shown(db))}", soft_wrap=True)


def _shown(db: str | None) -> str:
    """The database in use, without its password."""
    from tunewright.db.engine import parse_url, shown

    return shown(parse_url(db or settings().db))


@app.command()
def bench(
    model: ModelArgument,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PEER,...",
            help="Peers to measure beside it: onnxruntime, openvino.",
            show_default="those of them that are installed",
        ),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Measure the default schedules too.")] = False,
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the tuned model and its peers in turn, in one run."""
    from .commands import bench as command

    with _quiet_stdout(as_json):
        peers = command.installed(messages()) if against is None else parse_names("--against", against)
        data = command.bench(model, peers, db, parse_dims(dims or ()), threads, default=default)
    answer(data, command.render, as_json)


@app.command()
def run(
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input; those not given are made up."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the outputs.", show_default="not kept")
    ] = None,
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the model once, on the best schedules known."""
    from .commands import run as command

    with _quiet_stdout(as_json):
        data = command.run(model, inputs or (), output, db, parse_dims(dims or ()), threads)
    answer(data, command.render, as_json)


@app.command()
def lookup(
    model: ModelArgument,
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the schedule to use for each task of a model, and what it should take."""
    from .commands import knowledge as command

    with _quiet_stdout(as_json):
        data = command.lookup(model, db, parse_dims(dims or ()), threads)
    answer(data, command.render_lookup, as_json)


@app.command()
def tasks(
    model: ModelArgument,
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks of a model, and what has no kernel."""
    from .commands import knowledge as command

    with _quiet_stdout(as_json):
        data = command.tasks(model, db, parse_dims(dims or ()), threads)
    answer(data, command.render_tasks, as_json)


@app.command()
def show(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Key of a task, or the begin of it.", show_default=False)],
    schedule: Annotated[
        str, typer.Option(metavar="best|default|JSON", help="Which point: the best known, the default, or given.")
    ] = "best",
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="Look for the task in this model.", show_default="in the database"),
    ] = None,
    ir: Annotated[bool, typer.Option("--ir", help="Of the texts only the loop IR.")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="Of the texts only that for LLVM.")] = False,
    asm: Annotated[bool, typer.Option("--asm", help="Of the texts only the assembly.")] = False,
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a task: its space, and the loop IR, LLVM text and assembly of one point."""
    from .commands import show as command

    chosen = {name for name, wanted in zip(command.PARTS, (ir, llvm, asm), strict=True) if wanted}
    with _quiet_stdout(as_json):
        parts = chosen or set(command.PARTS)
        data = command.show(task, schedule, parts, model, db, parse_dims(dims or ()), threads)
    if as_json or len(chosen) != 1:
        answer(data, command.render, as_json)
    else:  # nothing but the text, so that it can go into a file
        command.render_point(messages(), data)
        print(command.listing(data, *chosen))


@app.command()
def export(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Print every trial, a line of JSON each. With --json the last line says how many."""
    from .commands import database as command

    data = command.export(db, sys.stdout.write)
    if as_json:
        answer(data, lambda console, data: None, as_json)
    else:
        messages().print(f"{data['exported']} trials")


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What export printed; - reads standard input.", show_default=False)
    ],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store the trials that export printed. Those that are known stay as they are."""
    from .commands import database as command

    with _quiet_stdout(as_json):
        data = command.import_(file, db)
    answer(data, command.render_import, as_json)


@db_app.command()
def upgrade(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Bring the database's schema to this version's. Every command that opens it does the same."""
    from .commands import database as command

    with _quiet_stdout(as_json):
        data = command.upgrade(db)
    answer(data, command.render_upgrade, as_json)


@app.command()
def doctor(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Say what this machine offers and what is in the way, with the command that mends it."""
    from .commands import doctor as command

    with _quiet_stdout(as_json):
        data = command.doctor(db)
    answer(data, command.render, as_json)
    if not data["ok"]:
        raise typer.Exit(FAULT)


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


@contextmanager
def _quiet_stdout(wanted: bool) -> Iterator[None]:
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


def execute(arguments: Sequence[str]) -> int:
    """Run a command; its exit code."""

    def work() -> int:
        return int(app(list(arguments), prog_name="tunewright", standalone_mode=False) or 0)

    return guarded(work, "--json" in arguments)


def guarded(work: Callable[[], int], as_json: bool = False) -> int:
    """The exit code of work that users ask for: what they can mend ends in one line, after which nothing is lost."""
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
    except refusals() as error:
        return _failed(message(error), as_json, BAD_INPUT)


def _failed(said: str, as_json: bool, code: int) -> int:
    line = printable(said)
    print(f"error: {line}" if code != INTERRUPTED else line, file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"message": line}}))
    return code


def main() -> None:
    """The program `tunewright`."""
    sys.exit(execute(sys.argv[1:]))


if __name__ == "__main__":
    main()
