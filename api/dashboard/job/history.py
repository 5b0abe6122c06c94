"""History: the events of jobs whose pages are open, cached so that each view reads only new ones.

A long job reports progress tens of thousands of times: a sample of that is kept. What its machine did is kept as some
hundred spans.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from math import inf
from typing import Any, cast

from fastapi import Request
from pydantic import Field

from tunewright.db.job import GRAPH, UNFINISHED, Event, EventKind, Job, JobState
from tunewright.db.jobs import Jobs
from tunewright.db.trials import TrialLog
from tunewright.search_space.measurement import FAILED, Status
from tunewright.tuner.explain import values
from tunewright.tuner.explain.curves import NOISES, active_s
from tunewright.tuner.explain.gain import task_gain_interval
from tunewright.tuner.explain.machine_record import MachineRecord, SpanEnd, span_of
from tunewright.tuner.explain.regression import regression_words
from tunewright.tuner.noise import total_noise
from tunewright.tuner.search.stage import STAGES

from ...http.schemas.base import Answer
from ..views import Text

READ_AT_ONCE = 2000
"""Events read in one query."""

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

KEPT_OF_PROGRESS = ("stage", "trials", "spent_s", "speedup", "noise", "is_tried")

OTHERS = frozenset(EventKind) - {EventKind.PROGRESS, EventKind.MACHINE}

OF_TASKS = frozenset({EventKind.DEFAULT, EventKind.IMPROVED, EventKind.CONFIRMED})
"""Events with times of a task."""

Counts = Mapping[str, Mapping[Status, int]]
"""Task key -> how the job's trials of it ended."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a task; None where they are not known."""

    default_ms: float | None = None
    best_ms: float | None = None
    improved_trial: int | None = None  # of the last improvement, from 1 on
    is_confirmed: bool = False  # whether they were taken side by side, in fresh processes; else the best's is a trial's
    is_default_confirmed: bool = False  # whether that of the default is of such a comparison, too
    default_interval_ms: tuple[float, float] | None = None
    best_interval_ms: tuple[float, float] | None = None
    noise: str = ""  # why the machine was too busy to rely on them

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """The interval of their ratio."""
        edges = self.default_interval_ms, self.best_interval_ms
        return task_gain_interval(self.default_ms, self.best_ms, *edges, self.is_confirmed)

    @staticmethod
    def of_report(entry: Mapping[str, Any]) -> Times:
        """The times of a task in a job's report, or in an event."""
        is_confirmed = entry.get("confirmed") is not False
        return Times(
            values.number(entry, "default_ms"),
            values.number(entry, "best_ms"),
            is_confirmed=is_confirmed,
            is_default_confirmed=is_confirmed,
            default_interval_ms=values.interval(entry, "default_interval_ms"),
            best_interval_ms=values.interval(entry, "best_interval_ms"),
            noise=values.word(entry, "noise"),
        )

    def confirmed(self, told: Mapping[str, Any]) -> Times:
        """Those of a confirmation, as an event tells it, after these of trials."""
        return replace(Times.of_report(told), improved_trial=self.improved_trial)

    def by_event(self, event: Event) -> Times:
        """Those that an event of the task tells, after these of trials: as confirmed where it has such."""
        if event.kind is EventKind.CONFIRMED:
            return self.confirmed(event.data)
        earlier = event.data.get("confirmed")  # by jobs before this one
        return self.confirmed(earlier) if isinstance(earlier, Mapping) else self.after(event)

    def after(self, event: Event) -> Times:
        """The times of trials after an event of the task: a default or an improvement."""
        default_ms, best_ms = values.number(event.data, "default_ms"), values.number(event.data, "best_ms")
        improved_trial = self.improved_trial
        if event.kind is EventKind.DEFAULT and best_ms is not None:
            best_ms = best_ms if self.best_ms is None else min(best_ms, self.best_ms)
        if event.kind is EventKind.IMPROVED and (trial := values.number(event.data, "trial")) is not None:
            improved_trial = int(trial) + 1
        return Times(
            self.default_ms if default_ms is None else default_ms,
            self.best_ms if best_ms is None else best_ms,
            improved_trial,
            is_default_confirmed=event.data.get("default_confirmed") is True,
            default_interval_ms=values.interval(event.data, "default_interval_ms"),  # older events have none
            best_interval_ms=values.interval(event.data, "best_interval_ms"),
            noise=event_noise(event),
        )


def event_noise(event: Event) -> str:
    """Why the times that an event tells can't be relied on; empty where they can."""
    return total_noise(values.word(event.data, name) for name in NOISES)


