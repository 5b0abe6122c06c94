"""Between rows and domain objects: the one place that knows both."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import Any

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .access import Key, Scope
from .cost_models import Snapshot
from .fleet import Device, Tuner
from .jobs import Budget, Job, JobSpec, JobState, JobTask, Wish
from .models import JobRow, KeyRow, Measured, TunerRow, UploadRow
from .uploads import Upload


def clean(text: str) -> str:
    """The text without what PostgreSQL (NUL) or UTF-8 (lone surrogates) can't hold."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


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


def measured_values(record: Record, created_at: datetime) -> dict[str, Any]:
    """The columns that a TrialRow and a ConfirmationRow have in common."""
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


def to_measurement(row: Measured) -> Measurement:
    """What happened in a trial or a confirmation; of one that was taken back, that it was, and why, and no times."""
    measured = as_measured(row)
    if row.status != Status.VOIDED.value:
        return measured
    timeless = replace(measured, samples_s=(), median_s=None, low_s=None, high_s=None, warm_s=None, incumbent_s=None)
    return replace(timeless, status=Status.VOIDED, error=row.void_reason)


def as_measured(row: Measured) -> Measurement:
    """The same as it was measured, taken back or not."""
    return Measurement(
        status=Status(row.measured_status or row.status),
        samples_s=tuple(row.samples_s),
        median_s=row.median_s,
        low_s=row.low_s,
        high_s=row.high_s,
        max_rel_err=row.max_rel_err,
        error=row.error,
        build_s=row.build_s,
        object_sha256=row.object_sha256,
        provenance=dict(row.provenance),
        incumbent_s=row.incumbent_s,
        warm_s=row.warm_s,
    )


TIMING = ("status", "median_s", "low_s", "high_s", "max_rel_err", "build_s", "incumbent_s", "warm_s")
"""Columns that `to_timing` needs."""

STATUSES = {status.value: status for status in Status}


def to_timing(row: Any) -> Measurement:
    """The numbers of a measurement: without samples, texts and provenance."""
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


def to_record(row: Measured) -> Record:
    """The trial or confirmation as it was stored."""
    return Record(row.task_key, row.target_key, Schedule.from_json(row.schedule), to_measurement(row))


def to_job(row: JobRow, tasks: tuple[JobTask, ...]) -> Job:
    """The job; its tasks come from another table."""
    return Job(
        id=row.id,
        spec=JobSpec(row.model_sha256, row.target_key or "", tasks, dict(row.settings)),
        label=row.label,
        state=JobState(row.state),
        created_at=row.created_at,
        updated_at=row.updated_at,
        budget=Budget.from_json(row.budget),
        attached=row.attached,
        priority=row.priority,
        spent_s=row.spent_s,
        attempts=row.attempts,
        holder=row.holder,
        wish=Wish(row.wish) if row.wish else None,
        progress=None if row.progress is None else dict(row.progress),
        result=None if row.result is None else dict(row.result),
        error=row.error,
        owner=row.owner,
    )


def device_json(device: Device) -> dict[str, Any]:
    """The device as it stands in a TunerRow."""
    until = device.quarantined_until
    return {
        "name": clean(device.name),
        "target_key": device.target_key,
        "quarantined_until": None if until is None else until.isoformat(),
        "reason": clean(device.reason),
    }


def to_device(data: dict[str, Any]) -> Device:
    """The inverse of `device_json`."""
    until = data["quarantined_until"]
    return Device(
        data["name"], data["target_key"], None if until is None else datetime.fromisoformat(until), data["reason"]
    )


def to_tuner(row: TunerRow) -> Tuner:
    """The tuner as it last said."""
    return Tuner(
        id=row.id,
        host=row.host,
        pid=row.pid,
        version=row.version,
        pool=row.pool,
        started_at=row.started_at,
        seen_at=row.seen_at,
        devices=tuple(to_device(data) for data in row.devices),
        job_id=row.job_id,
        draining=row.draining,
    )


def to_upload(row: UploadRow) -> Upload:
    """What is known of a model, without its bytes."""
    return Upload(
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        label=row.label,
        with_weights=row.with_weights,
        description=dict(row.description),
        created_at=row.created_at,
        owner=row.owner,
    )


def to_snapshot(row: Any, content: bytes = b"") -> Snapshot:
    """The snapshot of a row of `sql_cost_models.HEADS`."""
    return Snapshot(
        id=row.id,
        target_kind=row.target_kind,
        features_version=row.features_version,
        made_at=row.made_at,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        trials=row.trials,
        newest_trial_id=row.newest_trial_id,
        metrics=dict(row.metrics),
        parent_sha256=row.parent_sha256,
        job_id=row.job_id,
        has_content=bool(row.has_content),
        content=content,
    )


def to_key(row: KeyRow) -> Key:
    """The key without what tells its secret."""
    return Key(
        id=row.id,
        name=row.name,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
