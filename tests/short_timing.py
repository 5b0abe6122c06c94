"""Whole models timed in as few turns as give an interval, without pauses: for tests that only ask that there are times.

As a program it is the command line, with that.
"""

from __future__ import annotations

from collections.abc import Callable

from tunewright.workers.measure import call_latency


def shorten(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Times keep their kind, and lose precision. On a machine at work all their patience would be spent each time."""
    patch(call_latency, "MAX_ROUNDS", call_latency.MIN_ROUNDS)
    for name in ("PAUSE_S", "LONGEST_WAIT_S", "TURN_S"):
        patch(call_latency, name, 0.0)


if __name__ == "__main__":
    from tunewright.tuner.cli import main

    shorten()
    main()
