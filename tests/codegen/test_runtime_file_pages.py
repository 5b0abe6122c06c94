"""Files in memory: mapped, then in huge pages, the same bytes at the same addresses all the while."""

from __future__ import annotations

import os
import re
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tunewright.codegen.runtime import file_pages
from tunewright.codegen.runtime.file_pages import LEAST_BYTES, FilePages
from tunewright.codegen.runtime.memory import ALIGN_BYTES, HUGE_BYTES, MAPPINGS

RNG = np.random.default_rng(2)

SIZES = (LEAST_BYTES + 5, 1, 4096, 3 * HUGE_BYTES, 10_000)

has_huge_pages = pytest.mark.skipif(not file_pages._has_huge_pages(), reason="the system has no huge pages")


def pages_of(folder: Path, sizes: tuple[int, ...]) -> tuple[FilePages, list[bytes]]:
    contents = [RNG.bytes(size) for size in sizes]
    with ExitStack() as stack:
        files = []
        for number, content in enumerate(contents):
            (folder / f"{number}.mapped").write_bytes(content + b"more")
            files.append((stack.enter_context((folder / f"{number}.mapped").open("rb")).fileno(), len(content)))
        return FilePages(files), contents


def test_mapped_files_outlive_their_names_and_their_arrays_are_read_only(tmp_path: Path) -> None:
    pages, contents = pages_of(tmp_path, SIZES)
    for path in tmp_path.iterdir():
        path.unlink()
    blocks = pages.blocks
    del pages
    assert [bytes(block) for block in blocks] == contents
    assert all(block.ctypes.data % ALIGN_BYTES == 0 and not block.flags.writeable for block in blocks)
    part = blocks[0][4000:]
    del blocks
    assert bytes(part) == contents[0][4000:]


@pytest.mark.skipif(not MAPPINGS.exists(), reason="the system does not tell what is mapped")
def test_mappings_go_with_the_last_array(tmp_path: Path) -> None:
    pages, _ = pages_of(tmp_path, (10_000, 20_000))
    last = pages.blocks[1]
    assert MAPPINGS.read_text().count(".mapped") == 2
    del pages
    assert MAPPINGS.read_text().count(".mapped") == 2
    del last
    assert ".mapped" not in MAPPINGS.read_text()


@has_huge_pages
def test_pages_become_huge_while_they_are_read(tmp_path: Path) -> None:
    pages, contents = pages_of(tmp_path, SIZES)
    is_over, rounds = threading.Event(), 0
    wrong: list[int] = []

    def read(blocks: list[NDArray[np.uint8]]) -> None:
        nonlocal rounds
        sums = [block.sum(dtype=np.int64) for block in blocks]
        while not is_over.is_set():
            wrong.extend(n for n, block in enumerate(blocks) if block.sum(dtype=np.int64) != sums[n])
            rounds += 1

    reader = threading.Thread(target=read, args=[pages.blocks])
    reader.start()
    assert pages.make_huge()
    before = rounds
    while rounds < before + 2:
        pass
    is_over.set()
    reader.join()
    assert not wrong
    assert [bytes(block) for block in pages.blocks] == contents
    if MAPPINGS.exists():
        told = MAPPINGS.read_text()
        assert ".mapped" not in told
        address = f"{pages._range.address:x}-"
        [of_range] = re.findall(rf"^{address}.*?(?=^VmFlags)", told, re.MULTILINE | re.DOTALL)
        assert " r--p " in of_range and int(re.findall(r"AnonHugePages: +(\d+)", of_range)[0]) >= 4 << 10
    reference = pages.blocks[-1]
    del pages
    assert bytes(reference) == contents[-1]


@has_huge_pages
def test_what_is_made_huge_is_given_back(tmp_path: Path) -> None:
    pages, _ = pages_of(tmp_path, (LEAST_BYTES,))
    assert pages.make_huge()
    address = f"{pages._range.address:x}-"
    assert address in MAPPINGS.read_text()
    del pages
    assert address not in MAPPINGS.read_text()


def test_memory_that_is_short_is_shared_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, contents = pages_of(tmp_path, (LEAST_BYTES,))
    for name, value in (
        ("available_memory_bytes", lambda: 4 * LEAST_BYTES - 1),  # of a container
        ("MEMORY", tmp_path / "none"),
        ("HUGE_PAGES", tmp_path / "none"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(file_pages, name, value)
            assert not pages.make_huge()
    assert bytes(pages.blocks[0]) == contents[0]


def test_what_can_not_be_mapped_is_told() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match=r"device|argument|supported"):
            FilePages([(reader, 10)])
    finally:
        os.close(reader)
        os.close(writer)
