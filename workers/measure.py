"""What a child does: build a candidate, check it, time it. `CALLS` are the requests that `process.Child` can make.

All arguments and results are plain data, as `wire` has them. Nothing is caught here but what a candidate can be
blamed for: a crash or a hang is for the parent to see.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from tunewright.codegen.build import BuildError, ObjectCache, build
from tunewright.codegen.host import machine
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Status
from tunewright.search_space.sketches import lower

from . import sampling
from .check import Example, Loaded
from .wire import artifact_json, identity, read_artifact, read_candidate

EXAMPLES = 4
"""Tasks whose examples are kept: candidates come task by task."""

_examples: OrderedDict[str, Example] = OrderedDict()
_kept: list[Loaded] = []
_object_cache = cache(ObjectCache)
_provenance = cache(machine)


def build_candidate(candidate: dict[str, Any], objects: str) -> dict[str, Any]:
    """Lower and compile, or take from the cache in folder `objects`.

    `artifact` and its `identity`, or an `error`; and `build_s`.
    """
    start_s = time.perf_counter()
    one = read_candidate(candidate)
    try:
        data = artifact_json(build(lower(one), one.target, _object_cache(Path(objects))))
    except BuildError as error:
        return {"error": str(error), "build_s": time.perf_counter() - start_s}
    return {"artifact": data, "identity": identity(data), "build_s": time.perf_counter() - start_s}


def prepare(task: dict[str, Any]) -> None:
    """Compute the example of a task, unless it is at hand: the calls below need it."""
    one = Task.from_json(task)
    if one.key not in _examples:
        while len(_examples) >= EXAMPLES:
            _examples.popitem(last=False)
        _examples[one.key] = Example(one)
    _examples.move_to_end(one.key)


def measure(
    task_key: str, artifact: dict[str, Any], threads: int, budget_s: float, best_s: float | None
) -> dict[str, Any]:
    """Check and time an artifact: its Measurement. See `sampling.samples` for the budget, `Pool.measure` for `best_s`.

    `unprepared` where the example is not at hand: the child that had prepared it is dead, and this one came after it.
    """
    if task_key not in _examples:
        return {"unprepared": True}
    begun, loaded = _begin(task_key, artifact, threads)
    if loaded is None:
        return begun.to_json()
    with loaded:
        begun = _checked(begun, loaded.check())
        if begun.status is Status.OK:
            taken = sampling.samples(loaded.timing(), budget_s, inf if best_s is None else sampling.HOPELESS * best_s)
            begun = sampling.timed(_checked(begun, (loaded.recheck(), begun.max_rel_err)), taken)
    return begun.to_json()


def _begin(task_key: str, artifact: dict[str, Any], threads: int) -> tuple[Measurement, Loaded | None]:
    """The artifact in memory, and a measurement without figures; that of a failure if it can't be loaded."""
    built = read_artifact(artifact)
    begun = Measurement(Status.OK, object_sha256=built.sha256, provenance=_provenance())
    try:
        return begun, Loaded(_examples[task_key], built, shared_pool(threads))
    except RuntimeError as error:
        return replace(begun, status=Status.BUILD_ERROR, error=f"can't be loaded: {error}"), None


def _checked(begun: Measurement, outcome: tuple[str | None, float | None]) -> Measurement:
    fault, max_rel_err = outcome
    if fault:
        return replace(begun, status=Status.WRONG_RESULT, error=fault, max_rel_err=max_rel_err)
    return replace(begun, max_rel_err=max_rel_err)


def load(task_key: str, artifact: dict[str, Any], threads: int) -> dict[str, Any]:
    """Check an artifact and keep it in memory for `sample`: its `number`, the `repeats` of a sample.

    `measurement` has no figures yet; unless its status is OK, there is nothing to sample.
    """
    begun, loaded = _begin(task_key, artifact, threads)
    if loaded is None:
        return {"number": -1, "repeats": 0, "measurement": begun.to_json()}
    begun = _checked(begun, loaded.check())
    _kept.append(loaded)
    count = sampling.repeats(loaded.timing()) if begun.status is Status.OK else 0
    return {"number": len(_kept) - 1, "repeats": count, "measurement": begun.to_json()}


def sample(number: int, repeats: int) -> float:
    """One sample of what was loaded, after a run to fill the caches: another one has run before."""
    loaded = _kept[number]
    loaded.program.run()
    [time_s] = loaded.timing().time(1, repeats)
    return time_s


def recheck(number: int) -> str | None:
    """What is wrong with what was loaded and has been sampled since, or null."""
    return _kept[number].recheck()


CALLS: dict[str, Callable[..., Any]] = {
    "build": build_candidate,
    "prepare": prepare,
    "measure": measure,
    "load": load,
    "sample": sample,
    "recheck": recheck,
}
