"""Many updates of ScatterElements and ScatterND as rows that a function of the runtime writes, one after the other."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.ir import Node

from ..evaluation.rows import WRITE
from ..ops import has_kernel
from .edit import Edit, Result, each


@each("ScatterElements")
def whole_rows(edit: Edit, node: Node) -> Result:
    """Updates of elements that are updates of whole rows, as PyTorch writes `index_add` of them.

    Before: `y = ScatterElements(x, Expand(i), u) axis=0`, x [1000, 8], i [500, 1], u [500, 8].
    After: `y = ScatterND(x, Reshape(i), u)`.
    """
    x, indices, updates = node.inputs
    expand = edit.producer(indices, "Expand")
    if expand is None or node.attrs["axis"] != 0:
        return None
    numbers, shape, own = (edit.shape(name) for name in (expand.inputs[0], x, updates))
    if numbers is None or shape is None or own is None or not shape:
        return None
    count, *row = own
    is_of_rows = numbers[-len(own) :] == (count, *[1] * len(row)) and list(shape[1:]) == row
    if not is_of_rows:
        return None
    rows = edit.emit("Reshape", expand.inputs[0], shape=(count, 1))
    return replace(
        node, op="ScatterND", inputs=(x, rows, updates), attrs={"reduction": node.attrs.get("reduction", "none")}
    )


@each("ScatterElements", "ScatterND")
def written_rows(edit: Edit, node: Node) -> Result:
    """Write rows where looking for the update of each place would take long, in a copy of what is updated.

    Before: `y = ScatterND(x, i, u)`, x [1000, 8], i [500, 1], u [500, 8].
    After: `y = WriteRows(x, Reshape(i), u)`, with -1 in the places of indices that are outside.
    """
    x, _, updates = node.inputs
    shapes = [edit.shape(name) for name in node.inputs]
    if node.attrs.get("reduction", "none") != "none" or DType.of(edit.types[x].dtype) is None:
        return None
    if any(shape is None or 0 in shape for shape in shapes) or not shapes[0]:
        return None
    if has_kernel(node, edit.types, edit.constants):
        return None
    places, width = (_nd_places if node.op == "ScatterND" else element_places)(edit, node)
    (count,) = edit.shape(places) or ()
    rows = edit.emit("Reshape", updates, shape=(count, width))
    whole = edit.emit("Reshape", x, shape=(prod(shapes[0]) // width, width))
    return edit.emit("Reshape", edit.emit(WRITE, whole, places, rows), shape=shapes[0])


def _nd_places(edit: Edit, node: Node) -> tuple[str, int]:
    """The row of each index vector, and the elements of a row."""
    x, indices = node.inputs[:2]
    shape, (*outer, length) = edit.shape(x) or (), edit.shape(indices) or ()
    count = prod(outer)
    columns = edit.emit("Reshape", _int64(edit, indices), shape=(count, length))
    wrapped, is_inside = _wrap(edit, columns, np.asarray(shape[:length]))
    strides = [prod(shape[k + 1 : length]) for k in range(length)]
    flat = edit.emit("Mul", wrapped, edit.constant(np.asarray(strides, np.int64)))
    inside = edit.cast(is_inside, "int64")
    if length > 1:
        flat = edit.emit("ReduceSum", flat, axes=(1,), keepdims=0)
        inside = edit.emit("ReduceMin", inside, axes=(1,), keepdims=0)
    places = edit.emit("Where", edit.cast(inside, "bool"), flat, edit.constant(np.asarray(-1)))
    return edit.emit("Reshape", places, shape=(count,)), prod(shape[length:])


def element_places(edit: Edit, node: Node) -> tuple[str, int]:
    """The place of each element's update among all elements, and 1."""
    x, indices = node.inputs[:2]
    shape, own, axis = edit.shape(x) or (), edit.shape(indices) or (), int(node.attrs["axis"])
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    wrapped, is_inside = _wrap(edit, _int64(edit, indices), np.asarray(shape[axis]))
    flat = edit.emit("Mul", wrapped, edit.constant(np.asarray(strides[axis])))
    for k, extent in enumerate(own):
        if k != axis and extent > 1:
            along = np.arange(extent).reshape(-1, *[1] * (len(own) - 1 - k)) * strides[k]
            flat = edit.emit("Add", flat, edit.constant(along))
    places = edit.emit("Where", is_inside, flat, edit.constant(np.asarray(-1)))
    return edit.emit("Reshape", places, shape=(prod(own),)), 1


def _int64(edit: Edit, name: str) -> str:
    return name if edit.types[name].dtype == "int64" else edit.cast(name, "int64")


def _wrap(edit: Edit, indices: str, extents: np.ndarray) -> tuple[str, str]:
    """Indices, which may count from the end, counted from the start, and which of them are inside."""
    zero, ends = edit.constant(np.asarray(0)), edit.constant(extents.astype(np.int64))
    wrapped = edit.emit("Where", edit.emit("Less", indices, zero), edit.emit("Add", indices, ends), indices)
    is_inside = edit.emit(
        "And", edit.emit("Less", edit.constant(np.asarray(-1)), wrapped), edit.emit("Less", wrapped, ends)
    )
    return wrapped, is_inside
