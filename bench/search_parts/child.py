"""Our side of a measurement: a process pinned to cores, called like a rival's.

See `rivals.serving`. Models are paths, databases URLs, schedules plain data; each call returns plain data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tunewright.bench.rivals.metaschedule import REPEATS, SAMPLE_MS
from tunewright.bench.rivals.serving import Call, Tell, rest, serve

if TYPE_CHECKING:
    from tunewright.codegen.target import Target
    from tunewright.graph.task import Task
    from tunewright.search_space.schedule import Schedule
    from tunewright.tuner.search.progress import Progress
    from tunewright.workers.measure.check import CpuKernel

SCORED_POINTS = 4096
"""Points of a space that are scored at once."""

SCORING_S = 1.0
"""Seconds for which each step of scoring is repeated."""

_kernels: list[CpuKernel] = []  # what `sample` runs, by number


def tune(
    tell: Tell, model: str, db: str, threads: int, trials: int, minutes: float | None, seed: int
) -> dict[str, Any]:
    """A tuning job. Events have `at_s` on the system's monotonic clock, the schedule, and `time_s`, null for a failure.

    The first event, `began`, marks the begin of the search. Returns `ended_s` and the report.
    """
    from tunewright.tuner.search.stage import JobStage
    from tunewright.tuner.search.tuning import tune as run_job

    ended_s: list[float] = []
    began = False

    def watch(progress: Progress) -> None:
        nonlocal began
        now_s = time.monotonic()
        if progress.stage is JobStage.SEARCHING and not began:
            began = True
            tell({"began": True, "at_s": now_s})
        elif progress.stage is JobStage.SEARCHING and progress.last is not None:
            _, schedule, measurement = progress.last
            tell({"at_s": now_s, "time_s": measurement.median_s, "schedule": schedule.to_json()})
        elif progress.stage is JobStage.CONFIRMING and not ended_s:
            ended_s.append(now_s)

    report = run_job(
        Path(model), db=db, trials=trials, minutes=minutes, threads=threads, seed=seed, watch=watch
    ).to_json()
    return {"report": report, "ended_s": ended_s[0] if ended_s else time.monotonic()}


def load(tell: Tell, model: str, threads: int, schedule: dict[str, Any]) -> dict[str, Any]:
    """Build and check a schedule of a model's only task. Returns its `number` for `sample`."""
    from tunewright.search_space.schedule import Schedule

    kernel, error = _load_kernel(*_task(model, threads), Schedule.from_json(schedule))
    _kernels.append(kernel)
    return {"number": len(_kernels) - 1, "error": error}


def _task(model: str, threads: int) -> tuple[Task, Target]:
    """The only task of a model, and this machine."""
    from tunewright.codegen.host import detect
    from tunewright.tuner.models.model import open_model

    [(task, _)] = open_model(Path(model)).tasks.values()
    return task, detect(threads)


def _load_kernel(task: Task, target: Target, schedule: Schedule) -> tuple[CpuKernel, float | None]:
    """A loaded kernel and its error. Raises AssertionError where its result is wrong."""
    from tunewright.codegen.llvm.build import build
    from tunewright.codegen.runtime.pool import shared_pool
    from tunewright.search_space.measurement import Candidate
    from tunewright.search_space.sketches import lower
    from tunewright.tuner.session.caches import object_cache
    from tunewright.workers.measure.check import CpuKernel, Example

    artifact = build(lower(Candidate(task, target, schedule)), target, object_cache())
    kernel = CpuKernel(Example(task), artifact, shared_pool(target.threads))
    fault, error = kernel.check()
    if fault:
        raise AssertionError(f"{schedule}: {fault}")
    return kernel, error


def sample(tell: Tell, number: int, warm: bool) -> float:
    """Seconds of a run, with all operands in the caches or with constants as far away as in a model.

    As a rival's: the median of REPEATS means, each over runs of SAMPLE_MS.
    """
    program = _kernels[number].warm if warm else _kernels[number].cold
    [once_s] = program.time(1)
    repeats = max(1, round(1e-3 * SAMPLE_MS / max(once_s, 1e-9)))
    time_s = median(program.time(REPEATS, repeats))
    rest()
    return time_s


def kernels(
    tell: Tell, model: str, threads: int, schedules: Sequence[dict[str, Any]], rounds: int
) -> list[list[float]]:
    """Samples in turn, in seconds, of the kernels of a model of one task on each schedule.

    A sample is of runs of the whole model in a native loop, so constants are where these leave them, and inputs in such
    memory as those are that one kernel of a network hands to the next. Each schedule is checked first. Equal ones have
    the same samples.
    """
    from tunewright.bench.turns import sample_in_turn
    from tunewright.search_space.schedule import Schedule
    from tunewright.tuner.models.model import example_feeds, open_model
    from tunewright.tuner.session.caches import object_cache
    from tunewright.tuner.session.session import InferenceSession
    from tunewright.tuner.settings import settings
    from tunewright.workers.lock import HostLock

    opened_model, (task, target) = open_model(Path(model)), _task(model, threads)
    feeds = {name: _copy_array(array) for name, array in example_feeds(opened_model).items()}

    def take_sample(session: InferenceSession) -> float:
        time_s = session.kernels_s(feeds)
        rest()
        return time_s

    parsed = [Schedule.from_json(schedule) for schedule in schedules]
    with ExitStack() as stack:
        samples = {}
        for schedule in dict.fromkeys(parsed):
            _load_kernel(task, target, schedule)[0].close()
            session = InferenceSession.of(opened_model, target, {task.key: schedule}, object_cache())
            samples[schedule.key] = partial(take_sample, stack.enter_context(session))
        stack.enter_context(HostLock(settings().objects).exclusive())
        samples_s = sample_in_turn(samples, rounds)
    return [samples_s[schedule.key] for schedule in parsed]


