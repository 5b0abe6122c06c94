"""One task: its spaces, and what one point of them becomes, as data and printed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from tunewright.codegen.cuda.nvrtc import NoCompiler
from tunewright.codegen.fields import quote
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import CUDA, Target
from tunewright.db.reader import NoDatabase, open_reader
from tunewright.db.store import Store
from tunewright.db.trial import TrialDetail
from tunewright.graph.numerics import Precision
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.schedule import Illegal, Schedule
from tunewright.search_space.sketches import default_schedule, lower, spaces
from tunewright.search_space.space import ENUMERABLE, Space

from ..errors import Refused
from ..explain.texts import GPU_PARTS, PARTS, parts_of, readable, text_of
from ..known_times import KnownDefault
from ..lookup.ladder import lookup_with_cost_model
from ..lookup.predictor import predict
from ..lookup.result import Match
from ..models.model import open_for
from ..noise import noise_of_measurement
from ..settings import settings
from ..targets import local_target
from ..text import (
    Interval,
    beside_trial,
    between_ms,
    change,
    counted,
    duration,
    large,
    mark_noise,
    mark_trial,
    moments,
    percentage,
    printable,
    shape,
)
from ..units import in_ms
from .tables import print_legends


def show_task(
    prefix: str,
    schedule: str,
    parts: Collection[str] | None,
    model: Path | None,
    db: str | None,
    dims: Mapping[str, int],
    threads: int | None,
    target_name: str = "auto",
    precision: Precision = Precision.AS_GIVEN,
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
    part_names = parts_of(target) if parts is None else parts
    if unknown := sorted(set(part_names) - set(parts_of(target))):
        raise Refused(f"for {target} there is no {unknown[0]}, but {', '.join(parts_of(target))}")
    with _open_database(db, model) as store:
        task = _task(store, prefix, model, dims, target, precision)
        chosen, match, expected_s = _schedule(store, task, target, schedule)
        measured = None if store is None else _measurement_json(store, task, target, chosen)
        expected_ms = in_ms(expected_s) if expected_s is not None or measured is None else measured["median_ms"]
        prediction = predict(store, task, target, chosen)
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
        "expected_ms": expected_ms,
        "measured": measured,
        "prediction": prediction.to_json() if prediction else None,
        **_texts(kernel, target, part_names),
    }


def _target(name: str, threads: int | None) -> Target:
    kind, _, arch = name.partition(":")
    if kind != CUDA or not arch:
        return local_target(name, threads)
    if arch in KNOWN:
        return Target.of_gpu(KNOWN[arch])
    names = ", ".join(f"{CUDA}:{known}" for known in KNOWN)
    raise Refused(f"--target {name!r} is no GPU that is known; there are {names}")


def _texts(kernel: Kernel, target: Target, parts: Collection[str]) -> dict[str, str]:
    try:
        return {part: text_of(kernel, target, part) for part in parts_of(target) if part in parts}
    except NoCompiler as error:
        raise Refused(str(error)) from error


def _open_database(db: str | None, model: Path | None) -> AbstractContextManager[Store | None]:
    """The database; None where the task comes from a model and there is no default database yet."""
    try:
        return open_reader(db or settings().db)
    except NoDatabase as error:
        if db is not None:
            raise
        if model is None:
            raise Refused(f"{error}; of a model that was not tuned yet, name it: --model MODEL") from error
        return nullcontext()


def _task(
    store: Store | None,
    prefix: str,
    model: Path | None,
    dims: Mapping[str, int],
    target: Target,
    precision: Precision,
) -> Task:
    """The only task of the model or the database with that prefix. Raises Refused where it isn't one."""
    if model is not None:
        opened_model = open_for(target, model, dims, precision=precision)
        tasks = {key: task for key, (task, _) in opened_model.tasks.items()}
        keys, place = [key for key in tasks if key.startswith(prefix)], "the model"
    else:
        tasks, keys, place = {}, store.task_keys(prefix) if store else [], "the database"
    match keys:
        case [key]:
            return tasks[key] if store is None or key in tasks else store.task(key)
        case []:
            hint = "" if model else "; of a model that was not tuned yet, name it: --model MODEL"
            raise Refused(f"{place} has no task {prefix!r}{hint}")
        case _:
            raise Refused(
                f"{prefix} may be any of {counted(len(keys), 'task')} of {place}, such as {keys[0]} and {keys[1]}"
            )


