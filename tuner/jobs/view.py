"""The view of a tuning job while it runs: a live table on a terminal, else a line now and then.

It shows moments of a job, which come from a job in this process (`watching`) or from wherever else (`showing`).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..settings import settings
from ..text import (
    clock,
    counted,
    counted_ops,
    gain,
    is_clear,
    ms,
    printable,
    ratio,
    share,
    shortened,
    sparkline,
    times,
    trials_done,
    uses,
)
from ..units import in_ms
from .stage import STAGES, Stage

if TYPE_CHECKING:
    from .progress import Progress, Watch

MOMENT_S = 0.25
"""A moment of the job is taken at most this often: it goes through all trials."""

REFRESHES_A_SECOND = 2
"""The screen is drawn on the cores that candidates are timed on."""

LINE_S, LONGEST_LINE_S, LINE_SHARE = 5.0, 60.0, 0.1
"""Between two lines where there is no terminal: the least, the most, and the share of the time so far."""

OTHER_LINES = 5
"""Lines of the view that are neither tasks nor text: what is around the table, and its last row."""

WORKED = "ok"
"""The status of a trial that did not fail, as a text: its type takes a while to import."""

WIDE = 100
"""Columns of a terminal from which on the table has all columns."""

NUMBERS = ("times", "trials", "default ms", "best ms", "speedup", "of a run", "before")
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
class Line:
    """One task as it is shown."""

    op: str
    occurrences: int
    chosen: int  # of these that the model would run, as things stand
    trials: int | None  # None: not known here
    default_s: float | None
    best_s: float | None
    before_share: float | None = None  # of a run of the model on default schedules
    share: float | None = None  # of one as things stand

    @property
    def weight_s(self) -> float:
        """Seconds of the model that are spent in it."""
        return self.chosen * (self.best_s or 0.0)


@dataclass(frozen=True, slots=True)
class Again:
    """What searching for as long again is expected to bring, whatever the budget."""

    seconds: float
    gain: float  # by which the model becomes faster: 0.02 is 2%
    op: str = ""  # of the task that most of it is expected of; empty: of none in particular
    op_share: float = 0.0  # of a run, that should come off it there

    @staticmethod
    def of(seconds: float, gain: float, ops: Sequence[str], gains: Sequence[float | None]) -> Again:
        """`gains` are parts of a run, of each task."""
        most, op = max(((part or 0.0, op) for part, op in zip(gains, ops, strict=True)), default=(0.0, ""))
        return Again(seconds, gain, op, most) if most >= CLEAR_GAIN else Again(seconds, gain)


@dataclass(frozen=True, slots=True)
class Moment:
    """A job at one moment, copied: the view is drawn on another thread than the one that tunes."""

    stage: Stage
    trials: int
    budget: int | None  # most trials; None: no bound
    elapsed_s: float
    left_s: float | None
    speedup: float | None
    remaining_gain: float | None  # by which the rest of the search is expected to make the model faster: 0.02 is 2%
    known: int  # trials in the database on the tasks, those of earlier jobs included
    tasks: tuple[Line, ...]
    taken_at: float  # time.monotonic()
    headline: str = ""  # what the job is at, where that is no stage
    part: str = ""  # how much of that is done
    note: str = ""  # what just happened
    failed: Mapping[str, int] = field(default_factory=dict)  # status -> trials of this process
    again: Again | None = None  # None: not known, or it does not search

    @property
    def doing(self) -> str:
        """What the job is at, for people."""
        return self.headline or STAGES[self.stage]

    @property
    def at(self) -> str:
        """The same, and how much of it is done."""
        return f"{self.doing}: {self.part}" if self.part else self.doing

    @staticmethod
    def of(progress: Progress, failed: Mapping[str, int] | None = None) -> Moment:
        states, chosen = progress.tasks, progress.chosen
        before = shares(progress.assembly.apart, [state.default_s for state in states])
        after = shares(chosen, [state.best_s for state in states])
        rows = (
            Line(t.task.op, t.occurrences, count, len(t.measured), t.default_s, t.best_s, *parts)
            for t, count, *parts in zip(states, chosen, before, after, strict=True)
        )
        tasks = tuple(sorted(rows, key=lambda row: -row.weight_s))
        gain, gains = progress.again_gain, progress.task_gains
        again = None
        if progress.stage is Stage.SEARCHING and gain is not None and gains is not None:
            again = Again.of(progress.again_s, gain, [state.task.op for state in states], gains)
        return Moment(
            stage=progress.stage,
            trials=progress.trials,
            budget=progress.budget.trials,
            elapsed_s=progress.elapsed_s,
            left_s=progress.left_s,
            speedup=progress.speedup,
            remaining_gain=progress.remaining_gain,
            known=sum(row.trials or 0 for row in tasks),
            tasks=tasks,
            taken_at=time.monotonic(),
            headline=_waiting(progress.holder) if progress.stage is Stage.WAITING else "",
            failed=dict(failed or {}),
            again=again,
        )


def shares(counts: Sequence[int], times_s: Sequence[float | None]) -> list[float | None]:
    """What part of a run each task takes, by how often it is run and how long that takes; None: not known."""
    parts = [
        None if count and time_s is None else count * (time_s or 0.0)
        for count, time_s in zip(counts, times_s, strict=True)
    ]
    known = [part for part in parts if part is not None]
    whole = sum(known) if len(known) == len(parts) else 0.0
    return [part / whole if part is not None and whole else None for part in parts]


Show = Callable[[Moment], None]


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """What a tuning job tells its progress to, shown on a console."""
    with showing(console) as show:
        last: Moment | None = None
        failed: Counter[str] = Counter()

        def watch(progress: Progress) -> None:
            nonlocal last
            if progress.last is not None and progress.last[2].status != WORKED:
                failed[progress.last[2].status.value] += 1
            if last is None or last.stage != progress.stage or time.monotonic() - last.taken_at > MOMENT_S:
                last = Moment.of(progress, failed)
                show(last)

        yield watch


@contextmanager
def showing(console: Console) -> Iterator[Show]:
    """What shows moments of a job on a console."""
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
        self._last: Moment | None = None
        self._started = time.monotonic()
        self._resumed = ""
        self._curve: list[tuple[int, float]] = []  # trials, and the speed-up since then

    def show(self, moment: Moment) -> None:
        last = self._last
        if moment.speedup is not None and (not self._curve or self._curve[-1][1] != moment.speedup):
            self._curve.append((moment.trials, moment.speedup))
        if moment.stage is Stage.SEARCHING and (last is None or last.stage is not Stage.SEARCHING):
            self._resumed = _resumed(moment)
        self._last = moment

    def render(self) -> RenderableType:
        last = self._last
        now = time.monotonic()
        if last is None or not last.tasks:
            return Text(f"{last.at if last else 'starting'}, {clock(now - self._started)}")
        elapsed_s = last.elapsed_s + now - last.taken_at
        left = None if last.left_s is None else max(last.left_s - (time.monotonic() - last.taken_at), 0.0)
        said = [last.note or self._resumed, self._told_curve(last), _told_failures(last), _told_again(last)]
        texts = [*(Text(line, style="dim") for line in said if line)]
        texts.append(Text(f"{last.at}: {_summary(last, elapsed_s, left)}", style="bold"))
        lines = sum(-(-len(text) // self._console.width) for text in texts)
        return Group(self._table(last, self._console.height - OTHER_LINES - lines), *texts)

    def _table(self, last: Moment, room: int) -> Table:
        """The heaviest tasks, in so many lines if that is possible. Names give way to numbers."""
        is_wide = self._console.width >= WIDE and any(row.before_share is not None for row in last.tasks)
        numbers = NUMBERS if is_wide else NUMBERS[:-1]
        room = max(room, 3)
        shown = last.tasks if len(last.tasks) <= room else last.tasks[: room - 1]
        rows = [_numbers(row)[: len(numbers)] for row in shown]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        taken = sum(GAP + max(map(len, column)) for column in zip(numbers, *rows, strict=True))
        least, most = NAME
        table.add_column("task", no_wrap=True, max_width=min(max(self._console.width - taken - GAP, least), most))
        for name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        for row, cells in zip(shown, rows, strict=True):
            table.add_row(Text(printable(row.op)), *cells)
        if len(shown) < len(last.tasks):
            table.add_row(Text(f"and {len(last.tasks) - len(shown)} more", style="dim"))
        return table

    def _told_curve(self, last: Moment) -> str:
        """How the model became faster, as far as this view saw it; empty where it did not, or can't be drawn."""
        if len(self._curve) < 2 or self._console.options.ascii_only:
            return ""
        (first, slowest), fastest = self._curve[0], self._curve[-1][1]
        if not is_clear(fastest / slowest):
            return ""
        begun = [trials for trials, _ in self._curve]
        cells = [first + (last.trials - first) * (n + 1) / CURVE_CELLS for n in range(CURVE_CELLS)]
        drawn = sparkline([self._curve[bisect_right(begun, cell) - 1][1] for cell in cells])
        return f"as fast as by default: {times(slowest)} {drawn} {times(fastest)}"


