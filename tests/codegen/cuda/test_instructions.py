"""Instructions of GPUs: what they mean agrees with plain matrix products, and what they are compiles."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tunewright.codegen.instructions import bulk, table, warpgroup
from tunewright.codegen.instructions.instruction import Order, Queue, swizzle_bytes
from tunewright.codegen.instructions.table import INSTRUCTIONS, left_map, right_map, sum_map

LANES = 32
WARPS = 4

PRODUCTS = {
    "mma.m16n8k16.f32.f16": (np.float16, np.float16),
    "mma.m16n8k16.f32.bf16": (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    "mma.m16n8k8.f32.tf32": (np.float32, np.float32),
    "mma.m16n8k32.s32.s8.s8": (np.int8, np.int8),
    "mma.m16n8k32.s32.s8.u8": (np.int8, np.uint8),
    "mma.m16n8k32.s32.u8.s8": (np.uint8, np.int8),
    "mma.m16n8k32.s32.u8.u8": (np.uint8, np.uint8),
}
"""The types of both operands."""


def small(rng, dtype, *shape):
    """Whole numbers that a type has, whose products sum up without rounding; of bytes, all that there are."""
    ends = (np.iinfo(dtype).min, np.iinfo(dtype).max + 1) if np.dtype(dtype).itemsize == 1 else (-8, 9)
    return rng.integers(*ends, shape).astype(dtype)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_fragments_is_the_product_of_the_matrices(name):
    instruction, (left, right) = INSTRUCTIONS[name], PRODUCTS[name]
    bytes_each = np.dtype(left).itemsize
    depth = instruction.ins[0].size_bytes // bytes_each * LANES // 16
    rng = np.random.default_rng(1)
    wide = instruction.outs[0].dtype
    a, b = small(rng, left, WARPS, 16, depth), small(rng, right, WARPS, depth, 8)
    c = small(rng, wide, WARPS, 16, 8)
    (rows, inner), (depths, columns), (down, across) = (
        left_map(depth, bytes_each), right_map(depth, bytes_each), sum_map(),
    )  # fmt: skip
    [d] = instruction.meaning(a[:, rows, inner], b[:, depths, columns], c[:, down, across])
    assert d.dtype == wide
    product = np.zeros((WARPS, 16, 8), wide)
    product[:, down, across] = d
    assert np.array_equal(product, a.astype(wide) @ b.astype(wide) + c)


def test_a_float_and_its_rest_are_what_it_was():
    """What a product sees of both, by TF32, is all of it but its last two bits."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((WARPS, LANES, 4)).astype(np.float32)
    first, rest = INSTRUCTIONS["split.tf32"].meaning(values)
    second = table._truncate(rest)
    assert np.array_equal(first + rest, values)
    assert np.all(np.abs(values.astype(float) - first - second) <= 2.0**-20 * np.abs(values))
    assert np.any(first != values) and np.any(second != rest)


GROUPS = 2


