"""Layers: where the boxes of a graph go, so that every edge leads on.

A box stands in the layer behind the last of those that it reads from, so nothing in a layer reads from another in it.
Layers stand beside each other as columns and, like words, go on in the next row where a row is full. Within a layer
boxes stand in the order of what they are connected to. Edges to the next column are curves; all others run in lanes
above the rows, and up and down between the columns: never through a box. All of it is one way of computing, in steps
as many as there are boxes and edges, so that equal graphs are drawn alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

COLUMNS = 6
"""Layers in a row."""

TALLEST = 8
"""Boxes in a layer; one with more is several."""

SWEEPS = 4
"""How often boxes are put in order, by those before and those behind in turn."""

MOST_LANES = 10
"""Lanes above a row: what finds none of its own shares the last one."""

BOX_WIDTH_PX = 168
GAP_PX = 34
ROOM_PX = 12
"""Between boxes below each other, and beside lanes."""
MARGIN_PX = 30
LANE_PX = 6
_STARTS, _ENDS = (7, 11, 15, 19), (9, 12, 15)
"""Where lines go up and down in a gap, by their lane: those that begin there from its left, others from its right."""


@dataclass(frozen=True, slots=True)
class BoxPlace:
    """The place of a box: of its left upper corner, in pixels, and in which layer it is."""

    layer: int
    x: int
    y: int


Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A line from a box to one that reads from it, by its corners; with two of them it is a curve."""

    source: int
    target: int
    points: Points


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The places of boxes and edges, and what they take together, in pixels."""

    places: tuple[BoxPlace, ...]
    edges: tuple[Edge, ...]
    width_px: int
    height_px: int


def lay_out(sources: Sequence[Sequence[int]], box_height_px: int) -> GraphLayout:
    """The layout of boxes that read from these, each from boxes before it alone.

    Raises ValueError for one that does not.
    """
    if any(not 0 <= source < box for box, own in enumerate(sources) for source in own):
        raise ValueError("a box reads from one that is not before it")
    layers = _split(_order(_layers(sources), sources))
    grid = _Grid(layers, box_height_px)
    edges = [(source, box) for box, own in enumerate(sources) for source in dict.fromkeys(own)]
    lanes = grid.lanes(edges)
    tops, height_px = grid.tops(lanes)
    places = grid.places(tops)
    router = _Router(grid, places, tops, lanes, box_height_px)
    lines = tuple(Edge(source, box, router.points(source, box)) for source, box in edges)
    return GraphLayout(places, lines, grid.width_px, height_px)


def _layers(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The boxes of each layer; what reads nothing stands just before the first that reads it."""
    layer = [0] * len(sources)
    first_reader = [len(sources)] * len(sources)
    for box, own in enumerate(sources):
        layer[box] = max((layer[source] + 1 for source in own), default=0)
        for source in own:
            first_reader[source] = min(first_reader[source], layer[box])
    for box, own in enumerate(sources):
        if not own and first_reader[box] < len(sources):
            layer[box] = first_reader[box] - 1
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for box, number in enumerate(layer):
        layers[number].append(box)
    return layers


