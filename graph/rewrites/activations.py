"""Activation functions out of the pieces that exporters write them in.

Their constants are the function's own, but for rounding, and no step function follows (`graph.decisive`): another order
of operations rounds in another way, as `docs/numerics.md` says.
"""

from __future__ import annotations

from math import pi, sqrt

import numpy as np

from tunewright.graph.ir import Graph, Node

from .algebra import close, factors_of, near, operands, polynomial
from .edit import Edit, apply


def gelus(graph: Graph) -> Graph:
    """GELU from its form by erf or by tanh, in any order of the factors.

    Before: `a = Mul(x, 0.7071); b = Erf(a); c = Add(b, 1); d = Mul(x, c); y = Mul(d, 0.5)`. After: `y = Gelu(x)`.
    Before: `y = 0.5 * x * (1 + tanh(0.7979 * (x + 0.0447 * x ** 3)))`. After: `y = Gelu(x) approximate=tanh`.
    """
    return apply(graph, _gelu)


_GELU = {
    "Erf": ("none", {1: sqrt(0.5)}),
    "Tanh": ("tanh", {1: sqrt(2 / pi), 3: 0.044715 * sqrt(2 / pi)}),
}


def _gelu(edit: Edit, node: Node) -> bool:
    if node.op not in ("Mul", "Div") or node.domain or not edit.may_round(node.outputs[0]):
        return False
    parts = list(operands(edit, node.inputs[0])) + list(operands(edit, node.inputs[1])) + list(node.inputs)
    for gate in parts:
        curve = _one_plus(edit, gate)
        if curve is None:
            continue
        approximate, expected = _GELU[curve.op]
        for x in parts:
            if x == gate or not close(polynomial(edit, curve.inputs[0], x), expected):
                continue
            if _product_of(edit, node, (x, gate), 0.5):
                edit.emit("Gelu", x, to=node.outputs[0], approximate=approximate)
                return True
    return False


def _one_plus(edit: Edit, name: str) -> Node | None:
    """The Erf or Tanh that 1 is added to."""
    node = edit.made_by(name, "Add")
    if node is None or edit.scalar(node.inputs[1]) != 1.0:
        return None
    return edit.made_by(node.inputs[0], "Erf", "Tanh")


def _product_of(edit: Edit, node: Node, wanted: tuple[str, str], scalar: float) -> bool:
    """Whether a Mul or Div is `scalar` times the two tensors, and of their type."""
    stop = frozenset(wanted)
    number, found = factors_of(edit, node, stop)
    alike = edit.types[wanted[0]] == edit.types[node.outputs[0]]
    return alike and sorted(found) == sorted(wanted) and near(number, scalar)


def gates(graph: Graph) -> Graph:
    """SiLU and HardSwish.

    Before: `a = Sigmoid(x); y = Mul(x, a)`. After: `y = Silu(x)`.
    Before: `a = HardSigmoid(x) alpha=0.1667 beta=0.5; y = Mul(x, a)`. After: `y = HardSwish(x)`.
    Before: `a = Add(x, 3); b = Clip(a) min=0 max=6; c = Mul(x, b); y = Div(c, 6)`. After: `y = HardSwish(x)`.
    """
    return apply(graph, _gate)


def _gate(edit: Edit, node: Node) -> bool:
    if node.domain or node.op not in ("Mul", "Div"):
        return False
    if node.op == "Mul" and _times_itself(edit, node):
        return True
    return edit.may_round(node.outputs[0]) and _hard_swish(edit, node)


def _times_itself(edit: Edit, node: Node) -> bool:
    """x * sigmoid(x), and the same of a hard sigmoid, bit by bit; but doubles have no such op."""
    for x, gate in (node.inputs, node.inputs[::-1]):
        made = edit.made_by(gate, "Sigmoid", "HardSigmoid")
        if made is None or made.inputs[0] != x or edit.types[x].dtype == "float64":
            continue
        if made.op == "Sigmoid":
            edit.emit("Silu", x, to=node.outputs[0])
            return True
        if (made.attrs["alpha"], made.attrs["beta"]) == (SIXTH, 0.5):
            edit.emit("HardSwish", x, to=node.outputs[0])
            return True
    return False


SIXTH = float(np.float32(1 / 6))


def _hard_swish(edit: Edit, node: Node) -> bool:
    """x * Clip(x + 3, 0, 6) / 6 in any order of the factors."""
    for gate in (*node.inputs, *(name for side in node.inputs for name in operands(edit, side))):
        clip = edit.made_by(gate, "Clip")
        line = edit.made_by(clip.inputs[0], "Add") if clip and len(clip.inputs) == 1 else None
        if clip is None or line is None or (clip.attrs.get("min"), clip.attrs.get("max")) != (0, 6):
            continue
        x = line.inputs[0]
        if edit.scalar(line.inputs[1]) == 3.0 and _product_of(edit, node, (x, gate), 1 / 6):
            edit.emit("HardSwish", x, to=node.outputs[0])
            return True
    return False