def lay_out(major, matrix):
    """A matrix (groups, extent, depth) as rows of 128 bytes in shared memory: (groups, panels, rows, chunks, each)."""
    groups, extent, depth = matrix.shape
    if major == "k":  # all in one panel, of which these are the first chunks
        memory = np.zeros((groups, 1, extent, 8, depth // 2), matrix.dtype)
        memory[:, 0, :, :2] = matrix.reshape(groups, extent, 2, depth // 2)
        return memory
    memory = np.zeros((groups, extent // 64, warpgroup.PANEL_ROWS, 8, 8), matrix.dtype)
    memory[:, :, :depth] = matrix.reshape(groups, extent // 64, 8, 8, depth).transpose(0, 1, 4, 2, 3)
    return memory


def chunks_of(operand, memory):
    """What the threads of all groups name of it, as warps."""
    each = memory.shape[-1]
    chunks = memory.reshape(GROUPS, -1, each)[:, np.array(operand.matrix.offsets_bytes) // 16]
    return chunks.reshape(-1, LANES, each)


WARPGROUP_PRODUCTS = [
    *(
        f"k16.f32.{kind}.{kind}.{left}.{right}"
        for kind in ("f16", "bf16")
        for left in ("k", "mn")
        for right in ("k", "mn")
    ),
    *(f"k32.s32.{left}.{right}.k.k" for left in ("s8", "u8") for right in ("s8", "u8")),
]


@pytest.mark.parametrize("columns", warpgroup.COLUMNS)
@pytest.mark.parametrize("name", WARPGROUP_PRODUCTS)
def test_a_product_of_matrices_in_shared_memory_is_their_product(name, columns):
    instruction = INSTRUCTIONS[f"wgmma.m64n{columns}{name}"]
    left, right = name.split(".")[-2:]
    types, rng, wide = (
        (instruction.ins[0].dtype, instruction.ins[1].dtype),
        np.random.default_rng(1),
        instruction.outs[0].dtype,
    )
    depth = warpgroup.depth(np.dtype(types[0]).itemsize)
    a, b = small(rng, types[0], GROUPS, 64, depth), small(rng, types[1], GROUPS, columns, depth)
    c = small(rng, wide, GROUPS, 64, columns)
    places = warpgroup.sum_map(columns)
    rows, across = lay_out(left, a), lay_out(right, b)
    parts = [chunks_of(operand, across) for operand in instruction.ins[1:-1]]
    sums = c[:, places[0], places[1]].reshape(-1, LANES, columns // 2)
    [d] = instruction.meaning(chunks_of(instruction.ins[0], rows), *parts, sums)
    product = np.zeros_like(c)
    product[:, places[0], places[1]] = d.reshape(GROUPS, 4 * LANES, -1)
    assert np.array_equal(product, a.astype(wide) @ b.astype(wide).swapaxes(1, 2) + c)


def element_bytes(major, columns):
    """Where the unit looks for the elements (extent, 16) of a matrix, in bytes: PTX ISA, 9.7.15.5.1.2, by our text."""
    bits = {
        int(at): int(value)
        for value, at in re.findall(r"(\d+)u(?:ll)? << (\d+)", warpgroup.PRELUDE.partition("packed_at")[0])
    }
    assert bits.keys() == {16, 32, 62} and bits[62] == 1, "the swizzle of 128 bytes"
    leading, stride = bits[16] << 4, bits[32] << 4
    along, deep = np.meshgrid(np.arange(columns), np.arange(16), indexing="ij")
    if major == "k":
        return swizzle_bytes(along // 8 * stride + along % 8 * 128 + deep * 2)
    return swizzle_bytes(along // 64 * leading + deep // 8 * stride + deep % 8 * 128 + along % 64 * 2)


@pytest.mark.parametrize("columns", warpgroup.COLUMNS)
@pytest.mark.parametrize("major", warpgroup.MAJORS)
def test_a_descriptor_says_where_threads_name_a_matrix(major, columns):
    """Each element is where the unit looks for it, which the meaning takes it from."""
    instruction = INSTRUCTIONS[f"wgmma.m64n{columns}k16.f32.f16.f16.{major}.{major}"]
    parts = [operand.matrix for operand in instruction.ins[1:-1] if operand.matrix]
    thread, element = np.meshgrid(np.arange(4 * LANES), np.arange(8), indexing="ij")
    bytes_of_threads = [swizzle_bytes(np.array(part.offsets_bytes)[thread]) + 2 * element for part in parts]
    names = [np.float32(1024 * n) + thread * 8 + element for n in range(len(parts))]
    named_by = tuple(name.reshape(-1, LANES, 8) for name in names)
    numbers = warpgroup._matrix(major, named_by, np.dtype(np.float32))[0].astype(int)
    assert np.array_equal(np.stack(bytes_of_threads).reshape(-1)[numbers], element_bytes(major, columns))
    flags = re.search(r"more, 1, 1, (\d), (\d);", instruction.body)
    assert flags is not None and flags.groups() == (str(int(major == "mn")),) * 2


@pytest.mark.parametrize("columns", warpgroup.COLUMNS)
def test_a_descriptor_says_where_threads_name_what_is_packed(columns):
    """Chunk by chunk of 16 bytes, all rows of one after each other: by the strides that our text tells the unit."""
    instruction = INSTRUCTIONS[f"wgmma.m64n{columns}k16.f32.f16.f16.k.{warpgroup.PACKED}"]
    text = warpgroup.PRELUDE.partition("packed_at")[2]
    assert (
        "rows << 16" in text and f"packed_at(b0, {columns}u)" in instruction.body
    )  # rows of 16 bytes to the next chunk
    [eight_rows] = re.findall(r"(\d+)ull << 32", text)
    stride = int(eight_rows) << 4
    row, chunk = np.meshgrid(np.arange(64), np.arange(2), indexing="xy")
    for part, operand in enumerate(instruction.ins[1:-1]):
        along = part * 64 + row
        expected = chunk * columns * 16 + along // 8 * stride + along % 8 * 16
        assert operand.matrix is not None and not operand.matrix.is_swizzled
        assert list(operand.matrix.offsets_bytes) == expected.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("shape", "places"),
    [
        ((64, 128), warpgroup.sum_map(128)),
        ((16, 16), left_map(16, 2)),
        ((32, 8), right_map(32, 1)),
        ((16, 8), sum_map()),
    ],
)
def test_each_element_is_in_one_lane(shape, places):
    elements = np.zeros(shape, int)
    np.add.at(elements, places, 1)
    assert (elements == 1).all()


def test_rows_of_shared_memory_become_the_operands_of_a_product():
    """By the addresses that are usual for both: rows of A as they are, of B turned."""
    rng = np.random.default_rng(2)
    a, b = small(rng, np.float16, 16, 16), small(rng, np.float16, 16, 8)
    lane = np.arange(LANES)
    rows = a.reshape(16, 2, 8)[lane % 16, lane // 16]
    [left] = INSTRUCTIONS["ldmatrix.x4"].meaning(rows[None])
    [right] = INSTRUCTIONS["ldmatrix.x2.trans"].meaning(b[lane % 16][None])
    [d] = INSTRUCTIONS["mma.m16n8k16.f32.f16"].meaning(left, right, np.zeros((1, LANES, 4), np.float32))
    fragments = np.zeros((16, 8), np.float32)
    fragments[sum_map()] = d[0]
    assert np.array_equal(fragments, a.astype(np.float32) @ b.astype(np.float32))


def test_tf32_does_not_see_the_last_bits():
    number = np.nextafter(np.float32(1), np.float32(2))
    a = np.full((1, LANES, 4), number, np.float32)
    b, c = np.ones((1, LANES, 2), np.float32), np.zeros((1, LANES, 4), np.float32)
    [d] = INSTRUCTIONS["mma.m16n8k8.f32.tf32"].meaning(a, b, c)
    assert (d == 8).all()


def test_a_shuffle_exchanges_lanes():
    values = np.arange(WARPS * LANES, dtype=np.float32).reshape(WARPS, LANES, 1)
    total = values
    for mask in (16, 8, 4, 2, 1):
        total = total + INSTRUCTIONS[f"shfl.xor.{mask}"].meaning(total)[0]
    assert np.array_equal(total, np.broadcast_to(values.sum(1, keepdims=True), values.shape))


def shape(operand):
    """Of all warps."""
    dtype = operand.dtype or np.dtype(np.uint16)
    return (WARPS, LANES, operand.size_bytes // dtype.itemsize), dtype


@pytest.mark.parametrize("instruction", INSTRUCTIONS.values(), ids=lambda instruction: instruction.name)
def test_what_an_entry_says_of_its_operands_is_what_its_meaning_takes_and_gives(instruction):
    arrays = [np.ones(*shape(operand)) for operand in instruction.ins]
    if instruction.queue not in (Queue.BARRIER, Queue.NAMED):  # what these mean depends on what came before
        results = instruction.meaning(*arrays)
        assert [(array.shape, array.dtype) for array in results] == [shape(operand) for operand in instruction.outs]
    assert re.match(r"\d+\.[\d.]+, ", instruction.section)
    assert (instruction.order is Order.ASYNC) == (
        instruction.name.startswith(("cp.async.", "wgmma.")) and bool(instruction.outs)
    )
    sizes = (4, 8, 16, 128, 256, 384, 512, *bulk.PIECE_BYTES)
    assert all(operand.size_bytes in sizes for operand in (*instruction.ins, *instruction.outs))
