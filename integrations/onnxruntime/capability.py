"""What we take of a graph of ONNX Runtime's."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from onnx import TensorProto

from tunewright.graph import contrib

from .compiled_group import is_compiled
from .graph import ELEMENT_BITS, OrtGraph, OrtNode, OrtValueInfo
from .groups import LEAST_WORK, GroupNode, choose_groups

STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview")
"""Whose ops are ours, as far as they are of tensors of numbers."""

KERNEL_ELEMENTS = frozenset(ELEMENT_BITS) - {TensorProto.INT4, TensorProto.UINT4}
"""Elements of what goes from node to node; weights may be of fewer bits."""

LEFT_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Ops whose results no two runtimes share."""

CONTROL_FLOW = ("If", "Loop", "Scan")

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


@dataclass(frozen=True, slots=True)
class Capability:
    """Says which nodes become ours: none that reads a weight which the session was given beside the model."""

    given: frozenset[str] = frozenset()  # names of these weights

    def claims(self, graph: OrtGraph) -> list[list[OrtNode]]:
        """The groups of nodes that are to be ours.

        Bodies come before the graph around them. A body is left alone where the node that it belongs to will be ours.
        """
        node = graph.parent
        if node is not None and (self.is_ours(node) or not _is_written_out(node)):
            return []
        nodes = graph.nodes
        groups = choose_groups([self._group_node(node) for node in nodes])
        return [[nodes[number] for number in group] for group in groups]

    def _group_node(self, node: OrtNode) -> GroupNode:
        inputs, outputs = ([value.name for value in values if value] for values in (node.inputs, node.outputs))
        captures = [value.name for value in node.captures]
        return GroupNode((*inputs, *captures), tuple(outputs), self.is_ours(node), _work(node))

    def is_ours(self, node: OrtNode) -> bool:
        """Whether we compute a node: an op that we know, of tensors of numbers, in bodies too."""
        if is_compiled(node):
            return True
        if node.domain not in STANDARD_DOMAINS and (node.domain, node.op) not in contrib.OPS:
            return False
        values = [value for value in (*node.inputs, *node.outputs, *node.captures) if value]
        return (
            node.op not in LEFT_OPS
            and all(value.element in (ELEMENT_BITS if value.is_weight else KERNEL_ELEMENTS) for value in values)
            and not any(value.name in self.given for value in values)
            and all(self.is_ours(inner) for body in node.bodies.values() for inner in body.nodes)
            and node.is_readable
        )


def _is_written_out(node: OrtNode | None) -> bool:
    """Whether a node and all around it are control flow. Bodies of other ops, such as SequenceMap, are put into others
    that ONNX Runtime makes of the op later on, where it would not know our groups any more.
    """
    while node is not None:
        if node.op not in CONTROL_FLOW:
            return False
        around = node.graph
        node = None if around is None else around.parent
    return True


def _work(node: OrtNode) -> int:
    """About how many operations a node does."""
    if is_compiled(node):
        return LEAST_WORK
    results = sum(_elements(value) for value in node.outputs if value)
    return results * (PRODUCT_WORK if any(part in node.op for part in PRODUCT_OPS) or node.bodies else 1)


def _elements(value: OrtValueInfo) -> int:
    return prod(extent if extent >= 0 else OPEN_EXTENT for extent in value.shape)
