"""What a job makes of its measurements, with a pool that says what the test wants."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tunewright.codegen.host import machine
from tunewright.db.errors import StoreError
from tunewright.db.job import EventKind, Idempotency, JobState, LeaseLost, SearchBudget
from tunewright.db.store import Store, open_store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import NOISE, Candidate, Measurement, Record, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.cli.model_io import shares
from tunewright.tuner.errors import Refused
from tunewright.tuner.explain.curves import improvements
from tunewright.tuner.known_times import TIME_FIELDS, KnownTimes
from tunewright.tuner.lookup.ladder import lookup_measured
from tunewright.tuner.lookup.result import Basis, Match, measured_times_s, read
from tunewright.tuner.lookup.verdict import default_results, model_verdict
from tunewright.tuner.models.assembly import Assembly, CallRange, TaskChain
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.search.confirmation import COMPARED_AGAIN
from tunewright.tuner.search.job import TuningJob, judge
from tunewright.tuner.search.learning import Learning
from tunewright.tuner.search.lease_keeper import LeaseKeeper
from tunewright.tuner.search.loop import RECENT
from tunewright.tuner.search.progress import Progress
from tunewright.tuner.search.report import JobOutcome as ReportOutcome
from tunewright.tuner.search.report import Report, SearchEnd, TaskReport
from tunewright.tuner.search.scheduling.scheduler import SMALLEST_LATER
from tunewright.tuner.search.stage import JobStage
from tunewright.tuner.search.task_state import FEWEST_FINALISTS, finalist_count
from tunewright.tuner.search.view import JobMoment
from tunewright.tuner.search.whole_model import ModelTimes, Variant, Variants, time_sessions
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.settings import settings
from tunewright.workers.measure.call_latency import CallLatency
from tunewright.workers.measure.noise import UNDISTURBED, Disturbance
from tunewright.workers.pool import ReferenceFailed

from ..waiting import wait_for
from .conftest import small_model
from .fake_pool import FAILED, LEASE_S, TARGET, FakePool, by_key, is_default, job, leased, spec_of, tasks, took, work
from .timings import STOLEN, takes


@pytest.fixture(scope="module")
def network() -> Model:
    return open_model(small_model().SerializeToString())


def test_the_best_are_compared_and_the_winner_is_used(network: Model, store: Store) -> None:
    def compared(candidate: Candidate) -> Measurement:
        return took(2e-3) if is_default(candidate) else took(1.0 - by_key(candidate).samples_s[0])

    pool = FakePool(by_key, compared)
    report = job(network, store, pool, trials=24)
    assert len(pool.comparisons) == len(report.tasks) == 2
    found = lookup_measured(store, tasks(network), TARGET)
    for task, schedules in zip(report.tasks, pool.comparisons, strict=True):
        records = store.records(task.key, TARGET.key)
        fastest = sorted(records, key=lambda record: record.measurement.median_s or 0)
        others = [record.schedule for record in fastest if record.schedule != schedules[0]]
        assert len(others) > FEWEST_FINALISTS
        assert schedules[1:] == others[:FEWEST_FINALISTS]
        # All are slower than the default beside each other, so it is what is used.
        assert found[task.key].schedule == schedules[0] == Schedule.from_json(task.schedule)
        assert found[task.key].confirmed and found[task.key].match == Match.EXACT
        assert task.best_s == task.default_s == found[task.key].expected_s == 2e-3


def test_what_fails_when_compared_is_not_used(network: Model, store: Store) -> None:
    fails: set[str] = set()

    def compared(candidate: Candidate) -> Measurement:
        return FAILED if candidate.schedule.key in fails else by_key(candidate)

    pool = FakePool(by_key, compared)
    for task in tasks(network):
        fails |= {schedule.key for schedule in (default_schedule(task, TARGET),)}
    report = job(network, store, pool, timing=partial(time_sessions, network, TARGET, settings().objects))
    assert report.default_s is None
    assert report.tuned_s is not None and report.tuned_s > 0
    for task_report in report.tasks:
        assert task_report.default_s is None
        assert task_report.schedule != default_schedule(network.tasks[task_report.key][0], TARGET).to_json()
    fails |= {schedule.key for schedules in pool.comparisons for schedule in schedules}
    before = lookup_measured(store, tasks(network), TARGET)
    job(network, store, pool, 4)
    for key, one in lookup_measured(store, tasks(network), TARGET).items():
        assert one.schedule.key not in fails
        assert one.schedule != before[key].schedule


def test_faster_trials_after_a_comparison_are_used(network: Model, store: Store) -> None:
    job(network, store, FakePool(by_key))
    [first, *_] = tasks(network)
    known = {record.schedule.key for record in store.records(first.key, TARGET.key)}
    [space, *_] = spaces(first, TARGET)
    fresh = next(s for s in map(space.schedule, space.points) if s.key not in known)
    store.record(Record(first.key, TARGET.key, fresh, took(1e-9)))
    found = lookup_measured(store, [first], TARGET)[first.key]
    assert (found.schedule, found.confirmed) == (fresh, False)


def test_what_is_best_for_a_similar_task_is_tried_early(network: Model, store: Store) -> None:
    job(network, store, FakePool(by_key))
    similar = open_model(small_model(rows=8).SerializeToString())
    nearest = lookup_measured(store, tasks(similar), TARGET)
    assert {one.match for one in nearest.values()} == {Match.NEAREST}
    job(similar, store, FakePool(by_key))
    assert any(one.schedule != default_schedule(one.task, TARGET) for one in nearest.values())
    for key, one in nearest.items():
        tried = [record.schedule for record in store.records(key, TARGET.key)]
        assert tried[0] == default_schedule(one.task, TARGET)
        assert tried.index(one.schedule) <= SMALLEST_LATER  # in the first batch after the default, if it is another one
        assert len(set(tried)) == len(tried)


def test_a_job_on_which_nothing_works(network: Model, store: Store) -> None:
    report = job(network, store, FakePool(lambda candidate: FAILED))
    assert report.default_s is None and report.tuned_s is None
    assert report.failed == {"crash": 12}
    assert [task.best_s for task in report.tasks] == [None, None]
    assert report.default_fault == "the default schedule of 2 tasks fails"


def test_a_model_of_which_nothing_works_is_not_timed(network: Model, store: Store, tmp_path: Path) -> None:
    """Not in a vendor's runtime either, beside which there is nothing."""

    def timing(variants: Variants) -> ModelTimes:
        return time_sessions(network, TARGET, tmp_path, variants)

    report = job(network, store, FakePool(lambda candidate: FAILED), timing=timing, vendor=True)
    assert report.whole_model == "no schedule of ours works" and report.outcome is ReportOutcome.UNTIMED
    assert report.vendor is not None and report.vendor.fault == report.whole_model


