"""Texts of schedules are those that are built, and bounded; differences are short and to the point."""

from __future__ import annotations

import pytest

from tunewright.codegen.llvm.build import assembly, source
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, lower, sketch
from tunewright.tuner.explain import texts as module
from tunewright.tuner.explain.texts import PARTS, DiffKind, DiffLine, cut, difference, readable, text_of, texts

from ..search_space.oracle import WIDE
from ..search_space.test_sketches import MODELS, tasks_of


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks_of(MODELS["dense"], {"a": 13, "b": 7, "c": 37, "d": 3})[0]


def other(task: Task, **values: int) -> Schedule:
    """The default schedule with some other values."""
    default = default_schedule(task, WIDE)
    return Schedule(default.sketch, default.version, tuple((dict(default.values) | values).items()))


def test_texts_are_what_is_built(task: Task) -> None:
    schedule = default_schedule(task, WIDE)
    kernel = lower(Candidate(task, WIDE, schedule))
    assert texts(task, WIDE, schedule, "ir") == str(kernel)
    assert texts(task, WIDE, schedule, "llvm") == source(kernel, WIDE)
    found = texts(task, WIDE, schedule, "assembly")
    assert found == readable(assembly(kernel, WIDE))
    assert "zmm" in found
    assert "\t" not in found
    with pytest.raises(ValueError, match="'source' is none of ir, llvm, assembly"):
        text_of(kernel, WIDE, "source")
    with pytest.raises(Illegal):
        texts(task, WIDE, Schedule("contraction", 0, schedule.values), "ir")


def test_long_texts_are_cut_and_say_so(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut("a\nb\n") == "a\nb\n"
    assert cut("a\nb") == "a\nb\n"
    assert cut("") == "\n"
    assert cut("aa\nbb\ncc\n", 6) == "aa\nbb\n... 1 more line of 3 lines\n"
    assert cut("a" * 1000) == "a" * (module.MOST_LINE_LETTERS - 4) + " ...\n"
    assert cut("x\n" * 50_000, 1000).endswith("\n... 49500 more lines of 50,000 lines\n".replace("49500", "49,500"))
    monkeypatch.setattr(module, "MOST_LETTERS", 500)
    monkeypatch.setattr(module.cut, "__defaults__", (500,))
    for part in PARTS:
        found = texts(task, WIDE, default_schedule(task, WIDE), part)
        assert len(found) <= 500 + module.MOST_LINE_LETTERS
        assert found.splitlines()[-1].startswith("... ")


def test_hostile_letters_are_escaped() -> None:
    assert readable("a\x1b[31m\tb\n\udcffc\n") == "a\\x1b[31m    b\n\\udcffc\n"


def kinds(lines: list[DiffLine]) -> str:
    letters = {DiffKind.SAME: "=", DiffKind.REMOVED: "-", DiffKind.ADDED: "+", DiffKind.SKIPPED: "."}
    return "".join(letters[line.kind] for line in lines)


def test_texts_alike_do_not_differ(task: Task) -> None:
    for part in PARTS:
        text = texts(task, WIDE, default_schedule(task, WIDE), part)
        assert difference(text, text) == []


def test_names_that_follow_from_the_content_are_no_difference() -> None:
    one, other = "0123456789abcdef01234567", "a" * 24
    for name in ("k{}_p0", "m{}"):
        assert difference(f"define @{name.format(one)}(", f"define @{name.format(other)}(") == []


def test_a_difference_has_some_lines_around_it() -> None:
    before = "\n".join(map(str, range(40)))
    after = before.replace("\n20\n", "\ntwenty\n")
    assert difference(before, after) == [
        DiffLine(DiffKind.SKIPPED, "... 17 lines alike"),
        *(DiffLine(DiffKind.SAME, str(n)) for n in (17, 18, 19)),
        DiffLine(DiffKind.REMOVED, "20"),
        DiffLine(DiffKind.ADDED, "twenty"),
        *(DiffLine(DiffKind.SAME, str(n)) for n in (21, 22, 23)),
        DiffLine(DiffKind.SKIPPED, "... 16 lines alike"),
    ]
    assert kinds(difference("a\nb\n", "a\nb\nc\n")) == "==+"
    assert kinds(difference("a\n" * 9 + "b\n", "b\n")) == "---------="


def test_two_schedules_differ_in_few_lines(task: Task) -> None:
    default = default_schedule(task, WIDE)
    before, after = (texts(task, WIDE, one, "ir") for one in (default, other(task, vectors=1)))
    found = difference(before, after)
    assert {DiffKind.REMOVED, DiffKind.ADDED} <= {line.kind for line in found}
    kept = [line.text for line in found if line.kind is not DiffKind.ADDED and line.kind is not DiffKind.SKIPPED]
    assert set(kept) <= set(before.splitlines())


def test_long_differences_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = "\n".join(map(str, range(3000))), "\n".join(f"x{n}" for n in range(3000))
    found = difference(before, after)
    assert len(found) == module.MOST_DIFFERENCES + 1
    assert found[-1] == DiffLine(DiffKind.SKIPPED, "... 5000 more lines of the difference")
    monkeypatch.setattr(module, "MOST_LETTERS", 20)
    assert difference("", "a\n" * 20) == [
        DiffLine(DiffKind.REMOVED, ""),
        *[DiffLine(DiffKind.ADDED, "a")] * 9,
        DiffLine(DiffKind.SKIPPED, "... 11 more lines of the difference"),
    ]
    monkeypatch.undo()
    monkeypatch.setattr(module, "MOST_COMPARED", 10)
    assert difference("a\n" * 20, "a\n" * 20) == []
    assert difference("a\n" * 20, "a\n" * 19 + "b\n") == [
        DiffLine(DiffKind.SKIPPED, "... 10 more lines that nobody compared")
    ]
    [line] = [one for one in difference("y" * 5000, "z") if one.kind is DiffKind.REMOVED]
    assert len(line.text) == module.MOST_LINE_LETTERS


def test_every_sketch_can_be_compiled_for_showing() -> None:
    for name in ("generic", "contraction"):
        task = tasks_of(MODELS["conv"], {"a": 13, "b": 7, "c": 37, "d": 3})[0]
        assert "ret" in texts(task, WIDE, sketch(name).space(task, WIDE).default, "assembly")
