"""`tune`: a tuning job from a model and a few settings. What the command line and a Python program call alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from tunewright.codegen.target import CUDA, Target
from tunewright.db.errors import StoreError
from tunewright.db.jobs import UNFINISHED, Budget, Job, Jobs, JobSpec, JobState, JobTask, Lease, LeaseLost
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.workers.pool import Machines, Pool, PoolError
from tunewright.workers.process import NotStarted, expect

from ..arguments import checked_dims, checked_model, checked_threads, real_number, whole_number
from ..errors import Refused, message
from ..models.model import Model, open_model
from ..settings import PATIENCE_S, settings
from ..targets import local_target
from .job import TuningJob
from .progress import Progress, Watch
from .report import Report
from .stage import Stage
from .strategies.strategy import STRATEGIES
from .tenure import SHARE, Stopped, Tenure, holder_name
from .whole_model import time_sessions

SEEDS = 2**32
"""How many seeds there are: what numpy's and XGBoost's generators both take."""

POOLS = ("local", "ray")
"""Where candidates can be measured: in processes of this machine, or on a Ray cluster."""

WAIT_S = 1.0
"""How long a command waits for another process's job before it looks again."""


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
    strategy: str = "evolutionary",
    watch: Watch | None = None,
) -> Report:
    """Search for fast schedules of a model's tasks on this machine, and keep every trial in the database.

    The same call takes up a job that was interrupted; while another process is at work on it, it waits for that one's
    report. `model` is a path or the ONNX bytes, `db` an SQLAlchemy URL (None: the default database). The search ends
    after so many `trials`, after so many `minutes`, or once another minute is expected to make the whole model faster
    by less than the share `until` (0.02 is 2%), whichever comes first; what is not given is no bound, and where none is
    given it ends after 200 trials. `threads` is what kernels run on (None: all processors), `dims` the open dimensions
    by name. `watch` is called at each stage and after each trial.

    Raises Refused for settings that mean nothing and for a job that somebody else stopped, ModelError for a model that
    can't be read, StoreError for a database that can't be used. On KeyboardInterrupt the job stays in the database, as
    paused.
    """
    model, dims, threads = checked_model(model), checked_dims(dims), checked_threads(threads)
    budget, seed = _checked(strategy, trials, minutes, until, seed)
    tell = watch or (lambda progress: None)
    if pool == "local":
        expect()
    tell(Progress(Stage.READING, 0, budget, 0.0, ()))
    machine = local_target(target, threads)
    opened = open_model(model, dims, widen=machine.kind != CUDA)
    if opened.fallbacks:
        tell(Progress(Stage.READING, 0, budget, 0.0, (), fallback=opened.fallback_ops))
    spec = JobSpec(
        model_sha256=opened.sha256,
        target_key=machine.key,
        tasks=tuple(JobTask(key, count) for key, (_, count) in opened.tasks.items()),
        settings={"seed": seed, "strategy": strategy} | opened.assembly.settings,
    )
    with open_store(db or settings().db, patience_s=PATIENCE_S) as store:
        store.add_target(machine)
        store.add_tasks(task for task, _ in opened.tasks.values())
        opening = Opening(store.jobs, spec, opened.label, budget)
        lease = opening.lease(lambda holder: tell(Progress(Stage.WAITING, 0, budget, 0.0, (), holder=holder)))
        if lease is None:
            return opening.other_report()
        with Tenure(store.jobs, lease, settings().lease_s) as tenure:
            return _run(opened, machine, store, tenure, partial(open_pool, pool, machine, ray_address), watch)


def _run(
    model: Model,
    target: Target,
    store: SqlStore,
    tenure: Tenure,
    opened_pool: Callable[[], Pool],
    watch: Watch | None,
) -> Report:
    """The report of a job that is leased. However this ends, the job is somebody else's to take up."""
    timing = partial(time_sessions, model, target, settings().objects)
    try:
        with opened_pool() as workers:
            job = store.jobs.get(tenure.lease.job_id)
            tasks = list(model.tasks.values())
            return TuningJob(job, tasks, target, store, workers, tenure, timing=timing, watch=watch).run()
    except (PoolError, NotStarted) as error:
        with suppress(StoreError):
            store.jobs.give_back(tenure.lease)
        raise Refused(f"{message(error)}; the same command goes on from there") from error
    except Stopped as stopped:
        raise Refused(f"somebody asked the job to {stopped.why}: tunewright jobs says more") from stopped
    except LeaseLost:  # by its end, or to another process
        raise
    except BaseException:
        with suppress(StoreError):  # it may be over by now
            store.jobs.give_back(tenure.lease)
        raise


