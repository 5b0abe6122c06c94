import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, evaluate, op
from tunewright.codegen.target import Target
from tunewright.costmodel.loops import Loops, accesses
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.space import Tiling

AXES = H, J, K = Var("h"), Var("j"), Var("k")
TARGET = Target("cpu", "x86_64-unknown-linux-gnu", "made-up", "", 256, 16, 2, 1 << 10, 64 << 10, 1 << 20)


def make_task(body, axes, reduce=(), shape=(64, 64), rank=2):
    inputs = tuple(Tensor(name, (64,) * rank, DType.F32) for name in ("x", "w"))
    stage = Stage("y", axes, body, reduce, "sum" if reduce else "")
    return Task("made up", inputs, (Tensor("y", shape, DType.F32),), (), (stage,))


def arrays(**extents):
    return {axis: np.array([float(n)]) for axis, n in extents.items()}


def read(task, number=1):
    return accesses(task, task.stages[0])[number]


def test_a_matrix_product():
    body = Load("x", (H, K), DType.F32) * Load("w", (K, J), DType.F32)
    task = make_task(body, (Axis("h", 32), Axis("j", 64)), (Axis("k", 48),), (32, 64))
    out, w, x = accesses(task, task.stages[0])
    assert (out.tensor, w.tensor, x.tensor) == ("y", "w", "x")  # what is written, then the larger one read
    tile = arrays(h=4, j=16, k=8)
    assert [float(a.elements(tile)[0]) for a in (out, w, x)] == [64, 128, 32]
    # Rows of 16, 16 and 8 floats: one line of 64 bytes each, the last one half used.
    assert [float(a.footprint_bytes(tile)[0]) for a in (out, w, x)] == [256, 512, 256]
    assert [a.stride("j") for a in (out, w, x)] == [1, 1, 0]
    assert [a.stride("k") for a in (out, w, x)] == [0, 64, 1]


def test_windows_overlap():
    task = make_task(Load("x", (H + J, K * 2), DType.F32), (Axis("h", 30), Axis("k", 20)), (Axis("j", 3),), (30, 20))
    access = read(task)
    assert float(access.elements(arrays(h=10, j=3, k=1))[0]) == 12
    assert float(access.elements(arrays(h=1, j=1, k=5))[0]) == 5  # every other one
    assert access.stride("k") == 2


def test_loads_that_differ_by_constants_are_one_access():
    body = Load("x", (H, J), DType.F32) + Load("x", (H + 1, J), DType.F32) + Load("x", (H + 2, J), DType.F32)
    task = make_task(body, (Axis("h", 60), Axis("j", 64)), shape=(60, 64))
    assert len(accesses(task, task.stages[0])) == 2
    assert float(read(task).elements(arrays(h=4, j=1))[0]) == 6


def test_a_footprint_ends_at_the_tensor_and_clamps_are_seen_through():
    clamped = op("min", op("max", H + J - 1, 0), 63)
    task = make_task(Load("x", (clamped, K), DType.F32), (Axis("h", 64), Axis("k", 64)), (Axis("j", 3),))
    assert float(read(task).elements(arrays(h=64, j=3, k=1))[0]) == 64
    assert float(read(task).elements(arrays(h=8, j=3, k=1))[0]) == 10


def test_an_irregular_index_takes_one_place_a_step():
    task = make_task(Load("x", (op("floordiv", H, 7), J), DType.F32), (Axis("h", 40), Axis("j", 64)))
    assert float(read(task).elements(arrays(h=5, j=2))[0]) == 10
    assert read(task).stride("h") is None
    assert read(task).stride("j") == 1


@pytest.mark.slow
@given(
    st.tuples(st.integers(0, 3), st.integers(-2, 3), st.integers(0, 2)),
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(*[st.integers(1, 5)] * 3),
)
def test_a_footprint_covers_what_is_touched(rows, columns, extents):
    """Never fewer elements than enumeration finds, and as many where each index follows an axis of its own."""
    index = tuple(H * i + J * j + K * k + 10 for i, j, k in (rows, columns))
    task = make_task(Load("x", index, DType.F32), tuple(Axis(v.name, 5) for v in AXES), shape=(5, 5, 5))
    grid = dict(zip("hjk", np.meshgrid(*map(np.arange, extents), indexing="ij"), strict=True))
    places = {
        tuple(map(int, place))
        for place in np.broadcast(*[evaluate(e, grid, lambda load, at: None) for e in index], grid["h"])
    }
    elements = float(read(task).elements(arrays(**dict(zip("hjk", extents, strict=True))))[0])
    touched = len({place[:2] for place in places})
    assert elements >= touched
    followed = [[axis for axis, step in zip("hjk", steps, strict=True) if step] for steps in (rows, columns)]
    if all(len(axes) == 1 for axes in followed) and followed[0] != followed[1]:
        assert elements == touched


