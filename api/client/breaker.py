"""Breaker: a server that failed is not waited for again and again."""

from __future__ import annotations

import threading
import time

OPEN_S, LONGEST_OPEN_S = 60.0, 3600.0
"""How long a server that failed is left alone; twice as long after each further failure, up to the second."""

PROBE_S = 0.25
"""What a server may take that failed when it was asked last."""

QUICK_S = 0.05
"""Answers in that time cost nobody anything."""

_breakers: dict[str, Breaker] = {}


class Breaker:
    """Remembers for the whole process that a server failed, so that it is not waited for again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._open_until_s = 0.0  # by time.monotonic
        self._slow_s, self._slow_from_s = 0.0, 0.0  # what slow answers took since that time

    @property
    def rest_s(self) -> float:
        """Seconds until the server may be asked again."""
        return max(self._open_until_s - time.monotonic(), 0.0)

    def limit_s(self, timeout_s: float) -> float:
        """How long the server may take now."""
        return min(timeout_s, PROBE_S) if self._failures else timeout_s

    def left_s(self, budget_s: float) -> float:
        """What is left of a budget for slow answers, which is for OPEN_S."""
        return max(budget_s - self._slow_s, 0.0) if time.monotonic() - self._slow_from_s < OPEN_S else budget_s

    def record_slowness(self, took_s: float) -> None:
        """An answer took that long."""
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._slow_from_s >= OPEN_S:
                self._slow_s, self._slow_from_s = 0.0, now_s
            self._slow_s += took_s if took_s > QUICK_S else 0.0

    def record_failure(self) -> None:
        """The server failed: leave it alone for a while."""
        with self._lock:
            pause_s = min(OPEN_S * 2.0**self._failures, LONGEST_OPEN_S)
            self._failures += 1
            self._open_until_s = time.monotonic() + pause_s

    def record_answer(self) -> None:
        """The server answered: ask it again without waiting."""
        with self._lock:
            self._failures, self._open_until_s = 0, 0.0


def breaker_of(server: str) -> Breaker:
    """This process's breaker of a server, by its address."""
    return _breakers.setdefault(server, Breaker())