class Opening:
    """How a command gets its job, which another process may be at work on."""

    def __init__(self, jobs: Jobs, spec: JobSpec, label: str, budget: Budget) -> None:
        self._jobs, self._spec, self._label, self._budget = jobs, spec, label, budget
        self._other: Job | None = None  # the one that somebody else has

    def lease(self, tell_waiting: Callable[[str], None]) -> Lease | None:
        """The job, to work on it. None where another process had it and has ended it."""
        while True:
            self._other = self._other or self._unfinished()
            lease = self._jobs.open(self._spec, self._label, self._budget, holder_name(), settings().lease_s)
            if lease is not None and (self._other is None or self._other.id == lease.job_id):
                return lease
            if lease is not None:  # the other one ended just now, so that this is a new one
                self._jobs.finish(lease, JobState.CANCELLED)
                return None
            tell_waiting(self._other.holder if self._other else "")
            if self._ended():
                return None

    def _unfinished(self) -> Job | None:
        jobs = self._jobs.list(UNFINISHED, model_sha256=self._spec.model_sha256, target_key=self._spec.target_key)
        return next((job for job in jobs if job.spec.key == self._spec.key), None)

    def _ended(self) -> bool:
        """Wait for the other one. False as soon as its process may have gone away."""
        if self._other is None:  # it began in between: look again
            return False
        deadline_s = time.monotonic() + settings().lease_s / SHARE
        while True:
            seen = self._jobs.changes()
            if self._jobs.get(self._other.id).state not in UNFINISHED:
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._jobs.wait(min(WAIT_S, left_s), seen)

    def other_report(self) -> Report:
        """What the other process found. Raises Refused where that is nothing."""
        assert self._other is not None
        job = self._jobs.get(self._other.id)
        if job.state is not JobState.SUCCEEDED or job.result is None:
            why = f": {job.error}" if job.error else ""
            raise Refused(f"the same job, number {job.id}, which another process had, is {job.state}{why}")
        return Report.from_json(job.result)


def _checked(
    strategy: str, trials: int | None, minutes: float | None, until: float | None, seed: int
) -> tuple[Budget, int]:
    """The budget and the seed. Raises Refused for the first setting that means nothing."""
    if strategy not in STRATEGIES:
        raise Refused(f"no strategy is called {strategy!r}; there are {', '.join(STRATEGIES)}")
    most_trials = None if trials is None else whole_number(trials)
    if trials is not None and (most_trials is None or most_trials < 1):
        raise Refused(f"trials is {trials!r}; it must be a whole number, at least 1, or None for no limit")
    most_minutes = None if minutes is None else real_number(minutes)
    if minutes is not None and (most_minutes is None or not most_minutes > 0):
        raise Refused(f"minutes is {minutes!r}; it must be a number above zero, or None for no limit")
    least = None if until is None else real_number(until)
    if until is not None and (least is None or not 0 < least < 1):
        raise Refused(f"until is {until!r}; it must be a share between 0 and 1, such as 0.02 for 2%, or None")
    number = whole_number(seed)
    if number is None or not 0 <= number < SEEDS:
        raise Refused(f"seed is {seed!r}; it must be a whole number, at least 0 and below {SEEDS}")
    return Budget.of(most_trials, most_minutes, least), number


def open_pool(name: str, target: Target, ray_address: str | None = None) -> Pool:
    """The pool of that name. Raises Refused if there is none, or it needs what is not installed."""
    match name:
        case "local":
            from tunewright.workers.local import LocalPool

            return LocalPool(target, settings().objects)
        case "ray":
            from tunewright.workers.ray_cluster import open_ray_pool

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
            from tunewright.workers.ray_cluster import RayCluster

            return RayCluster(settings().objects, address=ray_address)
        case _:
            raise Refused(f"no pool is called {name!r}; there are {', '.join(POOLS)}")
