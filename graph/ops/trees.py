"""Ensembles of trees: a walk down each, and what its leaves have, combined.

`Trees(x, features, thresholds, values, children)` is an op of this package alone; `contrib.tree_layout` makes its
tables. `x` is `[rows, columns]`, the result `[rows, groups * targets]`. Perfect trees have no `children`: `features`
and `thresholds` are `[groups, trees, 2^depth - 1]` level by level, `values` `[groups, trees, 2^depth, targets]`. Of
others all tables have `2^bits` places a tree, of which `children` has where to go on (`graph.tree_walk`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, op

from ..task import Index, Tensor, load
from ..tree_walk import TreeWalk
from .definition import Definition, OpDef

FLOATS = (DType.F32, DType.F64)


INDICES = (DType.U8, DType.U16, DType.I32)


def trees(d: Definition) -> None:
    """See the module."""
    x, values = d.input(0, *FLOATS), d.input(3, *FLOATS)
    walk = TreeWalk(x, d.input(1, *INDICES), d.input(2, x.dtype), d.optional(4, *INDICES))
    groups, count, _, targets = values.shape
    depth = int(d.attr("depth"))
    y = d.reshape(d.output(), (prod(x.shape[:1]), groups, targets))
    places: Tensor | None = None
    for level in range(depth):
        following = d.temporary((x.shape[0], groups, count), DType.I32)

        def body(i: Index, level: int = level, places: Tensor | None = places) -> Expr:
            place = walk.next_place(level, walk.read_place(places, level, i), i)
            return op("cast", place, dtype=DType.I32)

        places = d.write(following, body)

    def leaf(i: Index, r: Index) -> Expr:
        return load(values, [i[1], r[0], walk.read_place(places, depth, [i[0], i[1], r[0]]), i[2]])

    d.fold(y, str(d.attr("combiner")), [count], leaf)


TREES: Mapping[str, OpDef] = {"Trees": trees}
