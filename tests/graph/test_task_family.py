"""Families of tasks that differ in numbers."""

from __future__ import annotations

import pytest

from tests.search_space.test_sketches import tasks_of
from tunewright.codegen.expr.symbolic import is_symbolic
from tunewright.graph.task import Task
from tunewright.graph.task_family import TaskFamily

DENSE = "x[{a}, 8] w[8, {c}] z[{c}] | t = MatMul(x, w) u = Add(t, z) y = Relu(u) | y[{a}, {c}] ; w z"


def dense(rows: int, columns: int = 16) -> Task:
    [task] = tasks_of(DENSE, {"a": rows, "c": columns})
    return task


def test_what_differs_between_two_is_open() -> None:
    family = TaskFamily.of(dense(3), dense(5))
    assert family is not None and family.symbols == 1 and family.differences > 2
    assert [family.match(dense(rows)) for rows in (1, 2, 3, 1009)] == [None, (2,), (3,), (1009,)]
    task, trace = family.symbolic((7,))
    assert [is_symbolic(extent) for extent in task.inputs[0].shape] == [True, False]
    assert trace.values == [7] and task.key != dense(7).key and str(task.inputs[0].shape[0]) == "7"


@pytest.mark.parametrize("other", [dense(3), dense(5, 32)], ids=["the same", "of other weights"])
def test_some_are_of_no_family(other: Task) -> None:
    assert TaskFamily.of(dense(3), other) is None


def test_another_form_or_other_weights_are_none_of_it() -> None:
    family = TaskFamily.of(dense(3), dense(5))
    assert family is not None
    [gemm] = tasks_of("x[{a}, 8] w[8, 16] | y = MatMul(x, w) | y[{a}, 16] ; w", {"a": 4})
    assert family.match(gemm) is None and family.match(dense(4, 32)) is None


def test_numbers_that_were_alike_stay_alike() -> None:
    def square(extent: int, columns: int) -> Task:
        text = f"x[{extent}, {columns}] | y = Relu(x) t = Transpose<perm=[1, 0]>(y) z = Relu(t) | z"
        return tasks_of(text, {})[-1]

    family = TaskFamily.of(square(3, 3), square(5, 5))
    assert family is not None and family.match(square(4, 4)) is not None
    assert family.match(square(4, 6)) is None
    assert family.match(square(9, 9)) == (9,) * family.symbols
