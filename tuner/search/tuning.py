"""`tune`: a tuning job from a model and a few settings, for the command line and Python programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tunewright.codegen.target import CUDA, Target
from tunewright.db.errors import StoreError
from tunewright.db.job import (
    UNFINISHED,
    Job,
    JobSpec,
    JobState,
    Lease,
    LeaseLost,
    SearchBudget,
    SpecTask,
    search_settings,
)
from tunewright.db.jobs import Jobs
from tunewright.db.store import Store, open_store
from tunewright.graph.numerics import Precision
from tunewright.graph.task import Task
from tunewright.workers.pool import Machines, Pool, PoolError
from tunewright.workers.sandbox.process import ChildStartError, start_fork_server

from ..arguments import (
    check_choice,
    check_dims,
    check_flag,
    check_minutes,
    check_model,
    check_precision,
    check_ray_address,
    check_seed,
    check_source,
    check_threads,
    check_trials,
    check_until,
)
from ..errors import Refused, message
from ..models.graph_of_model import graph_of_model
from ..models.model import Model, open_for
from ..session.ort_session import is_installed
from ..session.vendor import VendorModel
from ..settings import PATIENCE_S, settings, store_url
from ..targets import check_target, local_target
from ..text import ONNX_RUNTIME
from .job import TuningJob
from .lease_keeper import SHARE, JobStop, LeaseKeeper, holder_name
from .progress import Progress, Watch
from .report import Report
from .stage import JobStage
from .strategies.strategy import STRATEGIES
from .whole_model import Timing, time_sessions

POOLS = ("local", "ray")
"""Pools that measure candidates: processes of this machine, or a Ray cluster."""

WAIT_S = 1.0
"""Seconds that a command waits for another process's job before it looks again."""


def tune(
    model: Path | str | bytes,
    *,
    db: str | None = None,
    target: str = "auto",
    trials: int | None = None,
    minutes: float | None = None,
    until: float | None = None,
    pool: str = "local",
    ray_address: str | None = None,
    threads: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    bind: Mapping[str, int] | None = None,
    strategy: str = "evolutionary",
    vendor: bool = False,
    precision: str = Precision.AS_GIVEN,
    watch: Watch | None = None,
) -> Report:
    """Search for fast schedules of a model's tasks on this machine, and keep every trial in the database.

    The same call takes up a job that was interrupted; while another process is at work on it, it waits for that one's
    report. `model` is a path or the ONNX bytes, `db` an SQLAlchemy URL (None: the default database). The search ends
    after so many `trials`, after so many `minutes`, or once another minute is expected to make the model's tasks, all
    together, faster by less than the share `until` (0.02 is 2%), whichever comes first; what is not given is no bound,
    and where none is given it ends after 200 trials. `threads` is what kernels run on (None: all processors), `dims`
    the open dimensions by name, `bind` the values of inputs of one number. With
    `vendor` the whole model runs in ONNX Runtime too, which is taken for it where it is faster: as it is given, so not
    with another `precision`, what products may be computed in. `watch` is called at each stage and after each trial.

    Raises Refused for settings that mean nothing and for a job that somebody else stopped, ModelError for a model that
    can't be read, StoreError for a database that can't be used. On KeyboardInterrupt the job stays in the database, as
    paused.
    """
    check_source(db, None)
    model, dims, threads = check_model(model), check_dims(dims, bind), check_threads(threads)
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("pool", pool, POOLS)
    check_ray_address(pool, ray_address)
    check_target(target)
    precision = check_precision(precision)
    budget = SearchBudget.of(check_trials(trials), check_minutes(minutes), check_until(until))
    seed = check_seed(seed)
    if watch is not None and not callable(watch):
        raise Refused(f"watch is {watch!r}; it must be a function, which is called with a Progress, or None")
    report = watch or (lambda progress: None)
    if pool == "local":
        start_fork_server()
    report(Progress(JobStage.READING, 0, budget, 0.0, ()))
    device = local_target(target, threads)
    check_vendor(check_flag("vendor", vendor), device, precision)
    network = open_for(device, model, dims, precision=precision)
    if network.fallbacks:
        report(Progress(JobStage.READING, 0, budget, 0.0, (), fallback=network.fallback_ops))
    make_pool = partial(open_pool, pool, device, ray_address)
    with open_store(store_url(db), patience_s=PATIENCE_S) as store:
        options = search_settings(seed, strategy, dims, vendor=vendor, precision=precision)
        file = VendorModel(model if isinstance(model, bytes) else Path(model), dims)
        timing = partial(time_sessions, network, device, settings().objects, vendor=file)
        return run_model_job(network, device, store, budget, options, timing, make_pool, report)


def check_vendor(is_wanted: bool, target: Target, precision: Precision) -> None:
    """Raises Refused where a vendor's runtime is wanted that can't be had."""
    if is_wanted and precision is not Precision.AS_GIVEN:
        raise Refused(f"{ONNX_RUNTIME} computes a model as given: leave vendor out, or precision {precision!s}")
    if is_wanted and target.kind == CUDA:
        raise Refused(f"{ONNX_RUNTIME} is timed on processors alone, and the target is {target}: leave vendor out")
    if is_wanted and not is_installed():
        raise Refused(f"{ONNX_RUNTIME} is not installed: pip install onnxruntime")


def run_model_job(
    model: Model,
    target: Target,
    store: Store,
    budget: SearchBudget,
    options: Mapping[str, Any],
    timing: Timing,
    make_pool: Callable[[], Pool],
    watch: Watch,
) -> Report:
    """The report of the job of a model, which this process runs, or waits for where another one has it."""
    spec = JobSpec(
        model_sha256=model.sha256,
        target_key=target.key,
        tasks=tuple(SpecTask(key, count) for key, (_, count) in model.tasks.items()),
        settings={**options, **model.assembly.settings},
    )
    store.add_target(target)
    store.add_tasks((task for task, _ in model.tasks.values()), relabel=True)
    tasks, graph = list(model.tasks.values()), graph_of_model(model).to_json()
    return run_job(spec, model.label, tasks, target, store, budget, timing, make_pool, watch, graph)


