"""Plots of results, as SVG: how fast the runtimes are beside each other, and how near kernels come to a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tunewright.bench.entries import best_peer
from tunewright.bench.files import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "tunewright": "#c1272d",
    "onnxruntime": "#0b6fa4",
    "openvino": "#e69f00",
    "torch": "#999999",
    "torch.compile": "#009e73",
    "tvm": "#6a4c93",
}
MARKERS = {"tunewright": "D", "onnxruntime": "o", "openvino": "s", "torch": "x", "torch.compile": "^", "tvm": "v"}

ROW_INCHES = 0.24
WIDTH_INCHES = 5.2


def draw_speeds(path: Path, panels: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]) -> None:
    """A panel for each heading: the speed of every runtime at each case, where that of the best peer is 1."""

    def draw_panel(axes: Axes, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for name, colour in COLOURS.items():
            places = [(_speed(entry, name), place) for place, (_, entry) in enumerate(rows)]
            points = [(speed, place) for speed, place in places if speed]
            if points:
                speeds, lines = zip(*points, strict=True)
                axes.scatter(speeds, lines, color=colour, marker=MARKERS[name], s=28, label=name, zorder=3)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlim(left=0)
        axes.set_xlabel("speed; the best peer's is 1")

    _save(path, panels, draw_panel)


def draw_shares(path: Path, panels: Mapping[str, Sequence[tuple[str, float]]]) -> None:
    """A panel for each heading: a bar for each case, of which part of its limit it reaches."""

    def draw_panel(axes: Axes, rows: Sequence[tuple[str, float]]) -> None:
        axes.barh(range(len(rows)), [share for _, share in rows], color=COLOURS["tunewright"], height=0.6, zorder=3)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlim(0, max([1.05, *(share for _, share in rows)]))
        axes.set_xlabel("part of the limit")

    _save(path, panels, draw_panel)


def _speed(entry: Mapping[str, Any], name: str) -> float | None:
    """The speed of a runtime in units of the fastest peer's."""
    time_ms = entry["tunewright_ms"] if name == "tunewright" else entry["peers"].get(name)
    best = best_peer(entry)
    return best[1] / time_ms if best and time_ms else None


def _save(path: Path, panels: Mapping[str, Sequence[tuple[str, Any]]], draw_panel: Any) -> None:
    """Draw the panels beside each other."""
    most_rows = max((len(rows) for rows in panels.values()), default=0)
    if not most_rows:
        return
    with svg_figure(path, WIDTH_INCHES * len(panels), 1.2 + ROW_INCHES * most_rows) as figure:
        panel_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (heading, rows) in zip(panel_axes, panels.items(), strict=True):
            draw_panel(axes, rows)
            axes.set_title(heading)
            axes.set_yticks(range(len(rows)), [label for label, _ in rows])
            axes.set_ylim(len(rows) - 0.4, -0.6)
            unframe(axes, grid="x")
        draw_legend(figure, panel_axes[0])


@contextmanager
def svg_figure(path: Path, width_inches: float, height_inches: float, font_points: float = 8) -> Iterator[Figure]:
    """A figure that is saved as SVG when the block ends. Equal drawings give equal files."""
    os.environ.setdefault("MPLCONFIGDIR", str(ROOT / "build" / "matplotlib"))  # its cache of fonts
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "tunewright", "svg.fonttype": "none", "font.size": font_points}):
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        yield figure
        figure.savefig(path, format="svg", metadata={"Date": None})


def unframe(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """A pale grid behind what is drawn, and no lines at the top and on the right."""
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)


def draw_legend(figure: Figure, axes: Axes) -> None:
    """One legend below all axes: that of one of them, where it has any."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
