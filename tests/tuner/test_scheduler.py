from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.tuner.models.assembly import Assembly, CallRange, TaskChain
from tunewright.tuner.search.scheduling.outlook import LEFT
from tunewright.tuner.search.scheduling.scheduler import CHANCE, LARGEST, LEAST_GAP, TaskScheduler


def spend(scheduler, outcome, trials):
    """Trials by task; `outcome(index, n)` is the time of a task's n-th trial, None once its space is exhausted."""
    spent = []
    left = trials
    counts: dict[int, int] = {}
    while batch := scheduler.next_batch(left):
        index, size = batch
        times_s = []
        for _ in range(size):
            time_s = outcome(index, counts.get(index, 0))
            if time_s is None:
                break
            counts[index] = counts.get(index, 0) + 1
            times_s.append(time_s)
        if times_s:
            scheduler.add(index, times_s)
        else:
            scheduler.exhaust(index)
        left -= len(times_s)
        spent.append((index, len(times_s)))
    return spent, counts


def scheduler_of(occurrences, floors_s, times_s=None):
    return TaskScheduler(Assembly(tuple(occurrences)), floors_s, times_s)


def halving(floor_s, start_s):
    """A best time that nears a floor."""
    return lambda n: floor_s + (start_s - floor_s) / (1 + n)


def test_every_task_gets_its_default_first_the_heaviest_first():
    scheduler = scheduler_of([1, 10, 2], [3e-3, 1e-3, 1e-3])
    spent, counts = spend(scheduler, lambda index, n: 1.0, 3)
    assert spent == [(1, 1), (0, 1), (2, 1)]
    assert counts == {0: 1, 1: 1, 2: 1}


def test_a_budget_below_the_number_of_tasks_is_kept():
    spent, _ = spend(scheduler_of([1, 10, 2], [3e-3, 1e-3, 1e-3]), lambda index, n: 1.0, 2)
    assert spent == [(1, 1), (0, 1)]


def test_trials_without_a_bound_end_with_the_spaces():
    spent, counts = spend(scheduler_of([1, 10], [1e-3, 1e-3]), lambda index, n: 1.0 if n < 40 else None, inf)
    assert counts == {0: 40, 1: 40}
    assert all(isinstance(size, int) for _, size in spent)


def test_nothing_to_spend():
    assert scheduler_of([1], [1e-3]).next_batch(0) is None
    assert scheduler_of([], []).next_batch(10) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=8), st.integers(0, 300))
def test_the_budget_is_spent_to_the_last_trial_and_no_further(tasks, trials):
    scheduler = scheduler_of([n for n, _ in tasks], [1e-6 * t for _, t in tasks])
    spent, counts = spend(scheduler, lambda index, n: 3e-6 * tasks[index][1] / (1 + 0.1 * n), trials)
    assert sum(size for _, size in spent) == trials
    assert all(0 < size <= LARGEST for _, size in spent)
    if trials >= len(tasks):
        assert set(counts) == set(range(len(tasks)))


@pytest.mark.parametrize(
    ("least_s", "times_more"), [(1e-3, 1.8), (0.95e-3, 1.4)], ids=["down to its floor", "below it, which is wrong then"]
)
def test_most_goes_where_the_model_gains_most(least_s, times_more):
    floors_s = [1e-3, 1e-3, 1e-3]
    curves = [halving(1e-3, 5e-3), halving(1e-3, 5e-3), halving(least_s, 1.05e-3)]
    _, counts = spend(scheduler_of([10, 1, 10], floors_s), lambda index, n: curves[index](n), 200)
    assert counts[0] > 2 * counts[1]  # as fast, ten times as often
    assert counts[0] > times_more * counts[2]  # as often, but near its floor already
    assert min(counts.values()) > 4


def gains_s(scheduler, more=8.0):
    return scheduler.expected_gains_s(np.array([more]))[:, 0]


