"""Phrases: what is said of the schedules of any sketch, of processors and of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .formula import formula
from .point import Point

AXES = {
    "e": "elements of a transformed tile", "p": "tiles", "n": "channels of the output", "c": "channels of the input",
    "column": "columns of a row", "row": "rows that blocks are cut from",
}  # fmt: skip
"""What the axes are that sketches name themselves; those of a task are i0, i1, ... and r0, r1, ..."""


def work(point: Point) -> Iterator[str]:
    """Where the work is."""
    stage = point.stage
    place = f"{stage.output}[{', '.join(formula(e, 40) for e in stage.index)}]"
    fold = f"{FOLDS[stage.combiner]} over {listed(point.reduced)} of " if stage.reduce else ""
    extents = ", ".join(f"{a.name} {grouped(a.extent)}" for a in (*stage.axes, *stage.reduce))
    yield f"Most of the work: {place} = {fold}{formula(stage.body)}{f', for {extents}' if extents else ''}."
    named = [f"{axis} counts {AXES[axis]}" for axis in (*point.spatial, *point.reduced) if axis in AXES]
    if named:
        yield f"{listed(named)}."


FOLDS = {"sum": "the sum", "max": "the maximum", "min": "the minimum", "prod": "the product"}


def copies(point: Point, tile: Mapping[str, int]) -> Iterator[str]:
    """What is copied out of the loops of the reduction."""
    axes = [axis for axis in point.reduced if axis != point.vector and tile[axis] > 1]
    whole = [axis for axis in axes if tile[axis] == point.whole[axis]]
    parts = [f"{tile[axis]} times along {axis}" for axis in axes if axis not in whole]
    if whole:
        yield f"The body is copied out for all of {listed(whole)}."
    if parts:
        yield f"The body is copied {listed(parts)}."


def grouped(count: int) -> str:
    """A number as `counted` writes it."""
    return f"{count:,}" if count >= 10_000 else str(count)


def listed(parts: Sequence[str]) -> str:
    """Some things in a sentence: "i0, i1 and r0"."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
