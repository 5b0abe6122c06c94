from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.host import Caches, detect
from tunewright.codegen.ir.ir import AxisMatrix, Packing
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.graph.task import Axis, Stage, Tensor, canonical
from tunewright.graph.tolerance import TOLERANCE
from tunewright.search_space.sketch import find_space
from tunewright.search_space.sketches import SKETCHES, lower
from tunewright.workers.measure import check
from tunewright.workers.measure.cache_flush import Copies, Eviction
from tunewright.workers.measure.check import CpuKernel, Example, checksum, difference, find_damage

INF, NAN = np.inf, np.nan


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("array", "right", "wrong"),
    [
        (floats(1, 2), floats(1, 2), None),
        (floats(1.00005, -2), floats(1, -2), None),
        (floats(1.001, 2), floats(1, 2), "1.001 at [0], not 1; error 0.0005 > 0.0001"),
        (floats(0.001, 2000), floats(0, 2000), None),  # small beside the largest
        (floats(0, 0), floats(0, 0), None),
        (floats(NAN, 2), floats(1, 2), "nan at [0], not 1"),
        (floats(1, 2), floats(NAN, 2), "1 at [0], not nan"),
        (floats(NAN, INF, -INF, 1), floats(NAN, INF, -INF, 1), None),
        (floats(INF), floats(-INF), "inf at [0], not -inf"),
        (floats(INF), floats(NAN), "inf at [0], not nan"),
        (floats(NAN, 1.1), floats(NAN, 1), "1.1 at [1], not 1"),
        (np.array([[1, 2], [3, 5]]), np.array([[1, 2], [3, 4]]), "5 at [1, 1], not 4; 25.000% of all differ"),
        (np.array([True]), np.array([False]), "True at [0], not False"),
        (np.array([200], np.uint8), np.array([200], np.uint8), None),
        (floats(), floats(), None),
    ],
)
def test_difference(array: np.ndarray, right: np.ndarray, wrong: str | None) -> None:
    text, error = difference(array, right, 1e-4 if right.dtype.kind == "f" else 0.0)
    assert (text or "").startswith(wrong or "")
    assert bool(text) == (error > 1e-4)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1001])
