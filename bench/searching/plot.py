"""Plots of searches, as SVG: the best speed against seconds and against trials, ours and a rival's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunewright.bench.plot import COLOURS, saved_figure, shared_legend, unframe

from .curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_INCHES, HEIGHT_INCHES = 2.7, 2.1

AXES = {"seconds": "s", "trials": "trials"}


def draw_curves(path: Path, searches: Mapping[str, Mapping[str, Curve]]) -> None:
    """For each workload how fast the best kernel was when; 1 is the fastest of all its curves, by name.

    By the times that each search measured itself.
    """
    shown = {name: curves for name, curves in searches.items() if any(curve.points for curve in curves.values())}
    if not shown:
        return
    with saved_figure(path, WIDTH_INCHES * len(shown), HEIGHT_INCHES * len(AXES) + 0.4, font_points=7) as figure:
        grid = figure.subplots(len(AXES), len(shown), squeeze=False)
        for row, (kind, label) in zip(grid, AXES.items(), strict=True):
            for axes, (name, curves) in zip(row, shown.items(), strict=True):
                _draw(axes, curves, kind)
                axes.set_title(name)
                axes.set_xlabel(label)
        grid[0][0].set_ylabel("speed")
        shared_legend(figure, grid[0][0])


def _draw(axes: Axes, curves: Mapping[str, Curve], kind: str) -> None:
    best_s = min(curve.best_s for curve in curves.values())
    for name, curve in curves.items():
        places = steps(curve, kind)
        if places:
            across, up = zip(*places, strict=True)
            style: Any = {"color": COLOURS.get(name, "#444444"), "label": name, "drawstyle": "steps-post"}
            axes.plot(across, [best_s / one for one in up], linewidth=1.2, **style)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.05)
    unframe(axes)


def steps(curve: Curve, kind: str) -> Sequence[tuple[float, float]]:
    """(trials or seconds, best time) of each point, and of the end."""
    if not curve.points:
        return []
    places = [(point.at_s if kind == "seconds" else float(point.trial), point.best_s) for point in curve.points]
    return [*places, (curve.seconds if kind == "seconds" else float(curve.trials), curve.best_s)]
