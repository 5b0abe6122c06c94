"""The view of the fleet: who is at work and how much of the time, what waits for whom, and what nobody has measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.fleet import Device, Tuner
from tunewright.db.jobs import JobState
from tunewright.db.sql_store import SqlStore
from tunewright.db.workload import Queue, Shift, Shifts
from tunewright.tuner.jobs.tenure import holder_name
from tunewright.workers.pool import has

from ..schemas import Answer
from .said import Said
from .targets import TargetName

WATCHED_S = 3600.0
"""How far back utilisation goes."""

MOST_TUNERS = 200
"""Processes that are listed: those longest at work."""

MOST_GAPS = 100
"""Tasks without a record that are listed."""

GAP_JOBS = 200
"""Jobs whose tasks are looked at: the newest ones."""


class FleetDevice(Answer):
    """A processor or GPU that candidates are timed on."""

    name: Said
    target: TargetName = Field(description="With all its threads.")
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then; null: it works.")
    reason: Said = Field(description="Of the quarantine.")


class FleetTuner(Answer):
    """A tuner process."""

    id: Said
    name: Said = Field(description="Host and number of the process, as jobs name who is at work on them.")
    pool: Said = Field(description="Where it measures: `local` or `ray`.")
    version: Said = Field(description="Of Tunewright.")
    started_at: datetime
    seen_at: datetime
    draining: bool = Field(description="It was asked to end, and takes no more jobs.")
    job: int | None = Field(description="The job it is at work on.")
    label: Said = Field(description="Of that job, for people.")
    busy_since: datetime | None = Field(description="When it took that job up; null where no event tells.")
    busy_share: float = Field(description="Which part of the time it had a job, of the last `watched_s` seconds.")
    watched_s: float = Field(description="An hour, or since it began.")
    devices: list[FleetDevice]


class HolderLine(Answer):
    """A process that has a job without being a tuner: a command such as `tunewright tune`."""

    name: Said
    job: int
    since: datetime


class QueueLine(Answer):
    """The unfinished jobs for a target."""

    target: TargetName
    queued: int
    running: int
    paused: int
    lost: int = Field(description="Of those running: their process went away, and another one takes them up.")
    oldest_at: datetime | None = Field(description="Since when the queued job that waits longest does.")
    tuners: int = Field(description="Processes that could take a job for it, busy ones too.")


class CoverageLine(Answer):
    """How much is known of a target."""

    target: TargetName
    tasks: int = Field(description="Tasks that there is a record of.")
    lacking: int = Field(description="Tasks among `gaps` that there is none of.")


class GapLine(Answer):
    """A task that a job asked for and that there is no record of."""

    task: Said = Field(description="Its key.")
    op: Said
    shape: Said
    target: TargetName
    job: int = Field(description="The newest job that asked for it.")


class FleetPage(Answer):
    """The tuner processes, the queue, and what is not covered."""

    at: datetime = Field(description="When this was so, by the database's clock.")
    tuners: list[FleetTuner] = Field(description="Those heard of in the last minute, the longest at work first.")
    tuner_count: int = Field(description="Tuner processes heard of, those that are not listed too.")
    busy: int = Field(description="Tuner processes that have a job.")
    busy_share: float | None = Field(description="Mean of theirs, by the time each was there; null without any.")
    holders: list[HolderLine]
    devices: int = Field(description="Of all tuner processes, each once.")
    quarantined: list[FleetDevice]
    queues: list[QueueLine]
    coverage: list[CoverageLine]
    gaps: list[GapLine] = Field(description="Of the newest jobs, the newest first.")
    gaps_are_cut: bool = Field(description="Whether there are more than are listed.")
    gap_jobs: int = Field(description="How many of the newest jobs were looked at.")


def fleet_page(store: SqlStore) -> FleetPage:
    """The fleet as it stands. Raises StoreError."""
    targets = {target.key: target for target in store.targets()}
    names = {key: str(target) for key, target in targets.items()}
    tuners, told = store.fleet.tuners(), store.workload.shifts(WATCHED_S)
    labels = {job.id: job.label for job in store.jobs.list([JobState.RUNNING], limit=2 * MOST_TUNERS)}
    lines = [_tuner(one, told, labels, names) for one in tuners[:MOST_TUNERS]]
    devices = {device.name: device for tuner in tuners for device in tuner.devices}
    watched_s = sum(line.watched_s for line in lines)
    gaps = store.known.coverage(GAP_JOBS, MOST_GAPS + 1)
    lacking = [
        GapLine(
            task=gap.task_key,
            op=gap.op,
            shape=gap.shape,
            target=TargetName.known(gap.target_key, names),
            job=gap.job_id,
        )
        for gap in gaps[:MOST_GAPS]
    ]
    return FleetPage(
        at=told.until,
        tuners=lines,
        tuner_count=len(tuners),
        busy=sum(tuner.job_id is not None for tuner in tuners),
        busy_share=sum(line.busy_share * line.watched_s for line in lines) / watched_s if watched_s else None,
        holders=_others(told.shifts, tuners),
        devices=len(devices),
        quarantined=[line for device in devices.values() if (line := _device(device, told.until, names)).reason],
        queues=[_queue(queue, tuners, targets, told.until) for queue in store.workload.queues()],
        coverage=_coverage(store.known.covered(), lacking, names),
        gaps=lacking,
        gaps_are_cut=len(gaps) > MOST_GAPS,
        gap_jobs=GAP_JOBS,
    )


def _tuner(tuner: Tuner, told: Shifts, labels: Mapping[int, str], names: Mapping[str, str]) -> FleetTuner:
    since = max(told.since, tuner.started_at)
    own = [
        shift
        for shift in told.shifts
        if shift.holder == holder_name(tuner.host, tuner.pid) and (shift.ended_at or told.until) > since
    ]
    watched_s = max((told.until - since).total_seconds(), 0.0)
    busy_s = sum(((shift.ended_at or told.until) - max(shift.begun_at, since)).total_seconds() for shift in own)
    current = next((shift for shift in own if shift.job_id == tuner.job_id and shift.ended_at is None), None)
    return FleetTuner(
        id=tuner.id,
        name=holder_name(tuner.host, tuner.pid),
        pool=tuner.pool,
        version=tuner.version,
        started_at=tuner.started_at,
        seen_at=tuner.seen_at,
        draining=tuner.draining,
        job=tuner.job_id,
        label=labels.get(tuner.job_id or 0, ""),
        busy_since=current.begun_at if current else None,
        busy_share=min(busy_s / watched_s, 1.0) if watched_s else 0.0,
        watched_s=watched_s,
        devices=[_device(device, told.until, names) for device in tuner.devices],
    )


def _is_resting(device: Device, now: datetime) -> bool:
    return device.quarantined_until is not None and device.quarantined_until > now


def _device(device: Device, now: datetime, names: Mapping[str, str]) -> FleetDevice:
    """A device; of a quarantine that is over nothing is told."""
    resting = _is_resting(device, now)
    return FleetDevice(
        name=device.name,
        target=TargetName.known(device.target_key, names),
        quarantined_until=device.quarantined_until if resting else None,
        reason=(device.reason or "no reason was given") if resting else "",
    )


def _others(shifts: Iterable[Shift], tuners: Iterable[Tuner]) -> list[HolderLine]:
    """The shifts that go on of processes which are no tuners."""
    known = {holder_name(tuner.host, tuner.pid) for tuner in tuners}
    others = [shift for shift in shifts if shift.ended_at is None and shift.holder not in known]
    return [HolderLine(name=shift.holder, job=shift.job_id, since=shift.begun_at) for shift in others[:MOST_TUNERS]]


def _queue(queue: Queue, tuners: Iterable[Tuner], targets: Mapping[str, Target], now: datetime) -> QueueLine:
    able = 0
    target = targets.get(queue.target_key)
    for tuner in tuners:
        usable = [targets.get(device.target_key) for device in tuner.devices if not _is_resting(device, now)]
        if not tuner.draining:
            able += any(device is not None and (target is None or has(device, target)) for device in usable)
    return QueueLine(
        target=TargetName(key=queue.target_key, name="") if target is None else TargetName.of(target),
        queued=queue.queued,
        running=queue.running,
        paused=queue.paused,
        lost=queue.lost,
        oldest_at=queue.oldest_at,
        tuners=able,
    )


def _coverage(covered: Mapping[str, int], gaps: Iterable[GapLine], names: Mapping[str, str]) -> list[CoverageLine]:
    """All targets that something is known or lacking of, those that most is known of first."""
    lacking: dict[str, int] = {}
    for gap in gaps:
        lacking[gap.target.key] = lacking.get(gap.target.key, 0) + 1
    keys = sorted({*covered, *lacking}, key=lambda key: (-covered.get(key, 0), key))
    return [
        CoverageLine(target=TargetName.known(key, names), tasks=covered.get(key, 0), lacking=lacking.get(key, 0))
        for key in keys
    ]