def test_gain_by_hand():
    """After one trial 0.12 is left in log2, after four half of it. It counts as often as the model runs the task."""
    alone = gains_s(scheduler_of([2], [1e-9], [[8e-3]]), more=3.0)
    assert alone[0] == pytest.approx(2 * 8e-3 * (1 - 2 ** -(LEFT / 2)))
    # Nothing came of four trials, two doublings of one: 4 of 6 parts of what is expected are left.
    spent = scheduler_of([1], [1e-9], [[8e-3] * 4])
    everywhere = LEFT * 4 / (4 + 2 / 6)
    assert spent.outlooks()[0].later == pytest.approx(everywhere * 4 / 6 / 2)


def test_what_is_at_its_floor_gains_little():
    near, far = scheduler_of([1, 1], [1e-3, 1e-4], [[1e-3], [1e-3]]).outlooks()
    assert near.later == pytest.approx(-np.log2(1 - LEAST_GAP))
    assert far.later == pytest.approx(LEFT)
    below, _ = scheduler_of([1, 1], [1e-3, 1e-4], [[0.9e-3], [1e-3]]).outlooks()
    assert below.later == pytest.approx(LEFT)  # the floor is of another way to compute it


def test_being_far_from_the_floor_is_no_reason_to_go_on():
    """Both run as long; one is ten times its floor and never came nearer, the other comes down steadily."""
    curves = [lambda n: 1e-3, lambda n: 1e-3 * 0.5 ** (np.log2(1 + n) / 10)]
    _, counts = spend(scheduler_of([1, 1], [1e-4, 4e-4]), lambda index, n: curves[index](n), 200)
    assert counts[1] > 1.5 * counts[0]


def test_similar_tasks_tell_what_to_expect_of_each_other():
    steady, falling = [1e-3] * 64, [1e-3 * 0.98**n for n in range(16)]
    times_s = [steady, falling, [1e-3], [1e-3]]
    like_steady, like_falling = TaskScheduler(Assembly((1,) * 4), [1e-6] * 4, times_s, ["a", "b"] * 2).outlooks()[2:]
    assert LEFT < like_falling.later > 1.2 * like_steady.later


def test_trials_that_take_long_must_bring_more():
    counts = {}
    for seconds in (0.01, 1.0):
        scheduler = scheduler_of([1, 1], [1e-6, 1e-6])
        scheduler.pace.note(0, 10, 10 * seconds)
        scheduler.pace.note(1, 10, 0.1)
        _, counts[seconds] = spend(scheduler, lambda index, n: halving(1e-4, 1e-3)(n), 200)
    assert counts[1.0][0] < counts[0.01][0] / 2


def test_a_promise_decides_between_equals():
    scheduler = scheduler_of([1, 1], [1e-6, 1e-6], [[1e-3], [1e-3]])
    scheduler.promise(1, 0.5)
    assert gains_s(scheduler)[1] > gains_s(scheduler)[0]
    assert scheduler.next_batch(100)[0] == 1


def test_the_forecast_is_of_the_whole_model():
    scheduler = scheduler_of([3, 1], [1e-6, 1e-6])
    assert scheduler.forecast() is None
    for index in range(2):
        scheduler.add(index, [1e-3])
    forecast = scheduler.forecast()
    assert forecast.model_s == pytest.approx(4e-3)
    assert forecast.speedup(1e9) == pytest.approx(2**LEFT - 1, rel=0.01)
    scheduler.exhaust(0)
    assert scheduler.forecast().gains_s[-1] == pytest.approx(1e-3 * (1 - 2**-LEFT), rel=0.01)
    assert scheduler.forecast().by_task(60.0).keys() == {1}
    scheduler.exhaust(1)
    nothing = scheduler.forecast()
    assert (nothing.tasks, nothing.by_task(60.0), nothing.speedup(60.0), nothing.lasts_s(9.0, 0.01)) == ((), {}, 0, 0)
    assert nothing.model_s == forecast.model_s and nothing.lasts_s(9.0, None) == inf