def test_a_task_without_a_reference_leaves_the_others(network: Model, store: Store, caplog) -> None:
    [first, second] = tasks(network)

    def outcome(candidate: Candidate) -> Measurement:
        if candidate.task.key == first.key:
            raise ReferenceFailed(first.key, "its reference takes too long")
        return by_key(candidate)

    report = job(network, store, FakePool(outcome))
    assert [task.trials > 1 for task in report.tasks] == [False, True]
    assert caplog.messages == ["not tuned: its reference takes too long"]
    assert lookup_measured(store, [second], TARGET)[second.key].confirmed


def test_a_default_that_fails_is_replaced(network: Model, store: Store) -> None:
    store.add_target(TARGET)
    for task in tasks(network):
        store.add_task(task)
        store.record(Record(task.key, TARGET.key, default_schedule(task, TARGET), FAILED))
    found = lookup_measured(store, tasks(network), TARGET)
    for one in found.values():
        assert one.match == Match.UNTRIED
        assert one.schedule != default_schedule(one.task, TARGET)
    assert lookup_measured(store, tasks(network), TARGET) == found
    with InferenceSession.of_results(network, TARGET, found) as session:
        assert (session.coverage().tuned, session.coverage().untuned) == (0, 2)
        assert session.schedules == {key: one.schedule for key, one in found.items()}


def test_a_task_without_any_schedule_is_refused(network: Model, store: Store, monkeypatch) -> None:
    monkeypatch.setattr("tunewright.tuner.lookup.result.DRAWN", 3)
    store.add_target(TARGET)
    for task in tasks(network):
        store.add_task(task)
    for _ in range(20):
        found = lookup_measured(store, tasks(network), TARGET)
        for key, one in found.items():
            store.record(Record(key, TARGET.key, one.schedule, FAILED))
    assert {one.match for one in found.values()} == {Match.NONE}
    with pytest.raises(Refused, match="its default and all else that was tried fail"):
        InferenceSession.of_results(network, TARGET, found)


def test_a_gain_over_a_default_of_another_moment_is_noisy_where_trials_in_between_are(
    network: Model, store: Store
) -> None:
    """Short trials can't tell that of themselves."""
    turn = count()

    def outcome(candidate: Candidate) -> Measurement:
        number = next(turn)
        return replace(took(1e-3 / (1 + number)), provenance={NOISE: "others were busy"} if number == 4 else {})

    found = job(network, store, FakePool(outcome), trials=20)
    events = store.jobs.events(found.job_id, kinds=[EventKind.IMPROVED])
    noises = {event.data["trial"]: (event.data["noise"], event.data["apart_noise"]) for event in events}
    assert set(noises.values()) == {("", ""), ("", "others were busy"), ("others were busy", "others were busy")}
    assert all(bool(apart) == (4 <= trial < 4 + RECENT) for trial, (_, apart) in noises.items())


def test_a_job_tells_what_happens_to_it(network: Model, store: Store) -> None:
    report = job(network, store, FakePool(by_key))
    events = [event for event in store.jobs.events(report.job_id) if event.kind is not EventKind.PROGRESS]
    kinds = [event.kind for event in events]
    assert kinds[:3] == [EventKind.QUEUED, EventKind.STARTED, EventKind.STAGE]
    stages = [e.data["stage"] for e in events if e.kind is EventKind.STAGE]
    assert stages == ["searching", "learning", "confirming", "running"]
    trials = [trial.record for trial in store.jobs.trials(report.job_id)]
    best_ms: dict[str, float] = {}
    for event in (event for event in events if event.kind is EventKind.IMPROVED):
        data = event.data
        trial = trials[data["trial"]]
        assert (trial.task_key, 1e3 * (trial.measurement.median_s or 0)) == (data["task_key"], data["best_ms"])
        assert data["default_ms"] == 1.0 and data["op"] == network.tasks[data["task_key"]][0].op
        assert data["best_ms"] < best_ms.get(data["task_key"], 1.0)
        best_ms[data["task_key"]] = data["best_ms"]
    assert best_ms.keys() == network.tasks.keys()
    confirmed = [event.data for event in events if event.kind is EventKind.CONFIRMED]
    assert [data["task_key"] for data in confirmed] == list(network.tasks)
    for data, task in zip(confirmed, report.to_json()["tasks"], strict=True):
        names = ("default_ms", "best_ms", "default_interval_ms", "best_interval_ms", "noise")
        assert {name: data[name] for name in names} == {name: task[name] for name in names}
    assert events[-1].kind is EventKind.SUCCEEDED
    assert events[-1].data == store.jobs.get(report.job_id).result == report.to_json()


def test_nothing_was_timed_yet_where_learning_fails(network: Model, store: Store, monkeypatch) -> None:
    """So nothing is lost: the trials are stored, and the same job goes on from there."""
    asked: list[Variants] = []
    lease, pool = leased(network, store), FakePool(by_key)

    def timing(wanted: Variants) -> ModelTimes:
        asked.append(wanted)
        return ModelTimes(dict.fromkeys(wanted, CallLatency((3e-3,))))

    def away(learning: Learning, job_id: int | None) -> None:
        raise StoreError("it is away")

    with monkeypatch.context() as patch, LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        patch.setattr(Learning, "keep", away)
        with pytest.raises(StoreError, match="it is away"):
            work(network, store, pool, keeper, timing)
    assert (store.counts()["trials"], pool.comparisons, asked) == (12, [], [])
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        report = work(network, store, pool, keeper, timing)
    assert (report.trials, len(pool.comparisons), len(asked)) == (12, 2, 1)
    assert store.jobs.get(report.job_id).result == report.to_json()


def test_a_report_comes_back_from_json(network: Model, store: Store) -> None:
    report = job(network, store, FakePool(by_key))
    data = json.loads(json.dumps(report.to_json()))
    assert Report.from_json(data).to_json() == data


def test_a_lost_lease_ends_the_work_without_a_write(network: Model, store: Store) -> None:
    lease = leased(network, store)

    def outcome(candidate: Candidate) -> Measurement:
        if store.counts()["trials"] == 3:
            store.jobs.give_back(lease)  # as it were: by whoever takes it
            told.append(len(store.jobs.events(lease.job_id)))
        return by_key(candidate)

    told: list[int] = []
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper, pytest.raises(LeaseLost):
        work(network, store, FakePool(outcome), keeper)
    assert store.counts()["trials"] == 3
    assert [len(store.jobs.events(lease.job_id))] == told
    assert store.jobs.get(lease.job_id).state is JobState.PAUSED


