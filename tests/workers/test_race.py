"""Races on a clock that only the racers move on."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from tunewright.codegen.closeable import Closeable
from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers.measure import measure
from tunewright.workers.measure.race import (
    FAR_SLOWER_RATIO,
    FIRST_SAMPLES,
    LONG_RUN_S,
    MAX_SETTLING_SAMPLES,
    PATIENCE_S,
    RETIMING_S,
    SAMPLES_PER_TURN,
    SETTLING_S,
    SLOWER_RATIO,
    SLOWER_THAN_STORED_RATIO,
    Incumbent,
    Race,
    RaceResult,
    Runner,
    without_drift,
)
from tunewright.workers.measure.sampling import MIN_SAMPLES, SAMPLE_S, interval

BUDGET_S = 0.05


class Machine:
    """Something that time passes on. `pace` is how many times slower it is at a moment than it should be."""

    def __init__(self, drift: Callable[[float], float] = lambda now_s: 1.0) -> None:
        self.now_s = 100.0
        self.drift = drift
        self.ran: list[str] = []  # the schedule of each sample

    def clock(self) -> float:
        return self.now_s


class Scheduled:
    """A schedule on a machine."""

    def __init__(self, machine: Machine, name: str, run_s: float, noise: float = 0.0) -> None:
        self.machine, self.name, self.run_s, self.noise = machine, name, run_s, noise
        self.rng = np.random.default_rng(len(name))

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        times_s: list[float] = []
        while len(times_s) < samples and (not times_s or self.machine.now_s < deadline_s):
            factor = self.machine.drift(self.machine.now_s) * (1 + self.noise * float(self.rng.exponential()))
            times_s.append(self.run_s * factor)
            self.machine.now_s += repeats * times_s[-1]
            self.machine.ran.append(self.name)
        return times_s

    @property
    def runner(self) -> Runner:
        """After the run of its check."""
        [once_s] = self.time(1)
        self.machine.ran.clear()
        return Runner(self, max(1, round(500e-6 / self.run_s)), once_s)


def incumbent(machine: Machine, run_s: float, noise: float = 0.0) -> Incumbent:
    """One whose time was noted when the machine ran as it should."""
    return Incumbent(Scheduled(machine, "incumbent", run_s, noise).runner, run_s * (1 + 0.7 * noise))


def race(
    machine: Machine, run_s: float, incumbent: Incumbent | None, noise: float = 0.0, best_s: float | None = None
) -> RaceResult:
    challenger = Scheduled(machine, "challenger", run_s, noise).runner
    return Race(challenger, incumbent, best_s, machine.clock).run(BUDGET_S)


def test_one_that_is_clearly_slower_is_given_up() -> None:
    machine = Machine()
    outcome = race(machine, 1.5e-4, incumbent(machine, 1e-4))
    assert len(outcome.samples_s) == FIRST_SAMPLES and not outcome.is_fastest
    assert outcome.drift == pytest.approx(1.0)
    assert machine.ran == ["incumbent"] * FIRST_SAMPLES + ["challenger"] * FIRST_SAMPLES


@pytest.mark.parametrize(("factor", "others"), [(FAR_SLOWER_RATIO * 1.01, 0), (FAR_SLOWER_RATIO * 0.99, 1)])
def test_one_long_run_is_enough_to_be_given_up(factor: float, others: int) -> None:
    machine = Machine()
    outcome = race(machine, factor * LONG_RUN_S, incumbent(machine, LONG_RUN_S))
    assert len(outcome.samples_s) == 1 and not outcome.is_fastest
    assert machine.ran == ["incumbent"] * others, "that of the check is the challenger's"
    assert not outcome.ran


@pytest.mark.parametrize("factor", [1.25, 1.03])
def test_two_long_runs_tell_more_than_one(factor: float) -> None:
    machine = Machine()
    outcome = race(machine, factor * LONG_RUN_S, incumbent(machine, LONG_RUN_S))
    assert len(outcome.samples_s) == 2 and not outcome.is_fastest and outcome.ran
    assert machine.ran == ["incumbent", "challenger"], "the incumbent ran between the check and that"


def test_one_long_run_of_two_may_be_disturbed() -> None:
    """It was the faster one."""
    machine = Machine(lambda now_s: 1.5 if now_s == 100.0 else 1.0)
    outcome = race(machine, LONG_RUN_S, incumbent(machine, 1.2 * LONG_RUN_S))
    assert len(outcome.samples_s) >= FIRST_SAMPLES and outcome.is_fastest


def test_a_long_run_that_is_a_bit_slower_takes_three() -> None:
    machine = Machine()
    outcome = race(machine, 1.015 * LONG_RUN_S, incumbent(machine, LONG_RUN_S))
    assert len(outcome.samples_s) == FIRST_SAMPLES and not outcome.is_fastest


def test_one_that_is_a_bit_slower_takes_the_fewest() -> None:
    machine = Machine()
    outcome = race(machine, 1.2e-4, incumbent(machine, 1e-4, noise=0.05), noise=0.05)
    assert len(outcome.samples_s) == MIN_SAMPLES and not outcome.is_fastest


def test_a_faster_one_is_the_next_incumbent() -> None:
    machine = Machine()
    outcome = race(machine, 0.8e-4, incumbent(machine, 1e-4, noise=0.02), noise=0.02)
    assert outcome.is_fastest and outcome.ran
    assert len(outcome.samples_s) <= MIN_SAMPLES + 4
    assert machine.ran[FIRST_SAMPLES : 2 * FIRST_SAMPLES] == ["challenger"] * FIRST_SAMPLES
    assert (
        machine.ran[-2 * SAMPLES_PER_TURN :] == ["incumbent"] * SAMPLES_PER_TURN + ["challenger"] * SAMPLES_PER_TURN
    ), "its outputs are there"


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("run_s", [1e-6, 1e-3, 1e-2])
def test_one_that_is_a_bit_faster_is_not_timed_for_ever(noise: float, run_s: float) -> None:
    machine = Machine()
    outcome = race(machine, run_s, incumbent(machine, 1.2 * run_s, noise), noise)
    assert len(outcome.samples_s) >= FIRST_SAMPLES
    assert machine.ran[-1] == "challenger"
    turns = 2 * max(SAMPLES_PER_TURN, MIN_SAMPLES) * max(1.2 * run_s, SAMPLE_S) * (1 + 10 * noise)
    assert machine.now_s <= 100 + 2 * (BUDGET_S + turns) + RETIMING_S, "and once more where it seems faster"


@pytest.mark.parametrize(("run_s", "fewest"), [(1e-6, MIN_SAMPLES), (LONG_RUN_S / 2, MIN_SAMPLES), (2 * LONG_RUN_S, 2)])
def test_an_equal_one_takes_the_fewest(run_s: float, fewest: int) -> None:
    machine = Machine()
    outcome = race(machine, 0.995 * run_s, incumbent(machine, run_s))
    assert (len(outcome.samples_s), outcome.is_fastest) == (fewest, False)


@pytest.mark.parametrize("drift", [0.5, 2.0])
@pytest.mark.parametrize("factor", [0.9, 1.2])
@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_a_time_does_not_tell_how_fast_the_machine_is_just_then(run_s: float, factor: float, drift: float) -> None:
    machine = Machine(lambda now_s: drift)  # since the incumbent's time was noted
    outcome = race(machine, factor * run_s, incumbent(machine, run_s))
    assert outcome.is_fastest is (factor < 1)
    assert outcome.drift == pytest.approx(drift)
    assert outcome.samples_s == pytest.approx([factor * run_s] * len(outcome.samples_s))


@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_a_machine_that_is_slower_from_turn_to_turn_makes_no_interval_wider(run_s: float) -> None:
    turn_s = 2 * FIRST_SAMPLES * max(run_s, 500e-6)
    machine = Machine(lambda now_s: 1.1 ** ((now_s - 100.0) / turn_s))
    outcome = race(machine, 0.9 * run_s, incumbent(machine, run_s))
    assert outcome.is_fastest and max(outcome.samples_s) < 1.1 * min(outcome.samples_s)
    assert interval(outcome.samples_s).median_s == pytest.approx(0.9 * run_s, rel=0.08)


@pytest.mark.parametrize("drift", [0.5, 1.0, 3.0])
def test_what_is_far_slower_is_put_at_the_pace_that_was_seen_last(drift: float) -> None:
    machine = Machine(lambda now_s: drift)
    best = incumbent(machine, LONG_RUN_S)
    race(machine, 1.1 * LONG_RUN_S, best)
    assert best.drift == pytest.approx(drift)
    outcome = race(machine, 5 * LONG_RUN_S, best)
    assert outcome.samples_s == pytest.approx([5 * LONG_RUN_S]) and not outcome.ran
    assert outcome.drift == pytest.approx(drift), "so that what the clock said can be had back"


class Hindered(Scheduled):
    """A schedule that something holds up for ever, such as a program on the processor of one of its threads."""

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        return [5 * sample_s for sample_s in super().time(samples, repeats, deadline_s=deadline_s)]


def test_one_sample_of_the_incumbent_that_is_held_up_makes_none_of_the_challenger_too_good() -> None:
    assert without_drift([2.0] * 5, [1.0, 50.0, 1.25, 1.0, 1.0], 1.0) == [2.0, 2.0, 1.6, 2.0, 2.0]
    assert without_drift([2.0, 2.0, 40.0], [1.0, 1.0, 20.0], 1.0) == [2.0] * 3  # both were
    assert without_drift([0.1, 2.0, 2.0], [0.0, 1.0, 1.0], 1.0) == [0.1, 2.0, 2.0]  # a coarse clock
    assert without_drift([], [], 1.0) == []


@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_nothing_is_found_faster_beside_one_that_is_held_up(run_s: float) -> None:
    """Else its time would be a fifth of what it is, and those of all that are timed beside it."""
    machine = Machine()
    best = Incumbent(Hindered(machine, "incumbent", run_s).runner, run_s)
    outcome = race(machine, 0.99 * run_s, best)
    assert not outcome.is_fastest and outcome.drift is None
    assert interval(outcome.samples_s).median_s == pytest.approx(0.99 * run_s)
    assert outcome.doubt == "the schedule that it was timed beside took 5.0 times its time"
    slower = race(machine, 6 * run_s, best)
    assert not slower.is_fastest and not slower.doubt


@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_one_whose_stored_time_is_of_a_moment_that_held_it_up_starts_over(run_s: float) -> None:
    """Else all that are timed beside it would be stored at as many times what they take."""
    machine = Machine()
    first = Incumbent(Scheduled(machine, "incumbent", run_s).runner, 13 * run_s)
    slower = race(machine, 1.2 * run_s, first)
    assert not slower.is_fastest and not slower.doubt
    assert slower.drift == pytest.approx(1.0) and slower.incumbent_s == pytest.approx(run_s)
    assert slower.samples_s == pytest.approx([1.2 * run_s] * len(slower.samples_s))
    faster = race(machine, 0.8 * run_s, first)
    assert faster.is_fastest and interval(faster.samples_s).median_s == pytest.approx(0.8 * run_s)
    far_slower = race(machine, 6 * run_s, first)
    assert interval(far_slower.samples_s).median_s == pytest.approx(6 * run_s)


@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_one_that_starts_over_within_a_race_takes_what_was_timed_before_along(run_s: float) -> None:
    """What holds all up ends while the two are timed."""
    machine = Machine()
    best = Incumbent(Scheduled(machine, "incumbent", run_s).runner, 13 * run_s)
    challenger = Scheduled(machine, "challenger", 0.9 * run_s).runner
    machine.drift = lambda now_s: 13.0 if machine.ran.count("challenger") < FIRST_SAMPLES else 1.0
    outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
    assert best.time_s == pytest.approx(run_s)
    assert outcome.samples_s == pytest.approx([0.9 * run_s] * len(outcome.samples_s))


@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_an_anchor_of_a_moment_that_held_it_up_starts_over(run_s: float) -> None:
    machine = Machine()
    anchor = Incumbent(Scheduled(machine, "standard", run_s).runner, 10 * run_s)
    best = Incumbent(Scheduled(machine, "incumbent", run_s).runner, 9 * run_s, anchor=anchor)
    outcome = race(machine, 0.9 * run_s, best)
    assert outcome.is_fastest and outcome.incumbent_s == pytest.approx(run_s)
    assert outcome.samples_s == pytest.approx([0.9 * run_s] * len(outcome.samples_s))


def test_a_clock_that_shows_no_time_is_no_reason_to_start_over() -> None:
    best = Incumbent(Scheduled(Machine(), "incumbent", 1e-4).runner, 1e-4)
    best.note(0.0)
    assert (best.time_s, best.drift) == (1e-4, 1.0)


def test_a_first_one_whose_time_is_hardly_known_is_no_incumbent() -> None:
    """Something holds it up for half of the time."""
    machine = Machine(lambda now_s: 1.0 if len(machine.ran) % 20 < 10 else 40.0)
    outcome = race(machine, 1e-5, None)
    edges = interval(outcome.samples_s)
    assert edges.high_s > 10 * edges.low_s and not outcome.is_fastest
    assert race(Machine(), 1e-5, None).is_fastest


def test_one_disturbed_run_does_not_undo_three_that_were_faster() -> None:
    machine = Machine()
    best = incumbent(machine, 1.2 * LONG_RUN_S)
    challenger = Scheduled(machine, "challenger", LONG_RUN_S).runner

    def drift(now_s: float) -> float:
        """The first run of the proof, after that of the check and two more, is held up."""
        is_first = machine.ran.count("challenger") == FIRST_SAMPLES - 1 and machine.ran[-1] == "incumbent"
        return 3.0 if is_first and machine.ran.count("incumbent") == FIRST_SAMPLES + 1 else 1.0

    machine.drift = drift
    outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
    assert outcome.is_fastest and len(outcome.samples_s) >= FIRST_SAMPLES


@pytest.mark.parametrize("run_s", [2e-5, 3e-3])
@pytest.mark.parametrize(("factor", "share"), [(0.97, 0.9), (1.03, 0.0)])
def test_the_faster_one_wins_on_a_machine_that_is_quiet(run_s: float, factor: float, share: float) -> None:
    won = 0
    for seed in range(50):
        machine = Machine()
        challenger, best = Scheduled(machine, "challenger", factor * run_s, 0.01), incumbent(machine, run_s, 0.01)
        challenger.rng = np.random.default_rng(seed)
        won += Race(challenger.runner, best, None, machine.clock).run(BUDGET_S).is_fastest
    assert won >= share * 50 if factor < 1 else won == 0


@pytest.mark.parametrize("run_s", [2e-5, 3e-3])
def test_times_of_a_search_do_not_tell_when_they_were_taken(run_s: float) -> None:
    """Of sixty equal schedules and some slower ones, on a machine that is up to twice as slow from time to time."""
    rng = np.random.default_rng(3)
    phase = np.exp(0.3 * rng.normal(size=1000))
    machine = Machine(lambda now_s: float(phase[round(now_s / 0.05) % len(phase)]))
    best, logs = None, []
    for number in range(60):
        factor = 1.0 + 0.1 * (number % 4)
        challenger = Scheduled(machine, f"number {number}", factor * run_s, noise=0.03).runner
        outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
        time_s = interval(outcome.samples_s).median_s
        logs.append(np.log2(time_s / factor))
        if outcome.is_fastest:
            drift = outcome.drift or 1.0
            best = best.successor(challenger, time_s, drift) if best else Incumbent(challenger, time_s, drift)
        machine.now_s += 0.03
    off, off_alone = (
        np.quantile(np.abs(values - np.median(values)), 0.75) for values in (np.array(logs), np.log2(phase))
    )
    assert off < 0.12 < 0.4 < off_alone, "the machine alone makes more"
    assert abs(np.median(logs[-20:]) - np.median(logs[:20])) < 0.1, "nor do they fall with each that wins by luck"


class Moody(Scheduled):
    """A schedule that is slower than it should be while the machine is in one of two moods."""

    def __init__(self, machine: Machine, name: str, run_s: float, mood: int) -> None:
        super().__init__(machine, name, run_s)
        self.mood = mood

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        usual_s = self.run_s
        self.run_s *= 1.1 if int(self.machine.now_s) % 2 == self.mood else 1.0
        try:
            return super().time(samples, repeats, deadline_s=deadline_s)
        finally:
            self.run_s = usual_s


@pytest.mark.parametrize("run_s", [2e-5, 3e-3])
def test_times_do_not_fall_with_each_that_takes_another_one_s_place(run_s: float) -> None:
    """Of two hundred schedules that are as fast as each other, but one half in one second and one in the next."""
    machine = Machine()
    best: Incumbent | None = None
    times_s: list[float] = []
    for number in range(200):
        challenger = Moody(machine, f"number {number}", run_s, number % 2).runner
        outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
        if outcome.is_fastest:
            time_s = interval(outcome.samples_s).median_s
            drift = outcome.drift or 1.0
            best = best.successor(challenger, time_s, drift) if best else Incumbent(challenger, time_s, drift)
            times_s.append(time_s)
        machine.now_s += 0.4
    assert len(times_s) > 40, "they do take each other's place"
    assert 0.8 * run_s < min(times_s) < max(times_s) < 1.25 * run_s


@pytest.mark.parametrize("run_s", [1e-4, 3e-3])
@pytest.mark.parametrize("seed", range(4))
def test_the_luckiest_of_many_on_a_busy_machine_is_stored_as_slow_as_it_is(run_s: float, seed: int) -> None:
    """Of two hundred that are as fast as each other, where each sample is held up as a coin falls."""
    rng = np.random.default_rng(seed)
    machine = Machine(lambda now_s: float(rng.choice((1.0, 2.0))))
    best = incumbent(machine, run_s)
    for number in range(200):
        challenger = Scheduled(machine, f"number {number}", run_s).runner
        outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
        if outcome.is_fastest:
            best = best.successor(challenger, interval(outcome.samples_s).median_s, outcome.drift or 1.0)
    assert 0.8 * run_s < best.time_s < 1.6 * run_s


def test_what_is_clearly_faster_is_a_standard_itself() -> None:
    machine = Machine()
    first = incumbent(machine, 1e-4)
    second = first.successor(first.runner, 0.9e-4, 1.0)
    third = second.successor(first.runner, 0.85e-4, 1.0)
    fourth = third.successor(first.runner, 0.5e-4, 1.0)
    assert second.anchor is first and third.anchor is first
    assert fourth.anchor is None and fourth.successor(first.runner, 0.45e-4, 1.0).anchor is fourth


@pytest.mark.parametrize("run_s", [1e-4, 2 * LONG_RUN_S])
def test_the_time_of_the_next_incumbent_is_in_proportion_to_the_standard(run_s: float) -> None:
    machine = Machine(lambda now_s: 2.0)
    anchor = Incumbent(Scheduled(machine, "standard", run_s).runner, run_s)
    lucky = Incumbent(Scheduled(machine, "incumbent", run_s).runner, 0.8 * run_s, 2.5, anchor)
    outcome = race(machine, 0.9 * run_s, lucky)
    assert outcome.is_fastest and outcome.drift == pytest.approx(2.0)
    assert outcome.samples_s == pytest.approx([0.9 * run_s] * len(outcome.samples_s))
    assert machine.ran[-1] == "challenger" and "standard" in machine.ran


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_where_only_a_time_is_known_the_margin_is_wider(factor: float) -> None:
    assert SLOWER_THAN_STORED_RATIO > SLOWER_RATIO
    machine = Machine()
    outcome = race(machine, factor * SLOWER_THAN_STORED_RATIO * 1e-4, None, best_s=1e-4)
    assert outcome.is_fastest is (factor < 1)
    assert (len(outcome.samples_s) == FIRST_SAMPLES) is (factor > 1)


def test_where_nothing_is_known_it_is_timed_until_it_settles() -> None:
    machine = Machine()
    race(machine, LONG_RUN_S / 2, None)
    assert SETTLING_S <= machine.now_s - 100 <= 1.1 * SETTLING_S
    still = Machine()
    still.clock = lambda: 100.0  # type: ignore[method-assign]
    assert len(race(still, 1e-5, None).samples_s) == MAX_SETTLING_SAMPLES, "not without end where a clock stands still"
    noisy = Machine()
    outcome = race(noisy, 1e-5, None, noise=0.05)
    assert outcome.is_fastest and len(outcome.samples_s) > MIN_SAMPLES


def test_the_first_time_is_not_that_of_a_moment_that_holds_all_up() -> None:
    machine = Machine(lambda now_s: 20.0 if now_s < 100 + SETTLING_S / 4 else 1.0)
    outcome = race(machine, 1e-5, None)
    assert interval(outcome.samples_s).median_s == pytest.approx(1e-5)


@pytest.mark.parametrize("run_s", [1e-5, 2 * LONG_RUN_S])
def test_what_holds_up_the_incumbent_is_waited_for(run_s: float) -> None:
    machine = Machine()
    best = incumbent(machine, run_s)
    challenger = Scheduled(machine, "challenger", 1.2 * run_s).runner
    until_s = machine.now_s + PATIENCE_S / 2
    machine.drift = lambda now_s: 10 * FAR_SLOWER_RATIO if now_s < until_s else 1.0
    outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
    assert outcome.drift == pytest.approx(1.0)
    assert interval(outcome.samples_s).median_s == pytest.approx(1.2 * run_s)


class HeldUp(Scheduled):
    """A schedule that something else holds up when it is timed after its check for the first time."""

    calls = 0

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        self.calls += 1
        factor = 10 * FAR_SLOWER_RATIO if self.calls == 2 else 1.0
        return [factor * one_s for one_s in super().time(samples, repeats, deadline_s=deadline_s)]


@pytest.mark.parametrize("run_s", [1e-5, 2 * LONG_RUN_S])
def test_what_holds_up_the_standard_is_waited_for(run_s: float) -> None:
    machine = Machine()
    runner = HeldUp(machine, "standard", run_s).runner
    best = Incumbent(Scheduled(machine, "incumbent", run_s).runner, run_s, anchor=Incumbent(runner, run_s))
    challenger = Scheduled(machine, "challenger", 0.8 * run_s).runner
    outcome = Race(challenger, best, None, machine.clock).run(BUDGET_S)
    assert outcome.is_fastest and outcome.drift == pytest.approx(1.0)
    assert interval(outcome.samples_s).median_s == pytest.approx(0.8 * run_s)


def test_what_holds_up_everything_is_waited_for_once() -> None:
    machine = Machine(lambda now_s: 2 * FAR_SLOWER_RATIO)
    best = incumbent(machine, 1e-5)
    begun_s = machine.now_s
    assert race(machine, 1.2e-5, best).drift == pytest.approx(2 * FAR_SLOWER_RATIO)
    assert PATIENCE_S < machine.now_s - begun_s < 2 * PATIENCE_S
    begun_s = machine.now_s
    race(machine, 1.2e-5, best)
    assert machine.now_s - begun_s < PATIENCE_S


def test_a_very_long_run_has_fewer_samples() -> None:
    machine = Machine()
    outcome = race(machine, 1.1, None)
    assert len(outcome.samples_s) == 3 and outcome.is_fastest, "that of the check, and two more"


class Closing(Closeable):
    """A kernel in memory. See `check.LoadedKernel`."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_what_nothing_is_put_in_proportion_to_any_more_is_closed() -> None:
    runner = Scheduled(Machine(), "any", 1e-4).runner
    kernels = [Closing() for _ in range(4)]
    best = Incumbent(runner, 1.0, kernel=kernels[0])
    for kernel, time_s, expected in zip(
        kernels[1:], (0.95, 0.9, 0.5), ([], [kernels[1]], [kernels[0], kernels[1], kernels[2]]), strict=True
    ):
        best = best.successor(runner, time_s, 1.0, kernel)
        assert [closing for closing in kernels if closing.is_closed] == expected
    best.close()
    assert all(closing.is_closed for closing in kernels)


