"""Counts and enumerations in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def digits(count: float) -> str:
    """A number, in groups of three digits from 10,000 on."""
    return f"{count:,}" if count >= 10_000 else f"{count:g}"


def counted(count: float, noun: str, nouns: str = "") -> str:
    """A count with its noun, e.g. "1 trial" or "12 trials"; `nouns` is the plural where it takes more than an s."""
    return f"{digits(count)} {noun if count == 1 else nouns or f'{noun}s'}"


def enumeration(parts: Sequence[str]) -> str:
    """Some things in a sentence: "i0, i1 and r0"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
