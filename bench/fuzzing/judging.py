"""Who is right about a case: three answers against each other, and against what float64 says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunewright.graph.fallback import EvaluationError

from .answers import EVALUATOR, OURS, RUNTIME, Answers, as_array
from .bounds import MANY_RUNS, Bound, bound, varies
from .case import Case
from .explained import EXPLANATIONS, OF_SHAPES, VARYING, Difference
from .values import FLOATS, epsilon, limits

QUICK_ULPS = 2.0
"""So close to each other answers need no further look."""

LOOSE = 1e-4
"""What is close where float64 can't be asked, relative to the largest element."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference that nothing explains, or a failure. `kind` says which and whose; `detail` is for people."""

    kind: str
    detail: str
    text: str = ""  # a traceback

    @property
    def signature(self) -> str:
        """The same for findings of one origin, as far as can be told without shrinking them."""
        return self.kind if self.kind.startswith(("values", "shape", "type")) else f"{self.kind}: {plain(self.detail)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a case: nothing, reasons for differences, or a finding. `answered`: who gave an answer."""

    finding: Finding | None = None
    reasons: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


def plain(text: str) -> str:
    """A message without what differs from model to model."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\[[^\]]*\]|\([^()]*\d[^()]*\)", "[...]", text)
    text = re.sub(r"('\.\.\.' \[\.\.\.\], )+", "", text)
    return re.sub(r"-?\b[\w.]*\d[\w.]*\b", "#", text)[:160]


def judge(case: Case, found: Answers) -> Verdict:
    """The verdict on a case that has been answered."""
    named = {OURS: found.ours, RUNTIME: found.runtime, EVALUATOR: found.evaluator}
    answered = tuple(name for name, answer in named.items() if not answer.error)
    finding = _failure(found)
    if finding is not None:
        return Verdict(finding, (), answered)
    if OURS not in answered:
        return Verdict(None, (), answered)
    reasons: list[str] = []
    for number in range(len(case.feeds)):
        for finding in _differences(case, found, number, answered, reasons):
            return Verdict(finding, tuple(dict.fromkeys(reasons)), answered)
    return Verdict(None, tuple(dict.fromkeys(reasons)), answered)


def _failure(found: Answers) -> Finding | None:
    ours, runtime, evaluator = found.ours, found.runtime, found.evaluator
    for who, answer in ((OURS, ours), (EVALUATOR, evaluator)):
        if answer.error and not answer.is_clear:
            return Finding(f"traceback ({who})", answer.error, answer.text)
    if ours.error and not (runtime.error and evaluator.error):
        who = RUNTIME if not runtime.error else EVALUATOR
        return Finding(f"refused, but {who} runs it", ours.error)
    if evaluator.error and not runtime.error:
        return Finding("refused by the evaluator, but onnxruntime runs it", evaluator.error)
    return None


def _differences(
    case: Case, found: Answers, number: int, answered: Sequence[str], reasons: list[str]
) -> Iterator[Finding]:
    """Those that nothing explains, of one of the feeds; reasons of the others are noted."""
    by_name = {OURS: found.ours, RUNTIME: found.runtime, EVALUATOR: found.evaluator}
    outputs = {name: by_name[name].outputs[number] for name in answered}
    for position in range(len(outputs[OURS])):
        values = {name: outputs[name][position] for name in answered}
        arrays = {name: as_array(value) for name, value in values.items()}
        if any(array is None for array in arrays.values()):
            continue
        known = {name: array for name, array in arrays.items() if array is not None}
        if told := _form(known):
            kind, who, line = told
            nowhere = np.zeros(known[who].shape, np.bool_)
            difference = Difference(case, found, number, position, who, known, nowhere, None)
            reason = next((name for name, holds in OF_SHAPES.items() if holds(difference)), None)
            if reason is None and _varies(found, case, number, position):
                reason = VARYING
            if reason is None:
                yield Finding(f"{kind} ({who})", f"output {position}: {line}")
            else:
                reasons.append(reason)
            continue
        if _agree(known):
            continue
        allowed = _bound(found, case, number, position)
        judged = dict(_judged(known, allowed))
        if {OURS, RUNTIME} <= judged.keys():
            alike = _near(known[OURS], known[RUNTIME])
            if bool((alike | (judged[OURS] & judged[RUNTIME])).all()):
                # Two who have nothing in common agree. Where the evaluator does too, float64 was not asked right.
                right = judged[OURS] | _near(known[OURS], known[EVALUATOR]) if EVALUATOR in known else judged[OURS]
                judged = {} if bool(right.all()) else {EVALUATOR: right}
            else:
                judged = dict(_but_alike(known, judged, alike))
        for who, right in judged.items():
            if who == EVALUATOR and OURS in judged and _shares(known, right):
                continue  # told of ours
            difference, why = _unexplained(Difference(case, found, number, position, who, known, right, allowed))
            reasons += why
            if not difference.right.all():
                difference = _after_many_runs(difference)
            if not difference.right.all():
                yield Finding(f"values ({who})", _told(difference))


def _but_alike(known: Mapping[str, Any], judged: Mapping[str, Any], alike: Any) -> Iterator[tuple[str, Any]]:
    """Who is wrong but where these two agree (the evaluator: with both), and where each is right."""
    for who, right in judged.items():
        right = right | (alike & _near(known[OURS], known[EVALUATOR]) if who == EVALUATOR else alike)
        if not right.all():
            yield who, right


def _unexplained(difference: Difference) -> tuple[Difference, list[str]]:
    """What is left of a difference, and the reasons for what is not."""
    reasons: list[str] = []
    for name, holds in EXPLANATIONS.items():
        right = np.logical_or(difference.right, holds(difference))
        if (right != difference.right).any():
            reasons.append(name)
            difference = replace(difference, right=right)
        if right.all():
            break
    return difference, reasons


def _after_many_runs(difference: Difference) -> Difference:
    """The difference with a bound from many more computations, before it is called a finding."""
    try:
        allowed = bound(difference.program, difference.case.feeds[difference.number], runs=MANY_RUNS)
    except EvaluationError:
        return difference
    found = difference.arrays[difference.who]
    if allowed is None or found.shape != allowed.centre.shape:
        return difference
    return replace(difference, bound=allowed, right=np.logical_or(difference.right, allowed.allows(found)))


def _shares(known: Mapping[str, Any], right: Any) -> bool:
    """Whether ours has the same numbers wherever the evaluator is not right."""
    ours, theirs = (known[who].astype(np.float64) for who in (OURS, EVALUATOR))
    return bool(np.logical_or(right, np.isclose(ours, theirs, rtol=1e-6, atol=0, equal_nan=True)).all())


def _varies(found: Answers, case: Case, number: int, position: int) -> bool:
    try:
        return varies(found.program.only(position), case.feeds[number])
    except EvaluationError:
        return False


def _form(arrays: dict[str, Any]) -> tuple[str, str, str] | None:
    """Whether types or shapes differ: which of them, whose is odd, and a line on it."""
    shapes = {name: str(array.shape) for name, array in arrays.items()}
    types = {name: array.dtype.name for name, array in arrays.items()}
    for kind, forms in (("shape", shapes), ("type", types)):
        if len(set(forms.values())) > 1:
            told = ", ".join(f"{name} {one}" for name, one in forms.items())
            return kind, _odd_one(forms), told
    return None


def _odd_one(forms: dict[str, Any]) -> str:
    """Who is alone with a form; ours where all differ, or there are only two."""
    for name in (OURS, RUNTIME, EVALUATOR):
        if name in forms and len(forms) > 2 and all(forms[name] != v for k, v in forms.items() if k != name):
            return name
    return OURS


def _agree(arrays: dict[str, Any]) -> bool:
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
        near = np.abs(x - y) <= QUICK_ULPS * np.maximum(eps * np.maximum(np.abs(x), np.abs(y)), least)
    return bool((near | (x == y) | (np.isnan(x) & np.isnan(y))).all())


def _bound(found: Answers, case: Case, number: int, position: int) -> Bound | None:
    try:
        return bound(found.program.only(position), case.feeds[number])
    except EvaluationError:
        return None


def _judged(arrays: dict[str, Any], allowed: Bound | None) -> Iterator[tuple[str, Any]]:
    """Who is wrong somewhere, and where each of them is right."""
    if allowed is not None:
        for name, array in arrays.items():
            if array.shape == allowed.centre.shape:
                right = allowed.allows(array)
                if not right.all():
                    yield name, right
        return
    others = {name: array for name, array in arrays.items() if name != OURS and array.dtype.kind not in "OUS"}
    rights = {name: _near(arrays[OURS], array) for name, array in others.items()}
    agreeing = [name for name, right in rights.items() if right.all()]
    for name, right in rights.items():
        if name not in agreeing:
            yield (name if agreeing else OURS), right


def _near(a: Any, b: Any) -> Any:
    """Which elements are the same up to what is usual."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
    near = max(LOOSE, 8 * epsilon(a.dtype.name)) if a.dtype.name in FLOATS else 0.0
    return np.isclose(x, y, rtol=near, atol=near * scale, equal_nan=True)


def _told(difference: Difference) -> str:
    """Where an answer is wrong first, and what all say there."""
    wrong = np.argwhere(np.logical_not(difference.right))
    at = tuple(int(i) for i in wrong[0])
    told = ", ".join(f"{name} {array[at]!s}" for name, array in difference.arrays.items())
    place = f"feed {difference.number}, output {difference.position} at {list(at)}"
    allowed = difference.bound
    if allowed is not None:
        told += f", right {float(allowed.centre[at])!s} within {float(allowed.tolerance[at]):.3g}"
    return f"{place} ({len(wrong)} of {difference.right.size}): {told}"
