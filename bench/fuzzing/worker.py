"""The process that answers and judges cases: it may crash, hang or eat memory, and the crew goes on."""

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

from tunewright.graph.fallback import EvaluationError

from .answers import answers, evaluated
from .case import Case
from .drawing import drawn
from .judging import Verdict, judge
from .program import program

MEMORY_BYTES = 6 << 30
"""What a process may have of its own."""

DRAWING, JUDGING = "drawing", "judging"
"""Stages beside those of the answers."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a case, and the ops that are in it."""

    verdict: Verdict
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Asks for the value of every tensor of a case for its first feed."""

    case: Case


@dataclass(frozen=True, slots=True)
class Evaluated:
    """These values; none where they could not be computed."""

    values: Mapping[str, Any]


def serve(connection: Connection, log: Path) -> None:
    """Take seeds or cases, tell each stage, and answer with what became of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with log.open("wb", buffering=0) as written:
        os.dup2(written.fileno(), sys.stderr.fileno())
        os.dup2(written.fileno(), sys.stdout.fileno())
        faulthandler.enable(written)
        warnings.simplefilter("ignore")
        while True:
            try:
                asked = connection.recv()
            except EOFError:
                return
            connection.send(_evaluated(asked.case) if isinstance(asked, Evaluate) else judged(asked, connection))


def judged(asked: int | Case, connection: Connection) -> Judged:
    """A case, or that of a seed, answered and judged."""
    if isinstance(asked, Case):
        case = asked
    else:
        connection.send(DRAWING)
        case = drawn(asked)
    found = answers(case, connection.send)
    connection.send(JUDGING)
    return Judged(judge(case, found), tuple(case.ops()))


def _evaluated(case: Case) -> Evaluated:
    try:
        return Evaluated(evaluated(program(case.proto()), case.feeds[0]))
    except EvaluationError:
        return Evaluated({})
