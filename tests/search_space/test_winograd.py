"""Which convolutions are Winograd's, which of them untried tasks get, and what becomes of the edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.graph.task import Axis, Stage, Task, Tensor, canonical
from tunewright.search_space.cpu.winograd import WinogradSketch
from tunewright.search_space.patterns.convolution import match_convolution
from tunewright.search_space.sketches import default_schedule, spaces

from .oracle import NARROW, WIDE, agree


def conv(
    height: int, width: int, channels: int, outputs: int, *, taps: int = 3, step: int = 1, spread: int = 1
) -> Task:
    """Without padding: `height` and `width` are of the result."""
    reach = (taps - 1) * spread
    x = Tensor("x", ((height - 1) * step + 1 + reach, (width - 1) * step + 1 + reach, channels), DType.F32)
    w = Tensor("w", (taps, taps, channels, outputs), DType.F32, constant=True)
    y = Tensor("y", (height, width, outputs), DType.F32)
    i, j, o, r, s, c = map(Var, ("i", "j", "o", "r", "s", "c"))
    body = Load("x", (i * step + r * spread, j * step + s * spread, c), DType.F32) * Load("w", (r, s, c, o), DType.F32)
    axes = (Axis("i", height), Axis("j", width), Axis("o", outputs))
    reduce = (Axis("r", taps), Axis("s", taps), Axis("c", channels))
    return canonical("Conv", (x, w), (y,), (), (Stage("y", axes, body, reduce, "sum"),))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (conv(8, 8, 16, 16), True),
        (conv(8, 8, 3, 16), True),
        (conv(8, 8, 16, 16, taps=5), False),
        (conv(8, 8, 16, 16, taps=1), False),
        (conv(8, 8, 16, 16, step=2), True),
        (conv(8, 8, 16, 16, step=3), False),
        (conv(8, 8, 16, 16, spread=2), False),
    ],
)
def test_it_is_for_windows_of_three_by_three_in_small_steps(task: Task, expected: bool) -> None:
    assert bool(match_convolution(task)) is expected
    assert WinogradSketch(4).applies(task, WIDE) is expected


def test_no_step_function_takes_up_its_results() -> None:
    """A sum of whole numbers is exact, unless it is transformed: its floor might be one less."""
    assert match_convolution(replace(conv(8, 8, 16, 16), is_decisive=True)) is None


def test_weights_that_are_computed_are_not_transformed() -> None:
    task = conv(8, 8, 16, 16)
    moving = replace(task, inputs=tuple(replace(t, constant=False) for t in task.inputs))
    assert match_convolution(moving) is None


@pytest.mark.parametrize(
    ("extent", "channels", "outputs", "step", "first"),
    [
        (56, 64, 64, 1, "winograd4"),
        (28, 128, 128, 1, "winograd4"),
        (14, 256, 256, 1, "winograd4"),
        (7, 512, 512, 1, "contraction"),
        (126, 3, 64, 1, "contraction"),
        (28, 128, 128, 2, "winograd4"),
        (28, 16, 32, 2, "contraction"),
        (14, 256, 256, 2, "contraction"),
    ],
)
def test_untried_tasks_get_it_where_it_saves_more_than_it_takes(
    extent: int, channels: int, outputs: int, step: int, first: str
) -> None:
    task = conv(extent, extent, channels, outputs, step=step)
    assert default_schedule(task, WIDE).sketch == first
    assert {space.sketch for space in spaces(task, WIDE)} == {"winograd2", "winograd4", "contraction"}


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("step", [1, 2])
@settings(deadline=None, max_examples=4)
@given(
    sizes=st.tuples(
        st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 5, 17]), st.sampled_from([16, 19, 33])
    ),
    seed=st.integers(0, 99),
)
def test_tiles_may_pass_every_edge(step: int, outputs: int, sizes: tuple[int, int, int, int], seed: int) -> None:
    for target in (WIDE, NARROW):
        agree(WinogradSketch(outputs), conv(*sizes, step=step), target, seed, 1, tolerance=5e-5)


def test_transformed_weights_are_asked_for_ahead() -> None:
    task = conv(8, 8, 32, 32)
    sketch = WinogradSketch(4)
    kernel = sketch.lower(task, sketch.space(task, WIDE).default, WIDE)
    [weights] = kernel.packings
    assert f"prefetch {weights}[" in str(kernel)
