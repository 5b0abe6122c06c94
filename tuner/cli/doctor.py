"""`tunewright doctor`: what this machine offers, and what is in the way."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from ..text import printable
from .answers import CommandAnswer
from .app import FAULT, command
from .options import DbOption


@command()
def doctor(db: DbOption = None) -> CommandAnswer:
    """Say what this machine offers and what is in the way, with the command that mends it."""
    from .checks import check_machine

    data = check_machine(db)
    return CommandAnswer(data, render, exit_code=0 if data["ok"] else FAULT)


def render(console: Console, data: dict[str, Any]) -> None:
    """Print a line a check, and the command that mends it."""
    marks = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}
    for check in data["checks"]:
        console.print(f"{marks[check['state']]} {check['name']}: {printable(check['found'])}", soft_wrap=True)
        if check["mend"]:
            console.print(f"        to mend it: {printable(check['mend'])}", soft_wrap=True)
    console.print("everything that is needed works" if data["ok"] else "something that is needed does not work")
