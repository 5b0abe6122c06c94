"""Rows: the tasks of the jobs that are compared, side by side, what changed and what each change makes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from pydantic import Field

from tunewright.search_space.schedule import Schedule
from tunewright.tuner.explain.comparison import ChangeCause, TimeFinding, task_change
from tunewright.tuner.explain.meanings import knob_words
from tunewright.tuner.text import ratio, ratio_within

from ...http.schemas.base import Answer
from ..job.tasks import TaskLine, total_ms
from ..views import ShortText, Text
from .sides import Side

MOST_KNOB_CHANGES = 8
"""Knobs of a schedule that are told of a task."""


class KnobChange(Answer):
    """A knob that differs between two schedules of one sketch."""

    name: ShortText
    words: Text = Field(description="What it is, for people; empty where the name says it.")
    before: int | None = Field(description="In the baseline; null: its schedule has no such knob.")
    now: int | None


class ScheduleChange(Answer):
    """What differs between the best schedules of a task."""

    sketch_before: ShortText = Field(description="The baseline's sketch with its version; empty where it is the same.")
    sketch_now: ShortText
    knobs: list[KnobChange] = Field(description="The first ones that differ, where the sketch is the same.")
    knob_count: int = Field(description="How many differ.")


class TaskCell(Answer):
    """A task on one side, and what became of it since the baseline."""

    default_ms: float | None
    best_ms: float | None = Field(description="Of its best schedule; null: not known.")
    best_interval_ms: tuple[float, float] | None = Field(description="95% interval of the median; null: not known.")
    is_confirmed: bool = Field(description="Whether it was timed beside the default, in fresh processes.")
    noise: Text = Field(description="Why the machine was too busy to rely on it; empty where it was not.")
    best_voided: bool = Field(description="Whether its schedule was taken back since.")
    uses: int = Field(description="How often the model runs it.")
    trials: int = Field(description="That the job made of it.")
    schedule: Text = Field(description="Key of the best schedule; empty: not known.")
    finding: TimeFinding | None = Field(
        description="What became of it since the baseline: `slower` or `faster` beyond both intervals, `equal` within "
        "them, `repeated` as it was not timed again, `unsure` where `why` keeps the two from being compared, `missing` "
        "in the baseline; null: this is the baseline."
    )
    why: Text
    cause: ChangeCause | None = Field(description="What else differs, of what is slower or faster.")
    cause_brief: Text = Field(description="The same for people; empty without.")
    cause_text: Text = Field(description="The same with all else that differs; empty without.")
    factor: float | None = Field(description="How many times as long as in the baseline it takes.")
    factor_interval: tuple[float, float] | None = Field(description="Within which that lies, by both intervals.")
    run_share: float | None = Field(
        description="What it takes of a run more than in the baseline, as a part of what all tasks take there."
    )
    part: float | None = Field(description="The part of that in what all tasks that changed the same way make.")
    difference: ScheduleChange | None = Field(description="Null where the schedules are equal, or one is not known.")

    @property
    def weight(self) -> float:
        """How much it changed a run; of tasks that no run is known of, or that none has, how much by itself."""
        return abs(self.run_share or 0.0) or 1e-9 * abs(log(self.factor or 1.0))


class ComparedTask(Answer):
    """A task, with what each side has of it."""

    key: Text
    op: Text = Field(description="What it is, for people.")
    cells: list[TaskCell | None] = Field(description="Null where a job has no such task.")

    def sides_of(self, finding: TimeFinding) -> list[tuple[int, TaskCell]]:
        """The sides of which that was found, with their numbers: first where it changed a run most."""
        cells = [(n, cell) for n, cell in enumerate(self.cells) if cell is not None and cell.finding is finding]
        return sorted(cells, key=lambda entry: -entry[1].weight)

    @property
    def differences(self) -> list[tuple[list[int], str, ScheduleChange | None]]:
        """What else differs from the baseline, in words and by schedule, with the numbers of the sides it is so on."""
        sides: dict[str, list[int]] = {}
        of_side: dict[str, tuple[str, ScheduleChange | None]] = {}
        for number, cell in enumerate(self.cells):
            if cell is not None and (cell.cause_text or cell.why or cell.difference):
                difference = (cell.cause_text or cell.why, cell.difference)
                sides.setdefault(repr(difference), []).append(number)
                of_side[repr(difference)] = difference
        return [(numbers, *of_side[name]) for name, numbers in sides.items()]


def task_rows(sides: Sequence[Side]) -> list[ComparedTask]:
    """All tasks that any side has, the first of which is the baseline: first those that became slower, by how much."""
    baseline, shares = sides[0], [_run_shares(sides[0], side) for side in sides]
    sums = [_sums(of_side) for of_side in shares]
    rows = []
    for key in dict.fromkeys(key for side in sides for key in side.tasks):
        op = next(side.tasks[key].op for side in sides if key in side.tasks)
        cells = [
            None
            if key not in side.tasks
            else _cell(side, key, None if side is baseline else baseline, shares[number].get(key), sums[number])
            for number, side in enumerate(sides)
        ]
        rows.append(ComparedTask(key=key, op=op, cells=cells))
    return sorted(rows, key=_order)


def _run_shares(baseline: Side, side: Side) -> dict[str, float]:
    """What each task takes of a run more than in the baseline, as a part of what all take there."""
    whole_ms = total_ms([line.after_ms for line in baseline.tasks.values()])
    if not whole_ms or side is baseline:
        return {}
    return {
        key: (line.after_ms - before.after_ms) / whole_ms
        for key, line in side.tasks.items()
        if (before := baseline.tasks.get(key)) and line.after_ms is not None and before.after_ms is not None
    }


def _sums(shares: Mapping[str, float]) -> tuple[float, float]:
    """What all tasks that take more make together, and all that take less."""
    return sum(share for share in shares.values() if share > 0), sum(share for share in shares.values() if share < 0)


def _cell(side: Side, key: str, baseline: Side | None, run_share: float | None, sums: tuple[float, float]) -> TaskCell:
    line = side.tasks[key]
    before = baseline.tasks.get(key) if baseline else None
    change = None if baseline is None else task_change(baseline.task_sides.get(key), side.task_sides[key])
    whole = None if run_share is None else sums[0] if run_share > 0 else sums[1]
    schedule = side.schedules.get(key)
    return TaskCell.show(
        line,
        schedule=schedule.key if schedule else "",
        finding=change and change.finding,
        why=change.why if change else "",
        cause=change and change.cause,
        cause_brief=change.cause_brief if change else "",
        cause_text=change.cause_text if change else "",
        factor=_factor(before, line),
        factor_interval=_factor_interval(before, line),
        run_share=run_share,
        part=run_share / whole if run_share is not None and whole else None,
        difference=_difference(baseline.schedules.get(key), schedule) if baseline else None,
    )


def _factor(before: TaskLine | None, now: TaskLine) -> float | None:
    return None if before is None else ratio(now.best_ms, before.best_ms)


def _factor_interval(before: TaskLine | None, now: TaskLine) -> tuple[float, float] | None:
    if before is None or not (before.is_confirmed and now.is_confirmed):
        return None
    return ratio_within(now.best_interval_ms, before.best_interval_ms)


def _difference(before: Schedule | None, now: Schedule | None) -> ScheduleChange | None:
    if before is None or now is None or before == now:
        return None
    if (before.sketch, before.version) != (now.sketch, now.version):
        sketches = (f"{schedule.sketch}, version {schedule.version}" for schedule in (before, now))
        return ScheduleChange(sketch_before=next(sketches), sketch_now=next(sketches), knobs=[], knob_count=0)
    values = dict(before.values), dict(now.values)
    names = [name for name in {**values[0], **values[1]} if values[0].get(name) != values[1].get(name)]
    knobs = [
        KnobChange(
            name=name,
            words=knob_words(name),
            before=values[0].get(name),
            now=values[1].get(name),
        )
        for name in names[:MOST_KNOB_CHANGES]
    ]
    return ScheduleChange(sketch_before="", sketch_now="", knobs=knobs, knob_count=len(names))


RANKS = {TimeFinding.SLOWER: 0, TimeFinding.FASTER: 1, TimeFinding.MISSING: 2}
"""The order of findings in a list: all others come last."""


def _order(row: ComparedTask) -> tuple[int, float, float]:
    """Slower tasks come first, and of each kind those that changed a run most; of all others the heaviest."""
    cells = [cell for cell in row.cells if cell is not None]
    is_partial = len(cells) < len(row.cells)
    ranks = [RANKS.get(cell.finding, 3) for cell in cells if cell.finding is not None]
    rank = min([*ranks, RANKS[TimeFinding.MISSING]] if is_partial else ranks, default=3)
    time_ms = max((cell.uses * (cell.best_ms or 0.0) for cell in cells), default=0.0)
    return rank, -max(cell.weight for cell in cells) if rank < RANKS[TimeFinding.MISSING] else 0.0, -time_ms
