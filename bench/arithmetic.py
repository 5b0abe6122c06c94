"""Arithmetic: how many elements vector instructions compute for a task at least.

An exponential counts as its expansion (`codegen.expr.math`). To get a time of the count, take instructions at the rate
of multiply-adds, half of the peak's operations. A processor with separate adders is faster in sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tunewright.codegen.expr.expr import Expr, Load, Op, Var, free_vars, walk
from tunewright.codegen.expr.lanes import vectorize
from tunewright.codegen.expr.math import expand
from tunewright.graph.task import Stage, Task

FREE = frozenset({"neg", "select", "bitcast"})
"""Ops that cost no instruction: others do them by a sign or a mask."""

SUMS = frozenset({"add", "sub"})


def computed_elements(task: Task, lanes: int) -> int:
    """Elements that instructions on vectors of `lanes` compute at least.

    An op is done once for all combinations of the axes that it depends on, and a product that is added to something is
    no instruction of its own. What decides where to read, and what is padding, costs nothing.
    """
    return sum(_stage_elements(stage, lanes) for stage in task.stages)


def _stage_elements(stage: Stage, lanes: int) -> int:
    axes = (*stage.axes, *stage.reduce)
    body = expand(vectorize(stage.body, axes[-1].name, Var(axes[-1].name), lanes)) if axes else stage.body
    ops = list(_compute_ops(body))
    added = {id(part) for node in ops if node.name in SUMS for part in node.args}
    if stage.combiner == "sum":
        added.add(id(body))
    total = stage.points if stage.combiner else 0
    for node in ops:
        if node.name != "mul" or id(node) not in added:
            variables = set(free_vars(node))
            total += prod(axis.extent for axis in axes if axis.name in variables)
    return total


def _compute_ops(body: Expr) -> Iterator[Op]:
    """The ops of a body that compute with loaded values, without those in FREE."""
    for node in walk(body):
        if isinstance(node, Op) and node.name not in FREE and any(isinstance(part, Load) for part in walk(node)):
            yield node
