"""The plane sketch, on what it must recognise, and on borders of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tunewright.codegen import interp
from tunewright.codegen.ir import Kernel
from tunewright.codegen.llvm import emit
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.fusion import Call, partition
from tunewright.graph.onnx_import import load
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.sketches import default_schedule
from tunewright.search_space.sketches.plane import PlaneSketch
from tunewright.search_space.windows.planes import planes

SKETCH = PlaneSketch()
WIDE = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 48 << 10, 1 << 20, 32 << 20)
NARROW = Target("cpu", "aarch64-unknown-linux-gnu", "cortex-a72", "", 128, 32, 4, 32 << 10, 1 << 20, 0)

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


def tasks_of(body: str, window: str, batch: int, height: int, width: int, channels: int) -> list[Task]:
    """The tasks of a model that reads x."""
    constants = {"z": str(channels)} | ({"w": f"{channels}, 1, {window}"} if window else {})
    inputs = [f"float[{batch}, {channels}, {height}, {width}] x"]
    inputs += [f"float[{shape}] {name}" for name, shape in constants.items()]
    nodes = body.replace("{c}", str(channels)).replace(") ", ")\n")
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> m ({", ".join(inputs)}) => (float y) {{ {nodes} }}'
    )
    rng = np.random.default_rng(0)
    for value in [v for v in model.graph.input if v.name in constants]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    return [step.task for step in partition(rewrite(load(model.SerializeToString()))) if isinstance(step, Call)]


def task_of(name: str, batch: int, height: int, width: int, channels: int) -> Task:
    """The task of a line of WINDOWS."""
    body, _, window = WINDOWS[name].partition(" |")
    (task,) = tasks_of(body, window.strip(), batch, height, width, channels)
    return task


def interpreted(task: Task, kernel: Kernel, seed: int) -> None:
    """Check what a kernel computes."""
    arrays = example_inputs(task, seed)
    output = kernel.params[-1]
    found: NDArray[Any] = np.zeros(output.shape, output.dtype.numpy)
    interp.run(kernel, [*arrays, found])
    wanted: NDArray[Any] = reference(task, arrays)[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * max(float(np.abs(wanted).max()), 1e-6))


@pytest.mark.parametrize("name", WINDOWS)
@settings(deadline=None, max_examples=3)
@given(
    height=st.integers(5, 9),
    width=st.sampled_from([8, 13, 16, 19, 37]),
    batch=st.integers(1, 2),
    channels=st.sampled_from([2, 5]),
    seed=st.integers(0, 99),
)
def test_random_tiles_agree_with_the_oracle(
    name: str, height: int, width: int, batch: int, channels: int, seed: int
) -> None:
    task = task_of(name, batch, height, 3 * width if name == "tripled" else width, channels)
    for target in (WIDE, NARROW):
        if not SKETCH.applies(task, target):
            assert planes(task) is None or planes(task).columns.extent < 4  # type: ignore[union-attr]
            continue
        space = SKETCH.space(task, target)
        for schedule in (space.default, *map(space.schedule, space.sample(1, np.random.default_rng(seed)))):
            kernel = SKETCH.lower(task, schedule, target)
            verify(kernel)
            interpreted(task, kernel, seed)


@pytest.mark.parametrize("name", WINDOWS)
def test_planes_are_read_and_written_in_place(name: str) -> None:
    """One phase, no scratch, and nothing is gathered one element at a time."""
    task = task_of(name, 1, 9, 57, 8)
    schedule = default_schedule(task, WIDE)
    assert schedule.sketch == "plane"
    kernel = SKETCH.lower(task, schedule, WIDE)
    assert kernel.scratch == ()
    assert len(kernel.body.body) == 1
    gathered = emit(kernel, WIDE, "f").count("insertelement <16 x float> %")
    assert gathered == 0 or name == "tripled"


def test_channels_last_are_left_to_windows() -> None:
    body = "h = Conv(x, p) t = Conv<group={c}, pads=[1, 1, 1, 1]>(h, w) y = Conv(t, p)"
    constant = "p = Constant<value = float[4, 4, 1, 1] {" + ", ".join(["1.0"] * 16) + "}>() "
    for task in tasks_of(constant + body, "3, 3", 1, 9, 16, 4):
        assert planes(task) is None
