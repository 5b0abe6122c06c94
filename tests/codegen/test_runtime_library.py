"""Object code in the process: namespaces, errors that are not crashes, and nothing left behind."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tunewright.codegen.runtime.library import ARCHITECTURES, Library, pool_functions, pool_text

from .phases import compiled

ANSWER = """
@number = private constant [2 x i64] [i64 {number}, i64 0]
@calls = internal global i64 0
declare i32 @getpid()
define i64 @answer() nounwind {{
  %calls = load i64, ptr @calls
  %more = add i64 %calls, 1
  store i64 %more, ptr @calls
  %pid = call i32 @getpid()
  %wide = zext i32 %pid to i64
  %number = load i64, ptr @number
  %sum = add i64 %wide, %number
  %all = add i64 %sum, %more
  ret i64 %all
}}
"""


def call(address: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64)(address)()
    return result


def test_each_group_is_a_namespace():
    library = Library([([compiled(ANSWER.format(number=number))], ["answer"]) for number in (10, 20)])
    for _ in range(2):
        answers = [call(addresses["answer"]) - os.getpid() for addresses in library.addresses]
    assert answers == [12, 22]
    library.close()
    library.close()
    assert library.addresses == []


def test_what_cannot_be_linked_is_an_error():
    good = compiled(ANSWER.format(number=1))
    needy = compiled("declare void @no_such_function()\ndefine void @f() { call void @no_such_function() ret void }")
    for code, symbol in [
        (b"", "f"),
        (b"garbage", "f"),
        (good[: len(good) // 2], "answer"),
        (good, "question"),
        (needy, "f"),
    ]:
        with pytest.raises(RuntimeError):
            Library([([good], ["answer"]), ([code], [symbol])])
    library = Library([([good], ["answer"])])
    assert call(library.addresses[0]["answer"]) == os.getpid() + 2


CALLER = "declare i64 @number()\ndefine i64 @answer() { %n = call i64 @number() ret i64 %n }"
CALLEE = "define i64 @number() {{ ret i64 {number} }}"


def test_objects_of_a_group_call_each_other():
    caller = compiled(CALLER)
    groups = [([caller, compiled(CALLEE.format(number=number))], ["answer"]) for number in (3, 4)]
    library = Library(groups)
    assert [call(addresses["answer"]) for addresses in library.addresses] == [3, 4]
    library.close()
    with pytest.raises(RuntimeError):
        Library([*groups, ([caller], ["answer"])])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_libraries_leave_nothing_behind():
    objects = [([compiled(ANSWER.format(number=number))], ["answer"]) for number in range(5)]

    def use(times: int) -> None:
        for number in range(times):
            library = Library(objects)
            assert call(library.addresses[4]["answer"]) == os.getpid() + 5
            if number % 2:
                library.close()

    use(20)
    before_bytes, before_maps = resident_bytes(), len(Path("/proc/self/maps").read_text().splitlines())
    use(200)
    assert resident_bytes() - before_bytes < 4 << 20
    assert len(Path("/proc/self/maps").read_text().splitlines()) - before_maps < 20


def test_many_libraries_at_once():
    libraries = [Library([([compiled(ANSWER.format(number=number))], ["answer"])]) for number in range(50)]
    assert [call(library.addresses[0]["answer"]) - os.getpid() - 1 for library in libraries] == list(range(50))
    for library in libraries[::2]:
        library.close()
    assert call(libraries[1].addresses[0]["answer"]) == os.getpid() + 1 + 2


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES.values())))
def test_the_pool_compiles_for_each_architecture(architecture):
    code = compiled(pool_text(architecture), f"{architecture}-unknown-linux-gnu")
    assert all(symbol in code for symbol in (b"tw_pool_create", b"tw_pool_destroy", b"tw_run", b"tw_time"))


def test_the_pool_is_compiled_once():
    assert pool_functions() is pool_functions()


def test_other_systems_are_refused(monkeypatch):
    from tunewright.codegen.runtime import library

    monkeypatch.setattr("platform.machine", lambda: "s390x")
    with pytest.raises(OSError, match="not on linux on s390x"):
        library.pool_object.__wrapped__()


@pytest.mark.skipif(ARCHITECTURES.get(platform.machine().lower()) != "x86_64", reason="of x86-64")
def test_what_a_machine_hides_of_its_processor_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines hide instructions that processors of the name have: the pool then died of masks of AVX-512."""
    from tunewright.codegen.runtime import library

    shown = llvm.get_host_cpu_features()
    hidden = type(shown)({name: present and not name.startswith("avx512") for name, present in shown.items()})
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "znver4")
    texts = []
    for features in (type(shown)(), hidden):  # with nothing said, what the name stands for
        monkeypatch.setattr(llvm, "get_host_cpu_features", lambda features=features: features)
        with llvm.parse_assembly(pool_text("x86_64")) as module:
            texts.append(library._machine().emit_assembly(module))
    assert ["%k1" in text for text in texts] == [True, False]
