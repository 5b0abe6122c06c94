"""`tunewright show`: one task, its spaces, and what one point of them becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tunewright.graph.numerics import Precision

from .answers import CommandAnswer, messages
from .app import command
from .options import BindOption, DbOption, DimOption, PrecisionOption, ThreadsOption, parse_dims


@command()
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
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """Show a task: its space, and the expected time, loop IR, LLVM or CUDA text and assembly of one point."""
    from . import task_details

    flags = {"ir": ir, "llvm": llvm, "assembly": asm, "cuda": cuda, "ptx": ptx}
    texts = {name for name, flag in flags.items() if flag}
    parts = texts if texts or prediction else None
    data = task_details.show_task(task, schedule, parts, model, db, parse_dims(dims, bind), threads, target, precision)

    def render_part(console: Console, data: dict[str, Any]) -> None:
        """Print what is asked for alone, so that it can go into a file."""
        task_details.render_point(messages(), data)
        task_details.render_prediction(console if prediction else messages(), data)
        for part in texts:
            print(task_details.listing(data, part))

    return CommandAnswer(data, render_part if len(texts) + prediction == 1 else task_details.render)
