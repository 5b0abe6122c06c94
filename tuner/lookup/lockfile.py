"""Lock files: the schedules of one model, pinned, so that every machine and every rebuild runs the same kernels.

{"schema": 1, "model": "m.onnx", "model_sha256": "...", "made_by": "0.1.0", "target": {...}, "dims": {"batch": 1},
 "segments": [[chain, start, stop], ...],
 "tasks": [{"key", "op", "occurrences", "match", "basis", "confirmed", "expected_ms", "interval_ms", "schedule",
            "source", "provenance"}, ...]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewright.codegen.host import available_cores, machine
from tunewright.codegen.target import CUDA, Target

from ..errors import Refused
from ..models.model import Model, SegmentPlace
from ..text import short
from .found import Found, Match, measured_s, read

SCHEMA = 1
"""Version of the format. It grows when an old reader would misunderstand a file, not when a field is added."""

LARGEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Lock:
    """What a lock file says."""

    path: Path
    model_sha256: str
    target: Target  # that the schedules were chosen for
    dims: Mapping[str, int]
    entries: Mapping[str, Any]  # task key -> answer, as `Found.to_json` wrote it
    places: tuple[SegmentPlace, ...] = ()  # of the segments that stand for calls

    @property
    def threads(self) -> int | None:
        """What to run on where nobody says: as many threads as the schedules were chosen for, if there are cores.

        None too where they are for a GPU.
        """
        is_enough = self.target.kind != CUDA and self.target.threads <= len(available_cores())
        return self.target.threads if is_enough else None

    def chosen(self, model: Model) -> Model:
        """The model with the segments that are pinned. Raises Refused where it has them not."""
        try:
            return model.merged(self.places)
        except KeyError as error:
            raise Refused(
                f"{str(self.path)!r} is of other tasks: it merges some that the model can't; tunewright lock makes one "
                "for this model and these dimensions"
            ) from error

    def found(self, model: Model, target: Target) -> tuple[dict[str, Found], list[str]]:
        """The pinned schedules of the tasks of a model as it is run, and what people should know of them, a line each.

        Raises Refused where the lock is of other tasks, or a schedule is not legal on this target.
        """
        missing, more = model.tasks.keys() - self.entries.keys(), self.entries.keys() - model.tasks.keys()
        if missing or more:
            raise Refused(
                f"{str(self.path)!r} is of other tasks: it lacks {len(missing)} of the model's, and has {len(more)} "
                "that the model has not; tunewright lock makes one for this model and these dimensions"
            )
        found = {}
        for key, (task, _) in model.tasks.items():
            try:
                found[key] = read(task, target, self.entries[key])
            except ValueError as error:
                made = "" if target == self.target else f"; it was made for {self.target}, this is {target}"
                raise Refused(f"{str(self.path)!r}, task {short(key)} ({task.op}): {error}{made}") from error
        notes = []
        if target != self.target:
            notes.append(f"{str(self.path)!r} was made for {self.target}; its schedules hold for {target} too")
        if model.sha256 != self.model_sha256:
            notes.append(f"{str(self.path)!r} was made from another file of the same tasks")
        return found, notes


def write_lock(path: Path, model: Model, target: Target, dims: Mapping[str, int], found: Mapping[str, Found]) -> None:
    """Pin what is chosen of what was found for a model. Raises Refused where a task has no schedule to run, OSError."""
    model = model.chosen(measured_s(found))
    for one in (found[key] for key in model.tasks):
        if one.match is Match.NONE:
            raise Refused(f"task {short(one.task.key)} ({one.task.op}) has no schedule that works on {target}")
    data = {
        "schema": SCHEMA,
        "model": model.label,
        "model_sha256": model.sha256,
        "made_by": machine()["tunewright"],
        "target": target.to_json(),
        "dims": dict(dims),
        "segments": model.places,
        "tasks": [{**found[key].to_json(), "occurrences": count} for key, (_, count) in model.tasks.items()],
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_lock(path: Path) -> Lock:
    """Raises Refused, in one line, for a file that is no lock file; OSError."""
    if path.stat().st_size > LARGEST_BYTES:
        raise Refused(f"{str(path)!r} is too large for a lock file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or "schema" not in data:
            raise Refused(f"{str(path)!r} is no lock file; tunewright lock makes one")
        if data["schema"] != SCHEMA:
            raise Refused(f"{str(path)!r} is of schema {data['schema']!r}; this version reads {SCHEMA}")
        target = Target.from_json(data["target"])
        dims = {str(name): int(value) for name, value in data["dims"].items()}
        entries = {str(entry["key"]): entry for entry in data["tasks"]}
        places = tuple((int(chain), int(start), int(stop)) for chain, start, stop in data.get("segments", ()))
        return Lock(path, str(data["model_sha256"]), target, dims, entries, places)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise Refused(f"{str(path)!r} is no lock file that can be read: {why}") from error
