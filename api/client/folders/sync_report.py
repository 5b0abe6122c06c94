"""SyncReport: what came of bringing a folder and the log together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from tunewright.tuner.text import counted, printable

MOST_LINES = 20
"""Files left out that people are told of one by one."""


@dataclass(slots=True)
class SyncReport:
    """What came of it, in numbers of files."""

    is_reached: bool = True  # the server, all the time
    key_fault: str = ""  # why the key does not allow all of it; empty where it does
    pushed: int = 0
    pulled: int = 0
    replaced: int = 0  # of those pulled, files that were others before
    same: int = 0
    differing: int = 0  # left as they are, on both sides
    left_out: dict[str, str] = field(default_factory=dict)  # why, by path
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        counts = {name: getattr(self, name) for name in ("pushed", "pulled", "replaced", "same", "differing")}
        left_out = [{"file": name, "reason": reason} for name, reason in sorted(self.left_out.items())]
        reached = {"reached": self.is_reached, "key_fault": self.key_fault}
        return reached | counts | {"left_out": left_out, "notes": self.notes}


def render_sync(console: Console, data: Mapping[str, Any]) -> None:
    """Print what came of it."""
    fault = f"the server does not allow this: {printable(data['key_fault'])}" if data["key_fault"] else ""
    if not any(data[name] for name in ("pushed", "pulled", "same", "differing")) and (fault or not data["reached"]):
        reason = fault or "the server does not answer as it should"
        console.print(f"{reason}; nothing was changed", soft_wrap=True)
        return
    console.print(
        f"{counted(data['pushed'], 'file')} pushed, {data['pulled']} pulled, {data['same']} the same on both sides",
        soft_wrap=True,
    )
    if data["replaced"]:
        console.print(f"{data['replaced']} of those pulled took the place of others", soft_wrap=True)
    if data["differing"]:
        text = f"{counted(data['differing'], 'file differs', 'files differ')} from what the log serves"
        console.print(f"{text}: --push has the log take them, --pull takes the log's", soft_wrap=True)
    if fault or not data["reached"]:
        console.print(f"{fault or 'the server stopped answering'}; not all was pushed", soft_wrap=True)
    for one in data["left_out"][:MOST_LINES]:
        console.print(f"left out: {printable(one['file'])}: {printable(one['reason'])}", soft_wrap=True)
    if len(data["left_out"]) > MOST_LINES:
        console.print(f"and {len(data['left_out']) - MOST_LINES} more")
