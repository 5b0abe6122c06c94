"""Work as the number of calls that it takes, which is the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile


def calls(work: Callable[[], object]) -> int:
    """How many calls, into C too, the work takes. What it works out only once must have been worked out before."""
    profile = Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())
