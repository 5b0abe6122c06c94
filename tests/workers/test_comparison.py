"""Which of several is the fastest, by samples of one process after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from statistics import median
from typing import Any, cast

import numpy as np
import pytest

from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers.device.builder import Build
from tunewright.workers.device.comparison import MAX_PROCESSES, MIN_PROCESSES, ROUNDS, Comparison
from tunewright.workers.measure.cache_flush import LASTING_S
from tunewright.workers.pool import Limits
from tunewright.workers.sandbox.process import Child, RequestFailed

BUILD_S = 0.5

TimeOf = Callable[[int, int], float]
"""Seconds of a candidate in a process, by their numbers."""


class ToldChild:
    """A process whose candidates take what they are told to, 1% more in every other round."""

    def __init__(self, place: int, time_of: Mapping[str, TimeOf], faults: Mapping[int, str | RequestFailed]) -> None:
        self.provenance: dict[str, str] = {}
        self.pid: int | None = None
        self.calls: list[tuple[str, int]] = []
        self._place, self._time_of, self._faults = place, time_of, faults
        self._loaded: list[int] = []

    def request(self, call: str, timeout_s: float, **arguments: Any) -> Any:
        n = arguments["artifact"]["n"] if call == "load" else self._loaded[arguments["number"]]
        count = self.calls.count((call, n))
        self.calls.append((call, n))
        match call:
            case "load":
                self._loaded.append(n)
                return {"number": len(self._loaded) - 1, "measurement": Measurement(Status.OK).to_json()}
            case "sample" | "warm":
                return self._time_of[call](n, self._place) * (1 + 0.01 * (count % 2))
        fault = self._faults.get(n)
        if isinstance(fault, RequestFailed):
            raise fault
        return {"fault": fault, "provenance": {"place": str(self._place)}}


IN_TURN = ((1.3, 1.0), (1.0, 1.2), (1.0, 1.1), (1.3, 1.0), (1.0, 1.3))
"""Of each process what two candidates take there: none is clearly faster, nor are they alike."""


def told(count: int) -> list[Build]:
    """Candidates of a `ToldChild`."""
    return [Build({"sha256": "0", "n": n}, str(n), BUILD_S) for n in range(count)]


def compared(
    make,
    count: int,
    time_of: TimeOf,
    warm: TimeOf | None = None,
    faults: Mapping[int, Mapping[int, str | RequestFailed]] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[list[Measurement], list[ToldChild]]:
    """The measurements of a comparison, and the processes that it took."""
    comparison = Comparison(make.task, told(count), 1, Limits(), clock)
    children: list[ToldChild] = []
    while not comparison.is_over:
        place = len(children)
        children.append(ToldChild(place, {"sample": time_of, "warm": warm or time_of}, (faults or {}).get(place, {})))
        comparison.time_in(cast("Child", children[-1]))
    return comparison.measurements(), children


def test_what_is_fastest_in_one_process_only_does_not_win(make) -> None:
    def time_of(n: int, place: int) -> float:
        return 1e-3 if n == 0 else 0.6e-3 if place == 0 else 1.2e-3

    (steady, lucky), children = compared(make, 2, time_of)
    assert median(steady.samples_s) < median(lucky.samples_s)
    assert len(children) > MIN_PROCESSES


def test_where_it_is_clear_the_fewest_are_enough(make) -> None:
    measurements, children = compared(make, 3, lambda n, place: (1 + n / 5) * 1e-3)
    assert len(children) == MIN_PROCESSES
    medians_s = [m.median_s for m in measurements if m.median_s is not None]
    assert sorted(medians_s) == medians_s and len(medians_s) == 3
    assert all(len(m.samples_s) == MIN_PROCESSES * ROUNDS and m.build_s == BUILD_S for m in measurements)


def test_where_it_does_not_matter_the_fewest_are_enough(make) -> None:
    _, children = compared(make, 2, lambda n, place: (1 + n / 500) * 1e-3)
    assert len(children) == MIN_PROCESSES


def test_where_each_is_fastest_now_and_then_it_ends_all_the_same(make) -> None:
    _, children = compared(make, 2, lambda n, place: IN_TURN[place][n] * 1e-3)
    assert len(children) == MAX_PROCESSES


def test_what_is_slower_everywhere_is_timed_no_further(make) -> None:
    def time_of(n: int, place: int) -> float:
        return 2e-3 if n == 2 else IN_TURN[place][n] * 1e-3

    measurements, children = compared(make, 3, time_of)
    assert len(children) == MAX_PROCESSES
    assert [("load", 2) in child.calls for child in children] == [
        place < MIN_PROCESSES for place in range(MAX_PROCESSES)
    ]
    assert measurements[2].median_s == pytest.approx(2e-3, rel=0.1), "as far as those beside it agree"


def test_what_may_be_fastest_with_warm_caches_is_timed_on(make) -> None:
    def warm(n: int, place: int) -> float:
        return IN_TURN[place][n] * 1e-4

    measurements, children = compared(make, 2, lambda n, place: (1 + n) * 0.5e-3, warm)
    assert len(children) == MAX_PROCESSES
    first, second = (m.warm_s for m in measurements)
    assert first is not None and first == pytest.approx(second, rel=0.15)


def test_processes_are_put_at_one_pace(make) -> None:
    """The machine is three times slower while the second one runs."""
    (first, second), _ = compared(make, 2, lambda n, place: (1 + n) * (3 if place == 1 else 1) * 1e-3)
    assert median(second.samples_s) / median(first.samples_s) == pytest.approx(2, rel=1e-3)
    assert max(first.samples_s) / min(first.samples_s) < 1.1


def test_the_steadiest_of_few_has_an_interval(make) -> None:
    """Where others are held up half of the time, the drift that is divided out would be its own."""
    rng = np.random.default_rng(1)

    def time_of(n: int, place: int) -> float:
        held_up = 1 + 5 * rng.exponential() if n and rng.random() < 0.5 else 1.0
        return 1e-3 * (1 + 0.1 * n + 0.02 * rng.exponential()) * held_up

    steady = compared(make, 3, time_of)[0][0]
    edges_s = steady.interval_s
    assert edges_s is not None and edges_s[1] - edges_s[0] > 1e-5
    assert len(set(steady.samples_s)) == len(steady.samples_s), "it is no drift of its own"


def test_no_other_process_begins_when_the_time_is_over(make) -> None:
    """But the fewest."""
    hours = count(step=3600).__next__
    measurements, children = compared(make, 2, lambda n, place: IN_TURN[place][n] * 1e-3, clock=hours)
    assert len(children) == MIN_PROCESSES
    assert all(m.status is Status.OK for m in measurements)


def test_getting_a_process_ready_takes_of_the_time(make) -> None:
    now_s = [0.0]

    def time_of(n: int, place: int) -> float:
        return IN_TURN[place][n] * 1e-3

    comparison = Comparison(make.task, told(2), 1, Limits(), lambda: now_s[0])
    for place in range(MIN_PROCESSES):
        assert not comparison.is_over and not comparison.is_enough
        with comparison.count_time():
            now_s[0] += 3600
        comparison.time_in(cast("Child", ToldChild(place, {"sample": time_of, "warm": time_of}, {})))
    assert comparison.is_over and comparison.is_enough


@pytest.mark.parametrize("fault", ["it differs", RequestFailed(Status.CRASH, "SIGSEGV")], ids=["wrong", "crash"])
def test_one_that_goes_wrong_in_a_later_process_leaves_the_others_alone(make, fault: str | RequestFailed) -> None:
    measurements, children = compared(make, 3, lambda n, place: (1 + n / 5) * 1e-3, faults={1: {0: fault}})
    assert [m.status is Status.OK for m in measurements] == [False, True, True]
    assert measurements[0].error == str(fault) and measurements[0].median_s is None
    assert measurements[0].build_s == BUILD_S
    assert len(children) == MIN_PROCESSES + 1, "what ran beside it doesn't count"
    assert all(len(m.samples_s) == MIN_PROCESSES * ROUNDS for m in measurements[1:])


def test_what_goes_wrong_late_leaves_the_others_what_they_have(make) -> None:
    """One alone would have no others to be put in proportion to: its samples would seem to be all alike."""
    times_s = (IN_TURN, ((2.0, 2.0),) * MAX_PROCESSES)

    def time_of(n: int, place: int) -> float:
        return times_s[n // 2][place][n % 2] * 1e-3

    [first, failed, slow], children = compared(make, 3, time_of, faults={MIN_PROCESSES + 1: {1: "it differs"}})
    assert failed.status is Status.WRONG_RESULT
    assert len(children) == MIN_PROCESSES + 2, "with one left it is known which is the fastest"
    assert len(first.samples_s) == ROUNDS * (MIN_PROCESSES + 1) > len(slow.samples_s)
    assert first.low_s is not None and first.high_s is not None and first.high_s > 1.1 * first.low_s


def test_each_process_loads_them_in_another_order(make) -> None:
    _, children = compared(make, 2, lambda n, place: IN_TURN[place][n] * 1e-3)
    assert [child.calls[0] for child in children] == [("load", place % 2) for place in range(MAX_PROCESSES)]


def test_of_lasting_runs_one_sample_with_warm_caches_is_enough(make) -> None:
    measurements, children = compared(make, 2, lambda n, place: (1 + n) * 10.0)
    assert all(child.calls.count(("warm", 0)) == 1 for child in children)
    assert [m.warm_s for m in measurements] == [pytest.approx(10.0, rel=0.02), pytest.approx(20.0, rel=0.02)]


def test_a_run_may_be_lasting_in_one_process_and_not_in_another(make) -> None:
    measurements, _ = compared(make, 2, lambda n, place: (1 + 2 * n) * LASTING_S * (0.9 if place == 0 else 1.1))
    assert all(m.warm_s == pytest.approx(m.median_s, rel=0.2) for m in measurements)
