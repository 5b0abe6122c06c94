"""What we take of a graph of ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnx import TensorProto

from tunewright.graph import contrib

from .graph import ELEMENT_BITS, OrtGraph, OrtNode, OrtValueInfo
from .groups import GroupNode, choose_groups

STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview")
"""Whose ops are ours, as far as they are of tensors of numbers."""

KERNEL_ELEMENTS = frozenset(ELEMENT_BITS) - {TensorProto.INT4, TensorProto.UINT4}
"""Elements of what goes from node to node; weights may be of fewer bits."""

LEFT_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Ops whose results no two runtimes share."""

OPEN_EXTENT = 64
"""What an extent counts as that is open."""

PRODUCT_OPS = (
    "Attention",
    "Conv",
    "Einsum",
    "GRU",
    "Gemm",
    "GroupQueryAttention",
    "LSTM",
    "MatMul",
    "RNN",
    "TreeEnsemble",
)
"""Parts of the names of ops that do far more operations than they have results."""

PRODUCT_WORK = 64
"""Operations a result of such an op counts for, where the sizes of its sums are not looked at."""


def claims(graph: OrtGraph) -> Iterator[list[OrtNode]]:
    """The groups of nodes that are to be ours.

    Bodies come before the graph around them. A body is left alone where the node that it belongs to will be ours.
    """
    if _is_within_ours(graph):
        return
    nodes = graph.nodes
    for group in choose_groups([_group_node(node) for node in nodes]):
        yield [nodes[number] for number in group]


def _is_within_ours(graph: OrtGraph) -> bool:
    node = graph.parent
    return node is not None and is_ours(node)


def _group_node(node: OrtNode) -> GroupNode:
    inputs, outputs = ([value.name for value in values if value] for values in (node.inputs, node.outputs))
    captures = [value.name for value in node.captures]
    return GroupNode((*inputs, *captures), tuple(outputs), is_ours(node), _work(node))


def is_ours(node: OrtNode) -> bool:
    """Whether we compute a node: an op that we know, of tensors of numbers, in bodies too."""
    if node.domain not in STANDARD_DOMAINS and (node.domain, node.op) not in contrib.OPS:
        return False
    if node.op in LEFT_OPS:
        return False
    values = (*node.inputs, *node.outputs, *node.captures)
    if not all(value is None or value.element in KERNEL_ELEMENTS or value.is_weight for value in values):
        return False
    return all(is_ours(inner) for body in node.bodies.values() for inner in body.nodes)


def _work(node: OrtNode) -> int:
    """About how many operations a node does."""
    results = sum(_elements(value) for value in node.outputs if value)
    return results * (PRODUCT_WORK if any(part in node.op for part in PRODUCT_OPS) or node.bodies else 1)


def _elements(value: OrtValueInfo) -> int:
    return prod(extent if extent >= 0 else OPEN_EXTENT for extent in value.shape)
