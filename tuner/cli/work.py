"""`tunewright work`: a tuner process of a service."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .answers import answer, quiet_stdout
from .app import app
from .options import DbOption, JsonOption, RayAddressOption


@app.command()
def work(
    db: DbOption = None,
    pool: Annotated[Literal["local", "ray"], typer.Option(help="Where candidates are measured.")] = "local",
    ray_address: RayAddressOption = None,
    once: Annotated[bool, typer.Option("--once", help="End when no job is left that this machine could do.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take tuning jobs out of the database and run them, until asked to end by SIGTERM or Ctrl-C."""
    from ..commands import work as command

    with quiet_stdout(as_json):
        data = command.work(db, pool, ray_address, once=once)
    answer(data, command.render, as_json)