def test_a_job_ends_when_nothing_is_left_to_try(network: Model, store: Store, monkeypatch) -> None:
    monkeypatch.setattr("tunewright.tuner.search.strategies.evolutionary.Evolutionary.ask", asked_at_most(5))
    report = job(network, store, FakePool(by_key), trials=1000)
    assert report.trials == 10
    ended = store.jobs.get(report.job_id)
    assert (ended.state, report.ended_by) == (JobState.SUCCEEDED, SearchEnd.EXHAUSTED)
    assert ended.progress and (ended.progress["again_gain"], ended.progress["task_gains"]) == (0.0, [None, None])
    assert job(network, store, FakePool(by_key), until=1e-9).ended_by is SearchEnd.EXHAUSTED


def asked_at_most(points: int):
    """An `ask` of a strategy whose spaces hold so many points."""
    rng = np.random.default_rng(0)

    def ask(strategy, n: int) -> list[Schedule]:
        history = strategy._history
        taken = history.measured_count + history.pending_count
        found = [*history.defaults(), *history.draw(n, rng)]
        schedules: list[Schedule] = history.take(found[: min(n, points - taken)])
        return schedules

    return ask


def extended(store: Store, job_id: int, name: str, *, trials: int | None = None, seconds: float | None = None) -> None:
    """Raise the budget of a job, as people do while it is worked on."""
    store.jobs.extend(job_id, Idempotency("k", name, "ab" * 32), trials=trials, seconds=seconds)


@pytest.mark.parametrize("at", [1, 12])
def test_a_budget_that_is_raised_is_taken_over(network: Model, store: Store, at: int) -> None:
    """By the search that goes on, also where its last trial was just done."""
    lease = leased(network, store)

    def outcome(candidate: Candidate) -> Measurement:
        if not asked and store.counts()["trials"] == at - 1:
            asked.append(at)
            extended(store, lease.job_id, "more", trials=8)
        return by_key(candidate)

    asked: list[int] = []
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        report = work(network, store, FakePool(outcome), keeper)
    kinds = [event.kind for event in store.jobs.events(report.job_id, limit=None)]
    ended = store.jobs.get(report.job_id)
    assert (asked, report.trials, report.ended_by, ended.state) == ([at], 20, SearchEnd.TRIALS, JobState.SUCCEEDED)
    assert ended.progress and ended.progress["most_trials"] == 20
    assert [kinds.count(kind) for kind in (EventKind.STARTED, EventKind.CHANGED)] == [1, 1]


def test_a_raised_budget_is_known_before_the_search_would_end(network: Model, store: Store) -> None:
    """Its holder asks for it every second, and what is expected of the rest counts it."""
    told: list[Progress] = []

    def outcome(candidate: Candidate) -> Measurement:
        if store.counts()["trials"] == 3 and keeper.budget != SearchBudget(20):
            extended(store, lease.job_id, "more", trials=8)
            wait_for(lambda: keeper.budget == SearchBudget(20))
        return by_key(candidate)

    lease = leased(network, store)
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        found, uses = store.jobs.get(lease.job_id), list(network.tasks.values())
        TuningJob(found, uses, TARGET, store, FakePool(outcome), keeper, watch=told.append).run()
    budgets = {progress.trials: progress.budget.trials for progress in told if progress.last is not None}
    assert budgets == {count: 12 if count < 5 else 20 for count in range(1, 21)}


def test_a_budget_that_is_raised_after_the_search_begins_it_again(network: Model, store: Store) -> None:
    """Rather than that nobody hears of it: the job is over only by the budget that it has."""
    lease, searched_s = leased(network, store), []

    def timing(wanted: Variants) -> ModelTimes:
        searched_s.append(store.jobs.get(lease.job_id).spent_s)
        if len(searched_s) == 1:
            extended(store, lease.job_id, "more", trials=8)
        return ModelTimes(dict.fromkeys(wanted, CallLatency((3e-3,))))

    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        report = work(network, store, FakePool(by_key), keeper, timing)
    ended = store.jobs.get(report.job_id)
    assert (report.trials, len(searched_s), ended.state) == (20, 2, JobState.SUCCEEDED)
    assert ended.result == report.to_json() and searched_s[0] <= searched_s[1]
    stages = [event.data["stage"] for event in store.jobs.events(report.job_id, kinds=[EventKind.STAGE])]
    assert stages == 2 * ["searching", "learning", "confirming", "running"]


def test_minutes_that_are_added_are_searched(network: Model, store: Store) -> None:
    """A job out of time goes on for what was added, whoever takes it up."""
    budget = SearchBudget(30, seconds=1e-9)
    lease = store.jobs.open(spec_of(network, store), network.label, budget, "me", LEASE_S)
    assert lease is not None
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        assert work(network, store, FakePool(by_key), keeper).ended_by is SearchEnd.MINUTES
    assert store.jobs.get(lease.job_id).state is JobState.PAUSED
    extended(store, lease.job_id, "more", seconds=600.0)
    again = store.jobs.lease([TARGET.key], "another")
    assert again is not None and again.job_id == lease.job_id
    with LeaseKeeper(store.jobs, again, LEASE_S) as keeper:
        report = work(network, store, FakePool(by_key), keeper)
    assert (report.trials, report.ended_by) == (30, SearchEnd.TRIALS)


def test_a_model_that_stays_as_it_is_is_timed_once(network: Model, store: Store) -> None:
    asked: list[list[str]] = []

    def timing(wanted: Variants) -> ModelTimes:
        asked.append(list(wanted))
        return ModelTimes(dict.fromkeys(wanted, CallLatency((3e-3,))))

    same = job(network, store, FakePool(lambda one: took(1e-3 if is_default(one) else 2e-3)), timing=timing)
    assert (asked, same.default_s, same.tuned_s) == ([["default"]], 3e-3, 3e-3)
    job(network, store, FakePool(by_key), seed=1, timing=timing)
    assert asked[1:] == [["default", "tuned"]]


def test_what_ends_a_search_is_told(network: Model, store: Store, monkeypatch) -> None:
    # Nothing tells yet that less is to be expected than of any task, which is less than half.
    early = job(network, store, FakePool(by_key), until=0.5)
    assert (early.ended_by, early.trials) == (SearchEnd.UNTIL, 2)
    assert store.jobs.get(early.job_id).state is JobState.SUCCEEDED
    assert Report.from_json(store.jobs.get(early.job_id).result or {}).ended_by is SearchEnd.UNTIL
    late = job(network, store, FakePool(by_key), until=1e-9)
    assert (late.ended_by, late.trials) == (SearchEnd.TRIALS, 12)
    monkeypatch.setattr("tunewright.tuner.search.strategies.evolutionary.Evolutionary.ask", lambda strategy, n: [])
    assert job(network, store, FakePool(by_key)).ended_by is SearchEnd.EXHAUSTED
    assert Report.from_json({**early.to_json(), "ended_by": None}).ended_by is None


