"""Tiles along an axis, the edges that windows reach beyond, and tiles turned in registers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Ramp, const, evaluate
from tunewright.search_space.nests.nest import Edge, balanced, parted, runs
from tunewright.search_space.nests.tile import transposed

EXTENTS = st.integers(1, 300)

EDGES = st.builds(
    Edge,
    axis=st.just("p"),
    tap=st.just("r"),
    taps=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    before=st.integers(0, 9),
    extent=st.integers(1, 40),
)


@given(EXTENTS, EXTENTS)
def test_tiles_cover_an_extent_in_order_and_are_balanced(extent: int, wanted: int) -> None:
    size = balanced(extent, wanted)
    found = runs(extent, size)
    places: list[int] = []
    for run in found:
        for tile in range(run.first, run.first + run.count):
            start = tile * run.size + run.offset
            places += range(start, start + run.size)
    assert places == list(range(extent))
    assert size <= wanted
    assert {run.size for run in found} <= {size, size - 1}
    assert sum(run.count for run in found) == -(-extent // wanted)


@given(EDGES, st.integers(0, 40), st.integers(1, 14))
def test_an_edge_knows_which_places_read_inside(edge: Edge, start: int, size: int) -> None:
    for tap in range(edge.taps):
        reads = [(start + p) * edge.stride + tap * edge.dilation - edge.before for p in range(size)]
        first, last = edge.inside(start, size, tap)
        assert [0 <= at < edge.extent for at in reads] == [first <= p < last for p in range(size)]
    everywhere = all(edge.inside(start, size, tap) == (0, size) for tap in range(edge.taps))
    assert edge.whole(start, size) == everywhere
    spans = {t: group.span for group in edge.groups(start, size) for t in range(group.first, group.first + group.count)}
    for tap in range(edge.taps):
        first, last = edge.inside(start, size, tap)
        assert spans.get(tap) == ((first, last) if first < last else None)


@given(EDGES, EXTENTS, st.integers(1, 14))
def test_parts_of_a_run_are_its_tiles(edge: Edge, extent: int, wanted: int) -> None:
    for run in runs(extent, balanced(extent, wanted)):
        parts = parted(run, edge)
        assert [t for part in parts for t in range(part.first, part.first + part.count)] == [
            *range(run.first, run.first + run.count)
        ]
        for part in parts:
            inside = all(
                edge.whole(t * part.size + part.offset, part.size) for t in range(part.first, part.first + part.count)
            )
            assert part.size == 1 or part.count == 1 or inside


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_rounds_of_zips_transpose_a_square(lanes: int) -> None:
    rows = [Load("x", (const(n), Ramp(const(0), lanes)), DType.F32) for n in range(lanes)]
    square = np.arange(lanes**2, dtype=np.float32).reshape(lanes, lanes)
    columns = [evaluate(c, {}, lambda node, index: square[index[0], index[1]]) for c in transposed(rows)]
    assert np.array_equal(np.stack(columns), square.T)
