"""What an answer may be: the model in float64, and how far rounding on the way may move its outputs.

A fixed tolerance would be wrong both ways: cancellation makes large errors out of the smallest, and where nothing is
rounded there must be none. So the model is computed a few times, node by node, each node in float64 and its
outputs rounded to their type. Ops that IEEE or ONNX define to the last bit are computed in their own type and left
alone. Of the others operands and results are moved at random by a few units in the last place, which is what another
order of summation, another formula or a fused multiply-add do. How far outputs lie apart is the condition of the model;
where a step function, an index or an overflow makes one go either way, it does so in some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunewright.graph import fallback
from tunewright.graph.ir import Array, Node

from . import dequantised
from .case import Feeds
from .exactness import (
    CANCELLING,
    CANCELLING_BY_OPERAND,
    COARSE,
    CURVES,
    GATED,
    LINEAR,
    NORMS,
    REGROUPED,
    SQUARING,
    TURNING,
    UNSIGNED,
    is_exact,
    unread_by_steps,
)
from .program import Program
from .values import FLOATS, NARROW, dtype_of, epsilon, limits

FIRST_MOVES = frozenset({"Pow", "Resize", "Upsample"})
"""Ops whose first operand alone is moved: others are powers, whole perhaps, or decide of the shape."""

BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Ops whose bodies declare the types of what they are given."""

RUNS = 6
"""Computations with something moved, beside the one without."""

MANY_RUNS = 64
"""The same before a finding is told: which of two neighbours a step makes may hang on one element moved one way."""

WIDE_RUNS = 16
"""The same where any of the narrow tensors may be rounded or not."""

LEAST_ULPS, ULPS = 1.5, 4.0
"""By how many units in the last place operands and results are moved at least and at most. In the first RUNS never by
nothing; in MANY_RUNS also by a part of one, which is what the next float is away from."""

SPREAD = 8.0
"""How many times the largest distance that was seen is allowed."""

WINOGRAD = 256.0
"""How much larger sums may be on the way than their terms, as in Winograd's convolutions."""

FLUSH_FACTOR = 256.0
"""Times the smallest normal number: below it exponentials, and what they are multiplied by, may have come to 0."""

COARSE_SCALE = 4.0
"""What errors of coarse curves are relative to."""


@dataclass(frozen=True, slots=True)
class Leeway:
    """What is allowed beyond rounding.

    `regrouped`: products may be taken together, quantised ones be those of floats. `wide`: what is narrow may stay
    float32 from node to node. Neither where a step function reads what becomes of it. `coarse`: sigmoids and their kind
    may be off by a few units in the last place of 1, however small they are. `flushed`: what is below FLUSH_FACTOR
    normal numbers may be 0. `unsigned`: a 0 that sums or the larger of two give may have either sign.
    """

    regrouped: bool = False
    wide: bool = False
    coarse: bool = False
    flushed: bool = False
    unsigned: bool = False


STRICT = Leeway()


@dataclass(frozen=True, slots=True)
class Bound:
    """What an output may be: `centre` within `tolerance`, both float64; where `is_open`, anything."""

    centre: Array
    tolerance: Array
    is_open: Array

    def allows(self, found: Array) -> Array:
        """Which elements are right."""
        with np.errstate(all="ignore"):
            wide = _wide(found)
            near = np.abs(wide - self.centre) <= self.tolerance
        same = (wide == self.centre) | (np.isnan(wide) & np.isnan(self.centre))
        return np.asarray(near | same | self.is_open)


def varies(flat: Program, feeds: Feeds) -> bool:
    """Whether rounding decides of the shape of the output, in one of MANY_RUNS. Raises EvaluationError."""
    leeway = Leeway(flushed=True)
    first = _Run(flat, feeds, 0, leeway, {})
    shape = np.shape(first.output())
    return any(np.shape(_Run(flat, feeds, n, leeway, first.types()).output()) != shape for n in range(1, MANY_RUNS + 1))


def bound(flat: Program, feeds: Feeds, leeway: Leeway = STRICT, *, runs: int = RUNS) -> Bound | None:
    """Of the output of a program that has one. None where it is no tensor, or its shape differs from run to run.

    `runs` as RUNS; there are no fewer than WIDE_RUNS where what is narrow may stay wide.

    Raises EvaluationError.
    """
    first = _Run(flat, feeds, 0, leeway, {})
    results = [first.output()]
    types = first.types()
    runs = max(runs, WIDE_RUNS) if leeway.wide else runs
    results += [_Run(flat, feeds, number, leeway, types).output() for number in range(1, runs + 1)]
    return _bound(results, is_rounded=not all(map(is_exact, flat.nodes)))