def test_what_is_left_is_told(network: Model, store: Store) -> None:
    told: list[Progress] = []
    with LeaseKeeper(store.jobs, leased(network, store, 40), LEASE_S) as keeper:
        found = store.jobs.get(keeper.lease.job_id)
        uses = list(network.tasks.values())
        TuningJob(found, uses, TARGET, store, FakePool(lambda one: took(1e-3)), keeper, watch=told.append).run()
    searching = [progress for progress in told if progress.stage is JobStage.SEARCHING]
    assert searching[1].remaining_gain is None  # one of two tasks was not tried
    assert searching[1].left_s is None  # and a single trial tells no pace
    known = [progress for progress in searching if progress.forecast]
    gains = [progress.remaining_gain for progress in known]
    assert all(gain is not None and 0 <= gain < 0.1 for gain in gains) and (gains[0] or 0) > (gains[-2] or 0)
    assert (known[-1].left_s, known[-1].remaining_gain) == (0, 0)
    assert all(progress.left_s is not None for progress in known)
    assert told[-1].remaining_gain is None and told[-1].stage is JobStage.DONE
    assert (store.jobs.get(found.id).progress or {}).keys() >= {"left_s", "remaining_gain"}


def test_what_more_budget_would_bring_is_told_by_task(network: Model, store: Store) -> None:
    told: list[Progress] = []
    with LeaseKeeper(store.jobs, leased(network, store, 40), LEASE_S) as keeper:
        found = store.jobs.get(keeper.lease.job_id)
        uses = list(network.tasks.values())
        TuningJob(found, uses, TARGET, store, FakePool(lambda one: took(1e-3)), keeper, watch=told.append).run()
    last = [progress for progress in told if progress.stage is JobStage.SEARCHING][-1].to_json()
    assert last["remaining_gain"] == 0 < last["again_gain"] < 0.1  # of the budget nothing is left
    kept = store.jobs.get(found.id).progress or {}
    assert (kept["stage"], kept["remaining_gain"], kept["again_gain"]) == ("running", None, last["again_gain"])
    whole = sum(gain or 0.0 for gain in last["task_gains"])
    assert len(last["task_gains"]) == 2 and 1 / (1 - whole) - 1 == pytest.approx(last["again_gain"], abs=2e-4)
    assert told[0].to_json()["task_gains"] is None


def test_trials_of_tasks_add_up_to_those_of_the_job(network: Model, store: Store) -> None:
    """In the report and in the view: the database knows more."""
    job(network, store, FakePool(by_key), trials=12)
    told: list[JobMoment] = []

    def watch(progress: Progress) -> None:
        told.append(JobMoment.of(progress))

    with LeaseKeeper(store.jobs, leased(network, store, 6, seed=1), LEASE_S) as keeper:
        found = store.jobs.get(keeper.lease.job_id)
        uses = list(network.tasks.values())
        report = TuningJob(found, uses, TARGET, store, FakePool(by_key), keeper, watch=watch).run()
    assert (sum(task.job_trials or 0 for task in report.tasks), sum(task.trials for task in report.tasks)) == (6, 18)
    assert Report.from_json(report.to_json()).tasks[0].job_trials == report.tasks[0].job_trials
    begun, *_, last = told
    assert (begun.known, sum(row.trials or 0 for row in begun.tasks)) == (12, 0)
    assert (last.trials, sum(row.trials or 0 for row in last.tasks)) == (6, 6)


def test_the_view_marks_times_of_trials_that_vary(network: Model, store: Store) -> None:
    told: list[JobMoment] = []

    def unsteady(candidate: Candidate) -> Measurement:
        return replace(by_key(candidate), high_s=2e-3)

    with LeaseKeeper(store.jobs, leased(network, store, 6), LEASE_S) as keeper:
        found = store.jobs.get(keeper.lease.job_id)
        uses, pool = list(network.tasks.values()), FakePool(unsteady)
        TuningJob(found, uses, TARGET, store, pool, keeper, watch=lambda now: told.append(JobMoment.of(now))).run()
    assert all("apart" in row.noise for row in told[-1].tasks)
    assert not any(row.noise for row in told[0].tasks)  # nothing was timed yet


def test_defaults_are_told_once(network: Model, store: Store) -> None:
    """As they are measured, or at the begin of a job where they are known."""

    def defaults(report: Report) -> dict[str, tuple[float, float]]:
        events = store.jobs.events(report.job_id, kinds=[EventKind.DEFAULT])
        data = [event.data for event in events]
        assert len(data) == 2 and all(one["op"] == network.tasks[one["task_key"]][0].op for one in data)
        return {one["task_key"]: (one["default_ms"], one["best_ms"]) for one in data}

    first = job(network, store, FakePool(by_key))
    assert defaults(first) == dict.fromkeys(network.tasks, (1.0, 1.0))
    trials_s = {key: [r.measurement.median_s or 0 for r in store.records(key, TARGET.key)] for key in network.tasks}
    again = job(network, store, FakePool(by_key))
    assert defaults(again) == {key: (1.0, 1e3 * min(times_s)) for key, times_s in trials_s.items()}


def now(measurement: Measurement) -> Measurement:
    """By the compiler at hand."""
    return replace(measurement, provenance=machine())


def by_key_now(candidate: Candidate) -> Measurement:
    return now(by_key(candidate))


def test_what_nothing_could_change_is_not_compared_again(network: Model, store: Store) -> None:
    first = job(network, store, FakePool(by_key_now))
    pool = FakePool(by_key_now)
    again = job(network, store, pool, until=1e9)
    assert (again.ended_by, again.trials, pool.comparisons) == (SearchEnd.UNTIL, 0, [])
    assert [replace(task, fraction_of_peak=None) for task in again.tasks] == [
        replace(task, fraction_of_peak=None, job_trials=0) for task in first.tasks
    ]
    kinds = [event.kind for event in store.jobs.events(again.job_id)]
    assert kinds.count(EventKind.CONFIRMED) == 2


def spread(candidate: Candidate) -> Measurement:
    """The default's times lie apart, and those of no other."""
    time_s, part = (2e-3, 0.06) if is_default(candidate) else (1e-3, 0.01)
    samples_s = tuple(time_s * (1 + part * n) for n in range(-2, 3))
    return now(Measurement(Status.OK, samples_s, time_s, samples_s[0], samples_s[-1]))


