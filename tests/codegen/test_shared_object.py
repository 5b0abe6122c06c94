"""Shared objects of ours: what the system's loader makes of them is what was linked."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.codegen.llvm.elf import HEADER, ObjectFault, read_object
from tunewright.codegen.llvm.shared_object import DataBlock, Group, data_object, link
from tunewright.codegen.runtime.library import emit_object, pool_object

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64", reason="shared objects are for x86-64"
)

TEXT = """
@slot = global ptr null
@numbers = internal constant [3 x double] [double 1.0, double 2.0, double 3.5]
@functions = internal constant [2 x ptr] [ptr @grow, ptr @number]
@count = internal global i64 40
declare double @exp(double)
define double @grow(double %x) {
  %y = call double @exp(double %x)
  ret double %y
}
define double @number(i64 %i) {
  %at = getelementptr double, ptr @numbers, i64 %i
  %value = load double, ptr %at
  ret double %value
}
define ptr @function(i64 %i) {
  %at = getelementptr ptr, ptr @functions, i64 %i
  %value = load ptr, ptr %at
  ret ptr %value
}
define i64 @next() {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  ret i64 %new
}
define i64 @call_slot(i64 %x) {
  %f = load ptr, ptr @slot
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
"""

OTHER = """
declare double @helper(double)
define double @grow(double %x) {
  %y = call double @helper(double %x)
  ret double %y
}
"""

HELPER = """
define double @helper(double %x) {
  %y = fmul double %x, 3.0
  ret double %y
}
"""


def load(tmp_path: Path, content: bytearray) -> ctypes.CDLL:
    path = tmp_path / "library.so"
    path.write_bytes(content)
    return ctypes.CDLL(str(path))


def test_code_reaches_functions_data_and_libraries(tmp_path: Path) -> None:
    names = ("grow", "number", "function", "next", "call_slot", "slot")
    shown = {name: f"my_{name}" for name in names}
    library = load(tmp_path, link([([emit_object(TEXT)], shown)], shown.values()))
    library.my_grow.restype = library.my_number.restype = ctypes.c_double
    library.my_grow.argtypes = [ctypes.c_double]
    library.my_function.restype = ctypes.c_void_p
    assert library.my_grow(1.0) == pytest.approx(2.718281828)
    assert [library.my_number(i) for i in range(3)] == [1.0, 2.0, 3.5]
    assert library.my_function(1) == ctypes.cast(library.my_number, ctypes.c_void_p).value
    assert [library.my_next(), library.my_next()] == [41, 42]
    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: x + 5)
    ctypes.c_void_p.in_dll(library, "my_slot").value = ctypes.cast(callback, ctypes.c_void_p).value
    assert library.my_call_slot(4) == 9


def test_groups_share_no_names_and_their_objects_do(tmp_path: Path) -> None:
    groups: list[Group] = [
        ([emit_object(TEXT)], {"grow": "first"}),
        ([emit_object(OTHER), emit_object(HELPER)], {"grow": "second"}),
    ]
    library = load(tmp_path, link(groups, ("first", "second")))
    for function in (library.first, library.second):
        function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    assert library.first(0.0) == 1.0
    assert library.second(2.0) == 6.0
    assert not hasattr(library, "helper")


def test_data_points_into_code_and_other_data(tmp_path: Path) -> None:
    blocks = [
        DataBlock("numbers", struct.pack("<3q", 5, 6, 7)),
        DataBlock("pointers", bytes(24), {0: ("numbers", 8), 16: ("seen", 0)}),
    ]
    groups: list[Group] = [
        ([data_object(blocks)], {"pointers": "pointers"}),
        ([emit_object(HELPER)], {"helper": "seen"}),
    ]
    library = load(tmp_path, link(groups, ["pointers", "seen"]))
    words = (ctypes.c_void_p * 3).in_dll(library, "pointers")
    assert ctypes.c_int64.from_address(words[0] or 0).value == 6
    assert words[1] is None
    assert words[2] == ctypes.cast(library.seen, ctypes.c_void_p).value


def test_the_pool_can_be_linked(tmp_path: Path) -> None:
    assert load(tmp_path, link([([pool_object()], {"tw_run": "run"})], ["run"])).run


def test_what_cannot_be_linked_is_said(tmp_path: Path) -> None:
    code = emit_object(HELPER)
    with pytest.raises(ObjectFault, match="no object has the symbol 'absent'"):
        link([([code], {"absent": "absent"})], [])
    with pytest.raises(ObjectFault, match="two objects have the symbol 'helper'"):
        link([([code, code], {})], [])
    with pytest.raises(ObjectFault, match="no relocatable object for x86-64"):
        link([([b"\x7fELF" + bytes(200)], {})], [])
    with pytest.raises(ObjectFault, match="points to 'absent', which no object has"):
        link([([data_object([DataBlock("pointers", bytes(8), {0: ("absent", 0)})])], {})], [])
    with pytest.raises(ObjectFault, match="each thread"):
        link([([emit_object("@own = thread_local global i64 1")], {})], [])


@given(st.data())
def test_damaged_objects_are_refused_or_read(data: st.DataObject) -> None:
    code = bytearray(emit_object(TEXT))
    if data.draw(st.booleans()):
        del code[data.draw(st.integers(0, len(code) - 1)) :]
    else:
        place = data.draw(st.integers(0, HEADER.size - 1))
        code[place] = data.draw(st.integers(0, 255))
    try:
        read_object(bytes(code))
    except ObjectFault as fault:
        assert "\n" not in str(fault)


def test_a_table_of_sections_beyond_the_end_is_damage() -> None:
    code = bytearray(emit_object(HELPER))
    code[40:48] = struct.pack("<Q", 1 << 40)
    with pytest.raises(ObjectFault, match="damaged"):
        read_object(bytes(code))
