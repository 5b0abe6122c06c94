"""Latency: how long calls take, measured side by side.

Runtimes keep their threads awake after a call, to answer the next one faster: ONNX Runtime for some 30 ms. Those
would take processors from whoever is called next. So a turn begins when the threads of this process have come to
rest, and with calls that are not timed: each is measured as it is when it is called again and again. Our own threads
are known to rest soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .sampling import interval

PRECISION = 0.01
"""Width of an interval, as a part of its median, at which there are enough samples."""

WARM_UP = 3
MIN_ROUNDS, MAX_ROUNDS = 9, 200
"""A 95% interval that leaves out the extremes takes nine samples."""

WAKE_S = 0.002
"""How long calls at the beginning of a turn are not timed; at least one is not."""

TURN_S = 0.02
"""A turn has as many timed calls as fit in here, within these bounds."""

MIN_CALLS, MAX_CALLS = 1, 200

PAUSE_S = 0.05
"""Between turns: longer than the runtimes known here keep threads awake."""

OWN_PAUSE_S = 1e-3
"""The same where all that runs is ours: see `codegen.runtime.pool.ThreadPool`."""

REST_S = 0.01
"""How long threads are watched to see whether they rest; the kernel counts their time in steps of milliseconds."""

AWAKE = 0.25
"""Processors in use above which they don't."""

PATIENCE_S = 0.2
"""The longest that they are waited for."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one call among others. A sample is the median of a turn; their order is that of the rounds."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.samples_s)

    @property
    def median_ms(self) -> float:
        return 1e3 * self.median_s

    @property
    def least_ms(self) -> float:
        return 1e3 * min(self.samples_s)


def rest() -> None:
    """Wait until no thread of this process works, such as those that a runtime keeps awake."""
    time.sleep(PAUSE_S)
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        before_s = time.process_time()
        time.sleep(REST_S)
        if time.process_time() - before_s < AWAKE * REST_S:
            return


def rest_own() -> None:
    """Wait until no thread of our own works, where nothing else has any."""
    time.sleep(OWN_PAUSE_S)


def side_by_side(
    calls: Mapping[str, Callable[[], Any]], budget_s: float = 4.0, settle: Callable[[], None] = rest
) -> dict[str, Latency]:
    """Time several calls in turns, round after round, so that drift of the machine meets all of them alike.

    It ends when all intervals are narrow, or `budget_s` is spent. `settle` waits until the one before is at rest.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    order = list(calls)
    deadline = time.perf_counter() + budget_s
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and (time.perf_counter() > deadline or _narrow(samples.values())):
            break
        for name in order:
            samples[name].append(_turn_s(calls[name], settle))
        order = [*order[1:], *order[:1]]
    return {name: Latency(tuple(values)) for name, values in samples.items()}


def _narrow(samples: Iterable[Sequence[float]]) -> bool:
    return all(interval(taken).width <= PRECISION for taken in samples)


def _turn_s(call: Callable[[], Any], settle: Callable[[], None]) -> float:
    """Seconds of a call: the median of several in a row."""
    settle()
    awake_at = time.perf_counter() + WAKE_S
    once_s = _timed_s(call)
    while time.perf_counter() < awake_at:
        once_s = _timed_s(call)
    count = min(max(round(TURN_S / max(once_s, 1e-9)), MIN_CALLS), MAX_CALLS)
    return median(_timed_s(call) for _ in range(count))


def _timed_s(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s
