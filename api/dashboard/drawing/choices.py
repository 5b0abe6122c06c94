"""Scales of what is no plain number: a few choices, each at a tick of its own, moments, and what ends in a word."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil

from .scales import CLOCK_S, Scale, Tick, steps_within


@dataclass(frozen=True, slots=True)
class ChoiceScale(Scale):
    """Choices beside each other at equal distances, in ascending order; what is none of them is at the next one."""

    values: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()

    @staticmethod
    def of(texts: dict[float, str]) -> ChoiceScale:
        """The scale of choices, each with its text."""
        values = tuple(sorted(texts))
        return ChoiceScale(values[0], values[-1], values=values, texts=tuple(texts[value] for value in values))

    def place(self, value: float) -> float:
        """The middle of the part that a choice has of the scale."""
        return (min(bisect_left(self.values, value), len(self.values) - 1) + 0.5) / len(self.values)

    def ticks(self, most: int = 6) -> list[Tick]:
        """At most so many choices, evenly thinned out."""
        stride = ceil(len(self.values) / max(most, 1))
        chosen = list(zip(self.values, self.texts, strict=True))[::stride]
        return [Tick(value, self.place(value), text) for value, text in chosen]

    def ticks_within(self, room: float, gap: float = 2.5) -> list[Tick]:
        """The most choices whose texts have room beside each other; both in characters."""
        for most in range(len(self.values), 1, -1):
            ticks = self.ticks(most)
            if all((b.place - a.place) * room >= (len(a.text) + len(b.text)) / 2 + gap for a, b in pairwise(ticks)):
                return ticks
        return self.ticks(1)


@dataclass(frozen=True, slots=True)
class MomentScale(Scale):
    """Moments in UTC, as seconds since 1970."""

    def ticks(self, most: int = 6) -> list[Tick]:
        """At most so many round moments."""
        span_s = self.high - self.low
        days = ceil(span_s / 86_400 / max(most - 1, 1))
        step_s = next((step for step in CLOCK_S if span_s / step <= most - 1), 86_400 * max(days, 1))
        form = "%Y-%m-%d" if step_s >= 86_400 else "%m-%d %H:%M" if step_s >= 60 else "%H:%M:%S"
        moments = steps_within(self.low, self.high, step_s) or [self.low]
        return [Tick(value, self.place(value), f"{datetime.fromtimestamp(value, UTC):{form}}") for value in moments]


BESIDE = 0.08
"""A number nearer to a word than this, in parts of the scale, has no room beside it."""


@dataclass(frozen=True, slots=True)
class CutScale(Scale):
    """A scale that ends before a few values far off: they are at that end, where a word stands for the number."""

    word: str = ""
    is_low: bool = False  # whether that is the lower end

    @staticmethod
    def of(scale: Scale, word: str, is_low: bool) -> CutScale:
        """A scale of the other values, cut off at one end."""
        return CutScale(scale.low, scale.high, scale.unit, scale.is_log, word, is_low)

    def ticks(self, most: int = 6) -> list[Tick]:
        """At most so many round values beside the word."""
        end = Tick(self.low, 0.0, self.word) if self.is_low else Tick(self.high, 1.0, self.word)
        ticks = [tick for tick in Scale.ticks(self, max(most - 1, 2)) if abs(tick.place - end.place) > BESIDE]
        return [end, *ticks] if self.is_low else [*ticks, end]
