"""TuningJob: from a job that is leased to its result. Read `TuningJob.run` first; how it searches is in `loop`.

All state is in the database: a job whose process is killed at any moment goes on where it was, in any other process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tunewright.codegen.target import Target
from tunewright.db.job import VENDOR as VENDOR_SETTING
from tunewright.db.job import EventKind, Job, JobSpec, JobState
from tunewright.db.store import Store
from tunewright.graph.task import Task
from tunewright.search_space.measurement import FAILED, Status
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import holds
from tunewright.workers.pool import Pool

from ..lookup.ladder import lookup_measured
from ..lookup.result import TRANSFERRED
from ..lookup.verdict import VendorTime
from ..machine_rates import machine_rates
from ..models.assembly import Assembly, total_s
from ..text import counted
from .confirmation import Confirmation
from .context import JobContext, recall, trials_of
from .learning import Learning
from .lease_keeper import JobStop, LeaseKeeper
from .loop import Search
from .machine_log import MachineLog
from .progress import Watch
from .report import JobOutcome, Report, SearchEnd, TaskReport
from .retiming import Retiming
from .search_rule import SearchRule
from .stage import JobStage
from .task_state import TaskState
from .whole_model import ModelTimes, Timing, Variant, is_here

DEFAULT, TUNED, VENDOR = "default", "tuned", "vendor"
"""Names of the variants of a whole model that are timed."""

STRATEGY = "evolutionary"
"""The strategy of a job whose settings name none."""


class TuningJob:
    """Works on a job under the lease of `keeper`, on its tasks and how often each occurs, in their order.

    Trials follow from the job's settings `seed` and `strategy`. `timing` times the whole model at the end.
    """

    def __init__(
        self,
        job: Job,
        tasks: Sequence[tuple[Task, int]],
        target: Target,
        store: Store,
        pool: Pool,
        keeper: LeaseKeeper,
        *,
        timing: Timing | None = None,
        watch: Watch | None = None,
    ) -> None:
        started_at, self._timing = time.monotonic(), timing
        seed, strategy = int(job.spec.settings.get("seed", 0)), str(job.spec.settings.get("strategy", STRATEGY))
        self._learning = Learning(store, target, {task.key for task, _ in tasks}, seed)
        states = [
            TaskState.of(
                task,
                occurrences,
                target,
                store.records(task.key, target.key),
                self._learning.costs,
                strategy=strategy,
                seed=seed,
            )
            for task, occurrences in tasks
        ]
        _borrow(store, target, states)
        recall(store, target, states)
        self._context = JobContext(
            job,
            store,
            pool,
            target,
            keeper,
            states,
            _assembly(job.spec),
            trials_of(store, job.id),
            watch or (lambda progress: None),
            _machine_log(pool, keeper),
            started_at,
        )
        self._retiming = Retiming(self._context) if job.spec.retimed else None

    def run(self) -> Report:
        """Search until the budget is spent or nothing is left to try, learn, time the findings, and finish the job.

        A job that re-times does not search: see `retiming`.

        Where time is over before the trials are, the job of a command is paused, for the same command to go on.
        Raises LeaseLost, having written nothing since; JobStop, having given the job back, which the database knows
        whether to pause or cancel; PoolError.
        """
        context, jobs = self._context, self._context.store.jobs
        try:
            report = self._finish(self._begin() if context.states else SearchEnd.EXHAUSTED)
            while not self._settle(report):  # its budget was raised after the search
                context.search_again()
                report = self._finish(self._begin())
        except JobStop:
            context.keeper.tell(is_last=True)
            jobs.give_back(context.keeper.lease)
            raise
        context.report(JobStage.DONE)
        return report

    def _settle(self, report: Report) -> bool:
        """End the job, or pause it; False where its budget is another than that of the search by now."""
        context, jobs = self._context, self._context.store.jobs
        lease, result, budget = context.keeper.lease, report.to_json(), context.job.budget if context.states else None
        if context.machine is not None:
            context.keeper.tell(is_last=True)
        if context.job.attached and report.ended_by is SearchEnd.MINUTES:
            job = jobs.pause_leased(lease, result=result, budget=budget)
        else:
            job = jobs.finish(lease, JobState.SUCCEEDED, result=result, budget=budget)
        return job.state is not JobState.RUNNING

    def _begin(self) -> SearchEnd | None:
        """Search; of a job that re-times only what is needed is tried, and its search is what follows: None."""
        if self._retiming is None:
            return self._search()
        if untried := self._retiming.untried():
            self._context.enter(JobStage.SEARCHING)
            Search(self._context, self._learning).try_defaults(untried)
        return None

    def _search(self) -> SearchEnd:
        """Search, and learn from the trials; returns why the search ended."""
        self._context.enter(JobStage.SEARCHING)
        ended_by = Search(self._context, self._learning).run()
        self._context.end_search()
        self._context.enter(JobStage.LEARNING)
        self._learning.keep(self._context.job.id)  # if that fails nothing is lost: a report is stored at the very end
        return ended_by

    def _count_regressed(self) -> int:
        """How many tasks the job's events tell regressions of, over all its processes."""
        events = self._context.store.jobs.events(self._context.job.id, limit=None, kinds=[EventKind.REGRESSED])
        return len({event.data["task_key"] for event in events})

    def _finish(self, ended_by: SearchEnd | None) -> Report:
        """Confirm what was found, and time the whole model."""
        context, tasks, rates, upgrade = self._context, [], None, None
        if context.states:
            context.enter(JobStage.CONFIRMING)
            rates = machine_rates(context.target) if is_here(context.target) else None
            rule = self._retiming or SearchRule(context)
            tasks = Confirmation(context, rates.peak_flops_s if rates else None, rule).run()
        if self._retiming is not None:
            context.end_search()
            upgrade = self._retiming.upgrade(tasks)
        context.enter(JobStage.RUNNING)
        times = self._whole_model(tasks)
        context.keeper.check()
        statuses, own = context.store.jobs.statuses(context.job.id), trials_of(context.store, context.job.id)
        tasks = [replace(task, job_trials=own[task.key]) for task in tasks]
        report = Report(
            job_id=context.job.id,
            model=context.job.label,
            target=str(context.target),
            trials=sum(statuses.values()),
            seconds=time.monotonic() - context.started_at,
            tasks=tuple(tasks),
            default_s=None,
            tuned_s=None,
            peak_gflops=rates.peak_flops_s / 1e9 if rates else None,
            peak_noise=rates.noise if rates else "",
            failed={status.value: count for status, count in statuses.items() if status in FAILED},
            voided=statuses.get(Status.VOIDED, 0),
            regressed=self._count_regressed(),
            fallback=times.fallback,
            runtime_nodes=times.runtime_nodes,
            whole_model=times.reason,
            precision=context.job.spec.precision,
            precision_errors=times.precision_errors,
            default_fault=self._default_fault,
            ended_by=ended_by,
            upgrade=upgrade,
            tasks_default_s=total_s(context.assembly.separate_uses, [task.default_s for task in tasks]),
            tasks_apart_s=total_s(context.assembly.separate_uses, [task.best_s for task in tasks]),
        )
        report = judge(report, times, context.target, context.assembly)
        return judge_vendor(report, times, context.target) if self._wants_vendor else report

    @property
    def _wants_vendor(self) -> bool:
        return bool(self._context.job.spec.settings.get(VENDOR_SETTING))

    def _whole_model(self, tasks: Sequence[TaskReport]) -> ModelTimes:
        """Times of the model by default and tuned; a variant that is known to fail is not run."""
        if self._timing is None:
            return ModelTimes(reason="nobody asked for it")
        apart = Variant({state.task.key: state.default for state in self._context.states})
        chosen = Variant(
            {task.key: Schedule.from_json(task.schedule) for task in tasks},
            {task.key: inf if task.best_s is None else task.best_s for task in tasks if task.trials},
        )
        variants = {
            name: variant
            for name, variant, uses in (
                (DEFAULT, apart, self._context.assembly.separate_uses),
                (TUNED, chosen, [task.chosen for task in tasks]),
            )
            if not any(
                count and state.fails(variant.schedules[state.task.key])
                for count, state in zip(uses, self._context.states, strict=True)
            )
        }
        if tasks and not variants:
            times = self._timing({})  # which tells of nodes without a kernel
            return replace(times, reason=times.reason or "no schedule of ours works")
        rivals = {VENDOR: Variant({}, is_vendor=True)} if self._wants_vendor and tasks else {}
        if len(variants) == 2 and self._is_default(tasks):  # one and the same model: two timings would differ by luck
            times = self._timing({DEFAULT: apart} | rivals)
            own = {TUNED: times.latencies[DEFAULT]} if times.latencies else {}
            return replace(times, latencies={**times.latencies, **own})
        return self._timing(variants | rivals)

    @property
    def _default_fault(self) -> str:
        """Why the model can't be run on its default schedules; empty where it can."""
        uses = zip(self._context.states, self._context.assembly.separate_uses, strict=True)
        failing = [state for state, count in uses if count and state.fails(state.default)]
        entries = [state.measured.get(state.default.key) for state in failing]
        voided = sum(entry is not None and entry[1].status is Status.VOIDED for entry in entries)
        counts = {"was taken back": voided, "fails": len(failing) - voided}
        return " and ".join(
            f"the default schedule of {counted(count, 'task')} {what}" for what, count in counts.items() if count
        )

    def _is_default(self, tasks: Sequence[TaskReport]) -> bool:
        """Whether the best schedules are the defaults."""
        return [task.chosen for task in tasks] == self._context.assembly.separate_uses and all(
            task.schedule == state.default.to_json()
            for task, state in zip(tasks, self._context.states, strict=True)
            if task.chosen
        )


