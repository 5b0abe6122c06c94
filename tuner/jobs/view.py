"""The view of a tuning job while it runs: a live table on a terminal, else a line now and then.

It shows moments of a job, which come from a job in this process (`watching`) or from wherever else (`showing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..settings import settings
from ..text import clock, counted, gain, is_clear, ms, printable, ratio, share, times, uses
from ..units import in_ms
from .stage import Stage

if TYPE_CHECKING:
    from .progress import Progress, Watch

MOMENT_S = 0.25
"""A moment of the job is taken at most this often: it goes through all trials."""

REFRESHES_A_SECOND = 2
"""The screen is drawn on the cores that candidates are timed on."""

LINE_S, LONGEST_LINE_S, LINE_SHARE = 5.0, 60.0, 0.1
"""Between two lines where there is no terminal: the least, the most, and the share of the time so far."""

OTHER_LINES = 6
"""Lines of the view that are not tasks."""

STAGES = {
    Stage.READING: "reading the model",
    Stage.WAITING: "another process is at work on the same job",  # who, and what is waited for: `_waiting`
    Stage.SEARCHING: "searching",
    Stage.LEARNING: "learning from the trials",
    Stage.CONFIRMING: "timing default and best schedules side by side",
    Stage.RUNNING: "timing the whole model",
    Stage.DONE: "done",
}
"""The stages of a job, for people."""


@dataclass(frozen=True, slots=True)
class Line:
    """One task as it is shown."""

    op: str
    occurrences: int
    chosen: int  # of these that the model would run, as things stand
    trials: int | None  # None: not known here
    default_s: float | None
    best_s: float | None

    @property
    def weight_s(self) -> float:
        """Seconds of the model that are spent in it."""
        return self.chosen * (self.best_s or 0.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """A job at one moment, copied: the view is drawn on another thread than the one that tunes."""

    stage: Stage
    trials: int
    budget: int
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

    @property
    def doing(self) -> str:
        """What the job is at, for people."""
        return self.headline or STAGES[self.stage]

    @property
    def at(self) -> str:
        """The same, and how much of it is done."""
        return f"{self.doing}: {self.part}" if self.part else self.doing

    @staticmethod
    def of(progress: Progress) -> Moment:
        rows = (
            Line(t.task.op, t.occurrences, chosen, len(t.measured), t.default_s, t.best_s)
            for t, chosen in zip(progress.tasks, progress.chosen, strict=True)
        )
        tasks = tuple(sorted(rows, key=lambda row: -row.weight_s))
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
        )


Show = Callable[[Moment], None]


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """What a tuning job tells its progress to, shown on a console."""
    with showing(console) as show:
        last: Moment | None = None

        def watch(progress: Progress) -> None:
            nonlocal last
            if last is None or last.stage != progress.stage or time.monotonic() - last.taken_at > MOMENT_S:
                last = Moment.of(progress)
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
    """A table of the tasks and a line on the whole."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: Moment | None = None
        self._started = time.monotonic()
        self._resumed = ""

    def show(self, moment: Moment) -> None:
        last = self._last
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
        parts: list[RenderableType] = [self._table(last)]
        if said := last.note or self._resumed:
            parts.append(Text(said, style="dim"))
        parts.append(Text(f"{last.at}: {_summary(last, elapsed_s, left)}", style="bold"))
        return Group(*parts)

    def _table(self, last: Moment) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=44)
        for name in ("times", "trials", "default ms", "best ms", "speedup"):
            table.add_column(name, justify="right", no_wrap=True)
        room = max(self._console.height - OTHER_LINES, 3)
        shown = last.tasks if len(last.tasks) <= room else last.tasks[: room - 1]
        for row in shown:
            table.add_row(
                Text(printable(row.op)),
                uses(row.chosen, row.occurrences),
                "-" if row.trials is None else str(row.trials),
                ms(in_ms(row.default_s)),
                ms(in_ms(row.best_s)),
                gain(ratio(row.default_s, row.best_s)),
            )
        if len(shown) < len(last.tasks):
            table.add_row(Text(f"and {counted(len(last.tasks) - len(shown), 'lighter one')}", style="dim"))
        return table


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
        return (
            f"going on with the job: {first.trials} of {counted(first.budget, 'trial was', 'trials were')} done before"
        )
    if first.known:
        return f"{counted(first.known, 'trial of these tasks is', 'trials of these tasks are')} known from earlier jobs"
    return ""


def _summary(last: Moment, elapsed_s: float, left_s: float | None) -> str:
    parts = [f"{last.trials} of {counted(last.budget, 'trial')}", f"{clock(elapsed_s)} elapsed"]
    if last.speedup is not None:
        parts.insert(0, f"{times(last.speedup)} as fast so far" if is_clear(last.speedup) else "no gain so far")
    if left_s is not None and last.stage is Stage.SEARCHING:
        parts.append(f"about {clock(left_s)} left")
    if last.remaining_gain is not None and last.stage is Stage.SEARCHING:
        parts.append(f"{share(last.remaining_gain)} more expected")
    return ", ".join(parts)
