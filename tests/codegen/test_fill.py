import numpy as np
import pytest

from tunewright.codegen.ir import fill as filling
from tunewright.codegen.ir.fill import fill
from tunewright.codegen.ir.ir import Packing

FILTER = ((0.25, 0.0, 0.0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6), (0.0, 0.0, 1.0))


def filters(inputs: int, outputs: int, width: int, order: tuple[int, ...], parts: tuple[int, ...]) -> Packing:
    """The layout of a convolution's filters [3, 3, inputs, outputs] by Winograd's method."""
    tiles = -(-outputs // width)
    extents = {0: 5, 1: 5, 2: inputs, 3: tiles * width}
    splits = tuple((tiles, width) if axis == 3 else (extents[axis],) for axis in order)
    return Packing(order, tuple(extents[axis] for axis in order), splits, parts, ((0, FILTER), (1, FILTER)))


@pytest.mark.parametrize("block_bytes", [1, 3000, 1 << 30])
@pytest.mark.parametrize("inputs", [1, 5])
@pytest.mark.parametrize(("outputs", "width"), [(1, 4), (8, 4), (23, 4), (31, 16), (7, 1)])
def test_blocks_make_what_the_whole_would(block_bytes, inputs, outputs, width, monkeypatch):
    monkeypatch.setattr(filling, "BLOCK_BYTES", block_bytes)
    array = np.random.default_rng(outputs).standard_normal((3, 3, inputs, outputs)).astype(np.float32)
    packings = [
        filters(inputs, outputs, width, (3, 0, 1, 2), (0, 2, 3, 4, 1)),  # tiles of outputs outside: cut there
        filters(inputs, outputs, width, (0, 1, 2, 3), (3, 0, 1, 2, 4)),
        filters(inputs, outputs, width, (2, 3, 0, 1), (0, 1, 3, 4, 2)),
        Packing.in_order((3, 2, 0, 1), (outputs + 1, inputs, 3, 4)),  # nothing is mapped
    ]
    for packing in packings:
        room = np.full(packing.shape, np.nan, np.float32)
        fill(room, array, packing)
        np.testing.assert_array_equal(room, packing.apply(array))


@pytest.mark.parametrize("matrix", [((1, 16, 0, 0), (0, 0, 1, 16)), ((1, 0, 16, 0), (0, 1, 0, 16)), ((0, 0, 0, 3),)])
def test_bytes_are_multiplied_as_bytes(matrix):
    array = np.random.default_rng(0).integers(0, 16, (5, 3, 4), np.uint8)
    packing = Packing.in_order((1, 2, 0), (3, len(matrix), 6), ((2, tuple(tuple(map(float, row)) for row in matrix)),))
    room = np.full(packing.shape, 255, np.uint8)
    fill(room, array, packing)
    wanted = np.einsum("ik,nbk->bin", np.array(matrix), array.astype(np.int64))
    np.testing.assert_array_equal(room[..., :5], wanted)
    np.testing.assert_array_equal(room, packing.apply(array))
    assert not room[..., 5:].any()


def test_numbers_that_are_no_bytes_are_multiplied_as_floats():
    array = np.array([[4, 8], [6, 2]], np.uint8)
    packing = Packing.in_order((0, 1), (2, 1), ((1, ((0.5, 0.25),)),))
    np.testing.assert_array_equal(packing.apply(array), [[4], [3]])


def test_more_padding_than_a_block():
    """Whole blocks may lie behind the last element."""
    packing = Packing((1, 0), (12, 5), ((6, 2), (5,)), (0, 2, 1), ((0, FILTER),))
    array, room = np.arange(9, dtype=np.float32).reshape(3, 3), np.full((6, 5, 2), np.nan, np.float32)
    fill(room, array, packing)
    np.testing.assert_array_equal(room, packing.apply(array))
    assert not room[2:].any()