def _copy_array(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A copy in memory of our allocator."""
    from tunewright.codegen.expr.dtype import DType
    from tunewright.codegen.runtime.memory import lasting_empty

    copy = lasting_empty(array.shape, DType(array.dtype.name))
    copy[...] = array
    return copy


def compare(tell: Tell, model: str, threads: int, schedules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Schedules of the task of a model timed side by side, as a job confirms its winners: see `Pool.compare`."""
    return [measurement.to_json() for measurement in _measure(model, threads, schedules, together=True)]


def measure(tell: Tell, model: str, threads: int, schedules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Schedules timed one by one, as by a search, each in a pool of its own."""
    measurements = []
    for schedule in schedules:
        measurements += [measurement.to_json() for measurement in _measure(model, threads, [schedule], together=False)]
    return measurements


def _measure(model: str, threads: int, schedules: Sequence[dict[str, Any]], *, together: bool) -> list[Any]:
    from tunewright.search_space.measurement import Candidate
    from tunewright.search_space.schedule import Schedule
    from tunewright.tuner.settings import settings
    from tunewright.workers.local import LocalPool

    task, target = _task(model, threads)
    candidates = [Candidate(task, target, Schedule.from_json(schedule)) for schedule in schedules]
    with LocalPool(target, settings().objects) as pool:
        if together:
            return pool.compare(candidates)
        return [measurement for _, measurement in pool.measure(candidates)]


def pick(tell: Tell, model: str, db: str, threads: int) -> dict[str, Any]:
    """The schedule that a session would run a model's only task on, its match, and the default.

    The database is made if it isn't there.
    """
    from tunewright.db.store import open_store
    from tunewright.search_space.sketches import default_schedule
    from tunewright.tuner.lookup.source import ScheduleSource

    with open_store(db):
        preparation = ScheduleSource(db=db).prepare(Path(model), {}, threads)
    [entry] = preparation.results.values()
    assert entry.schedule is not None
    default = default_schedule(entry.task, preparation.target)
    return {"schedule": entry.schedule.to_json(), "match": entry.match.value, "default": default.to_json()}


def score(tell: Tell, model: str, db: str, threads: int, seed: int) -> list[dict[str, Any]]:
    """For each space of a model's only task, points a second of sampling, validity and scores by a model of `db`.

    The cost model keeps no scores: the first score of a point is what takes long.
    """
    from tunewright.costmodel.model import Trials
    from tunewright.costmodel.xgb import XGBModel
    from tunewright.db.store import open_store
    from tunewright.search_space.sketches import spaces
    from tunewright.tuner.lookup.experience import experience

    task, target = _task(model, threads)
    task_spaces = spaces(task, target)
    with open_store(db) as store:
        costs = XGBModel(experience(store, target.kind).learned, seed, kept_points=0)
        measurements = [(record.schedule, record.measurement) for record in store.records(task.key, target.key)]
    costs.fit([Trials.of(task, target, space, measurements) for space in task_spaces])
    rows_by_space: list[dict[str, Any]] = []
    for space in task_spaces:
        rng = np.random.default_rng(seed)
        rows = space.sample(SCORED_POINTS, rng)
        rates = {
            "sample": _rate(partial(space.sample, SCORED_POINTS, rng)),
            "valid": _rate(partial(space.valid, rows)),
            "score": _rate(partial(costs.score, task, target, space, rows)),
        }
        whole = 1 / sum(1 / rate for rate in rates.values())
        about = {"ready": costs.ready, "sketch": space.sketch, "size": float(space.size), "points": len(rows)}
        rows_by_space.append({**about, "whole": whole, **rates})
    return rows_by_space


def _rate(work: Callable[[], Sized]) -> float:
    """Items a second that `work` returns, without its first call."""
    work()
    start_s, done = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - start_s) < SCORING_S:
        done += len(work())
    return done / passed_s


def time_whole(tell: Tell, model: str, threads: int, variants: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Seconds of one run of a model in each of the variants, side by side: see `whole_model.Variant`."""
    from tunewright.codegen.host import detect
    from tunewright.tuner.models.model import open_model
    from tunewright.tuner.search.whole_model import Variant, time_sessions
    from tunewright.tuner.settings import settings

    parsed = {name: Variant.from_json(data) for name, data in variants.items()}
    timing = time_sessions(open_model(Path(model)), detect(threads), settings().objects, parsed)
    return {name: latency.median_s for name, latency in timing.latencies.items()}


CALLS: dict[str, Call] = {
    "tune": tune,
    "load": load,
    "sample": sample,
    "kernels": kernels,
    "compare": compare,
    "measure": measure,
    "pick": pick,
    "score": score,
    "time_whole": time_whole,
}

if __name__ == "__main__":
    serve(CALLS)