def _schedule(store: Store | None, task: Task, target: Target, choice: str) -> tuple[Schedule, str, float | None]:
    """The schedule, where it came from, and the seconds that it is expected to take, if a lookup says so."""
    match choice:
        case "best":
            result = lookup_with_cost_model(store, [task], target)[task.key]
            return result.schedule, result.match, result.expected_s
        case "default":
            return default_schedule(task, target), "default", None
        case _:
            return _parse_schedule(choice), "given", None


class _Timing(NamedTuple):
    status: Status
    time_s: float | None
    interval_s: Interval | None
    noise: str
    is_confirmed: bool
    is_imported: bool = False

    @staticmethod
    def of(measurement: Measurement, *, is_confirmed: bool, is_imported: bool) -> _Timing:
        noise = noise_of_measurement(measurement)
        interval_s = measurement.interval_s
        return _Timing(measurement.status, measurement.median_s, interval_s, noise, is_confirmed, is_imported)


def _measurement_json(store: Store, task: Task, target: Target, schedule: Schedule) -> dict[str, Any] | None:
    """The measurement of a schedule; None where it was not tried.

    And the time of its trial, from which models learn unless it was imported.
    """
    trial = store.trials.get(task.key, target.key, schedule.key)
    timing = _timing(store, task, target, schedule, trial)
    if timing is None:
        return None
    low_s, high_s = timing.interval_s or (None, None)
    tried = trial.record.measurement if trial and not trial.line.is_imported else None
    return {
        "noise": timing.noise,
        "status": timing.status.value,
        "median_ms": in_ms(timing.time_s),
        "low_ms": in_ms(low_s),
        "high_ms": in_ms(high_s),
        "confirmed": timing.is_confirmed,
        "imported": timing.is_imported,
        "trial_ms": in_ms(tried.median_s) if tried else None,
        "trial_noise": noise_of_measurement(tried),
    }


def _timing(store: Store, task: Task, target: Target, schedule: Schedule, trial: TrialDetail | None) -> _Timing | None:
    """The newest confirmation of a schedule; of the default, what is told beside the best; else the trial."""
    record = store.confirmations([task.key], target.key).get(task.key)
    if record is not None and record.schedule == schedule:
        is_here = task.key in store.comparisons([task.key], target.key)
        return _Timing.of(record.measurement, is_confirmed=is_here, is_imported=not is_here)
    if schedule == default_schedule(task, target):
        known = KnownDefault.of_task(store, task.key, target, schedule.key)
        if known is not None and known.is_confirmed:
            return _Timing(Status.OK, known.time_s, known.interval_s, known.noise, is_confirmed=True)
    if trial is None:
        return None
    return _Timing.of(trial.record.measurement, is_confirmed=False, is_imported=trial.line.is_imported)


def _parse_schedule(text: str) -> Schedule:
    form = 'a schedule is like {"sketch": "...", "version": 1, "values": {"knob": 1}}'
    try:
        return Schedule.from_json(json.loads(text))
    except json.JSONDecodeError as error:
        raise Refused(f"--schedule {quote(text, 80)} is neither best, default nor JSON; {form}") from error
    except KeyError as error:
        raise Refused(f"--schedule {quote(text, 80)} has no {error}; {form}") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Refused(f"--schedule {quote(text, 80)} is no schedule; {form}") from error


