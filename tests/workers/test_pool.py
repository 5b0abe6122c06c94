"""The contract of Pool, for each that there is."""

from __future__ import annotations

import pytest

from tunewright.codegen.host import available_cores
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Candidate, Status
from tunewright.search_space.schedule import Illegal
from tunewright.search_space.sketches import spaces
from tunewright.workers.device.comparison import MIN_PROCESSES, ROUNDS
from tunewright.workers.device.device import own_name
from tunewright.workers.local import LocalPool
from tunewright.workers.pool import Pool, PoolError, ReferenceFailed, can_time
from tunewright.workers.sandbox.process import ChildError

from ..waiting import wait_for


@pytest.fixture(scope="module", params=["local_pool", pytest.param("ray_pool", marks=pytest.mark.ray)])
def pool(request: pytest.FixtureRequest) -> Pool:
    fixture: Pool = request.getfixturevalue(request.param)
    return fixture


def test_a_good_candidate_is_timed(pool: Pool, make) -> None:
    assert make.sound(make.measured(pool, make.default()))


FAULTS = {
    "wrong_result": (Status.WRONG_RESULT, "error"),
    "out_of_bounds": (Status.WRONG_RESULT, "out of bounds"),
    "changed_input": (Status.WRONG_RESULT, "x: an input was changed"),
    "segfault": (Status.CRASH, "SIGSEGV"),
    "hang": (Status.TIMEOUT, "stopped after 5 s"),
    "out_of_memory": (Status.OUT_OF_MEMORY, "allocate"),
    "build_error": (Status.BUILD_ERROR, ""),
    "crash_in_build": (Status.CRASH, "build: SIGSEGV"),
    "hang_in_build": (Status.TIMEOUT, "build: stopped after 6 s"),
    "memory_in_build": (Status.OUT_OF_MEMORY, "allocate"),
}


@pytest.mark.slow
def test_failures_cost_only_themselves(pool: Pool, make) -> None:
    candidates = [make.default(), *map(make.planted, FAULTS), make.planted("ok")]
    results = list(pool.measure(candidates))
    assert len(results) == len(candidates)
    measurements = {candidate.schedule.sketch.removeprefix("planted."): m for candidate, m in results}
    for fault, (status, text) in FAULTS.items():
        assert measurements[fault].status is status, (fault, measurements[fault])
        assert text in measurements[fault].error
        assert measurements[fault].error and "\n" not in measurements[fault].error
        assert not measurements[fault].samples_s and measurements[fault].median_s is None
        assert measurements[fault].provenance["llvm"]
    assert make.sound(measurements["ok"])
    assert make.sound(make.measured(pool, make.default()))


def test_the_same_object_is_timed_once(pool: Pool, make) -> None:
    first, again = make.measured(pool, make.planted("ok")), make.measured(pool, make.planted("same"))
    assert make.sound(again)
    assert again.samples_s == first.samples_s
    assert again.object_sha256 == first.object_sha256


def test_a_slow_candidate_is_given_up_early(pool: Pool, make) -> None:
    elsewhere = make.of_other_task("KnownToNobody")
    [(_, measurement)] = pool.measure([elsewhere.default()], best_s=1e-9)
    assert measurement.status is Status.OK
    assert len(measurement.samples_s) == 3 and measurement.incumbent_s is None
    assert make.sound(make.measured(pool, elsewhere.default())), "without a faster one it is timed in full"


def test_a_candidate_that_may_be_the_fastest_is_timed_beside_the_one_that_was(pool: Pool, make) -> None:
    elsewhere = make.of_other_task("Raced" * 40)
    slow = make.measured(pool, elsewhere.planted("slow"))
    assert make.sound(slow) and slow.incumbent_s is None
    fast = make.measured(pool, elsewhere.planted("twin"))
    assert make.sound(fast)
    assert fast.incumbent_s is not None and fast.median_s < fast.incumbent_s < 1


def distinct(make, count: int) -> list[Candidate]:
    """Other schedules than the default one."""
    space = spaces(make.task, make.target)[0]
    schedules = (space.schedule(row) for row in space.points)
    return [Candidate(make.task, make.target, s) for s in schedules if s != space.default][:count]


def test_schedules_are_compared_side_by_side(pool: Pool, make) -> None:
    candidates = [make.default(), make.planted("wrong_result"), *distinct(make, 1), make.planted("segfault")]
    candidates.append(make.planted("build_error"))
    first, wrong, second, crashed, refused = pool.compare(candidates)
    assert make.sound(first) and make.sound(second)
    assert min(len(first.samples_s), len(second.samples_s)) >= MIN_PROCESSES * ROUNDS
    for measurement in (first, second):
        assert measurement.median_s is not None and measurement.warm_s is not None
        assert 0 < measurement.warm_s < 3 * measurement.median_s
    statuses = [m.status for m in (wrong, crashed, refused)]
    assert statuses == [Status.WRONG_RESULT, Status.CRASH, Status.BUILD_ERROR]
    assert pool.compare([]) == []


