"""Scales: from values to places along an axis, with ticks at round values, told in words of their unit.

Source of the ticks: steps of 1, 2 and 5 times a power of ten; on a log scale whole decades, or the same three in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, floor, isfinite, log10

from tunewright.tuner.text import clock, duration


class Unit(StrEnum):
    """What the numbers of an axis are."""

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
class Axis:
    """What one axis says. `include` are values that it reaches, whatever the data are."""

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
        """Where the value is; values outside are at the end that is nearest."""
        if self.is_log:
            if value <= self.low:
                return 0.0
            part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(max(part, 0.0), 1.0)

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


def scale(values: Iterable[float], axis: Axis, pad: float = 0.0) -> Scale:
    """The scale on which all values are that fit the axis, and those that it includes.

    `pad` parts of its length are left free at each end that no included value is.
    """
    kept = [float(value) for value in (*values, *axis.include) if axis.fits(value)]
    low, high = min(kept, default=1.0 if axis.is_log else 0.0), max(kept, default=1.0)
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


def _multiples(low: float, high: float, step: float) -> list[float]:
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
    found: list[float] = []
    step = 1.0
    for step in _steps(low, high, most, unit):
        if (high - low) / step > most + 1:
            continue
        found = _multiples(low, high, step)
        if len(found) <= most:
            break
    if len(found) < 4 and unit is not Unit.CLOCK and (unit is not Unit.COUNT or (step / 2).is_integer()):
        halves = _multiples(low, high, step / 2)  # 2.5, where 2 gives too many and 5 hardly any
        found = halves if len(halves) <= most else found
    return found or [high]


def _log_ticks(low: float, high: float, most: int, unit: Unit) -> list[float]:
    if unit is Unit.CLOCK:
        found = [float(value) for value in _CLOCK_LOG_S if low <= value <= high]
        if 2 <= len(found) <= most:
            return found
    least = 0 if unit is Unit.COUNT else floor(log10(low))
    decades = range(max(floor(log10(low)), least), ceil(log10(high)) + 1)
    for mantissas in ((1, 2, 5), (1, 3), (1,)):
        values = [float(f"{m}e{exponent}") for exponent in decades for m in mantissas]
        found = [value for value in values if low <= value <= high]
        if len(found) <= most:
            is_enough = len(found) > 2 or (len(found) == 2 and high / low >= 10)
            return found if is_enough else _linear_ticks(low, high, most, unit)
    powers = [exponent for exponent in decades if low <= float(f"1e{exponent}") <= high]
    stride = ceil(len(powers) / most)
    return [float(f"1e{exponent}") for exponent in powers if exponent % stride == 0][:most]


_LETTERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _short(value: float, digits: int, space: str) -> str:
    """A large number with the letter of its thousands."""
    for size, letter in _LETTERS:
        if abs(value) >= size:
            return f"{value / size:,.{digits}g}{space}{letter}"
    return f"{value:.{digits}g}"


def _time(value_s: float, digits: int) -> str:
    for size_s, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if abs(value_s) >= size_s * (1 - 1e-9) or unit == "ns":
            return f"{value_s / size_s:,.{max(digits, 4) if unit == 's' else digits}g} {unit}"
    raise AssertionError("the last unit is for all that is left")


def _clock(value_s: float, digits: int) -> str:
    for size_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        part = value_s / size_s
        if part >= 1 and part == round(part):
            return f"{part:,.{digits}g} {unit}"
    return f"{value_s:,.{digits}g} s"


def _written(unit: Unit, digits: int) -> Callable[[float], str]:
    """How a value other than zero is written with so many digits that count."""
    match unit:
        case Unit.PLAIN:
            return lambda value: f"{value:,.{digits}g}" if abs(value) < 1e5 else _short(value, digits, "")
        case Unit.COUNT:
            return lambda value: f"{value:,.0f}" if abs(value) < 1e4 else _short(value, digits, "")
        case Unit.TIME:
            return lambda value: _time(value, digits)
        case Unit.CLOCK:
            return lambda value: _clock(value, digits)
        case Unit.RATE:
            return lambda value: _short(value, digits, " ")
        case Unit.SHARE:
            return lambda value: f"{100 * value:.{digits}g}%"
        case Unit.TIMES:
            return lambda value: f"{value:,.{digits}g}x"


def labels(values: list[float], unit: Unit) -> list[str]:
    """The values in words of their unit, with as few digits as tell them apart."""
    texts: list[str] = []
    for digits in range(3, 17):
        write = _written(unit, digits)
        texts = ["0" if value == 0 else write(value) for value in values]
        if len(set(texts)) == len(texts) and not any("e+" in text for text in texts):
            break
    return texts


def told(value: float, unit: Unit) -> str:
    """One value in words, with three digits that count, as tooltips and descriptions have it."""
    match unit:
        case Unit.TIME:
            return duration(1e3 * value)
        case Unit.CLOCK:
            return clock(value)
        case Unit.SHARE:
            return f"{100 * value:.1f}%"
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
    moved = list(places)
    edge = low
    for n in order:
        moved[n] = edge = max(moved[n], edge)
        edge += gap
    edge = high
    for n in reversed(order):
        moved[n] = edge = min(moved[n], edge)
        edge -= gap
    return moved
