"""The view of a tuning job while it runs: a live table on a terminal, else a line now and then.

It shows moments of a job, which come from a job in this process (`progress_view`) or from elsewhere (`moment_view`).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isinf
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..settings import settings
from ..text import (
    cause,
    clock,
    counted,
    failures,
    gain,
    is_clear,
    legends,
    limits,
    mark_noise,
    mark_trial,
    ms,
    printable,
    ratio,
    share,
    shorten,
    sparkline,
    times,
    trials_done,
    uses,
)
from ..units import in_ms
from .stage import STAGES, JobStage, stage_words

if TYPE_CHECKING:
    from .progress import Progress, Watch

MOMENT_S = 0.25
"""A moment of the job is taken at most this often: it goes through all trials."""

REFRESHES_A_SECOND = 2
"""The screen is drawn on the cores that candidates are timed on."""

LINE_S, LONGEST_LINE_S, LINE_SHARE = 5.0, 60.0, 0.1
"""Seconds between two lines without a terminal: least, most, and as a share of the time so far."""

OTHER_LINES = 5
"""Lines of the view that are neither tasks nor text: what is around the table, and its last row."""

WORKED = "ok"
"""The status of a trial that did not fail, as a text: its type takes a while to import."""

WIDE = 100
"""Columns of a terminal from which on the table has all columns."""

NUMBERS = ("times", "trials", "default ms", "best ms", "speedup", "of all", "before")
"""Columns of the table; the last is left out where there is little room."""

NAME = 8, 44
"""Least and most characters of a task's name in the table."""

GAP = 3
"""Characters between two columns of the table, at most."""

CURVE_CELLS = 24
"""Characters of the curve."""

LONGEST_OP = 30
"""Characters of what a task is, within a sentence."""

CLEAR_GAIN = 0.0005
"""The part of a run below which hardly anything is expected of a task: 0.05%."""


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """One task as it is shown."""

    op: str
    occurrences: int
    chosen: int  # of these that the model would run, as things stand
    trials: int | None  # of the job; None: not known here
    default_s: float | None
    best_s: float | None
    before_share: float | None = None  # of the time of all tasks on default schedules
    share: float | None = None  # of that as things stand
    is_confirmed: bool = False  # whether the times are confirmed; else the best's is of a trial
    is_default_confirmed: bool = False  # whether that of the default is confirmed
    noise: str = ""  # why the machine was too busy to rely on them; empty where it was not

    @property
    def weight_s(self) -> float:
        """Seconds of the model that are spent in it."""
        return self.chosen * (self.best_s or 0.0)


@dataclass(frozen=True, slots=True)
class FurtherGain:
    """The expected gain from searching for as long again, whatever the budget."""

    seconds: float
    gain: float  # by which all tasks together become faster: 0.02 is 2%
    op: str = ""  # of the task that more of it is expected of than of any other; empty: of none in particular
    op_share: float = 0.0  # of the time of all tasks, that should be saved there

    @staticmethod
    def of(seconds: float, gain: float, ops: Sequence[str], gains: Sequence[float | None]) -> FurtherGain:
        """`gains` are parts of the time of all tasks, of each."""
        most, op = max(((part or 0.0, op) for part, op in zip(gains, ops, strict=True)), default=(0.0, ""))
        return FurtherGain(seconds, gain, op, most) if most >= CLEAR_GAIN else FurtherGain(seconds, gain)


