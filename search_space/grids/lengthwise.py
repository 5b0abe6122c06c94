"""Lengthwise: constants of a product of bytes, packed so that they lie along its reduction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tunewright.codegen.dtype import BYTES
from tunewright.codegen.expr import Expr, Load, Var, transform
from tunewright.codegen.ir import Packing
from tunewright.graph.task import Task

from ..products.product import packable
from .block_tile import tensor_product
from .operand_tile import Operand, operands


@lru_cache(maxsize=256)
def lengthwise(task: Task) -> tuple[Task, Mapping[str, Packing]]:
    """The task with constants of a product of bytes along its reduction, and how they are packed for that.

    No instruction turns bytes on their way from shared memory into registers.
    """
    found = tensor_product(task)
    if found is None or found.panel.dtype not in BYTES:
        return task, {}
    packings: dict[str, Packing] = {}
    for operand in operands(found):
        if not operand.is_deep and packable(task, operand.load):
            order = _lengthwise(operand)
            shape = task.tensor(operand.load.tensor).shape
            packings[operand.load.tensor] = Packing.in_order(order, tuple(shape[d] for d in order))
            task = _turned(task, operand.load.tensor, order)
    return task, packings


def _lengthwise(operand: Operand) -> tuple[int, ...]:
    """The dimensions of an operand, those along the reduction last."""
    depth = [axis.name for axis in operand.depth]
    inner = {at.name: d for d, at in enumerate(operand.load.index) if isinstance(at, Var) and at.name in depth}
    last = tuple(inner[name] for name in depth)
    return (*(d for d in range(len(operand.load.index)) if d not in last), *last)


def _turned(task: Task, name: str, order: tuple[int, ...]) -> Task:
    """The task with a tensor whose dimensions are in another order."""

    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.tensor == name:
            return replace(node, index=tuple(node.index[d] for d in order))
        return node

    inputs = (replace(t, shape=tuple(t.shape[d] for d in order)) if t.name == name else t for t in task.inputs)
    stages = (replace(stage, body=transform(stage.body, visit)) for stage in task.stages)
    return replace(task, inputs=tuple(inputs), stages=tuple(stages))
