"""Claims: a task is measured for one job at a time, so that no candidate is measured twice."""

from __future__ import annotations

import time

from tunewright.db.sql_store import SqlStore
from tunewright.search_space.measurement import Measurement

from .task_state import TaskState
from .tenure import Tenure

WAIT_S = 1.0
"""The longest wait for another job: one whose process died lets go without a word."""

PAUSE_S = 0.1
"""Between two attempts: every trial of others is a change, which ends a wait for changes at once."""


class Claims:
    """The task that a job is at, of those that other jobs may have in common with it."""

    def __init__(self, store: SqlStore, target_key: str, tenure: Tenure) -> None:
        self._store, self._target_key, self._tenure = store, target_key, tenure
        self.waited_s = 0.0  # for other jobs, in all

    def take(self, state: TaskState) -> list[Measurement] | None:
        """Have the task for this job alone; what others have measured of it meanwhile, which `state` knows then.

        None where another job has it. Raises LeaseLost.
        """
        key = state.task.key
        if not self._store.jobs.claim(self._tenure.lease, key):
            return None
        if self._store.measured(key, self._target_key) <= state.measured.keys():
            return []
        fresh = []
        for record in self._store.records(key, self._target_key):
            if record.schedule.key not in state.measured:
                state.tell(record.schedule, record.measurement)
                fresh.append(record.measurement)
        return fresh

    def release(self) -> None:
        """Let others have the task."""
        self._store.jobs.release_claims(self._tenure.lease)

    def wait(self) -> None:
        """Wait for others to let go. Raises what `Tenure.check` raises."""
        started = time.monotonic()
        self._tenure.check()
        time.sleep(PAUSE_S)  # changes meanwhile are not missed: the wait knows of them
        self._store.jobs.wait(WAIT_S)
        self._tenure.check()
        self.waited_s += time.monotonic() - started
