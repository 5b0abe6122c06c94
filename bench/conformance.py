"""How many of ONNX's conformance cases run natively, and why the others don't: `./dev bench conformance [WORD ...]`.

Counted are the cases of static shapes whose inputs and outputs are float32, float64, integers or bool. Nothing is
compiled: a case is native if all its nodes have kernels, at once or, where shape parameters are inputs of its model, as
soon as these are told. WORD picks cases whose names contain it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto
from onnx.backend.test.case.test_case import TestCase

from tunewright.bench.onnx_cases import (
    all_cases,
    data_sets,
    element_types,
    is_static,
    model_of,
    obstacle,
    open_inputs,
    parameters,
    upgraded,
    with_weights,
)
from tunewright.graph.onnx_import import ModelError
from tunewright.tuner import cli
from tunewright.tuner.models.model import open_model

INTEGERS = frozenset(TensorProto.DataType.Value(f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64))
GROUPS = ("float64", "float32", "integers", "bool")
"""What a case is counted as: the first of these that goes in or out of it."""


@dataclass(frozen=True)
class CaseKind:
    """How the nodes of a case run."""

    name: str
    group: str
    result: str  # native, native if told, or a reason
    op: str = ""  # the first that has no kernel


def main() -> int:
    """Print the shares and the reasons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--reasons", type=int, default=40, metavar="N", help="how many reasons are told")
    parser.add_argument("--names", action="store_true", help="tell the names of the cases behind each reason")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    kinds = [kind for case in all_cases() if all(w in case.name for w in options.words) for kind in judge_case(case)]
    if options.json:
        print(json.dumps({"cases": len(kinds), "native": native(kinds), "groups": by_group(kinds)}))
    else:
        print("\n".join(report(kinds, options.reasons, options.names)))
    return 0


def judge_case(case: TestCase) -> Iterator[CaseKind]:
    """How a case runs; nothing if it does not count."""
    model = model_of(case)
    group = group_of(model)
    if not group or obstacle(case, model):
        return
    result, op = _run_kind(upgraded(model), {})
    told = parameters(model)
    if op and told:
        inputs, _ = next(data_sets(case, model))
        named = zip([value.name for value in open_inputs(model)], inputs, strict=True)
        arrays = {name: np.asarray(array) for name, array in named if name in told}
        result_told, op_told = _run_kind(upgraded(model), arrays)
        result, op = ("native if told", "") if not op_told else (result_told, op_told)
    yield CaseKind(case.name, group, result, op)


def group_of(model: ModelProto) -> str:
    """The group that a model is counted in; empty if it does not count."""
    names = {
        "integers" if kind in INTEGERS else {"DOUBLE": "float64", "FLOAT": "float32"}.get(name, name.lower())
        for kind in element_types(model)
        for name in (TensorProto.DataType.Name(kind),)
    }
    return next(filter(names.__contains__, GROUPS), "") if is_static(model) and names <= set(GROUPS) else ""


def _run_kind(model: ModelProto, weights: dict[str, np.ndarray]) -> tuple[str, str]:
    """The result, and the first op that has no kernel."""
    try:
        opened = open_model(with_weights(model, weights).SerializeToString(), {})
    except ModelError as error:
        return f"refused: {error}", "refused"
    for step in opened.fallbacks:
        return step.reason, step.node.op
    return "native", ""


def native(kinds: Sequence[CaseKind]) -> int:
    """How many of them run natively."""
    return sum(not kind.op for kind in kinds)


def by_group(kinds: Sequence[CaseKind]) -> dict[str, dict[str, int]]:
    """Cases, and those that are native, by group."""
    groups = {name: [kind for kind in kinds if kind.group == name] for name in GROUPS}
    return {name: {"cases": len(some), "native": native(some)} for name, some in groups.items()}


def report(kinds: Sequence[CaseKind], count: int, with_names: bool) -> Iterator[str]:
    """The lines that are printed."""
    yield f"{'':10}{'cases':>8}{'native':>8}{'share':>8}"
    for name, found in (*by_group(kinds).items(), ("all", {"cases": len(kinds), "native": native(kinds)})):
        yield f"{name:10}{found['cases']:8,}{found['native']:8,}{found['native'] / max(found['cases'], 1):8.1%}"
    told = sum(kind.result == "native if told" for kind in kinds)
    yield f"{told:,} of these as soon as inputs that are parameters are told"
    reasons = Counter(kind.result for kind in kinds if kind.op)
    for reason, number in reasons.most_common(count):
        yield f"{number:6}  {reason}"
        if with_names:
            yield from (f"        {kind.name} ({kind.group})" for kind in kinds if kind.result == reason)


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
