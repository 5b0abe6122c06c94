"""Which padding is removed from reads, and which has to stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Expr, Load, Var, const, evaluate, op
from tunewright.graph.task import Axis, Stage, Tensor, canonical
from tunewright.search_space.axes import IndexRange
from tunewright.search_space.patterns.fused_stage import FusedStage, fuse_stages
from tunewright.search_space.patterns.padding import find_source, match_padding

P, Q = Var("i"), Var("j")


def pointwise(body: Expr, *extents: int) -> FusedStage:
    """The piece that fills a tensor."""
    axes = tuple(Axis(name, extent) for name, extent in zip("ij", extents, strict=False))
    stage = Stage("t", axes, body)
    return FusedStage(stage, "t", stage.index, Load("t", stage.index, body.dtype))


def pad(at: Expr, before: int, extent: int, fill: float = 0.0) -> Expr:
    """An element of x of one dimension with a border around it."""
    place = op("min", op("max", at - before, 0), extent - 1)
    inside = op("and", op("le", const(0), at - before), op("lt", at - before, extent))
    return op("select", inside, Load("x", (place,), DType.F32), const(fill))


@given(before=st.integers(0, 4), extent=st.integers(1, 6), after=st.integers(0, 4))
def test_inside_the_element_is_the_same_and_outside_is_the_border(before: int, extent: int, after: int) -> None:
    x = np.arange(1, extent + 1, dtype=np.float32)
    whole = np.pad(x, (before, after))
    interior = match_padding(pointwise(pad(P, before, extent), len(whole)), 0.0)
    assert interior is not None
    (inside,) = interior.inside
    assert inside == IndexRange(before, before + extent)
    assert not [n for n in range(len(whole)) if n not in inside and whole[n]]
    for n in range(inside.start, inside.stop):
        assert evaluate(interior.at([const(n)]), {}, lambda load, index: x[int(index[0])]) == whole[n]


def test_no_clamp_is_left_inside() -> None:
    interior = match_padding(pointwise(pad(P, 2, 5), 9), 0.0)
    assert interior is not None and interior.element == Load("x", (P + -2,), DType.F32)


def test_another_border_is_part_of_what_is_inside() -> None:
    fused_stage = pointwise(pad(P, 2, 5, fill=1.0), 9)
    for border in (0.0, None):
        interior = match_padding(fused_stage, border)
        assert interior is not None and interior.inside == (IndexRange(0, 9),)
        assert interior.at([Q]) == pad(Q, 2, 5, fill=1.0)


@pytest.mark.parametrize(
    "condition",
    [
        op("le", Q, P),
        op("eq", P % 2, const(0)),
        op("lt", Load("x", (P,), DType.F32), const(0.0)),
        op("lt", P, const(0)),
    ],
    ids=["triangle", "every second", "data", "nowhere"],
)
def test_what_is_inside_is_a_range_along_each_axis(condition: Expr) -> None:
    body = op("select", condition, Load("x", (P,), DType.F32), Const(0.0, DType.F32))
    assert match_padding(pointwise(body, 4, 4), 0.0) is None


@pytest.mark.parametrize(("reads", "visible", "is_interior"), [(1, False, True), (2, False, False), (1, True, False)])
def test_what_something_else_needs_has_to_be_made(reads: int, visible: bool, is_interior: bool) -> None:
    x, t, y = (Tensor(name, (extent,), DType.F32) for name, extent in (("x", 5), ("t", 9), ("y", 8)))
    k = Var("k")
    total = Load("t", (P + k,), DType.F32) * (Load("t", (P,), DType.F32) if reads == 2 else const(2.0))
    stages = [
        Stage("t", (Axis("i", 9),), pad(P, 2, 5)),
        Stage("y", (Axis("i", 8),), total, (Axis("k", 2),), "sum"),
    ]
    task = canonical("Conv", (x,), (y, t) if visible else (y,), () if visible else (t,), stages)
    parts = fuse_stages(task)
    read = parts[-1].reads[0]
    interior = find_source(task, parts, read, 0.0)
    assert (interior is not None) is is_interior
    assert interior is None or (interior.fused_stage is parts[0] and interior.inside == (IndexRange(2, 7),))
