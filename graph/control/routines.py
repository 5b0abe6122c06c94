"""Functions of the runtime for what no stages say: results whose number, or that of rounds, only a run tells."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunewright.codegen.expr.dtype import DType

from ..evaluation.coupling import COUPLE
from ..evaluation.rows import WRITE
from ..evaluation.sizes import FIND, LARGEST, SUPPRESS, UNIQUE
from ..ir import Node, TensorType
from .steps import Routine, TensorCopy

ROUTINES = frozenset({COUPLE, FIND, LARGEST, SUPPRESS, UNIQUE, WRITE})
"""Ops that the runtime has functions for."""

PART_BYTES = 1 << 14
"""Of long rows that are written threads take so many bytes each."""


def routine_steps(node: Node, types: Mapping[str, TensorType]) -> list[Routine | TensorCopy]:
    """The steps of one of the ROUTINES."""
    if node.op != WRITE:
        return [_routine(node, types)]
    (x, places, rows), (result,) = node.inputs, node.outputs
    (count, width), dtype = types[rows].shape or (0, 0), DType(types[rows].dtype)
    width_bytes = width * dtype.size_bytes
    numbers = count, (types[x].shape or (0,))[0], width_bytes, PART_BYTES
    write = Routine("tw_write_rows", (places, rows), (result,), -(-width_bytes // PART_BYTES), numbers, node)
    return [TensorCopy(x, result), write]


def _routine(node: Node, types: Mapping[str, TensorType]) -> Routine:
    """The call of the function for one of the ROUTINES; see those of `codegen/runtime` that are no part of the pool."""
    if node.op == COUPLE:
        numbers = (types[node.inputs[0]].shape or ())[:2]
        return Routine("tw_couple_pairs", node.inputs, node.outputs, numbers[0], numbers, node)
    if node.op == FIND:
        count = prod(types[node.inputs[0]].shape or ())
        return Routine("tw_find_true", node.inputs, node.outputs, 1, (count,), node)
    if node.op == LARGEST:
        *rows, count = types[node.inputs[0]].shape or ()
        numbers = count, int(node.attrs["most"]), int(node.attrs["largest"])
        return Routine("tw_find_largest", node.inputs, node.outputs, prod(rows), numbers, node)
    if node.op == UNIQUE:
        items, elements = types[node.inputs[0]].shape or ()
        is_float = types[node.inputs[0]].dtype == "float64"
        numbers = items, elements, int(is_float), int(node.attrs["sorted"])
        return Routine("tw_find_unique", node.inputs, node.outputs, 1, numbers, node)
    images, classes, boxes = types[node.inputs[1]].shape or ()
    numbers = boxes, classes, int(node.attrs["most"])
    return Routine("tw_suppress_boxes", node.inputs, node.outputs, images * classes, numbers, node)
