"""`tunewright lookup`, `lock`, `tasks`, `show` and `void`: what is known of a model, and of one task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..commands.options import parse_dims
from .answers import answer, messages, quiet_stdout, tell
from .app import app
from .options import DbOption, DimOption, JsonOption, ModelArgument, ServerOption, TargetOption, ThreadsOption


@app.command()
def lookup(
    model: ModelArgument,
    db: DbOption = None,
    server: ServerOption = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Keep everything the server knows of this machine, for when it is away.")
    ] = False,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the schedule to use for each task of a model, and what it should take."""
    from ..commands import knowledge as command
    from ..lookup.place import Place

    with quiet_stdout(as_json):
        place = Place.of_options(db, server)
        data = command.lookup(model, place, parse_dims(dims), threads, target, snapshot=snapshot)
    tell(data["notes"])
    answer(data, command.render_lookup, as_json)


@app.command()
def lock(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The lock file.", show_default="MODEL.lock.json"),
    ] = None,
    db: DbOption = None,
    server: ServerOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pin the schedule of each task in a file, so that every machine and every rebuild runs the same kernels."""
    from ..commands import knowledge as command
    from ..lookup.place import Place

    with quiet_stdout(as_json):
        place = Place.of_options(db, server)
        data = command.lock(model, place, parse_dims(dims), threads, output, target)
    tell(data["notes"])
    answer(data, command.render_lock, as_json)


@app.command()
def tasks(
    model: ModelArgument,
    db: DbOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks of a model, and what has no kernel."""
    from ..commands import knowledge as command

    with quiet_stdout(as_json):
        data = command.tasks(model, db, parse_dims(dims), threads, target)
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
    cuda: Annotated[bool, typer.Option("--cuda", help="Of the texts for a GPU only CUDA C.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Of the texts for a GPU only PTX.")] = False,
    prediction: Annotated[
        bool, typer.Option("--prediction", help="Of the texts none: what the cost model expects, and why.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda|cuda:ARCH", help="What for: a device here, or a GPU as cuda:sm_90a."),
    ] = "auto",
    db: DbOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a task: its space, and the expected time, loop IR, LLVM or CUDA text and assembly of one point."""
    from ..commands import show as command

    asked = {"ir": ir, "llvm": llvm, "assembly": asm, "cuda": cuda, "ptx": ptx}
    texts = {name for name, wanted in asked.items() if wanted}
    with quiet_stdout(as_json):
        parts = texts if texts or prediction else None
        data = command.show(task, schedule, parts, model, db, parse_dims(dims), threads, target)
    if as_json or len(texts) + prediction != 1:
        answer(data, command.render, as_json)
        return
    command.render_point(messages(), data)
    if prediction:
        answer(data, command.render_prediction)
    else:  # nothing but the text, so that it can go into a file
        command.render_prediction(messages(), data)
        print(command.listing(data, *texts))


@app.command()
def void(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Key of a task, or the begin of it.", show_default=False)],
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why: it is kept.", show_default=False)] = None,
    schedule: Annotated[
        str, typer.Option(metavar="best|KEY", help="Which: the best known, or of that key, or the begin of it.")
    ] = "best",
    target: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda|KEY", help="Measured on which: a device here, or that of a key.")
    ] = "auto",
    undo: Annotated[bool, typer.Option("--undo", help="Let it count again.")] = False,
    db: DbOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a schedule of a task back: it is offered no more. Its records are kept."""
    from ..commands import voiding as command

    with quiet_stdout(as_json):
        data = command.void(task, reason, schedule, target, threads, db, undo=undo)
    answer(data, command.render, as_json)