@dataclass(frozen=True, slots=True)
class JobMoment:
    """A job at one moment, copied: the view is drawn on another thread than the one that tunes."""

    stage: JobStage
    trials: int
    budget: int | None  # most trials; None: no bound
    elapsed_s: float
    left_s: float | None
    speedup: float | None
    remaining_gain: float | None  # by which the rest of the search is expected to make its tasks faster: 0.02 is 2%
    known: int  # trials in the database on the tasks, those of earlier jobs included
    tasks: tuple[TaskFigures, ...]
    taken_at: float  # time.monotonic()
    headline: str = ""  # what the job is at, where that is no stage
    noise: str = ""  # why the machine was too busy to rely on the speed-up; empty where it was not
    is_tried: bool = True  # whether a trial is in the speed-up: else all of it is confirmed
    confirmed: int = 0  # tasks whose times are confirmed
    to_confirm: int = 0  # and of how many that is so in the end; 0: not known yet
    note: str = ""  # what the newest event tells, and no moment after it: each is printed
    failed: Mapping[str, int] = field(default_factory=dict)  # status -> trials of this process
    again: FurtherGain | None = None  # None: not known, or it does not search
    is_search_clock: bool = False  # whether `elapsed_s` counts searching alone, of all processes that did it

    @property
    def is_searching(self) -> bool:
        """Whether it searches now: a job that is paused, or waits, is still at that stage."""
        return self.stage is JobStage.SEARCHING and not self.headline

    @property
    def is_ticking(self) -> bool:
        """Whether its clock goes on."""
        return self.is_searching or not self.is_search_clock

    @property
    def clock_words(self) -> str:
        """What its clock counts."""
        return "of searching" if self.is_search_clock else "elapsed"

    @property
    def doing(self) -> str:
        """The stage of the job in words."""
        return self.headline or STAGES[self.stage]

    @property
    def at(self) -> str:
        """The stage of the job in words, and its progress."""
        return self.headline or stage_words(self.stage, self.confirmed, self.to_confirm)

    @property
    def speedup_text(self) -> str:
        """The speed-up in words; empty while it is not known."""
        if self.speedup is None:
            return ""
        how = " by trials" if self.is_tried else ""
        faster = f"{mark_noise(times(self.speedup), self.noise)} as fast{how}"
        return f"{faster if is_clear(self.speedup) else 'no gain'} so far"

    @staticmethod
    def of(progress: Progress, failed: Mapping[str, int] | None = None) -> JobMoment:
        states, chosen = progress.tasks, progress.chosen
        before = shares(progress.assembly.separate_uses, [state.times.default_s for state in states])
        after = shares(chosen, [state.times.best_s for state in states])
        rows = (
            TaskFigures(
                t.task.op,
                t.occurrences,
                count,
                trials,
                t.times.default_s,
                t.times.best_s,
                first,
                now,
                t.times.is_confirmed,
                t.times.is_default_confirmed,
                t.times.noise,
            )
            for t, count, trials, first, now in zip(states, chosen, progress.task_trials, before, after, strict=True)
        )
        tasks = tuple(sorted(rows, key=lambda row: -row.weight_s))
        gain, gains = progress.again_gain, progress.task_gains
        again = None
        if progress.stage is JobStage.SEARCHING and gain is not None and gains is not None:
            again = FurtherGain.of(progress.again_s, gain, [state.task.op for state in states], gains)
        return JobMoment(
            stage=progress.stage,
            trials=progress.trials,
            budget=progress.budget.trials,
            elapsed_s=progress.elapsed_s,
            left_s=progress.left_s,
            speedup=progress.speedup,
            remaining_gain=progress.remaining_gain,
            known=sum(len(state.measured) for state in states),
            tasks=tasks,
            taken_at=time.monotonic(),
            headline=_wait_text(progress) if progress.stage is JobStage.WAITING else "",
            noise=progress.noise,
            is_tried=progress.is_tried,
            confirmed=progress.confirmed,
            to_confirm=progress.to_confirm,
            failed=dict(failed or {}),
            again=again,
        )


def shares(counts: Sequence[int], times_s: Sequence[float | None]) -> list[float | None]:
    """The part of the time of all that each task takes, by its uses and time; None: not known."""
    parts = [
        None if count and time_s is None else count * (time_s or 0.0)
        for count, time_s in zip(counts, times_s, strict=True)
    ]
    known = [part for part in parts if part is not None]
    whole = sum(known) if len(known) == len(parts) else 0.0
    return [part / whole if part is not None and whole else None for part in parts]


Show = Callable[[JobMoment], None]


@contextmanager
def progress_view(console: Console) -> Iterator[Watch]:
    """A function that shows the progress of a tuning job on a console."""
    with moment_view(console) as show:
        last: JobMoment | None = None
        failed: Counter[str] = Counter()

        def watch(progress: Progress) -> None:
            nonlocal last
            if progress.last is not None and progress.last[2].status != WORKED:
                failed[progress.last[2].status.value] += 1
            if last is None or last.stage != progress.stage or time.monotonic() - last.taken_at > MOMENT_S:
                last = JobMoment.of(progress, failed)
                show(last)

        yield watch


@contextmanager
def moment_view(console: Console) -> Iterator[Show]:
    """A function that shows moments of a job on a console."""
    if console.is_terminal and not settings().debug:  # a live view and log lines would mix
        view = _LiveView(console)
        with Live(console=console, get_renderable=view.render, refresh_per_second=REFRESHES_A_SECOND, transient=True):
            yield view.show
    else:
        yield _LineView(console.print).show