@pytest.mark.parametrize("seconds", [0.0, 1e-3, 60.0, 1e9])
def test_a_forecast_is_the_sum_of_its_tasks(seconds):
    scheduler = scheduler_of([3, 1, 2], [1e-6, 1e-6, 1e-6], [[1e-3], [1e-3], [1e-3]])
    forecast = scheduler.forecast()
    parts = forecast.by_task(seconds)
    assert 1 / (1 - sum(parts.values())) - 1 == pytest.approx(forecast.speedup(seconds))
    assert all(part >= 0 for part in parts.values()) and parts[0] >= parts[1]
    assert sum(forecast.by_task(seconds, 0).values()) == 0
    if seconds == 1e9:
        assert (parts[0], parts[2]) == pytest.approx((3 * parts[1], 2 * parts[1]))


def test_nothing_that_the_model_needs_is_missing_in_a_forecast():
    """But it does not wait for what may stand for others."""
    scheduler = TaskScheduler(CHOICE, [1e-6, 1e-6, 1e-6], [[1e-3], [1e-3]])
    assert scheduler.forecast() is not None
    assert TaskScheduler(CHOICE, [1e-6, 1e-6, 1e-6], [[1e-3], [], [1e-3]]).forecast() is None


def test_exhausted_tasks_drop_out():
    sizes = [3, 1000, 5]
    _, counts = spend(scheduler_of([1, 1, 1], [1e-3] * 3), lambda index, n: 1e-2 if n < sizes[index] else None, 200)
    assert counts == {0: 3, 1: 192, 2: 5}


def test_it_ends_when_all_are_exhausted():
    _, counts = spend(scheduler_of([1, 1], [1e-3] * 2), lambda index, n: 1e-2 if n < 7 else None, 10**6)
    assert counts == {0: 7, 1: 7}


def test_a_failing_task_neither_starves_nor_hogs():
    def outcome(index, n):
        return np.inf if index == 0 else 1e-3 + 4e-3 / (1 + n)

    for occurrences, most in {1: 100, 100: 300}.items():
        _, counts = spend(scheduler_of([occurrences, 1, 1, 1], [1e-3] * 4), outcome, 400)
        assert 8 <= counts[0] < most


def test_a_task_that_fails_at_first_is_taken_up_again():
    def outcome(index, n):
        return np.inf if index == 0 and n < 6 else 1e-3 + 9e-3 / (1 + n)

    _, counts = spend(scheduler_of([5, 1], [1e-3] * 2), outcome, 200)
    assert counts[0] > counts[1]


def test_all_tasks_failing_is_no_reason_to_stop_early():
    _, counts = spend(scheduler_of([3, 1], [1e-3] * 2), lambda index, n: np.inf, 50)
    assert sum(counts.values()) == 50
    assert min(counts.values()) >= 4


@pytest.mark.parametrize(
    ("trials", "remaining", "size"), [(40, 9999, 8), (400, 9999, 25), (9999, 9999, LARGEST), (9999, 20, 10)]
)
def test_a_batch_grows_with_what_is_known(trials, remaining, size):
    """But leaves half of what remains."""
    scheduler = scheduler_of([1], [1e-4], [[1e-3] * trials])
    assert scheduler.next_batch(remaining) == (0, size)


def test_a_batch_that_came_to_nothing_changes_nothing():
    """Where another job has the task, say: what counts is what came of trials."""
    scheduler = scheduler_of([1, 1], [1e-3, 1e-3])
    assert scheduler.next_batch(100) == scheduler.next_batch(100) == (0, 1)
    for index in range(2):
        scheduler.add(index, [1e-2])
    outlooks = scheduler.outlooks()
    assert scheduler.next_batch(100) == scheduler.next_batch(100)
    assert scheduler.outlooks() == outlooks


