"""`tunewright show`: one task: its spaces, and what one point of them becomes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from tunewright.codegen.cuda.gpu import KNOWN
from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.db.reading import NoDatabase, open_reader
from tunewright.db.sql_store import SqlStore
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, lower, spaces
from tunewright.search_space.space import ENUMERABLE, Space

from ..errors import Refused
from ..insight.texts import GPU_PARTS, PARTS, parts_of, readable, text_of
from ..lookup import Match, look_up
from ..lookup.prediction import predicted
from ..models.model import open_model
from ..settings import settings
from ..targets import local_target
from ..text import counted, duration, large, printable, shape
from ..units import in_ms


def show(
    prefix: str,
    schedule: str,
    parts: Collection[str] | None,
    model: Path | None,
    db: str | None,
    dims: Mapping[str, int],
    threads: int | None,
    target_name: str = "auto",
) -> dict[str, Any]:
    """The task whose key begins with `prefix`, its spaces, and a point of them as each of `parts` (None: all).

    `schedule` is "best", which is what a session would run, "default", or the schedule as JSON. `target_name` is that
    of a device of this machine, or "cuda:" and an architecture, which need not be here.
    """
    if not re.fullmatch("[0-9a-f]{1,64}", prefix):
        raise Refused(
            f"{prefix!r} is no key of a task: it has letters 0 to 9 and a to f; tunewright tasks MODEL lists them"
        )
    target = _target(target_name, threads)
    wanted = parts_of(target) if parts is None else parts
    if other := sorted(set(wanted) - set(parts_of(target))):
        raise Refused(f"for {target} there is no {other[0]}, but {', '.join(parts_of(target))}")
    with _known(db, model) as store:
        task = _task(store, prefix, model, dims, target)
        chosen, match, expected_s = _schedule(store, task, target, schedule)
        measured = _measured(store, task, target, chosen)
        prediction = predicted(store, task, target, chosen)
    candidate = Candidate(task, target, chosen)
    try:
        kernel = lower(candidate)
    except Illegal as error:
        raise Refused(f"--schedule: {error}") from error
    return {
        "key": task.key,
        "op": task.op,
        "target": str(target),
        "task": task.to_json(),
        "flops": task.flops,
        "spaces": [_space(space) for space in spaces(task, target)],
        "schedule": chosen.to_json(),
        "match": match,
        "expected_ms": in_ms(expected_s),
        "measured": measured and _measured_json(measured),
        "prediction": prediction.to_json() if prediction else None,
        **_texts(kernel, target, wanted),
    }


def _target(name: str, threads: int | None) -> Target:
    kind, _, arch = name.partition(":")
    if kind != CUDA or not arch:
        return local_target(name, threads)
    if arch in KNOWN:
        return Target.of_gpu(KNOWN[arch])
    raise Refused(f"--target {name!r} is no GPU that is known; there are {', '.join(f'{CUDA}:{one}' for one in KNOWN)}")


def _texts(kernel: Kernel, target: Target, parts: Collection[str]) -> dict[str, str]:
    try:
        return {part: text_of(kernel, target, part) for part in parts_of(target) if part in parts}
    except NoCompiler as error:
        raise Refused(str(error)) from error


def _known(db: str | None, model: Path | None) -> AbstractContextManager[SqlStore | None]:
    """What is known; nothing where the task comes from a model and there is no default database yet."""
    try:
        return open_reader(db or settings().db)
    except NoDatabase as error:
        if db is not None:
            raise
        if model is None:
            raise Refused(f"{error}; of a model that was not tuned yet, name it: --model MODEL") from error
        return nullcontext()


def _task(store: SqlStore | None, prefix: str, model: Path | None, dims: Mapping[str, int], target: Target) -> Task:
    """The one task of the model or the database that is meant. Raises Refused where it isn't one."""
    if model is not None:
        found = open_model(model, dims, widen=target.kind != CUDA)
        own = {key: task for key, (task, _) in found.tasks.items()}
        keys, place = [key for key in own if key.startswith(prefix)], "the model"
    else:
        own, keys, place = {}, store.task_keys(prefix) if store else [], "the database"
    match keys:
        case [key]:
            return own[key] if store is None or key in own else store.task(key)
        case []:
            hint = "" if model else "; of a model that was not tuned yet, name it: --model MODEL"
            raise Refused(f"{place} has no task {prefix!r}{hint}")
        case _:
            raise Refused(
                f"{prefix} may be any of {counted(len(keys), 'task')} of {place}, such as {keys[0]} and {keys[1]}"
            )


def _schedule(store: SqlStore | None, task: Task, target: Target, wanted: str) -> tuple[Schedule, str, float | None]:
    """The schedule, where it came from, and the seconds that it is expected to take, if a lookup says so."""
    match wanted:
        case "best":
            found = look_up(store, [task], target)[task.key]
            return found.schedule, found.match, found.expected_s
        case "default":
            return default_schedule(task, target), "default", None
        case _:
            return _parsed(wanted), "given", None


