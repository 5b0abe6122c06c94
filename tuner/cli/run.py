"""`tunewright run`: the model once, on given or made-up inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.codegen.write_faults import naming
from tunewright.graph.numerics import Precision

from ..text import counted, duration, printable, shape, slow_nodes
from .answers import CommandAnswer
from .app import command
from .options import (
    BindOption,
    DbOption,
    DimOption,
    LockOption,
    ModelArgument,
    PrecisionOption,
    ServerOption,
    TargetOption,
    ThreadsOption,
    parse_dims,
)

if TYPE_CHECKING:
    from ..lookup.source import ScheduleSource

MANIFEST = "manifest.json"
"""The file with the names of the outputs: a model's names are no file names."""


@command()
def run(
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input; those not given are made up."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the outputs.", show_default="not kept")
    ] = None,
    db: DbOption = None,
    server: ServerOption = None,
    lock: LockOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """Run the model once, on the best schedules known."""
    from ..lookup.source import ScheduleSource

    source = ScheduleSource.of_options(db, server, lock)
    bindings = parse_dims(dims, bind)
    return CommandAnswer(run_model(model, inputs or (), output, source, bindings, threads, target, precision), render)


def run_model(
    model: Path,
    inputs: Sequence[str],
    output: Path | None,
    source: ScheduleSource,
    dims: Mapping[str, int],
    threads: int | None,
    target: str = "auto",
    precision: Precision = Precision.AS_GIVEN,
) -> dict[str, Any]:
    """Run the model once; the outputs go to numbered files in folder `output`, where given."""
    from ..session.caches import image_store
    from ..session.maps import as_rows
    from . import model_io

    prepared = source.prepare(model, dims, threads, target, precision=precision)
    if weights := model_io.weight_labels(prepared.model, inputs):
        prepared = source.prepare(model, dims, threads, target, weights, precision)
    arrays, origins = model_io.feeds(prepared.model, inputs)
    images = image_store() if not weights else None
    with model_io.session_of(prepared, model, images) as session:
        start_s = time.perf_counter()
        results = [as_rows(result) for result in session.run(None, arrays)]
        run_s = time.perf_counter() - start_s
        coverage = session.coverage()
        arguments = session.get_outputs()
    outputs = [_value_json(argument.name, result) for argument, result in zip(arguments, results, strict=True)]
    data = {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "inputs": [{"name": name, **_type_json(arrays[name]), "source": origin} for name, origin in origins.items()],
        "outputs": outputs,
        "first_run_ms": 1e3 * run_s,
        "tasks": model_io.shares(coverage),
        "runtime": coverage.runtime,
        "notes": [*session.vendor_notes, *prepared.notes],
        "fallback": dict(coverage.fallback),
        "reasons": prepared.model.fallback_reasons,
    }
    if output is not None:
        _save(output, data, results)
        data["folder"] = str(output)
    return data


def _save(folder: Path, data: Mapping[str, Any], results: Sequence[Any]) -> None:
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    for number, (result, entry) in enumerate(zip(results, data["outputs"], strict=True)):
        entry["file"] = f"output_{number}.npy"
        array = result.astype(np.str_) if entry["dtype"] == "string" else result
        with naming(folder / entry["file"]):
            np.save(folder / entry["file"], array, allow_pickle=False)
    text = json.dumps({"model": data["model"], "inputs": data["inputs"], "outputs": data["outputs"]}, indent=2)
    with naming(folder / MANIFEST):
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _type_json(array: Any) -> dict[str, Any]:
    from tunewright.graph.evaluation.onnx_form import dtype_name

    return {"dtype": dtype_name(array), "shape": list(array.shape)}


def _value_json(name: str, value: Any) -> dict[str, Any]:
    """An output with the range of its values."""
    import numpy as np

    entry = {"name": name, **_type_json(value)}
    if value.dtype.kind in "fiu":
        finite = value[np.isfinite(value)]
        if finite.size:
            entry |= {"least": float(finite.min()), "most": float(finite.max())}
    return entry


def render(console: Console, data: Mapping[str, Any]) -> None:
    """Print the inputs and outputs."""
    for entry in data["inputs"]:
        source = entry["source"] if entry["source"] == "made up" else f"from {printable(entry['source'])}"
        console.print(f"input {printable(entry['name'])}: {entry['dtype']} {shape(entry['shape'])}, {source}")
    for entry in data["outputs"]:
        values = f", values {entry['least']:.6g} to {entry['most']:.6g}" if "least" in entry else ""
        file = f", in {printable(str(Path(data['folder'], entry['file'])))}" if "file" in entry else ""
        console.print(f"output {printable(entry['name'])}: {entry['dtype']} {shape(entry['shape'])}{values}{file}")
    tasks = data["tasks"]
    transferred = f", {tasks['transferred']} on what suits similar ones" if tasks["transferred"] else ""
    if data["runtime"]:
        console.print(f"first run {duration(data['first_run_ms'])}, in {printable(data['runtime'])}")
        return
    console.print(
        f"first run {duration(data['first_run_ms'])}; {counted(tasks['tuned'], 'task')} tuned{transferred}, "
        f"{tasks['default']} on their default"
    )
    if data["fallback"]:
        console.print(slow_nodes(data["fallback"], data["reasons"]))
