"""Bounds of answers: the model in float64, and how far rounding on the way may move its outputs.

A fixed tolerance would be wrong both ways: cancellation makes large errors out of the smallest, and where nothing is
rounded there must be none. So the model is computed a few times, node by node, each node in float64 and its
outputs rounded to their type. Ops that IEEE or ONNX define to the last bit are computed in their own type and left
alone. Of the others operands and results are moved at random by a few units in the last place, which is what another
order of summation, another formula or a fused multiply-add do. How far outputs lie apart is the condition of the model;
where a step function, an index or an overflow makes one go either way, it does so in some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import GraphProto

from tunewright.graph import contrib
from tunewright.graph.evaluation import fallback
from tunewright.graph.ir import Array, Node
from tunewright.graph.numerics import Precision

from . import float_products
from .body_runs import run_bodies
from .case import Feeds
from .exactness import (
    CANCELLING,
    CANCELLING_BY_OPERAND,
    COARSE,
    CURVES,
    EXPONENTIAL_UNITS,
    FORMULAS,
    GATED,
    LINEAR,
    NORMS,
    REGROUPED,
    SQUARING,
    TURNING,
    UNCALCULATED,
    UNSIGNED,
    is_exact,
    unread_by_steps,
)
from .precision import PRODUCTS, RoundedOperands, block_sizes
from .program import FlatProgram, flatten_body
from .sizes import largest, largest_product, may_overflow
from .values import FLOATS, NARROW, as_float64, dtype_of, epsilon, is_float_array, limits

RESIZES = frozenset({"Resize", "Upsample"})

FIRST_MOVES = RESIZES | {"Pow"}
"""Ops of which only the first operand is moved: others are powers, perhaps whole, or decide the shape."""

BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Ops whose bodies declare the types of their inputs."""

RUNS = 6
"""Moved computations, beside the one that is not."""

MANY_RUNS = 64
"""Moved computations before a finding is reported: a step may depend on one element moved in one direction."""

WIDE_RUNS = 16
"""Moved computations where each narrow tensor may be rounded or not."""

LEAST_ULPS, ULPS = 1.5, 4.0
"""By how many units in the last place operands and results are moved at least and at most. In the first RUNS never by
nothing; in MANY_RUNS also by a part of one, which is what the next float is away from."""

SPREAD = 8.0
"""The tolerance in units of the largest observed distance."""

ROUNDED_RUNS, ROUNDED_SPREAD = 24, 3.0
"""Moved computations where operands may be rounded to another precision, and what that adds to the tolerance, in units
of the distance between these."""

WINOGRAD = 256.0
"""The factor by which intermediate sums may exceed their terms, as in Winograd's convolutions."""

FLUSH_FACTOR = 256.0
"""In units of the smallest normal number: below it exponentials, and products with them, may be 0."""

COARSE_SCALE = 4.0
"""The scale of the errors of coarse curves."""


@dataclass(frozen=True, slots=True)
class Leeway:
    """Deviations that are allowed beyond rounding.

    `regrouped`: products may be combined, and quantised ones computed in floats. `wide`: narrow floats may stay float32
    from node to node. Both only where no step function reads a result of them. `coarse`: sigmoids and their kind may be
    off by a few units in the last place of 1, however small they are. `flushed`: numbers below FLUSH_FACTOR normal
    numbers may be 0. `unsigned`: a 0 of a sum or a maximum may have either sign. `precision`: operands of products may
    be rounded so (`precision.py`).
    """

    regrouped: bool = False
    wide: bool = False
    coarse: bool = False
    flushed: bool = False
    unsigned: bool = False
    precision: Precision = Precision.AS_GIVEN


STRICT = Leeway()


@dataclass(frozen=True, slots=True)
class Bound:
    """Allowed values of an output: `centre` within `tolerance`, both float64; any value where `is_open`."""

    centre: Array
    tolerance: Array
    is_open: Array

    def allows(self, array: Array) -> Array:
        """Which elements are within the bound."""
        with np.errstate(all="ignore"):
            wide = as_float64(array)
            near = np.abs(wide - self.centre) <= self.tolerance
        same = (wide == self.centre) | (np.isnan(wide) & np.isnan(self.centre))
        return np.asarray(near | same | self.is_open)


