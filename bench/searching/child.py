"""What our side of a measurement does: a process of its own, pinned to cores, that is asked as a rival is.

See `rivals.serving`. Models are paths, databases URLs, schedules plain data; each call gives plain data.
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
    from tunewright.tuner.jobs.progress import Progress
    from tunewright.workers.check import Loaded

SCORED = 4096
"""Points of a space that are scored at once."""

SCORING_S = 1.0
"""How long each step of scoring is repeated."""

_loaded: list[Loaded] = []  # what `sample` runs, by number


def tune(
    tell: Tell, model: str, db: str, threads: int, trials: int, minutes: float | None, seed: int
) -> dict[str, Any]:
    """A tuning job. Events have `at_s` on the system's monotonic clock, the schedule, and `time_s`, null for a failure.

    The first event, `began`, is the begin of the search; what comes back has `ended_s` too, and the report.
    """
    from tunewright.tuner.jobs.stage import Stage
    from tunewright.tuner.jobs.tuning import tune as run_job

    ended_s: list[float] = []
    began = False

    def watch(progress: Progress) -> None:
        nonlocal began
        now_s = time.monotonic()
        if progress.stage is Stage.SEARCHING and not began:
            began = True
            tell({"began": True, "at_s": now_s})
        elif progress.stage is Stage.SEARCHING and progress.last is not None:
            _, schedule, measured = progress.last
            tell({"at_s": now_s, "time_s": measured.median_s, "schedule": schedule.to_json()})
        elif progress.stage is Stage.CONFIRMING and not ended_s:
            ended_s.append(now_s)

    report = run_job(
        Path(model), db=db, trials=trials, minutes=minutes, threads=threads, seed=seed, watch=watch
    ).to_json()
    return {"report": report, "ended_s": ended_s[0] if ended_s else time.monotonic()}


def load(tell: Tell, model: str, threads: int, schedule: dict[str, Any]) -> dict[str, Any]:
    """Build a schedule of the task of a model that has one, check it, and be ready to time it: its `number`."""
    from tunewright.search_space.schedule import Schedule

    one, error = _checked(*_task(model, threads), Schedule.from_json(schedule))
    _loaded.append(one)
    return {"number": len(_loaded) - 1, "error": error}


def _task(model: str, threads: int) -> tuple[Task, Target]:
    """The task of a model that has one, and this machine."""
    from tunewright.codegen.host import detect
    from tunewright.tuner.models.model import open_model

    [(task, _)] = open_model(Path(model)).tasks.values()
    return task, detect(threads)


def _checked(task: Task, target: Target, schedule: Schedule) -> tuple[Loaded, float | None]:
    """A schedule in memory, and its error. Raises AssertionError where it computes anything else than its task."""
    from tunewright.codegen.build import build
    from tunewright.codegen.runtime.pool import shared_pool
    from tunewright.search_space.measurement import Candidate
    from tunewright.search_space.sketches import lower
    from tunewright.tuner.running.session import object_cache
    from tunewright.workers.check import Example, Loaded

    artifact = build(lower(Candidate(task, target, schedule)), target, object_cache())
    one = Loaded(Example(task), artifact, shared_pool(target.threads))
    fault, error = one.check()
    if fault:
        raise AssertionError(f"{schedule}: {fault}")
    return one, error


def sample(tell: Tell, number: int, warm: bool) -> float:
    """Seconds of a run, with all operands in the caches or with constants as far away as in a model.

    Taken as a rival's: the median of a few means over runs that take so long.
    """
    program = _loaded[number].warm if warm else _loaded[number].cold
    [once_s] = program.time(1)
    repeats = max(1, round(1e-3 * SAMPLE_MS / max(once_s, 1e-9)))
    time_s = median(program.time(REPEATS, repeats))
    rest()
    return time_s


def kernels(
    tell: Tell, model: str, threads: int, schedules: Sequence[dict[str, Any]], rounds: int
) -> list[list[float]]:
    """Samples in turn of what the kernels of a model of one task take on each of the schedules, in seconds.

    A sample is of runs of the whole model in a native loop, so constants are where these leave them, and inputs in such
    memory as those are that one kernel of a network hands to the next. Each schedule is checked first. Equal ones have
    the same samples.
    """
    from tunewright.bench.turns import in_turn
    from tunewright.search_space.schedule import Schedule
    from tunewright.tuner.models.inputs import example_feeds
    from tunewright.tuner.models.model import open_model
    from tunewright.tuner.running.session import InferenceSession, object_cache
    from tunewright.tuner.settings import settings
    from tunewright.workers.lock import HostLock

    opened, (task, target) = open_model(Path(model)), _task(model, threads)
    feeds = {name: _moved(array) for name, array in example_feeds(opened).items()}

    def sampled(session: InferenceSession) -> float:
        time_s = session.kernels_s(feeds)
        rest()
        return time_s

    wanted = [Schedule.from_json(one) for one in schedules]
    with ExitStack() as stack:
        samples = {}
        for schedule in dict.fromkeys(wanted):
            _checked(task, target, schedule)[0].close()
            session = InferenceSession.of(opened, target, {task.key: schedule}, object_cache())
            samples[schedule.key] = partial(sampled, stack.enter_context(session))
        stack.enter_context(HostLock(settings().objects).timing())
        taken = in_turn(samples, rounds)
    return [taken[schedule.key] for schedule in wanted]


def _moved(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A copy in memory of ours."""
    from tunewright.codegen.dtype import DType
    from tunewright.codegen.runtime.memory import lasting_empty

    copy = lasting_empty(array.shape, DType(array.dtype.name))
    copy[...] = array
    return copy


