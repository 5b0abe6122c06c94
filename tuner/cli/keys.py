"""`tunewright key create`, `key list` and `key revoke`: who may use a server. The service adds `key link`."""

from __future__ import annotations

from typing import Annotated

import typer

from .answers import answer, answer_alone, quiet_stdout
from .app import app
from .options import DbOption, JsonOption

key_app = typer.Typer(help="The API keys of a server, by which it lets clients in.", no_args_is_help=True)
app.add_typer(key_app, name="key")


@key_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people know it by.", show_default=False)],
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="jobs:read|jobs:write|records:read|records:write|records:void|metrics",
            help="What it allows; may be given several times.",
            show_default="jobs:read, jobs:write and records:read",
        ),
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(
            "--expires",
            metavar="DAYS",
            help="How many days it is good for.",
            show_default="until it is revoked",
        ),
    ] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key, and print it alone on standard output. It is never shown again."""
    from ..commands import keys as command

    with quiet_stdout(as_json):
        data = command.create(name, scopes or (), expires, db)
    answer_alone(data, "key", command.render_create, as_json)


@key_app.command("list")
def list_(db: DbOption = None, as_json: JsonOption = False) -> None:
    """List the keys, the newest first."""
    from ..commands import keys as command

    with quiet_stdout(as_json):
        data = command.list_(db)
    answer(data, command.render_list, as_json)


@key_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as key list has it.", show_default=False)],
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key worthless, at once and for good."""
    from ..commands import keys as command

    with quiet_stdout(as_json):
        data = command.revoke(key_id, db)
    answer(data, command.render_revoke, as_json)
