"""Where along an axis the largest or smallest element is."""

from __future__ import annotations

from collections.abc import Mapping

from tunewright.codegen.expr.dtype import FLOATS, DType
from tunewright.codegen.expr.expr import Expr, op

from ..task import Index, Tensor, load
from .definition import ARITHMETIC, Definition, OpDef, axis_of


def _position(d: Definition, x: Tensor, y: Tensor, axis: int, combiner: str, is_last: bool = False) -> None:
    """Fold the place of the first or last extreme along an axis into y, which has that axis as 1. NaN is extreme."""
    extent = x.shape[axis]

    def at(i: Index, r: Index) -> Index:
        return [*i[:axis], r[0], *i[axis + 1 :]]

    extreme = d.fold(d.temporary(y.shape, x.dtype), combiner, (extent,), lambda i, r: load(x, at(i, r)))

    def place(i: Index, r: Index) -> Expr:
        value = load(x, at(i, r))
        is_extreme = op("eq", value, load(extreme, i))
        if x.dtype.is_float:
            is_extreme = op("or", is_extreme, op("ne", value, value))
        return op("select", is_extreme, r[0], -1 if is_last else extent - 1)

    d.fold(y, "max" if is_last else "min", (extent,), place)


def _arg(combiner: str) -> OpDef:
    def define(d: Definition) -> None:
        x, y = d.input(0, *ARITHMETIC), d.output()
        d.require(bool(x.shape), "a scalar")
        axis = axis_of(int(d.attr("axis", 0)), len(x.shape))
        y = d.reshape(y, [1 if k == axis else extent for k, extent in enumerate(x.shape)])
        _position(d, x, y, axis, combiner, bool(d.attr("select_last_index", 0)))

    return define


def hardmax(d: Definition) -> None:
    """1 at the first of the largest elements along an axis, 0 elsewhere."""
    x, y = d.input(0, *FLOATS), d.output()
    axis = axis_of(int(d.attr("axis", -1)), len(x.shape))
    shape = [1 if k == axis else extent for k, extent in enumerate(x.shape)]
    place = d.temporary(shape, DType.I64)
    _position(d, x, place, axis, "max")
    d.write(y, lambda i: op("cast", op("eq", load(place, i), i[axis]), dtype=y.dtype))


POSITIONS: Mapping[str, OpDef] = {"ArgMax": _arg("max"), "ArgMin": _arg("min"), "Hardmax": hardmax}
