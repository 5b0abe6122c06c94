"""Conversion between rows and domain objects."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar, cast

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .errors import read_stored
from .tables import BestRow, MeasurementColumns, TargetRow, TaskRow, TrialRow

Item = TypeVar("Item")


def clean(text: str) -> str:
    """The text without what PostgreSQL (NUL) or UTF-8 (lone surrogates) can't store."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def from_row(kind: Callable[..., Item], row: Any, **others: Any) -> Item:
    """A data class of a row with columns named like its fields, except those in `others`."""
    names = (field.name for field in fields(cast("type[Any]", kind)))
    return kind(**{name: getattr(row, name) for name in names if name not in others}, **others)


def to_task(data: dict[str, Any]) -> Task:
    """The task of a TaskRow's data. Raises Unreadable."""
    return _read(lambda: Task.from_json(data), TaskRow, "data")


def to_target(data: dict[str, Any]) -> Target:
    """The target of a TargetRow's data. Raises Unreadable."""
    return _read(lambda: Target.from_json(data), TargetRow, "data")


def to_schedule(data: dict[str, Any] | str, row: type[MeasurementColumns | BestRow] = TrialRow) -> Schedule:
    """The schedule of a row of this kind, given as JSON data or text. Raises Unreadable."""
    return _read(lambda: Schedule.from_json(json.loads(data) if isinstance(data, str) else data), row, "schedule")


def _read(read: Callable[[], Item], row: type[Any], column: str) -> Item:
    return read_stored(read, row.__tablename__, column)


def task_values(task: Task) -> dict[str, Any]:
    """The columns of a TaskRow."""
    return {
        "key": task.key,
        "op": clean(task.op),
        "data": task.to_json(),
        "family": task.family,
        "shape": task.shape,
    }


def target_values(target: Target) -> dict[str, Any]:
    """The columns of a TargetRow."""
    return {"key": target.key, "kind": clean(target.kind), "data": target.to_json()}


def measurement_values(record: Record, created_at: datetime) -> dict[str, Any]:
    """The columns of a measurement in a TrialRow or ConfirmationRow."""
    measurement = record.measurement
    err = measurement.max_rel_err
    return {
        "task_key": record.task_key,
        "target_key": record.target_key,
        "schedule_key": record.schedule.key,
        "schedule": record.schedule.to_json(),
        "sketch": clean(record.schedule.sketch),
        "sketch_version": record.schedule.version,
        "status": measurement.status.value,
        "median_s": _number(measurement.median_s),
        "low_s": _number(measurement.low_s),
        "high_s": _number(measurement.high_s),
        "samples_s": [float(sample) for sample in measurement.samples_s],
        "max_rel_err": math.inf if err is not None and math.isnan(err) else _number(err),
        "error": clean(measurement.error),
        "build_s": float(measurement.build_s),
        "object_sha256": clean(measurement.object_sha256),
        "provenance": measurement.provenance,
        "created_at": created_at,
        "incumbent_s": _number(measurement.incumbent_s),
        "warm_s": _number(measurement.warm_s),
        "is_imported": False,
    }


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)  # numpy's numbers are unknown to the drivers


def to_measurement(row: MeasurementColumns) -> Measurement:
    """The measurement of a trial or a confirmation; if it is taken back, with the reason and without times."""
    measurement = stored_measurement(row)
    if row.status != Status.VOIDED.value:
        return measurement
    without_times = replace(
        measurement, samples_s=(), median_s=None, low_s=None, high_s=None, warm_s=None, incumbent_s=None
    )
    return replace(without_times, status=Status.VOIDED, error=row.void_reason)


def stored_measurement(row: MeasurementColumns) -> Measurement:
    """The measurement as it was taken, also if it is taken back."""
    return from_row(
        Measurement,
        row,
        status=_read(lambda: Status(row.measured_status or row.status), type(row), "status"),
        samples_s=tuple(row.samples_s),
        warm_samples_s=(),  # not stored
        provenance=dict(row.provenance),
    )


TIMING = ("status", "median_s", "low_s", "high_s", "max_rel_err", "build_s", "incumbent_s", "warm_s")
"""Columns for `to_timing`."""

STATUSES = {status.value: status for status in Status}


def to_timing(row: Any) -> Measurement:
    """The numbers of a measurement, without samples, texts and provenance."""
    return Measurement(
        STATUSES[row.status],
        median_s=row.median_s,
        low_s=row.low_s,
        high_s=row.high_s,
        max_rel_err=row.max_rel_err,
        build_s=row.build_s,
        incumbent_s=row.incumbent_s,
        warm_s=row.warm_s,
    )


def to_record(row: MeasurementColumns) -> Record:
    """The trial or confirmation of a row."""
    return Record(row.task_key, row.target_key, to_schedule(row.schedule, type(row)), to_measurement(row))


def stored_record(row: MeasurementColumns) -> Record:
    """The same as it was taken, also if it is taken back."""
    return Record(row.task_key, row.target_key, to_schedule(row.schedule, type(row)), stored_measurement(row))
