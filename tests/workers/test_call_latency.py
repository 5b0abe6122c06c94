from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import cycle, groupby, repeat

import pytest

from tunewright.workers.measure import call_latency
from tunewright.workers.measure.call_latency import (
    MAX_CALLS,
    MAX_ROUNDS,
    MIN_ROUNDS,
    NARROW_WIDTH,
    OPENINGS,
    OPENINGS_S,
    WARM_UP,
    time_in_turns,
    time_openings,
    wait_for_threads,
)
from tunewright.workers.measure.sampling import MIN_SAMPLES, interval

LONG_RUN_S = 0.03
"""A call that fills a turn: one goes before that is not timed, then one is timed."""

PER_TURN = 2


class Clock:
    """What `call_latency` asks the time. A thread of the process works until `awake_s`."""

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


@pytest.fixture(autouse=True)
def _brief_timing() -> None:
    """It is what is tested here: the clock is a fake one."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(call_latency, "time", fake)
    return fake


def test_each_round_begins_with_the_next_call(clock: Clock) -> None:
    called: list[str] = []

    def named(name: str) -> Callable[[], None]:
        call = clock.call(repeat(LONG_RUN_S))

        def run() -> None:
            called.append(name)
            call()

        return run

    latencies = time_in_turns({name: named(name) for name in "abc"})
    warm, timed = called[: 3 * WARM_UP], called[3 * WARM_UP :]
    assert "".join(warm) == "a" * WARM_UP + "b" * WARM_UP + "c" * WARM_UP
    assert timed[::PER_TURN] == timed[1::PER_TURN]  # nobody else is called within a turn
    assert "".join(timed[::PER_TURN]) == "abcbcacab" * (MIN_ROUNDS // 3)
    assert list(latencies) == ["a", "b", "c"]
    assert latencies["b"].median_s == pytest.approx(LONG_RUN_S)
    assert latencies["b"].median_ms == pytest.approx(latencies["b"].least_ms) == pytest.approx(1e3 * LONG_RUN_S)


def test_what_times_itself_has_its_turn_beside_the_first_call(clock: Clock) -> None:
    sampled: list[str] = []

    def sampler() -> float:
        sampled.append("part")
        return LONG_RUN_S / 2

    def whole() -> None:
        sampled.append("whole")
        clock.call(repeat(LONG_RUN_S))()

    latencies = time_in_turns({"whole": whole}, others={"part": sampler})
    assert latencies["part"].median_s == LONG_RUN_S / 2 and len(latencies["part"].samples_s) == MIN_ROUNDS
    assert sampled.count("part") == MIN_ROUNDS and sampled[WARM_UP] == "part" != sampled[WARM_UP + 1]
    assert max(len(list(turns)) for name, turns in groupby(sampled) if name == "part") == 2


def noisy(clock: Clock) -> Callable[[], None]:
    """Half of its turns take twice as long as the others: no interval of them is narrow."""
    return clock.call(cycle((LONG_RUN_S, LONG_RUN_S, 2 * LONG_RUN_S, 2 * LONG_RUN_S)))


def test_narrow_intervals_end_it(clock: Clock) -> None:
    steady = clock.call(repeat(LONG_RUN_S))
    assert len(time_in_turns({"steady": steady}, budget_s=1e9)["steady"].samples_s) == MIN_ROUNDS
    settling = clock.call([*[LONG_RUN_S, LONG_RUN_S, 2 * LONG_RUN_S, 2 * LONG_RUN_S] * 8, *repeat(LONG_RUN_S, 1000)])
    samples_s = time_in_turns({"steady": steady, "settling": settling}, budget_s=1e9)["settling"].samples_s
    assert MIN_ROUNDS < len(samples_s) < MAX_ROUNDS
    assert interval(samples_s).width <= NARROW_WIDTH < interval(samples_s[:-1]).width


def test_the_budget_ends_it(clock: Clock) -> None:
    times = time_in_turns({"noisy": noisy(clock)}, budget_s=0.0)["noisy"]
    assert len(times.samples_s) == MIN_ROUNDS
    start_s, budget_s = clock.now_s, 5.0
    times = time_in_turns({"noisy": noisy(clock)}, budget_s)["noisy"]
    assert MIN_ROUNDS < len(times.samples_s) < MAX_ROUNDS
    turn_s = call_latency.PAUSE_S + call_latency.REST_S + PER_TURN * 2 * LONG_RUN_S
    assert budget_s < clock.now_s - start_s < budget_s + WARM_UP * 2 * LONG_RUN_S + turn_s


def test_an_interval_holds_what_differs_between_openings(clock: Clock) -> None:
    """Two that are equally fast: in each opening one of them has the better place, and keeps it."""
    opened, open_now = [], 0

    def open_calls(stack: ExitStack, names: Sequence[str]) -> dict[str, Callable[[], None]]:
        nonlocal open_now
        assert open_now == 0
        open_now += len(names)

        def close() -> None:
            nonlocal open_now
            open_now -= len(names)

        stack.callback(close)
        opened.append("".join(names))
        return {
            name: clock.call(repeat(LONG_RUN_S * (1.1 if number == 0 else 1.0))) for number, name in enumerate(names)
        }

    latencies = time_openings(open_calls, ["a", "b"])
    assert opened == ["ab", "ba"] * (OPENINGS // 2) + ["ab"] * (OPENINGS % 2)
    assert open_now == 0
    assert {name: len(latency.samples_s) for name, latency in latencies.items()} == {"a": OPENINGS, "b": OPENINGS}
    ratios = [a_s / b_s for a_s, b_s in zip(latencies["a"].samples_s, latencies["b"].samples_s, strict=True)]
    assert interval(ratios).low_s == pytest.approx(1 / 1.1)
    assert interval(ratios).high_s == pytest.approx(1.1)


def test_long_calls_are_opened_less_often(clock: Clock) -> None:
    def open_calls(_: ExitStack, names: Sequence[str]) -> dict[str, Callable[[], None]]:
        return {name: clock.call(repeat(OPENINGS_S / 10)) for name in names}

    assert len(time_openings(open_calls, ["a", "b"])["a"].samples_s) == MIN_SAMPLES


def test_it_ends_in_any_case(clock: Clock) -> None:
    assert len(time_in_turns({"noisy": noisy(clock)}, budget_s=1e9)["noisy"].samples_s) == MAX_ROUNDS


@pytest.mark.parametrize(("time_s", "untimed", "timed"), [(1.5e-3, 2, 13), (0.9e-6, 2223, MAX_CALLS)])
def test_short_calls_are_called_more_often(clock: Clock, time_s: float, untimed: int, timed: int) -> None:
    """First for as long as processors take to wake, then as often as fits into a turn."""
    assert call_latency._turn_s(clock.call(repeat(time_s)), wait_for_threads) == pytest.approx(time_s)
    calls = (clock.now_s - call_latency.PAUSE_S - call_latency.REST_S) / time_s
    assert calls == pytest.approx(untimed + timed, abs=1.5)


@pytest.mark.parametrize(
    ("awake_s", "expected_s"),
    [
        (0.0, call_latency.PAUSE_S + call_latency.REST_S),
        (0.1, 0.1 + call_latency.REST_S),
        (1e9, call_latency.PAUSE_S + call_latency.LONGEST_WAIT_S),
    ],
)
def test_a_turn_begins_when_threads_rest(clock: Clock, awake_s: float, expected_s: float) -> None:
    """But is not put off for ever."""
    clock.awake_s = awake_s
    wait_for_threads()
    assert clock.now_s == pytest.approx(expected_s, abs=1.01 * call_latency.REST_S)
