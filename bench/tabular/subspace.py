"""Thinned spaces, small enough to be measured completely. Legality and meaning of points stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tunewright.search_space.space import ENUMERABLE, Knob, Space


def thin_space(space: Space, most: int) -> Space:
    """The space with fewer choices a knob, so that at most `most` points are legal.

    The knob with the most choices loses one, repeatedly. The remaining choices are spread evenly and include both ends
    and the default's.
    """
    lengths = [len(knob.choices) for knob in space.knobs]
    while True:
        small = _with_lengths(space, lengths)
        if small.size <= ENUMERABLE and len(small.points) <= most:
            return small
        lengths[int(np.argmax(lengths))] -= 1


def _with_lengths(space: Space, lengths: Sequence[int]) -> Space:
    if prod(lengths) > ENUMERABLE:
        return space
    default = dict(space.default.values)
    knobs = [_thin_knob(knob, default[knob.name], length) for knob, length in zip(space.knobs, lengths, strict=True)]
    return replace(space, knobs=tuple(knobs))


def _thin_knob(knob: Knob, default: int, count: int) -> Knob:
    """A knob with `count` evenly spread choices, the nearest of which is replaced by `default`."""
    places = np.rint(np.linspace(0, len(knob.choices) - 1, count)).astype(int)
    place = knob.choices.index(default)
    places[int(np.argmin(np.abs(places - place)))] = place
    return Knob(knob.name, tuple(knob.choices[n] for n in np.unique(places)))
