"""`tunewright log list`, `export`, `import`, `approve`, `retire` and `delete`: the log of a server, for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from rich.console import Console

from tunewright.db.logs.entry import check_namespace
from tunewright.db.logs.release import HEAD_BYTES, parse_head
from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.files import whole_file
from tunewright.tuner.text import counted, printable

from .address import server_address
from .commands import told_once
from .connection import ServerConnection, key_for

SHOWN = 50
"""Entries that a list shows."""

LETTERS = 60
"""Of a value that a list shows."""

TIMEOUT_S = 60.0
"""How long an answer may take to begin: an import is stored first."""


@contextmanager
def connected(server: str | None) -> Iterator[ServerConnection]:
    """A connection to the server named, or else of TUNEWRIGHT_SERVER. Raises Refused where there is none."""
    address = server_address(server)
    connection = ServerConnection(address, key_for(address), TIMEOUT_S, waits=told_once())
    try:
        yield connection
    finally:
        connection.close()


def list_namespaces(server: str | None) -> dict[str, Any]:
    """The namespaces that the key may read."""
    with connected(server) as connection:
        return {"namespaces": connection.request("GET", "/v1/logs").data}


def render_namespaces(console: Console, data: dict[str, Any]) -> None:
    """Print a row a namespace."""
    if not data["namespaces"]:
        console.print("nothing was written to the log yet")
        return
    table = new_table(console, ["namespace", "release"], ["entries", "MB", "changes"])
    for space in data["namespaces"]:
        numbers = f"{space['entries']:,}", f"{space['size_bytes'] / 1e6:,.1f}", f"{space['revision']:,}"
        table.add_row(space["name"], space["release"] or "", *numbers)
    print_table(console, table)


def list_entries(server: str | None, namespace: str, key: str | None) -> dict[str, Any]:
    """The entries of a namespace that changed last, of one key or of any."""
    params = {"limit": str(SHOWN)} | ({} if key is None else {"key": key})
    with connected(server) as connection:
        page = connection.request("GET", namespace_path(namespace), params=params).data
        return {"namespace": namespace, "entries": page["items"], "more": page["next"] is not None}


def render_entries(console: Console, data: dict[str, Any]) -> None:
    """Print a row an entry: what is served has a mark."""
    if not data["entries"]:
        console.print("no such entry")
        return
    table = new_table(console, ["key", "environment", "choice", "state", "value"], ["ms"])
    for entry in data["entries"]:
        time_s = entry["time_s"]
        value = entry["value"] if entry["value"] is not None else f"base64 {entry['value_base64']}"
        table.add_row(
            *map(printable, (entry["key"], environment_text(entry["environment"]))),
            entry["choice"] + (" *" if entry["served"] else ""),
            entry["state"],
            printable(value[:LETTERS]) + ("..." if len(value) > LETTERS else ""),
            "" if time_s is None else f"{1e3 * time_s:.4g}",
        )
    print_table(console, table)
    console.print("* is what lookups get" + ("; there are more" if data["more"] else ""))


def environment_text(place: dict[str, Any]) -> str:
    """An environment in one line."""
    versions = (f"{name} {version}" for name, version in place["versions"].items())
    return ", ".join(filter(None, (place["device"], place["toolchain"], *versions)))


def decide(server: str | None, namespace: str, key: str, choice: str, state: str) -> dict[str, Any]:
    """Set the state of each entry of a key with a choice, in whatever environment. Raises Refused without one."""
    if not choice:
        raise Refused("which value? CHOICE is its name, as tunewright log list has it, or the begin of that")
    with connected(server) as connection:
        items = _entries_of(connection, namespace, key)
        found = [entry for entry in items if entry["choice"].startswith(choice)]
        if not found or len({entry["choice"] for entry in found}) > 1:
            raise Refused(f"{counted(len(found), 'value')} of that key have a choice that begins with {choice!r}")
        for entry in found:
            decision = {"key": key, "choice": entry["choice"], "environment": entry["environment"], "state": state}
            connection.request("POST", f"{namespace_path(namespace)}:decide", json=decision)
        return {"namespace": namespace, "key": key, "choice": found[0]["choice"], "state": state, "entries": len(found)}


def _entries_of(connection: ServerConnection, namespace: str, key: str) -> list[dict[str, Any]]:
    """All entries of a key."""
    items, params = [], {"limit": "200", "key": key}
    while True:
        page = connection.request("GET", namespace_path(namespace), params=params).data
        items += page["items"]
        if page["next"] is None:
            return items
        params["cursor"] = page["next"]


def render_decision(console: Console, data: dict[str, Any]) -> None:
    """Print what was decided."""
    console.print(f"{data['state']}: {counted(data['entries'], 'entry', 'entries')} of {printable(data['key'])}")


def export_lines(server: str | None, namespace: str, file: Path) -> dict[str, Any]:
    """Write all entries of a namespace into a file, a line each."""
    count = 0
    with (
        connected(server) as connection,
        connection.stream(f"{namespace_path(namespace)}:export", TIMEOUT_S) as lines,
        whole_file(file) as output,
    ):
        for line in lines or ():
            output.write(line + b"\n")
            count += 1
    return {"namespace": namespace, "file": str(file), "entries": count}


def render_export(console: Console, data: dict[str, Any]) -> None:
    """Print how many there were."""
    console.print(f"{counted(data['entries'], 'entry', 'entries')} of {data['namespace']} in {data['file']}")


def import_lines(server: str | None, namespace: str, file: Path) -> dict[str, Any]:
    """Add the entries of a file that `export_lines` wrote, or any tool. Raises Refused for an exported release."""
    with file.open("rb") as source:
        _check_no_release(file, source.readline(HEAD_BYTES))
        return post_lines(server, namespace, source)


def _check_no_release(file: Path, first: bytes) -> None:
    """Raises Refused where the first line of a file is the head of an exported release, which is no entry."""
    try:
        parse_head(first)
    except ValueError:
        return
    raise Refused(
        f"{file} is an exported release, whose first line is no entry: check it with `tunewright log verify`, then "
        "import a file of its other lines, as `tail -n +2` makes it"
    )


def post_lines(server: str | None, namespace: str, source: IO[bytes]) -> dict[str, Any]:
    """Add the entries of lines of JSON."""
    with connected(server) as connection:
        answer = connection.request("POST", f"{namespace_path(namespace)}:import", content=lambda: _pieces(source))
    return {"namespace": namespace, **answer.data}


def render_import(console: Console, data: dict[str, Any]) -> None:
    """Print what is new."""
    console.print(f"{data['added']:,} added, {data['improved']:,} improved, {data['known']:,} known already")


def delete_namespace(server: str | None, namespace: str) -> dict[str, Any]:
    """Delete a namespace with all of its entries."""
    with connected(server) as connection:
        return {"namespace": namespace, **connection.request("DELETE", namespace_path(namespace)).data}


def render_delete(console: Console, data: dict[str, Any]) -> None:
    """Print how many entries are gone."""
    console.print(f"{data['namespace']}: {counted(data['entries'], 'entry', 'entries')} deleted")


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    source.seek(0)  # it may be sent again
    while piece := source.read(1 << 20):
        yield piece


def namespace_path(namespace: str) -> str:
    """The path of a namespace. Raises Refused for what is none."""
    try:
        return f"/v1/logs/{quote(check_namespace(namespace))}"
    except ValueError as error:
        raise Refused(str(error)) from error
