"""The oracle notices what tasks must not do, and computes the rest whatever the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Expr, Load, Var, const, op
from tunewright.graph import oracle
from tunewright.graph.ir import Array
from tunewright.graph.oracle import example_inputs, reference, written_masks
from tunewright.graph.task import Axis, Stage, Task, Tensor, canonical, in_place

F32, I64 = DType.F32, DType.I64


def one_stage(stage: Stage, inputs: list[Tensor], shape: tuple[int, ...]) -> Task:
    return canonical("Test", inputs, [Tensor(stage.output, shape, stage.body.dtype)], [], [stage])


def x(*index: Expr | int) -> Expr:
    return Load("x", tuple(const(i) if isinstance(i, int) else i for i in index), F32)


I, J = Var("i"), Var("j")  # noqa: E741
LINE = [Tensor("x", (4,), F32)]


@pytest.mark.parametrize("at", [op("add", I, 1), op("sub", I, 1), I * 2, op("floordiv", I * 3, 2), op("sub", 2, I)])
def test_reads_stay_inside(at: Expr) -> None:
    task = one_stage(Stage("y", (Axis("i", 4),), x(at)), LINE, (4,))
    with pytest.raises(IndexError):
        reference(task, [np.zeros(4, np.float32)])


@pytest.mark.parametrize(
    ("extent", "index", "error"),
    [
        (3, const(0), ValueError),
        (4, op("add", I, 1), IndexError),
        (4, const(0), ValueError),
        (2, op("floordiv", I, 2), ValueError),
        (4, op("floordiv", I, 1) % 4, ValueError),
    ],
)
def test_writes_meet_each_element_once(extent: int, index: Expr, error: type[Exception]) -> None:
    task = one_stage(Stage("y", (Axis("i", extent),), x(I), index=(index,)), LINE, (4,))
    with pytest.raises(error):
        reference(task, [np.zeros(4, np.float32)])


def test_other_tasks_may_write_the_rest_of_an_output() -> None:
    task = one_stage(Stage("y", (Axis("i", 2),), x(I), index=(I * 2,)), LINE, (4,))
    (result,), (own,) = reference(task, [np.arange(1, 5, dtype=np.float32)]), written_masks(task)
    assert result.tolist() == [1, 0, 2, 0]
    assert own is not None and own.tolist() == [True, False, True, False]
    assert (task.parts, task.traffic_bytes) == (("t1",), 4 * 4 + 4 * 2)
    whole, half = (one_stage(Stage("y", (Axis("i", extent),), x(I)), LINE, (4,)) for extent in (4, 2))
    assert (written_masks(whole), whole.parts, whole.traffic_bytes) == ([None], (), 4 * 8)
    assert (in_place(whole), in_place(half)) == ([("t1", "t0")], [])


def test_a_tensor_is_complete_before_it_is_read() -> None:
    half = Stage("t", (Axis("i", 2),), x(I))
    rest = Stage("t", (Axis("i", 2),), x(op("add", I, 2)), index=(op("add", I, 2),))
    last = Stage("y", (Axis("i", 4),), Load("t", (I,), F32))
    y, t = [Tensor("y", (4,), F32)], [Tensor("t", (4,), F32)]
    values = np.arange(4, dtype=np.float32)
    (result,) = reference(canonical("Test", LINE, y, t, [half, rest, last]), [values])
    np.testing.assert_array_equal(result, values)
    with pytest.raises(ValueError, match="2 writes to 2 of 4"):
        reference(canonical("Test", LINE, y, t, [half, last, rest]), [values])


def test_inputs_have_the_right_type() -> None:
    task = one_stage(Stage("y", (Axis("i", 4),), x(I)), LINE, (4,))
    with pytest.raises(TypeError):
        reference(task, [np.zeros(4, np.float64)])
    with pytest.raises(ValueError, match="reshape"):
        reference(task, [np.zeros(5, np.float32)])


def result(task: Task, arrays: list[Array]) -> NDArray[np.float64]:
    return np.asarray(reference(task, arrays)[0], np.float64)


def conv(rows: int, columns: int, channels: int, taps: int, features: int, stride: int, dilation: int) -> Task:
    """A convolution along one dimension over several rows."""
    length = (columns - 1) * stride + (taps - 1) * dilation + 1
    axes = Axis("n", rows), Axis("p", columns), Axis("o", features)
    place = op("add", Var("p") * stride, Var("r") * dilation)
    body = op(
        "mul",
        Load("x", (Var("n"), place, Var("c")), F32),
        Load("w", (Var("r"), Var("c"), Var("o")), F32),
    )
    stage = Stage("y", axes, body, (Axis("r", taps), Axis("c", channels)), "sum")
    inputs = [Tensor("x", (rows, length, channels), F32), Tensor("w", (taps, channels, features), F32, True)]
    return one_stage(stage, inputs, (rows, columns, features))


def direct(task: Task, arrays: list[Array], stride: int, dilation: int) -> NDArray[np.float64]:
    """The same convolution, written out."""
    data, weights = (np.asarray(a, np.float64) for a in arrays)
    rows, columns, features = task.outputs[0].shape
    total = np.zeros((rows, columns, features))
    for p in range(columns):
        for r in range(len(weights)):
            total[:, p] += data[:, p * stride + r * dilation] @ weights[r]
    return total


extents = st.integers(1, 5)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.tuples(extents, extents, extents, extents, extents), extents, extents, st.sampled_from([1, 17, 1 << 20]))
def test_products_and_grids_agree(
    shape: tuple[int, int, int, int, int], stride: int, dilation: int, points: int
) -> None:
    """By BLAS, point by point, and cut into pieces: always the convolution."""
    task = conv(*shape, stride, dilation)
    arrays = example_inputs(task, 3)
    expected = direct(task, arrays, stride, dilation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "GRID_POINTS", points)
        patch.setattr(oracle, "MATRIX_ELEMENTS", points)
        np.testing.assert_allclose(result(task, arrays), expected, atol=1e-4)
        patch.setattr(oracle, "_multiply", lambda *_: False)
        np.testing.assert_allclose(result(task, arrays), expected, atol=1e-4)


@pytest.mark.parametrize(("combiner", "fold"), [("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod)])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_folds(combiner: str, fold, dtype: DType) -> None:
    values = np.random.default_rng(1).integers(-3, 4, (5, 7)).astype(dtype.numpy)
    stage = Stage("y", (Axis("i", 5),), Load("x", (I, J), dtype), (Axis("j", 7),), combiner)
    (result,) = reference(one_stage(stage, [Tensor("x", (5, 7), dtype)], (5,)), [values])
    np.testing.assert_array_equal(result, fold(values, axis=1))


def test_a_body_that_knows_no_axis_is_folded_as_often_as_the_rest() -> None:
    stage = Stage("y", (Axis("i", 3),), x(0), (Axis("j", 5),), "sum")
    (result,) = reference(one_stage(stage, LINE, (3,)), [np.full(4, 2, np.float32)])
    np.testing.assert_array_equal(result, [10, 10, 10])


def test_sums_are_accurate() -> None:
    values = np.full(1 << 21, 0.1, np.float32)
    stage = Stage("y", (), x(J), (Axis("j", len(values)),), "sum", (const(0),))
    (result,) = reference(one_stage(stage, [Tensor("x", (len(values),), F32)], (1,)), [values])
    assert result[0] == np.float32(values.astype(np.float64).sum())


# Examples


def test_examples_repeat() -> None:
    task = conv(2, 3, 4, 2, 5, 1, 1)
    for first, other in zip(example_inputs(task, 5), example_inputs(task, 5), strict=True):
        np.testing.assert_array_equal(first, other)
    assert not np.array_equal(example_inputs(task, 5)[0], example_inputs(task, 6)[0])


def test_sums_of_examples_stay_near_one() -> None:
    task = conv(1, 8, 512, 3, 64, 1, 1)
    assert 0.9 < np.std(result(task, example_inputs(task, 0))) < 1.1


def test_indices_are_in_range() -> None:
    index = Load("k", (I,), I64)
    stage = Stage("y", (Axis("i", 1000),), x(index))
    task = one_stage(stage, [*LINE, Tensor("k", (1000,), I64)], (1000,))
    indices = next(a for t, a in zip(task.inputs, example_inputs(task, 0), strict=True) if t.dtype is I64)
    assert set(indices) == {0, 1, 2, 3}
    reference(task, example_inputs(task, 0))


@pytest.mark.parametrize("name", ["sqrt", "log", "pow", "div"])
def test_values_are_finite(name: str) -> None:
    z = Load("z", (I,), F32)
    body = op(name, z) if name in ("sqrt", "log") else op(name, z, x(I))
    inputs = [Tensor("x", (1000,), F32), Tensor("z", (1000,), F32)]
    task = one_stage(Stage("y", (Axis("i", 1000),), body), inputs, (1000,))
    assert np.isfinite(reference(task, example_inputs(task, 0))).all()


def test_all_types_have_examples() -> None:
    for dtype in DType:
        task = one_stage(Stage("y", (Axis("i", 100),), Load("x", (I,), dtype)), [Tensor("x", (100,), dtype)], (100,))
        (array,) = example_inputs(task, 0)
        assert array.dtype == dtype.numpy
        assert len(set(array.tolist())) > 1
