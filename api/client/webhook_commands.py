"""`tunewright webhook create`, `list`, `delete`, `test` and `deliveries`: the webhooks of a key on a server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.text import printable

from .connection import ServiceError
from .log_commands import connected

WEBHOOK_ID = "[0-9a-f]{16}"

KINDS = ("succeeded", "failed", "cancelled", "regressed")
"""What a webhook can be told of."""

SHOWN = 50
"""Deliveries that a list shows."""


def create_webhook(server: str | None, url: str, on: Sequence[str] | None) -> dict[str, Any]:
    """A new webhook with its secret. Without `on` it is told of everything."""
    for kind in on or ():
        if kind not in KINDS:
            raise Refused(f"--on {kind!r} is none of {', '.join(KINDS)}")
    body: dict[str, Any] = {"url": url} | ({"on": list(on)} if on else {})
    with connected(server) as connection:
        try:
            return dict(connection.request("POST", "/v1/webhooks", json=body).data)
        except ServiceError as error:
            if [pointer for pointer, _ in error.faults] != ["#/url"]:
                raise
            raise Refused(printable(error.faults[0][1])) from error


def render_create(console: Console, data: dict[str, Any]) -> None:
    """Print what stands beside the secret."""
    console.print(f"webhook {data['id']}: {printable(data['url'])}, on {', '.join(data['on'])}", soft_wrap=True)
    console.print("its secret signs what is sent there: this is the only time that it is shown")


def list_webhooks(server: str | None) -> dict[str, Any]:
    """The webhooks of the key."""
    with connected(server) as connection:
        return {"webhooks": connection.request("GET", "/v1/webhooks").data}


def render_webhooks(console: Console, data: dict[str, Any]) -> None:
    """Print a row a webhook."""
    if not data["webhooks"]:
        console.print("no webhooks yet; tunewright webhook create URL makes one")
        return
    table = new_table(console, ["id", "url", "on", "created"], [])
    for webhook in data["webhooks"]:
        table.add_row(
            *map(printable, (webhook["id"], webhook["url"], " ".join(webhook["on"]), _moment(webhook["created_at"])))
        )
    print_table(console, table)


def delete_webhook(server: str | None, webhook_id: str) -> dict[str, Any]:
    """Delete a webhook of the key with its deliveries."""
    with connected(server) as connection:
        return dict(connection.request("DELETE", _path(webhook_id)).data)


def render_delete(console: Console, data: dict[str, Any]) -> None:
    """Print the webhook that is gone."""
    console.print(f"deleted: {data['id']}, {printable(data['url'])}", soft_wrap=True)


def test_webhook(server: str | None, webhook_id: str) -> dict[str, Any]:
    """Queue a delivery that is about no job."""
    with connected(server) as connection:
        return dict(connection.request("POST", f"{_path(webhook_id)}:test").data)


def render_test(console: Console, data: dict[str, Any]) -> None:
    """Print the delivery, and how to see what comes of it."""
    webhook_id = printable(data["id"]).rpartition("-")[0]
    console.print(f"queued: {printable(data['id'])}; what comes of it: tunewright webhook deliveries {webhook_id}")


def list_deliveries(server: str | None, webhook_id: str) -> dict[str, Any]:
    """The newest deliveries to a webhook of the key."""
    with connected(server) as connection:
        page = connection.request("GET", f"{_path(webhook_id)}/deliveries", params={"limit": str(SHOWN)}).data
        return {"deliveries": page["items"], "more": page["next"] is not None}


def render_deliveries(console: Console, data: dict[str, Any]) -> None:
    """Print a row a delivery."""
    if not data["deliveries"]:
        console.print("it was told nothing yet")
        return
    table = new_table(console, ["created", "kind", "job", "state", "next attempt", "error"], ["attempts"])
    for delivery in data["deliveries"]:
        job = "" if delivery["job"] is None else str(delivery["job"])
        texts = delivery["kind"], job, delivery["state"], _moment(delivery["due_at"]), delivery["error"]
        table.add_row(_moment(delivery["created_at"]), *map(printable, texts), str(delivery["attempts"]))
    print_table(console, table)
    if data["more"]:
        console.print(f"these are the newest {SHOWN}")


def _path(webhook_id: str) -> str:
    """The path of a webhook. Raises Refused for what is no id."""
    if re.fullmatch(WEBHOOK_ID, webhook_id) is None:
        raise Refused(f"{webhook_id!r} is no webhook's id, as webhook list has it: 16 hexadecimal digits")
    return f"/v1/webhooks/{webhook_id}"


def _moment(iso: str | None) -> str:
    """A moment to the second, UTC."""
    return printable(iso)[:19].replace("T", " ") if iso else ""
