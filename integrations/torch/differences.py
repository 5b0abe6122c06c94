"""Nodes that mean something else once they are ONNX: such stay with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

GAPS = "reads memory as it lies"
VIEWS = "shares memory with another result"


def _argument(node: Any, name: str) -> Any:
    """An argument of a node by the name that its op gives it; None where it is left out."""
    names = [argument.name for argument in node.target._schema.arguments]  # noqa: SLF001
    return dict(zip(names, node.args, strict=False)).get(name, node.kwargs.get(name))


def _is_whole(node: Any) -> bool:
    """Whether all operands are of whole numbers."""
    values = [operand.meta.get("val") for operand in node.all_input_nodes]
    return all(not isinstance(value, torch.Tensor) or not value.is_floating_point() for value in values)


def _reduces_nothing(node: Any) -> bool:
    """Whether an extent of the operand is 0."""
    return any(extent == 0 for extent in node.all_input_nodes[0].meta["val"].shape)


_ALWAYS = (
    "atan2", "floor_divide", "heaviside", "remainder", "fmod", "sgn", "sign", "signbit",
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
)  # fmt: skip
"""Ops whose translation differs at edges, such as signed zeros, NaN and nearly whole quotients, or forgets that
batch norm is in training."""

_SOMETIMES: Mapping[str, Callable[[Any], bool]] = {
    "all": _reduces_nothing,
    "any": _reduces_nothing,
    "avg_pool1d": lambda node: _argument(node, "divisor_override") is not None,
    "avg_pool2d": lambda node: _argument(node, "divisor_override") is not None,
    "avg_pool3d": lambda node: _argument(node, "divisor_override") is not None,
    "batch_norm": lambda node: bool(_argument(node, "training")),
    "div": lambda node: _argument(node, "rounding_mode") is not None and _is_whole(node),
    "scatter_reduce": lambda node: _argument(node, "reduce") not in ("sum", "prod", "amin", "amax"),
}
"""Ops whose translation drops an argument, and when that matters."""


def difference(node: Any) -> str:
    """In what a node would differ, in a word or two; "" where nothing is known of."""
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return ""
    name = node.target._schema.name.partition("::")[2]  # noqa: SLF001
    if name in _ALWAYS or (name in _SOMETIMES and _SOMETIMES[name](node)):
        return "its ONNX form differs"
    return ""


def is_view(node: Any) -> bool:
    """Whether a node's result is memory of its operand."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)  # noqa: SLF001


def _has_all_memory(node: Any) -> bool:
    """Whether a result lies row by row, from the beginning to the end of its memory."""
    value = node.meta["val"]
    size_bytes = value.numel() * value.element_size()
    if not isinstance(size_bytes, int):  # nobody knows
        return False
    return bool(value.is_contiguous() and not value.storage_offset() and value.untyped_storage().nbytes() == size_bytes)


def untaken_by_memory(graph: Any) -> dict[str, str]:
    """The nodes that PyTorch has to run for the sake of memory, with the reason.

    `as_strided` of what does not lie row by row in memory of its own reads elements at places where results of a
    session have others: then all nodes. And views of which another view, or what they are of, is a result as well: who
    writes one sees it in the other.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if any(node.target is aten.as_strided.default and not _has_all_memory(node.args[0]) for node in calls):
        return {node.name: GAPS for node in calls}
    results = dict.fromkeys(graph.output_node().all_input_nodes)
    chains: dict[Any, list[list[Any]]] = {}
    for result in results:
        chain = []
        node = result
        while is_view(node):
            chain.append(node)
            node = node.all_input_nodes[0]
        chains.setdefault(node, []).append(chain)
    shared = (chain for of_base in chains.values() if len(of_base) > 1 for chain in of_base)
    return {node.name: VIEWS for chain in shared for node in chain}