def event_task(event: Event, ops: Mapping[str, str]) -> dict[str, Any]:
    """What an event is about, as lines tell it: `key` and `op` of its task, and its `trial`, from 1 on."""
    key, trial = values.word(event.data, "task_key"), values.number(event.data, "trial")
    return {
        "key": key,
        "op": ops.get(key) or values.word(event.data, "op"),
        "trial": None if trial is None else int(trial) + 1,
    }


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The events of a job up to a moment."""

    events: tuple[Event, ...]  # all but the progress, in order; without reports
    spine: tuple[Event, ...]  # those that are about no task, and a sample of the progress, in order
    of_tasks: Mapping[str, tuple[Event, ...]]  # the others, in order, by task key
    tried: Mapping[str, Times]  # by task key, what they come to by trials
    times: Mapping[str, Times]  # likewise, or as confirmed where nothing faster was found since
    newest: int  # number of the newest event
    expected: Mapping[str, Any]  # the newest progress that told what more budget would bring; empty: none did
    counts: Counts
    machine: tuple[SpanEnd, ...] = ()  # what the machine that measured did meanwhile, in order

    @property
    def trials(self) -> int:
        """How many there were, of all tasks."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    @property
    def voided(self) -> int:
        """How many of them people took back."""
        return sum(counts.get(Status.VOIDED, 0) for counts in self.counts.values())

    def searched_s(self, job: Job) -> float:
        """Seconds in which a process was at work on the job, up to now where it goes on."""
        return active_s(self.spine, datetime.now(UTC) if job.state in UNFINISHED else job.updated_at)


class Histories:
    """The histories of the jobs of one database that were looked at last. Threads may share them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _JobReader] = OrderedDict()

    def of(self, job: Job, jobs: Jobs, trials: TrialLog) -> JobHistory:
        """The history of a job by now. Raises NotFound, StoreError."""
        with self._lock:
            reading = self._kept.setdefault(job.id, _JobReader(job.id, self._clock))
            self._kept.move_to_end(job.id)
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_IN_ALL:
                self._kept.popitem(last=False)
        with reading.lock:
            reading.read(jobs)
            return reading.history(reading.count(job, trials))


async def histories_of(request: Request) -> Histories:
    """The histories of the jobs that people look at."""
    return cast("Histories", request.app.state.histories)


@dataclass(slots=True)
class _JobReader:
    """The events read of one job so far."""

    job_id: int
    clock: Callable[[], float]
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: int = 0
    every: int = 1  # of the progress, events whose number this divides are kept
    others: list[Event] = field(default_factory=list)
    progress: list[Event] = field(default_factory=list)
    of_tasks: Mapping[str, tuple[Event, ...]] = field(default_factory=dict)
    tried: Mapping[str, Times] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    machine: MachineRecord = field(default_factory=MachineRecord)
    counts: Counts = field(default_factory=dict)
    counted_of: tuple[datetime, int] | None = None  # when the job had changed last, and the newest void, at that count
    count_again_s: float = 0.0

    def __len__(self) -> int:
        return len(self.others) + len(self.progress) + len(self.machine.ends)

    def history(self, counts: Counts) -> JobHistory:
        alone = (event for event in self.others if event.kind not in OF_TASKS)
        spine = sorted([*alone, *self.progress], key=lambda event: event.number)
        return JobHistory(
            tuple(self.others),
            tuple(spine),
            self.of_tasks,
            self.tried,
            self.times,
            self.newest,
            self.expected,
            counts,
            tuple(self.machine.ends),
        )

    def read(self, jobs: Jobs) -> None:
        """Read new events."""
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
        for event in self._new(jobs, newest, {EventKind.MACHINE}, 1):
            if (span := span_of(event.data)) is not None:
                self.machine.add(event.created_at, span)
        self._thin()
        self.newest = newest

    def _new(self, jobs: Jobs, newest: int, kinds: frozenset[EventKind] | set[EventKind], every: int) -> list[Event]:
        events: list[Event] = []
        after, is_more = self.newest, True
        while is_more:
            page = jobs.events(self.job_id, after, READ_AT_ONCE, kinds=kinds, every=every)
            events += (self._slim(event) for event in page if event.number <= newest)
            is_more = len(page) == READ_AT_ONCE and page[-1].number < newest
            after = page[-1].number if page else after
        return events

    def _sort(self, events: Sequence[Event]) -> None:
        """Sort events of tasks in. Histories returned before stay as they are."""
        added: dict[str, list[Event]] = {}
        tried, times = dict(self.tried), dict(self.times)
        for event in events:
            if event.kind not in OF_TASKS:
                continue
            key = values.word(event.data, "task_key")
            added.setdefault(key, []).append(event)
            by_trials, known = tried.get(key, Times()), times.get(key, Times())
            told = by_trials.by_event(event)
            if event.kind is not EventKind.CONFIRMED:
                tried[key] = by_trials.after(event)
            # Another process tells defaults again.
            if told.is_confirmed or event.kind is EventKind.IMPROVED or not known.is_confirmed:
                times[key] = told
        self.tried, self.times = tried, times
        self.of_tasks = {**self.of_tasks, **{key: (*self.of_tasks.get(key, ()), *new) for key, new in added.items()}}

    def _slim(self, event: Event) -> Event:
        """An event without what is long."""
        match event.kind:
            case EventKind.PROGRESS:
                if values.number(event.data, "again_gain") is not None:
                    self.expected = event.data
                return replace(event, data={name: event.data.get(name) for name in KEPT_OF_PROGRESS})
            case EventKind.SUCCEEDED:  # the job has the report too
                return replace(event, data={})
            case EventKind.QUEUED:
                return replace(event, data={name: value for name, value in event.data.items() if name != GRAPH})
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
            tried, times, self.of_tasks = self.tried, self.times, {}
            self._sort(self.others)
            self.tried, self.times = tried, times

    def count(self, job: Job, trials: TrialLog) -> Counts:
        """How the job's trials ended; of a job that goes on as they had a moment ago, where counting takes long."""
        is_still, newest = job.state is not JobState.RUNNING, (job.updated_at, trials.newest_void())
        if newest != self.counted_of and (is_still or self.clock() >= self.count_again_s):
            begun_s = self.clock()
            self.counts, self.counted_of = trials.counts(job.id), newest
            ended_s = self.clock()
            took_s = ended_s - begun_s
            self.count_again_s = ended_s + took_s / COUNTING_SHARE if took_s > QUICK_S else ended_s
        return self.counts


