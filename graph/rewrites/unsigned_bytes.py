"""Signed bytes between quantising and dequantising as unsigned ones, 128 more, where a processor multiplies such."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.graph.draft import Draft
from tunewright.graph.ir import Graph, Node

from .output_scales import MOVING_OPS, data_operands

SHIFT = 128
"""From a signed byte to the unsigned one that stands for it."""

COUNTING_OPS = frozenset({"ConvInteger", "DequantizeLinear", "MatMulInteger"})
"""Ops that count their first operand from a zero point."""

ZERO_POINT = 2
"""Where the zero point is among the operands of these, and of QuantizeLinear."""


def unsigned_activations(graph: Graph) -> Graph:
    """Quantise to unsigned bytes what is quantised to signed ones, and only moved until something counts it from zero.

    Before: `p = QuantizeLinear(x, s, z); q = MaxPool(p); y = DequantizeLinear(q, s, z)`, z signed.
    After: `p = QuantizeLinear(x, s, z + 128); q = MaxPool(p); y = DequantizeLinear(q, s, z + 128)`, z + 128 unsigned.
    """
    free = _free_tensors(graph)
    if not free:
        return graph
    draft = Draft(graph)
    for name in free:
        draft.types[name] = replace(draft.types[name], dtype=DType.U8.value)
    for node in graph.nodes:
        draft.add(_with_shifted_zero(draft, node) if free.intersection(_counted(node)) else node)
    return draft.finish(graph.inputs, graph.outputs)


def _free_tensors(graph: Graph) -> set[str]:
    """The signed bytes that are seen by nodes of this graph alone, all of which can do with unsigned ones."""
    ports = {port.tensor for port in (*graph.inputs, *graph.outputs)}
    free = {name for node in graph.nodes for name in node.outputs if _is_signed(graph, name)} - ports
    while stuck := {name for node in graph.nodes for name in _stuck(graph, node, free)}:
        free -= stuck
    return free


def _is_signed(graph: Graph, name: str) -> bool:
    return bool(name) and graph.types[name].dtype == DType.I8.value


def _stuck(graph: Graph, node: Node, free: set[str]) -> Collection[str]:
    """The tensors at a node that it needs signed."""
    touched = free.intersection((*node.inputs, *node.outputs))
    if touched and node.op in MOVING_OPS and not node.domain:
        moved = {*data_operands(node), *(name for name in node.outputs if _is_signed(graph, name))}
        return () if moved <= free else touched
    counted = _counted(node)
    places = [name for name in (*node.inputs, *node.outputs) if name in free]
    is_fit = len(places) == 1 and set(places) <= set(counted) and _zero_point(graph, node) is not None
    return () if is_fit else touched


def _counted(node: Node) -> tuple[str, ...]:
    """The tensors that a node counts from a zero point."""
    if node.domain:
        return ()
    if node.op == "QuantizeLinear":
        return node.outputs
    return node.inputs[:1] if node.op in COUNTING_OPS else ()


def _zero_point(graph: Graph | Draft, node: Node) -> NDArray[np.int32] | None:
    """The zero point of a node; None where it is not known."""
    name = (*node.inputs, "", "")[ZERO_POINT]
    if name:
        known = graph.constants.get(name)
        return None if known is None else np.asarray(known, np.int32)
    shape = graph.types[node.inputs[1]].shape if node.op in ("DequantizeLinear", "QuantizeLinear") else ()
    return None if shape is None else np.zeros(shape, np.int32)


def _with_shifted_zero(draft: Draft, node: Node) -> Node:
    """The node with unsigned bytes in the place of signed ones."""
    zero = _zero_point(draft, node)
    assert zero is not None  # it is free
    shifted = draft.constant((zero + SHIFT).astype(np.uint8))
    inputs = [*node.inputs, *[""] * (ZERO_POINT - len(node.inputs))]
    is_typed = node.op == "QuantizeLinear"  # of the other op it is the type of floats
    attrs = {name: value for name, value in node.attrs.items() if not (is_typed and name == "output_dtype")}
    inputs[ZERO_POINT : ZERO_POINT + 1] = [shifted]
    return replace(node, inputs=tuple(inputs), attrs=attrs)
