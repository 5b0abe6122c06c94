"""The window sketch, on what it must recognise, and on borders of every kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.graph.task import Task
from tunewright.search_space.cpu.window import WindowSketch
from tunewright.search_space.cuda.thread_windows import ThreadWindowsSketch
from tunewright.search_space.patterns.windows import match_windows
from tunewright.search_space.registers import ACC
from tunewright.search_space.sketch import find_space

from .oracle import DOTS, GPU, NARROW, WIDE, agree, agree_exactly, graph_of, tasks_of
from .test_byte_product import MODELS
from .test_byte_product import tasks_of as byte_tasks_of

SKETCH, THREADS = WindowSketch(), ThreadWindowsSketch()

WINDOWS = {
    "depthwise": "t = Conv<group={c}, pads=[1, 1, 1, 1]>(h, w) | 3, 3",
    "epilogue": "u = Conv<group={c}, pads=[0, 1, 1, 0], strides=[2, 2]>(h, w, z) t = Relu(u) | 3, 3",
    "dilated": "t = Conv<group={c}, pads=[4, 2, 4, 2], dilations=[4, 2]>(h, w) | 3, 3",
    "large": "t = Conv<group={c}, pads=[2, 3, 2, 3]>(h, w) | 5, 7",
    "residual": "u = Conv<group={c}, pads=[1, 1, 1, 1]>(h, w, z) t = Add(u, h) | 3, 3",
    "across": "t = Conv<group={c}, pads=[0, 1, 0, 1]>(h, w) | 1, 3",
    "down": "t = Conv<group={c}, pads=[1, 0, 1, 0], strides=[1, 2]>(h, w) | 3, 1",
    "line": "t = Conv<group={c}, pads=[2, 0]>(h, w) | 3",
    "volume": "t = Conv<group={c}, pads=[1, 0, 1, 1, 1, 1]>(h, w) | 3, 2, 3",
    "maximum": "t = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(h) |",
    "wide_maximum": "t = MaxPool<kernel_shape=[5, 5], pads=[2, 2, 2, 2]>(h) |",
    "rounded_up": "t = MaxPool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1>(h) |",
    "mean": "t = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(h) |",
    "mean_with_padding": "t = AveragePool<kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1>(h) |",
}
"""Nodes between two 1x1 convolutions, which keep the channels last, and the window of their weights."""


def task_of(name: str, batch: int, sizes: dict[str, int], channels: int) -> Task:
    """The task of a line of WINDOWS."""
    body, _, window = WINDOWS[name].partition(" |")
    rank = window.count(",") + 1 if window else 2
    space = ", ".join(str(sizes[axis]) for axis in "abd"[:rank])
    ones = ", ".join(["1"] * rank)
    constants = {"p": f"{channels}, 2, {ones}", "q": f"2, {channels}, {ones}", "z": f"{channels}"}
    constants["w"] = f"{channels}, 1, {window}"
    nodes = f"h = Conv(x, p) {body.replace('{c}', str(channels))} y = Conv(t, q)"
    graph = graph_of(nodes, {"x": f"{batch}, 2, {space}"}, constants)
    (task,) = [task for task in tasks_of(graph) if match_windows(task)]
    return task


SIZES = st.fixed_dictionaries(
    {"a": st.integers(5, 7), "b": st.sampled_from([5, 7, 11, 14]), "d": st.sampled_from([4, 5])}
)


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
@settings(deadline=None, max_examples=2)
@given(sizes=SIZES, batch=st.integers(1, 2), channels=st.sampled_from([2, 7, 8, 16, 24, 37]), seed=st.integers(0, 99))
def test_random_tiles_agree_with_the_oracle(
    name: str, sizes: dict[str, int], batch: int, channels: int, seed: int
) -> None:
    task = task_of(name, batch, sizes, channels)
    for target in (WIDE, NARROW):
        assert SKETCH.applies(task, target)
        agree(SKETCH, task, target, seed, 1)


@pytest.mark.parametrize("name", WINDOWS)
@settings(deadline=None, max_examples=2)
@given(sizes=SIZES, batch=st.integers(1, 2), channels=st.sampled_from([2, 7, 8, 16]), seed=st.integers(0, 99))
def test_windows_of_threads_agree_with_the_oracle(
    name: str, sizes: dict[str, int], batch: int, channels: int, seed: int
) -> None:
    task = task_of(name, batch, sizes, channels)
    assert THREADS.applies(task, GPU)
    agree(THREADS, task, GPU, seed, 2)


@pytest.mark.parametrize("name", ["depthwise", "epilogue", "maximum", "mean"])
def test_padding_is_no_memory_and_no_phase(name: str) -> None:
    task = task_of(name, 1, {"a": 9, "b": 11}, 16)
    kernel = SKETCH.lower(task, SKETCH.space(task, WIDE).default, WIDE)
    assert kernel.scratch == ()
    assert len(kernel.body.body) == 1
    assert "select" not in str(kernel)


def test_columns_outside_are_left_out_of_the_code() -> None:
    """Of a row of 3 windows of 3 the first and the last have one column outside: 2 + 3 + 2 products a line."""
    task = task_of("depthwise", 1, {"a": 8, "b": 3}, 16)
    kernel = SKETCH.lower(task, SKETCH.space(task, WIDE).default, WIDE)
    folds = [line for line in str(kernel).splitlines() if line.lstrip().startswith(ACC) and "t0[" in line]
    assert len(folds) == 3 * 7


def test_sums_of_bytes_may_become_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = """h = Transpose <perm=[0,3,1,2]> (x) t = ConvInteger <group=8, pads=[1,1,1,1]> (h, w)
    u = DequantizeLinear (t, v) y = Transpose <perm=[0,2,3,1]> (u)"""
    monkeypatch.setitem(MODELS, "scaled bytes", ("int8[1,6,19,8] x, float v", nodes, (8, 1, 3, 3)))
    [task] = [task for task in byte_tasks_of("scaled bytes", DOTS) if find_space(SKETCH, task, DOTS)]
    agree_exactly(SKETCH, task, DOTS, 4, [])
