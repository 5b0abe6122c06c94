"""History: what happened to the jobs that are being looked at, read once and kept, so that a look costs what is new.

A long job tells its progress tens of thousands of times, and most of that nobody needs to see: a sample of it is kept.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tunewright.db.jobs import UNFINISHED, Event, EventKind, Job, Jobs
from tunewright.db.trials import TrialLog
from tunewright.search_space.measurement import Status
from tunewright.tuner.insight import told

READ_AT_ONCE = 2000
"""Events."""

MOST_PROGRESS = 400
"""Moments of progress of a job that are kept, and twice as many for a while."""

MOST_EVENTS = 50_000
"""Other events of a job that are kept; beyond that older improvements are thinned."""

MOST_IN_ALL = 100_000
"""Events of all jobs that are kept, but for those of the job that was looked at last."""

COUNTING_SHARE = 0.05
"""The most of a viewer's time in which the trials of a job that goes on are counted."""

QUICK_S = 0.05
"""What takes no longer than this is counted at each look."""

KEPT_OF_PROGRESS = ("stage", "trials", "spent_s", "speedup")

OTHERS = frozenset(EventKind) - {EventKind.PROGRESS}

OF_TASKS = frozenset({EventKind.DEFAULT, EventKind.IMPROVED, EventKind.CONFIRMED})
"""Events that tell times of a task."""

Counts = Mapping[str, Mapping[Status, int]]
"""Task key -> how the job's trials of it ended."""


@dataclass(frozen=True, slots=True)
class Times:
    """What was told of a task's times; None where nothing was."""

    default_ms: float | None = None
    best_ms: float | None = None
    first_ms: float | None = None  # the best as the job began
    improved_trial: int | None = None  # of the last improvement, from 1 on
    is_confirmed: bool = False  # whether they were taken side by side, in fresh processes; else they are of trials
    default_interval_ms: tuple[float, float] | None = None
    best_interval_ms: tuple[float, float] | None = None
    noise: str = ""  # why the machine was too busy to rely on them

    @staticmethod
    def of_report(entry: Mapping[str, Any]) -> Times:
        """What a job's report says of a task."""
        return Times(
            told.number(entry, "default_ms"),
            told.number(entry, "best_ms"),
            is_confirmed=entry.get("confirmed") is not False,
            default_interval_ms=told.interval(entry, "default_interval_ms"),
            best_interval_ms=told.interval(entry, "best_interval_ms"),
            noise=told.word(entry, "noise"),
        )

    def after(self, event: Event) -> Times:
        """What is told once an event of the task is: a default, an improvement or a confirmation."""
        default_ms, best_ms = told.number(event.data, "default_ms"), told.number(event.data, "best_ms")
        first_ms, improved_trial = self.first_ms, self.improved_trial
        if event.kind is EventKind.DEFAULT and best_ms is not None:
            first_ms = best_ms if first_ms is None else first_ms
            best_ms = best_ms if self.best_ms is None else min(best_ms, self.best_ms)
        if event.kind is EventKind.IMPROVED and (trial := told.number(event.data, "trial")) is not None:
            improved_trial = int(trial) + 1
        return Times(
            self.default_ms if default_ms is None else default_ms,
            self.best_ms if best_ms is None else best_ms,
            first_ms,
            improved_trial,
            event.kind is EventKind.CONFIRMED,
        )


@dataclass(frozen=True, slots=True)
class History:
    """What happened to a job up to a moment."""

    events: tuple[Event, ...]  # all but the progress, in order; without reports
    spine: tuple[Event, ...]  # those that are about no task, and a sample of the progress, in order
    of_tasks: Mapping[str, tuple[Event, ...]]  # the others, in order, by task key
    times: Mapping[str, Times]  # by task key, what they come to
    newest: int  # number of the newest event
    expected: Mapping[str, Any]  # the newest progress that told what more budget would bring; empty: none did
    counts: Counts


