"""Jobs that time the best of stale tasks again, with a pool that says what the test wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from tunewright.codegen.host import machine
from tunewright.db.job import EventKind, JobSpec, JobState, SearchBudget, SpecTask, search_settings
from tunewright.db.store import Store, open_store
from tunewright.graph.numerics import Precision
from tunewright.graph.task import Task
from tunewright.search_space.measurement import NOISE, Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.known_times import is_current, present_versions
from tunewright.tuner.lookup.ladder import lookup_measured
from tunewright.tuner.lookup.verdict import model_verdict
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.search import task_state
from tunewright.tuner.search.confirmation import COMPARED_AGAIN
from tunewright.tuner.search.job import TuningJob
from tunewright.tuner.search.lease_keeper import LeaseKeeper
from tunewright.tuner.search.report import JobOutcome, Payoff, Report
from tunewright.tuner.search.whole_model import ModelTimes, Timing, Variants
from tunewright.workers.measure.call_latency import CallLatency

from .conftest import small_model
from .fake_pool import FAILED, LEASE_S, TARGET, FakePool, Outcome, by_key, is_default, job, tasks

OLD = machine() | {"llvmlite": "0.1", "llvm": "3.4"}


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


def by(outcome: Outcome, versions: dict[str, str]) -> Outcome:
    """What these versions measure, in samples that differ a little."""

    def measure(candidate: Candidate) -> Measurement:
        measured = outcome(candidate)
        if measured.median_s is None:
            return replace(measured, provenance=versions)
        samples_s = tuple(measured.median_s * (1 + part) for part in (-1e-3, -5e-4, 0.0, 5e-4, 1e-3))
        return replace(measured, samples_s=samples_s, low_s=samples_s[0], high_s=samples_s[-1], provenance=versions)

    return measure


def retime_spec(network: Model, store: Store, *, has_model: bool, schedules: int) -> JobSpec:
    store.add_target(TARGET)
    store.add_tasks(tasks(network))
    uses = tuple(SpecTask(key, count) for key, (_, count) in network.tasks.items())
    settings = search_settings(0, "evolutionary", {}, vendor=False, precision=Precision.AS_GIVEN, retime=schedules)
    return JobSpec(network.sha256 if has_model else "", TARGET.key, uses, settings | network.assembly.settings)


def retime(
    network: Model,
    store: Store,
    pool: FakePool,
    timing: Timing | None = None,
    *,
    has_model: bool = True,
    schedules: int = 5,
) -> Report:
    """What a job comes to that times again what is stale of a model."""
    spec = retime_spec(network, store, has_model=has_model, schedules=schedules)
    lease = store.jobs.open(spec, "net", SearchBudget(None), "me", LEASE_S)
    assert lease is not None
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        found = store.jobs.get(lease.job_id)
        return TuningJob(found, list(network.tasks.values()), TARGET, store, pool, keeper, timing=timing).run()


def stale_keys(store: Store) -> list[str]:
    return [best.task_key for best in store.staleness.tasks(TARGET.key, present_versions(TARGET.kind))]


def fastest(store: Store, task: Task, count: int) -> list[Schedule]:
    """The fastest trials of a task besides its default."""
    works = [record for record in store.records(task.key, TARGET.key) if record.measurement.status is Status.OK]
    ordered = sorted(works, key=lambda record: record.measurement.median_s or 0.0)
    return [r.schedule for r in ordered if r.schedule != default_schedule(task, TARGET)][:count]


def test_the_fastest_five_and_the_default_are_timed_again(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    assert stale_keys(store) == sorted(network.tasks)
    confirmed = store.confirmations(network.tasks, TARGET.key)
    pool = FakePool(by(by_key, machine()))
    report = retime(network, store, pool)
    assert report.trials == 0 and report.ended_by is None
    for task, compared in zip(tasks(network), pool.comparisons, strict=True):
        assert compared[0] == default_schedule(task, TARGET)
        assert len(compared) == len(set(compared)) == 6
        assert confirmed[task.key].schedule in compared[1:]
        assert set(compared[1:]) == set(fastest(store, task, 5))
    assert stale_keys(store) == []
    for one in lookup_measured(store, tasks(network), TARGET).values():
        assert one.confirmed and is_current(one.measurement.provenance if one.measurement else {}, TARGET)
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.PAYS] * 2
    assert [task.retimed and task.retimed.versions["llvmlite"] for task in report.tasks] == ["0.1"] * 2
    assert Report.from_json(json.loads(json.dumps(report.to_json()))).to_json() == report.to_json()


def test_the_last_winner_is_among_them_however_slow_its_trial(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    slowest: list[Schedule] = []
    for task in tasks(network):
        known = [record for record in store.records(task.key, TARGET.key) if record.schedule not in slowest]
        ordered = sorted(known, key=lambda record: record.measurement.median_s or 0.0)
        store.confirm(ordered[-2])  # the last one is the default
        slowest.append(ordered[-2].schedule)
    pool = FakePool(by(by_key, machine()))
    retime(network, store, pool)
    for task, slow, schedules in zip(tasks(network), slowest, pool.comparisons, strict=True):
        assert set(schedules) == {default_schedule(task, TARGET), slow, *fastest(store, task, 4)}


def test_only_what_is_stale_is_timed(network: Model, store: Store) -> None:
    _, second = tasks(network)

    def mixed(candidate: Candidate) -> Measurement:
        return by(by_key, OLD if candidate.task.key == second.key else machine())(candidate)

    before = job(network, store, FakePool(mixed), trials=24)
    assert stale_keys(store) == [second.key]
    pool = FakePool(by(by_key, machine()))
    report = retime(network, store, pool)
    assert len(pool.comparisons) == 1 and pool.comparisons[0][0] == default_schedule(second, TARGET)
    assert [task.retimed is not None for task in report.tasks] == [False, True]
    assert (report.tasks[0].best_s, report.tasks[0].schedule) == (before.tasks[0].best_s, before.tasks[0].schedule)
    assert report.upgrade is not None and report.upgrade.tasks == 1
    again = FakePool(by(by_key, machine()))
    assert [task.retimed for task in retime(network, store, again).tasks] == [None, None]
    assert again.comparisons == []


def test_what_was_imported_is_not_stale(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)))
    with open_store("sqlite://") as other:
        other.import_(json.dumps(entry) for entry in store.export())
        assert stale_keys(other) == [] and other.best(tasks(network)[0].key, TARGET.key) is not None


def slower_winner(network: Model, store: Store) -> Outcome:
    """As the new versions have it: what was the best takes 0.9 ms, and the third fastest 0.05 ms."""
    winners = {record.schedule.key for record in store.confirmations(network.tasks, TARGET.key).values()}
    third = {fastest(store, task, 3)[2].key for task in tasks(network)}

    def outcome(candidate: Candidate) -> Measurement:
        measured = by_key(candidate)
        time_s = 9e-4 if candidate.schedule.key in winners else 5e-5 if candidate.schedule.key in third else None
        return measured if time_s is None else replace(measured, median_s=time_s)

    return by(outcome, machine())


def test_another_wins_where_the_compiler_changes_speeds(network: Model, store: Store) -> None:
    before = job(network, store, FakePool(by(by_key, OLD)), trials=24)
    thirds = [fastest(store, task, 3)[2] for task in tasks(network)]
    report = retime(network, store, FakePool(slower_winner(network, store)))
    assert [Schedule.from_json(task.schedule) for task in report.tasks] == thirds
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.OTHER] * 2
    assert [one.schedule for one in lookup_measured(store, tasks(network), TARGET).values()] == thirds
    upgrade = report.upgrade
    assert upgrade is not None and upgrade.payoffs == {"other": 2}
    assert upgrade.before_s == pytest.approx(sum(task.best_s or 0.0 for task in before.tasks))
    assert upgrade.best_s == pytest.approx(1e-4) and upgrade.default_s == pytest.approx(2e-3)
    assert upgrade.gain == pytest.approx(20) and (upgrade.change or 0.0) > 2


def test_tuning_no_longer_pays_where_the_default_is_as_fast(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)

    def outcome(candidate: Candidate) -> Measurement:
        return replace(by_key(candidate), median_s=1e-4 if is_default(candidate) else 9.9e-5)

    report = retime(network, store, FakePool(by(outcome, machine())))
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.DEFAULT] * 2
    for task, one in zip(tasks(network), lookup_measured(store, tasks(network), TARGET).values(), strict=True):
        assert one.schedule == default_schedule(task, TARGET) and one.confirmed
    assert stale_keys(store) == []


def test_intervals_that_overlap_are_too_close_to_tell(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)

    def wide(candidate: Candidate) -> Measurement:
        measured = by(by_key, machine())(candidate)
        samples_s = tuple((measured.median_s or 0.0) * part for part in (0.5, 0.6, 1.0, 3.0, 20.0))
        return replace(measured, samples_s=samples_s, low_s=samples_s[0], high_s=samples_s[-1])

    report = retime(network, store, FakePool(wide))
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.UNSURE] * 2


def test_a_busy_machine_makes_no_time_certain(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)

    def busy(candidate: Candidate) -> Measurement:
        measured = by(by_key, machine())(candidate)
        return replace(measured, provenance={**measured.provenance, NOISE: "others ran beside it"})

    report = retime(network, store, FakePool(busy))
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.UNSURE] * 2


def test_the_database_comes_to_know_that_nothing_works_any_more(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    report = retime(network, store, FakePool(by(lambda candidate: FAILED, machine())))
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.FAILS] * 2
    assert stale_keys(store) == [] and store.best(tasks(network)[0].key, TARGET.key) is None


class Killed(Exception):
    """The process is gone."""


class MortalPool(FakePool):
    """Dies when it is to compare for the second time."""

    def compare(self, candidates: Sequence[Candidate]) -> list[Measurement]:
        if self.comparisons:
            raise Killed
        return super().compare(candidates)


def test_a_job_that_was_killed_times_nothing_twice(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    outcome = slower_winner(network, store)
    dying = MortalPool(outcome)
    with pytest.raises(Killed):
        retime(network, store, dying)
    [kept] = store.jobs.list([JobState.RUNNING])
    store.database.clock = lambda: kept.updated_at + timedelta(seconds=2 * LEASE_S)
    pool = FakePool(outcome)
    report = retime(network, store, pool)
    assert report.job_id == kept.id
    assert len(dying.comparisons) == len(pool.comparisons) == 1
    assert dying.comparisons[0] != pool.comparisons[0]
    assert [task.retimed and task.retimed.payoff for task in report.tasks] == [Payoff.OTHER] * 2
    assert report.upgrade is not None and report.upgrade.tasks == 2
    events = store.jobs.events(report.job_id, kinds=[EventKind.CONFIRMED])
    assert [event.data["task_key"] for event in events] == list(network.tasks)
    assert [event.data["retimed"]["payoff"] for event in events] == ["other"] * 2


def test_a_new_default_is_tried_first(network: Model, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    [first, _] = tasks(network)
    tried = store.schedule_keys(first.key, TARGET.key)
    fresh = next(
        schedule
        for space in spaces(first, TARGET)
        for schedule in map(space.schedule, space.points)
        if schedule.key not in tried
    )

    def changed(task: Task, target: object) -> Schedule:
        return fresh if task.key == first.key else default_schedule(task, TARGET)

    monkeypatch.setattr(task_state, "default_schedule", changed)
    monkeypatch.setattr(task_state.TaskState, "ask", lambda state, n: [state.default])
    pool = FakePool(by(by_key, machine()))
    report = retime(network, store, pool)
    assert report.trials == 1 and [trial.record.schedule for trial in store.jobs.trials(report.job_id)] == [fresh]
    assert pool.comparisons[0][0] == fresh and len(pool.comparisons[0]) == 6
    assert report.tasks[0].default_key == fresh.key


def test_the_whole_model_is_timed_at_the_end(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    asked: list[Variants] = []

    def timing(wanted: Variants) -> ModelTimes:
        asked.append(wanted)
        return ModelTimes({name: CallLatency((3e-3 if name == "default" else 2e-3,) * 9) for name in wanted})

    report = retime(network, store, FakePool(slower_winner(network, store)), timing)
    assert [list(wanted) for wanted in asked] == [["default", "tuned"]]
    assert report.outcome is JobOutcome.FASTER
    assert {key: s.to_json() for key, s in asked[0]["tuned"].schedules.items()} == {
        task.key: task.schedule for task in report.tasks
    }


def test_a_job_of_tasks_leaves_the_verdict_on_their_model(network: Model, store: Store) -> None:
    def slow(wanted: Variants) -> ModelTimes:
        return ModelTimes({name: CallLatency((2e-3 if name == "default" else 3e-3,) * 9) for name in wanted})

    assert job(network, store, FakePool(by(by_key, OLD)), timing=slow).outcome is JobOutcome.DEFAULTS_KEPT
    verdict = model_verdict(store, list(network.tasks), TARGET.key)
    report = retime(network, store, FakePool(by(by_key, machine())), has_model=False)
    assert report.upgrade is not None and report.upgrade.tasks == 2
    assert verdict.kept and model_verdict(store, list(network.tasks), TARGET.key) == verdict


def test_the_share_is_of_the_searches_that_made_the_trials(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    job(network, store, FakePool(by(by_key, OLD)), trials=4)
    tuning_s = sum(one.spent_s for one in store.jobs.list())
    [first, second] = network.tasks
    assert store.staleness.tuning_s([first, second], TARGET.key) == pytest.approx(tuning_s)
    report = retime(network, store, FakePool(by(by_key, machine())))
    upgrade = report.upgrade
    assert upgrade is not None and upgrade.tuning_s == pytest.approx(tuning_s)
    assert upgrade.seconds == pytest.approx(store.jobs.get(report.job_id).spent_s)
    assert upgrade.share == pytest.approx(upgrade.seconds / tuning_s)
    parts = [store.staleness.tuning_s([key], TARGET.key) for key in (first, second)]
    assert sum(parts) == pytest.approx(tuning_s) and all(parts)


def test_a_job_that_searches_after_it_tells_nothing_of_re_timing(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    retime(network, store, FakePool(by(by_key, machine())))
    settled = job(network, store, FakePool(by(by_key, machine())), trials=1)
    assert settled.upgrade is None and [task.retimed for task in settled.tasks] == [None, None]


def test_more_finalists_than_are_compared_at_once_are_narrowed(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=60)
    pool = FakePool(by(by_key, machine()))
    retime(network, store, pool, schedules=12)
    assert [len(schedules) for schedules in pool.comparisons] == [13, 2 + COMPARED_AGAIN] * 2


def test_a_record_of_a_stale_task_says_its_versions(network: Model, store: Store) -> None:
    job(network, store, FakePool(by(by_key, OLD)), trials=24)
    [first, _] = store.staleness.tasks(TARGET.key, present_versions(TARGET.kind))
    best = store.best(first.task_key, TARGET.key)
    assert isinstance(best, Record) and first.schedule == best.schedule
    assert first.op == network.tasks[first.task_key][0].op and first.provenance["llvm"] == "3.4"