class _LiveView:
    """A table of the tasks, and lines on the whole."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: JobMoment | None = None
        self._started = time.monotonic()
        self._resume_text = ""
        self._curve: list[JobMoment] = []  # each at which the speed-up became another

    def show(self, moment: JobMoment) -> None:
        last = self._last
        if moment.note:
            self._console.print(moment.note, soft_wrap=True)  # above the table
        if moment.speedup is not None and (not self._curve or self._curve[-1].speedup != moment.speedup):
            self._curve.append(replace(moment, tasks=()))
        if moment.is_searching and (last is None or not last.is_searching):
            self._resume_text = _resume_text(moment)
        self._last = moment

    def render(self) -> RenderableType:
        last = self._last
        now = time.monotonic()
        if last is None or not last.tasks:
            return Text(f"{last.at if last else 'starting'}, {clock(now - self._started)}")
        elapsed_s = last.elapsed_s + (now - last.taken_at if last.is_ticking else 0.0)
        left_s = None if last.left_s is None else max(last.left_s - (time.monotonic() - last.taken_at), 0.0)
        curve, summary = self._curve_text(last), _summary(last, elapsed_s, left_s)
        notes = [self._resume_text, curve, _failure_text(last), _further_text(last)]
        texts = [*(Text(line, style="dim") for line in notes if line)]
        texts.append(Text(f"{last.at}: {summary}", style="bold"))
        marks = _legends(last, last.tasks, (curve, summary))
        lines = sum(-(-len(text) // self._console.width) for text in (*texts, *marks))
        rows = last.tasks[: _row_count(len(last.tasks), self._console.height - OTHER_LINES - lines)]
        return Group(self._table(last, rows), *_legends(last, rows, (curve, summary)), *texts)

    def _table(self, last: JobMoment, figures_shown: Sequence[TaskFigures]) -> Table:
        """The heaviest tasks. Names give way to numbers."""
        is_wide = self._console.width >= WIDE and any(row.before_share is not None for row in last.tasks)
        numbers = NUMBERS if is_wide else NUMBERS[:-1]
        rows = [_numbers(row)[: len(numbers)] for row in figures_shown]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        used = sum(GAP + max(map(len, column)) for column in zip(numbers, *rows, strict=True))
        least, most = NAME
        table.add_column("task", no_wrap=True, max_width=min(max(self._console.width - used - GAP, least), most))
        for name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        for row, cells in zip(figures_shown, rows, strict=True):
            table.add_row(Text(printable(row.op)), *cells)
        if len(figures_shown) < len(last.tasks):
            table.add_row(Text(f"and {len(last.tasks) - len(figures_shown)} more", style="dim"))
        return table

    def _curve_text(self, last: JobMoment) -> str:
        """The speed-up since this view began, as a sparkline; empty without one, or where it can't be drawn."""
        if len(self._curve) < 2 or self._console.options.ascii_only:
            return ""
        first, speedups = self._curve[0].trials, [moment.speedup or 0.0 for moment in self._curve]
        if not is_clear(speedups[-1] / speedups[0]):
            return ""
        starts = [moment.trials for moment in self._curve]
        cells = [first + (last.trials - first) * (n + 1) / CURVE_CELLS for n in range(CURVE_CELLS)]
        line = sparkline([speedups[bisect_right(starts, cell) - 1] for cell in cells])
        begin, end = (
            mark_trial(mark_noise(times(moment.speedup), moment.noise), moment.is_tried)
            for moment in (self._curve[0], self._curve[-1])
        )
        return f"as fast as by default: {begin} {line} {end}"


def _row_count(tasks: int, room: int) -> int:
    """The number of tasks that fit into so many lines, at least three of which one says how many more there are."""
    room = max(room, 3)
    return tasks if tasks <= room else room - 1


def _numbers(row: TaskFigures) -> list[str]:
    """The cells of a task."""
    figures = (
        (ms(in_ms(row.default_s)), row.is_default_confirmed),
        (ms(in_ms(row.best_s)), row.is_confirmed),
        (gain(ratio(row.default_s, row.best_s)), row.is_confirmed),
    )
    return [
        uses(row.chosen, row.occurrences),
        "-" if row.trials is None else str(row.trials),
        *(mark_trial(mark_noise(figure, row.noise), not is_confirmed) for figure, is_confirmed in figures),
        share(row.share),
        share(row.before_share),
    ]


