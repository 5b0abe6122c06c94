"""`tunewright key create`, `key list` and `key revoke`: who may use a server. The service adds `key link`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from tunewright.db.access import MOST_DAYS, USUAL_SCOPES, Key, KeyScope, check_key_name

from ..errors import Refused
from ..settings import PATIENCE_S, settings, store_url
from ..text import printable
from .answers import CommandAnswer
from .app import app, command
from .options import DbOption
from .tables import new_table, print_table

key_app = typer.Typer(help="The API keys of a server, by which it lets clients in.", no_args_is_help=True)
app.add_typer(key_app, name="key")


GRANTABLE = [scope.value for scope in KeyScope if scope is not KeyScope.LOGIN]
"""Scopes that a key may have."""

DAY_S = 24 * 3600.0


@command(key_app)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people know it by.", show_default=False)],
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="|".join(GRANTABLE),
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
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            metavar="NAMESPACE",
            help="Of the log, which it is for, with what is below it; may be given several times.",
            show_default="all of them",
        ),
    ] = None,
    db: DbOption = None,
) -> CommandAnswer:
    """Make a key, and print it alone on standard output. It is never shown again."""
    try:
        check_key_name(name)
    except ValueError as error:
        raise Refused(str(error)) from error
    for scope in scopes or ():
        if scope not in GRANTABLE:
            raise Refused(f"--scope {scope!r} is none of {', '.join(GRANTABLE)}")
    chosen = [KeyScope(scope) for scope in scopes or ()] or list(USUAL_SCOPES)
    if expires is not None and not 0 < expires <= MOST_DAYS:
        raise Refused(f"--expires {expires:g} is no number of days up to {MOST_DAYS}")
    from tunewright.db.logs.entry import check_namespace
    from tunewright.db.store import open_store

    try:
        of_log = None if namespaces is None else list(map(check_namespace, namespaces))
    except ValueError as error:
        raise Refused(f"--namespace: {error}") from error
    with open_store(store_url(db), patience_s=PATIENCE_S) as store:
        lasts_s = None if expires is None else expires * DAY_S
        key, token = store.keys.create(name, chosen, lasts_s, namespaces=of_log)
        return CommandAnswer({"key": token, **_key_json(key), "db": str(store)}, render_create, alone="key")


def render_create(console: Console, data: dict[str, Any]) -> None:
    """Print what stands beside the token."""
    until = f"until {_moment(data['expires_at'])}" if data["expires_at"] else "until it is revoked"
    of_log = f" (logs: {', '.join(data['namespaces'])})" if data["namespaces"] is not None else ""
    console.print(
        f"key {data['id']}, {printable(data['name'])}: {', '.join(data['scopes'])}{of_log}; {until}", soft_wrap=True
    )
    console.print(f"kept as a digest in {data['db']}: this is the only time that it is shown", soft_wrap=True)


@command(key_app, "list")
def list_(db: DbOption = None) -> CommandAnswer:
    """List the keys, the newest first."""
    from tunewright.db.reader import open_reader

    with open_reader(db or settings().db) as store:  # browser sessions' are not among them
        return CommandAnswer({"keys": [_key_json(key) for key in store.keys.list()]}, render_list)


def render_list(console: Console, data: dict[str, Any]) -> None:
    """Print a row a key."""
    if not data["keys"]:
        console.print("no keys yet; tunewright key create NAME makes one")
        return
    table = new_table(console, ["id", "name", "scopes", "state", "last used"], [])
    for key in data["keys"]:
        scopes = " ".join((*key["scopes"], *(f"({name})" for name in key["namespaces"] or ())))
        texts = [key["id"], key["name"], scopes, _state(key), _moment(key["last_used_at"]) or "never"]
        table.add_row(*map(printable, texts))
    print_table(console, table)


@command(key_app)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as key list has it.", show_default=False)],
    db: DbOption = None,
) -> CommandAnswer:
    """Make a key worthless, at once and for good."""
    from tunewright.db.reader import open_existing

    with open_existing(db or settings().db, patience_s=PATIENCE_S) as store:  # where there is none, it has no key
        key = store.keys.revoke(key_id)
        return CommandAnswer({**_key_json(key), "note": key.leaves}, render_revoke)


def render_revoke(console: Console, data: dict[str, Any]) -> None:
    """Print the key that was revoked."""
    console.print(f"revoked: {data['id']}, {printable(data['name'])}", soft_wrap=True)
    if data["note"]:
        console.print(data["note"], soft_wrap=True)


def _key_json(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "namespaces": None if key.namespaces is None else sorted(key.namespaces),
        "created_at": key.created_at.isoformat(),
        "expires_at": _iso(key.expires_at),
        "revoked_at": _iso(key.revoked_at),
        "last_used_at": _iso(key.last_used_at),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"]:
        return f"revoked {_moment(key['revoked_at'])}"
    if not key["expires_at"]:
        return "in force"
    is_over = datetime.fromisoformat(key["expires_at"]) <= datetime.now().astimezone()
    return f"{'expired' if is_over else 'until'} {_moment(key['expires_at'])}"


def _moment(iso: str | None) -> str:
    """A moment to the minute, UTC."""
    return iso[:16].replace("T", " ") if iso else ""
