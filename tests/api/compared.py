"""Jobs that are finished, with what confirms the times in their reports: for tests of what compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunewright.codegen.target import Target
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import DEFAULT_INTERVAL, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule

from .conftest import TARGET

MODEL = "ab" * 32


@dataclass(frozen=True)
class Confirmed:
    """The best of a task as a job confirmed it, in milliseconds."""

    low: float
    high: float
    schedule: Schedule | None = None  # None: the default
    provenance: tuple[tuple[str, str], ...] = (("llvm", "21"), ("tunewright", "1.0"))
    noise: str = ""
    warm: bool = False
    is_confirmed: bool = True
    is_stored: bool = True  # whether the database has the confirmation
    retimed: Any = None  # what its report says of the time before the job, if it timed it again
    default_low: float = 2.0  # 1% below its median

    @property
    def median_ms(self) -> float:
        return (self.low + self.high) / 2

    @property
    def measurement(self) -> Measurement:
        median_s = 1e-3 * self.median_ms
        default_s = 1e-3 * self.default_low
        provenance = dict(self.provenance) | {DEFAULT_INTERVAL: f"{default_s!r} {1.02 * default_s!r}"}
        return Measurement(
            Status.OK,
            (median_s,) * 5,
            median_s,
            1e-3 * self.low,
            1e-3 * self.high,
            0.0,
            provenance=provenance | ({"noise": self.noise} if self.noise else {}),
            incumbent_s=1.01 * default_s,
            warm_s=median_s if self.warm else None,
        )


def finished(
    store: Store,
    tasks: Mapping[Task, Confirmed | None],
    *,
    target: Target = TARGET,
    model: str = MODEL,
    label: str = "net.onnx",
    settings: Mapping[str, Any] | None = None,
    run: Sequence[float] | None = (4.95, 5.05),
    state: JobState | None = JobState.SUCCEEDED,
    **result: Any,
) -> int:
    """A job that ended, with a run of its model within `run` ms; None of a task: it was not timed."""
    store.add_target(target)
    store.add_tasks(tasks)
    spec = JobSpec(model, target.key, tuple(SpecTask(task.key, 2) for task in tasks), dict(settings or {"seed": 0}))
    job = store.jobs.submit(spec, label, SearchBudget(100)).job
    lease = store.jobs.lease([target.key], "host-1:4711")
    assert lease is not None and lease.job_id == job.id
    told = {"stage": "searching", "trials": 0, "speedup": 1.5, "is_tried": True, "spent_s": 30.0}
    store.jobs.renew(lease, progress=told, events=[NewEvent(EventKind.PROGRESS, told)], spent_s=30.0)
    entries = [_entry(store, target, task, confirmed) for task, confirmed in tasks.items()]
    whole: dict[str, Any] = {"tasks": entries, "outcome": "faster"}
    if run is not None:
        middle = sum(run) / 2
        whole |= {
            "default_ms": 10.0,
            "default_interval_ms": [9.9, 10.1],
            "tuned_ms": middle,
            "tuned_interval_ms": list(run),
            "speedup_interval": [9.9 / run[1], 10.1 / run[0]],
        }
    if state is not None:
        store.jobs.finish(lease, state, result=whole | result)
    return job.id


def _entry(store: Store, target: Target, task: Task, confirmed: Confirmed | None) -> dict[str, Any]:
    """The report of a task, whose confirmation is stored."""
    about = {"key": task.key, "op": task.op, "occurrences": 2, "chosen": 2}
    default = default_schedule(task, target)
    if confirmed is None:
        return about | {"default_ms": None, "best_ms": None, "schedule": default.to_json(), "confirmed": False}
    schedule = confirmed.schedule or default
    measured = confirmed.measurement
    if confirmed.is_confirmed and confirmed.is_stored:
        store.confirm(Record(task.key, target.key, schedule, measured))
    assert measured.incumbent_s is not None
    return about | {
        "default_ms": 1e3 * measured.incumbent_s,
        "best_ms": 1e3 * (measured.median_s or 0.0),
        "default_interval_ms": [confirmed.default_low, 1.02 * confirmed.default_low],
        "best_interval_ms": [confirmed.low, confirmed.high],
        "noise": confirmed.noise,
        "confirmed": confirmed.is_confirmed,
        "default_schedule": default.key,
        "schedule": schedule.to_json(),
        "trials": 5,
        "retimed": confirmed.retimed,
    }


def slower(confirmed: Confirmed, factor: float, **changes: Any) -> Confirmed:
    """The same, so many times as long."""
    return replace(confirmed, low=factor * confirmed.low, high=factor * confirmed.high, **changes)
