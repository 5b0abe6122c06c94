"""Outlines: what other compilers are told of a schedule."""

from __future__ import annotations

import json
from itertools import pairwise
from math import prod

import pytest

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import point_of, sketch

from .oracle import GPU, WIDE, graph_of, tasks_of


def product_on(target: Target, **values: int) -> LoopOutline:
    [task] = tasks_of(graph_of("t = MatMul(x, w) y = Relu(t)", {"x": "64, 32"}, {"w": "32, 96"}))
    name = "contraction" if target.gpu is None else "product_tiles"
    default = sketch(name).space(task, target).default
    schedule = Schedule(default.sketch, default.version, tuple((dict(default.values) | values).items()))
    return LoopOutline.of(point_of(Candidate(task, target, schedule)))


def test_a_product_in_tiles() -> None:
    outline = product_on(WIDE)
    assert (outline.axes, outline.reduce) == ({"i0": 64, "i1": 96}, {"r0": 32})
    assert (outline.vector_axis, outline.lanes) == ("i1", 16)
    tile = outline.tiles[0]
    assert tile["i1"] % 16 == 0 and 1 <= tile["i0"] <= 64 and tile["r0"] < 32
    [shape] = outline.packed.values()
    assert prod(shape) == 32 * 96 and shape[-1] == tile["i1"]
    piece = outline.tiles[-1]
    assert outline.phase == 0
    assert outline.pieces == (prod(-(-outline.axes[axis] // piece[axis]) for axis in outline.axes),)


def test_a_gpu_has_no_vectors() -> None:
    outline = product_on(GPU)
    assert (outline.vector_axis, outline.lanes) == ("", 1)


def test_levels_go_outwards() -> None:
    tiles = product_on(WIDE).tiles
    for inner, outer in pairwise(tiles):
        assert all(inner[axis] <= outer[axis] for axis in inner) and inner != outer


@pytest.mark.parametrize("target", [WIDE, GPU], ids=["processor", "GPU"])
def test_as_data(target: Target) -> None:
    outline = product_on(target)
    assert LoopOutline.from_json(json.loads(json.dumps(outline.to_json()))) == outline


@pytest.mark.parametrize("change", [{"tiles": [1]}, {"lanes": None}, {"packed": {"t1": 3}}, {"axes": {"i0": "wide"}}])
def test_other_data_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        LoopOutline.from_json(product_on(WIDE).to_json() | change)
