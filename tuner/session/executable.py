"""Executable: a compiled model, from a model and schedules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.host import available_cores
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.runtime.library import pool_object
from tunewright.codegen.runtime.memory import trim_compiler, trim_heap
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.fusion.fusion import Fallback, TaskCall
from tunewright.graph.ir import DefaultInput
from tunewright.graph.numerics import Precision
from tunewright.graph.ops import TensorView
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds
from tunewright.workers.lock import HostLock

from ..errors import Refused
from ..lookup.result import TRANSFERRED, LookupResult, Match, measured_times_s
from ..lookup.source import ScheduleSource
from ..lookup.verdict import VendorTime
from ..models.model import Model
from ..text import short
from .across_sizes import AcrossSizes
from .compile import build_kernels, compile_model
from .image import Image
from .image_store import CacheEntry, Coverage, ImageStore, compiler_of, image_key

_log = logging.getLogger("tunewright.schedule")


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled model with its schedules and notes. `name` is that of the image in the store, empty if not there."""

    image: Image
    target: Target
    schedules: Mapping[str, Schedule]  # by task key
    coverage: Coverage
    notes: tuple[str, ...] = ()
    name: str = ""
    defaults: tuple[DefaultInput, ...] = ()
    vendor: VendorTime | None = None  # the runtime that runs the model instead, where it is installed

    @property
    def entry(self) -> CacheEntry:
        """The cache entry of this executable."""
        schedules = {key: schedule.to_json() for key, schedule in self.schedules.items()}
        vendor = None if self.vendor is None else self.vendor.to_json()
        return CacheEntry(self.name, self.target.threads, self.notes, self.coverage, schedules, self.defaults, vendor)


def open_executable(
    model: Path | str | bytes,
    source: ScheduleSource,
    dims: Mapping[str, int],
    threads: int | None,
    target: str,
    precision: Precision,
    objects: ObjectCache | None,
    images: ImageStore | None,
    across: AcrossSizes | None = None,
) -> Executable:
    """Read a model, find schedules for it, and get its image, from the store if it is there.

    Raises what `ScheduleSource.prepare` raises, Refused where a task has no schedule that may work, and BuildError
    where the compiler refuses one. `across` has what was made for the model at other sizes.
    """
    prepared = source.prepare(model, dims, threads, target, precision=precision)
    trim_heap()  # what reading took, before constants are packed beside those that were read
    last_use = replace(prepared.model, last_use=True)
    executable = executable_of_results(
        last_use, prepared.target, prepared.results, objects, images, prepared.notes, across
    )
    return replace(executable, vendor=prepared.vendor)


def executable_of_results(
    model: Model,
    target: Target,
    results: Mapping[str, LookupResult],
    objects: ObjectCache | None,
    images: ImageStore | None = None,
    notes: tuple[str, ...] = (),
    across: AcrossSizes | None = None,
) -> Executable:
    """An opened model on lookup results. Raises Refused where a task has no schedule to run.

    Of a model with external data no image is kept, as its file does not tell when that changes.
    """
    images = None if model.graph.has_external_data else images
    model = model.fastest(measured_times_s(results))
    results = {key: results[key] for key in model.tasks}
    for result in results.values():
        if result.match == Match.NONE:
            raise Refused(
                f"task {short(result.task.key)} ({result.task.op}): its default and all else that was tried fail on "
                f"{target}; tunewright tune with more trials may find a schedule that works"
            )
    for key, result in results.items():
        origin = "" if result.match is Match.EXACT else f" by {result.match}"
        _log.debug("task %s: %s%s", short(key), result.schedule, origin)
    schedules = {key: result.schedule for key, result in results.items()}
    name = image_key(model.sha256, target, _plain_steps(model, schedules)) if images is not None else None
    image, name = _image(model, target, schedules, objects, images, name, across)
    tuned = sum(result.match is Match.EXACT and not result.is_imported for result in results.values())
    imported = sum(result.match is Match.EXACT and result.is_imported for result in results.values())
    transferred = sum(result.match in TRANSFERRED for result in results.values()) + imported
    kept = sum(result.is_kept for result in results.values())
    untuned = len(results) - tuned - transferred - kept
    coverage = Coverage(model.native_nodes, model.fallback_ops, tuned, untuned, transferred, kept)
    return Executable(image, target, schedules, coverage, notes, name, model.graph.defaults)


def executable_of_schedules(
    model: Model, target: Target, schedules: Mapping[str, Schedule], objects: ObjectCache | None
) -> Executable:
    """An opened model with these schedules by task key; the defaults for the others. What is open in it runs apart."""
    model = model.merge(())
    results = {
        key: LookupResult(task, Match.EXACT, schedules[key], None)
        if key in schedules and holds(task, target, schedules[key])
        else LookupResult(task, Match.DEFAULT, default_schedule(task, target), None)
        for key, (task, _) in model.tasks.items()
    }
    return executable_of_results(model, target, results, objects)


def _image(
    model: Model,
    target: Target,
    schedules: Mapping[str, Schedule],
    objects: ObjectCache | None,
    images: ImageStore | None,
    name: str | None,
    across: AcrossSizes | None,
) -> tuple[Image, str]:
    """The image, and its name if it is in the store from now on. Raises Refused without a compiler; BuildError."""
    compiler = compiler_of(target) if images is not None else None
    if images is not None and name is not None:
        stored = images.get(name, compiler)
        if stored is not None:
            return stored.image, name
    # Who times candidates on this machine is not disturbed. They share the folder of objects.
    try:
        with HostLock(objects.folder).shared() if objects else nullcontext():
            artifacts = build_kernels(model, schedules, target, objects, across.kernels if across else None)
    except NoCompiler as error:
        raise Refused(str(error)) from error
    trim_heap()  # what compiling took, before constants are packed
    trim_compiler()
    packers = min(target.threads, len(available_cores()))
    image = compile_model(model, artifacts, packers, across.weights if across else None)
    if images is None or name is None or compiler is None:
        return image, ""
    pool_code = pool_object() if target.kind != CUDA else b""
    return image, name if images.put(name, image, pool_code, compiler) else ""


def _plain_steps(model: Model, schedules: Mapping[str, Schedule]) -> list[Any]:
    """Precision, inputs, outputs, bound values and steps as plain data: all that tells one way to run a model from
    another.
    """
    values = (*model.graph.inputs, *model.graph.outputs)
    plain: list[Any] = [model.precision]  # which constants are rounded by
    plain += [[value.label, value.tensor, str(model.graph.type(value.tensor))] for value in values]
    plain += [[value.tensor, value.sizes] for value in values if value.sizes]
    plain += [[bound.label, bound.value.tolist()] for bound in model.graph.bound]  # constants are computed from them
    for step in model.steps:
        match step:
            case TaskCall(task, inputs, outputs):
                plain.append([task.key, schedules[task.key].to_json(), inputs, outputs])
            case TensorView(source, output, offset_bytes=offset_bytes):
                plain.append([source, output, offset_bytes])
            case Fallback(node):
                plain.append(str(node))
            case control:
                plain.append(str(control))
    return plain
