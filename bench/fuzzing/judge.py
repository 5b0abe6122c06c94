"""The verdict on a case: three answers compared with each other and with float64."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunewright.graph.evaluation.fallback import EvaluationError
from tunewright.graph.numerics import Precision

from .answers import EVALUATOR, OURS, RUNTIME, CaseAnswers, as_array
from .bounds import MANY_RUNS, Bound, Leeway, has_varying_shape, output_bound
from .case import FuzzCase
from .exactness import MOVING
from .explanations import EXPLANATIONS, SHAPE_EXPLANATIONS, VARYING_SHAPE
from .explanations.anyone import divides_sums_by_zero, flushes
from .explanations.difference import Difference
from .precision import BF16_STEP
from .program import FlatProgram
from .values import FLOATS, as_float64, epsilon, is_float_array, limits

QUICK_ULPS = 2.0
"""Answers that are so close need no further check."""

LOOSE = 1e-4
"""The tolerance without float64, relative to the largest element."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An unexplained difference, or a failure. `kind` says which and whose; `detail` is for people."""

    kind: str
    detail: str
    text: str = ""  # a traceback

    @property
    def signature(self) -> str:
        """A key that findings of one origin share, as far as is known without shrinking."""
        if self.kind.startswith(("values", "shape", "type")):
            return self.kind
        return f"{self.kind}: {generic_message(self.detail)}"


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The verdict on a case: nothing, explanations of differences, or a finding. `runtimes`: who gave an answer."""

    finding: Finding | None = None
    reasons: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()


def generic_message(text: str) -> str:
    """A message without the parts that differ from model to model."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\[[^\]]*\]|\([^()]*\d[^()]*\)", "[...]", text)
    text = re.sub(r"('\.\.\.' \[\.\.\.\], )+", "", text)
    return re.sub(r"-?\b[\w.]*\d[\w.]*\b", "#", text)[:160]


def judge(case: FuzzCase, answers: CaseAnswers) -> CaseVerdict:
    """The verdict on a case and its answers."""
    by_name = {OURS: answers.ours, RUNTIME: answers.runtime, EVALUATOR: answers.evaluator}
    runtimes = tuple(name for name, answer in by_name.items() if not answer.error)
    finding = _failure(answers)
    if finding is not None:
        return CaseVerdict(finding, (), runtimes)
    if OURS not in runtimes:
        return CaseVerdict(None, (), runtimes)
    reasons: list[str] = []
    as_given = replace(case, plan=replace(case.plan, precision=Precision.AS_GIVEN))
    for number in range(len(case.feeds)):
        for finding in _differences(as_given, answers, number, runtimes, reasons):
            return CaseVerdict(finding, tuple(dict.fromkeys(reasons)), runtimes)
    finding = next(_rounded_differences(case, answers, reasons), None)
    return CaseVerdict(finding, tuple(dict.fromkeys(reasons)), runtimes)


def _failure(answers: CaseAnswers) -> Finding | None:
    ours, runtime, evaluator = answers.ours, answers.runtime, answers.evaluator
    for who, answer in ((OURS, ours), (EVALUATOR, evaluator)):
        if answer.error and not answer.is_clear:
            return Finding(f"traceback ({who})", answer.error, answer.text)
    if ours.error and not (runtime.error and evaluator.error):
        who = RUNTIME if not runtime.error else EVALUATOR
        return Finding(f"refused, but {who} runs it", ours.error)
    if evaluator.error and evaluator.is_asked and not runtime.error:
        return Finding("refused by the evaluator, but onnxruntime runs it", evaluator.error)
    return None


