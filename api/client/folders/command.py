"""`tunewright log sync`: a folder of another program and the log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunewright.db.logs.entry import check_namespace
from tunewright.tuner.errors import Refused

from ..address import server_address
from . import FORMATS
from .sync import SyncDirection, sync
from .sync_report import render_sync

__all__ = ["render_sync", "sync_folder"]


def sync_folder(
    tool: str,
    root: Path,
    namespace: str | None,
    server: str | None,
    *,
    push: bool = False,
    pull: bool = False,
    only: Iterable[str] = (),
) -> dict[str, Any]:
    """What came of it, as JSON data. Raises Refused for options that mean nothing."""
    if push and pull:
        raise Refused("--push and --pull: give one, or neither where each side is to get what it lacks")
    if push and not root.is_dir():
        raise Refused(f"--root: there is no folder {str(root)!r} to push from")
    address = server_address(server)
    try:
        name = check_namespace(namespace or tool)
    except ValueError as error:
        raise Refused(f"--namespace: {error}") from error
    direction = SyncDirection.PUSH if push else SyncDirection.PULL if pull else SyncDirection.BOTH
    report = sync(FORMATS[tool], root, name, address, direction, parse_only(only))
    return {"tool": tool, "root": str(root), "namespace": name} | report.to_json()


def parse_only(texts: Iterable[str]) -> dict[str, str]:
    """What `--only` says. Raises Refused."""
    return parse_texts("--only", texts)


def parse_texts(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Texts by name, from "NAME=TEXT" and so on. Raises Refused."""
    wanted: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise Refused(f"{option} {text!r} is not NAME=TEXT, such as triton=3.6.0")
        if wanted.setdefault(name, value) != value:
            raise Refused(f"{option} gives {name!r} two texts")
    return wanted