def test_it_goes_on_from_a_history_as_if_never_stopped():
    curves = [halving(1e-3, 5e-3), halving(2e-3, 4e-3), halving(0.5e-3, 9e-3)]
    arguments = [3, 1, 2], [1e-3, 2e-3, 0.5e-3]
    whole, _ = spend(scheduler_of(*arguments), lambda index, n: curves[index](n), 150)
    for cut in (0, 2, 3, 5):
        done = [sum(size for index, size in whole[:cut] if index == task) for task in range(3)]
        times_s = [[curves[task](n) for n in range(done[task])] for task in range(3)]
        resumed = scheduler_of(*arguments, times_s)
        rest, _ = spend(resumed, lambda index, n, done=done: curves[index](done[index] + n), 150 - sum(done))
        assert rest == whole[cut:]


# Where some tasks may stand for others: task 2 does for the calls of 0 and 1.
CHOICE = Assembly((1, 1, 1), ((TaskChain((0, 1), (CallRange(0, 2, 2),)), 1),))


def test_alternatives_get_their_default_after_all_others():
    spent, _ = spend(TaskScheduler(CHOICE, [1e-6, 1e-6, 1.0]), lambda index, n: 1e-3, 3)
    assert spent == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("slower", [0, 2], ids=["calls", "merged"])
def test_what_is_clearly_slower_gets_few_trials(slower):
    """Whether it is what stands for others, or what it stands for."""
    start_s = [1e-3, 1e-3, 2e-3]
    times_s = [8 * time_s if (n == 2) == (slower == 2) else time_s for n, time_s in enumerate(start_s)]
    _, counts = spend(TaskScheduler(CHOICE, [1e-5] * 3), lambda index, n: times_s[index] * (1 - 0.001 * n), 300)
    lost = sum(count for index, count in counts.items() if (index == 2) == (slower == 2))
    assert 1 <= lost <= 40


def test_what_may_still_win_gets_its_chance():
    """By default the merged task is twice as slow, and it could be twice as fast."""
    scheduler = TaskScheduler(CHOICE, [5e-4, 5e-4, 5e-4])
    curves = [lambda n: 1e-3, lambda n: 1e-3, lambda n: 4e-3 / (1 + 0.1 * n)]
    _, counts = spend(scheduler, lambda index, n: curves[index](n), 300)
    assert counts[2] > 50


def test_what_is_chosen_counts_as_often_as_it_is_used():
    chain = TaskChain((0, 1), (CallRange(0, 2, 2),))
    alone, often = (Assembly((n, n, n), ((chain, n),)) for n in (1, 10))
    arguments = [5e-4, 5e-4, 1e-3], [[1e-3], [1e-3], [1e-1] * 20]
    few, many = (gains_s(TaskScheduler(assembly, *arguments)) for assembly in (alone, often))
    assert many == pytest.approx([10 * gain for gain in few])
    assert few[2] == 0 < few[0] == few[1]


def test_a_chance_by_hand():
    """The merged task may come down from 4 ms to 4 / 17 of it, which saves what is not left of the calls' 2 ms."""
    scheduler = TaskScheduler(CHOICE, [1e-3, 1e-3, 1e-4], [[1e-3], [1e-3], [4e-3]])
    assert gains_s(scheduler, more=3.0)[2] == pytest.approx(CHANCE * 3 / 4 * (2e-3 - 4e-3 / 17))


@pytest.mark.parametrize(("nearest", "hoped_s"), [(2, 1.8e-3), (1, 0.9e-3)])
def test_no_task_is_expected_nearer_to_its_floor_than_any_came(nearest, hoped_s):
    """A task of 4 ms, 0.9 ms by its floor, may come down to what is as far from that as the nearest is from its own."""
    scheduler = TaskScheduler(CHOICE, [0.5e-3, 1e-3 / nearest, 0.9e-3], [[1e-3], [1e-3], [4e-3]])
    assert gains_s(scheduler, more=3.0)[2] == pytest.approx(CHANCE * 3 / 4 * (2e-3 - hoped_s))
