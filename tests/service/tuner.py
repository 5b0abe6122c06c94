"""A tuner process as `tunewright work` is, but that it notes what it measures, takes little time, and times no models.

python tuner.py URL NOTES    # of a database, or of a server
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Self

from tunewright.api.client.work.remote_store import open_remote_store
from tunewright.codegen.target import Target
from tunewright.db.store import Store, open_store
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.tuner.cli.work import PATIENCE_S, log_to_stderr
from tunewright.tuner.search.whole_model import ModelTimes
from tunewright.tuner.search.worker import Drain, TunerProcess
from tunewright.tuner.settings import settings
from tunewright.workers.local import LocalMachine
from tunewright.workers.machine_sample import MachineSample
from tunewright.workers.pool import DeviceState, Limits, Pool

LIMITS = Limits(build_s=10.0, run_s=5.0, reference_s=20.0, timing_s=0.002)


class Notes:
    """Lines in a file that processes share: pid, moment, what happened, task and schedule."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, word: str, candidate: Candidate) -> None:
        names = candidate.task.key[:16], candidate.schedule.key[:16]
        os.write(self._file, f"{os.getpid()} {time.monotonic():.6f} {word} {'/'.join(names)}\n".encode())


class NotedPool:
    """A pool that notes each candidate as it was measured, and once it was dealt with."""

    def __init__(self, pool: Pool, notes: Notes) -> None:
        self._pool, self._notes = pool, notes

    def measure(
        self, candidates: Sequence[Candidate], best_s: float | None = None
    ) -> Generator[tuple[Candidate, Measurement]]:
        with closing(self._pool.measure(candidates, best_s)) as results:
            for candidate, measurement in results:
                self._notes.add("measured", candidate)
                yield candidate, measurement
                self._notes.add("kept", candidate)

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        return self._pool.compare(candidates)

    def devices(self) -> list[DeviceState]:
        return self._pool.devices()

    def machine_sampler(self) -> Callable[[], MachineSample] | None:
        return self._pool.machine_sampler()

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NotedMachine(LocalMachine):
    """This machine, for pools that note."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(settings().objects, LIMITS, ["roles"])
        self._notes = notes

    def pool(self, target: Target) -> Pool:  # type: ignore[override]
        return NotedPool(super().pool(target), self._notes)


def open_any(url: str) -> Store:
    return open_remote_store(url, PATIENCE_S) if url.startswith("http") else open_store(url, patience_s=PATIENCE_S)


def main(url: str, notes: str) -> None:
    drain = Drain()
    with (
        drain.on_signals(),
        log_to_stderr(),
        open_any(url) as store,
        NotedMachine(Notes(notes)) as machine,
    ):
        TunerProcess(
            store,
            machine,
            pool="local",
            lease_s=settings().lease_s,
            objects=settings().objects,
            drain=drain,
            timing=lambda job, target: lambda wanted: ModelTimes(reason="not in this test"),
        ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
