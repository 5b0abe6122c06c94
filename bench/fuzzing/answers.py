"""The three answers to a case: ours, ONNX Runtime's without rewrites, and the evaluator's, node by node."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.graph.evaluation import fallback
from tunewright.graph.ir import Array
from tunewright.graph.numerics import PROCESSOR, Numerics, Precision
from tunewright.graph.onnx_import import ModelError
from tunewright.graph.task import Task
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import spaces
from tunewright.search_space.space import Space
from tunewright.tuner.errors import InputError, Refused
from tunewright.tuner.models.model import Model, open_model
from tunewright.tuner.session.session import InferenceSession

from .case import Feeds, FuzzCase, RunPlan
from .foreign import evaluate_node, is_foreign, write_calls
from .program import FlatProgram, flatten

OURS, RUNTIME, EVALUATOR = "ours", "onnxruntime", "evaluator"

DRAWN_ROWS, DRAWS = 64, 8
"""Points that are drawn at once until one is legal, and the most draws."""

CLEAR_ERRORS = (ModelError, Refused, InputError, fallback.EvaluationError)
"""Exceptions that say in one line why a model can't be used."""


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """Outputs for each of the feeds, or an error.

    `is_clear`: the error is a message for people; else it is a bug, and `text` its traceback. `is_asked`: False for
    the evaluator where the model has ops of other domains; then outputs count that do not depend on any.
    """

    outputs: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    is_clear: bool = False
    text: str = ""
    is_asked: bool = True


NOT_ASKED = CaseAnswer(error="not asked about ops of other domains", is_clear=True, is_asked=False)
"""The evaluator's answer to a model with ops of other domains."""


@dataclass(frozen=True, slots=True)
class CaseAnswers:
    """All three answers, and the program that the evaluator ran, or what stands in for it (`foreign.py`).

    `rounded`: ours in the precision of the plan, where that changes anything.
    """

    ours: CaseAnswer
    runtime: CaseAnswer
    evaluator: CaseAnswer
    program: FlatProgram
    tensors: Sequence[Mapping[str, Any]] = field(
        default_factory=tuple
    )  # values of all tensors in the evaluator, by feed
    rounded: CaseAnswer | None = None


def answer_case(case: FuzzCase, report_stage: Callable[[str], object] = lambda stage: None) -> CaseAnswers:
    """All answers to a case. `report_stage` gets each runtime's name before it starts: it may crash the process."""
    report_stage(RUNTIME)
    runtime = run_onnxruntime(case)
    report_stage(EVALUATOR)
    evaluator, tensors, flat = _evaluate_case(case)
    report_stage(OURS)
    ours, rounded = run_ours(case), None
    if case.plan.precision is not Precision.AS_GIVEN and not ours.error:
        report_stage(f"{OURS} in {case.plan.precision}")
        rounded = run_rounded(case)
    return CaseAnswers(ours, runtime, evaluator, flat, tensors, rounded)


def _evaluate_case(case: FuzzCase) -> tuple[CaseAnswer, list[dict[str, Any]], FlatProgram]:
    flat = flatten(case.proto())
    try:
        written = write_calls(flat, case.feeds[0])
    except fallback.EvaluationError:
        return NOT_ASKED, [], flat
    answer, tensors = run_evaluator(case, written)
    if any(map(is_foreign, flat.nodes)):
        answer = replace(NOT_ASKED, outputs=answer.outputs)
    return answer, tensors, written


