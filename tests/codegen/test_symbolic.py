"""Symbolic numbers: a trace holds where it is replayed, and for nothing else."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.expr import Const, Expr, Var, const
from tunewright.codegen.expr.symbolic import MOST, Trace, is_plain, is_symbolic

OPS: Sequence[Callable[[Any, Any], Any]] = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    max,
    min,
    lambda a, b: a if a < b else b + 1,
    lambda a, b: a if a == b else a - b,
    lambda a, b: a * 2 if a >= b and a != 3 else -b,
    lambda a, b: abs(a) + len(range(int(b) % 3)),
)

STEPS = st.lists(st.tuples(st.sampled_from(range(len(OPS))), st.integers(0, 9), st.integers(0, 9)), max_size=9)


def compute(steps: Sequence[tuple[int, int, int]], numbers: list[Any]) -> list[Any]:
    """A little program: each step takes two of the numbers so far. A division by 0 ends it."""
    for number, left, right in steps:
        try:
            numbers.append(OPS[number](numbers[left % len(numbers)], numbers[right % len(numbers)]))
        except ZeroDivisionError:
            return numbers
    return numbers


@given(steps=STEPS, values=st.tuples(*3 * [st.integers(-9, 60)]), others=st.tuples(*3 * [st.integers(-9, 60)]))
def test_what_is_replayed_is_what_the_same_code_does(
    steps: list[tuple[int, int, int]], values: tuple[int, ...], others: tuple[int, ...]
) -> None:
    trace, symbols = Trace.of(values)
    made = compute(steps, [*symbols, 1, 7])
    assert [trace.values[n.number] if is_symbolic(n) else n for n in made] == compute(steps, [*values, 1, 7])
    numbers = trace.replay(others)
    if numbers is not None:
        assert [numbers[n.number] if is_symbolic(n) else n for n in made] == compute(steps, [*others, 1, 7])
    assert trace.replay(values) == trace.values


def test_sums_and_products_are_no_conditions() -> None:
    trace, (n, m) = Trace.of([8, 1])
    for one, other in ((n, m), (m, n), (n, 0), (n, 1), (0, n), (1, n), (n, 3), (3, n), (m, m)):
        assert [one + other, one - other, one * other, one % 3, one // 2] and not trace.guards


def test_comparisons_are_conditions() -> None:
    trace, (n, m) = Trace.of([8, 3])
    assert n > m and n != 5 and not n < 2
    assert [values for values in ((9, 4), (5, 3), (3, 4), (1, 0)) if trace.replay(values)] == [(9, 4)]


def test_a_plain_number_is_a_condition_and_what_follows_is_plain() -> None:
    trace, (n,) = Trace.of([6])
    tiles = -(-n // 4)
    assert list(range(tiles)) == [0, 1]
    twice: Any = tiles * 2
    assert trace.pinned()[twice.number] == 4 and 0 not in trace.pinned()
    assert [value for value in range(1, 12) if trace.replay([value])] == [5, 6, 7, 8]
    assert f"{n}" == "6" and trace.replay([6]) and not trace.replay([7])


def test_nothing_is_asked_of_what_lies_beyond_all_numbers() -> None:
    trace, (n,) = Trace.of([6])
    far = 4 * MOST
    assert n < far and n + far == far and n * -far == -far and far // n == far and n - far == -far
    assert trace.guards == {("<", 0, (0,)): True, ("==", (0,), 0): False}  # its sign alone
    assert trace.replay([MOST - 1]) and not trace.replay([MOST])


def test_a_division_by_zero_is_no_result() -> None:
    trace, (n,) = Trace.of([6])
    assert is_symbolic(12 // n) and trace.replay([0]) is None


def test_a_literal_is_a_variable_of_its_trace() -> None:
    trace, (n,) = Trace.of([6])
    other, (m,) = Trace.of([6])
    variables: list[Expr] = [const(n), const(m)]
    assert variables == [Var(trace.name(0)), Var(other.name(0))] and trace.by_name(trace.name(0)) == n
    assert isinstance(const(7), Const) and other.ranges() == {other.name(0): (m, m)}
    assert is_plain(1, 1) and not is_plain(n, 6) and not trace.guards


def test_other_things_are_no_numbers() -> None:
    _, (n,) = Trace.of([6])
    with pytest.raises(TypeError):
        n + "x"  # type: ignore[operator]
    assert n is not None and n.__eq__("x") is not True
