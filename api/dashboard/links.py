"""Links that open the dashboard once, for browsers: what `serve` prints and `tunewright key link` makes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console

from tunewright.db.access import KeyScope
from tunewright.db.store import Store, open_store
from tunewright.tuner.settings import PATIENCE_S, settings, store_url
from tunewright.tuner.text import counted

from ..client.address import normal

LINK_S = 15 * 60
"""How long a link opens the dashboard."""


@dataclass(frozen=True, slots=True)
class LoginLink:
    """A way into the dashboard, for one browser."""

    url: str  # only its path where the server is not known
    expires_at: datetime


def make_link(store: Store, server: str = "") -> LoginLink:
    """A new link to a server on this database: its URL without a slash at the end, or nothing. Raises StoreError."""
    store.keys.remove_expired()
    key, code = store.keys.create("link to the dashboard", {KeyScope.LOGIN}, LINK_S, passing=True)
    assert key.expires_at is not None  # it was given a life
    return LoginLink(f"{server}/login?code={code}", key.expires_at)


def create(server: str | None, db: str | None) -> dict[str, Any]:
    """A new link, to the server named or else that of TUNEWRIGHT_SERVER. Raises Refused for one that is no URL."""
    named = settings().server if server is None else server
    address = normal(named) if named.strip() else ""
    with open_store(store_url(db), patience_s=PATIENCE_S) as store:
        link = make_link(store, address)
        return {"link": link.url, "expires_at": link.expires_at.isoformat(), "db": str(store)}


def render(console: Console, data: dict[str, Any]) -> None:
    """Print how long the link is valid, and for which database."""
    console.print(
        f"opens the dashboard once within {counted(LINK_S // 60, 'minute')}, of a server on {data['db']}",
        soft_wrap=True,
    )
    if data["link"].startswith("/"):
        console.print("put the address of the server before it", soft_wrap=True)