def test_what_was_confirmed_is_told_alike_from_then_on(network: Model, store: Store) -> None:
    """With its intervals and its mark: as it is confirmed, in the report, of the record, as the next job begins."""
    first = job(network, store, FakePool(by_key_now, spread))
    again = job(network, store, FakePool(by_key_now, spread), until=1e9)
    confirmed, defaults = (
        {event.data["task_key"]: event.data for event in store.jobs.events(number, kinds=[kind])}
        for number, kind in ((first.job_id, EventKind.CONFIRMED), (again.job_id, EventKind.DEFAULT))
    )
    records = store.best_many(network.tasks, TARGET.key)
    for task in first.tasks:
        told = {name: confirmed[task.key][name] for name in TIME_FIELDS}
        assert "24% apart" in told["noise"] and None not in told.values()
        kept = KnownTimes.of_confirmation(records[task.key].measurement, TARGET).to_json()
        assert defaults[task.key]["confirmed"] == kept == told
        assert told.items() <= task.to_json().items()


def test_what_became_slower_is_told_once(network: Model, store: Store) -> None:
    """With its confirmation: as it was confirmed by another compiler, and as it is by this one."""

    def timed(factor: float, **provenance: str) -> Callable[[Candidate], Measurement]:
        def outcome(candidate: Candidate) -> Measurement:
            time_s = factor * (2e-3 if is_default(candidate) else 1e-3)
            samples_s = tuple(time_s * (1 + 0.01 * n) for n in range(-2, 3))
            found = Measurement(Status.OK, samples_s, time_s, samples_s[0], samples_s[-1])
            return replace(found, provenance=machine() | provenance)

        return outcome

    first = job(network, store, FakePool(by_key_now, timed(1.0, llvm="1.0")))
    second = job(network, store, FakePool(by_key_now, timed(1.2)))
    third = job(network, store, FakePool(by_key_now, timed(1.2)), seed=1)
    told = {
        report.job_id: store.jobs.events(report.job_id, kinds=[EventKind.REGRESSED])
        for report in (first, second, third)
    }
    assert told[first.job_id] == told[third.job_id] == []
    assert [report.regressed for report in (first, second, third)] == [0, 2, 0]
    confirmed = store.jobs.events(second.job_id, kinds=[EventKind.CONFIRMED])
    assert [event.number for event in told[second.job_id]] == [event.number + 1 for event in confirmed]
    assert [event.data["task_key"] for event in told[second.job_id]] == [task.key for task in second.tasks]
    data = told[second.job_id][0].data
    assert (data["before_ms"], data["now_ms"]) == (pytest.approx(1.0), pytest.approx(1.2))
    assert (data["before"], data["now"]) == ({"llvm": "1.0"}, {"llvm": machine()["llvm"]})


def test_trials_of_a_job_before_are_told_with_their_intervals(network: Model, store: Store) -> None:
    """As that job told them, which confirmed nothing."""
    [task, _] = tasks(network)
    found = next(s for space in spaces(task, TARGET) for s in map(space.schedule, space.points) if s != space.default)
    default = Candidate(task, TARGET, default_schedule(task, TARGET))
    store.add_target(TARGET)
    store.add_task(task)
    for candidate in (default, Candidate(task, TARGET, found)):
        store.record(Record(task.key, TARGET.key, candidate.schedule, spread(candidate)))
    report = job(network, store, FakePool(by_key_now, spread), trials=2)
    [event] = [
        event.data
        for event in store.jobs.events(report.job_id, kinds=[EventKind.DEFAULT])
        if event.data["task_key"] == task.key
    ]
    assert (event["default_ms"], event["best_ms"]) == (2.0, 1.0)
    assert event["default_interval_ms"] == pytest.approx([2.0 * 0.88, 2.0 * 1.12])
    assert event["best_interval_ms"] == pytest.approx([0.98, 1.02])
    assert event["default_confirmed"] is False and "confirmed" not in event


def test_what_another_job_confirms_meanwhile_is_told(network: Model, store: Store) -> None:
    """A trial that is slower than that is no improvement."""
    kept = replace(now(took(1e-9)), incumbent_s=2e-9)
    others: list[Task] = []

    def outcome(candidate: Candidate) -> Measurement:
        if not others:
            others.extend(task for task in tasks(network) if task != candidate.task)
            schedule = default_schedule(others[0], TARGET)
            store.record(Record(others[0].key, TARGET.key, schedule, now(took(1.0))))
            store.confirm(Record(others[0].key, TARGET.key, schedule, kept))
        return by_key_now(candidate)

    mine = job(network, store, FakePool(outcome, spread))
    events = store.jobs.events(mine.job_id, kinds=[EventKind.DEFAULT, EventKind.IMPROVED])
    [event] = [event.data for event in events if event.data["task_key"] == others[0].key]
    assert event["confirmed"] == KnownTimes.of_confirmation(kept, TARGET).to_json()


def test_what_another_model_has_confirmed_since_is_not_told_as_before(network: Model, store: Store) -> None:
    """Though the same schedule won: the times of the newest comparison are told everywhere."""
    job(network, store, FakePool(by_key_now, spread))
    slower = FakePool(by_key_now, lambda candidate: took_longer(spread(candidate)))
    job(replace(network, sha256="0" * 64), store, slower, until=1e9)
    pool = FakePool(by_key_now, spread)
    last = job(network, store, pool, until=1e9)
    records = store.best_many(network.tasks, TARGET.key)
    assert len(pool.comparisons) == 2
    assert {task.key: task.best_s for task in last.tasks} == {
        key: record.measurement.median_s for key, record in records.items()
    }


def took_longer(measurement: Measurement) -> Measurement:
    return replace(measurement, median_s=1.01 * (measurement.median_s or 0.0))


def test_what_was_found_since_is_compared(network: Model, store: Store) -> None:
    """By this job or by another; of the two tasks one alone."""
    job(network, store, FakePool(by_key_now))
    [softmax] = [task for task in tasks(network) if task.op == "Softmax"]
    known = {record.schedule.key for record in store.records(softmax.key, TARGET.key)}
    fresh = next(
        s for space in spaces(softmax, TARGET) for s in map(space.schedule, space.points) if s.key not in known
    )
    store.record(Record(softmax.key, TARGET.key, fresh, now(took(1e-9))))
    pool = FakePool(by_key_now)
    job(network, store, pool, until=1e9)
    assert [fresh in schedules for schedules in pool.comparisons] == [True]
    pool = FakePool(lambda candidate: now(took(1e-10)))
    job(network, store, pool, trials=1)
    assert len(pool.comparisons) == 1


