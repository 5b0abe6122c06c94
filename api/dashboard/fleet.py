"""The page of the fleet: who is at work and how much of the time, what waits for whom, and what nobody has measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from fastapi import APIRouter
from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.best import TaskCounts
from tunewright.db.fleet import Tuner, TunerDevice, TunerWish
from tunewright.db.job import JobState
from tunewright.db.store import Store
from tunewright.db.workload import Shift, Shifts, TargetQueue
from tunewright.tuner.search.lease_keeper import holder_name
from tunewright.tuner.text import clock
from tunewright.workers.pool import can_time

from ..http.schemas.base import Answer
from ..http.service import ServiceDep
from .page import add_page
from .views import TargetName, Text

router = APIRouter(tags=["pages"])

WATCHED_S = 3600.0
"""How far back utilisation goes."""

HOUR = "the last hour"
"""That in words."""

MOST_TUNERS = 200
"""Processes that are listed: those longest at work."""

MOST_OFFERED = 500
"""Devices that a form offers."""

MOST_GAPS = 100
"""Tasks without a record of this fleet that are listed."""

GAP_JOBS = 200
"""Jobs whose tasks are looked at: the newest ones."""


class DeviceOrdered(StrEnum):
    """What people want of a device."""

    REST = "rest"  # be left alone for a while
    LIFT = "lift"  # be used again


class FleetDevice(Answer):
    """A processor or GPU that candidates are timed on."""

    name: Text
    target: TargetName = Field(description="With all its threads.")
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then; null: it works.")
    reason: Text = Field(description="Of the quarantine.")
    order: DeviceOrdered | None = Field(description="What people ordered of it and it has not heard of yet.")


class FleetTuner(Answer):
    """A tuner process."""

    id: Text
    name: Text = Field(description="Host and number of the process, as jobs name who is at work on them.")
    pool: Text = Field(description="Where it measures: `local` or `ray`.")
    version: Text = Field(description="Of Tunewright.")
    started_at: datetime
    seen_at: datetime
    draining: bool = Field(description="It was asked to end, and takes no more jobs.")
    wish: TunerWish | None = Field(description="What people asked it for; it hears of that with its next report.")
    job: int | None = Field(description="The job it is at work on.")
    label: Text = Field(description="Of that job, for people.")
    busy_since: datetime | None = Field(description="When it took that job up; null where no event tells.")
    busy_share: float = Field(description="Which part of the time it had a job, of the last `watched_s` seconds.")
    watched_s: float = Field(description="An hour, or since it began.")
    devices: list[FleetDevice]

    @property
    def period_text(self) -> str:
        """The time that its utilisation is of, for people."""
        return HOUR if round(self.watched_s) >= WATCHED_S else f"{clock(self.watched_s)} since it began"


class HolderLine(Answer):
    """A process that has a job without being a tuner: a command such as `tunewright tune`."""

    name: Text
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
    """How much is known of a target that processes here have or had, or that a job asked for."""

    target: TargetName
    tasks: int = Field(description="Tasks of which something usable was timed here.")
    imported: int = Field(description="The others that there is a record of, which were imported.")
    lacking: int = Field(description="Tasks among `gaps` of which nothing usable was timed here.")


class GapLine(Answer):
    """A task that a job asked for and of which nothing usable was timed here."""

    task: Text = Field(description="Its key.")
    op: Text
    shape: Text
    target: TargetName
    job: int = Field(description="The newest job that asked for it.")
    is_imported: bool = Field(description="Whether there is an imported record of it, timed elsewhere.")


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
    offered: list[Text] = Field(description="Names of devices that are none in quarantine.")
    queues: list[QueueLine]
    coverage: list[CoverageLine]
    gaps: list[GapLine] = Field(description="Of the newest jobs, the newest first.")
    gaps_are_cut: bool = Field(description="Whether there are more than are listed.")
    gap_jobs: int = Field(description="How many of the newest jobs were looked at.")

    @property
    def period_text(self) -> str:
        """The time that the utilisation of all tuner processes is of, for people."""
        periods = list(dict.fromkeys(tuner.period_text for tuner in self.tuners)) or [HOUR]
        return periods[0] if len(periods) == 1 else f"{HOUR}, or since each began"


@add_page(router, "/fleet", "fleet.html", summary="The fleet")
def fleet(service: ServiceDep) -> FleetPage:
    """The tuner processes and their devices, how much of the last hour each had a job, the queue of each target, and
    which tasks of the newest jobs have no record on their target that was timed here.
    """
    store = service.store
    targets = {target.key: target for target in store.targets()}
    names = {key: str(target) for key, target in targets.items()}
    tuners, log = store.fleet.tuners(), store.workload.shifts(WATCHED_S)
    labels = {job.id: job.label for job in store.jobs.list([JobState.RUNNING], limit=2 * MOST_TUNERS)}
    lines = [_tuner(process, log, labels, names) for process in tuners[:MOST_TUNERS]]
    devices = {device.name: _device(device, tuner, log.until, names) for tuner in tuners for device in tuner.devices}
    watched_s = sum(line.watched_s for line in lines)
    gaps = store.catalog.gaps(GAP_JOBS, MOST_GAPS + 1)
    lacking = [
        GapLine.show(gap, task=gap.task_key, target=TargetName.known(gap.target_key, names), job=gap.job_id)
        for gap in gaps[:MOST_GAPS]
    ]
    return FleetPage(
        at=log.until,
        tuners=lines,
        tuner_count=len(tuners),
        busy=sum(tuner.job_id is not None for tuner in tuners),
        busy_share=sum(line.busy_share * line.watched_s for line in lines) / watched_s if watched_s else None,
        holders=_others(log.shifts, tuners),
        devices=len(devices),
        quarantined=[device for device in devices.values() if device.reason],
        offered=[device.name for device in devices.values() if not device.reason][:MOST_OFFERED],
        queues=[_queue(queue, tuners, targets, log.until) for queue in store.workload.queues()],
        coverage=_coverage(store, lacking, names),
        gaps=lacking,
        gaps_are_cut=len(gaps) > MOST_GAPS,
        gap_jobs=GAP_JOBS,
    )


def _tuner(tuner: Tuner, log: Shifts, labels: Mapping[int, str], names: Mapping[str, str]) -> FleetTuner:
    since = max(log.since, tuner.started_at)
    own = [
        shift
        for shift in log.shifts
        if shift.holder == holder_name(tuner.host, tuner.pid) and (shift.ended_at or log.until) > since
    ]
    watched_s = max((log.until - since).total_seconds(), 0.0)
    busy_s = sum(((shift.ended_at or log.until) - max(shift.begun_at, since)).total_seconds() for shift in own)
    current = next((shift for shift in own if shift.job_id == tuner.job_id and shift.ended_at is None), None)
    return FleetTuner.show(
        tuner,
        name=holder_name(tuner.host, tuner.pid),
        job=tuner.job_id,
        label=labels.get(tuner.job_id or 0, ""),
        busy_since=current.begun_at if current else None,
        busy_share=min(busy_s / watched_s, 1.0) if watched_s else 0.0,
        watched_s=watched_s,
        devices=[_device(device, tuner, log.until, names) for device in tuner.devices],
    )


def _is_resting(device: TunerDevice, now: datetime) -> bool:
    return device.quarantined_until is not None and device.quarantined_until > now


def _device(device: TunerDevice, tuner: Tuner, now: datetime, names: Mapping[str, str]) -> FleetDevice:
    """A device of a process; of a quarantine that is over nothing is told."""
    resting = _is_resting(device, now)
    return FleetDevice(
        name=device.name,
        target=TargetName.known(device.target_key, names),
        quarantined_until=device.quarantined_until if resting else None,
        reason=(device.reason or "no reason was given") if resting else "",
        order=_order(device, tuner),
    )


def _order(device: TunerDevice, tuner: Tuner) -> DeviceOrdered | None:
    """What was ordered of a device since its process reported last."""
    for order in tuner.orders:
        if order.device == device.name and order.given_at >= tuner.seen_at:
            return DeviceOrdered.LIFT if order.until is None else DeviceOrdered.REST
    return None


def _others(shifts: Iterable[Shift], tuners: Iterable[Tuner]) -> list[HolderLine]:
    """The shifts that go on of processes which are no tuners."""
    tuner_names = {holder_name(tuner.host, tuner.pid) for tuner in tuners}
    others = [shift for shift in shifts if shift.ended_at is None and shift.holder not in tuner_names]
    return [HolderLine(name=shift.holder, job=shift.job_id, since=shift.begun_at) for shift in others[:MOST_TUNERS]]


def _queue(queue: TargetQueue, tuners: Iterable[Tuner], targets: Mapping[str, Target], now: datetime) -> QueueLine:
    able = 0
    target = targets.get(queue.target_key)
    for tuner in tuners:
        usable = [targets.get(device.target_key) for device in tuner.devices if not _is_resting(device, now)]
        if not tuner.draining:
            able += any(device is not None and (target is None or can_time(device, target)) for device in usable)
    name = TargetName(key=queue.target_key, name="") if target is None else TargetName.of(target)
    return QueueLine.show(queue, target=name, tuners=able)


def _coverage(store: Store, gaps: Iterable[GapLine], names: Mapping[str, str]) -> list[CoverageLine]:
    """All targets that can be tuned for, and those that something is lacking of; those that most is known of first."""
    usable = {target.key for target in store.fleet.all_targets()}
    covered = {key: count for key, count in store.catalog.task_counts().items() if key in usable}
    lacking = Counter(gap.target.key for gap in gaps)
    counts = {key: covered.get(key, TaskCounts(0, 0)) for key in {*covered, *lacking}}
    return [
        CoverageLine.show(count, target=TargetName.known(key, names), tasks=count.timed, lacking=lacking[key])
        for key, count in sorted(counts.items(), key=lambda entry: (-entry[1].timed, entry[0]))
    ]
