"""Options and arguments that several commands have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from tunewright.codegen.target import MAX_THREADS

from ..errors import Refused
from ..text import counted


def named(option: str, example: str) -> Callable[[str | None], str | None]:
    """What gives the URL given. It raises Refused for an empty one: an unset variable must not mean the default."""

    def check(url: str | None) -> str | None:
        if url is not None and not url.strip():
            raise Refused(f"{option} is empty; give {example}, or leave the option out")
        return url

    return check


def sensible(threads: int | None) -> int | None:
    """The number given, with a warning where it is more than this process may use at once."""
    if threads is not None:
        from tunewright.codegen.host import available_cores

        cores = len(available_cores())
        if threads > cores:
            have = counted(cores, "processor")
            print(f"warning: --threads {threads} is more than the {have} that this process may use", file=sys.stderr)
    return threads


ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="SQLAlchemy URL of the database.",
        show_default="in your data folder",
        callback=named("--db", "an SQLAlchemy URL such as sqlite:///tuning.db"),
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Ask this server instead of a database.",
        show_default="TUNEWRIGHT_SERVER, where set",
        callback=named("--server", "a URL such as http://127.0.0.1:8433"),
    ),
]
LockOption = Annotated[
    Path | None,
    typer.Option("--lock", metavar="FILE", help="Use the schedules that tunewright lock pinned.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=NUMBER", help="Bind an open dimension; may be given several times."),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MAX_THREADS,
        help="Threads that kernels run on.",
        show_default="all processors",
        callback=sensible,
    ),
]
TargetOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option("--target", help="What kernels run on: the processor, which auto is too, or the first GPU."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="The same seed tries candidates in the same order.")]
StrategyOption = Annotated[
    Literal["evolutionary", "random"], typer.Option("--strategy", help="How candidates are chosen.")
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="PERCENT",
        help="Stop when another minute is expected to make the whole model less than this faster, such as 2%.",
        show_default="no limit",
    ),
]
TRIALS_WHERE_NONE = "no limit; 200 where no other limit is given"
"""What is said of the trials that are not given."""

RayAddressOption = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="ADDRESS", help="The Ray cluster to join.", show_default="one started here"),
]