def _numbers(row: Line) -> list[str]:
    """What the columns say of a task."""
    return [
        uses(row.chosen, row.occurrences),
        "-" if row.trials is None else str(row.trials),
        ms(in_ms(row.default_s)),
        ms(in_ms(row.best_s)),
        gain(ratio(row.default_s, row.best_s)),
        share(row.share),
        share(row.before_share),
    ]


class _LineView:
    """A line at each change of what the job is at, at the first improvement, and now and then where it got on."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print = print_line
        self._last: Moment | None = None
        self._shown_at = 0.0
        self._shown: tuple[object, ...] = ()
        self._printed = ""

    def show(self, moment: Moment) -> None:
        now, last = time.monotonic(), self._last
        changed = last is None or last.doing != moment.doing
        state = moment.at, moment.trials, moment.speedup
        if last is not None and moment.note and not last.note:
            self._say(moment.note)
        self._last = moment
        pause_s = min(max(LINE_S, LINE_SHARE * moment.elapsed_s), LONGEST_LINE_S)
        if not changed and (now - self._shown_at < pause_s or state == self._shown):
            return
        self._shown_at, self._shown = now, state
        if not moment.tasks:
            self._say(moment.at)
            return
        if changed and moment.stage is Stage.SEARCHING and (resumed := _resumed(moment)):
            self._say(resumed)
        self._say(f"{moment.at}: {_summary(moment, moment.elapsed_s, moment.left_s)}")

    def _say(self, line: str) -> None:
        """Print a line that is not the one above it."""
        if line != self._printed:
            self._print(line)
        self._printed = line


def _waiting(holder: str) -> str:
    """For whom a job waits, and how long that may take."""
    from .tenure import is_gone  # with what is imported beside it by the time that a job waits

    lease = f"{settings().lease_s:g} s"
    if is_gone(holder):
        other = f"the process that had the same job, {printable(holder)}, is gone"
        return f"{other}: its lease ends within {lease}, then this one goes on"
    who = f", {printable(holder)}" if holder else ""
    return f"{STAGES[Stage.WAITING]}{who}: waiting for what it finds, or {lease} from when it goes silent"


def _resumed(first: Moment) -> str:
    """What is known before the first trial of this process."""
    if first.trials:
        of = "" if first.budget is None else f"{first.trials} of "
        most = first.trials if first.budget is None else first.budget
        return f"going on with the job: {of}{counted(most, 'trial was', 'trials were')} done before"
    if first.known:
        return f"{counted(first.known, 'trial of these tasks is', 'trials of these tasks are')} known from earlier jobs"
    return ""


def _told_failures(last: Moment) -> str:
    """How many trials failed in which way; empty where none did."""
    return f"failed in this run: {counted_ops(last.failed)}" if last.failed else ""


def _told_again(last: Moment) -> str:
    """What more budget would bring; empty where that is not known."""
    if last.again is None:
        return ""
    text = f"searching for as long again, {clock(last.again.seconds)}, would bring {share(last.again.gain)} more"
    if not last.again.op:
        return text
    op = shortened(printable(last.again.op), LONGEST_OP)
    return f"{text}, most of it of {op} ({share(last.again.op_share)} of a run)"


def _summary(last: Moment, elapsed_s: float, left_s: float | None) -> str:
    parts = [trials_done(last.trials, last.budget), f"{clock(elapsed_s)} elapsed"]
    if last.speedup is not None and last.stage is Stage.SEARCHING:  # the trials' figure, which comparing replaces
        parts.insert(
            0, f"{times(last.speedup)} as fast by trials so far" if is_clear(last.speedup) else "no gain so far"
        )
    if left_s is not None and last.stage is Stage.SEARCHING:
        parts.append(f"about {clock(left_s)} left")
    if last.remaining_gain is not None and last.stage is Stage.SEARCHING:
        parts.append(f"{share(last.remaining_gain)} more expected")
    return ", ".join(parts)
