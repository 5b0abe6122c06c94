"""Plots: what the page of a job says, as pictures for where no HTML can go. Drawn by matplotlib, which is asked for by
name: see `is_installed`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from tunewright.tuner.text import duration, gain, printable, share, shortened

from ..drawing.figure import SERIES, series
from ..drawing.scales import Axis, Scale, scale
from ..html import assets
from ..views.job import Abscissa, JobPage, Part

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES, DOTS_PER_INCH = 9.0, 150

LONGEST_NAME = 60
"""Characters of a name."""

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
    drawn: dict[str, Callable[[Figure], None]] = {}
    if view.model.steps:
        drawn["speedup"] = lambda figure: _draw_speedup(figure, view)
    if _sides(view):
        drawn["time"] = lambda figure: _draw_time(figure, view)
    heights = {"speedup": 3.6, "time": 2.2 + 0.22 * len(view.parts)}
    return {name: _png(draw, heights[name]) for name, draw in drawn.items()}


def _png(draw: Callable[[Figure], None], height_inches: float) -> bytes:
    """What is drawn alike gives the same bytes."""
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
    """Those of the charts on light ground, by name."""
    sheet = assets()["charts.css"].content.decode()
    light = re.search(r"^:root \{(.*?)\}", sheet, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", light[1] if light else ""))


def _colour(name: str) -> str:
    return _colours()[name]


def _name(text: str) -> str:
    """A name on one line, which may be anything."""
    return shortened(printable(text), LONGEST_NAME)


def _title(view: JobPage) -> str:
    return _name(view.job.label or f"job {view.job.id}")


# How it became faster


def _draw_speedup(figure: Figure, view: JobPage) -> None:
    from ..charts.job import ABSCISSAS, SPEEDUP

    steps = view.model.steps
    ends = {Abscissa.TRIALS: float(view.trials), Abscissa.SECONDS: view.searched_s}
    heights = [step.speedup for step in steps]
    timed = view.latency.speedup if view.latency.is_timed else None
    rise = scale([*heights, *([timed] if timed else [])], SPEEDUP, pad=0.12)
    every = figure.subplots(1, 2, sharey=True)
    figure.suptitle(f"{_title(view)}: how much faster it became, by trials")
    for axes, (kind, end) in zip(every, ends.items(), strict=True):
        places = [float(step.trial) if kind is Abscissa.TRIALS else step.at_s for step in steps]
        end = max(end, places[-1])
        axes.step([*places, end], [*heights, heights[-1]], where="post", color=_colour("series-0"), linewidth=2)
        axes.annotate(
            gain(heights[-1]), (end, heights[-1]), (0, 4), textcoords="offset points", ha="right", va="bottom"
        )
        if timed:
            axes.plot([end], [timed], marker="D", color=_colour("series-1"), clip_on=False)
            told = f"timed: {'defaults kept' if view.latency.is_kept else gain(timed)}"
            axes.annotate(told, (end, timed), (-8, -4), textcoords="offset points", ha="right", va="top")
        _show(axes, "x", ABSCISSAS[kind], scale([*places, end], ABSCISSAS[kind]))
        _show(axes, "y", SPEEDUP, rise)
        axes.grid(visible=True)
        axes.set_axisbelow(True)
    every[1].set_ylabel("")


def _show(axes: Axes, which: str, axis: Axis, along: Scale) -> None:
    """Give an axis of a plot the ticks and the name that it has on the page."""
    ticks = along.ticks(6)
    limit, mark, name = (getattr(axes, f"set_{which}{what}") for what in ("lim", "ticks", "label"))
    limit(along.low, along.high)
    mark([tick.value for tick in ticks], [tick.text for tick in ticks])
    name(axis.label)


# Where the time goes


def _sides(view: JobPage) -> list[tuple[str, list[float]]]:
    """What is known of a run before and after: its parts in milliseconds."""
    words = "by default", "tuned" if view.job.is_finished else "so far"
    every = [part.before_ms for part in view.parts], [part.after_ms for part in view.parts]
    sides = []
    for word, values in zip(words, every, strict=True):
        known = [value for value in values if value is not None]
        if sum(known) and len(known) == len(values):
            sides.append((word, known))
    return sides


def _draw_time(figure: Figure, view: JobPage) -> None:
    sides = _sides(view)
    longest = max(sum(values) for _, values in sides)
    axes = figure.subplots()
    figure.suptitle(f"{_title(view)}: what each task takes of a run")
    drawn: list[Artist] = []
    for row, (_, values) in enumerate(sides):
        begin = 0.0
        for n, value in enumerate(values):
            colour, edge = _colour(series(n)), _colour("paper")
            [bar] = axes.barh(row, value, left=begin, height=0.6, color=colour, edgecolor=edge)
            drawn += [bar] if row == 0 else []
            if n < SERIES and value > NUMBERED * longest:
                axes.text(begin + value / 2, row, f"{n + 1}", color=edge, ha="center", va="center", weight="bold")
            begin += value
        axes.text(begin + 0.01 * longest, row, duration(begin), va="center")
    axes.set_xlim(0, 1.12 * longest)
    axes.set_ylim(len(sides) - 0.5, -0.5)
    axes.set_yticks(range(len(sides)), [word for word, _ in sides])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["bottom", "left"]].set_visible(False)
    _tell(figure, drawn, view.parts, sides)


def _tell(
    figure: Figure, drawn: Sequence[Artist], parts: Sequence[Part], sides: Sequence[tuple[str, list[float]]]
) -> None:
    """The legend: of each part its number, its name and its share of a run."""
    told = [
        f"{f'{n + 1} ' if n < SERIES else ''}{_name(part.name)}: "
        + " → ".join(share(values[n] / sum(values)) for _, values in sides)
        for n, part in enumerate(parts)
    ]
    places = [str(n) for n in range(len(told))]  # a name that begins with "_" would be left out
    legend = figure.legend(drawn, places, loc="outside lower left", ncols=1, frameon=False)
    for text, words in zip(legend.get_texts(), told, strict=True):
        text.set_text(words)