# Lines of the page

LOG_ROWS = 40
"""Events on one page."""

QUIET = frozenset({EventKind.PROGRESS, EventKind.DEFAULT})
"""Events that are not listed: they come all the time, or for each task, and the rest of the page says what they say."""


class FailureLine(Answer):
    """A way in which trials failed. Those that were taken back are none of these."""

    status: Status
    trials: int
    share: float = Field(description="Of all trials of the job.")
    tasks: int = Field(description="Tasks that had such trials.")
    most: Text = Field(description="Key of the task that had most of them.")
    most_op: Text


class LogLine(Answer):
    """An event."""

    number: int
    kind: EventKind
    created_at: datetime
    key: Text = Field(description="Of the task that it is about; empty where it is about none.")
    op: Text
    default_ms: float | None
    best_ms: float | None
    default_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    best_interval_ms: tuple[float, float] | None
    noise: Text = Field(description="Why the machine was too busy to rely on these; empty where it was not.")
    default_noise: Text = Field(description="The same of `default_ms` alone, where an improvement is told beside it.")
    gain_noise: Text = Field(
        description="The same of the ratio of both, which may have been timed at different moments of a busy machine."
    )
    trial: int | None = Field(description="From 1 on.")
    words: Text = Field(description="What else it says: who has the job, what it is at, why it failed.")

    @property
    def stage_text(self) -> str:
        """A stage for people; one of another version as it was told."""
        return STAGES.get(self.words, self.words)


def failure_lines(history: JobHistory, ops: Mapping[str, str]) -> list[FailureLine]:
    """The ways in which a job's trials failed; `ops` are names by task key."""
    failures = []
    for status in FAILED:
        counts = {key: task_counts[status] for key, task_counts in history.counts.items() if task_counts.get(status)}
        if not counts:
            continue
        most = max(counts, key=lambda key: (counts[key], key))
        count = sum(counts.values())
        failures.append(
            FailureLine(
                status=status,
                trials=count,
                share=count / history.trials,
                tasks=len(counts),
                most=most,
                most_op=ops.get(most, ""),
            )
        )
    return sorted(failures, key=lambda failure: -failure.trials)


def listed_kinds(events: Iterable[Event]) -> dict[EventKind, int]:
    """How many events of each kind there are, but for those that are not listed."""
    counts = Counter(event.kind for event in events)
    return {kind: counts[kind] for kind in EventKind if counts[kind] and kind not in QUIET}


def log_lines(
    events: Sequence[Event], ops: Mapping[str, str], before: int | None, kinds: Collection[EventKind] = ()
) -> tuple[list[LogLine], int | None]:
    """The newest events below a number, of some kinds or all, and the number below which the next ones are."""
    behind, listed = inf if before is None else before, frozenset(kinds or EventKind) - QUIET
    older = (event for event in reversed(events) if event.kind in listed and event.number < behind)
    page = list(islice(older, LOG_ROWS + 1))
    following = page[LOG_ROWS - 1].number if len(page) > LOG_ROWS else None
    return [_log_line(event, ops) for event in page[:LOG_ROWS]], following


def _log_line(event: Event, ops: Mapping[str, str]) -> LogLine:
    return LogLine.show(
        event,
        Times.of_report(event.data),
        default_noise=values.word(event.data, "default_noise"),
        gain_noise=event_noise(event),
        words=_words(event.kind, event.data),
        **event_task(event, ops),
    )


def _words(kind: EventKind, data: Mapping[str, Any]) -> str:
    match kind:
        case EventKind.STARTED | EventKind.LOST | EventKind.RETURNED:
            return values.word(data, "holder")
        case EventKind.STAGE:
            return values.word(data, "stage")
        case EventKind.FAILED:
            return values.word(data, "error")
        case EventKind.CHANGED:
            return ", ".join(f"{name}: {_plain(value)}" for name, value in data.items())
        case EventKind.REGRESSED:
            return regression_words(data)
        case _:
            return ""


def _plain(value: object) -> object:
    """A value of an event as people write it: tags in a row, and no .0 behind minutes."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return format(value, "g") if isinstance(value, float) else value
