"""ReplayPool: answers from records, and measures nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Self

from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement, Record
from tunewright.workers.pool import DeviceState, checked_targets, checked_task


class ReplayPool:
    """A `Pool` of one target that gives back what was recorded of each candidate, the fastest of several records.

    So a search can be run again and again with other strategies, cost models and seeds, always with the same outcome.
    A candidate without a record raises LookupError: what is replayed must be recorded whole.
    """

    def __init__(self, target: Target, records: Iterable[Record]) -> None:
        self._target = target
        self._known: dict[tuple[str, str], Measurement] = {}  # by task key and schedule key
        for record in records:
            if record.target_key == target.key:
                place = record.task_key, record.schedule.key
                self._known[place] = _faster(self._known.get(place), record.measurement)

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """See `Pool.measure`. In the order given; whatever the best is, the record is what it is."""
        checked_targets(candidates, self._target)
        for candidate in candidates:
            yield candidate, self._recorded(candidate)

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """See `Pool.compare`."""
        checked_targets(candidates, self._target)
        if candidates:
            checked_task(candidates)
        return [self._recorded(candidate) for candidate in candidates]

    def _recorded(self, candidate: Candidate) -> Measurement:
        found = self._known.get((candidate.task.key, candidate.schedule.key))
        if found is None:
            raise LookupError(f"no record of {candidate.schedule} for task {candidate.task.key}")
        return found

    def devices(self) -> list[DeviceState]:
        """See `Pool.devices`."""
        return [DeviceState("replay", self._target)]

    def close(self) -> None:
        """See `Pool.close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _faster(known: Measurement | None, other: Measurement) -> Measurement:
    if known is None or known.median_s is None:
        return other
    return other if other.median_s is not None and other.median_s < known.median_s else known