def compare(tell: Tell, model: str, threads: int, schedules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Schedules of the task of a model timed side by side, as a job confirms its winners: see `Pool.compare`."""
    return [measurement.to_json() for measurement in _measured(model, threads, schedules, together=True)]


def measure(tell: Tell, model: str, threads: int, schedules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each timed by itself, as a search does it, and by a pool of its own, which has seen no other."""
    found = []
    for schedule in schedules:
        found += [measurement.to_json() for measurement in _measured(model, threads, [schedule], together=False)]
    return found


def _measured(model: str, threads: int, schedules: Sequence[dict[str, Any]], *, together: bool) -> list[Any]:
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


def picked(tell: Tell, model: str, db: str, threads: int) -> dict[str, Any]:
    """What a session would run the task of a model on: its schedule, how it was found, and the default.

    The database is made if it isn't there.
    """
    from tunewright.db.sql_store import open_store
    from tunewright.search_space.sketches import default_schedule
    from tunewright.tuner.lookup.place import Place

    with open_store(db):
        prepared = Place(db=db).prepare(Path(model), {}, threads)
    [found] = prepared.found.values()
    assert found.schedule is not None
    default = default_schedule(found.task, prepared.target)
    return {"schedule": found.schedule.to_json(), "match": found.match.value, "default": default.to_json()}


def score(tell: Tell, model: str, db: str, threads: int, seed: int) -> list[dict[str, Any]]:
    """For each space of the task of a model, points a second of sampling, validity and scores, by a model of `db`.

    No point is scored twice as far as the model knows, though a search does so: it is the first time that takes long.
    """
    from tunewright.costmodel.model import Trials
    from tunewright.costmodel.xgb import XGBModel
    from tunewright.db.sql_store import open_store
    from tunewright.search_space.sketches import spaces
    from tunewright.tuner.lookup.experience import experience

    task, target = _task(model, threads)
    offered = spaces(task, target)
    with open_store(db) as store:
        costs = XGBModel(experience(store, target.kind).learned, seed, kept_points=0)
        known = [(record.schedule, record.measurement) for record in store.records(task.key, target.key)]
    costs.fit([Trials.of(task, target, space, known) for space in offered])
    found: list[dict[str, Any]] = []
    for space in offered:
        rng = np.random.default_rng(seed)
        rows = space.sample(SCORED, rng)
        rates = {
            "sample": _a_second(partial(space.sample, SCORED, rng)),
            "valid": _a_second(partial(space.valid, rows)),
            "score": _a_second(partial(costs.score, task, target, space, rows)),
        }
        whole = 1 / sum(1 / rate for rate in rates.values())
        about = {"ready": costs.ready, "sketch": space.sketch, "size": float(space.size), "points": len(rows)}
        found.append({**about, "whole": whole, **rates})
    return found


def _a_second(work: Callable[[], Sized]) -> float:
    """How many things a second `work` gives, the first time not counted."""
    work()
    start_s, done = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - start_s) < SCORING_S:
        done += len(work())
    return done / passed_s


def time_whole(tell: Tell, model: str, threads: int, variants: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Seconds of one run of a model as each of the variants has it, side by side: see `whole_model.Variant`."""
    from tunewright.codegen.host import detect
    from tunewright.tuner.jobs.whole_model import Variant, time_sessions
    from tunewright.tuner.models.model import open_model
    from tunewright.tuner.settings import settings

    wanted = {name: Variant.from_json(data) for name, data in variants.items()}
    found = time_sessions(open_model(Path(model)), detect(threads), settings().objects, wanted)
    return {name: latency.median_s for name, latency in found.latencies.items()}


CALLS: dict[str, Call] = {
    "tune": tune,
    "load": load,
    "sample": sample,
    "kernels": kernels,
    "compare": compare,
    "measure": measure,
    "picked": picked,
    "score": score,
    "time_whole": time_whole,
}

if __name__ == "__main__":
    serve(CALLS)