def _differences(
    case: FuzzCase, answers: CaseAnswers, number: int, runtimes: Sequence[str], reasons: list[str]
) -> Iterator[Finding]:
    """The unexplained differences of one of the feeds. Explanations of others are appended to `reasons`."""
    by_name = {OURS: answers.ours, RUNTIME: answers.runtime, EVALUATOR: answers.evaluator}
    for position in range(len(answers.ours.outputs[number])):
        witnesses = _witnesses(answers, position, runtimes)
        values = {name: by_name[name].outputs[number][position] for name in witnesses}
        arrays = {name: as_array(value) for name, value in values.items()}
        if any(array is None for array in arrays.values()):
            continue
        answers_by_name = {name: array for name, array in arrays.items() if array is not None}
        if fault := _form_fault(answers_by_name):
            kind, who, line = fault
            nowhere = np.zeros(answers_by_name[who].shape, np.bool_)
            reason = _explain_form(Difference(case, answers, number, position, who, answers_by_name, nowhere, None))
            if reason is None:
                yield Finding(f"{kind} ({who})", f"output {position}: {line}")
            else:
                reasons.append(reason)
            continue
        if _are_close(answers_by_name):
            continue
        bound = _output_bound(answers, case, number, position)
        if bound is None and _has_varying_shape(answers, case, number, position):
            reasons.append(VARYING_SHAPE)  # which elements are found, as well as how many
            continue
        wrong_answers = _weigh(answers_by_name, dict(_wrong_answers(answers_by_name, bound)))
        for who, right in wrong_answers.items():
            if who == EVALUATOR and OURS in wrong_answers and _has_same_errors(answers_by_name, right):
                continue  # reported for ours
            difference, explanations = _explain(
                Difference(case, answers, number, position, who, answers_by_name, right, bound)
            )
            reasons += explanations
            if not difference.right.all():
                difference = _compute_more_runs(difference)
            if not difference.right.all():
                yield Finding(f"values ({who})", _describe(difference))


def _rounded_differences(case: FuzzCase, answers: CaseAnswers, reasons: list[str]) -> Iterator[Finding]:
    """The unexplained differences of ours in the precision of the plan from the model as it is given."""
    rounded, who = answers.rounded, f"{OURS} in {case.plan.precision}"
    if rounded is None:
        return
    if rounded.error:
        kind = f"refused ({who}), but not as given" if rounded.is_clear else f"traceback ({who})"
        yield Finding(kind, rounded.error, rounded.text)
        return
    for number, (own, given) in enumerate(zip(rounded.outputs, answers.ours.outputs, strict=True)):
        for position, values in enumerate(zip(own, given, strict=True)):
            arrays = [as_array(value) for value in values]
            if arrays[0] is None or arrays[1] is None:
                continue
            known = dict(zip((who, OURS), arrays, strict=True))
            if fault := _form_fault(known):
                is_shape = fault[0] == "shape" and arrays[0].ndim == arrays[1].ndim
                if not (is_shape and _has_varying_shape(answers, case, number, position)):
                    yield Finding(f"{fault[0]} ({who})", f"output {position}: {fault[2]}")
            elif not _are_close(known):
                nowhere = np.zeros(arrays[0].shape, np.bool_)
                own_answers = replace(answers, ours=rounded)
                difference = Difference(case, own_answers, number, position, OURS, {OURS: arrays[0]}, nowhere, None)
                difference, explanations = _judge_rounded(difference, arrays[1])
                reasons += explanations
                if not difference.right.all():
                    yield Finding(f"values ({who})", _describe(difference))


def _judge_rounded(difference: Difference, given: Any) -> tuple[Difference, list[str]]:
    """The unexplained rest of a difference between a rounded answer of ours and the model, and the explanations.

    What is no number where `given`, the answer without rounding, is one, or infinite where that is finite and not next
    to the largest of its type, must be within the bound, unless a curve upstream is next to nothing, or a sum that is
    next to it is divided by 0.
    """
    answer = difference.arrays[OURS]
    bound = _output_bound(difference.answers, difference.case, difference.number, difference.position)
    if bound is None or bound.centre.shape != answer.shape:
        return replace(difference, right=np.ones(answer.shape, np.bool_)), []
    right = bound.allows(answer)
    difference = _compute_more_runs(replace(difference, bound=bound, right=right))
    explained, reasons = _explain(difference)
    if not is_float_array(answer):
        if _is_quantised(difference.answers.program.for_output(difference.position)):
            near = np.abs(np.subtract(answer, given, dtype=np.float64)) <= 1  # what lies between two steps
            explained = replace(explained, right=explained.right | near)
        return explained, reasons
    own, other = as_float64(answer), as_float64(given)
    largest = limits(answer.dtype.name)[0] / (1 + BF16_STEP) ** 2  # both operands may have been rounded up
    is_beyond = np.isinf(own) & (np.sign(own) == np.sign(other)) & (np.abs(other) > largest)
    is_lost = (np.isnan(own) & ~np.isnan(other)) | (np.isinf(own) & np.isfinite(other) & ~is_beyond)
    strict = np.logical_or(difference.right, flushes(difference))  # such as 0 / 0, of exponentials next to nothing
    strict |= divides_sums_by_zero(difference)
    return replace(explained, right=np.where(is_lost, strict, explained.right | is_beyond)), reasons


