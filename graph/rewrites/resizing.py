"""Images of another size, from elements that are chosen along one axis after the other."""

from __future__ import annotations

import numpy as np

from tunewright.graph.ir import Node

from ..evaluation.images import CROP_AND_RESIZE, outside, taps
from ..ops import has_kernel
from .edit import Edit, Result, each

MAX_TAPS = 16
"""Most elements along an axis that a result is made of: with antialiasing, of a small image of a large one."""


@each("Resize")
def interpolations(edit: Edit, node: Node) -> Result:
    """A Resize that no kernel copies as it is, along one axis after the other, first where it shrinks most.

    Before: `y = Resize(x) scales=(1, 2.5) mode="linear"`.
    After: `a = Gather(x, i) axis=1; b = Gather(x, j) axis=1; y = a * v + b * w`, with i, j, v and w known.
    """
    if len(node.inputs) != 1 or has_kernel(node, edit.types, edit.constants):
        return None
    shape, result, attrs = edit.shape(node.inputs[0]), edit.shape(node.outputs[0]), node.attrs
    if shape is None or result is None or 0 in (*shape, *result):
        return None
    by_axis = {axis: taps(attrs, axis, extent) for axis, extent in enumerate(shape)}
    chosen = {axis: item for axis, item in by_axis.items() if item is not None}
    is_copy = all(weights is None for _, weights in chosen.values())
    if any(elements.shape[1] > MAX_TAPS for elements, _ in chosen.values()):
        return None
    if not chosen or not (is_copy or (edit.is_float(node.inputs[0]) and edit.may_round(node.outputs[0]))):
        return None
    value = node.inputs[0]
    for axis in sorted(chosen, key=lambda axis: result[axis] / shape[axis]):
        elements, weights = chosen[axis]
        columns = [edit.emit("Gather", value, edit.constant(column), axis=axis) for column in elements.T]
        if weights is not None:
            broadcast = (len(elements), *(1,) * (len(shape) - 1 - axis))
            dtype = edit.types[value].dtype
            factors = [edit.constant(column.astype(dtype).reshape(broadcast)) for column in weights.T]
            terms = [edit.emit("Mul", *pair) for pair in zip(columns, factors, strict=True)]
            columns = [terms[0]]
            for term in terms[1:]:
                columns = [edit.emit("Add", columns[0], term)]
        value = columns[0]
    if attrs["coordinate_transformation_mode"] == CROP_AND_RESIZE:
        value = _fill_outside(edit, node, value)
    return value


def _fill_outside(edit: Edit, node: Node, value: str) -> str:
    """What is cut out has another value where it lies beyond the input."""
    shape = edit.shape(node.inputs[0]) or ()
    rows = [outside(node.attrs, axis, extent) for axis, extent in enumerate(shape)]
    for axis, row in enumerate(rows):
        if row.any():
            condition = edit.constant(row.reshape(-1, *(1,) * (len(shape) - 1 - axis)))
            filling = edit.constant(np.asarray(node.attrs["extrapolation_value"], edit.types[value].dtype))
            value = edit.emit("Where", condition, filling, value)
    return value
