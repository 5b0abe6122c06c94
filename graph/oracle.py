"""The oracle: tasks computed in numpy, and example inputs for them.

Everything else is measured against this, so it is written for being right: stage by stage as the task says, every
access checked to be in bounds, every element checked to be written once. It is fast enough for the tasks of real
models because products go through BLAS and the rest over whole grids of points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import BYTES, DType
from tunewright.codegen.expr.expr import Expr, Load, Op, evaluate, free_vars, loads, narrow_source, op, transform, walk
from tunewright.codegen.expr.index import linear

from .ir import Array
from .task import SMALL, Axis, Stage, Task, Tensor, identity

GRID_POINTS = 1 << 20
"""Points of a stage that are evaluated at once: bounds the memory that the oracle needs."""

MATRIX_ELEMENTS = 1 << 24
"""Elements of a factor that are laid out for one matrix product."""

Ranges = Mapping[str, range]
"""The part of a stage's grid that is looked at: some places of each axis."""


def reference(task: Task, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a task on its inputs, both in the task's order.

    Inputs may have any shape of the right size. Elements of an output that are not written (`written_masks`) are zero.
    Sums are as accurate as float64, products of matrices as BLAS makes them in float32. Raises IndexError for an access
    out of bounds, and ValueError if an element is not written exactly once, or read before that.
    """
    values: dict[str, Array] = {}
    for tensor, array in zip(task.inputs, arrays, strict=True):
        if array.dtype != tensor.dtype.numpy:
            raise TypeError(f"{tensor.name} is {tensor.dtype}, not {array.dtype}")
        values[tensor.name] = np.ascontiguousarray(array).reshape(tensor.shape)
    targets = {tensor.name: tensor for tensor in task.temporaries + task.outputs}
    values |= {name: np.zeros(tensor.shape, tensor.dtype.numpy) for name, tensor in targets.items()}
    masks = {name: np.zeros(tensor.shape, np.bool_) for name, tensor in targets.items()}
    writes = dict.fromkeys(targets, 0)
    for stage in task.stages:
        for name in {read.tensor for read in loads(stage.body)} & targets.keys():
            _check_written(name, masks[name], writes[name], masks[name].size)
        _run(stage, values)
        _mark(masks[stage.output], stage)
        writes[stage.output] += prod(axis.extent for axis in stage.axes)
    for name, elements in masks.items():
        expected = writes[name] if name in task.parts else elements.size
        _check_written(name, elements, writes[name], expected)
    return [values[tensor.name] for tensor in task.outputs]


ROUNDINGS = frozenset({"round", "floor", "ceil"})
"""Ops that round to whole numbers."""

ROUNDING_SLACK = 1 / 256
"""Error allowed to computed floats before they are rounded to whole numbers, in units of these."""


def rounding_bounds(task: Task, arrays: Sequence[Array]) -> list[tuple[Array, Array]] | None:
    """The least and the largest value of each output, if computed values within ROUNDING_SLACK of a tie are rounded
    either way; None for a task that rounds nothing that it computes.
    """
    results = []
    for lean in (-ROUNDING_SLACK, ROUNDING_SLACK):
        visit = partial(_lean, lean=lean)
        stages = tuple(replace(stage, body=transform(stage.body, visit)) for stage in task.stages)
        if stages == task.stages:
            return None
        results.append(reference(replace(task, stages=stages), arrays))
    return [(np.minimum(low, high), np.maximum(low, high)) for low, high in zip(*results, strict=True)]


def _lean(node: Expr, lean: float) -> Expr:
    """Add `lean` to the computed operand of a rounding, at the root of an expression."""
    match node:
        case Op(name, (value,)) if name in ROUNDINGS and _is_computed(value):
            return op(name, value + lean)
        case Op("cast", (value,), dtype) if not dtype.is_float and dtype is not DType.BOOL and _is_computed(value):
            is_whole = any(isinstance(part, Op) and part.name in ROUNDINGS for part in walk(value))
            return node if is_whole else op("cast", value + lean, dtype=dtype)
    return node


def _is_computed(value: Expr) -> bool:
    return value.dtype.is_float and not isinstance(narrow_source(value), Load)


def written_masks(task: Task) -> list[NDArray[np.bool_] | None]:
    """A mask of the elements that a task writes, for each output; None for all."""
    masks = {tensor.name: np.zeros(tensor.shape, np.bool_) for tensor in task.outputs if tensor.name in task.parts}
    for stage in task.stages:
        if stage.output in masks:
            _mark(masks[stage.output], stage)
    return [masks.get(tensor.name) for tensor in task.outputs]


def _mark(elements: Array, stage: Stage) -> None:
    """Set the elements that a stage writes."""
    _strided_view(elements, stage.index, _full_ranges(stage.axes), [axis.name for axis in stage.axes])[...] = True


def _check_written(name: str, mask: Array, writes: int, expected: int) -> None:
    if not writes == int(mask.sum()) == expected:
        raise ValueError(f"{name}: {writes} writes to {int(mask.sum())} of {mask.size} elements")


def _full_ranges(axes: Sequence[Axis]) -> Ranges:
    return {axis.name: range(axis.extent) for axis in axes}


def _run(stage: Stage, values: Mapping[str, Array]) -> None:
    match stage:
        case Stage(combiner="sum", body=Op("mul", (left, right), dtype)):
            left_load, right_load = narrow_source(left), narrow_source(right)
            is_exact = dtype.is_float or {left_load.dtype, right_load.dtype} <= BYTES
            if (
                is_exact
                and isinstance(left_load, Load)
                and isinstance(right_load, Load)
                and _multiply(stage, left_load, right_load, values)
            ):
                return
    _run_grid(stage, values)


# Any stage, point by point


def _run_grid(stage: Stage, values: Mapping[str, Array]) -> None:
    """Evaluate the body over the grid, a part at a time, and fold."""
    output = values[stage.output]
    axes = [axis.name for axis in stage.axes]
    if not stage.reduce:
        for ranges in _parts(stage.axes, stage.points, GRID_POINTS):
            _strided_view(output, stage.index, ranges, axes)[...] = _grid_values(stage, ranges, values)
        return
    dtype = np.float64 if stage.body.dtype.is_float else stage.body.dtype.numpy
    total = np.full([axis.extent for axis in stage.axes], identity(stage.combiner, stage.body.dtype), dtype)
    join = FOLDS[stage.combiner]
    for ranges in _parts(stage.axes + stage.reduce, stage.points, GRID_POINTS):
        part = _grid_values(stage, ranges, values)
        folded = join.reduce(part, axis=tuple(range(len(axes), part.ndim)), dtype=dtype)
        place = tuple(slice(ranges[axis].start, ranges[axis].stop) for axis in axes)
        total[place] = join(total[place], folded)
    with np.errstate(all="ignore"):
        _strided_view(output, stage.index, _full_ranges(stage.axes), axes)[...] = total


FOLDS: Mapping[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
"""The combiners of `task.COMBINERS` in numpy."""


def _parts(axes: Sequence[Axis], points: int, limit: int) -> Iterator[Ranges]:
    """The grid in parts of about `limit` points, cut along the outermost axes."""
    cuts: list[list[range]] = []
    for axis in axes:
        count = min(axis.extent, -(-points // limit))
        cuts.append([range(n * axis.extent // count, (n + 1) * axis.extent // count) for n in range(count)])
        points = -(-points // count)
    for ranges in product(*cuts):
        yield {axis.name: part for axis, part in zip(axes, ranges, strict=True)}


def _grid_values(stage: Stage, ranges: Ranges, values: Mapping[str, Array]) -> Array:
    """The body at every point of a part of the grid, axes first, then reduction axes."""
    order = [axis.name for axis in stage.axes + stage.reduce]
    axes = (np.arange(ranges[name].start, ranges[name].stop) for name in order)
    grid = dict(zip(order, np.ix_(*axes), strict=True))  # each broadcasts against the others

    def read(node: Load, index: Sequence[Any]) -> Array:
        array = values[node.tensor]
        if all(linear(expr) is not None for expr in node.index):
            used = set(free_vars(*node.index))
            return _strided_view(array, node.index, ranges, order, used)
        for at, extent in zip(index, array.shape, strict=True):
            if np.min(at) < 0 or np.max(at) >= extent:
                raise IndexError(f"{node} reads {np.min(at)} .. {np.max(at)} of {extent}")
        return np.asarray(array[tuple(index)])

    result = evaluate(stage.body, grid, read)
    return np.broadcast_to(result, [len(ranges[name]) for name in order])


def _strided_view(
    array: Array, index: Sequence[Expr], ranges: Ranges, order: Sequence[str], used: set[str] | None = None
) -> Array:
    """The elements at an affine index over the grid, one dimension an axis, without a copy.

    Axes that are not in `used` (if it is given) have extent 1. Raises IndexError if an element lies outside.
    """
    extents = {name: len(part) for name, part in ranges.items()}
    steps = dict.fromkeys(order, 0)
    offset = 0
    for expr, extent, stride in zip(index, array.shape, array.strides, strict=True):
        form = linear(expr)
        if form is None:
            raise ValueError(f"index {expr} is not affine")
        first = sum(c * ranges[axis].start for axis, c in form.coefficients.items())
        low, high = (first + bound for bound in form.bounds(extents))
        if low < 0 or high >= extent:
            raise IndexError(f"{expr} runs over {low} .. {high} of {extent}")
        offset += (first + form.constant) * stride
        for axis, coefficient in form.coefficients.items():
            steps[axis] += coefficient * stride
    shape = [extents[name] if used is None or name in used else 1 for name in order]
    start = array.reshape(-1)[offset // array.itemsize :]
    return as_strided(start, shape, [steps[name] for name in order])


# Products


def _multiply(stage: Stage, left: Load, right: Load, values: Mapping[str, Array]) -> bool:
    """A sum of products as matrix products. False if it is none: some axis is in neither factor, or all are in both.

    Those of bytes are exact in float64.
    """
    in_left, in_right = set(free_vars(*left.index)), set(free_vars(*right.index))
    axes = {axis.name: axis.extent for axis in stage.axes}
    inner = [axis.name for axis in stage.reduce]
    batch = [name for name in axes if name in in_left and name in in_right]
    rows = [name for name in axes if name in in_left and name not in in_right]
    columns = [name for name in axes if name not in in_left and name in in_right]
    plain = all(linear(expr) is not None for expr in left.index + right.index)
    if not plain or len(batch + rows + columns) < len(axes) or not set(inner) <= in_left & in_right:
        return False
    if not rows and not columns:
        return False
    depth = prod(axis.extent for axis in stage.reduce)
    outer = [axis for axis in stage.axes if axis.name in batch + rows]
    whole, is_float = _full_ranges(stage.axes + stage.reduce), stage.body.dtype.is_float
    dtype = stage.body.dtype.numpy if is_float else np.dtype(np.float64)
    for part in _parts(outer, depth * prod(axis.extent for axis in outer), MATRIX_ELEMENTS):
        ranges = {**whole, **part}
        a = _matrix(values[left.tensor], left.index, ranges, batch, rows, inner).astype(dtype, copy=False)
        b = _matrix(values[right.tensor], right.index, ranges, batch, inner, columns).astype(dtype, copy=False)
        order = batch + rows + columns
        result = np.matmul(a, b).reshape([len(ranges[name]) for name in order])
        _strided_view(values[stage.output], stage.index, ranges, order)[...] = (
            result if is_float else result.astype(np.int64)
        )
    return True


def _matrix(
    array: Array, index: Sequence[Expr], ranges: Ranges, batch: list[str], rows: list[str], columns: list[str]
) -> Array:
    """The elements at an index as matrices, [batch, rows, columns]."""
    view = _strided_view(array, index, ranges, batch + rows + columns)
    return view.reshape([prod(len(ranges[name]) for name in group) for group in (batch, rows, columns)])


# Inputs


def example_inputs(task: Task, seed: int) -> list[Array]:
    """Inputs to try a task on: the same seed gives the same values everywhere.

    Floats are normal, scaled so that sums stay near 1; positive where a root, a logarithm or a power is taken of them,
    away from zero where something is divided by them. Integers that choose elements are in range. Bytes whose
    products are summed as integers are any: machines may add them up in small words.
    """
    rng = np.random.default_rng(seed)
    uses = _uses(task)
    return [_example(tensor, uses[tensor.name], rng) for tensor in task.inputs]


@dataclass(slots=True)
class _Use:
    """Constraints on an example input, from its use in stages."""

    scale: float = 1.0
    positive: bool = False
    limit: int | None = None  # of an index
    any_byte: bool = False


def _uses(task: Task) -> dict[str, _Use]:
    uses = {tensor.name: _Use() for tensor in task.inputs}
    for stage in task.stages:
        match stage:
            case Stage(combiner="sum", body=Op("mul", (left, right))):
                # One factor is enough: the weights, or else the second one that comes from outside.
                read = (x.tensor for x in map(narrow_source, (left, right)) if isinstance(x, Load))
                factors = [name for name in read if name in uses]
                for name in sorted(factors, key=lambda name: task.tensor(name).constant)[-1:]:
                    uses[name].scale = 1 / sqrt(prod(axis.extent for axis in stage.reduce))
                if stage.body.dtype is DType.I32:
                    for name in factors:
                        uses[name].any_byte = True
        for node in walk(stage.body):
            match node:
                case Op("sqrt" | "log" | "pow" | "div" as kind, args):
                    for name in _read(args[-1] if kind == "div" else args[0]) & uses.keys():
                        uses[name].positive = True
                case Load(tensor, index):
                    for at, extent in zip(index, task.tensor(tensor).shape, strict=True):
                        for name in {x.tensor for x in loads(at)} & uses.keys():
                            uses[name].limit = min(extent, uses[name].limit or extent)
    return uses


def _read(expr: Expr) -> set[str]:
    """The tensors whose values go into an expression, other than through an index."""
    if isinstance(expr, Load):
        return {expr.tensor}
    return {name for part in expr.children for name in _read(part)}


def _example(tensor: Tensor, use: _Use, rng: np.random.Generator) -> Array:
    if tensor.dtype is DType.BOOL:
        return rng.random(tensor.shape) < 0.5
    if not tensor.dtype.is_float:
        low, high = 0 if tensor.dtype.is_unsigned else -9, 10
        if use.limit is not None:
            low, high = 0, use.limit
        elif use.any_byte and tensor.dtype.size_bytes == 1:
            limits = np.iinfo(tensor.dtype.value)
            low, high = (-SMALL, SMALL + 1) if tensor.small else (limits.min, limits.max + 1)
        return rng.integers(low, high, tensor.shape).astype(tensor.dtype.numpy)
    values = rng.standard_normal(tensor.shape, np.float32) * np.float32(use.scale)
    if use.positive:
        values = np.abs(values) + np.float32(0.5)
    return values.astype(tensor.dtype.numpy)
