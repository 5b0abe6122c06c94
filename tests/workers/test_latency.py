"""The order of turns, when they end, and when they begin, by a clock that only calls and pauses move."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle, repeat

import pytest

from tunewright.workers import latency
from tunewright.workers.latency import MAX_CALLS, MAX_ROUNDS, MIN_ROUNDS, PRECISION, WARM_UP, rest, side_by_side
from tunewright.workers.sampling import interval

LONG_S = 0.03
"""A call that fills a turn: one goes before that is not timed, then one is timed."""

PER_TURN = 2


class Clock:
    """What `latency` asks the time. A thread of the process works until `awake_s`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.awake_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return min(self.now_s, self.awake_s)

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s

    def call(self, times_s: Iterable[float]) -> Callable[[], None]:
        """A call that takes so long, each time."""
        left = iter(times_s)

        def run() -> None:
            self.now_s += next(left)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(latency, "time", made)
    return made


def test_each_round_begins_with_the_next_call(clock: Clock) -> None:
    called: list[str] = []

    def named(name: str) -> Callable[[], None]:
        call = clock.call(repeat(LONG_S))

        def run() -> None:
            called.append(name)
            call()

        return run

    found = side_by_side({name: named(name) for name in "abc"})
    warm, timed = called[: 3 * WARM_UP], called[3 * WARM_UP :]
    assert "".join(warm) == "a" * WARM_UP + "b" * WARM_UP + "c" * WARM_UP
    assert timed[::PER_TURN] == timed[1::PER_TURN]  # nobody else is called within a turn
    assert "".join(timed[::PER_TURN]) == "abcbcacab" * (MIN_ROUNDS // 3)
    assert list(found) == ["a", "b", "c"]
    assert found["b"].median_s == pytest.approx(LONG_S)
    assert found["b"].median_ms == pytest.approx(found["b"].least_ms) == pytest.approx(1e3 * LONG_S)


def noisy(clock: Clock) -> Callable[[], None]:
    """Half of its turns take twice as long as the others: no interval of them is narrow."""
    return clock.call(cycle((LONG_S, LONG_S, 2 * LONG_S, 2 * LONG_S)))


def test_narrow_intervals_end_it(clock: Clock) -> None:
    steady = clock.call(repeat(LONG_S))
    assert len(side_by_side({"steady": steady}, budget_s=1e9)["steady"].samples_s) == MIN_ROUNDS
    settling = clock.call([*[LONG_S, LONG_S, 2 * LONG_S, 2 * LONG_S] * 8, *repeat(LONG_S, 1000)])
    samples_s = side_by_side({"steady": steady, "settling": settling}, budget_s=1e9)["settling"].samples_s
    assert MIN_ROUNDS < len(samples_s) < MAX_ROUNDS
    assert interval(samples_s).width <= PRECISION < interval(samples_s[:-1]).width


def test_the_budget_ends_it(clock: Clock) -> None:
    found = side_by_side({"noisy": noisy(clock)}, budget_s=0.0)["noisy"]
    assert len(found.samples_s) == MIN_ROUNDS
    start_s, budget_s = clock.now_s, 5.0
    found = side_by_side({"noisy": noisy(clock)}, budget_s)["noisy"]
    assert MIN_ROUNDS < len(found.samples_s) < MAX_ROUNDS
    turn_s = latency.PAUSE_S + latency.REST_S + PER_TURN * 2 * LONG_S
    assert budget_s < clock.now_s - start_s < budget_s + WARM_UP * 2 * LONG_S + turn_s


def test_it_ends_in_any_case(clock: Clock) -> None:
    assert len(side_by_side({"noisy": noisy(clock)}, budget_s=1e9)["noisy"].samples_s) == MAX_ROUNDS


@pytest.mark.parametrize(("time_s", "untimed", "timed"), [(1.5e-3, 2, 13), (0.9e-6, 2223, MAX_CALLS)])
def test_short_calls_are_called_more_often(clock: Clock, time_s: float, untimed: int, timed: int) -> None:
    """First for as long as processors take to wake, then as often as fits into a turn."""
    assert latency._turn_s(clock.call(repeat(time_s)), rest) == pytest.approx(time_s)
    calls = (clock.now_s - latency.PAUSE_S - latency.REST_S) / time_s
    assert calls == pytest.approx(untimed + timed, abs=1.5)


@pytest.mark.parametrize(
    ("awake_s", "expected_s"),
    [
        (0.0, latency.PAUSE_S + latency.REST_S),
        (0.1, 0.1 + latency.REST_S),
        (1e9, latency.PAUSE_S + latency.PATIENCE_S),
    ],
)
def test_a_turn_begins_when_threads_rest(clock: Clock, awake_s: float, expected_s: float) -> None:
    """But is not put off for ever."""
    clock.awake_s = awake_s
    rest()
    assert clock.now_s == pytest.approx(expected_s, abs=1.01 * latency.REST_S)
