"""`tunewright bench`: measure a tuned model and its peers."""

from __future__ import annotations

from typing import Annotated

import typer

from .answers import CommandAnswer, messages
from .app import command
from .options import (
    BindOption,
    DbOption,
    DimOption,
    LockOption,
    ModelArgument,
    ServerOption,
    ThreadsOption,
    parse_dims,
    parse_names,
)


@command()
def bench(
    model: ModelArgument,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PEER,...",
            help="Peers to measure beside it: onnxruntime, openvino, torch, torch.compile, tvm.",
            show_default="of the first two those that are installed",
        ),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Measure the default schedules too.")] = False,
    db: DbOption = None,
    server: ServerOption = None,
    lock: LockOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
) -> CommandAnswer:
    """Measure the tuned model and its peers in turn, in one run."""
    from ..lookup.source import ScheduleSource
    from .comparison import compare, installed_peers, render

    source, console = ScheduleSource.of_options(db, server, lock), messages()
    peers = installed_peers(console) if against is None else parse_names("--against", against)
    data = compare(model, peers, source, parse_dims(dims, bind), threads, default=default, watch=console.print)
    return CommandAnswer(data, render)
