"""The functions of the confined child that describes schedules of untrusted tasks; `describer` is the other side.

Lowering, compiling and comparing may take any time and memory where a task was made for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.llvm.build import BuildError
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower, point_of

from .nest import nest, to_json
from .sentences import describe
from .texts import cut, difference, readable, text_of

MOST_COMPARED_LETTERS = 1_000_000
"""Letters of a text that are compared."""


def picture(task: Any, target: Any, schedule: Any) -> dict[str, Any]:
    """A schedule in words and as a nest of loops."""
    candidate = _candidate(task, target, schedule)
    kernel = lower(candidate)
    return {
        "words": describe(candidate.task, candidate.target, candidate.schedule, kernel),
        "nest": list(map(to_json, nest(kernel))),
    }


def outline(task: Any, target: Any, schedule: Any) -> dict[str, Any]:
    """A schedule in numbers that any compiler knows."""
    return LoopOutline.of(point_of(_candidate(task, target, schedule))).to_json()


def text(task: Any, target: Any, schedule: Any, part: str) -> dict[str, Any]:
    """A schedule as one of PARTS; or the `error`."""
    try:
        return {"text": cut(_whole_text(task, target, schedule, part))}
    except (BuildError, NoCompiler) as error:
        return {"error": str(error)}


def compare(task: Any, target: Any, schedule: Any, against: Any, part: str) -> dict[str, Any]:
    """The difference from the text of one schedule to that of another."""
    try:
        before, after = (_whole_text(task, target, data, part)[:MOST_COMPARED_LETTERS] for data in (against, schedule))
    except (BuildError, NoCompiler) as error:
        return {"error": str(error)}
    return {"lines": [[line.kind.value, line.text] for line in difference(before, after)]}


def launchable(task: Any, target: Any, schedule: Any) -> dict[str, Any]:
    """A schedule of a GPU as a kernel to launch; or the `error`."""
    return _code(Launchable.of, task, target, schedule)


def linkable(task: Any, target: Any, schedule: Any) -> dict[str, Any]:
    """A schedule of a processor as functions to link; or the `error`."""
    return _code(Linkable.of, task, target, schedule)


def _code(
    make: Callable[[Kernel, Target, int], Launchable | Linkable], task: Any, target: Any, schedule: Any
) -> dict[str, Any]:
    candidate = _candidate(task, target, schedule)
    try:
        return make(lower(candidate), candidate.target, len(candidate.task.inputs)).to_json()
    except (BuildError, NoCompiler, ValueError) as error:
        return {"error": str(error)}


def _whole_text(task: Any, target: Any, schedule: Any, part: str) -> str:
    candidate = _candidate(task, target, schedule)
    return readable(text_of(lower(candidate), candidate.target, part))


def _candidate(task: Any, target: Any, schedule: Any) -> Candidate:
    return Candidate(Task.from_json(task), Target.from_json(target), Schedule.from_json(schedule))


CALLS: dict[str, Callable[..., dict[str, Any]]] = {
    "picture": picture,
    "outline": outline,
    "text": text,
    "compare": compare,
    "launchable": launchable,
    "linkable": linkable,
}