def run_rounded(case: FuzzCase) -> CaseAnswer | None:
    """The answer of ours in the precision of the plan; None where products stay as they are."""
    try:
        numerics = rounded_numerics(case.plan)
        as_given = replace(numerics, precision=Precision.AS_GIVEN)
        graphs = [open_model(case.model, case.dims(), form).graph for form in (as_given, numerics)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return _traceback_answer(error)
    return None if str(graphs[0]) == str(graphs[1]) else run_ours(case, numerics)


def rounded_numerics(plan: RunPlan) -> Numerics:
    """Those of the plan's precision. bfloat16 is multiplied as such, also where the machine has no instruction for it:
    there only weights that are larger than drawn ones would be rounded.
    """
    has_dots = make_target(plan.threads, plan.vector_bits).has_dots
    return Numerics(dots=has_dots, bf16=True, precision=plan.precision)


def run_ours(case: FuzzCase, numerics: Numerics = PROCESSOR) -> CaseAnswer:
    """The answer of our session on the plan's schedules. Weights that a feed gives are inputs of its session."""
    weights = {tensor.name for tensor in case.proto().graph.initializer}
    outputs: dict[int, tuple[Any, ...]] = {}
    try:
        target = make_target(case.plan.threads, case.plan.vector_bits)
        for overridden in {frozenset(weights.intersection(feeds)) for feeds in case.feeds}:
            opened = open_model(case.model, case.dims(), numerics, overrides=overridden)
            model, schedules = plan_schedules(opened, case.plan, target)
            with InferenceSession.of(model, target, schedules) as session:
                for number, feeds in enumerate(case.feeds):
                    if weights.intersection(feeds) == overridden:
                        outputs[number] = tuple(session.run(None, feeds))
        return CaseAnswer(tuple(outputs[number] for number in range(len(case.feeds))))
    except CLEAR_ERRORS as error:
        return CaseAnswer(error=f"{type(error).__name__}: {error}", is_clear=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return _traceback_answer(error)


@cache
def make_target(threads: int, vector_bits: int) -> Target:
    """This machine, or one like it with narrower vectors."""
    target = detect(threads)
    return replace(target, vector_bits=vector_bits) if 0 < vector_bits < target.vector_bits else target


def plan_schedules(model: Model, plan: RunPlan, target: Target) -> tuple[Model, dict[str, Schedule]]:
    """The model with the plan's segments, and a schedule for each task; none for default schedules."""
    if not plan.is_random:
        return model.merge(()), {}
    rng = np.random.default_rng(plan.seed)
    model = model.fastest({key: float(rng.random()) for key in model.tasks})
    return model, {key: _random_schedule(task, target, rng) for key, (task, _) in model.tasks.items()}


def _random_schedule(task: Task, target: Target, rng: np.random.Generator) -> Schedule:
    """A legal point of a random space of the task; its default where none was drawn."""
    task_spaces = spaces(task, target)
    space = task_spaces[int(rng.integers(len(task_spaces)))]
    row = _random_row(space, rng)
    return space.default if row is None else space.schedule(row)


def _random_row(space: Space, rng: np.random.Generator) -> Any:
    radix = [len(knob.choices) for knob in space.knobs]
    for _ in range(DRAWS):
        rows = rng.integers(0, radix, (DRAWN_ROWS, len(radix)))
        legal = rows[space.valid(rows)]
        if len(legal):
            return legal[0]
    return None


def run_onnxruntime(case: FuzzCase) -> CaseAnswer:
    """The answer of ONNX Runtime, without rewrites, on one thread."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
        return CaseAnswer(tuple(tuple(session.run(None, dict(feeds))) for feeds in case.feeds))
    except Exception as error:  # noqa: BLE001 - its classes are not all public, and none of them is a fault of ours
        return CaseAnswer(error=_line(error), is_clear=True)


@lru_cache(maxsize=8)
def runtime_tensors(case: FuzzCase, number: int) -> Mapping[str, Any]:
    """The values of all tensors in ONNX Runtime, for one of the feeds; none where it does not run the model."""
    model = case.proto()
    names = [name for node in model.graph.node for name in node.output if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    whole = run_onnxruntime(replace(case, model=model.SerializeToString(), feeds=case.feeds[number : number + 1]))
    return dict(zip(names, *whole.outputs, strict=True)) if whole.outputs else {}


def run_evaluator(case: FuzzCase, flat: FlatProgram) -> tuple[CaseAnswer, list[dict[str, Any]]]:
    """The answer of the evaluator, and the values of all tensors for each of the feeds."""
    outputs: list[tuple[Any, ...]] = []
    tensors: list[dict[str, Any]] = []
    try:
        for feeds in case.feeds:
            values = evaluate_tensors(flat, feeds)
            tensors.append(values)
            outputs.append(tuple(map(values.get, flat.outputs)))
    except fallback.EvaluationError as error:
        return CaseAnswer(error=_line(error), is_clear=True), tensors
    return CaseAnswer(tuple(outputs)), tensors


def evaluate_tensors(flat: FlatProgram, feeds: Feeds) -> dict[str, Any]:
    """The values of all tensors, but those that `evaluate_node` leaves out. Raises EvaluationError."""
    values = flat.initial_values(feeds)
    for node in flat.nodes:
        values |= evaluate_node(node, values)
    return values


def _traceback_answer(error: Exception) -> CaseAnswer:
    """The answer of an unexpected exception: its class, and our last function in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if "tunewright" in frame.filename]
    last_frame = own_frames[-1] if own_frames else frames[-1]
    place = f"{Path(last_frame.filename).parent.name}/{Path(last_frame.filename).name}:{last_frame.name}"
    return CaseAnswer(error=f"{type(error).__name__} in {place}: {_line(error)}", text=traceback.format_exc())


def _line(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{error}")[:240]


def as_array(value: Any) -> Array | None:
    """An output as an array; None if it is no tensor."""
    return None if isinstance(value, list) or value is None else np.asarray(value)
