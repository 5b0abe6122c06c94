"""`tunewright export`, `import`, `backup`, `restore` and `db upgrade`: the database itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..text import counted
from .answers import answer, messages, quiet_stdout
from .app import app, db_app
from .options import DbOption, JsonOption


@app.command()
def export(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Print every trial and confirmation, a line of JSON each. With --json the last line says how many."""
    from ..commands import database as command

    data = command.export(db, sys.stdout.write)
    if as_json:
        answer(data, lambda console, data: None, as_json)
    else:
        messages().print(counted(data["exported"], "record"))


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What export printed; - reads standard input.", show_default=False)
    ],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store the records that export printed. Nothing that is there is changed or removed."""
    from ..commands import database as command

    with quiet_stdout(as_json):
        data = command.import_(file, db)
    answer(data, command.render_import, as_json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make.", show_default=False)],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the whole database into one new file, while others go on using it."""
    from ..commands import database as command

    with quiet_stdout(as_json):
        data = command.backup(file, db)
    answer(data, command.render_backup, as_json)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What backup made.", show_default=False)],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill a database that is empty, or not there yet, with a backup."""
    from ..commands import database as command

    with quiet_stdout(as_json):
        data = command.restore(file, db)
    answer(data, command.render_restore, as_json)


@db_app.command()
def upgrade(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Bring the database's schema to this version's. Every command that opens it does the same."""
    from ..commands import database as command

    with quiet_stdout(as_json):
        data = command.upgrade(db)
    answer(data, command.render_upgrade, as_json)
