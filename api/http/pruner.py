"""Pruner: a thread of the service that has the database forget what its policy does not keep, once an hour.

Of several processes on PostgreSQL one does. What is left of a namespace that was deleted is removed at once, by the
process that deleted it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from prometheus_client import Counter

from tunewright.db.errors import StoreError
from tunewright.db.pruning.policy import RetentionPolicy
from tunewright.db.store import Store
from tunewright.db.turn import Turn

FIRST_S = 120.0
"""How long after its start a process prunes first."""

EVERY_S = 3600.0
"""How long after each time the next one is."""

PRUNING_TURN = 1
"""The number of its `Turn`."""

_log = logging.getLogger("tunewright.api")


class Pruner:
    """Prunes the database of a service, where there is a policy."""

    def __init__(self, store: Store, policy: RetentionPolicy | None, pruned: Counter) -> None:
        self._store, self._policy, self._pruned = store, policy, pruned
        self._turn = Turn(store.database, PRUNING_TURN)
        self._stopped, self._woken = threading.Event(), threading.Event()
        self._is_log_deleted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunewright-pruner", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def sweep_log(self) -> None:
        """Have removed soon what is left of a namespace that was deleted."""
        self._is_log_deleted.set()
        self._woken.set()

    def stop(self) -> None:
        """Begin to end: the transaction in hand is the last one. From any thread, or a signal handler."""
        self._stopped.set()
        self._woken.set()

    def close(self) -> None:
        """End, and wait for it."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._turn.close()

    def prune(self) -> None:
        """Prune now, if this process is the one that does. Raises StoreError."""
        if self._policy is None or not self._turn.is_ours():
            return
        begun_s = time.monotonic()
        pruned = self._store.pruning.prune(self._policy, goes_on=self._goes_on)
        counts = asdict(pruned)
        for name, count in counts.items():
            if name != "model_bytes":
                self._pruned.labels(name).inc(count)
        _log.info("pruned", extra={**counts, "s": round(time.monotonic() - begun_s, 3)})

    def _goes_on(self) -> bool:
        return not self._stopped.is_set()

    def _run(self) -> None:
        due_s = time.monotonic() + FIRST_S
        while self._goes_on():
            self._woken.wait(max(0.0, due_s - time.monotonic()))
            self._woken.clear()
            if self._is_log_deleted.is_set():
                self._is_log_deleted.clear()
                self._try(partial(self._store.logs.sweep, self._goes_on))
            if self._goes_on() and time.monotonic() >= due_s:
                due_s = time.monotonic() + EVERY_S
                self._try(self.prune)

    def _try(self, work: Callable[[], object]) -> None:
        """Do it as far as it goes: the next time will do for the rest."""
        try:
            work()
        except StoreError as error:
            _log.warning("not pruned", extra={"reason": str(error)})
        except Exception:  # noqa: BLE001 - a bug: the next time may go better
            _log.exception("not pruned")
