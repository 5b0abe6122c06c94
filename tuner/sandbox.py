"""Sandbox: a confined child process handles untrusted input, and its answers are checked.

The child is `confined` (see `workers.sandbox.confine`), with limited memory and time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tunewright.search_space.measurement import Status
from tunewright.workers.sandbox.process import Child, ChildError, ChildLimits, ChildStartError, RequestFailed

Result = TypeVar("Result")


class SandboxRefusal(Exception):
    """The child's message about a fault of the input: any text."""


class NoAnswer(Exception):
    """The reason for a missing answer. The child has been ended, whatever its state."""


class Sandbox:
    """A confined child, started on first use and replaced after `requests` requests.

    `calls` names the module of its functions; `doing` and `doer` name its work in messages: "reading", "reader".
    """

    def __init__(self, calls: str, doing: str, doer: str, limits: ChildLimits, time_s: float, requests: int) -> None:
        self._child = Child(limits, calls=calls)
        self._doing, self._doer, self._time_s, self._most_requests = doing, doer, time_s, requests
        self._requests = 0  # of the child at work

    def ask(self, call: str, decode: Callable[[Any], Result], **arguments: Any) -> Result:
        """The answer of the child, through `decode`, which must check it: it may raise what wrong data raises.

        Raises Refusal, NoAnswer, Illegal as the child does, and ChildStartError where there is no process to be had.
        """
        if self._requests >= self._most_requests:
            self.close()
        self._requests += 1
        try:
            answer = self._child.request(call, self._time_s, **arguments)
        except ChildStartError:  # nothing that what was sent could be blamed for
            raise
        except RequestFailed as error:
            raise self._end(self._reason(error)) from error
        except (ChildError, RecursionError) as error:
            raise self._end(f"{self._doing} it ends in an error of the {self._doer}") from error
        match answer:
            case {"error": str(text)}:
                raise SandboxRefusal(text)
        try:
            return decode(answer)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._end("what is said of it makes no sense") from error

    def close(self) -> None:
        """End the child; the next request starts another."""
        self._child.close()
        self._requests = 0

    def _end(self, why: str) -> NoAnswer:
        self.close()
        return NoAnswer(why)

    def _reason(self, error: RequestFailed) -> str:
        match error.status:
            case Status.TIMEOUT:
                return f"it takes more than {self._time_s:g} s"
            case Status.OUT_OF_MEMORY:
                return "it takes too much memory"
            case _:
                return "the process that does it dies of it"