def _measured(store: SqlStore | None, task: Task, target: Target, schedule: Schedule) -> Measurement | None:
    """What was measured of it: beside others if it was chosen among them, else alone; None where it was not tried."""
    if store is None:
        return None
    confirmed = store.confirmed_many([task.key], target.key).get(task.key)
    if confirmed is not None and confirmed.schedule == schedule:
        return confirmed.measurement
    trial = store.trials.one(task.key, target.key, schedule.key)
    return trial.record.measurement if trial else None


def _measured_json(measured: Measurement) -> dict[str, Any]:
    return {
        "status": measured.status.value,
        "median_ms": in_ms(measured.median_s),
        "low_ms": in_ms(measured.low_s),
        "high_ms": in_ms(measured.high_s),
    }


def _parsed(text: str) -> Schedule:
    form = 'a schedule is like {"sketch": "...", "version": 1, "values": {"knob": 1}}'
    try:
        return Schedule.from_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise Refused(f"--schedule {text[:80]!r} is neither best, default nor JSON; {form}") from error
    except KeyError as error:
        raise Refused(f"--schedule {text[:80]!r} has no {error}; {form}") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Refused(f"--schedule {text[:80]!r} is no schedule; {form}") from error


def _space(space: Space) -> dict[str, Any]:
    return {
        "sketch": space.sketch,
        "version": space.version,
        "combinations": space.size,
        "legal": len(space.points) if space.size <= ENUMERABLE else None,
        "knobs": {knob.name: list(knob.choices) for knob in space.knobs},
    }


def render(console: Console, data: Mapping[str, Any]) -> None:
    """The task, the spaces, the schedule, what is expected of it, then the texts."""
    render_point(console, data)
    render_prediction(console, data)
    for part in dict.fromkeys((*PARTS, *GPU_PARTS)):
        if part in data:
            console.print(f"\n--- {part}")
            console.print(listing(data, part), soft_wrap=True)


def listing(data: Mapping[str, Any], part: str) -> str:
    """One of the texts, as it may be written anywhere."""
    return readable(data[part])


def render_point(console: Console, data: Mapping[str, Any]) -> None:
    """The task, the spaces and the schedule."""
    console.print(f"task {data['key']}: {printable(data['op'])}, {large(data['flops'], 'FLOP')}, for {data['target']}")
    for role in ("inputs", "outputs"):
        for tensor in data["task"][role]:
            constant = " constant" if tensor["constant"] else ""
            console.print(
                f"  {role[:-1]} {printable(tensor['name'])}: {tensor['dtype']} {shape(tensor['shape'])}{constant}"
            )
    for space in data["spaces"]:
        legal = "" if space["legal"] is None else f", {space['legal']:,} of them legal"
        size = counted(space["combinations"], "combination")
        console.print(f"space of sketch {space['sketch']}.{space['version']}: {size}{legal}")
        for name, choices in space["knobs"].items():
            console.print(f"  {name}: {', '.join(map(str, choices))}")
    console.print(f"schedule ({data['match']}): {Schedule.from_json(data['schedule'])}")
    if data["measured"] is not None:
        console.print(_measured_text(data["measured"]))
    elif data["expected_ms"] is not None and data["match"] != Match.PREDICTED:
        console.print(f"not measured; by others like it, it takes some {duration(data['expected_ms'])}")


def _measured_text(measured: Mapping[str, Any]) -> str:
    if measured["median_ms"] is None:
        return f"measured, and failed: {measured['status']}"
    interval = ""
    if measured["low_ms"] is not None and measured["high_ms"] is not None:
        interval = f", the median between {duration(measured['low_ms'])} and {duration(measured['high_ms'])}"
    return f"measured {duration(measured['median_ms'])}{interval}"


def render_prediction(console: Console, data: Mapping[str, Any]) -> None:
    """What the cost model expects of the schedule, and why."""
    if (prediction := data["prediction"]) is None:
        console.print("the cost model knows nothing of this schedule")
        return
    spread = 100 * (2 ** prediction["deviation"] - 1)
    expected_ms, measured_ms = prediction["expected_ms"], (data["measured"] or {}).get("median_ms")
    off = f", {100 * (expected_ms / measured_ms - 1):+.0f}% beside what was measured" if measured_ms else ""
    console.print(f"the cost model expects {duration(expected_ms)}, give or take {spread:.0f}%{off}")
    console.print("what tells most, and what it does to the speed:")
    for one in prediction["contributions"]:
        console.print(f"  {one['feature']} = {one['value']:.4g}: {100 * (2 ** one['log2_speed'] - 1):+.1f}%")