class _LineView:
    """A line at each change of what the job is at, for each note, and now and then where it got on.

    And one at the end of the search on the trials that failed.
    """

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._last: JobMoment | None = None
        self._shown_at = 0.0
        self._shown: tuple[object, ...] = ()
        self._printed = ""

    def show(self, moment: JobMoment) -> None:
        now, last = time.monotonic(), self._last
        changed = last is None or last.doing != moment.doing
        state = moment.at, moment.trials, moment.speedup
        if moment.note:
            self._print(moment.note)
        if (
            last is not None
            and last.stage is JobStage.SEARCHING is not moment.stage
            and (failed := _failure_text(moment))
        ):
            self._say(failed)
        self._last = moment
        pause_s = min(max(LINE_S, LINE_SHARE * moment.elapsed_s), LONGEST_LINE_S)
        if not changed and (now - self._shown_at < pause_s or state == self._shown):
            return
        self._shown_at, self._shown = now, state
        if not moment.tasks:
            self._say(moment.at)
            return
        if changed and moment.is_searching and (resumed := _resume_text(moment)):
            self._say(resumed)
        self._say(f"{moment.at}: {_summary(moment, moment.elapsed_s, moment.left_s)}")

    def _say(self, line: str) -> None:
        """Print a line that is not the one above it."""
        if line != self._printed:
            self._print(line)
        self._printed = line


def _wait_text(progress: Progress) -> str:
    """The process that a job waits for, and how long that may take."""
    from .lease_keeper import is_gone  # with what is imported beside it by the time that a job waits

    holder, budget, lease = progress.holder, progress.budget, f"{settings().lease_s:g} s"
    if is_gone(holder):
        other = f"the process that had the same job, {printable(holder)}, is gone"
        return f"{other}: its lease ends within {lease}, then this one goes on"
    who = f", {printable(holder)}" if holder else ""
    own = limits(budget.trials, None if isinf(budget.seconds) else budget.seconds / 60, budget.until)
    finds = f"what it finds within its own limits ({', '.join(own)}; those given here don't count)"
    return f"{STAGES[JobStage.WAITING]}{who}: waiting for {finds}, or {lease} from when it goes silent"


def _resume_text(first: JobMoment) -> str:
    """The trials before the first one of this process, in words."""
    if first.trials:
        of = "" if first.budget is None else f"{first.trials} of "
        most = first.trials if first.budget is None else first.budget
        return f"going on with the job: {of}{counted(most, 'trial was', 'trials were')} done before"
    if first.known:
        return f"{counted(first.known, 'trial of these tasks is', 'trials of these tasks are')} known from earlier jobs"
    return ""


def _legends(last: JobMoment, rows: Sequence[TaskFigures], told: Sequence[str]) -> list[Text]:
    """The meanings of the marks in these rows of the table, and in what is told of the whole."""
    cells = [_numbers(row) for row in rows]
    causes = [*(cause(row.noise, *figures) for row, figures in zip(rows, cells, strict=True)), cause(last.noise, *told)]
    return [Text(line, style="dim") for line in legends([*told, *chain.from_iterable(cells)], causes)]


def _failure_text(last: JobMoment) -> str:
    """The counts of failed trials by status; empty where none failed."""
    return failures(last.failed, " of this run")


def _further_text(last: JobMoment) -> str:
    """The expected gain of more budget; empty where it is not known."""
    if last.again is None:
        return ""
    from .scheduling.outlook import again_words  # takes a while to import

    more = share(last.again.gain)
    text = f"by trials, {more} more is expected of searching for {again_words(last.again.seconds)}"
    if not last.again.op:
        return text
    op = shorten(printable(last.again.op), LONGEST_OP)
    saved = last.again.gain / (1.0 + last.again.gain)
    most = "most of it" if last.again.op_share > saved / 2 else "of single tasks most"
    return f"{text}, {most} of {op} ({share(last.again.op_share)} of the time of all tasks)"


def _summary(last: JobMoment, elapsed_s: float, left_s: float | None) -> str:
    parts = [trials_done(last.trials, last.budget), f"{clock(elapsed_s)} {last.clock_words}"]
    if last.is_searching and last.speedup_text:  # the trials' figure, which comparing replaces
        parts.insert(0, last.speedup_text)
    if left_s is not None and last.is_searching:
        parts.append(f"about {clock(left_s)} left")
    if last.remaining_gain is not None and last.is_searching:
        parts.append(f"{share(last.remaining_gain)} more expected")
    return ", ".join(parts)
