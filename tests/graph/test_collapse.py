"""Collapsing dimensions leaves what is computed alone, and as few dimensions as the accesses allow."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Expr, Load, Var, const, op
from tunewright.graph.collapse import collapse
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.task import Axis, Stage, Task, Tensor

F32 = DType.F32


def load(tensor: str, *index: str | int) -> Load:
    return Load(tensor, tuple(Var(i) if isinstance(i, str) else const(i) for i in index), F32)


def task_of(inputs: dict[str, tuple[int, ...]], output: tuple[int, ...], stages: Sequence[Stage]) -> Task:
    tensors = tuple(Tensor(name, shape, F32) for name, shape in inputs.items())
    return Task("", tensors, (Tensor("y", output, F32),), (), tuple(stages))


def collapsed(task: Task) -> Task:
    tensors, stages = collapse({t.name: t for t in task.inputs + task.outputs}, task.stages)
    fresh = [tuple(tensors[t.name] for t in group) for group in (task.inputs, task.outputs)]
    return Task("", fresh[0], fresh[1], (), tuple(stages))


def axes(**extents: int) -> tuple[Axis, ...]:
    return tuple(Axis(name, extent) for name, extent in extents.items())


def pointwise(body: Expr, **extents: int) -> Stage:
    return Stage("y", axes(**extents), body)


CASES = {
    "activation": (
        task_of({"x": (3, 5, 7)}, (3, 5, 7), [pointwise(op("max", load("x", "a", "b", "c"), 0.0), a=3, b=5, c=7)]),
        (105,),
    ),
    "bias": (
        task_of(
            {"x": (3, 5, 7), "b": (7,)},
            (3, 5, 7),
            [pointwise(load("x", "a", "b", "c") + load("b", "c"), a=3, b=5, c=7)],
        ),
        (15, 7),
    ),
    "ones": (
        task_of(
            {"x": (1, 3, 1)}, (1, 3, 1), [Stage("y", axes(a=3), load("x", 0, "a", 0), index=load("y", 0, "a", 0).index)]
        ),
        (3,),
    ),
    "transpose": (task_of({"x": (3, 5)}, (5, 3), [pointwise(load("x", "b", "a"), a=5, b=3)]), (5, 3)),
    "product": (
        task_of(
            {"x": (3, 5, 2, 7), "w": (2, 7, 4)},
            (3, 5, 4),
            [
                Stage(
                    "y",
                    axes(a=3, b=5, c=4),
                    load("x", "a", "b", "r", "s") * load("w", "r", "s", "c"),
                    reduce=axes(r=2, s=7),
                    combiner="sum",
                )
            ],
        ),
        (15, 4),
    ),
    "position": (
        task_of(
            {"x": (3, 5)}, (3, 5), [pointwise(op("select", op("lt", Var("b"), 2), load("x", "a", "b"), 0.0), a=3, b=5)]
        ),
        (3, 5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_collapsing(name: str) -> None:
    task, shape = CASES[name]
    smaller = collapsed(task)
    assert smaller.outputs[0].shape == shape
    assert [prod(t.shape) for t in smaller.inputs] == [prod(t.shape) for t in task.inputs]
    arrays = example_inputs(task, 0)
    (wanted,), (found,) = reference(task, arrays), reference(smaller, arrays)
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
