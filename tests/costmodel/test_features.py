from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.costmodel.features import NAMES, features, roles
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Knob


def tasks(conv):
    i, j, k = map(Var, "ijk")
    x = Tensor("x", (37, 50), DType.F32)
    y = Tensor("y", (37, 50), DType.F32)
    row = Tensor("y", (37,), DType.F32)
    axes = (Axis("i", 37), Axis("j", 50))
    gelu = Stage("y", axes, op("erf", Load("x", (i, j), DType.F32)) * 0.5)
    total = Stage("y", axes[:1], Load("x", (i, k), DType.F32), (Axis("k", 50),), "max")
    w = Tensor("w", (50, 20), DType.F32)
    out = Tensor("y", (37, 20), DType.F32)
    product = Stage(
        "y",
        (Axis("i", 37), Axis("j", 20)),
        Load("x", (i, k), DType.F32) * Load("w", (k, j), DType.F32),
        (Axis("k", 50),),
        "sum",
    )
    scalar = Tensor("y", (), DType.F32)
    nothing = Stage("y", (), Load("x", (op("add", i * 0, 3), op("add", j * 0, 4)), DType.F32) * 2.0)
    return (
        conv(),
        Task("Gelu", (x,), (y,), (), (gelu,)),
        Task("ReduceMax", (x,), (row,), (), (total,)),
        Task("MatMul", (x, w), (out,), (), (product,)),
        Task("one element", (x,), (scalar,), (), (nothing,)),
    )


def test_names_are_distinct():
    assert len(set(NAMES)) == len(NAMES)


def test_every_sketch_has_the_same_finite_columns(conv, target):
    for threads, l3_bytes in ((1, 0), (2, 16 << 20)):
        machine = replace(target, threads=threads, l3_bytes=l3_bytes)
        for task in tasks(conv):
            for space in spaces(task, machine):
                rows = space.sample(50, np.random.default_rng(0))
                values = features(task, machine, space, rows).values
                assert values.shape == (len(rows), len(NAMES))
                assert values.dtype == np.float32
                assert np.isfinite(values).all()


def test_a_row_does_not_depend_on_the_others(conv, target):
    for task in tasks(conv)[:3]:
        for space in spaces(task, target):
            rows = space.sample(20, np.random.default_rng(0))
            together = features(task, target, space, rows).values
            alone = np.concatenate([features(task, target, space, row[None]).values for row in rows])
            np.testing.assert_array_equal(together, alone)


def test_a_knob_may_decide_the_vector_axis(conv, space_of, target):
    """Points of both kinds together have the columns that they have in a space of their kind alone."""
    task = conv()
    space = space_of(task)

    def tiling(columns):
        return replace(space.tiling(columns), vector_axis=np.array(["o", "j"])[columns["order"]])

    both = replace(space, tiling=tiling)
    rows = space.sample(40, np.random.default_rng(0))
    values = features(task, target, both, rows).values
    for number, axis in enumerate("oj"):
        alone = replace(space, tiling=lambda columns, axis=axis: replace(space.tiling(columns), vector_axis=axis))
        is_member = rows[:, [knob.name for knob in space.knobs].index("order")] == number
        np.testing.assert_array_equal(values[is_member], features(task, target, alone, rows[is_member]).values)


def test_no_points(conv, space_of, target):
    space = space_of(conv())
    assert features(conv(), target, space, np.empty((0, len(space.knobs)), np.int64)).values.shape == (0, len(NAMES))


def test_worked_by_hand(conv, space_of, target):
    """28 x 28 x 64 results of 3 x 3 x 32 products each, in register tiles of 14 x 32, 7 rows a chunk."""
    task = conv()
    space = space_of(task)
    values = {"tile": 14, "vectors": 2, "rows": 7, "chunk": 32, "order": 1}
    row = space.row(Schedule("made_up", 1, tuple(values.items())))
    matrix = features(task, target, space, row[None])

    def column(name):
        return pytest.approx(float(matrix.column(name)[0]), rel=1e-5)

    products = 28 * 28 * 64 * 9 * 32
    assert np.log2(2 * products + 2 * 28 * 28 * 64 + 1) == column("task_log_flops")
    assert np.log2(14 * 32) == column("level0_log_volume")
    assert np.log2(28 * 2 * 2 * 288) == column("level0_log_passes")
    assert np.log2(14 * 32 * 4 + 14 * 64 + 32 * 4) == column("level0_log_bytes")  # a line for each scalar of the input
    assert np.log2(14 * 32 * 288 / (3 * 3 * 32 * 32)) == column("level1_log_reuse_a")
    assert column("level0_waste") == 0
    assert column("body_results") == 28
    assert column("body_registers") == 28 + 2 + 1
    assert column("body_spilled") == 0
    assert np.log2(28 * 2 * 2) == column("body_log_calls")  # the whole reduction stays in registers
    assert column("body_compute_cycles") == 14
    assert column("body_fetch_cycles") == (14 + 2) / 2
    assert column("vector_used") == 1
    assert (column("vector_contiguous"), column("vector_broadcast"), column("vector_scattered")) == (1, 1, 0)
    assert (column("chunks_log"), column("chunks_imbalance")) == (3, 1)
    assert (column("knob_tile"), column("knob_order"), column("knob_unroll")) == (np.log2(15), 1, -1)
    assert column("stage_windows") == 2
    with pytest.raises(KeyError):
        matrix.column("other")


def test_knobs_that_no_loop_shows_are_seen(conv, space_of, target):
    space = space_of(conv())
    row = space.row(space.default)
    other = row.copy()
    other[[knob.name for knob in space.knobs].index("order")] = 1
    both = features(conv(), target, space, np.stack([row, other])).values
    assert (both[0] != both[1]).any()


def test_sketches_are_told_apart(conv, space_of, target):
    task = conv()
    codes = {
        float(features(task, target, space, space.row(space.default)[None]).column("sketch_code")[0])
        for space in (space_of(task), space_of(task, "another"))
    }
    assert len(codes) == 2


def test_knobs_named_for_axes_have_the_columns_of_their_number(conv, space_of):
    names = ("tile_h", "tile_w", "tile_n", "vectors_3", "order", "unheard_of")
    space = replace(space_of(conv()), knobs=tuple(Knob(name, (1, 2)) for name in names))
    assert roles(space) == {"tile_h": "tile_0", "tile_w": "tile_1", "vectors_3": "vectors_0", "order": "order"}


def test_how_far_a_point_is_from_the_default(conv, space_of, target):
    space = space_of(conv())
    row = space.row(space.default)
    other = row.copy()
    other[0] += 1  # tile 1 -> 2
    other[1] += 3  # vectors 1 -> 4
    matrix = features(conv(), target, space, np.stack([row, other]))
    assert matrix.column("sketch_moved").tolist() == [0, 2]
    assert matrix.column("sketch_distance").tolist() == pytest.approx([0, np.log2(3 / 2) + np.log2(5 / 2)])
