"""Calls of whole models, timed in turns: see `time_in_turns` and `time_openings`.

Runtimes keep their threads awake after a call, to answer the next one faster: ONNX Runtime for some 30 ms. They would
take processors from the next one. So a turn begins when the threads of this process are idle, and with calls that are
not timed. Our own threads are idle soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from types import MappingProxyType
from typing import Any

from .sampling import MIN_SAMPLES, interval, turn_orders

NARROW_WIDTH = 0.01
"""Width of an interval, as a part of its median, that ends the timing."""

WARM_UP = 3
MIN_ROUNDS, MAX_ROUNDS = 9, 200
"""A 95% interval without the extremes needs nine samples."""

BUDGET_S = 4.0
"""Seconds that samples are taken for, unless the fewest rounds take longer."""

OPENINGS = MIN_ROUNDS
"""Times that what is timed is opened anew; each gives a sample."""

OPENING_S = 0.2
"""Seconds that samples are taken for in each, unless the fewest rounds take longer."""

OPENINGS_S = 60.0
"""Seconds after which no more are opened than the `MIN_SAMPLES`: runs of some models take a second."""

ROUNDS_OF_OPENING = 3
"""Fewest rounds in each."""

WAKE_S = 0.002
"""Length of the untimed calls at the beginning of a turn; at least one."""

TURN_S = 0.02
"""Length of the timed calls of a turn, with bounds for their number."""

MIN_CALLS, MAX_CALLS = 1, 200

PAUSE_S = 0.05
"""Between turns: longer than the runtimes known here keep threads awake."""

OWN_PAUSE_S = 1e-3
"""The same where only our threads run (`codegen.runtime.pool.ThreadPool`)."""

REST_S = 0.01
"""How long threads are watched for work; the kernel counts their time in milliseconds."""

AWAKE_SHARE = 0.25
"""Processors in use above which threads count as working."""

LONGEST_WAIT_S = 0.2
"""Longest wait for them."""


@dataclass(frozen=True, slots=True)
class CallLatency:
    """Times of one call among others. A sample is the median of a turn, or of an opening; they are in order."""

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


def wait_for_threads() -> None:
    """Wait until no thread of this process works, such as those that a runtime keeps awake."""
    time.sleep(PAUSE_S)
    deadline = time.perf_counter() + LONGEST_WAIT_S
    while time.perf_counter() < deadline:
        before_s = time.process_time()
        time.sleep(REST_S)
        if time.process_time() - before_s < AWAKE_SHARE * REST_S:
            return


def wait_for_own_threads() -> None:
    """Wait until our own threads are idle, where no other runtime is used."""
    time.sleep(OWN_PAUSE_S)


def time_in_turns(
    calls: Mapping[str, Callable[[], Any]],
    budget_s: float = BUDGET_S,
    settle: Callable[[], None] = wait_for_threads,
    min_rounds: int = MIN_ROUNDS,
    others: Mapping[str, Callable[[], float]] = MappingProxyType({}),
) -> dict[str, CallLatency]:
    """Time several calls in turns, as `sample_latencies` does; `others` time themselves, in seconds.

    `settle` waits until the threads of the last call are idle. Of `others` and the first of the calls the turns are
    neighbours: so a part is of the whole that was timed with it.
    """
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    samplers = {name: partial(_sample_s, sampler, settle) for name, sampler in others.items()}
    samplers |= {name: partial(_turn_s, call, settle) for name, call in calls.items()}
    return sample_latencies(samplers, budget_s, min_rounds)


def sample_latencies(
    samplers: Mapping[str, Callable[[], float]], budget_s: float = BUDGET_S, min_rounds: int = MIN_ROUNDS
) -> dict[str, CallLatency]:
    """Take samples of several, in seconds, round after round, so that drift of the machine is the same for all.

    It ends when all intervals are narrow, or `budget_s` is spent.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    deadline = time.perf_counter() + budget_s
    for number, order in enumerate(islice(turn_orders(samplers), MAX_ROUNDS)):
        is_late = time.perf_counter() > deadline
        if number >= min_rounds and (is_late or all(interval(s).width <= NARROW_WIDTH for s in samples.values())):
            break
        for name in order:
            samples[name].append(samplers[name]())
    return {name: CallLatency(tuple(values)) for name, values in samples.items()}


def time_openings(
    open_calls: Callable[[ExitStack, Sequence[str]], Mapping[str, Callable[[], Any]]],
    names: Sequence[str],
    settle: Callable[[], None] = wait_for_threads,
) -> dict[str, CallLatency]:
    """Time several calls in turns, and open all anew between; a sample is the median of an opening.

    Samples of one opening agree better than two openings do: memory lies elsewhere, and neighbours of a virtual machine
    come and go within seconds, and slow one call more than another. So an interval of the former would be too narrow.
    `open_calls` opens calls in the order of the names, which is reversed each time, and leaves what ends them.
    """
    samples_s: dict[str, list[float]] = {name: [] for name in names}
    deadline_s = time.perf_counter() + OPENINGS_S
    for number in range(OPENINGS):
        if number >= MIN_SAMPLES and time.perf_counter() > deadline_s:
            break
        with ExitStack() as stack:
            calls = open_calls(stack, names if number % 2 == 0 else names[::-1])
            for name, latency in time_in_turns(calls, OPENING_S, settle, ROUNDS_OF_OPENING).items():
                samples_s[name].append(latency.median_s)
    return {name: CallLatency(tuple(values)) for name, values in samples_s.items()}


def _turn_s(call: Callable[[], Any], settle: Callable[[], None]) -> float:
    """Seconds of a call: the median of several in a row."""
    settle()
    awake_at = time.perf_counter() + WAKE_S
    once_s = _call_s(call)
    while time.perf_counter() < awake_at:
        once_s = _call_s(call)
    count = min(max(round(TURN_S / max(once_s, 1e-9)), MIN_CALLS), MAX_CALLS)
    return median(_call_s(call) for _ in range(count))


def _sample_s(sampler: Callable[[], float], settle: Callable[[], None]) -> float:
    settle()
    return sampler()


def _call_s(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s
