"""The three answers to a case: ours, ONNX Runtime's with its rewrites off, and the evaluator's, node by node."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.graph import fallback
from tunewright.graph.ir import Array
from tunewright.graph.onnx_import import ModelError
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Space
from tunewright.tuner.errors import InputError, Refused
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.running.session import InferenceSession

from .case import Case, Feeds, Plan
from .program import Program, program

OURS, RUNTIME, EVALUATOR = "ours", "onnxruntime", "evaluator"

DRAWN_ROWS, DRAWS = 64, 8
"""Points drawn at once until one is legal, and how often."""

CLEAR = (ModelError, Refused, InputError, fallback.EvaluationError)
"""What says in one line why a model can't be used."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs for each of the feeds, or why there are none.

    `is_clear`: the reason is one that is meant for people; else it is a bug's, and `text` its traceback.
    """

    outputs: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    is_clear: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """All three, and what the evaluator ran."""

    ours: Answer
    runtime: Answer
    evaluator: Answer
    program: Program
    seen: Sequence[Mapping[str, Any]] = field(default_factory=tuple)  # every tensor that the evaluator made, by feed


def answers(case: Case, tell: Callable[[str], object] = lambda stage: None) -> Answers:
    """All answers to a case. `tell` hears who is at work, for when a process dies of it."""
    tell(RUNTIME)
    runtime = runtime_answer(case)
    tell(EVALUATOR)
    flat = program(case.proto())
    evaluator, seen = evaluator_answer(case, flat)
    tell(OURS)
    return Answers(our_answer(case), runtime, evaluator, flat, seen)


def our_answer(case: Case) -> Answer:
    """A session's, on the schedules of the plan. Feeds that give weights have sessions in which these are inputs."""
    weights = {tensor.name for tensor in case.proto().graph.initializer}
    outputs: dict[int, tuple[Any, ...]] = {}
    try:
        target = target_of(case.plan.threads, case.plan.vector_bits)
        for given in {frozenset(weights.intersection(feeds)) for feeds in case.feeds}:
            model, schedules = planned(open_model(case.model, case.dims(), given=given), case.plan, target)
            with InferenceSession.of(model, target, schedules) as session:
                for number, feeds in enumerate(case.feeds):
                    if weights.intersection(feeds) == given:
                        outputs[number] = tuple(session.run(None, feeds))
        return Answer(tuple(outputs[number] for number in range(len(case.feeds))))
    except CLEAR as error:
        return Answer(error=f"{type(error).__name__}: {error}", is_clear=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return _failed(error)


@cache
def target_of(threads: int, vector_bits: int) -> Target:
    """This machine, or one like it with narrower vectors."""
    target = detect(threads)
    return replace(target, vector_bits=vector_bits) if 0 < vector_bits < target.vector_bits else target


def planned(model: Model, plan: Plan, target: Target) -> tuple[Model, dict[str, Schedule]]:
    """The model with the segments that the plan has, and a schedule for each task; none where defaults are wanted."""
    if not plan.is_random:
        return model.merged(()), {}
    rng = np.random.default_rng(plan.seed)
    model = model.chosen({key: float(rng.random()) for key in model.tasks})
    return model, {key: _drawn_schedule(task, target, rng) for key, (task, _) in model.tasks.items()}


def _drawn_schedule(task: Task, target: Target, rng: np.random.Generator) -> Schedule:
    """A legal point of any sketch that has the task; a default where none was found."""
    offered = spaces(task, target)
    space = offered[int(rng.integers(len(offered)))]
    found = _drawn_row(space, rng)
    return space.default if found is None else space.schedule(found)


def _drawn_row(space: Space, rng: np.random.Generator) -> Any:
    radix = [len(knob.choices) for knob in space.knobs]
    for _ in range(DRAWS):
        rows = rng.integers(0, radix, (DRAWN_ROWS, len(radix)))
        legal = rows[space.valid(rows)]
        if len(legal):
            return legal[0]
    return None


def runtime_answer(case: Case) -> Answer:
    """ONNX Runtime's, with its rewrites off, on one thread."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
        return Answer(tuple(tuple(session.run(None, dict(feeds))) for feeds in case.feeds))
    except Exception as error:  # noqa: BLE001 - its classes are not all public, and none of them is a fault of ours
        return Answer(error=_line(error), is_clear=True)


def evaluator_answer(case: Case, flat: Program) -> tuple[Answer, list[dict[str, Any]]]:
    """The model node by node, and the value of every tensor for each of the feeds."""
    outputs, seen = [], []
    try:
        for feeds in case.feeds:
            values = evaluated(flat, feeds)
            seen.append(values)
            outputs.append(tuple(values[name] for name in flat.outputs))
    except fallback.EvaluationError as error:
        return Answer(error=_line(error), is_clear=True), seen
    return Answer(tuple(outputs)), seen


def evaluated(flat: Program, feeds: Feeds) -> dict[str, Any]:
    """The value of every tensor. Raises EvaluationError."""
    values = flat.start(feeds)
    for node in flat.nodes:
        results = fallback.evaluate(node, [values[name] if name else None for name in node.inputs])
        values |= {name: result for name, result in zip(node.outputs, results, strict=True) if name}
    return values


def _failed(error: Exception) -> Answer:
    """What an exception is that nobody meant: its kind, and the last function of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "tunewright" in frame.filename]
    at = own[-1] if own else frames[-1]
    place = f"{Path(at.filename).parent.name}/{Path(at.filename).name}:{at.name}"
    return Answer(error=f"{type(error).__name__} in {place}: {_line(error)}", text=traceback.format_exc())


def _line(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{error}")[:240]


def as_array(value: Any) -> Array | None:
    """An output as an array; None for what is no tensor."""
    return None if isinstance(value, list) or value is None else np.asarray(value)
