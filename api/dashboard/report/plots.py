"""Plots: the charts of a job as PNG, for places where HTML can't go. Drawn by matplotlib, which is optional: see
`is_installed`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from tunewright.tuner.text import duration, printable, share, shorten

from ..drawing.bars import Mark
from ..drawing.frame import SERIES, series_class
from ..drawing.scales import AxisSpec, Scale, scale
from ..html import assets
from ..job.charts import model_figure
from ..job.curves import Abscissa
from ..job.overview import Part
from ..job.view import JobPage

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES, DOTS_PER_INCH = 9.0, 150

LONGEST_NAME = 60
"""Longest name, in characters."""

NUMBERED = 0.025
"""A part of the width that has room for a number."""

INSTALL = "pip install matplotlib"


def is_installed() -> bool:
    """Whether there is something to draw with."""
    return find_spec("matplotlib") is not None


def plots(view: JobPage) -> dict[str, bytes]:
    """PNG files by what they show: `speedup` (of the model, against trials and time) and `time` (of a run, by task).

    What nothing is known of yet is left out.
    """
    draws: dict[str, Callable[[Figure], None]] = {}
    if view.model.steps:
        draws["speedup"] = lambda figure: draw_speedup(figure, view)
    if _sides(view):
        draws["time"] = lambda figure: draw_time(figure, view)
    heights = {"speedup": 3.6, "time": 2.2 + 0.22 * len(view.parts)}
    return {name: _png(draw, heights[name]) for name, draw in draws.items()}


def _png(draw: Callable[[Figure], None], height_inches: float) -> bytes:
    """A plot as PNG. Equal plots give equal bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    colours = {name: _colour(name) for name in ("ink", "faint", "axis", "grid", "paper")}
    settings = {
        "axes.edgecolor": colours["axis"],
        "axes.labelcolor": colours["faint"],
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.facecolor": colours["paper"],
        "font.size": 9.0,
        "grid.color": colours["grid"],
        "text.color": colours["ink"],
        "text.parse_math": False,  # a dollar in a name is a dollar
        "xtick.color": colours["faint"],
        "ytick.color": colours["faint"],
    }
    file = BytesIO()
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name may be in any script
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        draw(figure)
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return file.getvalue()


@cache
def _colours() -> dict[str, str]:
    """The colours of charts on a light background, by name."""
    sheet = assets()["tokens.css"].content.decode()
    light = re.search(r"^:root \{(.*?)\}", sheet, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", light[1] if light else ""))


def _colour(name: str) -> str:
    return _colours()[name]


def _name(text: str) -> str:
    """A name on one line, which may be anything."""
    return shorten(printable(text), LONGEST_NAME)


def _title(view: JobPage) -> str:
    return _name(view.job.name)


# Speed-up


def draw_speedup(figure: Figure, view: JobPage) -> None:
    """The speed-up by trials on the way, and that of the model as timed."""
    charts = [model_figure(view, by) for by in Abscissa]
    series = charts[0].series
    rise = scale([point.y for one in series for point in one.points], charts[0].y, pad=0.12)
    every = figure.subplots(1, 2, sharey=True)
    what = "what trials promised, but it keeps its defaults" if view.latency.is_kept else "how much faster it became"
    figure.suptitle(f"{_title(view)}: {what}")
    artists: list[Artist] = []
    for axes, chart in zip(every, charts, strict=True):
        curve, *timed = chart.series
        places, heights = [point.x for point in curve.points], [point.y for point in curve.points]
        end = max(chart.until or 0.0, places[-1])
        artists = axes.step(
            [*places, end], [*heights, heights[-1]], where="post", color=_colour("series-0"), linewidth=2
        )
        for mark in timed:
            look = {"marker": "D", "linestyle": "", "clip_on": False}
            artists += axes.plot([end], [mark.points[0].y], color=_colour("series-1"), **look)
        _show(axes, "x", chart.x, scale([*places, end], chart.x))
        _show(axes, "y", chart.y, rise)
        axes.grid(visible=True)
        axes.set_axisbelow(True)
    every[1].set_ylabel("")
    labels = [f"{one.name}: {one.note}" for one in series]
    # Below both, where nothing is that they could lie on.
    figure.legend(artists, labels, loc="outside lower left", ncols=len(labels), frameon=False)


def _show(axes: Axes, which: str, axis: AxisSpec, along: Scale) -> None:
    """Give an axis of a plot the ticks and the name that it has on the page."""
    ticks = along.ticks(6)
    limit, mark, name = (getattr(axes, f"set_{which}{what}") for what in ("lim", "ticks", "label"))
    limit(along.low, along.high)
    mark([tick.value for tick in ticks], [tick.text for tick in ticks])
    name(axis.label)


# Time by task


def _sides(view: JobPage) -> list[tuple[str, list[float], Mark]]:
    """The known sides of a run, before and after: its parts in milliseconds, and the marks of its sum."""
    every = [part.before_ms for part in view.parts], [part.after_ms for part in view.parts]
    sides: list[tuple[str, list[float], Mark]] = []
    for word, values, mark in zip(view.sides, every, (view.mark_before, view.mark_after), strict=True):
        numbers = [value for value in values if value is not None]
        if sum(numbers) and len(numbers) == len(values):
            sides.append((word, numbers, mark))
    return sides


def draw_time(figure: Figure, view: JobPage) -> None:
    """Two bars: a run before and after."""
    sides = _sides(view)
    longest = max(sum(values) for _, values, _ in sides)
    axes = figure.subplots()
    figure.suptitle(f"{_title(view)}: what each task takes of a run")
    artists: list[Artist] = []
    for row, (_, values, mark) in enumerate(sides):
        begin = 0.0
        for n, value in enumerate(values):
            colour, edge = _colour(series_class(n)), _colour("paper")
            [bar] = axes.barh(row, value, left=begin, height=0.6, color=colour, edgecolor=edge)
            artists += [bar] if row == 0 else []
            if n < SERIES and value > NUMBERED * longest:
                axes.text(begin + value / 2, row, f"{n + 1}", color=edge, ha="center", va="center", weight="bold")
            begin += value
        axes.text(begin + 0.01 * longest, row, mark(duration(begin)), va="center")
    axes.set_xlim(0, 1.12 * longest)
    axes.set_ylim(len(sides) - 0.5, -0.5)
    axes.set_yticks(range(len(sides)), [word for word, *_ in sides])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["bottom", "left"]].set_visible(False)
    _tell(figure, artists, view.parts, sides)


def _tell(
    figure: Figure, artists: Sequence[Artist], parts: Sequence[Part], sides: Sequence[tuple[str, list[float], Mark]]
) -> None:
    """The legend: of each part its number, its name and its share of a run."""
    lines = [
        f"{f'{n + 1} ' if n < SERIES else ''}{_name(part.name)}: "
        + " → ".join(share(values[n] / sum(values)) for _, values, _ in sides)
        for n, part in enumerate(parts)
    ]
    places = [str(n) for n in range(len(lines))]  # a name that begins with "_" would be left out
    legend = figure.legend(artists, places, loc="outside lower left", ncols=1, frameon=False)
    for text, words in zip(legend.get_texts(), lines, strict=True):
        text.set_text(words)
