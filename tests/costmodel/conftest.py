"""A convolution and a made-up sketch of it."""

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.space import Knob, Space, Tiling


@pytest.fixture
def target():
    return Target("cpu", "x86_64-unknown-linux-gnu", "made-up", "", 512, 32, 2, 32 << 10, 1 << 20, 16 << 20)


def make_conv(size=28, channels=32, filters=64, window=3, stride=1):
    n, i, j, o, p, q, c = map(Var, "nijopqc")
    wide = size * stride + window - 1
    x = Tensor("t0", (1, wide, wide, channels), DType.F32)
    w = Tensor("t1", (window, window, channels, filters), DType.F32, constant=True)
    b = Tensor("t2", (filters,), DType.F32, constant=True)
    t = Tensor("t3", (1, size, size, filters), DType.F32)
    y = Tensor("t4", (1, size, size, filters), DType.F32)
    product = Load("t0", (n, i * stride + p, j * stride + q, c), DType.F32) * Load("t1", (p, q, c, o), DType.F32)
    axes = (Axis("n", 1), Axis("i", size), Axis("j", size), Axis("o", filters))
    window_axes = (Axis("p", window), Axis("q", window), Axis("c", channels))
    total = Stage("t3", axes, product, window_axes, "sum")
    rectified = op("max", Load("t3", (n, i, j, o), DType.F32) + Load("t2", (o,), DType.F32), 0.0)
    return Task("Conv+Relu", (x, w, b), (y,), (t,), (total, Stage("t4", axes, rectified)))


def make_space(task, sketch="made_up"):
    stage = task.stages[0]
    size, filters = stage.axes[2].extent, stage.axes[3].extent
    window, channels = stage.reduce[0].extent, stage.reduce[2].extent
    knobs = (
        Knob("tile", tuple(range(1, 15))),
        Knob("vectors", (1, 2, 3, 4)),
        Knob("rows", tuple(n for n in (1, 2, 4, 7, 14, 28) if n <= size)),
        Knob("chunk", (1, 4, 16, channels)),
        Knob("order", (0, 1)),
    )

    def tiling(columns):
        ones = np.ones(len(columns["tile"]), np.int64)
        inner = {
            "n": ones,
            "i": ones,
            "j": columns["tile"],
            "o": columns["vectors"] * 16,
            "p": ones,
            "q": ones,
            "c": ones,
        }
        window_tile = {**inner, "p": ones * window, "q": ones * window, "c": columns["chunk"]}
        piece = {**window_tile, "i": columns["rows"], "j": ones * size, "c": ones * channels}
        chunks = -(-size // columns["rows"]) * -(-filters // (columns["vectors"] * 16))
        return Tiling(stage, (inner, window_tile, piece), "o", chunks)

    def legal(columns):
        return columns["tile"] <= size

    preferred = {knob.name: knob.choices[0] for knob in knobs}
    return Space(sketch, 1, knobs, legal, tiling, preferred)


@pytest.fixture
def conv():
    return make_conv


@pytest.fixture
def space_of():
    return make_space