def _order(layers: list[list[int]], sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """The same layers, each in the order of the mean place of what its boxes are connected to."""
    readers: list[list[int]] = [[] for _ in sources]
    for box, own in enumerate(sources):
        for source in own:
            readers[source].append(box)
    place = [0.0] * len(sources)

    def number(boxes: Sequence[int]) -> None:
        for n, box in enumerate(boxes):
            place[box] = (n + 0.5) / len(boxes)

    for boxes in layers:
        number(boxes)
    for sweep in range(SWEEPS):
        near = readers if sweep % 2 else sources
        for boxes in reversed(layers) if sweep % 2 else layers:
            means = {box: sum(place[one] for one in near[box]) / len(near[box]) for box in boxes if near[box]}
            boxes.sort(key=lambda box: means.get(box, place[box]))
            number(boxes)
    return layers


def _split(layers: Iterable[list[int]]) -> list[list[int]]:
    return [boxes[start : start + TALLEST] for boxes in layers for start in range(0, len(boxes), TALLEST)]


Lanes = dict[tuple[int, int], int]
"""Row, and the box that lines come from -> the lane above that row in which they run."""


class _Grid:
    """The layers in rows of columns."""

    def __init__(self, layers: Sequence[Sequence[int]], box_height_px: int) -> None:
        self._layers, self._box_px = layers, box_height_px
        self.layer_of = {box: number for number, boxes in enumerate(layers) for box in boxes}
        self.columns = min(COLUMNS, len(layers))
        self.width_px = 2 * MARGIN_PX + self.columns * (BOX_WIDTH_PX + GAP_PX) - GAP_PX if layers else 0

    def cell(self, box: int) -> tuple[int, int]:
        """The row and the column of a box."""
        return divmod(self.layer_of[box], COLUMNS)

    def crossings(self, source: int, box: int) -> list[tuple[int, int, int]]:
        """The rows above which a line runs, from which gap to which: gaps are numbered as the column behind them."""
        (row, column), (to_row, to_column) = self.cell(source), self.cell(box)
        if row == to_row:
            return [] if to_column == column + 1 else [(row, column + 1, to_column)]
        if to_row == row + 1:
            return [(to_row, column + 1, to_column)]
        return [(row + 1, column + 1, self.columns), (to_row, self.columns, to_column)]

    def lanes(self, edges: Sequence[tuple[int, int]]) -> Lanes:
        """The lanes; lines from one box share theirs, as they carry the same."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        for source, box in edges:
            for row, start, stop in self.crossings(source, box):
                low, high = spans.get((row, source), (start, start))
                spans[row, source] = min(low, start, stop), max(high, start, stop)
        ends: dict[int, list[int]] = {}  # row -> the gap up to which each lane is in use
        lanes: Lanes = {}
        for (row, source), (low, high) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
            own = ends.setdefault(row, [])
            lane = next((n for n, end in enumerate(own) if end < low), min(len(own), MOST_LANES - 1))
            own[lane : lane + 1] = [max(high, own[lane]) if lane < len(own) else high]
            lanes[row, source] = lane
        return lanes

    def tops(self, lanes: Lanes) -> tuple[list[int], int]:
        """Where the boxes of each row begin, and the height of all."""
        count: dict[int, int] = {}
        for (row, _), lane in lanes.items():
            count[row] = max(count.get(row, 0), lane + 1)
        tops, below = [], 0
        for row in range(-(-len(self._layers) // COLUMNS)):
            tops.append(below + ROOM_PX + LANE_PX * count.get(row, 0) + (ROOM_PX if row else 0))
            below = tops[-1] + self._height_px(max(map(len, self._layers[row * COLUMNS : (row + 1) * COLUMNS])))
        return tops, below + ROOM_PX

    def _height_px(self, boxes: int) -> int:
        return boxes * (self._box_px + ROOM_PX) - ROOM_PX

    def places(self, tops: Sequence[int]) -> tuple[BoxPlace, ...]:
        """The places of the boxes, in their order; those of a layer in the middle of its row."""
        places: dict[int, BoxPlace] = {}
        for layer, boxes in enumerate(self._layers):
            row, column = divmod(layer, COLUMNS)
            tallest = max(map(len, self._layers[row * COLUMNS : (row + 1) * COLUMNS]))
            top = tops[row] + (self._height_px(tallest) - self._height_px(len(boxes))) // 2
            for n, box in enumerate(boxes):
                x = MARGIN_PX + column * (BOX_WIDTH_PX + GAP_PX)
                places[box] = BoxPlace(layer, x, top + n * (self._box_px + ROOM_PX))
        return tuple(places[box] for box in range(len(places)))


@dataclass(frozen=True, slots=True)
class _Router:
    """The corners of lines."""

    grid: _Grid
    places: Sequence[BoxPlace]
    tops: Sequence[int]
    lanes: Lanes
    box_px: int

    def points(self, source: int, box: int) -> Points:
        """From the right of a box to the left of another."""
        start, end = self.places[source], self.places[box]
        points: list[tuple[float, float]] = [(start.x + BOX_WIDTH_PX, start.y + self.box_px / 2)]
        for row, gap, to_gap in self.grid.crossings(source, box):
            lane = self.lanes[row, source]
            y = self.tops[row] - ROOM_PX / 2 - LANE_PX * (lane + 0.5)
            x, to_x = self._track(gap, lane, False), self._track(to_gap, lane, True)
            if len(points) > 1:  # down in the margin, where the line is
                x = points[-1][0]
            points += [(x, points[-1][1]), (x, y), (to_x, y)]
        if len(points) > 1:
            points.append((points[-1][0], end.y + self.box_px / 2))
        return (*points, (end.x, end.y + self.box_px / 2))

    def _track(self, gap: int, lane: int, is_end: bool) -> float:
        """Where a line goes up or down in a gap, or in the margin behind the last column."""
        left = MARGIN_PX + gap * (BOX_WIDTH_PX + GAP_PX) - GAP_PX
        if is_end and gap < self.grid.columns:
            return left + GAP_PX - _ENDS[lane % len(_ENDS)]
        return left + _STARTS[lane % len(_STARTS)]
