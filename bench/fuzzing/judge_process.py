"""The process that answers and judges cases. It may crash, hang or exhaust its memory: the pool replaces it."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tunewright.graph.evaluation.fallback import EvaluationError

from .answers import answer_case, evaluate_tensors
from .case import FuzzCase
from .foreign import write_calls
from .generator import generate_case
from .judge import CaseVerdict, judge
from .program import flatten

MEMORY_BYTES = 6 << 30
"""The memory limit of a process."""

DRAWING, JUDGING = "drawing", "judging"
"""Stages of a case beside those of the answers."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a case, and its ops."""

    verdict: CaseVerdict
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """A request for the values of all tensors of a case, for its first feed."""

    case: FuzzCase


@dataclass(frozen=True, slots=True)
class TensorValues:
    """Values of tensors; none where they could not be computed."""

    values: Mapping[str, Any]


def serve(connection: Connection, log: Path) -> None:
    """Serve requests: send the stages of a case, then its judgement, or values of tensors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with log.open("wb", buffering=0) as output:
        os.dup2(output.fileno(), sys.stderr.fileno())
        os.dup2(output.fileno(), sys.stdout.fileno())
        faulthandler.enable(output)
        warnings.simplefilter("ignore")
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return
            connection.send(
                _evaluate(request.case)
                if isinstance(request, EvaluationRequest)
                else answer_and_judge(request, connection)
            )


def answer_and_judge(request: int | FuzzCase, connection: Connection) -> Judgement:
    """Answer and judge a case, or that of a seed."""
    if isinstance(request, FuzzCase):
        case = request
    else:
        connection.send(DRAWING)
        case = generate_case(request)
    answers = answer_case(case, connection.send)
    connection.send(JUDGING)
    return Judgement(judge(case, answers), tuple(case.ops()))


def _evaluate(case: FuzzCase) -> TensorValues:
    try:
        flat = write_calls(flatten(case.proto()), case.feeds[0])
        return TensorValues(evaluate_tensors(flat, case.feeds[0]))
    except EvaluationError:
        return TensorValues({})
