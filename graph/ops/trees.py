"""Ensembles of perfect trees: a walk down each, and what its leaves have, combined.

`Trees(x, features, thresholds, values)` is an op of this package alone; `contrib.tree_layout` makes its tables. `x` is
`[rows, columns]`, `features` and `thresholds` `[groups, trees, 2^depth - 1]` level by level, `values`
`[groups, trees, 2^depth, targets]`, the result `[rows, groups * targets]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, op

from ..task import Index, Tensor, load
from ..tree_walk import next_place, read_place
from .definition import Definition, OpDef

FLOATS = (DType.F32, DType.F64)


def trees(d: Definition) -> None:
    """See the module."""
    x, features = d.input(0, *FLOATS), d.input(1, DType.U8, DType.U16, DType.I32)
    thresholds, values = d.input(2, x.dtype), d.input(3, x.dtype)
    groups, count, leaves, targets = values.shape
    y = d.reshape(d.output(), (prod(x.shape[:1]), groups, targets))
    places: Tensor | None = None
    for level in range(leaves.bit_length() - 1):
        following = d.temporary((x.shape[0], groups, count), DType.I32)

        def body(i: Index, level: int = level, places: Tensor | None = places) -> Expr:
            place = next_place(x, features, thresholds, level, read_place(places, level, i), i)
            return op("cast", place, dtype=DType.I32)

        places = d.write(following, body)
    depth = leaves.bit_length() - 1

    def leaf(i: Index, r: Index) -> Expr:
        return load(values, [i[1], r[0], read_place(places, depth, [i[0], i[1], r[0]]), i[2]])

    d.fold(y, str(d.attr("combiner")), [count], leaf)


TREES: Mapping[str, OpDef] = {"Trees": trees}
