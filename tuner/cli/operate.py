"""`tunewright doctor`: the machine that all this runs on."""

from __future__ import annotations

import typer

from .answers import answer, quiet_stdout
from .app import FAULT, app
from .options import DbOption, JsonOption


@app.command()
def doctor(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Say what this machine offers and what is in the way, with the command that mends it."""
    from ..commands import doctor as command

    with quiet_stdout(as_json):
        data = command.doctor(db)
    answer(data, command.render, as_json)
    if not data["ok"]:
        raise typer.Exit(FAULT)
