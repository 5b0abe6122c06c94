"""What is given back of memory, and that it does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunewright.codegen.runtime.residence import COMPILER, MAPPINGS, trim_compiler, unwritten

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
    assert list(unwritten(MAPPED, COMPILER)) == [(0x7F0000000000, 0x7F0000100000), (0x7F0000100000, 0x7F0000300000)]


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
