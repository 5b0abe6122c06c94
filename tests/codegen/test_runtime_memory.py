"""Aligned and guarded arrays."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.runtime import memory as memory_module
from tunewright.codegen.runtime.memory import (
    COMPILER,
    GUARD_BYTES,
    HUGE_BYTES,
    IDLE_BLOCKS,
    MAPPINGS,
    SLAB_BYTES,
    Recycler,
    address_of,
    aligned_block,
    aligned_empty,
    clean_mappings,
    guarded_empty,
    trim_compiler,
)

SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@given(shape=SHAPES, dtype=st.sampled_from(DType), align_bytes=st.sampled_from([1, 64, 4096, 8192]))
def test_arrays_are_aligned(shape, dtype, align_bytes):
    for array in (aligned_empty(shape, dtype, align_bytes), guarded_empty(shape, dtype, align_bytes).array):
        assert array.shape == shape
        assert array.dtype == dtype.numpy
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % align_bytes == 0 or not array.size


def around(guarded) -> np.ndarray:
    """The bytes of both guards and the array as one array."""
    size_bytes = 2 * GUARD_BYTES + guarded.array.nbytes
    assert guarded.after.ctypes.data - guarded.before.ctypes.data == size_bytes - GUARD_BYTES
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(guarded.before.ctypes.data))


@given(shape=SHAPES, dtype=st.sampled_from(DType), data=st.data())
def test_a_byte_written_in_a_guard_is_seen(shape, dtype, data):
    guarded = guarded_empty(shape, dtype)
    guarded.array[...] = 1
    assert guarded.check() is None
    distance = data.draw(st.integers(1, GUARD_BYTES))
    side = data.draw(st.sampled_from(["before", "after"]))
    memory = around(guarded)
    at = GUARD_BYTES - distance if side == "before" else len(memory) - GUARD_BYTES + distance - 1
    memory[at] ^= data.draw(st.integers(1, 255))
    assert guarded.check() == f"written out of bounds: 1 bytes {side} the array, the nearest at distance {distance}"


@pytest.mark.parametrize("value", [0, 255, 0xC5])
def test_a_guard_overwritten_with_one_value_is_seen(value):
    guarded = guarded_empty((3,), DType.F32)
    around(guarded)[:] = value
    report = guarded.check() or ""
    assert "before the array, the nearest at distance" in report
    assert "after the array, the nearest at distance" in report


def test_a_guarded_array_starts_as_nan():
    assert np.isnan(guarded_empty((5,), DType.F32).array).all()
    assert (guarded_empty((5,), DType.I64).array == -1).all()


@given(shape=SHAPES, dtype=st.sampled_from(DType), writeable=st.booleans())
def test_addresses_of_all_arrays(shape, dtype, writeable):
    array = np.zeros((3, *shape), dtype.numpy)
    array.flags.writeable = writeable
    for part in (array, array[1:], array[..., ::2]):
        assert address_of(part) == part.ctypes.data or not part.size


@given(shape=SHAPES, dtype=st.sampled_from(DType))
def test_recycled_arrays_are_like_others(shape, dtype):
    array, address = Recycler(shape, dtype).array()
    assert (array.shape, array.dtype) == (shape, dtype.numpy)
    assert array.flags.carray
    assert (array.ctypes.data == address and address % 64 == 0) or not array.size


def test_memory_is_used_again_when_the_last_view_is_gone():
    recycler = Recycler((100, 10), DType.F32)
    first, address = recycler.array()
    first[...] = 7
    part = first[3:5].T
    del first
    assert recycler.array()[1] != address  # a view still reads it
    assert (part == 7).all()
    del part
    assert address in {recycler.array()[1] for _ in range(IDLE_BLOCKS)}


def test_only_so_much_memory_waits_for_its_next_use():
    recycler = Recycler((1000,), DType.F32)
    held = [recycler.array() for _ in range(IDLE_BLOCKS + 3)]
    assert len({address for _, address in held}) == len(held)
    del held
    assert len(recycler._idle) == IDLE_BLOCKS


@given(
    sizes=st.lists(st.integers(0, SLAB_BYTES.start + 200) | st.integers(0, 2 * SLAB_BYTES.stop), max_size=6),
    align_bytes=st.sampled_from([64, 256, 4096]),
)
def test_blocks_are_aligned_and_apart(sizes: list[int], align_bytes: int) -> None:
    blocks = [aligned_block(size_bytes, align_bytes) for size_bytes in sizes]
    for number, block in enumerate(blocks):
        assert len(block) == sizes[number] and block.flags.writeable
        assert address_of(block) % align_bytes == 0 or not len(block)
        block[:] = number
    assert all((block == number).all() for number, block in enumerate(blocks))


def test_blocks_that_fill_no_huge_page_share_some() -> None:
    first, second = (aligned_block(100 << 10) for _ in range(2))
    third = aligned_block(100 << 10)
    gaps = {address_of(second) - address_of(first), address_of(third) - address_of(second)}
    assert 100 << 10 in gaps, "one of the two pairs at least is on one shelf"


@pytest.mark.parametrize("size_bytes", [SLAB_BYTES.start, 100 << 10, SLAB_BYTES.stop - 1])
def test_a_small_block_lies_in_one_huge_page(size_bytes: int) -> None:
    for _ in range(3):
        first = address_of(aligned_block(size_bytes))
        assert first // HUGE_BYTES == (first + size_bytes - 1) // HUGE_BYTES


def test_a_large_block_begins_with_a_huge_page_which_the_system_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Pages(mmap.mmap):
        def madvise(self, option: int) -> None:  # type: ignore[override]
            asked.append((option, len(self)))

    monkeypatch.setattr(mmap, "mmap", Pages)
    for size_bytes in (SLAB_BYTES.stop, 3 * HUGE_BYTES + 1):
        assert address_of(aligned_block(size_bytes)) % HUGE_BYTES == 0
        option, mapped_bytes = asked.pop()
        assert option == mmap.MADV_HUGEPAGE and mapped_bytes >= size_bytes


def test_a_shelf_is_given_back_with_the_last_of_its_blocks() -> None:
    blocks = [aligned_block(HUGE_BYTES // 3) for _ in range(5)]  # two fit, so the third is on a shelf without others'
    shelf = ref(blocks[2].base)
    del blocks[:4]
    assert shelf() is None
    assert blocks[0].flags.writeable


def test_a_forked_child_has_shelves_of_its_own() -> None:
    """Also where another thread of the parent was just taking a part of one."""
    aligned_block(SLAB_BYTES.start)
    with memory_module._slab._turn:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            output = False
            try:
                room = memory_module._slab._room
                block = aligned_block(SLAB_BYTES.start)
                output = not len(room) and len(block) > 0
            finally:
                os._exit(0 if output else 1)
        assert os.waitpid(child, 0)[1] == 0


MAPPED = """\
7f0000000000-7f0000100000 r--p 00000000 08:01 77    /lib/llvmlite/binding/libllvmlite.so
Rss:                1024 kB
Anonymous:             0 kB
7f0000100000-7f0000300000 r-xp 00100000 08:01 77    /lib/llvmlite/binding/libllvmlite.so
Anonymous:             0 kB
7f0000300000-7f0000400000 r--p 00300000 08:01 77    /lib/llvmlite/binding/libllvmlite.so
Anonymous:           512 kB
7f0000400000-7f0000500000 rw-p 00400000 08:01 77    /lib/llvmlite/binding/libllvmlite.so
Anonymous:             0 kB
7f0000500000-7f0000600000 r--p 00000000 08:01 78    /lib/libc.so.6
Anonymous:             0 kB
7f0000600000-7f0000700000 rw-p 00000000 00:00 0
Anonymous:             0 kB
"""


def test_only_pages_of_the_library_that_nothing_wrote_are_named() -> None:
    assert list(clean_mappings(MAPPED, COMPILER)) == [
        (0x7F0000000000, 0x7F0000100000),
        (0x7F0000100000, 0x7F0000300000),
    ]


@pytest.mark.skipif(not MAPPINGS.exists(), reason="the system does not tell what is mapped")
def test_the_compiler_works_after_its_pages_were_given_back() -> None:
    import llvmlite.binding as llvm

    def resident_kb() -> int:
        inside, total = False, 0
        for line in MAPPINGS.read_text().splitlines():
            if " " in line and "-" in line.split()[0]:
                inside = Path(line.split()[-1]).name.startswith(COMPILER)
            elif inside and line.startswith("Rss:"):
                total += int(line.split()[1])
        return total

    text = "define i32 @f(i32 %x) {\n %y = add i32 %x, 1\n ret i32 %y\n}"
    before = str(llvm.parse_assembly(text)), llvm.get_host_cpu_name(), resident_kb()
    trim_compiler()
    assert resident_kb() < before[2]
    assert (str(llvm.parse_assembly(text)), llvm.get_host_cpu_name()) == before[:2]
