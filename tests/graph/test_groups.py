"""Shapes under which groups see tensors: what is computed stays, with as few dimensions as accesses allow."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, evaluate, op
from tunewright.graph.fusion.groups import collapse, reindex
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
    (expected,), (result,) = reference(task, arrays), reference(smaller, arrays)
    np.testing.assert_array_equal(result.reshape(expected.shape), expected)


# The same element under another shape

FACTORS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5)


@st.composite
def two_shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two ways to write the same number of elements, by putting neighbouring factors together."""
    factors = draw(FACTORS)

    def shape() -> tuple[int, ...]:
        cuts = sorted(draw(st.sets(st.integers(1, len(factors)), max_size=len(factors))))
        ends = [*cuts, len(factors)]
        return tuple(prod(factors[a:b]) for a, b in zip([0, *ends], ends, strict=False))

    return shape(), shape()


@given(two_shapes())
def test_the_element_stays_the_same(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    source, target = shapes
    index = tuple(Var(f"i{d}") if extent > 1 else const(0) for d, extent in enumerate(source))
    result = reindex(index, source, target, {f"i{d}": extent for d, extent in enumerate(source)})
    assume(result is not None)
    assert result is not None
    env = {f"i{d}": at for d, at in enumerate(np.indices(source))}
    places = [np.broadcast_to(evaluate(at, env, _no_loads), source) for at in result]
    flat = np.ravel_multi_index(places, target) if target else np.zeros(source, int)
    np.testing.assert_array_equal(flat, np.arange(prod(source)).reshape(source))


def _no_loads(*_: object) -> object:
    raise AssertionError


I, J, K = Var("i"), Var("j"), Var("k")  # noqa: E741
EXTENTS = {"i": 5, "j": 3, "k": 4}


@pytest.mark.parametrize(
    ("index", "source", "target", "expected"),
    [
        ((I, J, K), (5, 3, 4), (5, 12), (I, op("add", J * 4, K))),
        ((I, op("add", J * 4, K)), (5, 12), (5, 3, 4), (I, J, K)),
        ((I, op("add", K, 8)), (5, 12), (5, 3, 4), (I, const(2), K)),
        ((I, const(0), J), (5, 1, 3), (1, 5, 3), (const(0), I, J)),
        ((I % 2, J), (5, 3), (5, 3), (I % 2, J)),
        ((I,), (12,), (3, 4), None),
        ((op("max", I, 2),), (12,), (3, 4), None),
        ((op("add", J * 4, op("add", K, 1)),), (16,), (4, 4), None),
    ],
)
def test_what_comes_out(
    index: tuple[Expr, ...], source: tuple[int, ...], target: tuple[int, ...], expected: tuple[Expr, ...] | None
) -> None:
    assert reindex(index, source, target, EXTENTS) == expected