@pytest.mark.parametrize(("op", "why"), [("Lost", "SIGSEGV"), ("TooLarge", "allocate")])
def test_a_task_without_a_reference_fails_no_candidate(pool: Pool, make, op: str, why: str) -> None:
    lost = make.of_other_task(op)
    candidates = [lost.default(), lost.planted("build_error"), lost.planted("ok")]
    results = pool.measure(candidates)
    statuses: list[Status] = []
    with pytest.raises(
        ReferenceFailed, match=rf"^task \w+ \({op}\): its reference .* 20 s and 2,048 MiB: .*{why}"
    ) as error:
        statuses.extend(m.status for _, m in results)
    assert error.value.task_key == lost.task.key
    assert "\n" not in str(error.value)
    assert set(statuses) <= {Status.BUILD_ERROR}
    with pytest.raises(ReferenceFailed, match=op):
        pool.compare([lost.default(), lost.planted("ok")])
    assert [m.status for m in pool.compare([lost.planted("build_error")])] == [Status.BUILD_ERROR]
    assert make.sound(make.measured(pool, make.default()))


def quarantined(pool: Pool) -> list[str]:
    """Names of its devices that are in quarantine."""
    return [state.name for state in pool.devices() if state.quarantined_until]


@pytest.mark.slow
def test_a_broken_device_is_quarantined_and_heals(pool: Pool, make, broken) -> None:
    elsewhere = make.of_other_task("Unlucky")  # nothing is known of it
    candidates = [elsewhere.default(), elsewhere.planted("build_error"), elsewhere.planted("segfault")]
    statuses: list[Status] = []
    with broken("own"):
        with pytest.raises(PoolError, match=r"in quarantine.*known to work fails on it: .*SIGSEGV") as error:
            statuses.extend(m.status for _, m in pool.measure(candidates))
        assert set(statuses) <= {Status.BUILD_ERROR}, "no failure is put down to a candidate"
        assert "\n" not in str(error.value)
        assert error.value.retry_s is not None and 0 < error.value.retry_s <= 1
        [state] = pool.devices()
        assert state.quarantined_until is not None and "SIGSEGV" in state.reason
        wait_for(lambda: not quarantined(pool))
        with pytest.raises(PoolError, match="in quarantine") as error:
            pool.compare(candidates)
        assert error.value.retry_s is not None and 1 < error.value.retry_s <= 2, "longer each time"
    with pytest.raises(PoolError, match="in quarantine"):
        list(pool.measure(candidates))
    wait_for(lambda: not quarantined(pool))
    measurements = {candidate.schedule: m for candidate, m in pool.measure(candidates)}
    assert make.sound(measurements[candidates[0].schedule])
    assert measurements[candidates[2].schedule].status is Status.CRASH, "its own fault"


def test_devices_are_named(pool: Pool, target: Target) -> None:
    [state] = pool.devices()
    assert can_time(state.target, target) and state.target.threads == len(available_cores())
    assert state.name == own_name()
    assert (state.quarantined_until, state.reason) == (None, "")


def test_only_this_machine_is_watched(pool: Pool, make) -> None:
    sample = pool.machine_sampler()
    assert (sample is not None) is isinstance(pool, LocalPool)
    if sample is not None:
        assert make.sound(make.measured(pool, make.default()))
        first, second = sample(), sample()
        assert first.elapsed_s > second.elapsed_s >= 0


def test_nothing_to_measure(pool: Pool) -> None:
    assert list(pool.measure([])) == []


def test_an_illegal_schedule_is_the_callers_bug(pool: Pool, make) -> None:
    with pytest.raises(Illegal, match="unheard_of"):
        list(pool.measure([make.default(), make.planted("unheard_of")]))
    assert make.sound(make.measured(pool, make.default()))


def test_a_bug_in_a_sketch_propagates(pool: Pool, make) -> None:
    with pytest.raises(ChildError, match="no such axis"):
        list(pool.measure([make.planted("bug")]))


def test_a_kernel_that_breaks_a_rule_is_a_bug(pool: Pool, make) -> None:
    elsewhere = make.of_other_task("Unverified")  # no other test has filled the cache with it
    with pytest.raises(ChildError, match=r"VerifyError.*, the limit"):
        list(pool.measure([elsewhere.planted("unverified")]))


def test_candidates_of_other_targets_and_tasks_are_refused(pool: Pool, make, other_task, other_target) -> None:
    stranger = Candidate(make.task, other_target, make.default().schedule)
    with pytest.raises(ValueError, match="a candidate for"):
        list(pool.measure([stranger]))
    elsewhere = type(make)(other_task, make.target).default()
    with pytest.raises(ValueError, match="2 tasks"):
        pool.compare([make.default(), elsewhere])
    assert make.sound(make.measured(pool, elsewhere))


def test_an_iterator_may_be_left_early(pool: Pool, make) -> None:
    results = pool.measure([make.default(), make.planted("hang_in_build"), make.planted("build_error")])
    next(results)
    results.close()
    assert make.sound(make.measured(pool, make.default()))