def test_another_model_has_its_own_comparison(network: Model, store: Store) -> None:
    """Where constants lie when a task's turn comes depends on all of the model."""
    job(network, store, FakePool(by_key_now))
    pool = FakePool(by_key_now)
    job(replace(network, sha256="0" * 64), store, pool, until=1e9)
    assert len(pool.comparisons) == 2


OLD = dict.fromkeys(machine(), "old")


def test_old_winners_are_timed_again_after_an_upgrade(network: Model, store: Store) -> None:
    """Though nothing new is tried: the winner of an old compiler and the default are compared with the new one."""

    def made_by(provenance: dict[str, str], slower: float = 1.0):
        return lambda candidate: dataclasses.replace(
            took(slower * by_key(candidate).samples_s[0]), provenance=provenance
        )

    job(network, store, FakePool(made_by(OLD)))
    before = store.confirmations(network.tasks, TARGET.key)
    pool = FakePool(made_by(machine(), slower=3.0))
    report = job(network, store, pool, trials=1)  # the heavier task gets it
    after = store.confirmations(network.tasks, TARGET.key)
    assert sum(task.trials for task in report.tasks) == 13
    for task, schedules in zip(tasks(network), pool.comparisons, strict=True):
        assert schedules[0] == default_schedule(task, TARGET)
        assert before[task.key].schedule in schedules
        winner = after[task.key]  # the trial that is new may be the fastest
        assert winner.measurement.provenance == machine()
        assert winner.measurement.median_s == 3 * by_key(Candidate(task, TARGET, winner.schedule)).samples_s[0]
        assert store.best(task.key, TARGET.key) == winner


@pytest.mark.slow
def test_of_many_finalists_the_best_are_compared_once_more_and_that_alone_counts(network: Model, store: Store) -> None:
    def compared(candidate: Candidate) -> Measurement:
        """In the first comparison of a task others are faster, by what they were slower in trials."""
        is_first = sum(candidate.schedule in schedules for schedules in pool.comparisons) == 1
        if is_default(candidate):
            return took(1e-3 if is_first else 2e-3)
        return took(9e-4 - by_key(candidate).samples_s[0] if is_first else 3e-3)

    pool = FakePool(by_key, compared)
    report = job(network, store, pool, trials=240)
    task, _ = report.tasks
    first, second, *rest = pool.comparisons
    count = finalist_count(network.tasks[task.key][0], task.trials)
    assert len(first) == 1 + count > 1 + COMPARED_AGAIN
    assert second == [first[0], *first[-COMPARED_AGAIN:]]
    assert Schedule.from_json(task.schedule) == first[0]
    assert task.best_s == task.default_s == 2e-3
    assert len(rest) == 1 and len(rest[0]) <= 1 + COMPARED_AGAIN  # of the other task there are few: once is enough


@pytest.mark.slow
def test_what_fails_in_a_first_comparison_is_not_in_the_next(network: Model, store: Store) -> None:
    """Though it is the default, which others have to beat in each."""
    pool = FakePool(by_key, lambda candidate: FAILED if is_default(candidate) else by_key(candidate))
    report = job(network, store, pool, trials=240)
    task, _ = report.tasks
    first, second, *_ = pool.comparisons
    assert first[0] == default_schedule(network.tasks[task.key][0], TARGET)
    assert second == first[1 : 1 + COMPARED_AGAIN]
    assert (task.default_s, task.schedule) == (None, first[1].to_json())


def confirmed_tasks(store: Store, job_id: int) -> list[str]:
    """The tasks that the events of a job call confirmed, in order."""
    return [event.data["task_key"] for event in store.jobs.events(job_id, kinds=[EventKind.CONFIRMED])]


def current(candidate: Candidate) -> Measurement:
    """`by_key` with the compiler at hand."""
    return replace(by_key(candidate), provenance=machine())


@pytest.mark.parametrize("more", [0, 12])
def test_an_interrupted_confirmation_goes_on_where_it_was(network: Model, store: Store, more: int) -> None:
    """What is confirmed is not confirmed again, but where new trials are among the best."""

    def compared(candidate: Candidate) -> Measurement:
        if len(pool.comparisons) == 2:
            raise KeyboardInterrupt
        return current(candidate)

    pool = FakePool(current, compared)
    lease = leased(network, store, trials=12)
    with pytest.raises(KeyboardInterrupt), LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        work(network, store, pool, keeper)
    store.jobs.give_back(lease)
    first, second = tasks(network)
    assert confirmed_tasks(store, lease.job_id) == [first.key]

    def faster(candidate: Candidate) -> Measurement:
        return replace(took(by_key(candidate).samples_s[0] / 2), provenance=machine())

    pool = FakePool(faster if more else current, current)
    report = job(network, store, pool, trials=12 + more)
    assert report.job_id == lease.job_id and report.trials == 12 + more
    defaults = [default_schedule(task, TARGET) for task in ((first, second) if more else (second,))]
    assert [schedules[0] for schedules in pool.comparisons] == defaults
    assert confirmed_tasks(store, lease.job_id) == [
        first.key,
        *(task.key for task in ((first, second) if more else (second,))),
    ]
    for task in report.tasks:
        record = store.confirmations([task.key], TARGET.key)[task.key]
        assert task.is_confirmed and task.schedule == record.schedule.to_json()
        assert task.best_s == pytest.approx(record.measurement.median_s) and task.default_s == pytest.approx(1e-3)
        assert task.trials == len(store.records(task.key, TARGET.key))


def test_what_has_nothing_to_compare_is_not_counted_as_confirmed(network: Model, store: Store) -> None:
    first, second = tasks(network)
    pool = FakePool(
        lambda candidate: (
            FAILED if candidate.task.key == first.key and not is_default(candidate) else current(candidate)
        )
    )
    report = job(network, store, pool, trials=24)
    assert {task.key: task.is_confirmed for task in report.tasks} == {first.key: False, second.key: True}
    ended = store.jobs.get(report.job_id)
    assert ended.progress is not None
    assert (ended.progress["confirmed"], ended.progress["to_confirm"], ended.progress["left_s"]) == (1, 1, None)
    assert confirmed_tasks(store, report.job_id) == [second.key]
    again = job(network, store, FakePool(current), trials=1, seed=1)
    told = store.jobs.get(again.job_id).progress
    assert told is not None
    assert told["confirmed"] == told["to_confirm"] == len(set(confirmed_tasks(store, again.job_id)))


