"""Confided: a child that has little to break is asked about what a stranger sent, and nothing that it says is trusted.

The child is `confined` (see `workers.confine`), and has so much memory and time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tunewright.search_space.measurement import Status
from tunewright.workers.process import Child, ChildError, ChildLimits, Failed, NotStarted

Result = TypeVar("Result")


class Refusal(Exception):
    """What the child says is wrong with what was sent, as it says it: any text."""


class Unanswered(Exception):
    """Why there is no answer. Whatever state the child was in, it has been ended."""


class Confided:
    """One such child, started when it is first needed. It answers so many `requests` and makes place for a fresh one.

    `calls` names the module with what it does; `doing` and `doer` say that in a word: "reading", "reader".
    """

    def __init__(self, calls: str, doing: str, doer: str, limits: ChildLimits, time_s: float, requests: int) -> None:
        self._child = Child(limits, calls=calls)
        self._doing, self._doer, self._time_s, self._most = doing, doer, time_s, requests
        self._requests = 0  # of the child at work

    def ask(self, call: str, made: Callable[[Any], Result], **arguments: Any) -> Result:
        """What is `made` of its answer, of which that must be checked there: it may raise as wrong data does.

        Raises Refusal, Unanswered, Illegal as the child does, and NotStarted where there is no process to be had.
        """
        if self._requests >= self._most:
            self.close()
        self._requests += 1
        try:
            answer = self._child.request(call, self._time_s, **arguments)
        except NotStarted:  # nothing that what was sent could be blamed for
            raise
        except Failed as error:
            raise self._ended(self._why(error)) from error
        except (ChildError, RecursionError) as error:
            raise self._ended(f"{self._doing} it ends in an error of the {self._doer}") from error
        match answer:
            case {"error": str(text)}:
                raise Refusal(text)
        try:
            return made(answer)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._ended("what is said of it makes no sense") from error

    def close(self) -> None:
        """End the child; the next request starts another."""
        self._child.close()
        self._requests = 0

    def _ended(self, why: str) -> Unanswered:
        self.close()
        return Unanswered(why)

    def _why(self, error: Failed) -> str:
        match error.status:
            case Status.TIMEOUT:
                return f"it takes more than {self._time_s:g} s"
            case Status.OUT_OF_MEMORY:
                return "it takes too much memory"
            case _:
                return "the process that does it dies of it"