def judge(report: Report, times: ModelTimes, target: Target, assembly: Assembly) -> Report:
    """The report with the times of the whole model, and the outcome.

    A model whose gain may be chance keeps its defaults; a gain on a busy machine is not told for one.
    """
    default, tuned, speedup = times.time_interval(DEFAULT), times.time_interval(TUNED), times.ratio(DEFAULT, TUNED)
    noise = times.noise(target, (DEFAULT, TUNED)).reason
    report = replace(report, noise=noise, outcome=JobOutcome.UNTIMED)
    if default is not None:
        report = replace(report, default_s=default.median_s, default_interval_s=(default.low_s, default.high_s))
    if tuned is not None:
        report = replace(report, tuned_s=tuned.median_s, tuned_interval_s=(tuned.low_s, tuned.high_s))
    if speedup is None:
        return report
    if speedup[0] > 1.0:
        return replace(report, outcome=JobOutcome.of(JobOutcome.FASTER, bool(noise)), speedup_interval=speedup)
    is_other = times.latencies[DEFAULT] is not times.latencies[TUNED]
    tasks = [replace(task, chosen=count) for task, count in zip(report.tasks, assembly.separate_uses, strict=True)]
    return replace(
        report,
        tasks=tuple(tasks),
        outcome=JobOutcome.DEFAULTS_KEPT,
        tuned_s=report.default_s,
        tuned_interval_s=report.default_interval_s,
        rejected_s=report.tuned_s if is_other else None,
        rejected_interval=speedup if is_other else None,
    )