@pytest.fixture
def loops():
    """Products of 64 x 64 x 64 in tiles of 4 x 16 x 1, of the same with the whole reduction, and of 16 x 64 x 64."""
    body = Load("x", (H, K), DType.F32) * Load("w", (K, J), DType.F32)
    task = make_task(body, (Axis("h", 64), Axis("j", 64)), (Axis("k", 64),))
    levels = ((4, 16, 1), (4, 16, 64), (16, 64, 64))
    tiles = tuple({axis: np.array([n]) for axis, n in zip("hjk", level, strict=True)} for level in levels)
    return Loops(task, TARGET, Tiling(task.stages[0], tiles, "j", np.array([4])), "j")


def test_levels(loops):
    assert loops.volume(loops.levels, ["h", "j", "k"])[:, 0].tolist() == [64, 4096, 65536, 65536]
    assert [float(passes[0]) for passes in loops.passes_at] == [4096, 64, 4, 4]
    assert [float(size[0]) for size in loops.footprints_bytes[:2]] == [256 + 256 + 64, 256 + 1024 + 4096]
    assert float(loops.reduction_run[0]) == 64
    assert float(loops.vectors(loops.innermost, loops.spatial)[0]) == 8


def test_traffic_is_that_of_the_best_level_that_fits(loops):
    """The whole takes 48 KB, a quarter of the rows 24 KB, a register tile with the whole reduction 5.25 KB."""
    assert float(loops.traffic_bytes(64 << 10)[0]) == 0
    # Quarters follow each other along h: the weights stay, inputs and results move once.
    assert float(loops.traffic_bytes(32 << 10)[0]) == 48 << 10
    # Tiles along h: the weights' 16 columns stay and all rows of the input pass by, for each of 4 blocks of columns.
    assert float(loops.traffic_bytes(8 << 10)[0]) == 4 * (16 * 64 + 16 * 64 + 64 * 64) * 4
    # Tiles along k: results stay, 64 steps of the operands pass by, for each of 64 tiles.
    assert float(loops.traffic_bytes(1 << 10)[0]) == 64 * (4 * 16 + 4 * 64 + 64 * 16) * 4
    assert float(loops.traffic_bytes(1)[0]) == float(loops.traffic_bytes(1 << 10)[0])  # nothing fits: the innermost


def test_neighbouring_tiles_share_their_halo():
    """Tiles of 4 rows of a window of 3 read 6 rows each, yet all 8 of them together no more than 34."""
    task = make_task(Load("x", (H + J, K), DType.F32), (Axis("h", 32), Axis("k", 64)), (Axis("j", 3),), (32, 64))
    tiles = ({"h": np.array([4]), "j": np.array([3]), "k": np.array([64])},) * 2
    loops = Loops(task, TARGET, Tiling(task.stages[0], tiles, "k", np.array([8])), "k")
    assert float(loops.footprints_bytes[1][0]) == (4 + 6) * 256
    assert float(loops.moved_bytes[1][0]) == (32 + 34) * 256


def test_partial_tiles_count_whole():
    task = make_task(Load("x", (H, J), DType.F32), (Axis("h", 10), Axis("j", 20)), shape=(10, 20))
    tiles = ({"h": np.array([4, 99]), "j": np.array([16, 8])},)
    loops = Loops(task, TARGET, Tiling(task.stages[0], tiles, "j", np.array([1, 1])), "j")
    assert loops.passes_at[0].tolist() == [6, 3]  # a tile past the end is cut to the extent
    assert loops.vectors(loops.innermost, ["h", "j"]).tolist() == [8, 10]
    assert loops.lanes == 8


def test_without_a_vector_axis_there_are_no_lanes():
    task = make_task(Load("x", (H, J), DType.F32), (Axis("h", 10), Axis("j", 20)), shape=(10, 20))
    tiles = ({"h": np.array([2]), "j": np.array([4])},)
    loops = Loops(task, TARGET, Tiling(task.stages[0], tiles, "", np.array([1])), "")
    assert loops.lanes == 1
    assert loops.vectors(loops.innermost, ["h", "j"]).tolist() == [8]
