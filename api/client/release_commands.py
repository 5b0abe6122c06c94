"""Commands of releases of the log of a server, `tunewright log rollback` and `tunewright log verify`, for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.tuner.cli.tables import new_table, print_table
from tunewright.tuner.errors import Refused
from tunewright.tuner.files import whole_file
from tunewright.tuner.text import counted, printable

from .log_commands import connected, environment_text
from .releases import LogReleases, NotSigned, public_key, verify

MOST_CHANGES = 100_000
"""Changes that a comparison lists."""

SHOWN = 50
"""Changes that are shown to people."""


def create(
    server: str | None, namespace: str, name: str, notes: str, environments: Sequence[str] | None
) -> dict[str, Any]:
    """Make a release of what is served now."""
    with connected(server) as connection:
        return LogReleases(connection, namespace).create(name, notes, environments)


def list_releases(server: str | None, namespace: str) -> dict[str, Any]:
    """The releases of a namespace."""
    with connected(server) as connection:
        return {"namespace": namespace, "releases": LogReleases(connection, namespace).all()}


def render_list(console: Console, data: dict[str, Any]) -> None:
    """Print a row a release: the promoted one has a mark."""
    if not data["releases"]:
        console.print(f"{data['namespace']} has no release")
        return
    table = new_table(console, ["release", "made at", "notes"], ["entries", "revision"])
    for release in data["releases"]:
        mark = " *" if release["promoted"] else ""
        texts = release["name"] + mark, release["created_at"], printable(release["notes"])
        table.add_row(*texts, f"{release['entries']:,}", f"{release['revision']:,}")
    print_table(console, table)
    if any(release["promoted"] for release in data["releases"]):
        console.print("* is what lookups are answered from")
    else:
        console.print("none is promoted: lookups are answered from all entries")


def show(server: str | None, namespace: str, name: str) -> dict[str, Any]:
    """One release."""
    with connected(server) as connection:
        return LogReleases(connection, namespace).get(name)


def render(console: Console, data: dict[str, Any]) -> None:
    """Print what is known of a release."""
    entries = counted(data["entries"], "entry", "entries")
    console.print(f"{data['name']} of {data['namespace']}: {entries}, made at {data['created_at']}")
    console.print(f"  sha256     {data['sha256']}")
    console.print(f"  public key {data['public_key']}")
    if data["notes"]:
        console.print(f"  notes      {printable(data['notes'])}", soft_wrap=True)
    console.print("  lookups are answered from it" if data["promoted"] else "  it is not promoted")


def promote(server: str | None, namespace: str, name: str | None) -> dict[str, Any]:
    """Have lookups answered from a release, or from none."""
    with connected(server) as connection:
        return {"namespace": namespace, "release": LogReleases(connection, namespace).promote(name)}


def roll_back(server: str | None, namespace: str) -> dict[str, Any]:
    """Go back to the release before. Raises Refused where none is promoted."""
    with connected(server) as connection:
        releases = LogReleases(connection, namespace)
        promoted = next((release["name"] for release in releases.all() if release["promoted"]), None)
        if promoted is None:
            raise Refused(f"{namespace} has no release that is promoted")
        return {"namespace": namespace, "left": promoted, "release": releases.roll_back(promoted)}


def render_promotion(console: Console, data: dict[str, Any]) -> None:
    """Print what lookups get from now on."""
    source = "all entries" if data["release"] is None else f"the release {data['release']}"
    console.print(f"lookups of {data['namespace']} are answered from {source}")


def compare(server: str | None, namespace: str, name: str, other: str | None) -> dict[str, Any]:
    """What another release, or what is served now, has otherwise."""
    with (
        connected(server) as connection,
        LogReleases(connection, namespace).changes(name, other) as changes,
    ):
        listed = list(islice(changes, MOST_CHANGES))
        more = next(changes, None) is not None
    return {"namespace": namespace, "release": name, "with": other, "changes": listed, "more": more}


def render_changes(console: Console, data: dict[str, Any]) -> None:
    """Print a row a key that is served otherwise."""
    if not data["changes"]:
        console.print("they serve the same")
        return
    table = new_table(console, ["change", "key", "environment", "before", "after"], ["ms before", "ms after"])
    for change in data["changes"][:SHOWN]:
        sides = change["before"], change["after"]
        choices = ("" if side is None else side["choice"] for side in sides)
        times = ("" if side is None or side["time_s"] is None else f"{1e3 * side['time_s']:.4g}" for side in sides)
        place = environment_text(change["environment"])
        table.add_row(change["change"], printable(change["key"]), printable(place), *choices, *times)
    print_table(console, table)
    count = counted(len(data["changes"]), "key is", "keys are")
    console.print(f"{'more than ' if data['more'] else ''}{count} served otherwise")


def export(server: str | None, namespace: str, name: str, file: Path) -> dict[str, Any]:
    """Write a release into a file."""
    with connected(server) as connection, whole_file(file) as output:
        entries = LogReleases(connection, namespace).export(name, output)
    return {"namespace": namespace, "release": name, "file": str(file), "entries": entries}


def render_export(console: Console, data: dict[str, Any]) -> None:
    """Print where it is."""
    entries = counted(data["entries"], "entry", "entries")
    console.print(f"{data['release']} of {data['namespace']}: {entries} in {data['file']}", soft_wrap=True)


def delete(server: str | None, namespace: str, name: str) -> dict[str, Any]:
    """Delete a release."""
    with connected(server) as connection:
        LogReleases(connection, namespace).delete(name)
    return {"namespace": namespace, "release": name}


def render_delete(console: Console, data: dict[str, Any]) -> None:
    """Print that it is gone."""
    console.print(f"{data['release']} of {data['namespace']} is deleted; its entries stay")


def key(server: str | None) -> dict[str, Any]:
    """The public key of a server."""
    with connected(server) as connection:
        return {"public_key": public_key(connection)}


def render_key(console: Console, _: dict[str, Any]) -> None:
    """Print what it is for."""
    check = "tunewright log verify FILE --key PUBLICKEY --namespace NAMESPACE --name NAME"
    console.print(f"checks what `tunewright log release export` writes: {check}", soft_wrap=True)


def check(file: Path, public: str, namespace: str | None, name: str | None) -> dict[str, Any]:
    """What a release is, where it is as it was signed; else why it is not. Raises Refused for what is no key."""
    try:
        return {"file": str(file), "signed": True, **verify(file, public, namespace, name).to_json()}
    except NotSigned as fault:
        return {"file": str(file), "signed": False, "reason": str(fault)}


def render_check(console: Console, data: dict[str, Any]) -> None:
    """Print what it is, or why it is not as signed."""
    if not data["signed"]:
        console.print(f"not as signed: {printable(data['reason'])}", soft_wrap=True)
        return
    entries = counted(data["entries"], "entry", "entries")
    text = f"{data['file']}: {data['name']} of {data['namespace']}, {entries}, as signed at {data['created_at']}"
    console.print(text, soft_wrap=True)
