"""Quantised numbers: bytes that stand for floats, by a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from tunewright.codegen.dtype import BYTES, DType
from tunewright.codegen.expr import Expr, const, op

from ..task import Tensor
from .definition import Definition, Index, OpDef, axis_of, load
from .elementwise import clip_to

F32, I32 = DType.F32, DType.I32


def quantize_linear(d: Definition) -> None:
    """Floats in steps of the scale, rounded half to even and counted from the zero point, as far as bytes go."""
    x, scale, y = d.input(0, F32), d.input(1, F32), d.output()
    d.require(y.dtype in BYTES, f"no kernels for {y.dtype}")
    zero = _zero(d, y.dtype)
    at, zero_at = _place(d, x, scale), _place(d, x, zero)
    limits = np.iinfo(y.dtype.value)

    def body(i: Index) -> Expr:
        steps = op("round", load(x, i) / load(scale, at(i)))
        if zero is not None:
            steps = steps + op("cast", load(zero, zero_at(i)), dtype=F32)
        return op("cast", clip_to(steps, float(limits.min), float(limits.max)), dtype=y.dtype)

    d.write(y, body)


def dequantize_linear(d: Definition) -> None:
    """How far numbers are from the zero point, by the scale."""
    x, scale = d.input(0, *BYTES, I32), d.input(1, F32)
    zero = _zero(d, x.dtype)
    at, zero_at = _place(d, x, scale), _place(d, x, zero)

    def body(i: Index) -> Expr:
        steps = load(x, i)
        if zero is not None:
            steps = op("cast", steps, dtype=I32) - op("cast", load(zero, zero_at(i)), dtype=I32)
        return op("cast", steps, dtype=F32) * load(scale, at(i))

    d.write(d.output(), body)


def _place(d: Definition, x: Tensor, parameter: Tensor | None) -> Callable[[Index], Index]:
    """Where the scale of an element is, or its zero point: there is one for all, or one for each place of an axis."""
    d.require(not d.attr("block_size", 0), "a scale for each block")
    if parameter is None or prod(parameter.shape) == 1:
        rank = len(parameter.shape) if parameter else 0
        return lambda i: [const(0)] * rank
    axis = axis_of(int(d.attr("axis", 1)), len(x.shape))
    d.require(0 <= axis < len(x.shape) and parameter.shape == (x.shape[axis],), "scales that are not along an axis")
    return lambda i: [i[axis]]


def _zero(d: Definition, dtype: DType) -> Tensor | None:
    """The zero point; None where it is 0."""
    known = d.known(2)
    return None if known is not None and not known.any() else d.optional(2, dtype)


QUANTISATION: Mapping[str, OpDef] = {
    "DequantizeLinear": dequantize_linear,
    "QuantizeLinear": quantize_linear,
}