def judge_vendor(report: Report, times: ModelTimes, target: Target) -> Report:
    """The report with the time in the vendor's runtime, which is taken where it is faster than all of ours.

    On a machine too busy to tell it is not.
    """
    if not report.tasks:
        fault = "the model has no task, by which a choice is kept"
        return replace(report, vendor=VendorTime(fault=fault))
    time, version = times.time_interval(VENDOR), times.vendor_version
    own = DEFAULT if report.outcome is JobOutcome.DEFAULTS_KEPT or TUNED not in times.latencies else TUNED
    own_time = times.time_interval(own)
    if time is None or own_time is None:
        fault = times.vendor_fault or times.reason or "no schedule of ours works"
        return replace(report, vendor=VendorTime(version, fault=fault))
    gains = [gain for name in (DEFAULT, TUNED) if (gain := times.ratio(name, VENDOR)) is not None]
    is_faster, noise = all(low > 1.0 for low, _ in gains), times.noise(target).reason
    vendor = VendorTime(
        version,
        time.median_s,
        (time.low_s, time.high_s),
        own_time.median_s,
        (own_time.low_s, own_time.high_s),
        times.ratio(own, VENDOR),
        "the machine was too busy to tell" if noise and is_faster else "",
        noise,
    )
    if not is_faster or noise:
        return replace(report, vendor=vendor)
    return replace(report, vendor=vendor, outcome=JobOutcome.VENDOR, own_outcome=report.outcome)


def _machine_log(pool: Pool, keeper: LeaseKeeper) -> MachineLog | None:
    """The log of the machine that times, which `keeper` reports; None where that is another one."""
    sampler = pool.machine_sampler()
    if sampler is None:
        return None
    machine = MachineLog(sampler)
    keeper.watch(machine)
    return machine


def _assembly(spec: JobSpec) -> Assembly:
    """The assembly of a job's model, from `Assembly.settings`."""
    return Assembly.of_json([task.occurrences for task in spec.tasks], spec.settings.get("chains", []))


def _borrow(store: Store, target: Target, states: Sequence[TaskState]) -> None:
    """Propose imported schedules early, and for untried tasks the best schedule of a similar target or task.

    Times of imported schedules are hints until they are measured here.
    """
    untried = [state for state in states if not state.measured]
    results = lookup_measured(store, [state.task for state in untried], target)
    for state in states:
        result = results.get(state.task.key)
        if result is not None and (result.match in TRANSFERRED or result.is_imported):
            state.borrowed.append(result.schedule)
        hints = store.hints(state.task.key, target.key)
        state.borrowed += [s for s in hints if s not in state.borrowed and holds(state.task, target, s)]
