"""Options that several of the commands have which ask a server, and what these need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from tunewright.tuner.errors import Refused

ServerOption = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="The server.", show_default="TUNEWRIGHT_SERVER, where set"),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Don't ask.")]


def require(command: str, *packages: str) -> None:
    """Raises Refused where one of the packages is not installed."""
    if any(find_spec(package) is None for package in packages):
        raise Refused(f"{command} needs more packages than the other commands: pip install 'tunewright[serve]'")
