"""What `channels_last=True` on a node means.

The node computes what its ONNX op does, on tensors whose axes are stored in another order:

| tensor                                   | ONNX                 | channels last        |
| ---------------------------------------- | -------------------- | -------------------- |
| activation: input 0 and every output     | `[N, C, *spatial]`   | `[N, *spatial, C]`   |
| weight of Conv and ConvInteger           | `[O, I/g, *kernel]`  | `[*kernel, I/g, O]`  |
| weight of ConvTranspose                  | `[I, O/g, *kernel]`  | `[*kernel, I, O/g]`  |

Everything else (bias, scales, attributes) is as in ONNX.
"""

from __future__ import annotations

from .ir import Node

_CHANNELS_LAST = """
AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace InstanceNormalization LpPool LRN MaxPool
SpaceToDepth
"""
CHANNELS_LAST_OPS = frozenset(_CHANNELS_LAST.split())
"""The ops that may carry the attribute."""

CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose"})
"""Those whose second operand is a weight."""


def is_channels_last(node: Node) -> bool:
    """Whether the node's tensors have their channels last."""
    return bool(node.attrs.get("channels_last", False))


def last_from_first(rank: int) -> tuple[int, ...]:
    """The axes of `[N, C, *spatial]` in the order `[N, *spatial, C]`, as Transpose takes them."""
    return (0, *range(2, rank), 1)


def first_from_last(rank: int) -> tuple[int, ...]:
    """The inverse of `last_from_first`."""
    return inverse(last_from_first(rank))


def weight_last_from_first(op: str, rank: int) -> tuple[int, ...]:
    """The axes of ONNX's weight in the order of the channels-last node."""
    return (*range(2, rank), 0, 1) if op == "ConvTranspose" else (*range(2, rank), 1, 0)


def input_to_first(node: Node, position: int, rank: int) -> tuple[int, ...] | None:
    """The permutation that brings an input of a channels-last node to ONNX's order; None if it is so already."""
    if position == 0:
        return first_from_last(rank)
    if position == 1 and node.op in CONVOLUTIONS:
        return inverse(weight_last_from_first(node.op, rank))
    return None


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(perm.index(axis) for axis in range(len(perm)))
