"""Showing: what a schedule becomes, found out in a child that has little to break: tasks come from strangers.

The child is `confined` (see `workers.confine`), has so much memory and time, and all that it says is checked here: not
even one that a task has taken over can do more than show another text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.workers.process import ChildLimits

from ..confided import Confided, Refusal, Unanswered
from ..text import printable, shortened
from . import texts, words
from .nest import MOST_NODES, Part, from_json, nodes
from .texts import DiffKind, DiffLine, parts_of

MEMORY_BYTES = 1 << 30
"""What showing one schedule may take."""

TIME_S = 10.0
"""How long showing one schedule may take. Most take less than a tenth of a second, their assembly no more than one."""

ANSWER_BYTES = 4 << 20
"""How much a child may say at once."""

REQUESTS = 500
"""Schedules that one child shows before it makes place for a fresh one: what was lowered is remembered."""

MOST_MESSAGE = 400
"""Letters of a message."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.showing")


class NotShown(Exception):
    """A schedule that can't be shown. One line."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A schedule in words, and the loops that it stands for."""

    words: tuple[str, ...]
    nest: tuple[Part, ...]

    @staticmethod
    def from_json(data: Any) -> Picture:
        """Raises TypeError, KeyError or ValueError on anything that is no picture."""
        said, found = data["words"], data["nest"]
        _require(isinstance(said, list) and len(said) <= words.MOST_SENTENCES)
        _require(all(_is_line(line, words.MOST_LETTERS) for line in said) and isinstance(found, list))
        parts = tuple(map(from_json, found))
        _require(nodes(parts) <= MOST_NODES)
        return Picture(tuple(said), parts)


class Shower:
    """Shows schedules in a child, which is started when it is first needed. One thread may use it at a time.

    All methods raise NotShown, whatever goes wrong with the task; Illegal where the schedule is in no space of it; and
    NotStarted where there is no process to be had.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, time_s: float = TIME_S) -> None:
        limits = ChildLimits(memory_bytes, cpu_s=time_s, reply_bytes=ANSWER_BYTES, confined=True)
        self._confided = Confided(
            "tunewright.tuner.insight.showing_child", "showing", "shower", limits, time_s, REQUESTS
        )

    def picture(self, task: Task, target: Target, schedule: Schedule) -> Picture:
        """The schedule in words and as a nest of loops."""
        return self._show("picture", Picture.from_json, task, target, schedule)

    def text(self, task: Task, target: Target, schedule: Schedule, part: str) -> str:
        """The schedule as one of `parts_of` the target, of a bounded length: see `texts`. Raises ValueError on another
        part.
        """
        return self._show("text", _text, task, target, schedule, part=_known(target, part))

    def difference(
        self, task: Task, target: Target, schedule: Schedule, against: Schedule, part: str
    ) -> tuple[DiffLine, ...]:
        """What leads from the text of another schedule to that of this one: see `difference`."""
        part = _known(target, part)
        return self._show("compare", _lines, task, target, schedule, against=against.to_json(), part=part)

    def launchable(self, task: Task, target: Target, schedule: Schedule) -> Launchable:
        """The schedule as what it takes to launch it on a GPU. Raises ValueError for another target."""
        if target.gpu is None:
            raise ValueError(f"{target} is no GPU")
        return self._show("launchable", Launchable.from_json, task, target, schedule)

    def close(self) -> None:
        """End the child; the next request starts another."""
        self._confided.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _show(
        self,
        call: str,
        made: Callable[[Any], Result],
        task: Task,
        target: Target,
        schedule: Schedule,
        **arguments: Any,
    ) -> Result:
        asked = {"task": task.to_json(), "target": target.to_json(), "schedule": schedule.to_json()}
        try:
            return self._confided.ask(call, made, **asked, **arguments)
        except Illegal as error:
            raise Illegal(_message(error)) from None
        except Refusal as error:
            raise NotShown(_message(error)) from None
        except Unanswered as error:
            _log.warning("a schedule could not be shown: %s", printable(str(error.__cause__))[:2000])
            raise NotShown(f"the schedule can't be shown: {error}") from error.__cause__


def _message(text: object) -> str:
    return shortened(printable(" ".join(str(text).split())), MOST_MESSAGE)


def _known(target: Target, part: str) -> str:
    if part not in parts_of(target):
        raise ValueError(f"{part!r} is none of {', '.join(parts_of(target))}")
    return part


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("that is not what is answered")


def _is_line(value: object, most_letters: int) -> bool:
    return isinstance(value, str) and len(value) <= most_letters and value.isprintable()


def _text(data: Any) -> str:
    found = data["text"]
    _require(isinstance(found, str) and len(found) <= texts.MOST_LETTERS + texts.MOST_LINE_LETTERS)
    _require(all(map(str.isprintable, found.split("\n"))))
    return str(found)


def _lines(data: Any) -> tuple[DiffLine, ...]:
    found = data["lines"]
    _require(isinstance(found, list) and len(found) <= texts.MOST_DIFFERENCES + 1)
    lines = tuple(DiffLine(DiffKind(kind), text) for kind, text in found)
    _require(all(_is_line(line.text, texts.MOST_LINE_LETTERS) for line in lines))
    _require(sum(len(line.text) for line in lines) <= texts.MOST_LETTERS + texts.MOST_LINE_LETTERS)
    return lines
