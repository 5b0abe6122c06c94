"""Curves of a job from its events: the times of tasks and the speed-up of the model over trials and seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log
from typing import NamedTuple

from tunewright.db.job import Event, EventKind

from ..units import in_s
from . import values

MOST_POINTS = 300
"""Points of the whole model's curve."""

AT_WORK = frozenset(
    {
        EventKind.STARTED,
        EventKind.STAGE,
        EventKind.DEFAULT,
        EventKind.IMPROVED,
        EventKind.PROGRESS,
        EventKind.CONFIRMED,
        EventKind.REGRESSED,
    }
)
"""Events of a process that works on the job."""

ENDS = frozenset({EventKind.PAUSED, EventKind.RETURNED, EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED})
"""Events that end a process's work on a job."""


NOISES = ("noise", "default_noise", "apart_noise")
"""Why a gain told by an event can't be relied on: either time can't, or they are of different moments."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A trial that was faster than the best of its task before: see `Store.best`."""

    trial: int  # of the job, from 1 on
    at_s: float  # see `active_s`
    best_s: float
    is_noisy: bool = False  # whether the machine was too busy to rely on it
    default_s: float | None = None  # as it was told beside it


class Speedup(NamedTuple):
    """The known speed-up of the whole model over default schedules."""

    trials: int  # of the job, done
    at_s: float  # see `active_s`
    speedup: float
    is_noisy: bool = False  # whether the machine was too busy to rely on it
    is_tried: bool = True  # whether a trial is in it, which nothing has confirmed


def active_s(events: Sequence[Event], until: datetime) -> float:
    """Seconds in which a process was at work on a job, up to a moment; `events` are those of the job, in order.

    A process that went away without a word has worked until the last that it told: when it was missed says nothing.
    Here as below some of the progress may be left out.
    """
    return _Clock(events).at_s(until)


def work_seconds(events: Sequence[Event], moments: Iterable[datetime]) -> list[float]:
    """`active_s` of several moments."""
    clock = _Clock(events)
    return [clock.at_s(moment) for moment in moments]


def improvements(events: Sequence[Event]) -> dict[str, list[Improvement]]:
    """The improvements by task key, from the events of a job in order: trials and seconds ascend, times descend.

    What was known before the job, and the default, are no improvements: events of kind DEFAULT tell of these. Here as
    below, events that tell no usable numbers are passed over.
    """
    clock = _Clock(events)
    by_task: dict[str, list[Improvement]] = {}
    for event, moment in _moments(events):
        if event.kind is EventKind.IMPROVED:
            trial, best_ms = values.number(event.data, "trial"), values.number(event.data, "best_ms")
            if trial is not None and best_ms:
                is_noisy = any(values.word(event.data, name) for name in NOISES)
                default_s = in_s(values.number(event.data, "default_ms"))
                improvement = Improvement(int(trial) + 1, clock.at_s(moment), best_ms / 1e3, is_noisy, default_s)
                by_task.setdefault(values.word(event.data, "task_key"), []).append(improvement)
    return by_task


def speedups(events: Sequence[Event], most: int = MOST_POINTS) -> list[Speedup]:
    """The whole model's speed-up whenever it was told, of the events of a job in order.

    Thinned to the first, the last and every change. Where these are more than `most` points, changes by less than some
    factor are left out: at no time is a curve through the others off by more than that.
    """
    clock = _Clock(events)
    points = []
    for event, moment in _moments(events):
        trials, speedup = values.number(event.data, "trials"), values.number(event.data, "speedup")
        if event.kind is EventKind.PROGRESS and trials is not None and speedup:
            is_noisy, is_tried = bool(values.word(event.data, "noise")), event.data.get("is_tried") is not False
            points.append(Speedup(int(trials), clock.at_s(moment), speedup, is_noisy, is_tried))
    return _thin(points, most)


def _thin(points: Sequence[Speedup], most: int) -> list[Speedup]:
    least = 0.0
    while len(changes := _changes(points, least)) > max(most, 2):
        least = max(2 * least, 1e-4)
    return changes


def _changes(points: Sequence[Speedup], least: float) -> list[Speedup]:
    """The first, the last, and those that are off the one kept before them by more than so much of a factor's log."""
    changes = list(points[:1])
    for point in points[1:]:
        if abs(log(point.speedup / changes[-1].speedup)) > least:
            changes.append(point)
    return changes if changes and changes[-1] is points[-1] else [*changes, *points[-1:]]


def _moments(events: Sequence[Event]) -> Iterator[tuple[Event, datetime]]:
    """The events, and when they were told: never before one of a lower number, whatever the database's clock did."""
    last: datetime | None = None
    for event in events:
        last = event.created_at if last is None else max(last, event.created_at)
        yield event, last


class _Clock:
    """Counts the seconds in which a process was at work."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._begun: list[datetime] = []  # of each spell of work
        self._over: list[datetime | None] = []  # None: it is going on
        self._before_s = [0.0]  # seconds of all spells before
        for begin, end in _work_intervals(events):
            self._begun.append(begin)
            self._over.append(end)
            self._before_s.append(self._before_s[-1] + ((end - begin).total_seconds() if end else 0.0))

    def at_s(self, moment: datetime) -> float:
        """The seconds of work up to a moment."""
        spell = bisect_right(self._begun, moment) - 1
        if spell < 0:
            return 0.0
        end = self._over[spell]
        last = moment if end is None else min(moment, end)
        return self._before_s[spell] + (last - self._begun[spell]).total_seconds()


def _work_intervals(events: Sequence[Event]) -> Iterator[tuple[datetime, datetime | None]]:
    """When a process began to work, and when it ended; None for one that is at it."""
    begin: datetime | None = None
    last: datetime | None = None  # the last that was heard of it
    for event, moment in _moments(events):
        is_gone = event.kind in (EventKind.STARTED, EventKind.LOST)  # whoever had it before is gone, missed or not
        if begin is not None and last is not None and (is_gone or event.kind in ENDS):
            yield begin, last if is_gone else moment
            begin = None
        if event.kind is EventKind.STARTED:
            begin = moment
        if event.kind in AT_WORK:
            last = moment
    if begin is not None:
        yield begin, None
