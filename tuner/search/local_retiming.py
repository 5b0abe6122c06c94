"""`retime` and `retime_all`: jobs that time the best of stale tasks again, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from tunewright.codegen.target import CUDA, Target
from tunewright.db.job import SearchBudget, search_settings
from tunewright.db.reader import open_existing
from tunewright.db.store import Store
from tunewright.graph.numerics import Precision
from tunewright.workers.sandbox.process import start_fork_server

from ..arguments import RETIMED, check_dims, check_model, check_retimed, check_threads
from ..errors import Refused
from ..models.model import open_for
from ..session.vendor import VendorModel
from ..settings import PATIENCE_S, settings, store_url
from ..targets import check_target, local_target
from .progress import Progress, Watch
from .report import Report
from .retiming_plan import PlannedJob, stale_bests, stale_counts, task_jobs, unfinished_task_job
from .stage import JobStage
from .tuning import check_vendor, open_pool, run_job, run_model_job
from .whole_model import ModelTimes, Variants, is_here, time_sessions

NO_BOUND = SearchBudget(None)
"""The budget: nothing is searched."""

Begin = Callable[[Target, int], None]
"""Hears of a job before it begins: for which target, and of how many tasks."""


def retime(
    model: Path | str | bytes,
    *,
    db: str | None = None,
    target: str = "auto",
    threads: int | None = None,
    schedules: int = RETIMED,
    dims: Mapping[str, int] | None = None,
    vendor: bool = False,
    precision: Precision = Precision.AS_GIVEN,
    watch: Watch = lambda progress: None,
) -> Report:
    """Time so many schedules of each stale task of a model again, and the model on what wins.

    The same call takes up a job that was interrupted. Raises as `tune` does, NoDatabase too: none is made.
    """
    model, dims, threads = check_model(model), check_dims(dims, None), check_threads(threads)
    schedules = check_retimed(schedules)
    start_fork_server()
    watch(Progress(JobStage.READING, 0, NO_BOUND, 0.0, ()))
    device = local_target(target, threads)
    check_vendor(vendor, device, precision)
    network = open_for(device, model, dims, precision=precision)
    with open_existing(store_url(db), patience_s=PATIENCE_S) as store:
        options = search_settings(0, "evolutionary", dims, vendor=vendor, precision=precision, retime=schedules)
        file = VendorModel(model if isinstance(model, bytes) else Path(model), dims)
        timing = partial(time_sessions, network, device, settings().objects, vendor=file)
        make_pool = partial(open_pool, "local", device)
        return run_model_job(network, device, store, NO_BOUND, options, timing, make_pool, watch)


def retime_all(
    *,
    db: str | None = None,
    target: str = "auto",
    threads: int | None = None,
    schedules: int = RETIMED,
    begin: Begin = lambda target, tasks: None,
    watch: Watch = lambda progress: None,
) -> list[Report]:
    """Time so many schedules of each stale task in the database again, for the targets of this machine.

    Those are the processor with any number of threads that it has, and the first GPU; one of them where `target` or
    `threads` says so. The same call takes up what was interrupted. Raises Refused for settings that mean nothing and
    for a job that somebody else stopped, and StoreError.
    """
    check_target(target)
    threads, schedules = check_threads(threads), check_retimed(schedules)
    start_fork_server()
    with open_existing(store_url(db), patience_s=PATIENCE_S) as store:
        reports = []
        for device in _devices(store, target, threads):
            for job in _jobs(store, device, schedules):
                begin(device, len(job.spec.tasks))
                reports.append(_run(store, device, job, watch))
        return reports


def _devices(store: Store, name: str, threads: int | None) -> list[Target]:
    """The targets of this machine by that name, of "auto" those with stale tasks. Raises Refused if there is none."""
    if name != "auto" or threads is not None:
        return [local_target(name, threads)]
    gpu = None
    stale = stale_counts(store)
    if any(target.kind == CUDA for target in stale):
        with suppress(Refused):  # it is another machine's
            gpu = local_target(CUDA)
    return [target for target in stale if target == gpu or (target.kind != CUDA and is_here(target))]


def _jobs(store: Store, target: Target, schedules: int) -> Iterator[PlannedJob]:
    """The jobs for a target: first the one that was begun, if any, then for what is stale still."""
    if (begun := unfinished_task_job(store, target)) is not None:
        yield begun
    yield from task_jobs([best.task_key for best in stale_bests(store, target)], target, schedules)


def _run(store: Store, target: Target, job: PlannedJob, watch: Watch) -> Report:
    known = store.tasks([task.task_key for task in job.spec.tasks])
    tasks = [(known[task.task_key], task.occurrences) for task in job.spec.tasks]

    def timing(variants: Variants) -> ModelTimes:
        return ModelTimes(reason="it is a job of tasks, without a model")

    return run_job(
        job.spec, job.label, tasks, target, store, NO_BOUND, timing, partial(open_pool, "local", target), watch
    )
