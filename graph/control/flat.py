"""Steps of a model whose control flow has become steps: the tensors that they read, and the same over others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..fusion.fusion import Fallback, Step, TaskCall
from ..ir import Node
from ..ops import TensorView
from .steps import Branch, ControlStep, LoopEnd, LoopStart, MovingView, Routine, TensorCopy

FlatStep = Step | ControlStep
"""A step of a model whose control flow has become steps."""


def read_names(step: FlatStep) -> Sequence[str]:
    """The tensors that a step reads."""
    match step:
        case TaskCall(inputs=names) | Routine(inputs=names) | Fallback(Node(inputs=names)):
            return names
        case TensorView(input=name) | MovingView(of=name) | TensorCopy(source=name):
            return (name,)
        case Branch(condition) | LoopEnd(condition=condition):
            return (condition,)
        case LoopStart(trips=trips, condition=condition):
            return (trips, condition)
    return ()


def rename(step: Step, names: Mapping[str, str], prefix: str) -> Step:
    """A step over other tensors; those without a name in `names` get a prefix."""

    def to(tensors: Sequence[str]) -> tuple[str, ...]:
        return tuple(names[name] if name in names else prefix + name for name in tensors)

    def node_to(node: Node) -> Node:
        return replace(node, inputs=to(node.inputs), outputs=to(node.outputs))

    match step:
        case TaskCall(inputs=inputs, outputs=outputs, nodes=nodes):
            return replace(step, inputs=to(inputs), outputs=to(outputs), nodes=tuple(map(node_to, nodes)), group=None)
        case TensorView(source, output):
            source, output = to((source, output))
            return replace(step, input=source, output=output)
        case Fallback(node):
            return replace(step, node=node_to(node))
