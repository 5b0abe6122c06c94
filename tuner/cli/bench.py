"""`tunewright bench`: measure a tuned model and its peers."""

from __future__ import annotations

from typing import Annotated

import typer

from tunewright.graph.numerics import Precision

from .answers import CommandAnswer, messages
from .app import command
from .options import (
    BindOption,
    DbOption,
    DimOption,
    LockOption,
    ModelArgument,
    PrecisionOption,
    ServerOption,
    TargetOption,
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
            help="Peers to measure beside it: onnxruntime, torch, torch.compile; on the processor also openvino, tvm.",
            show_default="onnxruntime and openvino, or on a GPU all, as far as they are installed",
        ),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Measure the default schedules too.")] = False,
    db: DbOption = None,
    server: ServerOption = None,
    lock: LockOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """Measure the tuned model and its peers in turn, in one run."""
    from ..lookup.source import ScheduleSource
    from ..targets import local_target
    from .bench_report import render
    from .comparison import compare, default_peers

    source, console = ScheduleSource.of_options(db, server, lock), messages()
    local_target(target, threads)  # without a GPU no peer is looked for
    peers = default_peers(console, target) if against is None else parse_names("--against", against)
    bindings = parse_dims(dims, bind)
    data = compare(
        model, peers, source, bindings, threads, target, precision=precision, default=default, watch=console.print
    )
    return CommandAnswer(data, render)
