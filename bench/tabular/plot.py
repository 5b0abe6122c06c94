"""A plot of comparisons: how near the best speed is after each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewright.bench.plot import svg_figure, unframe


def draw_curves(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """Draw a line for each contender."""
    if not curves:
        return
    with svg_figure(path, 7.2, 4.2) as figure:
        from matplotlib import colormaps  # after svg_figure has set its cache folder

        axes = figure.subplots()
        for place, (name, curve) in enumerate(curves.items()):
            style = "-" if place < 10 else "--"
            axes.plot(range(1, len(curve) + 1), curve, style, color=colormaps["tab10"](place % 10), label=name)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("trials")
        axes.set_ylabel("speed of the best so far; the best there is has 1")
        unframe(axes)
        figure.legend(loc="outside right upper", frameon=False)
