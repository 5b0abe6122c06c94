"""`tunewright tune`, `bench` and `run`: find fast kernels, measure them, use them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..commands.options import parse_dims, parse_names, parse_share
from ..settings import settings
from ..text import printable
from .answers import Interrupted, answer, messages, quiet_stdout, tell
from .app import app
from .options import (
    TRIALS_WHERE_NONE,
    DbOption,
    DimOption,
    JsonOption,
    LockOption,
    ModelArgument,
    RayAddressOption,
    SeedOption,
    ServerOption,
    StrategyOption,
    TargetOption,
    ThreadsOption,
    UntilOption,
)

KEPT = "stopped; what was measured is kept, and the same command goes on from there"
"""What is said after Ctrl-C in a tuning job."""


@app.command()
def tune(
    model: ModelArgument,
    target: TargetOption = "auto",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Most trials of the job, over all its runs.", show_default=TRIALS_WHERE_NONE),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Most minutes of searching in this run.", show_default="no limit")
    ] = None,
    until: UntilOption = None,
    db: DbOption = None,
    pool: Annotated[Literal["local", "ray"], typer.Option(help="Where candidates are measured.")] = "local",
    ray_address: RayAddressOption = None,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    strategy: StrategyOption = "evolutionary",
    as_json: JsonOption = False,
) -> None:
    """Search for fast kernels of a model's tasks. The same command goes on where it was stopped."""
    from ..commands import tune as command

    with quiet_stdout(as_json):
        try:
            data = command.tune(
                messages(),
                model,
                db=db,
                target=target,
                trials=trials,
                minutes=minutes,
                until=parse_share("--until", until),
                pool=pool,
                ray_address=ray_address,
                seed=seed,
                threads=threads,
                dims=parse_dims(dims),
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
    as_json: JsonOption = False,
) -> None:
    """Measure the tuned model and its peers in turn, in one run."""
    from ..commands import bench as command
    from ..lookup.place import Place

    with quiet_stdout(as_json):
        place = Place.of_options(db, server, lock)
        console = messages()
        peers = command.installed(console) if against is None else parse_names("--against", against)
        data = command.bench(model, peers, place, parse_dims(dims), threads, default=default, watch=console.print)
    tell(data["notes"])
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
    server: ServerOption = None,
    lock: LockOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the model once, on the best schedules known."""
    from ..commands import run as command
    from ..lookup.place import Place

    with quiet_stdout(as_json):
        place = Place.of_options(db, server, lock)
        data = command.run(model, inputs or (), output, place, parse_dims(dims), threads, target)
    tell(data["notes"])
    answer(data, command.render, as_json)
