"""A histogram: how many of the values lie where."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tunewright.tuner.text import counted

from .figure import figure
from .frame import GRID, Frame, empty, path
from .scales import Axis, Scale, Unit, scale, told

BINS = 32
_GAP = 3  # units of the frame between neighbours


def histogram(title: str, x: Axis, values: Sequence[float], *, names: str) -> Markup:
    """A figure with bins of equal width on the axis; `names` is what one value is of."""
    values = [value for value in values if x.fits(value)]
    if not values:
        return figure("histogram", empty(title, f"There is no {names}."))
    across = scale(values, x, pad=0.02)
    counts = [0] * BINS
    for value in values:
        counts[min(int(across.place(value) * BINS), BINS - 1)] += 1
    up = scale([max(counts)], Axis("", Unit.COUNT, include=(0.0,)), pad=0.12)
    frame = Frame(across, up, x.label, f"{names}s", height_px=180)
    words = f"{counted(len(values), names)} from {told(min(values), x.unit)} to {told(max(values), x.unit)}"
    middle = sorted(values)[len(values) // 2]
    drawn = frame.drawn(
        title,
        f"{words}, half of them below {told(middle, x.unit)}.",
        frame.stretched(*_columns(frame, counts, across, x.unit)),
    )
    return figure("histogram", drawn)


def _columns(frame: Frame, counts: list[int], across: Scale, unit: Unit) -> list[Markup]:
    width = GRID / BINS
    columns = []
    for n, count in enumerate(counts):
        if count:
            _, top = frame.at(across.low, count)
            left = round(n * width) + _GAP // 2
            d = f"M{left} {GRID}V{min(top, GRID - 4)}h{round(width) - _GAP}V{GRID}z"
            ends = told(_value(across, n / BINS), unit), told(_value(across, (n + 1) / BINS), unit)
            columns.append(path("fill candidate", d, f"{ends[0]} to {ends[1]}: {count:,}"))
    return columns


def _value(across: Scale, place: float) -> float:
    """The value at a place, the other way round than `Scale.place`."""
    if across.is_log:
        return float(across.low * (across.high / across.low) ** place)
    return across.low + (across.high - across.low) * place
