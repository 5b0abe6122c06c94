"""Which of several values of a key is served: the same to everybody who asks, and again after any rebuild.

The least cost wins, of those that were confirmed if any was. Costs are as good as each other where intervals overlap,
and no other one is certainly lower: of such values an approved one is served, else that with the lowest choice, so it
does not matter who wrote first or how the clocks of machines differ. Where no cost is known, an approved value is
served, else the newest, as a cache would.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .entry import Cost, CostEvidence, EntryState


@dataclass(frozen=True, slots=True)
class LogRival:
    """What a choice depends on."""

    choice: bytes
    state: EntryState
    cost: Cost
    revision: int

    @property
    def is_approved(self) -> bool:
        """Whether people approved it."""
        return self.state is EntryState.APPROVED


def choose(rivals: Iterable[LogRival]) -> LogRival | None:
    """The one that is served, of all values of a key in an environment; None where all are retired."""
    live = [rival for rival in rivals if rival.state is not EntryState.RETIRED]
    if equals := ties(live):
        return min(equals, key=lambda s: (not s.is_approved, s.choice))
    return max(live, key=lambda s: (s.is_approved, s.revision, s.choice), default=None)


def ties(rivals: Iterable[LogRival]) -> list[LogRival]:
    """Those whose cost may be the least, of which one is served; none where no cost is known."""
    live = [rival for rival in rivals if rival.state is not EntryState.RETIRED]
    timed = [rival for rival in live if rival.cost.time_s is not None]
    if not timed:
        return []
    confirmed = [rival for rival in timed if rival.cost.evidence is CostEvidence.CONFIRMED]
    comparable = confirmed or timed
    limit_s = min(rival.cost.interval_s[1] for rival in comparable)
    eligible = [*comparable, *(rival for rival in live if rival.is_approved)]
    return [rival for rival in dict.fromkeys(eligible) if _may_be_below(rival.cost, limit_s)]


def _may_be_below(cost: Cost, limit_s: float) -> bool:
    """Whether a cost may be as low as this. Of an unknown one nothing else can be said."""
    return cost.time_s is None or cost.interval_s[0] <= limit_s
