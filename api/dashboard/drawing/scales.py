"""Scales: from values to places along an axis, with ticks at round values, labelled in their unit.

Source of the ticks: steps of 1, 2 and 5 times a power of ten; on a log scale whole decades, or the same three in each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, floor, isfinite, log10

from tunewright.tuner.text import clock, duration


class Unit(StrEnum):
    """The unit of an axis."""

    PLAIN = "plain"
    COUNT = "count"  # of things, so ticks are whole
    TIME = "time"  # seconds that a kernel or a model takes
    CLOCK = "clock"  # seconds that people wait
    RATE = "rate"  # so many a second
    SHARE = "share"  # parts of one
    TIMES = "times"  # a ratio of times


SMALLEST, LARGEST = 1e-100, 1e100
"""Sizes of values that are drawn: those beyond come from faults, and arithmetic with them overflows."""


def is_drawable(value: float) -> bool:
    """Whether a value has a place on some axis: it is finite and not absurd."""
    return isfinite(value) and abs(value) < LARGEST


@dataclass(frozen=True, slots=True)
class AxisSpec:
    """An axis: its label and unit. `include` are values that it reaches, whatever the data are."""

    label: str
    unit: Unit = Unit.PLAIN
    is_log: bool = False
    include: tuple[float, ...] = ()

    def fits(self, value: float) -> bool:
        """Whether the axis has a place for the value: log axes have none for zero, and no axis for NaN."""
        return is_drawable(value) and (value > SMALLEST or not self.is_log)


@dataclass(frozen=True, slots=True)
class Tick:
    """A round value, its place (0..1) and how it is written."""

    value: float
    place: float
    text: str


CLOCK_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_CLOCK_LOG_S = (1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)
_WIDEST = 1e-9
"""A linear scale narrower than this, in parts of its values, would have ticks that rounding makes alike."""


@dataclass(frozen=True, slots=True)
class Scale:
    """From values in [low, high] to places in [0, 1]; `scale` makes them."""

    low: float
    high: float
    unit: Unit = Unit.PLAIN
    is_log: bool = False

    def place(self, value: float) -> float:
        """The place of a value; values outside are at the nearest end."""
        if self.is_log:
            if value <= self.low:
                return 0.0
            part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(max(part, 0.0), 1.0)

    def value(self, place: float) -> float:
        """The value at a place, the other way round than `place`."""
        if self.is_log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + (self.high - self.low) * place

    def ticks(self, most: int = 6) -> list[Tick]:
        """At most `most` round values within the scale, at least one and mostly three or more."""
        values = (_log_ticks if self.is_log else _linear_ticks)(self.low, self.high, max(most, 2), self.unit)
        return [
            Tick(value, self.place(value), text) for value, text in zip(values, labels(values, self.unit), strict=True)
        ]

    def ticks_within(self, room: float, gap: float = 2.5) -> list[Tick]:
        """The most ticks, of at most eight, whose texts have room beside each other; both in characters."""
        for most in range(8, 2, -1):
            ticks = self.ticks(most)
            if all((b.place - a.place) * room >= (len(a.text) + len(b.text)) / 2 + gap for a, b in pairwise(ticks)):
                return ticks
        ticks = self.ticks(2)
        return [ticks[0], ticks[-1]] if len(ticks) > 1 else ticks


def scale(values: Iterable[float], axis: AxisSpec, pad: float = 0.0) -> Scale:
    """The scale on which all values are that fit the axis, and those that it includes.

    `pad` parts of its length are left free at each end that no included value is.
    """
    drawable = [float(value) for value in (*values, *axis.include) if axis.fits(value)]
    low, high = min(drawable, default=1.0 if axis.is_log else 0.0), max(drawable, default=1.0)
    free_low, free_high = low not in axis.include, high not in axis.include
    if axis.is_log:
        if high / low < 1.01:
            return Scale(low / 1.25, high * 1.25, axis.unit, True)
        ratio = (high / low) ** pad
        return Scale(low / ratio if free_low else low, high * ratio if free_high else high, axis.unit, True)
    if high - low <= max(_WIDEST * max(abs(low), abs(high)), SMALLEST):
        wide = max(abs(high) / 4, 1.0 if axis.unit in (Unit.COUNT, Unit.CLOCK) or abs(high) <= SMALLEST else 0.0)
        return Scale(low if low == 0 else low - wide, high + wide, axis.unit)
    wide = (high - low) * pad
    return Scale(low - wide if free_low else low, high + wide if free_high else high, axis.unit)


def steps_within(low: float, high: float, step: float) -> list[float]:
    """All multiples of a step from `low` to `high`, rounding forgiven."""
    slack = 1e-9 * (high - low) / step
    first, last = ceil(low / step - slack), floor(high / step + slack)
    # A step below one is a decimal fraction, of which only the quotient by its inverse is the nearest number.
    inverse = round(1 / step) if step < 1 else 0
    return [min(max(k / inverse if inverse else k * step, low), high) for k in range(first, last + 1)]


def _steps(low: float, high: float, most: int, unit: Unit) -> Iterable[float]:
    """Round steps, small ones first, from one that gives too many ticks on."""
    rough = (high - low) / most
    if unit is Unit.CLOCK and rough > 0.5:
        yield from CLOCK_S
        rough /= 86_400
        days = 86_400.0
    else:
        days = 1.0
    power = floor(log10(rough)) - 1
    for exponent in range(power, power + 4):
        for mantissa in (1, 2, 5):
            step = mantissa * 10.0**exponent if exponent >= 0 else mantissa / 10.0**-exponent
            if unit is not Unit.COUNT or step >= 1:
                yield step * days


def _linear_ticks(low: float, high: float, most: int, unit: Unit) -> list[float]:
    ticks: list[float] = []
    step = 1.0
    for step in _steps(low, high, most, unit):
        if (high - low) / step > most + 1:
            continue
        ticks = steps_within(low, high, step)
        if len(ticks) <= most:
            break
    if len(ticks) < 4 and unit is not Unit.CLOCK and (unit is not Unit.COUNT or (step / 2).is_integer()):
        halves = steps_within(low, high, step / 2)  # 2.5, where 2 gives too many and 5 hardly any
        ticks = halves if len(halves) <= most else ticks
    return ticks or [high]


def _log_ticks(low: float, high: float, most: int, unit: Unit) -> list[float]:
    if unit is Unit.CLOCK:
        ticks = [float(value) for value in _CLOCK_LOG_S if low <= value <= high]
        if 2 <= len(ticks) <= most:
            return ticks
    least = 0 if unit is Unit.COUNT else floor(log10(low))
    decades = range(max(floor(log10(low)), least), ceil(log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        values = [float(f"{m}e{exponent}") for exponent in decades for m in mantissas]
        ticks = [value for value in values if low <= value <= high]
        if len(ticks) <= most:
            is_enough = len(ticks) > 2 or (len(ticks) == 2 and high / low >= 10)
            return ticks if is_enough else _linear_ticks(low, high, most, unit)
    powers = [exponent for exponent in decades if low <= float(f"1e{exponent}") <= high]
    stride = ceil(len(powers) / most)
    return [float(f"1e{exponent}") for exponent in powers if exponent % stride == 0][:most]


_LETTERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SIZES = {
    Unit.PLAIN: _LETTERS,
    Unit.COUNT: _LETTERS,
    Unit.RATE: tuple((size, f" {letter}".rstrip()) for size, letter in _LETTERS),
    Unit.TIME: ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")),
    Unit.CLOCK: ((86_400.0, " d"), (3600.0, " h"), (60.0, " min"), (1.0, " s")),
}
"""What values are divided by before they are written, and what stands behind them; the last is for all that is left."""


def _write(value: float, unit: Unit, digits: int) -> str:
    """How a value other than zero is written with so many digits that count. People's time is in whole parts."""
    if unit is Unit.SHARE:
        return f"{100 * value:.{digits}g}%"
    if unit is Unit.TIMES:
        return f"{value:,.{digits}g}x"
    if unit in (Unit.PLAIN, Unit.COUNT) and abs(value) < (1e5 if unit is Unit.PLAIN else 1e4):
        return f"{value:,.{digits}g}" if unit is Unit.PLAIN else f"{value:,.0f}"
    for size, letter in _SIZES[unit]:
        is_whole = unit is not Unit.CLOCK or (value / size).is_integer()
        if (abs(value) >= size * (1 - 1e-9) and is_whole) or size == _SIZES[unit][-1][0]:
            return f"{value / size:,.{max(digits, 4) if letter == ' s' and unit is Unit.TIME else digits}g}{letter}"
    raise AssertionError("the last size is for all that is left")