def _is_quantised(program: FlatProgram) -> bool:
    """Whether the output is what was quantised, perhaps moved."""
    producers = {name: node for node in program.nodes for name in node.outputs}
    node = producers.get(program.outputs[0])
    while node is not None and node.op in MOVING:
        node = producers.get(node.inputs[0])
    return node is not None and node.op in ("DynamicQuantizeLinear", "QuantizeLinear")


def _witnesses(answers: CaseAnswers, position: int, runtimes: Sequence[str]) -> Sequence[str]:
    """Who has a word on an output: the evaluator too where it depends on no op of another domain."""
    evaluator = answers.evaluator
    if evaluator.is_asked or not evaluator.outputs or answers.program.for_output(position).has_calls():
        return runtimes
    return (*runtimes, EVALUATOR)


def _explain_form(difference: Difference) -> str | None:
    """The explanation of a differing shape or type; None without one. Of two answers either may be the odd one."""
    names = [difference.who] if len(difference.arrays) > 2 else [*difference.arrays]
    sides = [replace(difference, who=name) for name in names]
    reason = next((name for name, holds in SHAPE_EXPLANATIONS.items() if any(map(holds, sides))), None)
    if reason is None and _has_varying_shape(
        difference.answers, difference.case, difference.number, difference.position
    ):
        return VARYING_SHAPE
    return reason


def _weigh(known: Mapping[str, Any], right_elements: dict[str, Any]) -> dict[str, Any]:
    """Who is wrong, and their right elements, after ours and the runtime's are compared."""
    if not {OURS, RUNTIME} <= right_elements.keys():
        return right_elements
    alike = _near_elements(known[OURS], known[RUNTIME])
    if bool((alike | (right_elements[OURS] & right_elements[RUNTIME])).all()):
        # Two independent runtimes agree. Where the evaluator does too, the bound is wrong.
        right = right_elements[OURS]
        if EVALUATOR in known:
            right = right | _near_elements(known[OURS], known[EVALUATOR])
        return {} if EVALUATOR not in known or bool(right.all()) else {EVALUATOR: right}
    return dict(_wrong_alone(known, right_elements, alike))


def _wrong_alone(known: Mapping[str, Any], right_elements: Mapping[str, Any], alike: Any) -> Iterator[tuple[str, Any]]:
    """Who is wrong where ours and the runtime's disagree (the evaluator: with both), and their right elements."""
    for who, right in right_elements.items():
        right = right | (alike & _near_elements(known[OURS], known[EVALUATOR]) if who == EVALUATOR else alike)
        if not right.all():
            yield who, right


def _explain(difference: Difference) -> tuple[Difference, list[str]]:
    """The unexplained rest of a difference, and the explanations."""
    reasons: list[str] = []
    for name, holds in EXPLANATIONS.items():
        right = np.logical_or(difference.right, holds(difference))
        if (right != difference.right).any():
            reasons.append(name)
            difference = replace(difference, right=right)
        if right.all():
            break
    return difference, reasons


def _compute_more_runs(difference: Difference) -> Difference:
    """The difference with a bound from MANY_RUNS."""
    try:
        leeway = Leeway(precision=difference.case.plan.precision)
        bound = output_bound(difference.program, difference.case.feeds[difference.number], leeway, runs=MANY_RUNS)
    except EvaluationError:
        return difference
    answer = difference.arrays[difference.who]
    if bound is None or answer.shape != bound.centre.shape:
        return difference
    return replace(difference, bound=bound, right=np.logical_or(difference.right, bound.allows(answer)))