def test_new_schedules_are_not_held_against_times_from_before_an_upgrade(network: Model, store: Store) -> None:
    def old(candidate: Candidate) -> Measurement:
        return dataclasses.replace(took(1e-9 * by_key(candidate).samples_s[0]), provenance=OLD)

    def new(candidate: Candidate) -> Measurement:
        return dataclasses.replace(by_key(candidate), provenance=machine())

    job(network, store, FakePool(old))
    pool = FakePool(new)
    job(network, store, pool, trials=12)
    for task in tasks(network):
        records = store.records(task.key, TARGET.key)
        fresh = [record for record in records if record.measurement.provenance == machine()]
        fastest = sorted(fresh, key=lambda record: record.measurement.median_s or 0)[:FEWEST_FINALISTS]
        compared, *_ = [each for each in pool.comparisons if each[0] == default_schedule(task, TARGET)]
        assert fastest and {record.schedule for record in fastest} <= set(compared)


def test_a_single_schedule_of_an_old_compiler_is_timed_again(network: Model, store: Store) -> None:
    spec_of(network, store)
    for task in tasks(network):
        measurement = dataclasses.replace(took(1e-3), provenance=OLD)
        store.record(Record(task.key, TARGET.key, default_schedule(task, TARGET), measurement))
    pool = FakePool(lambda candidate: FAILED if not is_default(candidate) else took(2e-3))
    job(network, store, pool, trials=1)
    for task, schedules in zip(tasks(network), pool.comparisons, strict=True):
        assert schedules == [default_schedule(task, TARGET)]
    assert len(store.confirmations(network.tasks, TARGET.key)) == 2


