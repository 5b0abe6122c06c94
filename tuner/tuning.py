"""`tune`: a tuning job from a model and a few settings. What the command line and a Python program call alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.db.sql_store import open_store
from tunewright.workers.pool import Pool

from .errors import Refused
from .job import Budget, Progress, TuningJob, Watch
from .model import open_model
from .report import Report
from .settings import settings
from .stage import Stage
from .strategy import STRATEGIES

TARGETS = ("auto", "cpu")
"""What can be tuned for: the best device of this machine, or its processor."""

SEEDS = 2**32
"""How many seeds there are: what numpy's and XGBoost's generators both take."""

POOLS = ("local", "ray")
"""Where candidates can be measured: in processes of this machine, or on a Ray cluster."""


def tune(
    model: Path | str | bytes,
    *,
    db: str | None = None,
    target: str = "auto",
    trials: int = 200,
    minutes: float | None = None,
    pool: str = "local",
    ray_address: str | None = None,
    threads: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    strategy: str = "evolutionary",
    watch: Watch | None = None,
) -> Report:
    """Search for fast schedules of a model's tasks on this machine, and keep every trial in the database.

    The same call takes up a job that was interrupted. `model` is a path or the ONNX bytes, `db` an SQLAlchemy URL
    (None: the default database), `trials` and `minutes` the budget, `threads` what kernels run on (None: all
    processors), `dims` the open dimensions by name. `watch` is called at each stage and after each trial.

    Raises Refused for settings that mean nothing, ModelError for a model that can't be read, StoreError for a database
    that can't be used. On KeyboardInterrupt the job stays in the database, as paused.
    """
    _check(strategy, trials, minutes, threads, seed)
    budget = Budget(trials) if minutes is None else Budget(trials, 60 * minutes)
    if watch:
        watch(Progress(Stage.READING, 0, budget, 0.0, ()))
    machine = local_target(target, threads)
    opened = open_model(model, dims)
    with open_store(db or settings().db) as store, open_pool(pool, machine, ray_address) as workers:
        job = TuningJob(opened, machine, store, workers, budget, seed=seed, strategy=strategy, watch=watch)
        return job.run()


def _check(strategy: str, trials: int, minutes: float | None, threads: int | None, seed: int) -> None:
    """Raises Refused for the first setting that means nothing."""
    if strategy not in STRATEGIES:
        raise Refused(f"no strategy is called {strategy!r}; there are {', '.join(STRATEGIES)}")
    if trials < 1:
        raise Refused(f"trials is {trials}; a job has at least one")
    if minutes is not None and not minutes > 0:
        raise Refused(f"minutes is {minutes}; it must be above zero")
    if threads is not None and threads < 1:
        raise Refused(f"threads is {threads}; kernels run on at least one")
    if not 0 <= seed < SEEDS:
        raise Refused(f"seed is {seed}; it must be at least 0 and below {SEEDS}")


def local_target(name: str = "auto", threads: int | None = None) -> Target:
    """The device of this machine of that kind. Raises Refused if there is none."""
    if name not in TARGETS:
        raise Refused(f"no target is called {name!r}; there are {', '.join(TARGETS)}")
    return detect(threads)


def open_pool(name: str, target: Target, ray_address: str | None = None) -> Pool:
    """The pool of that name. Raises Refused if there is none, or it needs what is not installed."""
    match name:
        case "local":
            from tunewright.workers.local import LocalPool

            return LocalPool(target, settings().objects)
        case "ray":
            from tunewright.workers.ray_pool import RayPool

            try:
                return RayPool(target, settings().objects, address=ray_address)
            except ModuleNotFoundError as error:
                raise Refused(str(error)) from error
            except RuntimeError as error:  # no node of the cluster is this target's machine
                raise Refused(str(error)) from error
        case _:
            raise Refused(f"no pool is called {name!r}; there are {', '.join(POOLS)}")
