"""EndEstimate: when a search is expected to end, without the jumps of the forecasts that tell it."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite

from tunewright.db.job import SearchBudget

SETTLE_S = 120.0
"""Seconds of searching in which an estimate goes most of the way (1 - 1 / e) to what the forecasts say since."""


@dataclass(slots=True)
class EndEstimate:
    """The expected end of a search: the mean of what its forecasts said, of which the older ones count less and less.

    A forecast is made for each round of trials, and those of neighbouring rounds may lie far apart: trials of one task
    take longer than those of another, and which tasks come next changes. The nearer the end the sooner it is followed.
    """

    end_s: float = inf  # of searching in all; infinite: not known
    at_s: float = 0.0  # when that was known
    budget: SearchBudget | None = None  # for which it holds

    def left_s(self, lasts_s: float, spent_s: float, budget: SearchBudget) -> float:
        """Seconds left where the forecast of this moment says `lasts_s`, after `spent_s`; infinite where it says none.

        With another budget it begins anew.
        """
        end_s, passed_s = spent_s + lasts_s, max(spent_s - self.at_s, 0.0)
        if isfinite(end_s) and isfinite(self.end_s) and budget == self.budget and lasts_s > 0:
            end_s = self.end_s + (1.0 - exp(-passed_s / min(SETTLE_S, lasts_s))) * (end_s - self.end_s)
        self.end_s, self.at_s, self.budget = end_s, spent_s, budget
        return max(end_s - spent_s, 0.0)
