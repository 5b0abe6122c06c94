"""The view of a job. Read `job_page` first; what is said of the tasks is in `job_tasks`.

At a glance: how much faster it is now, where the time goes, which task still has something to gain, and whether more
budget is worth it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from math import inf
from typing import Any

from pydantic import Field

from tunewright.db.fleet import Tuner
from tunewright.db.jobs import UNFINISHED, Event, EventKind, Job
from tunewright.db.sql_store import SqlStore
from tunewright.search_space.measurement import Status
from tunewright.tuner.insight import told
from tunewright.tuner.insight.curves import Improvement, active_s, improvements, speedups
from tunewright.tuner.jobs.report import ENDINGS, Ended
from tunewright.tuner.jobs.scheduling.forecast import MINUTE_S
from tunewright.tuner.jobs.stage import STAGES
from tunewright.tuner.jobs.view import CLEAR_GAIN
from tunewright.tuner.units import in_ms

from ..schemas import Answer
from .history import Histories, History, Times
from .job_tasks import SORTED_BY, Run, TaskLine, TaskSort, lines, names, run_of
from .jobs import LITTLE_GAIN, JobLine, Outlook, line_of
from .latency import Latency
from .said import Said

ROWS = 25
"""Tasks on one page."""

MOST_STEPS = 40
"""Steps of a curve: of those with more, some between the first and the last are left out."""

PARTS = 6
"""Tasks whose share of a run is shown apart."""

MOST_PROMISING = 3
"""Tasks that are named at once, of those that something is still expected of."""

LOG_ROWS = 50
"""Events on one page."""

QUIET = frozenset({EventKind.PROGRESS, EventKind.DEFAULT})
"""Events that are not listed: they come all the time, or for each task, and the rest of the page says what they say."""


class Abscissa(StrEnum):
    """What curves are drawn against."""

    TRIALS = "trials"
    SECONDS = "seconds"


class JobPageAsked(Answer):
    """What of a job was asked for."""

    x: Abscissa = Abscissa.TRIALS
    sort: TaskSort = TaskSort.TIME
    start: int = Field(default=0, description="How many tasks come before those that are listed.")
    before: int | None = Field(default=None, description="Events with numbers below this are listed; null: the newest.")


class Prospect(Answer):
    """Whether the job is worth more budget."""

    outlook: Outlook
    again_s: float | None = Field(description="For so many seconds more ...")
    again_gain: float | None = Field(
        description="... of searching the model is expected to become faster by this share, whatever the budget."
    )
    ended_by: Ended | None = Field(description="Why the search ended; null: it has not, or not by itself.")

    @property
    def why_ended(self) -> str:
        """The same for people."""
        return ENDINGS[self.ended_by] if self.ended_by else ""


class Promise(Answer):
    """A task that something is still expected of."""

    key: Said
    op: Said
    expected_share: float = Field(description="What part of a run searching for as long again should take off it here.")


class Part(Answer):
    """What a task takes of a run of the model, or several together, or what no task does."""

    key: Said = Field(description="Of the task; empty where it is no single one.")
    name: Said = Field(description="For people.")
    before_ms: float | None
    after_ms: float | None


class Step(Answer):
    """A point of a curve, which holds until the next one."""

    trial: int = Field(description="Trials of the job by then.")
    at_s: float = Field(description="Seconds by then in which a process was at work on the job.")
    speedup: float = Field(description="How many times as fast as by default.")


class Curve(Answer):
    """How a task, or the whole model, came to be faster."""

    key: Said = Field(description="Of the task; empty for the whole model.")
    op: Said
    steps: list[Step]


class FailureLine(Answer):
    """A way in which trials failed."""

    status: Status
    trials: int
    share: float = Field(description="Of all trials of the job.")
    tasks: int = Field(description="Tasks that had such trials.")
    most: Said = Field(description="Key of the task that had most of them.")
    most_op: Said


class LogLine(Answer):
    """An event."""

    number: int
    kind: EventKind
    created_at: datetime
    key: Said = Field(description="Of the task that it is about; empty where it is about none.")
    op: Said
    default_ms: float | None
    best_ms: float | None
    trial: int | None = Field(description="From 1 on.")
    words: Said = Field(description="What else it says: who has the job, what it is at, why it failed.")

    @property
    def doing(self) -> str:
        """A stage for people; one of another version as it was told."""
        return STAGES.get(self.words, self.words)


class JobDevice(Answer):
    """What candidates are timed on."""

    name: Said
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then.")
    reason: Said


class JobTuner(Answer):
    """A tuner process that is at work on the job."""

    id: Said
    host: Said
    pid: int
    pool: Said
    seen_at: datetime
    draining: bool
    devices: list[JobDevice]


class Settings(Answer):
    """What the search was asked to be like."""

    trials: int | None = Field(description="Most candidates to measure; null: no limit.")
    seconds: float | None = Field(description="Most seconds of searching; null: no limit.")
    until: float | None = Field(description="It ends once another minute brings less than this; null: no limit.")
    strategy: Said
    seed: int | None
    dims: dict[Said, int] = Field(description="Sizes of the model's open dimensions.")
    priority: int
    attempts: int = Field(description="Tuner processes that took it up since the last new trial.")
    is_attached: bool = Field(description="Whether it belongs to a command, so that no other process takes it up.")


class JobPage(Answer):
    """A job."""

    asked: JobPageAsked
    job: JobLine
    stage: Said = Field(description="What its tuner process is at; empty where there is none.")
    latency: Latency
    prospect: Prospect
    promising: list[Promise] = Field(description="The tasks that most is still expected of.")
    parts: list[Part] = Field(description="Where a run's time goes: the heaviest tasks, and the rest.")
    model: Curve = Field(description="Of the whole model.")
    curves: list[Curve] = Field(description="Of the tasks that are listed.")
    searched_s: float = Field(description="Seconds in which a process was at work on it: where curves end.")
    tasks: list[TaskLine]
    next_start: int | None = Field(description="`start` of the tasks behind these; null: there are none.")
    task_count: int
    trials: int = Field(description="That were counted, the failed ones among them.")
    failures: list[FailureLine] = Field(description="The most frequent first.")
    fallback: dict[Said, int] = Field(description="Op -> nodes of the model that run without a kernel.")
    fallback_share: float | None = Field(description="The part of a run that these take; null: not known.")
    log: list[LogLine] = Field(
        description="The newest first; without progress and defaults, of which there are too many."
    )
    next_before: int | None = Field(description="`before` of the events behind these; null: there are none.")
    newest: int = Field(description="Number of the newest event: what follows has a higher one.")
    tuners: list[JobTuner]
    tuner_count: int = Field(description="Tuner processes that were heard of in the last minute, on whatever job.")
    settings: Settings

    @property
    def doing(self) -> str:
        """The stage, for people."""
        return STAGES.get(self.stage, self.stage)


def job_page(store: SqlStore, histories: Histories, job_id: int, asked: JobPageAsked) -> JobPage:
    """The job as it stands. Raises NotFound, StoreError."""
    job = store.jobs.get(job_id)
    history = histories.of(job, store.jobs, store.trials)
    ops = names(store, [task.task_key for task in job.spec.tasks])
    targets = [store.target(job.spec.target_key)] if job.spec.target_key else []
    tuners = store.fleet.tuners()
    run = run_of(job, history)
    tasks = lines(job, history, run, ops)
    listed = sorted(tasks, key=SORTED_BY[asked.sort])[asked.start : asked.start + ROWS]
    behind = asked.start + ROWS
    latency = Latency.of_job(job)
    log, next_before = _log(history.events, ops, asked.before)
    fallback = job.result.get("fallback") if job.result else None
    return JobPage(
        asked=asked,
        job=line_of(job, {target.key: str(target) for target in targets}),
        stage=told.word(job.progress, "stage") if job.holder else "",
        latency=latency,
        prospect=_prospect(job, history),
        promising=_promising(tasks),
        parts=_parts(tasks, latency, run),
        model=_model_curve(history),
        curves=_curves(history, listed),
        searched_s=active_s(history.spine, datetime.now(UTC) if job.state in UNFINISHED else job.updated_at),
        tasks=listed,
        next_start=behind if behind < len(tasks) else None,
        task_count=len(tasks),
        trials=sum(sum(ended.values()) for ended in history.counts.values()),
        failures=_failures(history, ops),
        fallback={str(op): int(told.number(fallback, op) or 0) for op in fallback}
        if isinstance(fallback, dict)
        else {},
        fallback_share=told.number(job.result, "fallback_share"),
        log=log,
        next_before=next_before,
        newest=history.newest,
        tuners=[_tuner(tuner) for tuner in tuners if tuner.job_id == job.id],
        tuner_count=len(tuners),
        settings=_settings(job),
    )


# At a glance


def _prospect(job: Job, history: History) -> Prospect:
    """What more budget would bring, as was told last."""
    ended = told.word(job.result, "ended_by")
    by = Ended(ended) if ended in {one.value for one in Ended} else None
    expected = next(
        (data for data in (job.progress, history.expected) if told.number(data, "again_gain") is not None), None
    )
    gain = 0.0 if by is Ended.EXHAUSTED else told.number(expected, "again_gain")
    outlook = Outlook.UNKNOWN
    if gain is not None:
        outlook = Outlook.LITTLE if gain < LITTLE_GAIN else Outlook.SOME
    spent_s = told.number(expected, "spent_s")
    return Prospect(
        outlook=outlook,
        again_s=None if spent_s is None else max(spent_s, MINUTE_S),
        again_gain=gain,
        ended_by=by,
    )


def _promising(tasks: Sequence[TaskLine]) -> list[Promise]:
    return [
        Promise(key=task.key, op=task.op, expected_share=task.expected_share)
        for task in sorted(tasks, key=SORTED_BY[TaskSort.EXPECTED])[:MOST_PROMISING]
        if task.expected_share is not None and task.expected_share >= CLEAR_GAIN
    ]


def _parts(tasks: Sequence[TaskLine], latency: Latency, run: Run) -> list[Part]:
    """What the heaviest tasks take of a run, what it takes besides its tasks where it was timed, and all the rest."""
    used = [task for task in tasks if task.before_ms != 0 or task.after_ms != 0]
    besides = _besides(latency, run)
    most = PARTS - len(besides)
    parts = [Part(key=task.key, name=task.op, before_ms=task.before_ms, after_ms=task.after_ms) for task in used[:most]]
    rest = used[most:]
    name = f"{len(rest)} more tasks" if len(rest) > 1 else "1 more task"
    before_ms, after_ms = (_total([task.before_ms for task in rest]), _total([task.after_ms for task in rest]))
    others = [Part(key="", name=name, before_ms=before_ms, after_ms=after_ms)] if rest else []
    return [*parts, *besides, *others]


def _besides(latency: Latency, run: Run) -> list[Part]:
    """What a run takes that no task does: nodes without a kernel, and what lies between kernels."""
    if not latency.is_timed or latency.default_ms is None or latency.tuned_ms is None:
        return []
    before_ms, after_ms = latency.default_ms - (run.default_ms or inf), latency.tuned_ms - (run.tuned_ms or inf)
    if before_ms <= 0 or after_ms <= 0:
        return []
    return [Part(key="", name="besides its tasks", before_ms=before_ms, after_ms=after_ms)]


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


# Curves


def _model_curve(history: History) -> Curve:
    steps = [Step(trial=one.trials, at_s=one.at_s, speedup=one.speedup) for one in speedups(history.spine)]
    return Curve(key="", op="", steps=steps)


def _curves(history: History, tasks: Sequence[TaskLine]) -> list[Curve]:
    """Those of the tasks of which it is known what they began at."""
    own = {task.key: history.of_tasks.get(task.key, ()) for task in tasks}
    events = sorted(
        (event for part in (history.spine, *own.values()) for event in part), key=lambda event: event.number
    )
    found = improvements(events)
    return [
        Curve(key=task.key, op=task.op, steps=steps)
        for task in tasks
        if (steps := _steps(_start(own[task.key]), found.get(task.key, [])))
    ]


def _start(events: Sequence[Event]) -> Times:
    """What the curve of a task begins at. Side by side times are others than those in the search."""
    times = Times()
    for event in events:
        if event.kind is not EventKind.CONFIRMED:
            times = times.after(event)
    return times


def _steps(start: Times, found: Sequence[Improvement]) -> list[Step]:
    if not start.default_ms:
        return []
    first = [Step(trial=0, at_s=0.0, speedup=start.default_ms / (start.first_ms or start.default_ms))]
    later = [
        Step(trial=one.trial, at_s=one.at_s, speedup=start.default_ms / best_ms)
        for one in found
        if (best_ms := in_ms(one.best_s))
    ]
    stride = -(-len(later) // MOST_STEPS) or 1
    return [*first, *later[(len(later) - 1) % stride :: stride]]  # the last one is what it came to


# What happened


def _failures(history: History, ops: Mapping[str, str]) -> list[FailureLine]:
    trials = sum(sum(ended.values()) for ended in history.counts.values())
    found = []
    for status in Status:
        counts = {key: ended[status] for key, ended in history.counts.items() if ended.get(status)}
        if status is Status.OK or not counts:
            continue
        most = max(counts, key=lambda key: (counts[key], key))
        count = sum(counts.values())
        found.append(
            FailureLine(
                status=status,
                trials=count,
                share=count / trials,
                tasks=len(counts),
                most=most,
                most_op=ops.get(most, ""),
            )
        )
    return sorted(found, key=lambda failure: -failure.trials)


def _log(events: Sequence[Event], ops: Mapping[str, str], before: int | None) -> tuple[list[LogLine], int | None]:
    """The newest events below a number, and the number below which the next ones are."""
    behind = inf if before is None else before
    found = (event for event in reversed(events) if event.kind not in QUIET and event.number < behind)
    page = list(islice(found, LOG_ROWS + 1))
    following = page[LOG_ROWS - 1].number if len(page) > LOG_ROWS else None
    return [_log_line(event, ops) for event in page[:LOG_ROWS]], following


def _log_line(event: Event, ops: Mapping[str, str]) -> LogLine:
    data = event.data
    key, trial = told.word(data, "task_key"), told.number(data, "trial")
    return LogLine(
        number=event.number,
        kind=event.kind,
        created_at=event.created_at,
        key=key,
        op=ops.get(key) or told.word(data, "op"),
        default_ms=told.number(data, "default_ms"),
        best_ms=told.number(data, "best_ms"),
        trial=None if trial is None else int(trial) + 1,
        words=_words(event.kind, data),
    )


def _words(kind: EventKind, data: Mapping[str, Any]) -> str:
    match kind:
        case EventKind.STARTED | EventKind.LOST | EventKind.RETURNED:
            return told.word(data, "holder")
        case EventKind.STAGE:
            return told.word(data, "stage")
        case EventKind.FAILED:
            return told.word(data, "error")
        case EventKind.CHANGED:
            return ", ".join(f"{name}: {value}" for name, value in data.items())
        case _:
            return ""


# Who and what


def _tuner(tuner: Tuner) -> JobTuner:
    return JobTuner(
        id=tuner.id,
        host=tuner.host,
        pid=tuner.pid,
        pool=tuner.pool,
        seen_at=tuner.seen_at,
        draining=tuner.draining,
        devices=[
            JobDevice(name=device.name, quarantined_until=device.quarantined_until, reason=device.reason)
            for device in tuner.devices
        ],
    )


def _settings(job: Job) -> Settings:
    settings = job.spec.settings
    seed, dims = told.number(settings, "seed"), settings.get("dims")
    return Settings(
        trials=job.budget.trials,
        seconds=None if job.budget.seconds == inf else job.budget.seconds,
        until=job.budget.until,
        strategy=told.word(settings, "strategy"),
        seed=None if seed is None else int(seed),
        dims={str(name): int(told.number(dims, name) or 0) for name in dims} if isinstance(dims, dict) else {},
        priority=job.priority,
        attempts=job.attempts,
        is_attached=job.attached,
    )
