"""Pools and padding in one form."""

from __future__ import annotations

from tunewright.graph.channels import is_channels_last
from tunewright.graph.ir import Graph, Node

from .edit import Edit, apply


def whole_pools(graph: Graph) -> Graph:
    """Pools over a whole image as reductions.

    Before: `y = GlobalAveragePool(x)`, or an AveragePool whose one window covers x `[1, 64, 7, 7]`.
    After: `y = ReduceMean(x) axes=(2, 3) keepdims=1`. The same with MaxPool and ReduceMax.
    """
    return apply(graph, _whole)


_REDUCTIONS = {
    "AveragePool": "ReduceMean", "GlobalAveragePool": "ReduceMean", "MaxPool": "ReduceMax", "GlobalMaxPool": "ReduceMax"
}  # fmt: skip


def _whole(edit: Edit, node: Node) -> bool:
    shape = edit.shape(node.inputs[0]) if node.op in _REDUCTIONS and not node.domain else None
    if shape is None or len(node.outputs) > 1 or is_channels_last(node):
        return False
    if not node.op.startswith("Global") and (
        tuple(node.attrs.get("kernel_shape", ())) != shape[2:]
        or any(node.attrs.get("pads", (1,)))
        or edit.shape(node.outputs[0]) != shape[:2] + (1,) * (len(shape) - 2)
        or any(dilation != 1 for dilation in node.attrs.get("dilations", ()))
    ):
        return False
    axes = tuple(range(2, len(shape)))
    edit.emit(_REDUCTIONS[node.op], node.inputs[0], to=node.outputs[0], axes=axes, keepdims=1)
    return True


def pads(graph: Graph) -> Graph:
    """Zeros around an image as pads of the convolution, or of the average that counts them.

    Before: `a = Pad(x) pads=(0, 0, 1, 1, 0, 0, 1, 1) value=0; y = Conv(a, w) pads=(0, 0, 0, 0)`.
    After: `y = Conv(x, w) pads=(1, 1, 1, 1)`.
    """
    return apply(graph, _pad)


def _pad(edit: Edit, node: Node) -> bool:
    if node.op not in ("Conv", "AveragePool") or node.domain or "pads" not in node.attrs or is_channels_last(node):
        return False
    inner = edit.made_by(node.inputs[0], "Pad")
    if inner is None or len(inner.inputs) > 1 or inner.attrs.get("mode") != "constant" or inner.attrs.get("value") != 0:
        return False
    given, own = inner.attrs["pads"], node.attrs["pads"]
    rank = len(given) // 2
    if any(given[k] for k in (0, 1, rank, rank + 1)):
        return False
    attrs = dict(node.attrs)
    if node.op == "AveragePool":
        if any(own):
            return False
        attrs["count_include_pad"] = 1
    outside = given[2:rank] + given[rank + 2 :]
    attrs["pads"] = tuple(a + b for a, b in zip(outside, own, strict=True))
    edit.add(Node(node.op, (inner.inputs[0], *node.inputs[1:]), node.outputs, attrs, version=node.version))
    return True