def test_two_jobs_of_the_same_tasks_measure_each_candidate_once(network: Model, tmp_path: Path) -> None:
    """Whatever two jobs at once have in common; each learns what the other has measured."""
    seen: list[tuple[str, str]] = []

    def outcome(candidate: Candidate) -> Measurement:
        seen.append((candidate.task.key, candidate.schedule.key))
        return by_key(candidate)

    reports: list[Report] = []
    url = f"sqlite:///{tmp_path / 'tuning.db'}"
    with open_store(url) as mine, open_store(url) as theirs:

        def run(store: Store, seed: int) -> None:
            reports.append(job(network, store, FakePool(outcome, by_key), 40, seed))

        threads = [threading.Thread(target=run, args=(store, n)) for n, store in enumerate((mine, theirs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == len(set(seen)) == 80
        assert [report.trials for report in reports] == [40, 40]
        assert mine.counts()["trials"] == 80


def test_a_task_that_another_job_has_is_passed_over(network: Model, store: Store) -> None:
    """The other task is measured first; this one when the other job lets go of it."""
    [first, second] = tasks(network)
    other = leased(network, store, seed=1)
    assert store.jobs.claim(other, first.key)
    order: list[str] = []

    def outcome(candidate: Candidate) -> Measurement:
        order.append(candidate.task.key)
        if len(order) == 8:
            store.jobs.give_back(other)
        return by_key(candidate)

    job(network, store, FakePool(outcome, by_key), 40)
    assert set(order[:8]) == {second.key}
    assert set(order) == {first.key, second.key}


def test_what_another_job_finds_meanwhile_is_told(network: Model, store: Store) -> None:
    """The sum of all tasks is of it, too: what tells each task by its events must not fall behind."""
    [_, second] = tasks(network)
    found = next(s for space in spaces(second, TARGET) for s in map(space.schedule, space.points) if s != space.default)

    def outcome(candidate: Candidate) -> Measurement:
        if candidate.task.key != second.key:
            store.record(Record(second.key, TARGET.key, found, took(1e-9)))
        return by_key(candidate)

    mine = job(network, store, FakePool(outcome))
    events = store.jobs.events(mine.job_id, kinds=[EventKind.IMPROVED])
    [event] = [event for event in events if event.data["task_key"] == second.key]
    assert event.data["best_ms"] == pytest.approx(1e-6) and event.data["trial"] is None
    assert improvements(events).keys() <= {task.key for task in tasks(network)} - {second.key}


def test_a_trial_whose_answer_was_lost_counts_once(network: Model, store: Store, monkeypatch) -> None:
    """It is stored, but storing it again, after another write under the lease, finds it there."""
    stored = store.record

    def lost(*arguments, **more) -> bool:
        stored(*arguments, **more)
        return stored(*arguments, **more)

    monkeypatch.setattr(store, "record", lost)
    report = job(network, store, FakePool(by_key))
    assert report.trials == store.counts()["trials"] == 12


def test_a_model_that_is_faster_says_by_how_much(network: Model, store: Store) -> None:
    report = job(network, store, FakePool(by_key), timing=takes(default=3e-3, tuned=2e-3))
    assert (report.outcome, report.rejected_s) == (ReportOutcome.FASTER, None)
    assert report.speedup == pytest.approx(1.5, rel=0.01)
    low, high = report.speedup_interval or (0.0, 0.0)
    assert report.speedup is not None and 1.48 < low <= report.speedup <= high < 1.52
    assert report.tuned_interval_s is not None and report.tuned_interval_s[0] <= (report.tuned_s or 0.0)
    for task in report.tasks:
        assert task.best_interval_s is None and task.default_interval_s is None  # their samples are all the same


@pytest.mark.parametrize("tuned_s", [3.3e-3, 3.003e-3])
def test_a_winner_that_makes_its_model_no_faster_is_not_used(network: Model, store: Store, tuned_s: float) -> None:
    """It may be the fastest of its task nevertheless: another model that has the task uses it."""
    report = job(network, store, FakePool(by_key), timing=takes(default=3e-3, tuned=tuned_s))
    assert report.outcome is ReportOutcome.DEFAULTS_KEPT
    assert (report.tuned_s, report.speedup) == (report.default_s, 1.0)
    assert report.rejected_s == pytest.approx(tuned_s, rel=0.06) and report.rejected_interval is not None
    assert report.rejected_interval[0] <= 1.0
    assert Report.from_json(json.loads(json.dumps(report.to_json()))).outcome is ReportOutcome.DEFAULTS_KEPT
    found = lookup_measured(store, tasks(network), TARGET)
    told = model_verdict(store, found, TARGET.key).kept
    assert told is not None
    kept = default_results(found, TARGET, told)
    assert kept is not None
    assert (
        default_results(found, TARGET, {key: {**one, "default_schedule": "0" * 64} for key, one in told.items()})
        is None
    )
    for task in report.tasks:
        default = default_schedule(network.tasks[task.key][0], TARGET)
        assert found[task.key].schedule != default and found[task.key].expected_s == task.best_s
        assert (kept[task.key].schedule, kept[task.key].match) == (default, Match.DEFAULT)
        assert kept[task.key].confirmed
        assert (kept[task.key].expected_s, kept[task.key].basis) == (task.default_s, Basis.MEASURED)
        unused = default_results(found, TARGET, {task.key: {**told[task.key], "chosen": 0}})
        assert unused is not None and unused[task.key].expected_s == task.default_s, "its time is known"
        assert task.key not in measured_times_s(unused), "but no reason to choose it"
        told_again = json.loads(json.dumps(kept[task.key].to_json()))
        assert read(network.tasks[task.key][0], TARGET, told_again).is_kept  # as out of a lock file
    with InferenceSession.of_results(network, TARGET, kept) as session:
        coverage = session.coverage()
        assert (coverage.tuned, coverage.untuned, coverage.kept) == (0, 0, len(kept))
        assert shares(coverage) == {"tuned": 0, "transferred": 0, "default": len(kept), "kept": len(kept)}
        assert session.notes == ()  # they were tuned: it is no remedy
    assert model_verdict(store, [], TARGET.key).kept is model_verdict(store, found, "0" * 64).kept is None
    assert model_verdict(store, [*found][:1], TARGET.key).kept is None  # as with other dimensions
    for nonsense in (
        {},
        {key: {"chosen": 1} for key in told},
        {key: {**one, "default_ms": -1} for key, one in told.items()},
    ):
        with pytest.raises(ValueError):
            default_results(found, TARGET, nonsense)
    job(network, store, FakePool(by_key), seed=1, timing=takes(default=3e-3, tuned=2e-3))
    assert model_verdict(store, found, TARGET.key).kept is None


@pytest.mark.slow
def test_a_busy_machine_overrules_no_quiet_one(network: Model, store: Store) -> None:
    """Whether a model keeps its defaults is what the newest quiet job found; without any, the newest noisy one."""
    seeds = count()

    def end(tuned_s: float, disturbance: Disturbance = UNDISTURBED) -> tuple[str, bool]:
        """The outcome of one more job, and whether the model keeps its defaults from then on."""
        timing = takes(disturbance, default=3e-3, tuned=tuned_s)
        report = job(network, store, FakePool(by_key), seed=next(seeds), timing=timing)
        assert report.outcome is not None
        return report.outcome.value, model_verdict(store, network.tasks, TARGET.key).kept is not None

    assert end(2e-3, STOLEN) == ("too_noisy", False)
    assert end(3e-3, STOLEN) == ("defaults_kept", True)
    assert end(2e-3) == ("faster", False)
    assert end(3e-3, STOLEN) == ("defaults_kept", False)
    assert end(3e-3) == ("defaults_kept", True)
    assert end(2e-3, STOLEN) == ("too_noisy", True)
    assert end(2e-3) == ("faster", False)


def test_a_default_that_is_taken_back_is_kept_no_more(network: Model, store: Store) -> None:
    """Neither where it is the best known, nor by what a job said of its model; nor does the next job rely on it."""
    pool = FakePool(lambda one: by_key(one) if not is_default(one) else took(1e-4))
    report = job(network, store, pool, timing=takes(default=3e-3, tuned=3.3e-3))
    assert report.outcome is ReportOutcome.DEFAULTS_KEPT
    found = lookup_measured(store, tasks(network), TARGET)
    key, *others = found
    default = default_schedule(network.tasks[key][0], TARGET)
    assert found[key].schedule == default  # the best known
    store.voids.void(key, TARGET.key, default.key, "wrong on odd sizes")

    found = lookup_measured(store, tasks(network), TARGET)
    assert found[key].schedule != default and found[key].match is Match.EXACT
    told = model_verdict(store, found, TARGET.key).kept
    assert told is not None and set(told) == set(others)
    kept = default_results(found, TARGET, told)
    assert kept is not None
    assert kept[key] == found[key] and not kept[key].is_kept
    assert all(kept[other].is_kept for other in others)

    store.voids.lift(key, TARGET.key, default.key)
    assert set(model_verdict(store, found, TARGET.key).kept or ()) == set(found)
    for other in found:
        store.voids.void(other, TARGET.key, default_schedule(network.tasks[other][0], TARGET).key, "odd")
    assert model_verdict(store, found, TARGET.key).kept is None
    again = job(network, store, pool, seed=1, timing=takes(default=3e-3, tuned=3.3e-3))
    assert [task.default_s for task in again.tasks] == [None] * len(found)
    assert again.default_fault == "the default schedule of 2 tasks was taken back"
    assert report.default_fault == "" == again.whole_model


def test_a_model_whose_defaults_fail_is_run_on_what_was_found(network: Model, store: Store) -> None:
    pool = FakePool(lambda one: FAILED if is_default(one) else by_key(one))
    report = job(network, store, pool, timing=takes(tuned=2e-3))
    assert (report.outcome, report.speedup, report.default_s) == (ReportOutcome.UNTIMED, None, None)


def test_a_segment_is_not_run_where_the_defaults_are_kept() -> None:
    """Its own time is known, and it would be chosen by that."""
    times = takes(default=3e-3, tuned=3.2e-3)({"default": Variant({}), "tuned": Variant({})})
    entry = TaskReport("k", "Relu", 1, 1, 3, 100, 1e-3, 1e-3, None, {})
    report = Report(1, "m", "cpu", 3, 1.0, tuple(replace(entry, chosen=n) for n in (0, 0, 1)), None, None, None, {}, {})
    chains = ((TaskChain((0, 1), (CallRange(0, 2, 2),)), 1),)
    found = judge(report, times, TARGET, Assembly((1, 1, 1), chains))
    assert [task.chosen for task in found.tasks] == [1, 1, 0]
    assert found.kernels_s == 2e-3


def test_a_job_that_is_paused_by_its_time_tells_what_it_came_to(network: Model, store: Store) -> None:
    lease = leased(network, store)
    store.jobs.pause_leased(lease, result={"outcome": "faster"})
    assert (store.jobs.get(lease.job_id).state, store.jobs.get(lease.job_id).result) == (
        JobState.PAUSED,
        {"outcome": "faster"},
    )
    again = leased(network, store)
    assert again.job_id == lease.job_id and store.jobs.get(lease.job_id).result is None


def test_what_had_nothing_to_be_compared_with_is_not_called_confirmed(network: Model, store: Store) -> None:
    def current(candidate: Candidate) -> Measurement:
        return replace(by_key(candidate), provenance=machine())

    alone = job(network, store, FakePool(current), trials=2)
    assert [(task.is_confirmed, task.best_s) for task in alone.tasks] == [
        (False, task.default_s) for task in alone.tasks
    ]
    assert [Report.from_json(alone.to_json()).tasks[n].is_confirmed for n in range(2)] == [False, False]
    assert all(not one.confirmed for one in lookup_measured(store, tasks(network), TARGET).values())
    assert all(task.is_confirmed for task in job(network, store, FakePool(current)).tasks)