_DIGITS = 7
"""So many digits a tick has at most, unless it takes more to tell it from the next."""


def labels(values: list[float], unit: Unit) -> list[str]:
    """The values in words of their unit, with as few digits as tell them apart; several of them are not rounded."""
    texts: list[str] = []
    whole = _texts(values, unit, _DIGITS)
    for digits in range(3, 17):
        texts = _texts(values, unit, digits)
        is_whole = len(values) == 1 or texts == whole or digits > _DIGITS
        if is_whole and len(set(texts)) == len(texts) and not any("e+" in text for text in texts):
            break
    return texts


def _texts(values: list[float], unit: Unit, digits: int) -> list[str]:
    return ["0" if value == 0 else _write(value, unit, digits) for value in values]


def value_text(value: float, unit: Unit) -> str:
    """A value in its unit with three significant digits, as in tooltips and descriptions."""
    match unit:
        case Unit.TIME:
            return duration(1e3 * value)
        case Unit.CLOCK:
            return clock(value)
        case Unit.SHARE:
            return f"{100 * value:z.1f}%"
        case Unit.TIMES:
            return f"{value:.2f}x"
        case Unit.COUNT:
            return f"{value:,.0f}"
        case _:
            return labels([value], unit)[0]


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places moved apart, so that neighbours are `gap` from each other and all within [low, high] where that can be.

    Their order stays as it is, and none moves further than it must downwards, then upwards.
    """
    order = sorted(range(len(places)), key=lambda n: places[n])
    adjusted = list(places)
    edge = low
    for n in order:
        adjusted[n] = edge = max(adjusted[n], edge)
        edge += gap
    edge = high
    for n in reversed(order):
        adjusted[n] = edge = min(adjusted[n], edge)
        edge -= gap
    return adjusted
