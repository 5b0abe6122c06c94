"""A histogram: how many of the values lie where."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from markupsafe import Markup

from tunewright.tuner.text import counted

from .figure import figure
from .frame import GRID, Frame, empty, path
from .scales import Axis, Scale, Unit, scale, told
from .svg import element

BINS = 32

NEAR = 0.9
"""The part of the values that the axis reaches in any case."""

FAR = 2.0
"""Where it would have to be more than so many times as long for the others, these are one bin behind its end."""

_GAP = 3  # units of the frame between neighbours


def histogram(title: str, x: Axis, values: Sequence[float], *, names: str) -> Markup:
    """A figure with bins of equal width, and one for what is far beyond the others; `names` is what one value is of."""
    values = sorted(value for value in values if x.fits(value))
    if not values:
        return figure("histogram", empty(title, f"There is no {names}."))
    near, far = _split(values)
    across = scale(near, x, pad=0.02)
    counts = [0] * BINS
    for value in near:
        counts[min(int(across.place(value) * BINS), BINS - 1)] += 1
    up = scale([max(*counts, len(far))], Axis("", Unit.COUNT, include=(0.0,)), pad=0.12)
    frame = Frame(across, up, x.label, f"{names}s", height_px=180)
    words = f"{counted(len(values), names)} from {told(values[0], x.unit)} to {told(values[-1], x.unit)}"
    beyond = f"{len(far):,} above {told(near[-1], x.unit)}, the {100 * NEAR:.0f}th percentile" if far else ""
    drawn = frame.drawn(
        title,
        f"{words}, half of them below {told(values[len(values) // 2], x.unit)}{'; ' if far else ''}{beyond}.",
        frame.stretched(*_columns(frame, counts, across, x.unit), *_beyond(frame, len(far), beyond)),
        element("text", {"class": "label", "text-anchor": "end", "x": "100%", "y": -10}, beyond) if far else Markup(""),
    )
    return figure("histogram", drawn)


def _split(ordered: list[float]) -> tuple[list[float], list[float]]:
    """The values that the axis reaches, and those that it does not."""
    count = ceil(NEAR * len(ordered))
    near, far = ordered[:count], ordered[count:]
    is_distorted = bool(far) and far[-1] - near[0] > FAR * (near[-1] - near[0])
    return (near, far) if is_distorted else (ordered, [])


def _columns(frame: Frame, counts: list[int], across: Scale, unit: Unit) -> list[Markup]:
    columns = []
    for n, count in enumerate(counts):
        if count:
            ends = told(_value(across, n / BINS), unit), told(_value(across, (n + 1) / BINS), unit)
            columns.append(path("fill candidate", _column(frame, n, count), f"{ends[0]} to {ends[1]}: {count:,}"))
    return columns


def _beyond(frame: Frame, count: int, words: str) -> list[Markup]:
    """The bin behind the end of the axis, with some room before it."""
    return [path("fill other", _column(frame, BINS + 0.3, count), words)] if count else []


def _column(frame: Frame, n: float, count: int) -> str:
    """Path data of a bin."""
    width = GRID / BINS
    _, top = frame.at(frame.x.low, count)
    return f"M{round(n * width) + _GAP // 2} {GRID}V{min(top, GRID - 4)}h{round(width) - _GAP}V{GRID}z"


def _value(across: Scale, place: float) -> float:
    """The value at a place, the other way round than `Scale.place`."""
    if across.is_log:
        return float(across.low * (across.high / across.low) ** place)
    return across.low + (across.high - across.low) * place
