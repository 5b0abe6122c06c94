"""ReplayPool: a pool that answers from records."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Measurement, Record
from tunewright.workers.pool import DeviceState, check_targets, common_task


class ReplayPool(Closeable):
    """A `Pool` of one target that returns the recorded measurement of each candidate, the fastest of several.

    So a search can be repeated with other strategies, cost models and seeds, and is reproducible. A candidate without
    a record raises LookupError.
    """

    def __init__(self, target: Target, records: Iterable[Record]) -> None:
        self._target = target
        self._known: dict[tuple[str, str], Measurement] = {}  # by task key and schedule key
        for record in records:
            if record.target_key == target.key:
                place = record.task_key, record.schedule.key
                self._known[place] = _faster_measurement(self._known.get(place), record.measurement)

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        """See `Pool.measure`. In the order given; `best_s` has no effect."""
        check_targets(candidates, self._target)
        for candidate in candidates:
            yield candidate, self._measurement(candidate)

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        """See `Pool.compare`."""
        check_targets(candidates, self._target)
        if candidates:
            common_task(candidates)
        return [self._measurement(candidate) for candidate in candidates]

    def _measurement(self, candidate: Candidate) -> Measurement:
        measurement = self._known.get((candidate.task.key, candidate.schedule.key))
        if measurement is None:
            raise LookupError(f"no record of {candidate.schedule} for task {candidate.task.key}")
        return measurement

    def devices(self) -> list[DeviceState]:
        """See `Pool.devices`."""
        return [DeviceState("replay", self._target)]

    def machine_sampler(self) -> None:
        """See `Pool.machine_sampler`: nothing is timed."""

    def close(self) -> None:
        """See `Pool.close`."""


def _faster_measurement(known: Measurement | None, other: Measurement) -> Measurement:
    if known is None or known.median_s is None:
        return other
    return other if other.median_s is not None and other.median_s < known.median_s else known
