"""Algebra of ops that move elements: Reshape, Transpose, Expand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunewright.graph.ir import Graph, Node

from .edit import Edit, apply
from .elementwise import BROADCASTING_OPS


def reshapes(graph: Graph) -> Graph:
    """Chains of Reshapes as one, and none that keeps the shape; an Expand only where broadcasting won't do.

    Before: `a = Reshape(x) shape=(6,); b = Reshape(a) shape=(3, 2); c = Expand(s) shape=(3, 2); y = Add(b, c)`.
    After: `b = Reshape(x) shape=(3, 2); y = Add(b, s)`.
    """
    return apply(graph, _reshape_rule)


def _reshape_rule(edit: Edit, node: Node) -> bool:
    if node.domain:
        return False
    if node.op == "Reshape" and len(node.inputs) == 1:
        return _reshape(edit, node)
    if node.op == "Expand" and len(node.inputs) == 1:
        return _expand(edit, node)
    return node.op in BROADCASTING_OPS and _broadcast(edit, node)


def _reshape(edit: Edit, node: Node) -> bool:
    source = node.inputs[0]
    if edit.types[source] == edit.types[node.outputs[0]]:
        edit.alias(node.outputs[0], source)
        return True
    inner = edit.made_by(source, "Reshape")
    if inner is None:
        return False
    edit.add(Node("Reshape", inner.inputs[:1], node.outputs, node.attrs, version=node.version))
    return True


def _expand(edit: Edit, node: Node) -> bool:
    """One that only adds dimensions of extent 1."""
    given, made = edit.shape(node.inputs[0]), edit.shape(node.outputs[0])
    if given is None or made is None or np.prod(given) != np.prod(made) or 0 in made:
        return False
    edit.emit("Reshape", node.inputs[0], to=node.outputs[0], shape=made)
    return True


def _broadcast(edit: Edit, node: Node) -> bool:
    made = edit.shape(node.outputs[0])
    inputs = list(node.inputs)
    for position, name in enumerate(node.inputs):
        inner = edit.made_by(name, "Expand") if name else None
        if inner is None or len(inner.inputs) > 1 or made is None:
            continue
        inputs[position] = inner.inputs[0]
        shapes = [edit.shape(item) for item in inputs if item]
        if None in shapes or _broadcast_shape([shape for shape in shapes if shape is not None]) != made:
            inputs[position] = name
    if tuple(inputs) == node.inputs:
        return False
    edit.add(Node(node.op, tuple(inputs), node.outputs, node.attrs, version=node.version))
    return True


def _broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(int(extent) for extent in np.broadcast_shapes(*shapes))


def transposes(graph: Graph) -> Graph:
    """Chains of Transposes as one, none that undo each other, and those that move only extents of 1 as Reshapes.

    Before: `a = Transpose(x) perm=(0, 2, 3, 1); y = Transpose(a) perm=(0, 3, 1, 2)`. After: `y = x`.
    """
    return apply(graph, _transpose_rule)


def _transpose_rule(edit: Edit, node: Node) -> bool:
    shape = edit.shape(node.inputs[0]) if node.op == "Transpose" and not node.domain else None
    if shape is None:
        return False
    perm = tuple(node.attrs["perm"])
    if perm == tuple(range(len(perm))):
        edit.alias(node.outputs[0], node.inputs[0])
        return True
    inner = edit.made_by(node.inputs[0], "Transpose")
    if inner is not None:
        first = inner.attrs["perm"]
        edit.emit("Transpose", inner.inputs[0], to=node.outputs[0], perm=tuple(first[axis] for axis in perm))
        return True
    if moves_nothing(shape, perm):
        edit.emit("Reshape", node.inputs[0], to=node.outputs[0], shape=tuple(shape[axis] for axis in perm))
        return True
    return False


def moves_nothing(shape: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether a Transpose keeps the elements in order, as it moves only extents of 1."""
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved) and 0 not in shape
