"""Sparklines: the curve of one number in the room of a word, without axes. The figure stands beside it.

The line is drawn on a square that is stretched, with a stroke that is not. A line of dashes is where the number would
be without any gain.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tunewright.tuner.text import times

from .frame import GRID
from .svg import dot, element, path, tip

LEAST_RANGE = 0.02
"""Values that differ by less than this part are drawn as a level line: the rest is noise."""


def sparkline(values: Sequence[float], name: str, base: float = 1.0) -> Markup:
    """The curve of values over an equal step each, from the left to the right; nothing for less than two.

    `base` is the value of no gain, which is always in the picture.
    """
    if len(values) < 2:
        return Markup("")
    low, high = min(*values, base), max(*values, base * (1.0 + LEAST_RANGE))
    places = [
        (round(GRID * n / (len(values) - 1)), round(GRID * (1.0 - (value - low) / (high - low))))
        for n, value in enumerate(values)
    ]
    level = round(GRID * (1.0 - (base - low) / (high - low)))
    words = f"{name}: from {times(values[0])} to {times(values[-1])}"
    lines = element(
        "svg",
        {"viewBox": f"0 0 {GRID} {GRID}", "preserveAspectRatio": "none"},
        path("base", f"M0 {level}H{GRID}"),
        path("curve", "M" + "L".join(f"{x} {y}" for x, y in places)),
        path("end", dot(*places[-1])),
    )
    return element("svg", {"class": "sparkline", "role": "img", "aria-label": words}, tip(words), lines)
