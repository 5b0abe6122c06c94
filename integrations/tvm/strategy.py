"""Strategy: one of MetaSchedule that measures nothing again that the log knows.

MetaSchedule's own strategies take what the database has for parents of new candidates, and measure it again: they know
only what they measured themselves, in this process. This one drops such candidates before they are built, and has the
cost model learn from their times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate, PySearchStrategy, SearchStrategy
from tvm_ffi import structural_hash

from . import form
from .database import Database
from .records import UNUSABLE, Records, time_of

ROUNDS = 5
"""How often a strategy may come up with nothing new before its search is over."""


def search(database: Database, strategy: SearchStrategy | str = "evolutionary") -> SearchStrategy:
    """A strategy that does as another one but measures nothing that `database` has: `tune_tir(..., strategy=...)`."""
    inner = strategy if isinstance(strategy, SearchStrategy) else SearchStrategy.create(strategy)
    return Unmeasured(database.records, inner)


@derived_object
class Unmeasured(PySearchStrategy):  # type: ignore[misc]
    """What another strategy proposes, less what was measured by anybody."""

    def __init__(self, records: Records, inner: SearchStrategy) -> None:
        super().__init__()
        self._records, self._inner = records, inner
        self._context: Any = None
        self._cost_model: Any = None
        self._seen: set[bytes] = set()  # digests of candidates whose modules are among `_measured`
        self._measured: set[int] = set()  # structural hashes of scheduled modules

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._context = context
        self._inner._initialize_with_tune_context(context)  # noqa: SLF001 - so MetaSchedule does

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Any,
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """A task begins."""
        self._cost_model = cost_model
        self._inner.pre_tuning(max_trials, num_trials_per_iter, design_spaces, database, cost_model)
        self._learn()

    def post_tuning(self) -> None:
        """A task ends."""
        self._inner.post_tuning()
        self._context = self._cost_model = None  # which hold this strategy

    def generate_measure_candidates(self) -> list[MeasureCandidate] | None:
        """Candidates that nobody measured; None at the end."""
        for _ in range(ROUNDS):
            proposed = self._inner.generate_measure_candidates()
            if proposed is None:
                return None
            self._learn()
            if fresh := [candidate for candidate in proposed if _hash(candidate) not in self._measured]:
                return fresh
        return None

    def notify_runner_results(self, measure_candidates: Any, results: Any) -> None:
        """What candidates took."""
        self._inner.notify_runner_results(measure_candidates, results)

    def clone(self) -> SearchStrategy:
        """The same for another task."""
        return Unmeasured(self._records, self._inner.clone())

    def _learn(self) -> None:
        """Take up what was written since the last time, by whomever."""
        mod = self._context.mod
        place = self._records.place(mod, self._context.target)
        self._records.read(place, self._records.add_workload(mod))
        known = self._records.candidates(place)
        news = [known[candidate] for candidate in known.keys() - self._seen]
        self._seen |= known.keys()
        replayed = list(_replayed(news))
        lessons = [(one, record) for one, record in replayed if _hash(one) not in self._measured]
        self._measured |= {_hash(one) for one, _ in replayed}
        lessons = [(one, record) for one, record in lessons if time_of(record) < form.UNTIMED_S]
        if lessons and self._cost_model is not None:
            results = [RunnerResult([time_of(record)], None) for _, record in lessons]
            self._cost_model.update(self._context, [one for one, _ in lessons], results)


def _replayed(records: Iterable[TuningRecord]) -> Iterable[tuple[MeasureCandidate, TuningRecord]]:
    """The records whose candidates can be built again."""
    for record in records:
        try:
            yield record.as_measure_candidate(), record
        except UNUSABLE:
            continue


def _hash(candidate: MeasureCandidate) -> int:
    return int(structural_hash(candidate.sch.mod))
