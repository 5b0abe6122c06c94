"""ScheduleDescriber: sentences, loops and texts of a schedule, from a confined child, as tasks are untrusted.

All answers of the child are checked here: even one that a task has taken over can do no more than show another text.
See `sandbox`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.workers.sandbox.process import ChildLimits

from ..sandbox import NoAnswer, Sandbox, SandboxRefusal
from ..text import printable, shorten
from . import sentences, texts
from .nest import MOST_NODES, Part, from_json, nodes
from .texts import DiffKind, DiffLine, parts_of

MEMORY_BYTES = 1 << 30
"""Memory of the child."""

TIME_S = 10.0
"""Time limit of one schedule. Most take less than a tenth of a second, their assembly no more than one."""

ANSWER_BYTES = 4 << 20
"""Largest answer of the child."""

REQUESTS = 500
"""Requests after which the child is replaced: it caches what was lowered."""

MOST_MESSAGE = 400
"""Letters of a message."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.showing")


class DescriptionError(Exception):
    """A schedule that can't be described. One line."""


@dataclass(frozen=True, slots=True)
class ScheduleDescription:
    """A schedule in sentences and as a nest of loops."""

    words: tuple[str, ...]
    nest: tuple[Part, ...]

    @staticmethod
    def from_json(data: Any) -> ScheduleDescription:
        """Raises TypeError, KeyError or ValueError on other data."""
        lines, nest = data["words"], data["nest"]
        _require(isinstance(lines, list) and len(lines) <= sentences.MOST_SENTENCES)
        _require(all(_is_line(line, sentences.MOST_LETTERS) for line in lines) and isinstance(nest, list))
        parts = tuple(map(from_json, nest))
        _require(nodes(parts) <= MOST_NODES)
        return ScheduleDescription(tuple(lines), parts)


class ScheduleDescriber(Closeable):
    """Describes schedules in a child, which is started on first use. One thread may use it at a time.

    All methods raise DescriptionError, whatever goes wrong with the task; Illegal where the schedule is in no space of
    it; and ChildStartError where no process can be started.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, time_s: float = TIME_S) -> None:
        limits = ChildLimits(memory_bytes, cpu_s=time_s, reply_bytes=ANSWER_BYTES, confined=True)
        self._sandbox = Sandbox(
            "tunewright.tuner.explain.describer_child", "showing", "shower", limits, time_s, REQUESTS
        )

    def picture(self, task: Task, target: Target, schedule: Schedule) -> ScheduleDescription:
        """The schedule in words and as a nest of loops."""
        return self._ask("picture", ScheduleDescription.from_json, task, target, schedule)

    def outline(self, task: Task, target: Target, schedule: Schedule) -> LoopOutline:
        """The schedule in numbers that any compiler knows."""
        return self._ask("outline", LoopOutline.from_json, task, target, schedule)

    def text(self, task: Task, target: Target, schedule: Schedule, part: str) -> str:
        """The schedule as one of `parts_of` the target, of a bounded length: see `texts`. Raises ValueError on another
        part.
        """
        return self._ask("text", _text, task, target, schedule, part=_check_part(target, part))

    def difference(
        self, task: Task, target: Target, schedule: Schedule, against: Schedule, part: str
    ) -> tuple[DiffLine, ...]:
        """The difference from the text of schedule `against` to that of this one: see `texts.difference`."""
        part = _check_part(target, part)
        return self._ask("compare", _lines, task, target, schedule, against=against.to_json(), part=part)

    def launchable(self, task: Task, target: Target, schedule: Schedule) -> Launchable:
        """The schedule as a kernel to launch on a GPU. Raises ValueError for another target."""
        if target.gpu is None:
            raise ValueError(f"{target} is no GPU")
        return self._ask("launchable", Launchable.from_json, task, target, schedule)

    def linkable(self, task: Task, target: Target, schedule: Schedule) -> Linkable:
        """The schedule as functions to link on a processor. Raises ValueError for another target."""
        if target.gpu is not None:
            raise ValueError(f"{target} is no processor")
        return self._ask("linkable", Linkable.from_json, task, target, schedule)

    def close(self) -> None:
        """End the child; the next request starts another."""
        self._sandbox.close()

    def _ask(
        self,
        call: str,
        decode: Callable[[Any], Result],
        task: Task,
        target: Target,
        schedule: Schedule,
        **arguments: Any,
    ) -> Result:
        candidate = {"task": task.to_json(), "target": target.to_json(), "schedule": schedule.to_json()}
        try:
            return self._sandbox.ask(call, decode, **candidate, **arguments)
        except Illegal as error:
            raise Illegal(_message(error)) from None
        except SandboxRefusal as error:
            raise DescriptionError(_message(error)) from None
        except NoAnswer as error:
            _log.warning("a schedule could not be shown: %s", printable(str(error.__cause__))[:2000])
            raise DescriptionError(f"the schedule can't be shown: {error}") from error.__cause__


def _message(text: object) -> str:
    return shorten(printable(" ".join(str(text).split())), MOST_MESSAGE)


def _check_part(target: Target, part: str) -> str:
    if part not in parts_of(target):
        raise ValueError(f"{part!r} is none of {', '.join(parts_of(target))}")
    return part


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("that is not what is answered")


def _is_line(value: object, most_letters: int) -> bool:
    return isinstance(value, str) and len(value) <= most_letters and value.isprintable()


def _text(data: Any) -> str:
    text = data["text"]
    _require(isinstance(text, str) and len(text) <= texts.MOST_LETTERS + texts.MOST_LINE_LETTERS)
    _require(all(map(str.isprintable, text.split("\n"))))
    return str(text)


def _lines(data: Any) -> tuple[DiffLine, ...]:
    entries = data["lines"]
    _require(isinstance(entries, list) and len(entries) <= texts.MOST_DIFFERENCES + 1)
    lines = tuple(DiffLine(DiffKind(kind), text) for kind, text in entries)
    _require(all(_is_line(line.text, texts.MOST_LINE_LETTERS) for line in lines))
    _require(sum(len(line.text) for line in lines) <= texts.MOST_LETTERS + texts.MOST_LINE_LETTERS)
    return lines
