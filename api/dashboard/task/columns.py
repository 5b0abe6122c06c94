"""Columns of trials: what each trial has of them, the axes that they make, and the ranges that are chosen of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite

from tunewright.codegen.fields import quote
from tunewright.db.trial import TrialLine
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Status
from tunewright.tuner.explain.meanings import knob_words
from tunewright.tuner.text import rounded

from ..drawing.choices import ChoiceScale, CutScale, MomentScale
from ..drawing.parallel import BrushAxis
from ..drawing.scales import AxisSpec, Scale, Unit, scale
from ..views import MOST_KNOBS

KNOB = "knob."
"""What the name of a knob's column begins with."""

MOST_CHOICES = 16
"""So many values of a knob are choices, each with a tick; more are numbers."""

LOG_FROM = 30.0
"""The axis of a knob is logarithmic where its values differ by such a factor."""

CUT_WITHIN, CUT_FROM = 0.98, 1.25
"""An axis of times ends behind this part of the trials where the slowest takes so many times as long as they do."""

FEWEST_CUT = 50
"""With fewer trials it reaches to the slowest."""

BEST = 20
"""So many of the fastest are drawn thick, but no more than a tenth."""

LONGEST_RANGE = 60
"""Longest text of a range, in characters."""

_NUMBER = r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[+-]?[0-9]{1,3})?"
_RANGE = re.compile(rf"\s*({_NUMBER})?\s*\.\.\s*({_NUMBER})?\s*|\s*({_NUMBER})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """A range of values with both its ends, in the units of addresses."""

    low: float = -inf
    high: float = inf

    @staticmethod
    def of(text: str) -> ValueRange:
        """`8..32`, `8..`, `..32`, or a single value. Raises ValueError."""
        match = _RANGE.fullmatch(text) if len(text) <= LONGEST_RANGE else None
        if match is None:
            raise ValueError(f"{quote(text, 80)} is no range: write one as 8..32, 8.., ..32, or one number")
        low, high, only = (None if part is None else float(part) for part in match.groups())
        if only is not None:
            low = high = only
        found = ValueRange(-inf if low is None else low, inf if high is None else high)
        if found.low > found.high or not all(isfinite(end) for end in (low, high) if end is not None):
            raise ValueError(f"{quote(text, 80)} is no range: its first number must not be above its last one")
        return found

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:.12g}"
        low, high = ("" if abs(end) == inf else f"{end:.12g}" for end in (self.low, self.high))
        return f"{low}..{high}"

    def holds(self, value: float | None) -> bool:
        """Whether a value is within it: what has none is not."""
        return value is not None and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Column:
    """A column of trials. Values are in the units of axes: seconds, FLOP/s."""

    name: str  # in addresses
    label: str
    unit: Unit = Unit.PLAIN
    is_log: bool = False
    factor: float = 1.0  # from its values to those in addresses
    words: str = ""  # what it is
    written: str = ""  # the unit of addresses
    is_brushable: bool = True

    @property
    def knob(self) -> str | None:
        """The knob that it is of."""
        return self.name.removeprefix(KNOB) if self.name.startswith(KNOB) else None

    def axis(self, values: Sequence[float | None], chosen: ValueRange | None, fails: bool = False) -> BrushAxis:
        """Its axis for these values."""
        known = sorted({value for value in values if value is not None})
        ends = None if chosen is None else (chosen.low / self.factor, chosen.high / self.factor)
        spec = AxisSpec(self.label, self.unit, self.is_log)
        if self.knob is not None and known and len(known) <= MOST_CHOICES:
            across: Scale = ChoiceScale.of({value: f"{value:,.15g}" for value in known})
        elif self.unit is Unit.CLOCK:
            across = MomentScale(min(known, default=0.0), max(known, default=0.0) + 1.0)
        else:
            is_log = self.is_log or (self.knob is not None and known[:1] > [0.0] and known[-1] / known[0] >= LOG_FROM)
            spec = AxisSpec(self.label, self.unit, is_log)
            across = self._cut(values, spec) or scale(known, spec, 0.02)
        drawn = [value if value is not None and spec.fits(value) else None for value in values]
        return BrushAxis(
            self.name,
            self.label,
            across,
            drawn,
            chosen=ends,
            factor=self.factor,
            words=self.words,
            fails=fails,
            is_brushable=self.is_brushable,
            is_whole=self.factor == 1.0,
        )

    def _cut(self, values: Sequence[float | None], spec: AxisSpec) -> CutScale | None:
        """A scale that ends before the slowest few where these are far off; None where they are not."""
        known = sorted(value for value in values if value is not None and spec.fits(value))
        if self.unit not in (Unit.TIME, Unit.RATE) or len(known) < FEWEST_CUT:
            return None
        beyond = int((1.0 - CUT_WITHIN) * len(known))
        is_low = self.unit is Unit.RATE  # the slow ones do little in a second
        within = known[beyond:] if is_low else known[: len(known) - beyond]
        apart = within[0] / known[0] if is_low else known[-1] / within[-1]
        return CutScale.of(scale(within, spec, 0.02), "slower", is_low) if apart >= CUT_FROM else None


TIME = Column("time", "time", Unit.TIME, True, 1e3, "Time as a trial.", "ms")
GFLOPS = Column("gflops", "FLOP/s", Unit.RATE, True, 1e-9, "Operations of the task by its time.", "GFLOP/s")
PREDICTED = Column("predicted", "predicted time", Unit.TIME, True, 1e3, "By the newest cost model.", "ms")
TRIAL = Column("trial", "trial of its job", Unit.COUNT, words="1, 2, 3, ... within its job.")
JOB = Column("job", "job", Unit.COUNT, words="Number of the job that measured it.", is_brushable=False)
CREATED = Column("created", "when (UTC)", Unit.CLOCK, words="When it was stored.", is_brushable=False)

PLAIN_COLUMNS = (TIME, GFLOPS, PREDICTED, TRIAL, JOB, CREATED)
"""The columns that all trials have, whatever their knobs."""

RANGED = tuple(column.name for column in PLAIN_COLUMNS if column.is_brushable)
"""Those with ranges in addresses."""


def knob_column(knob: str) -> Column:
    """The column of a knob."""
    return Column(KNOB + knob, knob, words=knob_words(knob))


@dataclass(frozen=True)
class TrialColumns:
    """Trials of a task, and their columns."""

    task: Task
    lines: Sequence[TrialLine]
    predicted_s: Mapping[int, float]  # by id
    columns: Mapping[str, Column] = field(init=False)  # by name: the plain ones, then the knobs that all of them have
    _values: dict[str, list[float | None]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        names: dict[str, None] = dict.fromkeys(name for line in self.lines[:1] for name, _ in line.schedule.values)
        for shape in {tuple(name for name, _ in line.schedule.values) for line in self.lines}:
            names = {name: None for name in names if name in shape}
        knobs = [knob_column(name) for name in list(names)[:MOST_KNOBS]]
        object.__setattr__(self, "columns", {column.name: column for column in (*PLAIN_COLUMNS, *knobs)})

    def values(self, name: str) -> list[float | None]:
        """The values of a column by its name, of all trials; None where they have no such column."""
        if name not in self._values:
            self._values[name] = [self.value(line, name) for line in self.lines]
        return self._values[name]

    def value(self, line: TrialLine, name: str) -> float | None:
        """The value of a trial."""
        match name:
            case "time":
                return time_s(line)
            case "gflops":
                taken_s = time_s(line)
                return self.task.flops / taken_s if taken_s and self.task.flops else None
            case "predicted":
                return self.predicted_s.get(line.id)
            case "trial":
                return None if line.ordinal is None else line.ordinal + 1
            case "job":
                return line.job_id
            case "created":
                return line.created_at.timestamp()
        knob = name.removeprefix(KNOB)
        value = None
        for known, number in line.schedule.values:
            if known == knob:
                value = number
                break
        return None if value is None or abs(value) > 1e15 else float(value)  # beyond, numbers are not exact

    @cached_property
    def varied(self) -> list[str]:
        """The knobs that have more than one value."""
        knobs = [column.knob for column in self.columns.values() if column.knob is not None]
        return [knob for knob in knobs if len(set(self.values(KNOB + knob))) > 1]

    def holds(self, line: TrialLine, ranges: Mapping[str, ValueRange]) -> bool:
        """Whether a trial is within all ranges, by the names of columns."""
        for name, chosen in ranges.items():
            column = self.columns.get(name) or knob_column(name.removeprefix(KNOB))
            value = self.value(line, name)
            # A value that was typed as a table shows it is within the range.
            if not chosen.holds(None if value is None else rounded(value * column.factor, 12)):
                return False
        return True


def time_s(line: TrialLine) -> float | None:
    """The time of a trial that worked."""
    return line.median_s if line.status is Status.OK and line.median_s else None


def best_of(lines: Sequence[TrialLine]) -> list[TrialLine]:
    """The best of some trials, the fastest first."""
    timed = sorted((line for line in lines if time_s(line)), key=lambda line: (time_s(line), line.id))
    return timed[: min(BEST, -(-len(timed) // 10))]
