"""Charts: figures of what is measured everywhere. The roofline of a task, predicted against measured times, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from tunewright.tuner.text import counted, duration, large

from .figure import BINS, Figure, Mark, Point, Series
from .frame import enumeration
from .scales import AxisSpec, Unit, scale, value_text

DASHES = 5
"""How many dashes the style sheet has for ceilings."""

NEAR = 0.9
"""The part of the values that the axis of a histogram reaches in any case."""

FAR = 2.0
"""Where it would have to be more than so many times as long for the others, these are one bin behind its end."""


def _drawable(points: Sequence[Point], marks: Sequence[Mark]) -> list[Point | Mark]:
    """All that has a place on two log axes."""
    either = AxisSpec("", is_log=True)
    spots: list[Point | Mark] = [*points, *marks]
    return [spot for spot in spots if either.fits(spot.x) and either.fits(spot.y)]


def roofline(
    title: str,
    points: Sequence[Point],
    *,
    peak_flops_s: float,
    bandwidths: Mapping[str, float],
    marks: Sequence[Mark] = (),
    is_measured: bool,
    nothing: str,
) -> Figure:
    """The roofline: x is FLOPs per byte, y FLOPs per second, under what computing and each level of memory allow.

    `bandwidths` are bytes per second by level of memory.
    """
    levels = [(name, bytes_s) for name, bytes_s in bandwidths.items() if bytes_s > 0]
    levels.sort(key=lambda level: -level[1])
    ridges = [peak_flops_s / bytes_s for _, bytes_s in levels]
    spots = _drawable(points, marks) or [Point(1.0, 1.0)]
    low = min([spot.x for spot in spots] + ridges[:1]) / 2
    high = max([spot.x for spot in spots] + ridges) * 2
    x = AxisSpec("FLOP per byte from memory", Unit.PLAIN, is_log=True, include=(low, high))
    floor = min([spot.y for spot in spots] + [bytes_s * low for _, bytes_s in levels[-1:]])
    y = AxisSpec("FLOP/s", Unit.RATE, is_log=True, include=(floor / 2,))  # with room for the name of the lowest line
    lines = [
        Series(
            f"{name} {large(bytes_s, 'B/s')}",
            [Point(low, bytes_s * low), Point(ridge, peak_flops_s)],
            "line",
            f"ceiling dash-{1 + n % DASHES}",
            short=name,
        )
        for n, ((name, bytes_s), ridge) in enumerate(zip(levels, ridges, strict=True))
    ]
    peak = f"{'measured' if is_measured else 'estimated'} peak {large(peak_flops_s, 'FLOP/s')}"
    top = [Point(min(ridges, default=low), peak_flops_s), Point(high, peak_flops_s)]
    lines.append(Series(peak, top, "line", "ceiling", short="peak", is_named_last=True))
    words = f"Ceilings: {enumeration([line.name for line in lines])}."
    series = [*lines, Series("candidate", points, "dots")]
    return Figure("scatter", title, x, y, series, marks, words, nothing)


def agreement(title: str, points: Sequence[Point], *, marks: Sequence[Mark] = ()) -> Figure:
    """Predicted times (x) against measured ones (y), both in seconds: equal on the diagonal."""
    times_s = [time_s for spot in _drawable(points, marks) for time_s in (spot.x, spot.y)] or [1.0]
    ends = min(times_s), max(times_s)
    diagonal = Series("predicted = measured", [Point(end, end) for end in ends], "line", "diagonal")
    x, y = AxisSpec("predicted", Unit.TIME, is_log=True), AxisSpec("measured", Unit.TIME, is_log=True)
    words = f"Times from {duration(1e3 * ends[0])} to {duration(1e3 * ends[1])}."
    series = [diagonal, Series("candidate", points, "dots")]
    return Figure("scatter", title, x, y, series, marks, words, is_square=True)


def histogram(title: str, x: AxisSpec, values: Sequence[float], *, names: str) -> Figure:
    """Bins of equal width, and one for what is far beyond the others; `names` is what one value is of."""
    values = sorted(value for value in values if x.fits(value))
    up = AxisSpec(f"{names}s", Unit.COUNT, include=(0.0,))
    if not values:
        return Figure("histogram", title, x, up, (), nothing=f"There is no {names}.")
    count = ceil(NEAR * len(values))
    near, far = values[:count], values[count:]
    if not far or far[-1] - near[0] <= FAR * (near[-1] - near[0]):
        near, far = values, []
    across = scale(near, x, pad=0.02)
    counts = [0] * BINS
    for value in near:
        counts[min(int(across.place(value) * BINS), BINS - 1)] += 1
    edges = [across.value(n / BINS) for n in range(BINS + 1)]
    bins = [
        Point(edges[n], count, f"{value_text(edges[n], x.unit)} to {value_text(edges[n + 1], x.unit)}: {count:,}")
        for n, count in enumerate(counts)
        if count
    ]
    beyond = f"{len(far):,} above {value_text(near[-1], x.unit)}, the {100 * NEAR:.0f}th percentile" if far else ""
    first, middle, last = (value_text(values[n], x.unit) for n in (0, len(values) // 2, -1))
    words = f"{counted(len(values), names)} from {first} to {last}, half of them below {middle}"
    series = [Series(names, bins, "columns")]
    if far:
        series.append(Series(beyond, [Point(across.value(2.0), len(far), beyond)], "columns", "other"))
    return Figure(
        "histogram",
        title,
        x,
        up,
        series,
        words=f"{words}; {beyond}." if far else f"{words}.",
        across=across,
        corner=beyond,
        height_px=180,
    )