def has_varying_shape(flat: FlatProgram, feeds: Feeds, precision: Precision = Precision.AS_GIVEN) -> bool:
    """Whether the output's shape differs in one of MANY_RUNS, or may do so by the last bits. Raises EvaluationError."""
    ops = {node.op for node in flat.nodes}
    if precision is not Precision.AS_GIVEN and "Unique" in ops and not ops.isdisjoint(PRODUCTS):
        return True
    shapes = map(np.shape, _computations(flat, feeds, Leeway(flushed=True, precision=precision), MANY_RUNS))
    first = next(shapes)
    return any(shape != first for shape in shapes)


def output_bound(flat: FlatProgram, feeds: Feeds, leeway: Leeway = STRICT, *, runs: int = RUNS) -> Bound | None:
    """The bound of a program's only output. None where it is no tensor, or its shape differs from run to run.

    `runs`: moved computations, at least WIDE_RUNS where narrow floats may stay wide.

    Raises EvaluationError.
    """
    runs = max(runs, WIDE_RUNS) if leeway.wide else runs
    is_rounded = any(not is_exact(node) or _is_free(flat, node) for node in flat.nodes)
    as_given = replace(leeway, precision=Precision.AS_GIVEN)
    bound = _bound_of([*_computations(flat, feeds, as_given, runs)], is_rounded=is_rounded)
    if bound is None or leeway.precision is Precision.AS_GIVEN:
        return bound
    results = [*_computations(flat, feeds, leeway, max(runs, ROUNDED_RUNS))]
    rounded = _bound_of(results, is_rounded=False, spread=ROUNDED_SPREAD)
    if rounded is None:
        return None
    tolerance = np.add(bound.tolerance, rounded.tolerance)
    return Bound(bound.centre, tolerance, np.logical_or(bound.is_open, rounded.is_open))


def _computations(flat: FlatProgram, feeds: Feeds, leeway: Leeway, count: int) -> Iterator[Any]:
    """The output of the computation that moves nothing, then of others. Raises EvaluationError."""
    first = _Run(flat, feeds, 0, leeway, {})
    yield first.output()
    types = first.types()
    yield from (_Run(flat, feeds, number, leeway, types).output() for number in range(1, count + 1))


def _is_free(flat: FlatProgram, node: Node) -> bool:
    """Whether an exact op is part of a call of another one, which has a formula of its own in each runtime."""
    return bool(flat.calls) and node.op in FORMULAS and flat.called_op(node) not in ("", *UNCALCULATED)


def _bound_of(values: Sequence[Any], *, is_rounded: bool, spread: float = SPREAD) -> Bound | None:
    if any(isinstance(value, list) or value is None for value in values):
        return None
    arrays = [np.asarray(value) for value in values]
    if any(array.shape != arrays[0].shape for array in arrays) or arrays[0].dtype.kind in "OUS":
        return None
    wide = [as_float64(array) for array in arrays]
    centre = wide[0]
    is_open = np.zeros(centre.shape, np.bool_)
    distance = np.zeros(centre.shape)
    with np.errstate(all="ignore"):
        for other in wide[1:]:
            is_open |= _finiteness(other) != _finiteness(centre)
            distance = np.maximum(distance, np.where(np.isfinite(other - centre), np.abs(other - centre), 0.0))
        # The last place of a value that rounding may move is always uncertain.
        ulp = _spacing(arrays[0])
        tolerance = spread * distance + (ulp if is_rounded else np.where(distance > 0, ulp, 0.0))
    return Bound(centre, tolerance, is_open)


def _finiteness(array: Array) -> Array:
    """0 finite, 1 infinite, -1 negative infinite, 2 NaN."""
    return np.where(np.isnan(array), 2, np.where(np.isinf(array), np.sign(array), 0))


def _spacing(array: Array) -> Any:
    """The unit in the last place of each element."""
    if array.dtype.name not in FLOATS:
        return np.zeros(array.shape)
    largest, _, least = limits(array.dtype.name)
    magnitude = np.minimum(np.abs(np.nan_to_num(as_float64(array), nan=0.0)), largest)
    return np.maximum(magnitude * epsilon(array.dtype.name), least)


