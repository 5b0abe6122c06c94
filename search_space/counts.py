"""Counts and enumerations in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def digits(count: float) -> str:
    """A number, in groups of three digits from 10,000 on."""
    return f"{count:,}" if count >= 10_000 else f"{count:g}"


def counted(count: float, noun: str, nouns: str = "") -> str:
    """A count with its noun, e.g. "1 trial" or "12 trials"; `nouns` is the plural where it takes more than an s."""
    return f"{digits(count)} {noun if count == 1 else nouns or f'{noun}s'}"


MOST_PERCENT = 10.0
"""How often a part may be its whole to be told as a percentage: nobody reads 40699%."""


def percentage(part: float, whole: str) -> str:
    """A part that may be larger than its whole, e.g. "25%", or "more than 10 times that" if that is the whole."""
    return f"{part:.0%}" if part <= MOST_PERCENT else f"more than {MOST_PERCENT:g} times {whole}"


def enumeration(parts: Sequence[str]) -> str:
    """Some things in a sentence: "i0, i1 and r0"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