class Histories:
    """The histories of the jobs of one database that were looked at last. Threads may share them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Reading] = OrderedDict()

    def of(self, job: Job, jobs: Jobs, trials: TrialLog) -> History:
        """The history of a job by now. Raises NotFound, StoreError."""
        with self._lock:
            reading = self._kept.setdefault(job.id, _Reading(job.id, self._clock))
            self._kept.move_to_end(job.id)
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_IN_ALL:
                self._kept.popitem(last=False)
        with reading.lock:
            reading.read(jobs)
            return reading.history(reading.count(job, trials))


@dataclass(slots=True)
class _Reading:
    """What was read of one job."""

    job_id: int
    clock: Callable[[], float]
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: int = 0
    every: int = 1  # of the progress, events whose number this divides are kept
    others: list[Event] = field(default_factory=list)
    progress: list[Event] = field(default_factory=list)
    of_tasks: Mapping[str, tuple[Event, ...]] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    counted_of: datetime | None = None  # when the job had changed last as its trials were counted
    count_again_s: float = 0.0

    def __len__(self) -> int:
        return len(self.others) + len(self.progress)

    def history(self, counts: Counts) -> History:
        alone = (event for event in self.others if event.kind not in OF_TASKS)
        spine = sorted([*alone, *self.progress], key=lambda event: event.number)
        return History(tuple(self.others), tuple(spine), self.of_tasks, self.times, self.newest, self.expected, counts)

    def read(self, jobs: Jobs) -> None:
        """Read what is new."""
        newest = jobs.newest_event(self.job_id)
        if newest == self.newest:
            return
        while newest > self.every * 2 * MOST_PROGRESS:
            self.every *= 2
        self.progress = [event for event in self.progress if event.number % self.every == 0]
        others = self._new(jobs, newest, OTHERS, 1)
        self.others += others
        self._sort(others)
        self.progress += self._new(jobs, newest, {EventKind.PROGRESS}, self.every)
        self._thin()
        self.newest = newest

    def _new(self, jobs: Jobs, newest: int, kinds: frozenset[EventKind] | set[EventKind], every: int) -> list[Event]:
        found: list[Event] = []
        after, is_more = self.newest, True
        while is_more:
            page = jobs.events(self.job_id, after, READ_AT_ONCE, kinds=kinds, every=every)
            found += (self._slim(event) for event in page if event.number <= newest)
            is_more = len(page) == READ_AT_ONCE and page[-1].number < newest
            after = page[-1].number if page else after
        return found

    def _sort(self, events: Sequence[Event]) -> None:
        """Take in what was told of tasks. What was given out before stays as it is."""
        added: dict[str, list[Event]] = {}
        times = dict(self.times)
        for event in events:
            if event.kind in OF_TASKS:
                key = told.word(event.data, "task_key")
                added.setdefault(key, []).append(event)
                times[key] = times.get(key, Times()).after(event)
        self.times = times
        self.of_tasks = {**self.of_tasks, **{key: (*self.of_tasks.get(key, ()), *new) for key, new in added.items()}}

    def _slim(self, event: Event) -> Event:
        """An event without what is long."""
        match event.kind:
            case EventKind.PROGRESS:
                if told.number(event.data, "again_gain") is not None:
                    self.expected = event.data
                return replace(event, data={name: event.data.get(name) for name in KEPT_OF_PROGRESS})
            case EventKind.SUCCEEDED:  # the job has the report too
                return replace(event, data={})
            case _:
                return event

    def _thin(self) -> None:
        """Leave out each second improvement of the older half where there are too many: curves lose steps, no level."""
        while len(self.others) > MOST_EVENTS:
            older = len(self.others) // 2
            places = [n for n, event in enumerate(self.others[:older]) if event.kind is EventKind.IMPROVED]
            if len(places) < 2:
                return
            gone = set(places[::2])
            self.others = [event for n, event in enumerate(self.others) if n not in gone]
            times, self.times, self.of_tasks = self.times, {}, {}
            self._sort(self.others)
            self.times = times

    def count(self, job: Job, trials: TrialLog) -> Counts:
        """How the job's trials ended; of a job that goes on as they had a moment ago, where counting takes long."""
        is_over = job.state not in UNFINISHED
        if job.updated_at != self.counted_of and (is_over or self.clock() >= self.count_again_s):
            begun_s = self.clock()
            self.counts, self.counted_of = trials.counts(job.id), job.updated_at
            ended_s = self.clock()
            took_s = ended_s - begun_s
            self.count_again_s = ended_s + took_s / COUNTING_SHARE if took_s > QUICK_S else ended_s
        return self.counts
