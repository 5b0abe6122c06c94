"""A histogram: how many of the values lie where."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from tunewright.tuner.text import counted

from .figure import SHAPES, Entry, figure, key, legend
from .frame import GRID, Frame, empty, listed, path, placed, text
from .scales import Axis, Scale, Unit, scale, told
from .scatter import Mark
from .svg import element, joined

BINS = 32
_GAP = 3  # units of the frame between neighbours


def histogram(
    title: str,
    x: Axis,
    values: Sequence[float],
    *,
    marks: Sequence[Mark] = (),
    names: str = "candidate",
    nothing: str = "No candidate has been measured yet.",
) -> Markup:
    """A figure with bins of equal width on the axis, and the marks as lines; what a mark says of y is not looked at."""
    values = [value for value in values if x.fits(value)]
    marks = [mark for mark in marks if x.fits(mark.x)]
    if not values:
        return figure("histogram", empty(title, nothing))
    across = scale([*values, *(mark.x for mark in marks)], x, pad=0.02)
    counts = [0] * BINS
    for value in values:
        counts[min(int(across.place(value) * BINS), BINS - 1)] += 1
    up = scale([max(counts)], Axis("", Unit.COUNT, include=(0.0,)), pad=0.12)
    frame = Frame(across, up, x.label, f"{names}s", height_px=180)
    told_marks = [f"{mark.label or mark.kind} {told(mark.x, x.unit)}" for mark in marks]
    words = f"{counted(len(values), names)} from {told(min(values), x.unit)} to {told(max(values), x.unit)}"
    middle = sorted(values)[len(values) // 2]
    drawn = frame.drawn(
        title,
        f"{words}, half of them below {told(middle, x.unit)}. {listed(told_marks)}".strip(),
        frame.stretched(*_columns(frame, counts, across, x.unit)),
        joined([_mark(frame, mark, words) for mark, words in zip(marks, told_marks, strict=True)]),
        has_links=any(mark.href for mark in marks),
    )
    entries = [Entry(key(mark.kind, mark.kind), words) for mark, words in zip(marks, told_marks, strict=True)]
    return figure("histogram", drawn, legend(entries))


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


def _mark(frame: Frame, mark: Mark, words: str) -> Markup:
    """A line from top to bottom, its shape at the upper end."""
    x, _ = frame.spot(mark.x, 0)
    line = path(f"line {mark.kind}", f"M0 8V{frame.height_px}")
    shape = element("path", {"class": f"mark {mark.kind}", "d": SHAPES[mark.kind]})
    is_left = frame.x.place(mark.x) > 0.6
    label = text("halo strong", -11 if is_left else 11, 4, mark.label or mark.kind, "end" if is_left else "start")
    return placed("spot", (x, 6), line, shape, label, words=words, href=mark.href)