class _Run:
    """One computation of a model; number 0 moves nothing. `types` are those of the tensors, in later ones."""

    def __init__(
        self,
        flat: FlatProgram,
        feeds: Feeds,
        number: int,
        leeway: Leeway,
        types: Mapping[str, str],
        body_rng: np.random.Generator | None = None,  # of a body: that of the model around it
    ) -> None:
        self._program, self._number, self._leeway, self._types = flat, number, leeway, types
        self._rng, self._is_body = body_rng or np.random.default_rng(number), body_rng is not None
        self._rounded = RoundedOperands(leeway.precision, number, self._rng)
        self._free = unread_by_steps(flat.nodes) if leeway.regrouped or leeway.wide else frozenset[str]()
        self._is_wide = leeway.wide and number % 2 == 1
        self._values = {name: self._store_value(name, value) for name, value in flat.initial_values(feeds).items()}
        self._rounded_names: set[str] = set()  # outputs of inexact ops, and all that depends on them
        self._body_types: dict[str, str] = {}

    def types(self) -> dict[str, str]:
        """The element type of each tensor, those of bodies that were run too."""
        own = {name: value.dtype.name for name, value in self._values.items() if isinstance(value, np.ndarray)}
        return self._body_types | own

    def output(self) -> Any:
        [result] = self.outputs()
        return result

    def outputs(self) -> list[Any]:
        """The values of all outputs."""
        for node in self._program.nodes:
            arrays = [self._values[name] if name else None for name in node.inputs]
            if self._number and self._leeway.precision is not Precision.AS_GIVEN:
                arrays = self._rounded.of(node, arrays, self._program, self._values, is_body=self._is_body)
            results = [self._change_zero_signs(node, value) for value in self._results(node, arrays)]
            is_rounded = not is_exact(node) or _is_free(self._program, node)
            if is_rounded or not self._rounded_names.isdisjoint(node.inputs):
                self._rounded_names.update(filter(None, node.outputs))
            for name, value in zip(node.outputs, results, strict=True):
                if name:
                    self._values[name] = self._store_value(name, value)
        return [self._as_declared(name, self._values[name]) for name in self._program.outputs]

    def _run_bodies(self, node: Node, arrays: Sequence[Any]) -> list[Any] | None:
        """The outputs of control flow, with what its bodies compute moved too. None where that can't be done."""

        def run(body: GraphProto, values: Mapping[str, Any]) -> list[Any]:
            program = flatten_body(body, node.version)
            if program is None:
                raise fallback.EvaluationError("a body calls a function")
            inner = _Run(program, values, self._number, self._leeway, self._types, self._rng)
            results = inner.outputs()
            self._body_types |= inner.types()
            return results

        try:
            return run_bodies(node, arrays, run)
        except (fallback.EvaluationError, ValueError):  # types or shapes that differ from those of the first run
            return None

    def _store_value(self, name: str, value: Any) -> Any:
        """A tensor as later nodes read it: a narrow one may stay wide."""
        if not self._is_wide or self._types.get(name) not in NARROW or not isinstance(value, np.ndarray):
            return value
        with np.errstate(all="ignore"):
            rounded = value if name in self._free and self._keeps_wide() else value.astype(dtype_of(self._types[name]))
            return rounded.astype(np.float32)

    def _keeps_wide(self) -> bool:
        """Whether a tensor stays wide: in the first run all do, in others some, as it may be read in both types."""
        return self._number == 1 or self._rng.random() < 0.5

    def _as_declared(self, name: str, value: Any) -> Any:
        if not self._is_wide or self._types.get(name) not in NARROW:
            return value
        with np.errstate(all="ignore"):
            return value.astype(dtype_of(self._types[name]))

    def _results(self, node: Node, arrays: Sequence[Any]) -> list[Any]:
        if (node.domain, node.op) in contrib.OPS:
            raise fallback.EvaluationError(f"{node.op} is not written in other ops")
        if self._is_wide and node.op in ("Cast", "CastLike") and self._types.get(node.outputs[0]) in NARROW:
            return [arrays[0].astype(np.float32)]
        if not self._leeway.wide and (flow_results := self._run_bodies(node, arrays)) is not None:
            return flow_results
        if self._is_wide and node.op in BODIES:
            arrays = [self._as_declared(name, a) if name else a for name, a in zip(node.inputs, arrays, strict=True)]
        if self._leeway.regrouped and self._number % 2 and node.op in float_products.PRODUCTS:
            return [float_products.product_of_floats(node, arrays, self._rng)]
        if self._leeway.regrouped and self._number % 2 and node.op == "MatMulInteger":
            return [float_products.sum_in_floats(node, arrays, self._rng)]
        if self._leeway.regrouped and node.op in ("Add", "Sub") and any(map(is_float_array, arrays)):
            arrays = [as_float64(a) if a.dtype.kind in "iu" else a for a in arrays]  # a bias beside such a sum
        if node.op == "Trees":
            return [self._move_trees(node, arrays)]
        if node.op in RESIZES and self._number and not is_exact(node) and not is_float_array(arrays[0]):
            return [self._resize_whole_numbers(node, arrays)]
        floats = [a for a in arrays if is_float_array(a)]
        if is_exact(node) or not (floats or node.op in CURVES):
            results = fallback.evaluate(node, arrays)
            is_moved = self._leeway.regrouped and node.op in REGROUPED and node.outputs[0] in self._free
            # A sum of rounded operands next to the middle between two floats may be either.
            is_moved |= node.op in ("Add", "Sub") and not self._rounded_names.isdisjoint(node.inputs)
            is_moved |= _is_free(self._program, node)
            if self._leeway.regrouped and node.op == "Clip" and node.outputs[0] in self._free:
                return [self._move_between_limits(node, value, arrays) for value in results]
            return [self._perturb(value) for value in results] if is_moved else results
        is_curve = node.op in CURVES
        own_results = fallback.evaluate(node, arrays) if self._number % 2 == 0 else None
        if own_results is not None and self._number and not is_curve and may_overflow(floats):
            return [self._perturb(value) for value in self._overflow(node, arrays, own_results)]
        try:
            count = 1 if node.op in FIRST_MOVES else len(arrays)
            operands = [self._widen(a, is_moved=not is_curve) for a in arrays[:count]]
            results = fallback.evaluate(node, [*operands, *arrays[count:]])
        except fallback.EvaluationError:  # the op, or one that it consists of, has no float64
            results = fallback.evaluate(node, [self._perturb(a) for a in arrays])
        scale = self._scale(node, arrays)
        if self._leeway.regrouped:
            scale = max(scale, largest(results)) if _may_be_winograds(node, arrays) else scale
            scale = np.maximum(scale, block_sizes(self._program, node, self._values))
        likes = own_results or [None] * len(results)
        places = zip(node.outputs, results, likes, strict=True)
        return [self._round(name, value, like, scale) for name, value, like in places]

    def _move_trees(self, node: Node, arrays: Sequence[Any]) -> Any:
        """The sums of leaves, moved by their roundings: which leaves rows come to is exact."""
        *walk, leaves = arrays
        results, sizes = (fallback.evaluate(node, [*walk, values])[0] for values in (leaves, np.abs(leaves)))
        if not self._number:
            return results
        noise = self._noise(np.maximum(np.abs(results), sizes))
        return np.where(np.isfinite(results), results + noise, results).astype(results.dtype)

    def _resize_whole_numbers(self, node: Node, arrays: Sequence[Any]) -> Any:
        """Means of neighbours, cut to whole numbers: one that float32 rounds to just below its place is one less.
        Those of antialiasing ONNX Runtime rounds to the nearest instead, after each axis.
        """
        first, *others = arrays
        [result] = fallback.evaluate(node, [first.astype(np.float64), *others])
        scale = np.max(np.abs(first.astype(np.float64)), initial=0.0)
        noise = self._noise(np.full(result.shape, scale, np.float32))
        if node.attrs.get("antialias"):
            noise = noise + self._rng.uniform(-1.0, 1.0, result.shape)
        return (result + noise).astype(first.dtype)

    def _scale(self, node: Node, arrays: Sequence[Any]) -> Any:
        """The scale of an op's errors beside its result: the subtrahends of its formula."""
        if self._leeway.coarse and node.op in COARSE:
            return COARSE_SCALE * self._coarse_scale(node, arrays)
        if node.op in CANCELLING:
            return _subtrahend(node)
        if node.op in CANCELLING_BY_OPERAND:
            return np.abs(as_float64(arrays[0]))
        if node.op == "LayerNormalization":
            return _rounded_mean(node, arrays)
        if node.op in RESIZES and node.attrs.get("mode") == "cubic":
            return largest(arrays[:1])  # weights of both signs: terms of a sum may cancel
        return np.nansum(np.abs(as_float64(arrays[0]))) if node.op in TURNING else 0.0

    def _coarse_scale(self, node: Node, arrays: Sequence[Any]) -> float:
        """The scale of a coarse op's errors: for gates the size of their states, for norms that of the mean."""
        if node.op in NORMS:
            read, weight = largest(arrays[:1]), largest(arrays[1:2])
            return max(1.0, read) * max(1.0, weight) / float(np.sqrt(max(node.attrs.get("epsilon", 1e-5), 1e-12)))
        if node.op == "Resize":
            return largest(arrays[:1])
        return max(1.0, largest(arrays[5:7])) if node.op in GATED else _subtrahend(node)

    def _overflow(self, node: Node, arrays: Sequence[Any], own_results: list[Any]) -> list[Any]:
        """Results in their own type; any value where another order of the sum would leave its range."""
        if node.op in SQUARING:
            if largest_product(node, arrays) > limits(own_results[0].dtype.name)[0]:
                return [np.full_like(value, (np.inf, np.nan, 0)[self._number // 2 % 3]) for value in own_results]
            return [self._move_by_lost_squares(value) for value in own_results]
        if node.op not in LINEAR and node.op != "ReduceProd":
            return own_results
        sizes = [np.abs(as_float64(a)) if is_float_array(a) else a for a in arrays]
        if node.op == "ReduceProd":
            sizes = [np.maximum(sizes[0], 1), *sizes[1:]]
        [most] = fallback.evaluate(node, [np.nan_to_num(a, nan=0.0) if is_float_array(a) else a for a in sizes])
        count = max(np.size(a) for a in sizes)
        limit = limits(own_results[0].dtype.name)[0] / (count if "Pool" in node.op or "Mean" in node.op else WINOGRAD)
        instead = (np.inf, -np.inf, np.nan)[self._number // 2 % 3]
        if most.shape != own_results[0].shape:
            return own_results
        return [np.where(as_float64(most) > limit, instead, own_results[0]).astype(own_results[0].dtype)]

    def _move_between_limits(self, node: Node, value: Any, arrays: Sequence[Any]) -> Any:
        """What is cut to limits, moved by units of the larger one: so far `HardSwish` is off that is written so."""
        if not self._number or not is_float_array(value):
            return value
        low, high = (node.attrs.get(name, 0.0) for name in ("min", "max"))
        limit = max(abs(float(low)), abs(float(high)), largest(arrays[1:3]))
        noise = self._noise(np.full_like(value, limit if np.isfinite(limit) else 0.0))
        is_cut = (value == low) | (value == high) | np.any([value == bound for bound in arrays[1:3]], axis=0)
        return np.where(is_cut, value, as_float64(value) + noise).astype(value.dtype)

    def _move_by_lost_squares(self, value: Any) -> Any:
        """A result moved by what is below the root of the least number: its square is 0, if it is squared."""
        if not is_float_array(value) or value.dtype.name in NARROW:
            return value
        root = np.sqrt(limits(value.dtype.name)[2])
        return (value + root * self._rng.uniform(-1.0, 1.0, value.shape)).astype(value.dtype)

    def _widen(self, array: Any, *, is_moved: bool) -> Any:
        if not is_float_array(array):
            return array
        wide = as_float64(array)
        if not (is_moved and self._number):
            return wide
        noise = self._noise(array)
        return wide + (np.where(wide == 0, 0.0, noise) if self._leeway.flushed else noise)  # flushed operands stay 0

    def _noise(self, array: Array) -> Any:
        least = LEAST_ULPS if self._number <= RUNS else 0.0
        size = _spacing(array) * self._rng.uniform(least, ULPS, array.shape)
        return np.where(np.isfinite(as_float64(array)), size * self._rng.choice((-1, 1), array.shape), 0.0)

    def _perturb(self, value: Any) -> Any:
        if not self._number or not is_float_array(value):
            return value
        with np.errstate(all="ignore"):
            result = (as_float64(value) + self._noise(value)).astype(value.dtype)
        return self._flush(result)

    def _round(self, name: str, value: Any, own_result: Any, scale: Any) -> Any:
        """A moved result in its own type. Where that type overflows on the way, half of the runs do so."""
        if not isinstance(value, np.ndarray):
            return value
        if isinstance(own_result, np.ndarray):
            dtype = own_result.dtype
        else:
            dtype = dtype_of(self._types.get(name, value.dtype.name))
        if self._is_wide and dtype.name in NARROW:
            dtype = np.dtype(np.float32)
        if dtype.name not in FLOATS or value.dtype.kind != "f":
            return value.astype(dtype)
        with np.errstate(all="ignore"):
            if not self._number:
                return value.astype(dtype)
            noise = self._noise(np.maximum(np.abs(value), scale).astype(dtype))
            rounded = np.asarray(value + noise).astype(dtype)
            if self._number > RUNS and self._number % 4 == 3:  # a curve may reach its limit early
                rounded = np.where(np.abs(value) <= self._rng.random() * np.abs(noise), 0, rounded).astype(dtype)
            if isinstance(own_result, np.ndarray):
                if own_result.shape != rounded.shape:
                    return own_result
                return np.where(np.isfinite(as_float64(own_result)), rounded, own_result)
        return self._flush(rounded)

    def _change_zero_signs(self, node: Node, value: Any) -> Any:
        """A result whose zeros get random signs, where they may have either."""
        if not self._leeway.unsigned or node.op not in UNSIGNED or not is_float_array(value) or not self._number:
            return value
        zeros = np.where(self._rng.random(value.shape) < 0.5, -0.0, 0.0)
        return np.where(value == 0, zeros, value).astype(value.dtype)

    def _flush(self, array: Array) -> Array:
        """In half of the runs set numbers below FLUSH_FACTOR to 0, if allowed."""
        if not self._leeway.flushed or self._number % 2 == 0:
            return array
        return np.where(np.abs(as_float64(array)) < FLUSH_FACTOR * limits(array.dtype.name)[1], 0, array).astype(
            array.dtype
        )


def _may_be_winograds(node: Node, arrays: Sequence[Any]) -> bool:
    """Whether a convolution has a form whose errors are those of the largest results nearby (`docs/numerics.md`)."""
    is_plain = node.op == "Conv" and not {*node.attrs.get("strides", ()), *node.attrs.get("dilations", ())} - {1}
    return is_plain and np.shape(arrays[1])[2:] == (3, 3)


def _rounded_mean(node: Node, arrays: Sequence[Any]) -> Any:
    """The size of the mean of each row in units of the row's spread: both are off by the rounding of the mean."""
    x = as_float64(arrays[0])
    axes = tuple(range(node.attrs.get("axis", -1) % max(x.ndim, 1), x.ndim))
    with np.errstate(all="ignore"):
        spread = np.sqrt(x.var(axis=axes, keepdims=True) + node.attrs.get("epsilon", 1e-5))
        return np.nan_to_num(np.abs(x.mean(axis=axes, keepdims=True)) / spread * largest(arrays[1:2]), posinf=0.0)


def _subtrahend(node: Node) -> float:
    """What a formula such as `alpha * exp(x) - alpha` subtracts, 1 at least."""
    if node.op not in EXPONENTIAL_UNITS:
        return 1.0
    alpha, gamma = (node.attrs.get(name, 2.0 if node.op == "Selu" else 1.0) for name in ("alpha", "gamma"))
    return max(1.0, abs(float(alpha) * float(gamma)))
