"""Confined children that there are none of."""

from __future__ import annotations

from typing import Any


class FakeChild:
    """Answers what it was made with."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.closed = False

    def request(self, call: str, timeout_s: float, **arguments: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed = True
