"""Folds over dimensions, and normalisations, which are folds with pointwise work between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, const, op

from ..task import Tensor
from .definition import ARITHMETIC, Definition, Index, OpDef, axis_of, load, quotient
from .window import Layout, padding

F32 = DType.F32


def _kept(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """The shape after folding with the folded dimensions kept as 1."""
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def _fold(
    d: Definition, x: Tensor, y: Tensor, axes: Sequence[int], combiner: str, body: Callable[[Index], Expr]
) -> Tensor:
    """Fold `body`, over the index of x, along `axes`. y has them as 1."""
    axes = sorted(axes)

    def element(i: Index, r: Index) -> Expr:
        place = list(i)
        for axis, at in zip(axes, r, strict=True):
            place[axis] = at
        return body(place)

    return d.fold(y, combiner, [x.shape[axis] for axis in axes], element)


def reduction(
    combiner: str,
    before: Callable[[Expr], Expr] = lambda x: x,
    after: Callable[[Expr, int], Expr] | None = None,
    *dtypes: DType,
) -> OpDef:
    """Fold `before` of the elements; `after` gets the result and how many elements it was made from."""

    def define(d: Definition) -> None:
        x, y = d.input(0, *(dtypes or (F32,))), d.output()
        axes = d.ints("axes")
        y = d.viewed(y, _kept(x.shape, axes))
        count = prod(x.shape[axis] for axis in axes)
        if after is None:
            _fold(d, x, y, axes, combiner, lambda i: before(load(x, i)))
        else:
            total = d.temporary(y.shape, x.dtype)
            _fold(d, x, total, axes, combiner, lambda i: before(load(x, i)))
            d.write(y, lambda i: after(load(total, i), count))

    return define


def softmax(d: Definition) -> None:
    """exp(x - max) over its sum."""
    x, y = d.input(0, F32), d.output()
    axes = [int(d.attr("axis"))]
    kept = _kept(x.shape, axes)
    top = _fold(d, x, d.temporary(kept, F32), axes, "max", lambda i: load(x, i))
    power = d.write(d.temporary(x.shape, F32), lambda i: op("exp", load(x, i) - load(top, i)))
    total = _fold(d, x, d.temporary(kept, F32), axes, "sum", lambda i: load(power, i))
    scale = d.write(d.temporary(kept, F32), lambda i: op("div", const(1.0), load(total, i)))
    d.write(y, lambda i: load(power, i) * load(scale, i))


def log_softmax(d: Definition) -> None:
    """x - max - log(sum of exp(x - max))."""
    x, y = d.input(0, F32), d.output()
    axes = [int(d.attr("axis"))]
    kept = _kept(x.shape, axes)
    top = _fold(d, x, d.temporary(kept, F32), axes, "max", lambda i: load(x, i))
    total = _fold(d, x, d.temporary(kept, F32), axes, "sum", lambda i: op("exp", load(x, i) - load(top, i)))
    level = d.write(d.temporary(kept, F32), lambda i: op("log", load(total, i)))
    d.write(y, lambda i: load(x, i) - load(top, i) - load(level, i))


def _moments(d: Definition, x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """The mean, and one over the standard deviation, along `axes`."""
    kept = _kept(x.shape, axes)
    count = prod(x.shape[axis] for axis in axes)
    total = _fold(d, x, d.temporary(kept, F32), axes, "sum", lambda i: load(x, i))
    mean = d.write(d.temporary(kept, F32), lambda i: quotient(load(total, i), count))

    def square(i: Index) -> Expr:
        centred = load(x, i) - load(mean, i)
        return centred * centred

    spread = _fold(d, x, d.temporary(kept, F32), axes, "sum", square)
    scale = d.temporary(kept, F32)
    d.write(scale, lambda i: op("div", const(1.0), op("sqrt", quotient(load(spread, i), count) + epsilon)))
    return mean, scale


def layer_normalization(d: Definition) -> None:
    """Rows moved to mean 0 and variance 1, then scaled and shifted; optionally the moments as well."""
    d.require(int(d.attr("stash_type", 1)) == 1, "stash_type")
    x, gain, bias = d.input(0, F32), d.input(1, F32), d.optional(2, F32)
    axes = list(range(axis_of(int(d.attr("axis", -1)), len(x.shape)), len(x.shape)))
    mean, scale = _moments(d, x, axes, float(d.attr("epsilon", 1e-5)))

    def body(i: Index) -> Expr:
        value = (load(x, i) - load(mean, i)) * load(scale, i) * load(gain, i)
        return value if bias is None else value + load(bias, i)

    d.write(d.output(), body)
    for position, moment in ((1, mean), (2, scale)):
        if d.wanted(position):
            d.write(d.output(position), lambda i, moment=moment: load(moment, i))  # type: ignore[misc]


def instance_normalization(d: Definition) -> None:
    """Each channel of each sample moved to mean 0 and variance 1, then scaled and shifted."""
    x, gain, bias = d.input(0, F32), d.input(1, F32), d.input(2, F32)
    layout = Layout.of(d, x.shape)
    channel = len(x.shape) - 1 if layout.channels_last else 1
    axes = [axis for axis in range(1, len(x.shape)) if axis != channel]
    mean, scale = _moments(d, x, axes, float(d.attr("epsilon", 1e-5)))

    def body(i: Index) -> Expr:
        at = [i[channel]]
        return (load(x, i) - load(mean, i)) * load(scale, i) * load(gain, at) + load(bias, at)

    d.write(d.output(), body)


def rms_normalization(d: Definition) -> None:
    """Rows over their root mean square, scaled."""
    d.require(int(d.attr("stash_type", 1)) == 1, "stash_type")
    x, gain = d.input(0, F32), d.input(1, F32)
    axes = list(range(axis_of(int(d.attr("axis", -1)), len(x.shape)), len(x.shape)))
    kept, count = _kept(x.shape, axes), prod(x.shape[axis] for axis in axes)
    epsilon = float(d.attr("epsilon", 1e-5))
    total = _fold(d, x, d.temporary(kept, F32), axes, "sum", lambda i: load(x, i) * load(x, i))
    scale = d.temporary(kept, F32)
    d.write(scale, lambda i: op("div", const(1.0), op("sqrt", quotient(load(total, i), count) + epsilon)))
    d.write(d.output(), lambda i: load(x, i) * load(scale, i) * load(gain, i))


def local_response(d: Definition) -> None:
    """LRN: each element over a power of the mean square of its neighbours along the channels."""
    x, y = d.input(0, F32), d.output()
    layout = Layout.of(d, x.shape)
    channel = len(x.shape) - 1 if layout.channels_last else 1
    size = int(d.attr("size"))
    alpha, beta, bias = float(d.attr("alpha", 1e-4)), float(d.attr("beta", 0.75)), float(d.attr("bias", 1.0))
    before = [(size - 1) // 2 if axis == channel else 0 for axis in range(len(x.shape))]
    shape = [extent + (size - 1 if axis == channel else 0) for axis, extent in enumerate(x.shape)]
    padded = d.write(d.temporary(shape, F32), lambda i: padding(x, i, shape, before, const(0.0)))

    def neighbour(i: Index, r: Index) -> Expr:
        place = list(i)
        place[channel] = op("add", i[channel], r[0])
        return load(padded, place) * load(padded, place)

    total = d.fold(d.temporary(x.shape, F32), "sum", (size,), neighbour)
    d.write(y, lambda i: load(x, i) * op("pow", load(total, i) * (alpha / size) + bias, const(-beta)))


REDUCTIONS: Mapping[str, OpDef] = {
    "InstanceNormalization": instance_normalization,
    "LRN": local_response,
    "LayerNormalization": layer_normalization,
    "LogSoftmax": log_softmax,
    "RMSNormalization": rms_normalization,
    "ReduceL1": reduction("sum", lambda x: op("abs", x), None, *ARITHMETIC),
    "ReduceL2": reduction("sum", lambda x: x * x, lambda total, _: op("sqrt", total)),
    "ReduceLogSum": reduction("sum", after=lambda total, _: op("log", total)),
    "ReduceMax": reduction("max", lambda x: x, None, *ARITHMETIC),
    "ReduceMean": reduction("sum", after=quotient),
    "ReduceMin": reduction("min", lambda x: x, None, *ARITHMETIC),
    "ReduceProd": reduction("prod", lambda x: x, None, *ARITHMETIC),
    "ReduceSum": reduction("sum", lambda x: x, None, *ARITHMETIC),
    "ReduceSumSquare": reduction("sum", lambda x: x * x, None, *ARITHMETIC),
    "Softmax": softmax,
}