def _has_same_errors(known: Mapping[str, Any], right: Any) -> bool:
    """Whether ours equals the evaluator wherever the latter is wrong."""
    ours, theirs = (known[who].astype(np.float64) for who in (OURS, EVALUATOR))
    return bool(np.logical_or(right, np.isclose(ours, theirs, rtol=1e-6, atol=0, equal_nan=True)).all())


def _has_varying_shape(answers: CaseAnswers, case: FuzzCase, number: int, position: int) -> bool:
    try:
        return has_varying_shape(answers.program.for_output(position), case.feeds[number], case.plan.precision)
    except EvaluationError:
        return False


def _form_fault(arrays: dict[str, Any]) -> tuple[str, str, str] | None:
    """A difference of shapes or types: which, whose is odd, and a line on it; None without one."""
    shapes = {name: str(array.shape) for name, array in arrays.items()}
    types = {name: array.dtype.name for name, array in arrays.items()}
    for kind, forms in (("shape", shapes), ("type", types)):
        if len(set(forms.values())) > 1:
            line = ", ".join(f"{name} {form}" for name, form in forms.items())
            return kind, _find_odd(forms), line
    return None


def _find_odd(forms: dict[str, Any]) -> str:
    """Who alone has another form; ours where all differ, or there are only two."""
    for name in (OURS, RUNTIME, EVALUATOR):
        if name in forms and len(forms) > 2 and all(forms[name] != v for k, v in forms.items() if k != name):
            return name
    return OURS


def _are_close(arrays: dict[str, Any]) -> bool:
    first, *others = arrays.values()
    return all(_close(first, other) for other in others)


def _close(a: Any, b: Any) -> bool:
    if a.dtype.kind in "OUS":
        return bool((a == b).all())
    if a.dtype.name not in FLOATS:
        return bool(np.array_equal(a, b))
    eps, least = epsilon(a.dtype.name), limits(a.dtype.name)[2]
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        sizes = np.maximum(np.abs(x), np.abs(y))
        near = np.isfinite(sizes) & (np.abs(x - y) <= QUICK_ULPS * np.maximum(eps * sizes, least))
    return bool((near | (x == y) | (np.isnan(x) & np.isnan(y))).all())


def _output_bound(answers: CaseAnswers, case: FuzzCase, number: int, position: int) -> Bound | None:
    try:
        leeway = Leeway(precision=case.plan.precision)
        return output_bound(answers.program.for_output(position), case.feeds[number], leeway)
    except EvaluationError:
        return None


def _wrong_answers(arrays: dict[str, Any], bound: Bound | None) -> Iterator[tuple[str, Any]]:
    """Who is wrong somewhere, and their right elements."""
    if bound is not None:
        for name, array in arrays.items():
            if array.shape == bound.centre.shape:
                right = bound.allows(array)
                if not right.all():
                    yield name, right
        return
    others = {name: array for name, array in arrays.items() if name != OURS and array.dtype.kind not in "OUS"}
    rights = {name: _near_elements(arrays[OURS], array) for name, array in others.items()}
    agreeing = [name for name, right in rights.items() if right.all()]
    for name, right in rights.items():
        if name not in agreeing:
            yield (name if agreeing else OURS), right


def _near_elements(a: Any, b: Any) -> Any:
    """Which elements are equal within LOOSE."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
    near = max(LOOSE, 8 * epsilon(a.dtype.name)) if a.dtype.name in FLOATS else 0.0
    return np.isclose(x, y, rtol=near, atol=near * scale, equal_nan=True)


def _describe(difference: Difference) -> str:
    """The first wrong element, with all answers to it."""
    wrong = np.argwhere(difference.wrong)
    at = tuple(int(i) for i in wrong[0])
    values = ", ".join(f"{name} {array[at]!s}" for name, array in difference.arrays.items())
    place = f"feed {difference.number}, output {difference.position} at {list(at)}"
    bound = difference.bound
    if bound is not None:
        values += f", right {float(bound.centre[at])!s} within {float(bound.tolerance[at]):.3g}"
    return f"{place} ({len(wrong)} of {difference.right.size}): {values}"
