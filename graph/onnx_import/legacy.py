"""Opset 6 in terms of opset 7, which brought numpy's broadcasting."""

from __future__ import annotations

from dataclasses import replace

from tunewright.graph.draft import Draft
from tunewright.graph.ir import Node

_BINARY_OPS = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"})

_DROPPED = {"BatchNormalization": "is_test", "Dropout": "is_test", "Gemm": "broadcast"}

_EXTENDED_OPS = frozenset({"AveragePool"})
"""What got further attributes."""


def modern_version(domain: str, version: int) -> int:
    """The opset version that ops of `version` are run at: `modern` raises what 7 changed, and 7 left the rest alone."""
    return version if domain else max(version, 7)


def modern(draft: Draft, node: Node) -> Node:
    """The node as opset 7 writes it; what it needs before it is added to the draft.

    Before: `y = Add(x, b) broadcast=1 axis=1` with x `[2, 3, 4]`, b `[3]`.
    After: `c = Reshape(b) shape=(3, 1); y = Add(x, c)`.
    """
    if node.domain or node.version != 6:
        return node
    inputs = list(node.inputs)
    attrs = dict(node.attrs)
    if node.op in _BINARY_OPS:
        axis = attrs.pop("axis", None)
        if attrs.pop("broadcast", 0) and axis is not None:
            inputs[1] = _aligned(draft, node.inputs[0], node.inputs[1], axis)
    elif node.op == "PRelu":
        shape = draft.shape(node.inputs[1])
        if shape is not None and len(shape) == 1 and shape != (1,):
            inputs[1] = _aligned(draft, node.inputs[0], node.inputs[1], 1)
    elif node.op in _DROPPED:
        attrs.pop(_DROPPED[node.op], None)
    elif node.op not in _EXTENDED_OPS:
        return node
    return replace(node, inputs=tuple(inputs), attrs=attrs, version=7)


def _aligned(draft: Draft, whole: str, part: str, axis: int) -> str:
    """The smaller operand with extents of 1 appended, so that its first axis meets that axis of the larger one."""
    given, shape = draft.shape(whole), draft.shape(part)
    if given is None or shape is None:
        return part
    missing = len(given) - axis % max(len(given), 1) - len(shape)
    return draft.emit("Reshape", part, shape=(*shape, *(1,) * missing)) if missing > 0 else part
