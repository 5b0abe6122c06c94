"""Verdict: what became of a job since the baseline, in sentences: the first answer of the page and of the command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tunewright.tuner.explain.comparison import TimeChange, TimeFinding
from tunewright.tuner.search.report import JobOutcome
from tunewright.tuner.text import between_ms, change, counted, duration, mark_noise, ratio

from ..job.tasks import Latency
from .rows import ComparedTask, TaskCell
from .sides import Side, SideMoment

MOST_TOLD = 3
"""Tasks that a sentence names."""

FOR_CERTAIN = {TimeFinding.SLOWER: "is slower", TimeFinding.FASTER: "is faster"}


def verdict_of(number: int, sides: Sequence[Side], run: TimeChange, rows: Sequence[ComparedTask]) -> list[str]:
    """The sentences about one side: on the whole model, on its tasks, and on what can't be told."""
    side, baseline = sides[number], sides[0]
    cells = [(row, cell) for row in rows if (cell := row.cells[number]) is not None]
    both = [(row, cell) for row, cell in cells if row.cells[0] is not None]
    counts = Counter(cell.finding for _, cell in both)
    return [
        *_run_sentence(baseline, side, run),
        *_tasks_sentence(TimeFinding.SLOWER, both),
        *([] if counts[TimeFinding.SLOWER] or not both else _no_slower(counts)),
        *_tasks_sentence(TimeFinding.FASTER, both),
        *_rest(both, len(cells) - len(both), sum(row.cells[number] is None for row in rows)),
    ]


def brief_of(side: Side, baseline: Side, run: TimeChange, cells: Sequence[TaskCell]) -> str:
    """The verdict in short, e.g. "a run is slower, +10.0%; 2 tasks slower, 1 faster"."""
    is_told = side.moment is SideMoment.END and baseline.moment is SideMoment.END
    factor = ratio(side.run.latency.tuned_ms, baseline.run.latency.tuned_ms)
    parts = []
    if is_told and run.finding is TimeFinding.EQUAL:
        parts.append("a run is neither slower nor faster for certain")
    elif is_told and run.finding in FOR_CERTAIN:
        parts.append(f"a run {FOR_CERTAIN[run.finding]}{f', {change(factor, 1)}' if factor else ''}")
    counts = Counter(cell.finding for cell in cells)
    slower, faster = counts[TimeFinding.SLOWER], counts[TimeFinding.FASTER]
    is_changed = slower or faster
    parts.append(f"{counted(slower, 'task')} slower, {faster} faster" if is_changed else "no task changed for certain")
    return "; ".join(parts)


def _run_sentence(baseline: Side, side: Side, run: TimeChange) -> list[str]:
    """What became of a run of the whole model."""
    if side.moment is not SideMoment.END or baseline.moment is not SideMoment.END:
        return []  # at another moment the whole model was not timed
    before, now = baseline.run.latency, side.run.latency
    times = [
        f"{mark_noise(duration(latency.tuned_ms), latency.noise)}{between_ms(latency.tuned_interval_ms)}"
        for latency in (now, before)
    ]
    if run.finding is TimeFinding.UNSURE and not (before.is_timed and now.is_timed):
        return [f"Runs of the whole model are not compared: {run.why}."]
    factor = ratio(now.tuned_ms, before.tuned_ms)
    if run.finding is TimeFinding.UNSURE:
        return [f"A run of the whole model takes {times[0]}, was {times[1]}; that is not compared: {run.why}."]
    figures = f"{times[0]}, was {times[1]}{f': {change(factor, 1)}' if factor else ''}"
    if run.finding is TimeFinding.EQUAL:
        return [f"A run of the whole model is neither slower nor faster for certain: {figures}."]
    kept = " The defaults are used." if side.run.latency.outcome is JobOutcome.DEFAULTS_KEPT else ""
    default = _default_sentence(before, now, run.finding)
    return [f"A run of the whole model {FOR_CERTAIN[run.finding]}: {figures}.{kept}{default}"]


def _default_sentence(before: Latency, now: Latency, finding: TimeFinding) -> str:
    """That a run by default became slower or faster as well, if it did beyond both intervals: no schedule does that."""
    was, became = before.default_interval_ms, now.default_interval_ms
    factor = ratio(now.default_ms, before.default_ms)
    if was is None or became is None or factor is None:
        return ""
    is_so = became[0] > was[1] if finding is TimeFinding.SLOWER else became[1] < was[0]
    return (
        f" Its default is {finding.value} too, {change(factor, 1)}: it is the machine or versions, not the schedules."
        if is_so
        else ""
    )


def _tasks_sentence(finding: TimeFinding, cells: Sequence[tuple[ComparedTask, TaskCell]]) -> list[str]:
    """How many tasks are slower or faster for certain, and the first of them."""
    flagged = [(row, cell) for row, cell in cells if cell.finding is finding]
    if not flagged:
        return []
    texts = [_task_text(row, cell) for row, cell in flagged[:MOST_TOLD]]
    more = [f"and {len(flagged) - MOST_TOLD} more"] if len(flagged) > MOST_TOLD else []
    verb = "is" if len(flagged) == 1 else "are"
    return [f"{len(flagged)} of {counted(len(cells), 'task')} {verb} {finding.value}: {'; '.join([*texts, *more])}."]


def _task_text(row: ComparedTask, cell: TaskCell) -> str:
    factor = "" if cell.factor is None else f" {change(cell.factor, 1)}"
    cause = f" ({cell.cause_brief})" if cell.cause_brief else ""
    return f"{row.op or row.key[:12]}{factor}{cause}"


def _no_slower(counts: Counter[TimeFinding | None]) -> list[str]:
    """That no task is slower, of those that may be compared."""
    compared = counts[TimeFinding.EQUAL] + counts[TimeFinding.FASTER]
    return [f"Of {counted(compared, 'task')} that can be compared none is slower for certain."] if compared else []


def _rest(cells: Sequence[tuple[ComparedTask, TaskCell]], added: int, gone: int) -> list[str]:
    """What nothing can be told of: tasks that may not be compared, were not timed again, or that one side lacks."""
    whys = Counter(cell.why for _, cell in cells if cell.finding is TimeFinding.UNSURE)
    repeated = sum(cell.finding is TimeFinding.REPEATED for _, cell in cells)
    sentences = []
    if whys:
        [(why, count)] = whys.most_common(1)
        reason = why if count == whys.total() else f"mostly {why}"
        sentences.append(f"{counted(whys.total(), 'task')} can't be compared: {reason}.")
    if repeated:
        sentences.append(f"{counted(repeated, 'task')} {'was' if repeated == 1 else 'were'} not timed again.")
    if added or gone:
        parts = [f"{count} {where}" for count, where in ((added, "only here"), (gone, "only in the baseline")) if count]
        sentences.append(f"Tasks that one side lacks: {', '.join(parts)}.")
    return sentences
