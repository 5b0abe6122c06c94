import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.tuner.scheduler import LARGEST, TaskScheduler


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
            scheduler.tell(index, times_s)
        else:
            scheduler.exhaust(index)
        left -= len(times_s)
        spent.append((index, len(times_s)))
    return spent, counts


def halving(floor_s, start_s):
    """A best time that nears a floor."""
    return lambda n: floor_s + (start_s - floor_s) / (1 + n)


def test_every_task_gets_its_default_first_the_heaviest_first():
    scheduler = TaskScheduler([1, 10, 2], [3e-3, 1e-3, 1e-3])
    spent, counts = spend(scheduler, lambda index, n: 1.0, 3)
    assert spent == [(1, 1), (0, 1), (2, 1)]
    assert counts == {0: 1, 1: 1, 2: 1}


def test_a_budget_below_the_number_of_tasks_is_kept():
    spent, _ = spend(TaskScheduler([1, 10, 2], [3e-3, 1e-3, 1e-3]), lambda index, n: 1.0, 2)
    assert spent == [(1, 1), (0, 1)]


def test_nothing_to_spend():
    assert TaskScheduler([1], [1e-3]).next_batch(0) is None
    assert TaskScheduler([], []).next_batch(10) is None


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 1000)), min_size=1, max_size=8), st.integers(0, 300))
def test_the_budget_is_spent_to_the_last_trial_and_no_further(tasks, trials):
    scheduler = TaskScheduler([n for n, _ in tasks], [1e-6 * t for _, t in tasks])
    spent, counts = spend(scheduler, lambda index, n: 3e-6 * tasks[index][1] / (1 + 0.1 * n), trials)
    assert sum(size for _, size in spent) == trials
    assert all(0 < size <= LARGEST for _, size in spent)
    if trials >= len(tasks):
        assert set(counts) == set(range(len(tasks)))


def test_most_goes_where_the_model_gains_most():
    floors_s = [1e-3, 1e-3, 1e-3]
    curves = [halving(1e-3, 5e-3), halving(1e-3, 5e-3), halving(0.95e-3, 1.05e-3)]
    _, counts = spend(TaskScheduler([10, 1, 10], floors_s), lambda index, n: curves[index](n), 200)
    assert counts[0] > 2 * counts[1]  # as fast, ten times as often
    assert counts[0] > 2 * counts[2]  # as often, but at its floor already
    assert min(counts.values()) > 4


def test_gain_by_hand():
    """8 ms, then 6 ms, floor 2 ms, twice: slope 2 ms, gap 4 ms over 2 trials; 3 chances of 4 that a trial succeeds."""
    scheduler = TaskScheduler([2, 1], [2e-3, 1e-3], [[8e-3, 6e-3], [1e-3]])
    assert scheduler.expected_gain_s(0) == pytest.approx(2 * 3 / 4 * (0.2 * 2e-3 + 0.8 * 4e-3 / 2))
    # No window reaches before the first success, and a gap is never wholly closed.
    scheduler = TaskScheduler([1], [2e-3], [[np.inf, 1e-3]])
    assert scheduler.expected_gain_s(0) == pytest.approx(2 / 4 * 0.8 * 0.02e-3 / 2)


def test_floors_that_no_task_comes_near_are_moved_to_the_nearest():
    """Twice its floor is the nearest that any task came, so 8 ms against a floor of 2 ms may fall to 4 ms."""
    scheduler = TaskScheduler([1, 1], [2e-3, 1e-3], [[8e-3], [2e-3]])
    assert scheduler.expected_gain_s(0) == pytest.approx(2 / 3 * 0.8 * 4e-3)
    assert scheduler.expected_gain_s(1) == pytest.approx(2 / 3 * 0.8 * 0.02 * 2e-3)


def test_exhausted_tasks_drop_out():
    sizes = [3, 1000, 5]
    _, counts = spend(TaskScheduler([1, 1, 1], [1e-3] * 3), lambda index, n: 1e-2 if n < sizes[index] else None, 200)
    assert counts == {0: 3, 1: 192, 2: 5}


def test_it_ends_when_all_are_exhausted():
    _, counts = spend(TaskScheduler([1, 1], [1e-3] * 2), lambda index, n: 1e-2 if n < 7 else None, 10**6)
    assert counts == {0: 7, 1: 7}


def test_a_failing_task_neither_starves_nor_hogs():
    def outcome(index, n):
        return np.inf if index == 0 else 1e-3 + 4e-3 / (1 + n)

    for occurrences in (1, 100):
        _, counts = spend(TaskScheduler([occurrences, 1, 1, 1], [1e-3] * 4), outcome, 400)
        assert 8 <= counts[0] < 200


def test_a_task_that_fails_at_first_is_taken_up_again():
    def outcome(index, n):
        return np.inf if index == 0 and n < 6 else 1e-3 + 9e-3 / (1 + n)

    _, counts = spend(TaskScheduler([5, 1], [1e-3] * 2), outcome, 200)
    assert counts[0] > counts[1]


def test_all_tasks_failing_is_no_reason_to_stop_early():
    _, counts = spend(TaskScheduler([3, 1], [1e-3] * 2), lambda index, n: np.inf, 50)
    assert sum(counts.values()) == 50
    assert min(counts.values()) >= 4


def test_batches_under_way_count():
    scheduler = TaskScheduler([1, 1], [1e-3, 1e-3])
    assert [scheduler.next_batch(100) for _ in range(2)] == [(0, 1), (1, 1)]
    scheduler.tell(0, [1e-2])
    scheduler.tell(1, [1e-2])
    batches = [scheduler.next_batch(100) or (-1, 0) for _ in range(4)]
    assert sorted(index for index, _ in batches) == [0, 0, 1, 1]


def test_it_goes_on_from_a_history_as_if_never_stopped():
    curves = [halving(1e-3, 5e-3), halving(2e-3, 4e-3), halving(0.5e-3, 9e-3)]
    arguments = [3, 1, 2], [1e-3, 2e-3, 0.5e-3]
    whole, _ = spend(TaskScheduler(*arguments), lambda index, n: curves[index](n), 150)
    for cut in (0, 2, 3, 5):
        done = [sum(size for index, size in whole[:cut] if index == task) for task in range(3)]
        times_s = [[curves[task](n) for n in range(done[task])] for task in range(3)]
        resumed = TaskScheduler(*arguments, times_s)
        rest, _ = spend(resumed, lambda index, n, done=done: curves[index](done[index] + n), 150 - sum(done))
        assert rest == whole[cut:]
