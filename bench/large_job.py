"""A large job: any number of trials of one model, with synthetic times. For load, not for tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
from sqlalchemy import exists, func, insert, select, update

from tunewright.bench.suite import MODELS
from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.db.choice import update_bests
from tunewright.db.job import EventKind, JobSpec, SearchBudget, SpecTask
from tunewright.db.store import Store
from tunewright.db.tables import EventRow, JobRow, TrialRow
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.machine_span import Gauge, GaugeRange, MachineSpan
from tunewright.tuner.models.model import open_model

MODEL = "vit_tiny"
"""Its attention has millions of legal schedules."""

OTHERS_SHARE = 0.1
"""The share of trials of all tasks but the first."""

MORE = 20_000
"""The most trials that `next_records` adds."""

MOST_EARLY_EVENTS = 5
"""The most events of a job that is not filled yet: it was submitted, and leased now and then."""

RATE = 30
"""Trials a second of one tuner process."""

LOOK = 10 * RATE
"""Trials between two looks at the machine."""

BATCH = 10_000
"""Rows written in one transaction."""

IMPROVEMENTS = 60
"""Improvements of each task."""

FAILED_SHARE = 0.03
"""The share of trials that fail."""

CACHE_KB = 400_000
"""SQLite's page cache while rows are written."""

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LargeJob:
    """A running job, the task with the most trials first."""

    id: int
    again_id: int  # the same with another seed, which waits
    target: Target
    tasks: Sequence[Task]  # the one with most trials first
    uses: Sequence[int]
    trials: int

    def machine(self, trials: int) -> dict[str, Any]:
        """What the machine did before so many trials, as a tuner process tells it: some steal now and then."""
        steal = 0.2 * (trials // LOOK % 50 == 0)
        share, clock = (Gauge.STEAL, Gauge.OTHERS, Gauge.SPREAD, Gauge.LOAD, Gauge.PRESSURE), 2600.0 - trials % 7
        gauges = dict.fromkeys(share, GaugeRange(0.0, steal / 2, steal)) | {
            Gauge.CLOCK: GaugeRange(clock, clock, clock)
        }
        return MachineSpan(10.0, 10.0 * (steal > 0), LOOK, LOOK * (steal > 0), 0, gauges).to_json()

    def progress(self, trials: int) -> dict[str, Any]:
        """The progress of the job after so many trials, as a tuner process reports it."""
        return {
            "stage": "searching",
            "trials": trials,
            "most_trials": 2 * self.trials,
            "spent_s": trials / RATE,
            "left_s": (2 * self.trials - trials) / RATE,
            "speedup": _speedup(trials / self.trials),
            "remaining_gain": 0.02,
            "again_gain": 0.02,
            "chosen": list(self.uses),
            "task_gains": [0.001] * len(self.tasks),
        }


def fill(store: Store, target: Target, trials: int, say: Callable[[str], None]) -> LargeJob:
    """The job in a database, filled if need be. An interrupted fill is continued."""
    data = MODELS[MODEL]()
    task_uses = list(open_model(data).tasks.values())
    task_uses.sort(key=lambda item: sum(space.size for space in spaces(item[0], target)), reverse=True)
    store.add_target(target)
    for task, _ in task_uses:
        store.add_task(task)
    parts = tuple(SpecTask(task.key, uses) for task, uses in task_uses)
    specs = [JobSpec(sha256(data).hexdigest(), target.key, parts, {"seed": seed}) for seed in (0, 1)]
    job, again = (store.jobs.submit(spec, f"made-up {MODEL}.onnx", SearchBudget(2 * trials)).job for spec in specs)
    large = LargeJob(job.id, again.id, target, [task for task, _ in task_uses], [uses for _, uses in task_uses], trials)
    with store.database.read() as session:
        is_filled = bool(
            session.scalar(select(exists().where(EventRow.job_id == job.id, EventRow.number > MOST_EARLY_EVENTS)))
        )
    if not is_filled:
        _write_trials(store, large, say)
        _write_events(store, large)
    return large


def next_records(job: LargeJob) -> Iterator[Record]:
    """Further records of the first task, most of which are not in the database."""
    measurement = Measurement(Status.OK, (1e-3,), 1e-3, 9e-4, 1.1e-3, 1e-7, provenance=machine())
    for schedule in _schedules(job.tasks[0], job.target, MORE, seed=1):
        yield Record(job.tasks[0].key, job.target.key, schedule, measurement)


def _speedup(done: float) -> float:
    return 4.0 - 3.0 * float(np.exp(-6.0 * done))


def _schedules(task: Task, target: Target, most: int, seed: int = 0) -> Iterator[Schedule]:
    """At most so many distinct legal schedules, the default first."""
    rng = np.random.default_rng(seed)
    default = default_schedule(task, target)
    remaining = most - 1
    yield default
    task_spaces = sorted(spaces(task, target), key=lambda space: space.size)
    for others, space in zip(range(len(task_spaces), 0, -1), task_spaces, strict=True):
        rows = space.sample(-(-remaining // others), rng)
        remaining -= len(rows)
        yield from (schedule for row in rows if (schedule := space.schedule(row)) != default)


def _write_trials(store: Store, job: LargeJob, say: Callable[[str], None]) -> None:
    """Write the missing trials. Indexes are dropped first and made in the end, which is faster."""
    indexes = TrialRow.__table__.indexes  # type: ignore[attr-defined]
    with store.database.write() as session:
        session.connection().exec_driver_sql(f"PRAGMA cache_size=-{CACHE_KB}")
        for index in indexes:
            index.drop(session.connection(), checkfirst=True)
    trials_a_task = int(job.trials * OTHERS_SHARE / max(len(job.tasks) - 1, 1))
    stored = 0
    for task in reversed(job.tasks):  # the first task gets the rest
        most = trials_a_task if task is not job.tasks[0] else job.trials - stored
        stored += _write_task(store, job, task, most, stored)
        say(f"{stored} trials; {task.op}")
    with store.database.write() as session:
        for index in indexes:
            index.create(session.connection(), checkfirst=True)
        update_bests(store.database, session, [(job.target.key, task.key) for task in job.tasks])
    say("indexes are there")


def _write_task(store: Store, job: LargeJob, task: Task, most: int, before: int) -> int:
    """Write the missing trials of a task, as far as there are schedules. Returns how many it has.

    `before`: trials of the job's earlier tasks.
    """
    with store.database.read() as session:
        stored = session.scalar(select(func.count()).where(TrialRow.task_key == task.key)) or 0
    rows, count = islice(_rows(job, task, most, before), stored, None), stored
    while batch := list(islice(rows, BATCH)):
        with store.database.write() as session:
            session.connection().execute(insert(TrialRow), batch)
        count += len(batch)
    return count


def _rows(job: LargeJob, task: Task, most: int, before: int) -> Iterator[dict[str, Any]]:
    """The columns of the trials of a task, whose times improve with their number."""
    rng = np.random.default_rng(before)
    noise, fails = rng.exponential(0.3, most + 1), rng.random(most + 1) < FAILED_SHARE
    shared = {
        "task_key": task.key,
        "target_key": job.target.key,
        "job_id": job.id,
        "build_s": 0.02,
        "object_sha256": "ab" * 32,
        "provenance": machine(),
    }
    for place, schedule in enumerate(_schedules(task, job.target, most)):
        time_s = round(1e-3 / _speedup(place / most) * (1.0 + noise[place]), 9)
        is_ok = place == 0 or not fails[place]
        outcome: dict[str, Any] = {"status": "crash", "error": "signal 11", "samples_s": [], "max_rel_err": None}
        if is_ok:
            outcome = {"status": "ok", "error": "", "samples_s": [time_s] * 5, "max_rel_err": 1e-7}
        yield (
            shared
            | outcome
            | {
                "schedule_key": schedule.key,
                "schedule": schedule.to_json(),
                "sketch": schedule.sketch,
                "sketch_version": schedule.version,
                "median_s": time_s if is_ok else None,
                "low_s": 0.98 * time_s if is_ok else None,
                "high_s": 1.03 * time_s if is_ok else None,
                "created_at": MOMENT + timedelta(seconds=(before + place) / RATE),
                "ordinal": before + place,
            }
        )


def _write_events(store: Store, job: LargeJob) -> None:
    """Write the events of a job: progress each second, what the machine did, and each task's improvements."""
    events: list[tuple[int, EventKind, dict[str, Any]]] = [(0, EventKind.STAGE, {"stage": "searching"})]
    for n, task in enumerate(job.tasks):
        about = {"task_key": task.key, "op": task.op, "default_ms": 1.0}
        events.append((n, EventKind.DEFAULT, about | {"best_ms": 1.0}))
        for trial in np.unique(np.geomspace(len(job.tasks), job.trials - 1, IMPROVEMENTS).astype(int)).tolist():
            data = about | {"best_ms": 1.0 / _speedup(trial / job.trials), "trial": trial}
            events.append((trial, EventKind.IMPROVED, data))
    events += [(trial, EventKind.PROGRESS, job.progress(trial)) for trial in range(RATE, job.trials + 1, RATE)]
    events += [(trial, EventKind.MACHINE, job.machine(trial)) for trial in range(LOOK, job.trials + 1, LOOK)]
    events.sort(key=lambda event: event[0])
    with store.database.write() as session:
        [before] = session.scalars(select(JobRow.events).where(JobRow.id == job.id))
        rows = [
            {
                "job_id": job.id,
                "number": number,
                "kind": kind.value,
                "data": data,
                "created_at": MOMENT + timedelta(seconds=trial / RATE),
            }
            for number, (trial, kind, data) in enumerate(events, before + 1)
        ]
        session.connection().execute(insert(EventRow), rows)
        job_values = {"events": before + len(rows), "spent_s": job.trials / RATE, "progress": job.progress(job.trials)}
        session.execute(update(JobRow).where(JobRow.id == job.id).values(**job_values))
