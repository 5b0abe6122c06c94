"""`tunewright run`: the model once, on given or made-up inputs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tunewright.graph.onnx_form import dtype_name

from ..lookup.place import DEFAULT_PLACE, Place
from ..text import counted, duration, printable, shape, slow_nodes
from . import subject

MANIFEST = "manifest.json"
"""The file that says which output is which: a model's names are no file names."""


def run(
    model: Path,
    inputs: Sequence[str],
    output: Path | None,
    place: Place = DEFAULT_PLACE,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "auto",
) -> dict[str, Any]:
    """Run the model once; the outputs go to numbered files in folder `output`, where given."""
    prepared = place.prepare(model, dims or {}, threads, target)
    if given := subject.weights_given(prepared.model, inputs):
        prepared = place.prepare(model, dims or {}, threads, target, given)
    arrays, sources = subject.feeds(prepared.model, inputs)
    with subject.session_of(prepared) as session:
        start_s = time.perf_counter()
        results = session.run(None, arrays)
        run_s = time.perf_counter() - start_s
        coverage = session.coverage()
        arguments = session.get_outputs()
    outputs = [_described(argument.name, result) for argument, result in zip(arguments, results, strict=True)]
    data = {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "inputs": [{"name": name, **_kind(arrays[name]), "source": source} for name, source in sources.items()],
        "outputs": outputs,
        "first_run_ms": 1e3 * run_s,
        "tasks": subject.shares(coverage),
        "notes": list(prepared.notes),
        "fallback": dict(coverage.fallback),
        "reasons": prepared.model.fallback_reasons,
    }
    if output is not None:
        _save(output, data, results)
        data["folder"] = str(output)
    return data


def _save(folder: Path, data: Mapping[str, Any], results: Sequence[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (result, entry) in enumerate(zip(results, data["outputs"], strict=True)):
        entry["file"] = f"output_{number}.npy"
        array = result.astype(np.str_) if entry["dtype"] == "string" else result
        np.save(folder / entry["file"], array, allow_pickle=False)
    text = json.dumps({"model": data["model"], "inputs": data["inputs"], "outputs": data["outputs"]}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _kind(array: Any) -> dict[str, Any]:
    return {"dtype": dtype_name(array), "shape": list(array.shape)}


def _described(name: str, value: Any) -> dict[str, Any]:
    """An output with the range of its values."""
    described = {"name": name, **_kind(value)}
    if value.dtype.kind in "fiu":
        finite = value[np.isfinite(value)]
        if finite.size:
            described |= {"least": float(finite.min()), "most": float(finite.max())}
    return described


def render(console: Console, data: Mapping[str, Any]) -> None:
    """What went in and what came out."""
    for entry in data["inputs"]:
        source = entry["source"] if entry["source"] == "made up" else f"from {printable(entry['source'])}"
        console.print(f"input {printable(entry['name'])}: {entry['dtype']} {shape(entry['shape'])}, {source}")
    for entry in data["outputs"]:
        values = f", values {entry['least']:.6g} to {entry['most']:.6g}" if "least" in entry else ""
        file = f", in {printable(str(Path(data['folder'], entry['file'])))}" if "file" in entry else ""
        console.print(f"output {printable(entry['name'])}: {entry['dtype']} {shape(entry['shape'])}{values}{file}")
    tasks = data["tasks"]
    transferred = f", {tasks['transferred']} on what suits similar ones" if tasks["transferred"] else ""
    console.print(
        f"first run {duration(data['first_run_ms'])}; {counted(tasks['tuned'], 'task')} tuned{transferred}, "
        f"{tasks['default']} on their default"
    )
    if data["fallback"]:
        console.print(slow_nodes(data["fallback"], data["reasons"]))
