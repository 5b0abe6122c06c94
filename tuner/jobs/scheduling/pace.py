"""Pace: how long trials take, and how many of them a round is worth."""

from __future__ import annotations

from math import ceil

OVERHEAD = 0.15
"""The largest part of the time that may go into what is done once a round: learning, proposing, claiming."""

SMALLEST, LARGEST = 8, 32
"""Trials of a round. Fewer leave builders idle at its end, more make the next choice on old knowledge."""

TOLD = 16
"""A round of a task has at least one in so many of its trials: fewer tell so little more that nothing else would be
proposed after them. The cost model learns again only after one in ten."""

GUESS_S = 0.05
"""Seconds of a trial, while none was timed."""

KEPT = 0.9
"""How much an earlier trial of a task counts, for each one after it: the first takes longer, as its check is made."""

KEPT_OF_ALL = 0.99
"""The same of the trials of all tasks together."""

OTHERS_WEIGHT = 4.0
"""Trials that what those of other tasks take counts as much as."""


class Pace:
    """Seconds that trials of each task take, and what a round takes beside its trials."""

    def __init__(self, tasks: int) -> None:
        self._spent = [(0.0, 0.0)] * tasks  # seconds and trials, the old ones counting less
        self._all = (0.0, 0.0)
        self._round_s = 0.0

    def note(self, task: int, trials: int, seconds: float) -> None:
        """So many trials of a task took so long."""
        if trials:
            self._spent[task] = _added(self._spent[task], trials, seconds, KEPT)
            self._all = _added(self._all, trials, seconds, KEPT_OF_ALL)

    def note_round(self, seconds: float) -> None:
        """A round took so long beside its trials."""
        self._round_s = seconds if not self._round_s else KEPT * self._round_s + (1 - KEPT) * seconds

    @property
    def mean_s(self) -> float:
        """Seconds of a trial of any task."""
        seconds, trials = self._all
        return (seconds + GUESS_S) / (trials + 1.0)

    def trial_s(self, task: int) -> float:
        """Seconds that one trial of the task takes."""
        seconds, trials = self._spent[task]
        return (seconds + OTHERS_WEIGHT * self.mean_s) / (trials + OTHERS_WEIGHT)

    def cost_s(self, task: int) -> float:
        """Seconds that one more trial of the task takes in all, with its part of what a round takes."""
        return self.trial_s(task) + self._round_s / self.batch

    @property
    def batch(self) -> int:
        """Trials of a round so that little of the time goes into what is done once in it."""
        wanted = self._round_s * (1 / OVERHEAD - 1) / max(self.mean_s, 1e-6)
        return min(max(ceil(wanted), SMALLEST), LARGEST)

    def batch_after(self, trials: int) -> int:
        """The same of a task that had so many trials."""
        return max(self.batch, min(trials // TOLD, LARGEST))


def _added(before: tuple[float, float], trials: int, seconds: float, kept: float) -> tuple[float, float]:
    return kept**trials * before[0] + seconds, kept**trials * before[1] + trials
