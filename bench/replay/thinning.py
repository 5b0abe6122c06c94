"""Thinned spaces: small enough to be measured whole. What is legal and what a point means stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tunewright.search_space.space import ENUMERABLE, Knob, Space


def thinned(space: Space, most: int) -> Space:
    """The space with fewer choices a knob, so that at most `most` points are legal: all those if it has no more.

    The knob with the most choices loses one, again and again. What stays is spread evenly, the ends and the default's
    choice among it, so that a thinned space has the same shape as the whole.
    """
    lengths = [len(knob.choices) for knob in space.knobs]
    while True:
        small = _cut(space, lengths)
        if small.size <= ENUMERABLE and len(small.points) <= most:
            return small
        lengths[int(np.argmax(lengths))] -= 1


def _cut(space: Space, lengths: Sequence[int]) -> Space:
    if prod(lengths) > ENUMERABLE:
        return space
    default = dict(space.default.values)
    knobs = [_spread(knob, default[knob.name], length) for knob, length in zip(space.knobs, lengths, strict=True)]
    return replace(space, knobs=tuple(knobs))


def _spread(knob: Knob, kept: int, count: int) -> Knob:
    """`count` choices, evenly over all of them; the nearest to `kept` gives way to it."""
    places = np.rint(np.linspace(0, len(knob.choices) - 1, count)).astype(int)
    place = knob.choices.index(kept)
    places[int(np.argmin(np.abs(places - place)))] = place
    return Knob(knob.name, tuple(knob.choices[n] for n in np.unique(places)))