def _space(space: Space) -> dict[str, Any]:
    return {
        "sketch": space.sketch,
        "version": space.version,
        "combinations": space.size,
        "legal": len(space.points) if space.size <= ENUMERABLE else None,
        "knobs": {knob.name: list(knob.choices) for knob in space.knobs},
    }


def render(console: Console, data: Mapping[str, Any]) -> None:
    """Print the task, the spaces, the schedule, the prediction, then the texts."""
    _print_legends(console, data, [_print_point(console, data), _print_prediction(console, data)])
    for part in dict.fromkeys((*PARTS, *GPU_PARTS)):
        if part in data:
            console.print(f"\n--- {part}")
            console.print(listing(data, part), soft_wrap=True)


def render_point(console: Console, data: Mapping[str, Any]) -> None:
    """Print the task, the spaces and the schedule."""
    _print_legends(console, data, [_print_point(console, data)])


def render_prediction(console: Console, data: Mapping[str, Any]) -> None:
    """Print the prediction of the cost model and its reasons."""
    _print_legends(console, data, [_print_prediction(console, data)])


def _print_legends(console: Console, data: Mapping[str, Any], figures: Collection[str]) -> None:
    measured = data["measured"] or {}
    print_legends(console, figures, [moments([measured.get("noise", ""), measured.get("trial_noise", "")])])


def listing(data: Mapping[str, Any], part: str) -> str:
    """One of the texts, as it may be written anywhere."""
    return readable(data[part])


def _print_point(console: Console, data: Mapping[str, Any]) -> str:
    """Print the task, the spaces and the schedule; return the line of its time."""
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
        text = _measurement_text(data["measured"])
        console.print(text)
        return text
    if data["expected_ms"] is not None and data["match"] != Match.PREDICTED:
        console.print(f"not measured; by others like it, it takes some {duration(data['expected_ms'])}")
    return ""


def _measurement_text(measured: Mapping[str, Any]) -> str:
    if measured["median_ms"] is None:
        is_voided = measured["status"] == Status.VOIDED
        return f"measured, and {'taken back' if is_voided else 'failed: ' + measured['status']}"
    low_ms, high_ms = measured["low_ms"], measured["high_ms"]
    interval = None if low_ms is None or high_ms is None else (low_ms, high_ms)
    where = "by another database, not here, " if measured["imported"] else ""
    is_tried = not measured["confirmed"] and not measured["imported"]
    figure = mark_trial(mark_noise(duration(measured["median_ms"]), measured["noise"]), is_tried)
    return f"measured {where}{figure}{between_ms(interval)}"


def _evidence_text(tasks: int) -> str:
    """The number of tasks that the cost model was judged on, in words."""
    if not tasks:
        return "nobody has judged it on tasks that it has not learned from: it may be further off"
    text = f"it was judged on {counted(tasks, 'task')} that it has not learned from"
    return f"{text}, which says nothing of others" if tasks == 1 else text


def _print_prediction(console: Console, data: Mapping[str, Any]) -> str:
    """Print the prediction and its reasons; return its difference from the trial."""
    if (prediction := data["prediction"]) is None:
        console.print("the cost model knows nothing of this schedule")
        return ""
    spread = percentage(2 ** prediction["deviation"] - 1, "that")
    expected_ms = prediction["expected_ms"]
    console.print(f"the cost model expects {duration(expected_ms)}, give or take {spread}")
    measured = data["measured"] or {}
    trial_ms = measured.get("trial_ms")
    beside = beside_trial(expected_ms, trial_ms, measured.get("trial_noise", "")) if trial_ms else ""
    if beside:
        console.print(f"that is {beside}: models learn from times of trials")
    console.print(_evidence_text(prediction["judged_on"]))
    console.print("what tells most, and what it does to the speed:")
    for contribution in prediction["contributions"]:
        effect = change(2 ** contribution["log2_speed"], 1)
        console.print(f"  {contribution['feature']} = {contribution['value']:.4g}: {effect}")
    return beside