def _bound(values: Sequence[Any], *, is_rounded: bool) -> Bound | None:
    if any(isinstance(value, list) or value is None for value in values):
        return None
    arrays = [np.asarray(value) for value in values]
    if any(array.shape != arrays[0].shape for array in arrays) or arrays[0].dtype.kind in "OUS":
        return None
    wide = [_wide(array) for array in arrays]
    centre = wide[0]
    is_open = np.zeros(centre.shape, np.bool_)
    distance = np.zeros(centre.shape)
    with np.errstate(all="ignore"):
        for other in wide[1:]:
            is_open |= _kind(other) != _kind(centre)
            distance = np.maximum(distance, np.where(np.isfinite(other - centre), np.abs(other - centre), 0.0))
        # Of a value that rounding may move at all, the last place of its own type is never sure.
        ulp = _spacing(arrays[0])
        tolerance = SPREAD * distance + (ulp if is_rounded else np.where(distance > 0, ulp, 0.0))
    return Bound(centre, tolerance, is_open)


def _kind(array: Array) -> Array:
    """0 finite, 1 infinite, -1 negative infinite, 2 NaN."""
    return np.where(np.isnan(array), 2, np.where(np.isinf(array), np.sign(array), 0))


def _wide(array: Array) -> Any:
    return np.asarray(array).astype(np.float64)


def _spacing(array: Array) -> Any:
    """A unit in the last place of each element."""
    if array.dtype.name not in FLOATS:
        return np.zeros(array.shape)
    largest, _, least = limits(array.dtype.name)
    magnitude = np.minimum(np.abs(np.nan_to_num(_wide(array), nan=0.0)), largest)
    return np.maximum(magnitude * epsilon(array.dtype.name), least)