def test_a_checksum_sees_any_byte(size: int) -> None:
    array = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    before = checksum(array)
    for place in {0, size // 2, size - 1} & set(range(size)):
        array[place] ^= 1
        assert checksum(array) != before
        array[place] ^= 1
    assert checksum(array) == before


def test_what_belongs_to_other_tasks_stays() -> None:
    own = np.array([[True, False], [True, False]])
    array = floats(0, NAN, 0, NAN).reshape(2, 2)
    array.view(np.uint8).reshape(2, 2, 4)[:, 1] = 0xFF
    assert find_damage(array, own) is None
    array[1, 1] = 0.0
    assert find_damage(array, own) == "1 elements changed that belong to others, the first at [1, 1]"


def test_an_output_written_in_part_is_checked_in_part() -> None:
    at = Var("i0"), Var("i1")
    body = Load("x", at, DType.F32)
    x, y = Tensor("x", (4, 24), DType.F32), Tensor("y", (4, 40), DType.F32)
    axes = Axis("i0", 4), Axis("i1", 24)
    task = canonical("Part", [x], [y], [], [Stage("y", axes, body, index=(at[0], op("add", at[1], 7)))])
    wider = canonical("Part", [x], [y], [], [Stage("y", axes, body, index=(at[0], op("add", at[1], 8)))])
    target = detect(1)
    example = Example(task)
    for variant, right in ((task, True), (wider, False)):
        sketch = next(s for s in SKETCHES if find_space(s, variant, target))
        artifact = build(sketch.lower(variant, sketch.space(variant, target).default, target), target)
        with CpuKernel(example, artifact, shared_pool(1)) as loaded:
            fault, _ = loaded.check()
            assert fault == (None if right else "t1: 4 elements changed that belong to others, the first at [0, 31]")
            if right:
                assert loaded.recheck() is None


def test_examples_keep_the_packed_inputs_used_last(task, monkeypatch: pytest.MonkeyPatch) -> None:
    packings = [Packing((0, 1), (32, 40), ((32,), (40 // n, n)), (1, 0, 2)) for n in (2, 4, 8)]
    size_bytes = 4 * 32 * 40
    monkeypatch.setattr(check, "PACKED_BYTES", 2 * size_bytes)
    example = Example(task)
    plain = example.input(0, None)
    first, second = (example.input(1, p) for p in packings[:2])
    assert first.guarded.array.nbytes == size_bytes
    assert example.input(1, packings[0]) is first
    example.input(1, packings[2])
    assert example.input(1, packings[0]) is first
    assert example.input(1, packings[1]) is not second
    assert example.input(0, None) is plain, "as it is it takes no room of theirs"


def test_long_sums_are_allowed_more(task, other_task) -> None:
    assert Example(task).tolerance_factor == 1
    assert Example(other_task).tolerance_factor == 1


def test_a_trial_sees_what_changes_between_runs(make) -> None:
    candidate = make.default()
    example = Example(make.task)
    artifact = build(lower(candidate), candidate.target)
    with CpuKernel(example, artifact, shared_pool(1)) as loaded:
        fault, error = loaded.check()
        assert fault is None
        assert error is not None and error < 1e-5
        assert loaded.recheck() is None
        example.input(0, None).guarded.array[0, 0] += 1
        loaded.fill()
        assert loaded.recheck() == "x: an input was changed"


def test_candidates_share_copies_of_what_they_read_alike(task, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = shared_pool(1)
    packings = [Packing((0, 1), (32, 40), ((32,), (40 // n, n)), (1, 0, 2)) for n in (2, 4, 8)]
    sample = Example(task).flush([(1, packings[0])], pool)
    assert isinstance(sample, Copies)
    monkeypatch.setattr(check, "COPIES_BYTES", 2 * sample.size_bytes)
    example = Example(task)
    first, second = (example.flush([(1, packing)], pool) for packing in packings[:2])
    assert second is not first
    assert example.flush([(1, packings[0])], pool) is first
    example.flush([(1, packings[2])], pool)
    assert example.flush([(1, packings[0])], pool) is first
    assert example.flush([(1, packings[1])], pool) is not second
    assert example.flush([], pool) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_constants_that_are_read_from_memory_are_evicted(make, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_caches", lambda: Caches(1 << 10, 1 << 11, 1 << 20))
    candidate = make.default()
    with CpuKernel(Example(make.task), build(lower(candidate), candidate.target), shared_pool(threads)) as loaded:
        assert loaded.check()[0] is None
        assert isinstance(loaded._flush, Eviction)
        assert len(loaded.cold.time(3, 2)) == 3
        assert loaded.recheck() is None


@pytest.mark.parametrize("maps", [(), ((0, ((1.0, 2.0, 0.5), (0.0, 1.0, 3.0))),)])
def test_operands_are_packed_as_packings_say(maps: tuple[tuple[int, AxisMatrix], ...]) -> None:
    x, y = Tensor("x", (3, 4, 5), DType.F32, constant=True), Tensor("y", (3, 4, 5), DType.F32)
    at = Var("i"), Var("j"), Var("k")
    axes = Axis("i", 3), Axis("j", 4), Axis("k", 5)
    example = Example(canonical("Kept", [x], [y], [], [Stage("y", axes, Load("x", at, DType.F32))]))
    rows = 2 if maps else 3
    for padded, splits in (((6, rows, 4), ((2, 3), (rows,), (4,))), ((5, rows, 8), ((5,), (rows,), (2, 4)))):
        packing = Packing((2, 0, 1), padded, splits, (3, 1, 0, 2), maps)
        packed = example.input(0, packing).guarded.array
        assert np.array_equal(packed, packing.apply(example.inputs[0]))


def test_outputs_of_one_are_not_taken_for_those_of_the_next(make) -> None:
    """They share memory: what the first wrote there must not make the second seem right, nor wrong."""
    example = Example(make.task)
    artifact = build(lower(make.default()), make.target)
    idle = replace(artifact, phases=())
    with CpuKernel(example, artifact, shared_pool(1)) as sound, CpuKernel(example, idle, shared_pool(1)) as lazy:
        assert sound.check()[0] is None
        fault, _ = lazy.check()
        assert fault is not None and "nan" in fault
        sound.fill()
        assert sound.recheck() is None


def test_tolerances_are_for_floats() -> None:
    assert {DType(str(dtype)).is_float for dtype in TOLERANCE} == {True}
