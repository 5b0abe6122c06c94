"""`tunewright compile`: a model as a shared library, for programs without Python, or for ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.graph.numerics import Precision

from ..errors import Refused
from ..integration import find_integration
from ..text import ONNX_RUNTIME, large, printable
from .answers import CommandAnswer
from .app import command
from .options import (
    BindOption,
    DbOption,
    DimOption,
    ModelArgument,
    PrecisionOption,
    ServerOption,
    ThreadsOption,
    parse_dims,
)

if TYPE_CHECKING:
    from ..lookup.source import ScheduleSource

LONGEST_NAME = 28
"""Letters of a model's name that the library's has, where no other is given."""


@command(name="compile")
def compile_library(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The library, or a model for ONNX Runtime where it ends in .onnx.",
            show_default="libMODEL.so",
        ),
    ] = None,
    db: DbOption = None,
    server: ServerOption = None,
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """Make a shared library of a model, or a model for ONNX Runtime that has one."""
    from ..lookup.source import ScheduleSource

    with model.open("rb"):  # a folder has no name to go by
        pass
    path = output or model.parent / f"lib{model.stem[:LONGEST_NAME]}.so"
    source = ScheduleSource.of_options(db, server)
    if path.suffix == ".onnx":
        if bind:
            raise Refused(f"--bind is for libraries; {ONNX_RUNTIME} gives a model's inputs their values")
        integration = find_integration("onnxruntime")
        files = integration.compile_model(
            model,
            path,
            dims=parse_dims(dims, None),
            threads=threads,
            db=source.db,
            server=source.server,
            precision=precision,
        )
        places = {"file": str(files.file), "library": str(files.library), "original": str(files.original)}
        return CommandAnswer({**asdict(files), **places, "notes": list(files.notes)}, render_model)
    if path.suffix != ".so":
        raise Refused(f"{str(path)!r} is no name of a library, which ends in .so, or of a model, which ends in .onnx")
    data = write_library(path, source, model, parse_dims(dims, bind), threads, precision)
    return CommandAnswer(data, render_library)


def write_library(
    path: Path,
    source: ScheduleSource,
    model: Path,
    dims: Mapping[str, int],
    threads: int | None,
    precision: Precision,
) -> dict[str, Any]:
    """Write the library of a model and its header; what is told of them, as JSON data."""
    from tunewright.codegen.host import machine

    from ..files import write_whole
    from ..session.library_model import LibraryModel
    from ..session.shared_library import check_prefix, header

    prefix = check_prefix(_prefix(path))
    compiled = LibraryModel.compile(source, model, dims, threads, precision)
    library = compiled.library(prefix)
    header_path = path.with_suffix(".h")
    write_whole(path, library)
    write_whole(header_path, header(compiled.image, compiled.target, prefix, machine()["tunewright"]).encode())
    return {
        "model": compiled.label,
        "target": str(compiled.target),
        "file": str(path),
        "header": str(header_path),
        "prefix": prefix,
        "size_bytes": len(library),
        "notes": list(compiled.notes),
    }


def _prefix(path: Path) -> str:
    """What the functions' names begin with: the file's name in small letters, without the `lib` of libraries."""
    name = re.sub(r"[^a-z0-9_]+", "_", path.stem.lower().removeprefix("lib"))
    return f"m_{name}" if name[:1].isdigit() else name


def render_library(console: Console, data: Mapping[str, Any]) -> None:
    """Print the files and how to begin."""
    size = large(data["size_bytes"], "B")
    console.print(f"{printable(data['file'])} has the model for {data['target']}, {size}")
    console.print(f"{printable(data['header'])} says how programs call it: {data['prefix']}_open, {data['prefix']}_run")


def render_model(console: Console, data: Mapping[str, Any]) -> None:
    """Print the files and how to open them."""
    size = large(data["size_bytes"], "B")
    console.print(f"{printable(data['file'])} has the model for {ONNX_RUNTIME}: open it with our provider's options")
    console.print(f"{printable(data['library'])} has its code for {data['target']}, {size}; keep it beside the model")
    console.print(f"{printable(data['original'])} runs instead where a processor lacks what the code needs")
