"""A plot of comparisons: how near the best speed is after each trial."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewright.bench.entries import ROOT


def draw_curves(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    """A line for each contender, as SVG. The same figures give the same file."""
    os.environ.setdefault("MPLCONFIGDIR", str(ROOT / "build" / "matplotlib"))  # its cache of fonts
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    if not curves:
        return
    with rc_context({"svg.hashsalt": "tunewright", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for place, (name, curve) in enumerate(curves.items()):
            style = "-" if place < 10 else "--"
            axes.plot(range(1, len(curve) + 1), curve, style, color=colormaps["tab10"](place % 10), label=name)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("trials")
        axes.set_ylabel("speed of the best so far; the best there is has 1")
        axes.grid(color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
