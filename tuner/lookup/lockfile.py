"""Lock files: the schedules of one model, pinned, so that every machine and every rebuild runs the same kernels.

{"schema": 1, "model": "m.onnx", "model_sha256": "...", "made_by": "0.1.0", "target": {...}, "dims": {"batch": 1},
 "precision": "as given", "segments": [[chain, start, stop], ...],
 "tasks": [{"key", "op", "occurrences", "match", "basis", "confirmed", "expected_ms", "interval_ms", "schedule",
            "source", "provenance"}, ...],
 "vendor": {"runtime", "version", "time_ms", ...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewright.codegen.fields import check_type, item, quote, read_json
from tunewright.codegen.host import available_cores, machine
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.numerics import Precision

from ..arguments import check_precision
from ..errors import Refused
from ..files import write_whole
from ..models.model import Model, SegmentPlace
from ..text import short
from .result import LookupResult, Match, measured_times_s, read
from .verdict import VendorTime

SCHEMA = 1
"""Version of the format. It grows when an old reader would misunderstand a file, not when a field is added."""

LARGEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Lock:
    """The contents of a lock file."""

    path: Path
    model_sha256: str
    target: Target  # that the schedules were chosen for
    dims: Mapping[str, int]
    entries: Mapping[str, Any]  # task key -> answer, as `LookupResult.to_json` wrote it
    places: tuple[SegmentPlace, ...] = ()  # of the segments that stand for calls
    vendor: VendorTime | None = None  # the runtime that runs the model on this target
    precision: Precision = Precision.AS_GIVEN

    @property
    def threads(self) -> int | None:
        """The default number of threads: that of the schedules, if there are as many cores.

        None also for a GPU.
        """
        is_enough = self.target.kind != CUDA and self.target.threads <= len(available_cores())
        return self.target.threads if is_enough else None

    def check_precision(self, precision: Precision) -> None:
        """Raises Refused where a model of another precision is to run on it."""
        if precision is not self.precision:
            own, asked = str(self.precision), str(precision)
            raise Refused(f"{str(self.path)!r} was made for precision {own!r}, and {asked!r} is asked for")

    def merge_segments(self, model: Model) -> Model:
        """The model with the segments that are pinned. Raises Refused where it has them not."""
        try:
            return model.merge(self.places)
        except KeyError as error:
            raise Refused(
                f"{str(self.path)!r} is of other tasks: it merges some that the model can't; tunewright lock makes one "
                "for this model and these dimensions"
            ) from error

    def results(self, model: Model, target: Target) -> tuple[dict[str, LookupResult], list[str]]:
        """The pinned results of the tasks of a model as it is run, and notes for people, a line each.

        Raises Refused where the lock is of other tasks, or a schedule is not legal on this target.
        """
        missing, more = model.tasks.keys() - self.entries.keys(), self.entries.keys() - model.tasks.keys()
        if missing or more:
            raise Refused(
                f"{str(self.path)!r} is of other tasks: it lacks {len(missing)} of the model's, and has {len(more)} "
                "that the model has not; tunewright lock makes one for this model and these dimensions"
            )
        results = {}
        for key, (task, _) in model.tasks.items():
            try:
                results[key] = read(task, target, self.entries[key])
            except ValueError as error:
                origin = "" if target == self.target else f"; it was made for {self.target}, this is {target}"
                raise Refused(f"{str(self.path)!r}, task {short(key)} ({task.op}): {error}{origin}") from error
        notes = []
        if target != self.target:
            notes.append(f"{str(self.path)!r} was made for {self.target}; its schedules hold for {target} too")
        if model.sha256 != self.model_sha256:
            notes.append(f"{str(self.path)!r} was made from another file of the same tasks")
        return results, notes


def write_lock(
    path: Path,
    model: Model,
    target: Target,
    dims: Mapping[str, int],
    results: Mapping[str, LookupResult],
    vendor: VendorTime | None = None,
) -> None:
    """Pin the fastest schedules of a model, and the vendor's runtime that runs it where one does.

    Raises Refused where a task has no schedule to run, OSError.
    """
    model = model.fastest(measured_times_s(results))
    for result in (results[key] for key in model.tasks):
        if result.match is Match.NONE:
            raise Refused(f"task {short(result.task.key)} ({result.task.op}) has no schedule that works on {target}")
    data = {
        "schema": SCHEMA,
        "model": model.label,
        "model_sha256": model.sha256,
        "made_by": machine()["tunewright"],
        "target": target.to_json(),
        "dims": dict(dims),
        "precision": model.precision,
        "segments": model.places,
        "tasks": [{**results[key].to_json(), "occurrences": count} for key, (_, count) in model.tasks.items()],
        "vendor": None if vendor is None else vendor.to_json(),
    }
    write_whole(path, f"{json.dumps(data, indent=1)}\n".encode())


def read_lock(path: Path) -> Lock:
    """Raises Refused, in one line, for a file that is no lock file; OSError."""
    if path.stat().st_size > LARGEST_BYTES:
        raise Refused(f"{str(path)!r} is too large for a lock file")
    try:
        data = read_json(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or "schema" not in data:
            raise Refused(f"{str(path)!r} is no lock file; tunewright lock makes one")
        if data["schema"] != SCHEMA:
            raise Refused(f"{str(path)!r} is of schema {quote(data['schema'])}; this version reads {SCHEMA}")
        target = Target.from_json(data["target"])
        dims = {name: check_type(f"dims.{name}", value, int) for name, value in item(data, "dims", dict).items()}
        entries = {item(entry, "key", str): entry for entry in item(data, "tasks", list)}
        places = tuple(_segment(segment) for segment in check_type("segments", data.get("segments", []), list))
        vendor = VendorTime.read(data.get("vendor"))
        precision = check_precision(data.get("precision", Precision.AS_GIVEN))  # older files tell of none
        return Lock(path, str(data["model_sha256"]), target, dims, entries, places, vendor, precision)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{str(path)!r} is no lock file, or is cut short; tunewright lock makes one") from error
    except KeyError as error:
        raise Refused(f"{str(path)!r} is no lock file that can be read: {error} is missing") from error
    except TypeError as error:
        raise Refused(f"{str(path)!r} is no lock file that can be read: it has not the form of one") from error
    except ValueError as error:
        raise Refused(f"{str(path)!r} is no lock file that can be read: {error}") from error


def _segment(data: Any) -> SegmentPlace:
    """Raises ValueError for what is none."""
    numbers = [check_type("segments", number, int) for number in check_type("segments", data, list)]
    if len(numbers) != 3:
        raise ValueError(f"segments has {numbers}, which is not three numbers")
    chain, start, stop = numbers
    return chain, start, stop
