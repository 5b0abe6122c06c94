"""`tunewright key create`, `key list` and `key revoke`: who may use a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from tunewright.db.access import LOCAL, SESSION_OF, Key, Scope
from tunewright.db.reading import open_existing, open_reader
from tunewright.db.sql_store import open_store

from ..errors import Refused
from ..settings import PATIENCE_S, settings
from ..text import printable
from .tables import new_table, print_table

USUAL = (Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.RECORDS_READ)
"""What a key allows where nothing is said: to submit and steer jobs, and to look up."""

GIVEN = [scope.value for scope in Scope if scope is not Scope.LOGIN]
"""What can be given to a key."""

NAME_LETTERS = 200

MOST_DAYS = 36500

DAY_S = 24 * 3600.0


def create(name: str, scopes: Sequence[str], days: float | None, db: str | None) -> dict[str, Any]:
    """A new key. The answer alone has its token."""
    if not name.strip() or len(name) > NAME_LETTERS:
        raise Refused(f"a key's name has 1 to {NAME_LETTERS} letters")
    if name.startswith(SESSION_OF):
        raise Refused(f"{SESSION_OF!r} begins the names of sessions that browsers have")
    if name.startswith(LOCAL):
        raise Refused(f"{LOCAL!r} begins the names of keys that serve makes, which are good on its own machine alone")
    for scope in scopes:
        if scope not in GIVEN:
            raise Refused(f"--scope {scope!r} is none of {', '.join(GIVEN)}")
    chosen = [Scope(scope) for scope in scopes] or list(USUAL)
    if days is not None and not 0 < days <= MOST_DAYS:
        raise Refused(f"--expires {days:g} is no number of days up to {MOST_DAYS}")
    with open_store(db or settings().db, patience_s=PATIENCE_S) as store:
        key, token = store.keys.create(name, chosen, None if days is None else days * DAY_S)
        return {"key": token, **_described(key), "db": str(store)}


def render_create(console: Console, data: dict[str, Any]) -> None:
    """What comes beside the token: it can't be seen again."""
    until = f"until {_moment(data['expires_at'])}" if data["expires_at"] else "until it is revoked"
    console.print(f"key {data['id']}, {printable(data['name'])}: {', '.join(data['scopes'])}; {until}", soft_wrap=True)
    console.print(f"kept as a digest in {data['db']}: this is the only time that it is shown", soft_wrap=True)


def list_(db: str | None) -> dict[str, Any]:
    """All keys but those of browser sessions."""
    with open_reader(db or settings().db) as store:
        return {"keys": [_described(key) for key in store.keys.list()]}


def render_list(console: Console, data: dict[str, Any]) -> None:
    """A row a key."""
    if not data["keys"]:
        console.print("no keys yet; tunewright key create NAME makes one")
        return
    table = new_table(console, ["id", "name", "scopes", "state", "last used"], [])
    for key in data["keys"]:
        texts = [key["id"], key["name"], " ".join(key["scopes"]), _state(key), _moment(key["last_used_at"]) or "never"]
        table.add_row(*map(printable, texts))
    print_table(console, table)


def revoke(key_id: str, db: str | None) -> dict[str, Any]:
    """Make a key worthless, at once and for good. Raises NoDatabase where there is none: it has no key."""
    with open_existing(db or settings().db, patience_s=PATIENCE_S) as store:
        return _described(store.keys.revoke(key_id))


def render_revoke(console: Console, data: dict[str, Any]) -> None:
    """Which one."""
    console.print(f"revoked: {data['id']}, {printable(data['name'])}", soft_wrap=True)


def _described(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
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
    """To the minute, UTC."""
    return iso[:16].replace("T", " ") if iso else ""
