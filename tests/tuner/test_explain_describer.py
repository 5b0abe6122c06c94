"""Showing a schedule of a task that somebody sent never does more harm than a line of text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor, canonical
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, lower, point_of, sketch
from tunewright.tuner.explain import describer, describer_child
from tunewright.tuner.explain.describer import DescriptionError, ScheduleDescriber, ScheduleDescription
from tunewright.tuner.explain.nest import nest
from tunewright.tuner.explain.sentences import describe
from tunewright.tuner.explain.texts import GPU_PARTS, PARTS, DiffKind, difference, texts
from tunewright.workers.sandbox.process import ChildError, ChildStartError, RequestFailed

from ..search_space.oracle import WIDE
from ..search_space.test_sketches import MODELS, tasks_of
from .fake_child import FakeChild


@pytest.fixture(scope="module")
def shower() -> Iterator[ScheduleDescriber]:
    with ScheduleDescriber() as one:
        yield one


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks_of(MODELS["dense"], {"a": 13, "b": 7, "c": 37, "d": 3})[0]


def generic(task: Task) -> Schedule:
    return sketch("generic").space(task, WIDE).default


def child_pid(shower: ScheduleDescriber) -> int | None:
    return shower._sandbox._child.pid


def test_a_schedule_is_shown(shower: ScheduleDescriber, task: Task) -> None:
    schedule = generic(task)
    found = shower.picture(task, WIDE, schedule)
    assert found == ScheduleDescription(
        tuple(describe(task, WIDE, schedule)), nest(lower(Candidate(task, WIDE, schedule)))
    )
    for part in PARTS:
        assert shower.text(task, WIDE, schedule, part) == texts(task, WIDE, schedule, part)


def test_schedules_are_compared(shower: ScheduleDescriber, task: Task) -> None:
    default, other = default_schedule(task, WIDE), generic(task)
    found = shower.difference(task, WIDE, other, default, "ir")
    assert list(found) == difference(texts(task, WIDE, default, "ir"), texts(task, WIDE, other, "ir"))
    assert {DiffKind.REMOVED, DiffKind.ADDED} <= {line.kind for line in found}
    assert shower.difference(task, WIDE, other, other, "assembly") == ()


def test_what_is_in_no_space_is_illegal(shower: ScheduleDescriber, task: Task) -> None:
    first = child_pid(shower)
    for schedule in (Schedule("none\n\x1b", 1, ()), Schedule("generic", 1, (("vectors", 3),))):
        with pytest.raises(Illegal) as found:
            shower.picture(task, WIDE, schedule)
        assert str(found.value).isprintable()
        with pytest.raises(Illegal):
            shower.difference(task, WIDE, generic(task), schedule, "ir")
    assert child_pid(shower) == first  # a bad schedule is no fault of the child's
    with pytest.raises(ValueError, match="'c' is none of"):
        shower.text(task, WIDE, generic(task), "c")


def test_the_child_is_used_again_and_replaced_at_times(
    shower: ScheduleDescriber, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    shower.picture(task, WIDE, generic(task))
    first = child_pid(shower)
    shower.text(task, WIDE, generic(task), "ir")
    assert child_pid(shower) == first
    monkeypatch.setattr(shower._sandbox, "_most_requests", 1)
    shower.text(task, WIDE, generic(task), "ir")
    assert child_pid(shower) != first


def test_the_child_is_confined(shower: ScheduleDescriber, task: Task) -> None:
    shower.picture(task, WIDE, generic(task))
    status = Path(f"/proc/{child_pid(shower)}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    limits = Path(f"/proc/{child_pid(shower)}/limits").read_text()
    assert any(line.split()[:4] == ["Max", "file", "size", "0"] for line in limits.splitlines())


def swelling(steps: int) -> Task:
    """A few lines whose text has 2 ** steps terms: each step multiplies the one before by itself."""
    names = [f"s{n}" for n in range(steps + 1)]
    axes, index = (Axis("i", 64),), (Var("i"),)
    stages = [
        Stage(after, axes, Load(before, index, DType.F32) * Load(before, index, DType.F32))
        for before, after in pairwise(names)
    ]
    first, *between, last = [Tensor(name, (64,), DType.F32) for name in names]
    return canonical("Swell", [first], [last], between, stages)


@pytest.mark.slow
def test_one_that_takes_too_much(task: Task) -> None:
    with ScheduleDescriber(memory_bytes=512 << 20, time_s=3.0) as shower:
        hostile = swelling(60)
        default = default_schedule(hostile, WIDE)
        assert shower.picture(hostile, WIDE, default).nest  # which writes no more of an expression than a line
        start = time.monotonic()
        with pytest.raises(DescriptionError, match=r"it takes (too much memory|more than 3 s)"):
            shower.text(hostile, WIDE, default, "ir")
        assert time.monotonic() - start < 10
        assert child_pid(shower) is None
        assert shower.picture(task, WIDE, generic(task)).words  # the next one is shown all the same


def test_one_that_takes_too_long(task: Task) -> None:
    with ScheduleDescriber() as shower:
        shower.picture(task, WIDE, generic(task))  # the child is there
        shower._sandbox._time_s = 1e-4
        with pytest.raises(DescriptionError, match=r"it takes more than 0.0001 s"):
            shower.text(task, WIDE, generic(task), "assembly")


def answering(answer: Any) -> ScheduleDescriber:
    shower = ScheduleDescriber()
    shower._sandbox._child = FakeChild(answer)  # type: ignore[assignment]
    return shower


@pytest.fixture(scope="module")
def known(task: Task) -> dict[str, Any]:
    return describer_child.picture(task.to_json(), WIDE.to_json(), generic(task).to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"words": None},
        {"words": ["a"] * 41},
        {"words": ["a" * 301]},
        {"words": ["a\n"]},
        {"words": [1]},
        {"nest": {}},
        {"nest": [{"text": "a"}] * 61},
        {"nest": [{"text": 1}]},
        {"nest": ["text"]},
        {"nest": [{"text": "\x1b"}]},
        {"nest": [{"kind": "script", "var": "i", "extent": 1, "parts": []}]},
        {"nest": [{"kind": "serial", "var": "i", "extent": True, "parts": []}]},
        {"nest": [{"kind": "serial", "var": "i", "extent": 1, "parts": {}}]},
    ],
)
def test_a_picture_that_makes_no_sense(change: dict[str, Any], known: dict[str, Any], task: Task) -> None:
    assert answering(known).picture(task, WIDE, generic(task)).words
    shower = answering({**known, **change})
    with pytest.raises(DescriptionError, match="makes no sense"):
        shower.picture(task, WIDE, generic(task))
    assert shower._sandbox._child.closed  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", [None, [], {}, "text", {"text": 1}, {"text": "\x1b"}, {"text": "a" * 200_000}])
def test_a_text_that_makes_no_sense(answer: Any, task: Task) -> None:
    with pytest.raises(DescriptionError, match="makes no sense"):
        answering(answer).text(task, WIDE, generic(task), "ir")


@pytest.mark.parametrize(
    "lines",
    [
        None,
        [1],
        [["same"]],
        [["odd", "a"]],
        [["same", 1]],
        [["same", "\n"]],
        [["same", "a"]] * 1002,
        [["same", "a" * 400]] * 400,
    ],
)
def test_a_difference_that_makes_no_sense(lines: Any, task: Task) -> None:
    with pytest.raises(DescriptionError, match="makes no sense"):
        answering({"lines": lines}).difference(task, WIDE, generic(task), generic(task), "ir")


def test_errors_are_told_apart(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DescriptionError, match="LLVM says no") as found:
        answering({"error": "LLVM says\n no\x1b" + "o" * 1000}).text(task, WIDE, generic(task), "llvm")
    assert str(found.value).isprintable()
    assert len(str(found.value)) <= describer.MOST_MESSAGE
    with pytest.raises(DescriptionError, match="showing it ends in an error"):
        answering(ChildError("Traceback\n...KeyError: 'x'")).picture(task, WIDE, generic(task))
    assert "KeyError" in caplog.text
    with pytest.raises(DescriptionError, match="the process that does it dies of it"):
        answering(RequestFailed(Status.CRASH, "text: SIGSEGV")).text(task, WIDE, generic(task), "ir")
    with pytest.raises(ChildStartError):
        answering(ChildStartError("no memory")).picture(task, WIDE, generic(task))


GPU_TASK, GPU = "half_even", Target.of_gpu(KNOWN["sm_90a"])


@pytest.fixture(scope="module")
def half() -> Task:
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    return tasks_of(MODELS[GPU_TASK], {"a": 5, "b": 1, "c": 1, "d": 3})[0]


def test_a_schedule_of_a_gpu_is_shown(shower: ScheduleDescriber, half: Task) -> None:
    schedule = default_schedule(half, GPU)
    assert "tensor cores" in shower.picture(half, GPU, schedule).words[0]
    for part in GPU_PARTS:
        assert shower.text(half, GPU, schedule, part) == texts(half, GPU, schedule, part)
    with pytest.raises(ValueError, match="'assembly' is none of ir, cuda, ptx"):
        shower.text(half, GPU, schedule, "assembly")


def test_what_it_takes_to_link_a_schedule(shower: ScheduleDescriber, task: Task) -> None:
    schedule = default_schedule(task, WIDE)
    kernel = lower(Candidate(task, WIDE, schedule))
    assert shower.linkable(task, WIDE, schedule) == Linkable.of(kernel, WIDE, len(task.inputs))
    with pytest.raises(ValueError, match="is no processor"):
        shower.linkable(task, GPU, schedule)


def test_the_outline_of_a_schedule(shower: ScheduleDescriber, task: Task, half: Task) -> None:
    for one, target in ((task, WIDE), (half, GPU)):
        schedule = default_schedule(one, target)
        assert shower.outline(one, target, schedule) == LoopOutline.of(point_of(Candidate(one, target, schedule)))


def test_what_it_takes_to_launch_a_schedule(shower: ScheduleDescriber, half: Task) -> None:
    schedule = default_schedule(half, GPU)
    found = shower.launchable(half, GPU, schedule)
    assert found == Launchable.of(lower(Candidate(half, GPU, schedule)), GPU, len(half.inputs))
    with pytest.raises(ValueError, match="is no GPU"):
        shower.launchable(half, WIDE, schedule)
