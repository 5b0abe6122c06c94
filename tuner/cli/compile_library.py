"""`tunewright compile`: a model as a shared library, for programs without Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import Refused
from ..text import large, printable
from .answers import CommandAnswer
from .app import command
from .options import (
    BindOption,
    DbOption,
    DimOption,
    ModelArgument,
    ServerOption,
    ThreadsOption,
    parse_dims,
)

LONGEST_NAME = 28
"""Letters of a model's name that the library's has, where no other is given."""


@command(name="compile")
def compile_library(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The library.", show_default="libMODEL.so"),
    ] = None,
    db: DbOption = None,
    server: ServerOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
) -> CommandAnswer:
    """Make a shared library of a model and a C header, for programs without Python."""
    from tunewright.codegen.host import machine

    from ..files import write_whole
    from ..lookup.source import ScheduleSource
    from ..session.caches import object_cache
    from ..session.executable import executable_of_results
    from ..session.shared_library import check_prefix, header, shared_library

    path = output or model.with_name(f"lib{model.stem[:LONGEST_NAME]}.so")
    if path.suffix != ".so":
        raise Refused(
            f"{str(path)!r} is no name of a library, which ends in .so; an ONNX file for ONNX Runtime is made by "
            "tunewright.integrations.onnxruntime.compile_model"
        )
    prefix = check_prefix(_prefix(path))
    source = ScheduleSource.of_options(db, server)
    prepared = source.prepare(model, parse_dims(dims, bind), threads, "cpu")
    executable = executable_of_results(prepared.model, prepared.target, prepared.results, object_cache())
    library = shared_library(executable.image, prepared.target, prefix)
    header_path = path.with_suffix(".h")
    write_whole(path, library)
    write_whole(header_path, header(executable.image, prepared.target, prefix, machine()["tunewright"]).encode())
    notes = list(prepared.notes)
    if prepared.vendor is not None:
        notes.append(f"the model's last job took {prepared.vendor.name}; a library has our kernels alone")
    data = {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "file": str(path),
        "header": str(header_path),
        "prefix": prefix,
        "size_bytes": len(library),
        "notes": notes,
    }
    return CommandAnswer(data, render_library)


def _prefix(path: Path) -> str:
    """What the functions' names begin with: the file's name in small letters, without the `lib` of libraries."""
    name = re.sub(r"[^a-z0-9_]+", "_", path.stem.lower().removeprefix("lib"))
    return f"m_{name}" if name[:1].isdigit() else name


def render_library(console: Console, data: Mapping[str, Any]) -> None:
    """Print the files and how to begin."""
    size = large(data["size_bytes"], "B")
    console.print(f"{printable(data['file'])} has the model for {data['target']}, {size}")
    console.print(f"{printable(data['header'])} says how programs call it: {data['prefix']}_open, {data['prefix']}_run")
