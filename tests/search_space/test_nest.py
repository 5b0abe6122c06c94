"""Tiles along an axis, the edges that windows reach beyond, and tiles turned in registers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Ramp, const, evaluate
from tunewright.search_space.axes import IndexRange, balance, runs
from tunewright.search_space.cpu.loops.tile import transpose
from tunewright.search_space.patterns.window_dim import WindowDim, inside_condition

EXTENTS = st.integers(1, 300)


def nothing_is_read(node: Load, index: Sequence[Any]) -> Any:
    raise AssertionError(f"{node} is read")


EDGES = st.builds(
    WindowDim,
    dimension=st.just(0),
    axis=st.just("p"),
    extent=st.just(1),
    tap=st.just("r"),
    taps=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    start=st.integers(-9, 0),
    inside=st.builds(IndexRange, st.just(0), st.integers(1, 40)),
)


@given(EXTENTS, EXTENTS)
def test_tiles_cover_an_extent_in_order_and_are_balanced(extent: int, most: int) -> None:
    size = balance(extent, most)
    tiles = runs(extent, size)
    places: list[int] = []
    for run in tiles:
        for tile in range(run.first, run.first + run.count):
            start = tile * run.size + run.offset
            places += range(start, start + run.size)
    assert places == list(range(extent))
    assert size <= most
    assert {run.size for run in tiles} <= {size, size - 1}
    assert sum(run.count for run in tiles) == -(-extent // most)


@given(EDGES, st.integers(0, 40), st.integers(1, 14))
def test_an_edge_knows_which_places_read_inside(edge: WindowDim, start: int, size: int) -> None:
    for tap in range(edge.taps):
        reads = [(start + p) * edge.stride + tap * edge.dilation - edge.before for p in range(size)]
        first, last = edge.inside_span(start, size, tap)
        assert [at in edge.inside for at in reads] == [first <= p < last for p in range(size)]
    everywhere = all(edge.inside_span(start, size, tap) == (0, size) for tap in range(edge.taps))
    assert edge.is_whole(start, size) == everywhere
    spans = {t: group.span for group in edge.groups(start, size) for t in range(group.first, group.first + group.count)}
    for tap in range(edge.taps):
        first, last = edge.inside_span(start, size, tap)
        assert spans.get(tap) == ((first, last) if first < last else None)


@given(EDGES, st.integers(1, 60), st.integers(1, 14))
def test_each_tile_reads_the_places_of_one_span_at_a_tap(edge: WindowDim, extent: int, most: int) -> None:
    for run in runs(extent, balance(extent, most)):
        spans = edge.spans(run)
        conditions = [inside_condition(edge, run, span, "tile") for span in spans]
        assert len(set(spans)) == len(spans)
        for number, tap in product(run.numbers, range(edge.taps)):
            holding = [bool(evaluate(c, {"tile": number, "r": tap}, nothing_is_read)) for c in conditions]
            span = edge.inside_span(number * run.size + run.offset, run.size, tap)
            assert [s for s, holds in zip(spans, holding, strict=True) if holds] == (
                [span] if span[0] < span[1] else []
            )


@given(EDGES, st.integers(1, 60), st.integers(1, 14))
def test_a_run_that_no_window_leaves_has_one_span(edge: WindowDim, extent: int, most: int) -> None:
    for run in runs(extent, balance(extent, most)):
        if edge.is_always_inside(run):
            assert edge.spans(run) == [(0, run.size)]
            assert inside_condition(edge, run, (0, run.size), "tile") == const(True)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_rounds_of_zips_transpose_a_square(lanes: int) -> None:
    rows = [Load("x", (const(n), Ramp(const(0), lanes)), DType.F32) for n in range(lanes)]
    square = np.arange(lanes**2, dtype=np.float32).reshape(lanes, lanes)
    columns = [evaluate(c, {}, lambda node, index: square[index[0], index[1]]) for c in transpose(rows)]
    assert np.array_equal(np.stack(columns), square.T)
