"""From a model and schedules to what a session runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunewright.codegen.build import ObjectCache
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.host import available_cores
from tunewright.codegen.runtime.library import pool_object
from tunewright.codegen.runtime.residence import trim_compiler, trim_heap
from tunewright.codegen.target import Target
from tunewright.graph.fusion import Call, Fallback
from tunewright.graph.ir import Default
from tunewright.graph.ops import View
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, holds
from tunewright.workers.lock import HostLock

from ..errors import Refused
from ..lookup import TRANSFERRED, Found, Match, measured_s
from ..lookup.place import Place
from ..models.model import Model
from ..text import short
from .compiling import build_kernels, compile_model
from .coverage import Coverage
from .image import Image
from .image_store import Answer, ImageStore
from .question import image_name, is_whole

_log = logging.getLogger("tunewright.schedule")


@dataclass(frozen=True, slots=True)
class Started:
    """What a session runs, and what it says of itself. `name` is that of the image in the store, empty if not there."""

    image: Image
    target: Target
    schedules: Mapping[str, Schedule]  # by task key
    coverage: Coverage
    notes: tuple[str, ...] = ()
    name: str = ""
    defaults: tuple[Default, ...] = ()

    @property
    def answer(self) -> Answer:
        """What another session needs to start the same."""
        schedules = {key: schedule.to_json() for key, schedule in self.schedules.items()}
        return Answer(self.name, self.target.threads, self.notes, self.coverage, schedules, self.defaults)


def start(
    source: Path | str | bytes,
    place: Place,
    dims: Mapping[str, int],
    threads: int | None,
    target: str,
    objects: ObjectCache | None,
    images: ImageStore | None,
) -> Started:
    """Read a model, find schedules for it, and get its image, from the store if it is there.

    Raises as `Place.prepare` does, Refused where a task is left without a schedule that may work, and BuildError where
    the compiler refuses one.
    """
    prepared = place.prepare(source, dims, threads, target)
    trim_heap()  # what reading took, before constants are packed beside those that were read
    kept = images if images is not None and is_whole(source) else None
    model = replace(prepared.model, last_use=True)
    return start_found(model, prepared.target, prepared.found, objects, kept, prepared.notes)


def start_found(
    model: Model,
    target: Target,
    found: Mapping[str, Found],
    objects: ObjectCache | None,
    images: ImageStore | None = None,
    notes: tuple[str, ...] = (),
) -> Started:
    """An opened model on what `lookup` found. Raises Refused where a task has no schedule to run."""
    model = model.chosen(measured_s(found))
    found = {key: found[key] for key in model.tasks}
    for one in found.values():
        if one.match == Match.NONE:
            raise Refused(
                f"task {short(one.task.key)} ({one.task.op}): its default and all else that was tried fail on "
                f"{target}; tunewright tune with more trials may find a schedule that works"
            )
    schedules = {key: one.schedule for key, one in found.items()}
    matches = {key: one.match for key, one in found.items()}
    return _started(model, target, schedules, matches, objects, images, notes)


def start_with(model: Model, target: Target, schedules: Mapping[str, Schedule], objects: ObjectCache | None) -> Started:
    """An opened model with these schedules by task key; the defaults for the others. What is open in it runs apart."""
    model = model.merged(())
    held = {
        key: schedules[key]
        for key, (task, _) in model.tasks.items()
        if key in schedules and holds(task, target, schedules[key])
    }
    return _started(model, target, held, dict.fromkeys(held, Match.EXACT), objects, None, ())


def _started(
    model: Model,
    target: Target,
    schedules: Mapping[str, Schedule],
    matches: Mapping[str, Match],
    objects: ObjectCache | None,
    images: ImageStore | None,
    notes: tuple[str, ...],
) -> Started:
    """`schedules` must be legal; tasks not in there get their default. `matches` says where they come from."""
    used = {key: schedules.get(key) or default_schedule(task, target) for key, (task, _) in model.tasks.items()}
    for key, schedule in used.items():
        match = matches.get(key, Match.DEFAULT)
        _log.debug("task %s: %s%s", short(key), schedule, "" if match is Match.EXACT else f" by {match}")
    name = image_name(model.sha256, target, _plain_steps(model, used)) if images is not None else None
    image, name = _image(model, target, used, objects, images, name)
    tuned = sum(match is Match.EXACT for match in matches.values())
    transferred = sum(match in TRANSFERRED for match in matches.values())
    untuned = len(used) - tuned - transferred
    coverage = Coverage(model.native_nodes, model.fallback_ops, tuned, untuned, transferred)
    return Started(image, target, used, coverage, notes, name, model.graph.defaults)


def _image(
    model: Model,
    target: Target,
    schedules: Mapping[str, Schedule],
    objects: ObjectCache | None,
    images: ImageStore | None,
    name: str | None,
) -> tuple[Image, str]:
    """The image, and its name if it is in the store from now on. Raises Refused without a compiler; BuildError."""
    if images is not None and name is not None:
        kept = images.get(name, target.threads)
        if kept is not None:
            return kept.image, name
    # Who times candidates on this machine is not disturbed. They share the folder of objects.
    try:
        with HostLock(objects.folder).building() if objects else nullcontext():
            artifacts = build_kernels(model, schedules, target, objects)
    except NoCompiler as error:
        raise Refused(str(error)) from error
    trim_heap()  # what compiling took, before constants are packed
    trim_compiler()
    image = compile_model(model, artifacts, min(target.threads, len(available_cores())))
    is_kept = images is not None and name is not None and images.put(name, image, pool_object())
    return image, name if name is not None and is_kept else ""


def _plain_steps(model: Model, schedules: Mapping[str, Schedule]) -> list[Any]:
    """Inputs, outputs and steps as plain data: all that tells one way to run a model from another."""
    values = (*model.graph.inputs, *model.graph.outputs)
    plain: list[Any] = [[value.label, value.tensor, str(model.graph.type(value.tensor))] for value in values]
    for step in model.steps:
        match step:
            case Call(task, inputs, outputs):
                plain.append([task.key, schedules[task.key].to_json(), inputs, outputs])
            case View(source, output, offset_bytes=offset_bytes):
                plain.append([source, output, offset_bytes])
            case Fallback(node):
                plain.append(str(node))
    return plain