class Recalled(Closing):
    """A kernel that works. See `check.LoadedKernel`."""

    def __init__(self, run_s: float) -> None:
        self.cold, self.once_s = Scheduled(Machine(), "recalled", run_s), run_s

    def check(self) -> tuple[str | None, float | None]:
        return None, 0.0


def test_what_a_new_process_recalls_starts_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Recalled(1e-4)
    monkeypatch.setattr(measure, "_examples", {"task": None})
    monkeypatch.setattr(measure, "_incumbents", {})
    monkeypatch.setattr(measure, "_load_artifact", lambda *_: (Measurement(Status.OK), kernel))
    measure.recall("task", [{"artifact": {}, "time_s": 13e-4}], 1)
    recalled = measure._incumbents["task", 1]
    assert recalled.time_s == pytest.approx(1e-4) and recalled.drift == 1.0


class Interrupted:
    """A kernel of which the first runs took `first_s`, and all others take `run_s`. See `check.LoadedKernel`."""

    def __init__(self, first_s: float, run_s: float, disturbed: int = 1) -> None:
        self.once_s, self.run_s, self.runs, self.disturbed = first_s, run_s, 1, disturbed
        self.cold = self

    def rerun(self) -> None:
        self.runs += 1
        if self.runs > self.disturbed:
            self.once_s = min(self.once_s, self.run_s)

    def time(self, samples: int, repeats: int = 1, *, deadline_s: float = inf) -> list[float]:
        self.runs += samples * repeats
        return [self.run_s] * samples