class _Run:
    """One computation of a model; number 0 moves nothing. `types` are those of the tensors, in later ones."""

    def __init__(self, flat: Program, feeds: Feeds, number: int, leeway: Leeway, types: Mapping[str, str]) -> None:
        self._program, self._number, self._leeway, self._types = flat, number, leeway, types
        self._rng = np.random.default_rng(number)
        self._free = unread_by_steps(flat.nodes) if leeway.regrouped or leeway.wide else frozenset[str]()
        self._is_wide = leeway.wide and number % 2 == 1
        self._values = {name: self._kept(name, value) for name, value in flat.start(feeds).items()}
        self._rounded_names: set[str] = set()  # of what is made by ops that are not exact, however far ahead

    def types(self) -> dict[str, str]:
        """The element type of each tensor."""
        return {name: value.dtype.name for name, value in self._values.items() if isinstance(value, np.ndarray)}

    def output(self) -> Any:
        for node in self._program.nodes:
            arrays = [self._values[name] if name else None for name in node.inputs]
            results = [self._resigned(node, value) for value in self._results(node, arrays)]
            if not is_exact(node) or not self._rounded_names.isdisjoint(node.inputs):
                self._rounded_names.update(filter(None, node.outputs))
            for name, value in zip(node.outputs, results, strict=True):
                if name:
                    self._values[name] = self._kept(name, value)
        [name] = self._program.outputs
        return self._declared(name, self._values[name])

    def _kept(self, name: str, value: Any) -> Any:
        """A tensor as it is handed on: a narrow one may stay wide."""
        if not self._is_wide or self._types.get(name) not in NARROW or not isinstance(value, np.ndarray):
            return value
        with np.errstate(all="ignore"):
            rounded = value if name in self._free and self._stays_wide() else value.astype(dtype_of(self._types[name]))
            return rounded.astype(np.float32)

    def _stays_wide(self) -> bool:
        """In the first run all does, in others some: what is read in its own type as well is rounded."""
        return self._number == 1 or self._rng.random() < 0.5

    def _declared(self, name: str, value: Any) -> Any:
        if not self._is_wide or self._types.get(name) not in NARROW:
            return value
        with np.errstate(all="ignore"):
            return value.astype(dtype_of(self._types[name]))

    def _results(self, node: Node, arrays: Sequence[Any]) -> list[Any]:
        if self._is_wide and node.op in ("Cast", "CastLike") and self._types.get(node.outputs[0]) in NARROW:
            return [arrays[0].astype(np.float32)]
        if self._is_wide and node.op in BODIES:
            arrays = [self._declared(name, a) if name else a for name, a in zip(node.inputs, arrays, strict=True)]
        if self._leeway.regrouped and self._number % 2 and node.op in dequantised.PRODUCTS:
            return [dequantised.product_of_floats(node, arrays, self._rng)]
        floats = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype.name in FLOATS]
        if is_exact(node) or not (floats or node.op in CURVES):
            results = fallback.evaluate(node, arrays)
            is_moved = self._leeway.regrouped and node.op in REGROUPED and node.outputs[0] in self._free
            # Next to the middle between two floats, a sum of what is rounded anyhow goes to either of them.
            is_moved |= node.op in ("Add", "Sub") and not self._rounded_names.isdisjoint(node.inputs)
            return [self._moved(value) for value in results] if is_moved else results
        is_curve = node.op in CURVES
        own = fallback.evaluate(node, arrays) if self._number % 2 == 0 else None
        if own is not None and self._number and not is_curve and may_overflow(floats):
            return [self._moved(value) for value in self._overflown(node, arrays, own)]
        try:
            count = 1 if node.op in FIRST_MOVES else len(arrays)
            moved = [self._widened(a, moved=not is_curve) for a in arrays[:count]]
            results = fallback.evaluate(node, [*moved, *arrays[count:]])
        except fallback.EvaluationError:  # an op that does not have float64, or is made of others that don't
            results = fallback.evaluate(node, [self._moved(a) for a in arrays])
        scale = self._scale(node, arrays)
        likes = own or [None] * len(results)
        places = zip(node.outputs, results, likes, strict=True)
        return [self._rounded(name, value, like, scale) for name, value, like in places]

    def _scale(self, node: Node, arrays: Sequence[Any]) -> Any:
        """What the errors of an op are relative to, beside its result: what is taken away in its formula."""
        if self._leeway.coarse and node.op in COARSE:
            return COARSE_SCALE * self._coarse_scale(node, arrays)
        if node.op in CANCELLING:
            return 1.0
        if node.op in CANCELLING_BY_OPERAND:
            return np.abs(_wide(arrays[0]))
        return np.nansum(np.abs(_wide(arrays[0]))) if node.op in TURNING else 0.0

    def _coarse_scale(self, node: Node, arrays: Sequence[Any]) -> float:
        """Of gates the size of the states that they move on, of norms that of what is taken away."""
        if node.op in NORMS:
            read, weight = largest(arrays[:1]), largest(arrays[1:2])
            return max(1.0, read) * max(1.0, weight) / float(np.sqrt(max(node.attrs.get("epsilon", 1e-5), 1e-12)))
        if node.op == "Resize":
            return largest(arrays[:1])
        return max(1.0, largest(arrays[5:7])) if node.op in GATED else 1.0

    def _overflown(self, node: Node, arrays: Sequence[Any], own: list[Any]) -> list[Any]:
        """Results in the type itself; where another order of the sum would leave its range, anything."""
        if node.op in SQUARING:
            if _largest_product(node, arrays) > limits(own[0].dtype.name)[0]:
                return [np.full_like(value, (np.inf, np.nan, 0)[self._number // 2 % 3]) for value in own]
            return own
        if node.op not in LINEAR and node.op != "ReduceProd":
            return own
        sizes = [np.abs(_wide(a)) if _is_float(a) else a for a in arrays]
        if node.op == "ReduceProd":
            sizes = [np.maximum(sizes[0], 1), *sizes[1:]]
        [most] = fallback.evaluate(node, [np.nan_to_num(a, nan=0.0) if _is_float(a) else a for a in sizes])
        count = max(np.size(a) for a in sizes)
        limit = limits(own[0].dtype.name)[0] / (count if "Pool" in node.op or "Mean" in node.op else WINOGRAD)
        instead = (np.inf, -np.inf, np.nan)[self._number // 2 % 3]
        return (
            [np.where(_wide(most) > limit, instead, own[0]).astype(own[0].dtype)] if most.shape == own[0].shape else own
        )

    def _widened(self, array: Any, *, moved: bool) -> Any:
        if not _is_float(array):
            return array
        wide = _wide(array)
        if not (moved and self._number):
            return wide
        noise = self._noise(array)
        return wide + (np.where(wide == 0, 0.0, noise) if self._leeway.flushed else noise)  # what is flushed stays 0

    def _noise(self, array: Array) -> Any:
        least = LEAST_ULPS if self._number <= RUNS else 0.0
        size = _spacing(array) * self._rng.uniform(least, ULPS, array.shape)
        return np.where(np.isfinite(_wide(array)), size * self._rng.choice((-1, 1), array.shape), 0.0)

    def _moved(self, value: Any) -> Any:
        if not self._number or not _is_float(value):
            return value
        with np.errstate(all="ignore"):
            moved = (_wide(value) + self._noise(value)).astype(value.dtype)
        return self._flushed(moved)

    def _rounded(self, name: str, value: Any, own: Any, scale: Any) -> Any:
        """A result in its own type, moved. Where that overflows on the way, half of the runs have it so."""
        if not isinstance(value, np.ndarray):
            return value
        kind = own.dtype if isinstance(own, np.ndarray) else dtype_of(self._types.get(name, value.dtype.name))
        if self._is_wide and kind.name in NARROW:
            kind = np.dtype(np.float32)
        if kind.name not in FLOATS or value.dtype.kind != "f":
            return value.astype(kind)
        with np.errstate(all="ignore"):
            if not self._number:
                return value.astype(kind)
            noise = self._noise(np.maximum(np.abs(value), scale).astype(kind))
            rounded = np.asarray(value + noise).astype(kind)
            if self._number > RUNS and self._number % 4 == 3:  # a curve may reach its limit early: neighbours are equal
                rounded = np.where(np.abs(value) <= self._rng.random() * np.abs(noise), 0, rounded).astype(kind)
            if isinstance(own, np.ndarray):
                return np.where(np.isfinite(_wide(own)), rounded, own) if own.shape == rounded.shape else own
        return self._flushed(rounded)

    def _resigned(self, node: Node, value: Any) -> Any:
        """A result whose zeros have a sign at random, where they may have either."""
        if not self._leeway.unsigned or node.op not in UNSIGNED or not _is_float(value) or not self._number:
            return value
        zeros = np.where(self._rng.random(value.shape) < 0.5, -0.0, 0.0)
        return np.where(value == 0, zeros, value).astype(value.dtype)

    def _flushed(self, array: Array) -> Array:
        """In half of the runs what is next to nothing is 0, where that is allowed."""
        if not self._leeway.flushed or self._number % 2 == 0:
            return array
        return np.where(np.abs(_wide(array)) < FLUSH_FACTOR * limits(array.dtype.name)[1], 0, array).astype(array.dtype)


def _largest_product(node: Node, arrays: Sequence[Any]) -> float:
    """How large sums of products inside of an op of SQUARING can be, about."""
    match node.op:
        case "BatchNormalization":  # before it is divided by the deviation, or after
            root = np.sqrt(np.abs(_wide(arrays[4])) + node.attrs.get("epsilon", 1e-5)).min(initial=1.0)
            centred, scale = largest(arrays[:1]) + largest(arrays[3:4]), largest(arrays[1:2])
            pairs = [(centred, scale), (centred, scale / root), (1.0, scale / root)]
        case "GRU" | "LSTM" | "RNN":
            states = [a for a in arrays[5:7] if a is not None]
            pairs = [(largest(arrays[:1]), largest(arrays[1:2])), (max(largest(states), 1.0), largest(arrays[2:3]))]
        case "Attention":
            pairs = [(largest(arrays[:1]), largest(arrays[1:2]))]
        case _:
            pairs = [(largest(arrays[:1]), largest(arrays[:1]))]
    with np.errstate(over="ignore"):
        products = [float(np.float64(a) * np.float64(b)) for a, b in pairs]
    return max(products) * int(arrays[0].size)


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in FLOATS


def largest(arrays: Sequence[Any]) -> float:
    """The largest size of a finite element; 0 where there is none."""
    with np.errstate(all="ignore"):
        sizes = [np.abs(_wide(array)).ravel() for array in arrays if _is_float(array)]
        return max((float(size[np.isfinite(size)].max(initial=0.0)) for size in sizes), default=0.0)


def may_overflow(arrays: Sequence[Array]) -> bool:
    """Whether squares and products of what is read, summed up, may leave the range of their type on the way."""
    name = "float64" if any(array.dtype.name == "float64" for array in arrays) else "float32"
    largest, normal, _ = limits(name)
    with np.errstate(all="ignore"):
        sizes = np.concatenate([np.zeros(0), *(np.abs(_wide(array)).ravel() for array in arrays)])
        finite = sizes[np.isfinite(sizes) & (sizes > 0)]
        if not finite.size:
            return False
        return bool(finite.max() ** 2 * finite.size > largest / 16 or finite.min() ** 2 < normal)
