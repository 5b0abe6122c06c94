"""Plots of searches, as SVG: the best speed against seconds and against trials, ours and a rival's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunewright.bench.plot import COLOURS, draw_legend, svg_figure, unframe

from .curve import SearchCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, HEIGHT_INCHES = 2.7, 2.1

AXES = {"seconds": "s", "trials": "trials"}


def draw_curves(path: Path, searches: Mapping[str, Mapping[str, SearchCurve]]) -> None:
    """Draw for each workload the speed of the best kernel so far; 1 is the fastest of all its curves.

    Times are those that each search measured itself.
    """
    curves_by_name = {
        name: curves for name, curves in searches.items() if any(curve.points for curve in curves.values())
    }
    if not curves_by_name:
        return
    with svg_figure(path, WIDTH_INCHES * len(curves_by_name), HEIGHT_INCHES * len(AXES) + 0.4, font_points=7) as figure:
        grid = figure.subplots(len(AXES), len(curves_by_name), squeeze=False)
        for row, (kind, label) in zip(grid, AXES.items(), strict=True):
            for axes, (name, curves) in zip(row, curves_by_name.items(), strict=True):
                _draw(axes, curves, kind)
                axes.set_title(name)
                axes.set_xlabel(label)
        grid[0][0].set_ylabel("speed")
        draw_legend(figure, grid[0][0])


def _draw(axes: Axes, curves: Mapping[str, SearchCurve], kind: str) -> None:
    best_s = min(curve.best_s for curve in curves.values())
    for name, curve in curves.items():
        places = steps(curve, kind)
        if places:
            across, up = zip(*places, strict=True)
            style: Any = {"color": COLOURS.get(name, "#444444"), "label": name, "drawstyle": "steps-post"}
            axes.plot(across, [best_s / time_s for time_s in up], linewidth=1.2, **style)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.05)
    unframe(axes)


def steps(curve: SearchCurve, kind: str) -> Sequence[tuple[float, float]]:
    """(trials or seconds, best time) of each point, and of the end."""
    if not curve.points:
        return []
    places = [(point.at_s if kind == "seconds" else float(point.trial), point.best_s) for point in curve.points]
    return [*places, (curve.seconds if kind == "seconds" else float(curve.trials), curve.best_s)]