@pytest.mark.parametrize("usual_s", [0.0, 18e-6])
def test_a_short_run_that_was_interrupted_is_not_taken_for_a_long_one(usual_s: float) -> None:
    kernel = Interrupted(first_s=5e-3, run_s=SAMPLE_S / 25)
    runner = measure._runner(kernel, usual_s)  # type: ignore[arg-type]
    assert not runner.is_long
    assert runner.repeats == 25


def test_what_is_beyond_belief_is_doubted_again() -> None:
    twice = Interrupted(first_s=5e-3, run_s=20e-6, disturbed=3)
    assert not measure._runner(twice, usual_s=20e-6).is_long  # type: ignore[arg-type]
    slow = Interrupted(first_s=5e-3, run_s=5e-3)
    assert measure._runner(slow, usual_s=20e-6).is_long  # type: ignore[arg-type]
    assert slow.runs == 1 + measure.MAX_RERUNS, "there is an end to it"
    unknown = Interrupted(first_s=5e-3, run_s=5e-3)
    assert measure._runner(unknown).is_long  # type: ignore[arg-type]
    assert unknown.runs == 2, "what others take is not known"


def test_a_long_run_is_doubted_where_it_would_be_given_up_by_it_alone() -> None:
    doubted, usual = Interrupted(first_s=9e-3, run_s=8e-3), Interrupted(first_s=9e-3, run_s=8e-3)
    assert measure._runner(doubted, usual_s=6e-3).once_s == 8e-3  # type: ignore[arg-type]
    assert measure._runner(usual, usual_s=7.5e-3).once_s == 9e-3  # type: ignore[arg-type]
    assert (doubted.runs, usual.runs) == (2, 1)
