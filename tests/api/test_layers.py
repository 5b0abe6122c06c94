"""Graphs as they are drawn: every box has its place, every edge leads on, and no line goes through a box."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.api.dashboard.drawing.graph import GraphBox, draw_graph
from tunewright.api.dashboard.drawing.layers import (
    BOX_WIDTH_PX,
    COLUMNS,
    GAP_PX,
    MARGIN_PX,
    TALLEST,
    GraphLayout,
    lay_out,
)

from .page import Page

HEIGHT_PX = 68

Sources = list[tuple[int, ...]]


@st.composite
def graphs(draw: st.DrawFn) -> Sources:
    """Boxes that read from some before them, or from none."""
    count = draw(st.integers(0, 40))
    return [tuple(draw(st.lists(st.integers(0, box - 1), max_size=4))) if box else () for box in range(count)]


ODD: dict[str, Sources] = {
    "empty": [],
    "single": [()],
    "apart": [(), (), ()],
    "two of them": [(), (), (0,), (1,)],
    "wide": [(), *[(0,)] * 500, tuple(range(1, 501))],
    "deep": [(), *[(box,) for box in range(1999)]],
    "all to all": [tuple(range(box)) for box in range(40)],
    "one to all": [(), *[(box, 0) for box in range(300)]],
}


def check(sources: Sources) -> GraphLayout:
    """A layout of a graph, which is as it should be."""
    layout = lay_out(sources, HEIGHT_PX)
    assert layout == lay_out(sources, HEIGHT_PX)
    places = layout.places
    assert len(places) == len(sources)
    for before, after in pairwise(sorted(places, key=lambda place: (place.x, place.y))):
        is_below = before.x == after.x and after.y - before.y >= HEIGHT_PX
        assert is_below or after.x - before.x >= BOX_WIDTH_PX + GAP_PX
    for place in places:
        assert 0 <= place.x <= layout.width_px - BOX_WIDTH_PX and 0 <= place.y <= layout.height_px - HEIGHT_PX
    assert {(edge.source, edge.target) for edge in layout.edges} == {
        (source, box) for box, own in enumerate(sources) for source in own
    }
    for edge in layout.edges:
        start, end = places[edge.source], places[edge.target]
        assert start.layer < end.layer
        first, *_, last = edge.points
        begin = start.x + BOX_WIDTH_PX
        assert [*first, *last] == [begin, start.y + HEIGHT_PX / 2, end.x, end.y + HEIGHT_PX / 2]
        assert all(0 <= x <= layout.width_px and 0 <= y <= layout.height_px for x, y in edge.points)
    return layout


def crosses_a_box(layout: GraphLayout) -> bool:
    """Whether a straight piece of a line has a point within a box."""
    for edge in layout.edges:
        for (x, y), (to_x, to_y) in pairwise(edge.points):
            if len(edge.points) == 2:
                continue  # a curve within a gap
            low_x, high_x, low_y, high_y = min(x, to_x), max(x, to_x), min(y, to_y), max(y, to_y)
            assert x == to_x or y == to_y
            for place in layout.places:
                is_beside = high_x <= place.x or low_x >= place.x + BOX_WIDTH_PX
                is_apart = high_y <= place.y or low_y >= place.y + HEIGHT_PX
                if not is_beside and not is_apart:
                    return True
    return False


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_any_graph_has_a_layout(sources: Sources) -> None:
    assert not crosses_a_box(check(sources))


@pytest.mark.parametrize("name", ODD)
def test_an_odd_graph_has_a_layout(name: str) -> None:
    layout = check(ODD[name])
    if len(ODD[name]) < 350:
        assert not crosses_a_box(layout)


def test_a_curve_stays_between_its_columns() -> None:
    for edge in check(ODD["wide"]).edges:
        if len(edge.points) == 2:
            (x, _), (to_x, _) = edge.points
            assert to_x - x == GAP_PX


def test_a_layer_is_no_taller_than_that() -> None:
    layout = check(ODD["wide"])
    by_layer: dict[int, int] = {}
    for place in layout.places:
        by_layer[place.layer] = by_layer.get(place.layer, 0) + 1
    assert max(by_layer.values()) == TALLEST


def test_a_deep_graph_goes_on_in_rows() -> None:
    layout = check(ODD["deep"])
    assert layout.width_px == 2 * MARGIN_PX + COLUMNS * (BOX_WIDTH_PX + GAP_PX) - GAP_PX
    assert {place.layer for place in layout.places} == set(range(2000))
    rows = [{place.y for place in layout.places[row * COLUMNS : (row + 1) * COLUMNS]} for row in range(333)]
    assert all(len(row) == 1 for row in rows)
    assert all(max(row) < min(below) for row, below in pairwise(rows))


def test_what_has_fewer_crossings_is_drawn() -> None:
    """The boxes of a layer change places where that is how their lines go."""
    layout = check([(), (), (1,), (0,), (2,), (3,)])
    crossings = sum(
        (one.points[0][1] - other.points[0][1]) * (one.points[-1][1] - other.points[-1][1]) < 0
        for one, other in combinations(layout.edges, 2)
        if layout.places[one.source].layer == layout.places[other.source].layer
    )
    assert crossings == 0


def test_an_input_stands_before_what_reads_it() -> None:
    places = check([(), (0,), (1,), (2,), (), (3, 4)]).places
    assert places[4].layer == places[3].layer == places[5].layer - 1


@pytest.mark.parametrize("sources", [[(0,)], [(), (1,)], [(), (2,), (0,)], [(-1,)]])
def test_what_reads_from_itself_or_later_is_refused(sources: Sources) -> None:
    with pytest.raises(ValueError, match="not before it"):
        lay_out(sources, HEIGHT_PX)


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "\u202etxt.exe", "x" * 10_000, "ラ" * 50, ""]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_strangers_are_texts(text: str) -> None:
    boxes = [GraphBox((text, text, text), "task", (), 0.2, text, text, "/tasks/1"), GraphBox((text,), "plain", (0,))]
    drawn = Page(str(draw_graph(text[:200], text[:200], boxes, "")))
    drawn.check()
    assert {tag for tag, _ in drawn.tags} <= {
        "figure", "div", "svg", "title", "desc", "path", "g", "a", "rect", "text", "ul", "li", "span",
    }  # fmt: skip
    assert "\u202e" not in drawn.source


def test_a_line_is_cut_to_its_box() -> None:
    source = str(draw_graph("t", "", [GraphBox(("W" * 400, "i" * 400, "ラ" * 400), "task")], ""))
    lengths = [len(text) for text in source.replace("</text>", "<text").split("<text")[1:] if "…" in text]
    assert len(lengths) == 3 and max(lengths) < 80


def test_what_there_is_none_of_says_so() -> None:
    page = Page(str(draw_graph("The model", "", [], "It has no nodes.")))
    assert "It has no nodes." in page.words and not page.of("g")


def test_a_share_is_told_by_more_than_colour() -> None:
    shares = (None, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
    page = Page(str(draw_graph("t", "", [GraphBox(("a",), "task", (), share) for share in shares], "")))
    drawn = [attrs["class"] for attrs in page.of("g") if "transform" in attrs]
    assert drawn == [f"box task heat-{heat}" for heat in (0, 0, 1, 2, 3, 4, 5)]
    widths = [float(bar["width"]) for bar in page.of("rect", **{"class": "bar"})]
    assert len(widths) == 5 and widths == sorted(widths) and len(set(widths)) == 5
    assert "25% or more" in page.words and "1 to 3%" in page.words
