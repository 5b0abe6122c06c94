"""Shares of a budget, for jobs that search one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from ..arguments import LEAST_MINUTES, check_minutes, check_trials
from ..errors import Refused
from ..text import counted


@dataclass(frozen=True, slots=True)
class BudgetShare:
    """What one of the jobs may spend; None is no bound."""

    trials: int | None
    minutes: float | None


def budget_shares(trials: int | None, minutes: float | None, count: int, noun: str) -> list[BudgetShare]:
    """Even shares for so many jobs, one for each of the things that `noun` names.

    Raises Refused for a budget that means nothing, and for fewer trials than jobs.
    """
    trials, minutes = check_trials(trials), check_minutes(minutes)
    if trials is not None and trials < count:
        few = counted(trials, "trial is", "trials are")
        raise Refused(f"{few} fewer than the {count} {noun} to tune for; give one for each at least")
    share_minutes = None if minutes is None else max(LEAST_MINUTES, minutes / count)
    return [
        BudgetShare(None if trials is None else trials // count + (number < trials % count), share_minutes)
        for number in range(count)
    ]
