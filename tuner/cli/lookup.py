"""`tunewright lookup`, `lock` and `tasks`: what a model consists of, what is known of it, and pinning that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tunewright.graph.numerics import Precision

from ..errors import Refused
from ..text import counted, printable
from ..units import in_ms
from .answers import CommandAnswer
from .app import command
from .options import (
    BindOption,
    DbOption,
    DimOption,
    ModelArgument,
    PrecisionOption,
    ServerOption,
    TargetOption,
    ThreadsOption,
    parse_dims,
)

if TYPE_CHECKING:
    from tunewright.codegen.target import Target
    from tunewright.graph.task import Task, Tensor

    from ..lookup.result import LookupResult
    from ..lookup.source import PreparedModel
    from ..lookup.verdict import VendorTime


@command()
def lookup(
    model: ModelArgument,
    db: DbOption = None,
    server: ServerOption = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Keep everything the server knows of this machine, for when it is away.")
    ] = False,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """Show the schedule to use for each task of a model, and what it should take."""
    from ..lookup.source import ScheduleSource, download
    from .lookup_tables import render_lookup

    source = ScheduleSource.of_options(db, server)
    answer_count = download(source, threads, target) if snapshot else None
    prepared = source.prepare(model, parse_dims(dims, bind), threads, target, precision=precision)
    chosen = prepared.fastest_model.tasks
    data = {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "tasks": [
            {
                **result.to_json(),
                "occurrences": prepared.model.tasks[key][1],
                "chosen": _uses(chosen, key),
                "stale": _is_stale((prepared.other or prepared.results)[key], prepared.target),
            }
            for key, result in prepared.results.items()
        ],
        "vendor": _vendor_json(prepared.vendor),
        "notes": _notes(prepared),
        "kept": answer_count,
    }
    return CommandAnswer(data, render_lookup)


@command()
def lock(
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The lock file.", show_default="MODEL.lock.json"),
    ] = None,
    db: DbOption = None,
    server: ServerOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """Pin the schedule of each task in a file, so that every machine and every rebuild runs the same kernels."""
    from ..lookup.lockfile import write_lock
    from ..lookup.source import ScheduleSource

    source = ScheduleSource.of_options(db, server)
    prepared = source.prepare(model, parse_dims(dims, bind), threads, target, precision=precision)
    if prepared.unanswered:  # their defaults would be pinned
        reason = next(iter(prepared.unanswered.values()))
        count = f"{len(prepared.unanswered)} of {counted(len(prepared.results), 'task')}"
        raise Refused(f"{source.server} could not be asked for {count}: {reason}; a lock pins, so nothing was written")
    path = output or model.with_name(f"{model.name}.lock.json")
    write_lock(path, prepared.model, prepared.target, prepared.dims, prepared.results, prepared.vendor)
    chosen = prepared.fastest_model.tasks
    data = {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "file": str(path),
        "tasks": len(chosen),
        "matches": dict(Counter(prepared.results[key].match.value for key in chosen)),
        "vendor": _vendor_json(prepared.vendor),
        "notes": _notes(prepared),
    }
    return CommandAnswer(data, render_lock)


def _is_stale(best: LookupResult, target: Target) -> bool:
    """Whether the best of a task was timed on its target by other versions of compiler, driver or Tunewright."""
    from ..known_times import is_current
    from ..lookup.result import Basis, Match

    if best.match is not Match.EXACT or best.basis is not Basis.MEASURED or best.measurement is None:
        return False
    return not is_current(best.measurement.provenance, target)


def _vendor_json(vendor: VendorTime | None) -> dict[str, Any] | None:
    return None if vendor is None else vendor.to_json()


def _notes(prepared: PreparedModel) -> list[str]:
    """The notes on a model, and on the vendor's runtime that its last job took."""
    taken = [] if prepared.vendor is None else [prepared.vendor.note]
    return [*taken, *prepared.notes]


@command()
def tasks(
    model: ModelArgument,
    db: DbOption = None,
    target: TargetOption = "auto",
    threads: ThreadsOption = None,
    dims: DimOption = None,
    bind: BindOption = None,
    precision: PrecisionOption = Precision.AS_GIVEN,
) -> CommandAnswer:
    """List the tasks of a model, and what has no kernel."""
    from ..lookup.source import ScheduleSource
    from .lookup_tables import render_tasks

    prepared = ScheduleSource(db).prepare(model, parse_dims(dims, bind), threads, target, precision=precision)
    chosen = prepared.fastest_model.tasks
    data = {
        "model": prepared.model.label,
        "target": str(prepared.target),
        "tasks": [
            {**_task_json(prepared.best[key]), "occurrences": count, "chosen": _uses(chosen, key)}
            for key, (_, count) in prepared.model.tasks.items()
        ],
        "flops": sum(task.flops * count for task, count in chosen.values()),
        "coverage": {
            "native": prepared.model.native_nodes,
            "fallback": prepared.model.fallback_ops,
            "reasons": prepared.model.fallback_reasons,
        },
    }
    return CommandAnswer(data, render_tasks)


def _task_json(best: LookupResult) -> dict[str, Any]:
    """A task, and its time that was measured on this target, be it by another database."""
    from ..lookup.result import Basis
    from ..noise import noise_of_measurement

    task = best.task
    return {
        "key": task.key,
        "op": task.op,
        "inputs": [_tensor(tensor) for tensor in task.inputs],
        "outputs": [_tensor(tensor) for tensor in task.outputs],
        "flops": task.flops,
        "traffic_bytes": task.traffic_bytes,
        "best_ms": in_ms(best.expected_s) if best.basis in (Basis.MEASURED, Basis.IMPORTED) else None,
        "confirmed": best.confirmed,
        "noise": noise_of_measurement(best.measurement),
        "basis": best.basis.value,
    }


def _uses(chosen: Mapping[str, tuple[Task, int]], key: str) -> int:
    """How often the model runs a task, from the tasks that are chosen."""
    return chosen[key][1] if key in chosen else 0


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "constant": tensor.constant}


def render_lock(console: Console, data: Mapping[str, Any]) -> None:
    """Print the file and what it pins."""
    matches = ", ".join(f"{count} {match}" for match, count in data["matches"].items()) or "none"
    console.print(f"{printable(data['file'])} pins {counted(data['tasks'], 'task')} for {data['target']}: {matches}")