def run_job(
    spec: JobSpec,
    label: str,
    tasks: Sequence[tuple[Task, int]],
    target: Target,
    store: Store,
    budget: SearchBudget,
    timing: Timing,
    make_pool: Callable[[], Pool],
    watch: Watch,
    graph: Mapping[str, Any] | None = None,
) -> Report:
    """The same of a job of these tasks, which the database knows as it does the target. `graph` as in `Jobs.submit`."""
    opening = JobOpening(store.jobs, spec, label, budget, graph)
    began_at = time.monotonic()
    lease = opening.lease(lambda job: watch(Progress(JobStage.WAITING, 0, job.budget, 0.0, (), holder=job.holder)))
    if lease is None:
        return replace(opening.other_report(), seconds=time.monotonic() - began_at)
    with LeaseKeeper(store.jobs, lease, settings().lease_s) as keeper:
        return _run(tasks, target, store, keeper, timing, make_pool, watch)


def _run(
    tasks: Sequence[tuple[Task, int]],
    target: Target,
    store: Store,
    keeper: LeaseKeeper,
    timing: Timing,
    make_pool: Callable[[], Pool],
    watch: Watch,
) -> Report:
    """The report of a job that is leased. However this ends, the job is somebody else's to take up."""
    try:
        with make_pool() as workers:
            job = store.jobs.get(keeper.lease.job_id)
            return TuningJob(job, tasks, target, store, workers, keeper, timing=timing, watch=watch).run()
    except (PoolError, ChildStartError) as error:
        with suppress(StoreError):
            store.jobs.give_back(keeper.lease)
        raise Refused(f"{message(error)}; the same command goes on from there") from error
    except JobStop as stopped:
        raise Refused(f"somebody asked the job to {stopped.why}: tunewright jobs says more") from stopped
    except LeaseLost:  # by its end, or to another process
        raise
    except BaseException:
        with suppress(StoreError):  # the job is given back whatever becomes of what is still to be told
            keeper.tell(is_last=True)
        with suppress(StoreError):  # it may be over by now
            store.jobs.give_back(keeper.lease)
        raise


class JobOpening:
    """Gets the job of a command, which another process may have."""

    def __init__(
        self, jobs: Jobs, spec: JobSpec, label: str, budget: SearchBudget, graph: Mapping[str, Any] | None = None
    ) -> None:
        self._jobs, self._spec, self._label, self._budget, self._graph = jobs, spec, label, budget, graph
        self._other: Job | None = None  # the one that somebody else has

    def lease(self, tell_waiting: Callable[[Job], None]) -> Lease | None:
        """Lease the job. None where another process had it and has ended it."""
        while True:
            self._other = self._other or self._unfinished_job()
            lease = self._jobs.open(
                self._spec, self._label, self._budget, holder_name(), settings().lease_s, graph=self._graph
            )
            if lease is not None and (self._other is None or self._other.id == lease.job_id):
                return lease
            if lease is not None:  # the other one ended just now, so that this is a new one
                self._jobs.finish(lease, JobState.CANCELLED)
                return None
            if self._other is not None:  # else it began in between: look again
                tell_waiting(self._other)
                if self._wait_for_end(self._other.id):
                    return None

    def _unfinished_job(self) -> Job | None:
        jobs = self._jobs.list(UNFINISHED, model_sha256=self._spec.model_sha256, target_key=self._spec.target_key)
        return next((job for job in jobs if job.spec.key == self._spec.key), None)

    def _wait_for_end(self, job_id: int) -> bool:
        """Wait for a job. False as soon as its process may have gone away."""
        deadline_s = time.monotonic() + settings().lease_s / SHARE
        while True:
            changes = self._jobs.changes()
            if self._jobs.get(job_id).state not in UNFINISHED:
                return True
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0:
                return False
            self._jobs.wait(min(WAIT_S, rest_s), changes)

    def other_report(self) -> Report:
        """The report of the other process. Raises Refused where there is none."""
        assert self._other is not None
        job = self._jobs.get(self._other.id)
        if job.state is not JobState.SUCCEEDED or job.result is None:
            why = f": {job.error}" if job.error else ""
            raise Refused(f"the same job, number {job.id}, which another process had, is {job.state}{why}")
        return Report.from_json(job.result)


def open_pool(name: str, target: Target, ray_address: str | None = None) -> Pool:
    """The pool of that name. Raises Refused if there is none, or it needs what is not installed."""
    match name:
        case "local":
            from tunewright.workers.local import LocalPool

            return LocalPool(target, settings().objects)
        case "ray":
            from tunewright.workers.ray.cluster import open_ray_pool

            try:
                return open_ray_pool(target, settings().objects, address=ray_address)
            except (ModuleNotFoundError, PoolError) as error:
                raise Refused(str(error)) from error
        case _:
            raise Refused(f"no pool is called {name!r}; there are {', '.join(POOLS)}")


def open_machines(name: str, ray_address: str | None = None) -> Machines:
    """The machines of the pools of that name. Raises Refused if there is none, PoolError if they can't be used."""
    match name:
        case "local":
            from tunewright.workers.local import LocalMachine

            return LocalMachine(settings().objects)
        case "ray":
            from tunewright.workers.ray.cluster import RayCluster

            return RayCluster(settings().objects, address=ray_address)
        case _:
            raise Refused(f"no pool is called {name!r}; there are {', '.join(POOLS)}")
