"""Whole models timed in as few turns as give an interval, without pauses: for tests that only ask that there are times.

As a program it is the command line, with that.
"""

from __future__ import annotations

from collections.abc import Callable

from tunewright.workers.measure import sampling


def shorten(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Times keep their kind, and lose precision. On a machine at work all their patience would be spent each time."""
    patch(sampling, "MAX_ROUNDS", sampling.MIN_ROUNDS)
    for name in ("PAUSE_S", "PATIENCE_S", "TURN_S"):
        patch(sampling, name, 0.0)


if __name__ == "__main__":
    from tunewright.tuner.cli import main

    shorten()
    main()
