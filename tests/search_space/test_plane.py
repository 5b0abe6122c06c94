"""The plane sketch, on what it must recognise, and on borders of every kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.codegen.llvm.emit import emit
from tunewright.graph.task import Task
from tunewright.search_space.cpu.plane import PlaneSketch
from tunewright.search_space.patterns.windows import match_planes
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule

from .oracle import NARROW, WIDE, agree, graph_of, tasks_of

SKETCH = PlaneSketch()

WINDOWS = {
    "depthwise": "y = Conv<group={c}, pads=[1, 1, 1, 1]>(x, w) | 3, 3",
    "epilogue": "t = Conv<group={c}, pads=[0, 1, 1, 0], strides=[2, 2]>(x, w, z) y = Relu(t) | 3, 3",
    "tripled": "y = Conv<group={c}, pads=[1, 2, 1, 2], strides=[1, 3]>(x, w) | 3, 5",
    "dilated": "y = Conv<group={c}, pads=[4, 2, 4, 2], dilations=[4, 2]>(x, w, z) | 3, 3",
    "large": "y = Conv<group={c}, pads=[2, 3, 2, 3]>(x, w) | 5, 7",
    "residual": "t = Conv<group={c}, pads=[1, 1, 1, 1]>(x, w, z) y = Add(t, x) | 3, 3",
    "across": "y = Conv<group={c}, pads=[0, 1, 0, 1]>(x, w) | 1, 3",
    "maximum": "y = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(x) |",
    "halves": "y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x) |",
    "wide_maximum": "y = MaxPool<kernel_shape=[5, 5], pads=[2, 2, 2, 2]>(x) |",
    "rounded_up": "y = MaxPool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1>(x) |",
    "mean": "y = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(x) |",
    "mean_with_padding": "y = AveragePool<kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1>(x) |",
}
"""A model of windows alone, channels first, and the window of its weights."""


def task_of(name: str, batch: int, height: int, width: int, channels: int) -> Task:
    """The task of a line of WINDOWS."""
    body, _, window = WINDOWS[name].partition(" |")
    constants = {"z": str(channels), "w": f"{channels}, 1, {window}"}
    nodes = body.replace("{c}", str(channels))
    (task,) = tasks_of(graph_of(nodes, {"x": f"{batch}, {channels}, {height}, {width}"}, constants))
    return task


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
@settings(deadline=None, max_examples=2)
@given(
    height=st.integers(5, 9),
    width=st.sampled_from([8, 13, 16, 19, 37]),
    batch=st.integers(1, 2),
    channels=st.sampled_from([2, 3]),
    seed=st.integers(0, 99),
)
def test_random_tiles_agree_with_the_oracle(
    name: str, height: int, width: int, batch: int, channels: int, seed: int
) -> None:
    task = task_of(name, batch, height, 3 * width if name == "tripled" else width, channels)
    for target in (WIDE, NARROW):
        assert SKETCH.applies(task, target)
        agree(SKETCH, task, target, seed, 1)


@pytest.mark.parametrize("name", WINDOWS)
def test_planes_are_read_and_written_in_place(name: str) -> None:
    """One phase, no scratch, and nothing is gathered one element at a time."""
    task = task_of(name, 1, 9, 57, 8)
    schedule = default_schedule(task, WIDE)
    assert schedule.sketch == "plane"
    kernel = SKETCH.lower(task, schedule, WIDE)
    assert kernel.scratch == ()
    assert len(kernel.body.body) == 1
    gathered = str(emit(kernel, WIDE, "f")).count("insertelement <16 x float> %")
    assert gathered == 0 or name == "tripled"


@pytest.mark.parametrize(("tile_rows", "bodies"), [(4, 3), (8, 1)])
def test_tiles_with_rows_of_padding_are_copies_where_that_is_little_code(tile_rows: int, bodies: int) -> None:
    task = task_of("depthwise", 1, 40, 16, 2)
    values = dict(default_schedule(task, WIDE).values) | {"lanes": 16, "vectors": 1, "tile_rows": tile_rows}
    for block in (0, 2):
        chosen = values | {"block_rows": block, "block_planes": 1}
        schedule = Schedule("plane", SKETCH.version, tuple(chosen.items()))
        text = str(SKETCH.lower(task, schedule, WIDE))
        stores = [line for line in text.splitlines() if line.strip().startswith(f"{task.outputs[0].name}[")]
        assert len(stores) == bodies * tile_rows


def test_channels_last_are_left_to_windows() -> None:
    nodes = "h = Conv(x, p) t = Conv<group=4, pads=[1, 1, 1, 1]>(h, w) y = Conv(t, q)"
    constants = {"p": "4, 4, 1, 1", "w": "4, 1, 3, 3", "q": "4, 4, 1, 1"}
    tasks = tasks_of(graph_of(nodes, {"x": "1, 4, 9, 16"}, constants))
    assert tasks and all(match_planes(task) is None for task in tasks)


@pytest.mark.parametrize(("padding", "is_offered"), [(0, True), (30, True), (128, False)])
def test_wide_windows_are_left_to_others_where_each_vector_of_padding_would_be_code(
    padding: int, is_offered: bool
) -> None:
    nodes = f"y = Conv<pads=[{padding}, {padding}], strides=[2]>(x, w)"
    (task,) = tasks_of(graph_of(nodes, {"x": "1, 1, 999"}, {"w": "1, 1, 256"}))
    assert (SKETCH.recognise(task, WIDE) is not None) is is_offered
