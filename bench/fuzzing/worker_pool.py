"""A pool of processes that judge cases, each driven by a thread here that knows its current case."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .answers import OURS, RUNTIME
from .case import FuzzCase
from .generator import generate_case
from .judge import CaseVerdict, Finding
from .judge_process import DRAWING, JUDGING, EvaluationRequest, Judgement, TensorValues, serve
from .shrink import shrink

CASES = 400
"""Cases that a process judges before it is replaced."""

LIMIT_S = 60.0
"""Time limit of each stage of a case."""

JUDGING_S = 240.0
"""Time limit of judging, which runs the evaluator many times."""

TOO_SLOW = "too slow to judge"
"""The explanation of cases that exceed it."""

SHRINKING_S = 60.0
"""Time limit of shrinking a case."""

LOG_LETTERS = 1500
"""Letters of the end of a process's log that are kept."""


class ProcessDeath(Exception):
    """A process ended or hung instead of answering. `stage` says in which runtime or step."""

    def __init__(self, reason: str, stage: str, log: str, *, hangs: bool = False) -> None:
        super().__init__(reason)
        self.stage, self.log, self.hangs = stage, log, hangs


class JudgeWorker:
    """A process for judging, replaced when it has died or judged CASES."""

    def __init__(self, folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tunewright.bench.fuzzing.judge_process"])
        self._log = folder / "log"
        self._left = 0
        self._process: multiprocessing.process.BaseProcess | None = None

    def judge(self, request: int | FuzzCase, limit_s: float = LIMIT_S) -> Judgement:
        """Judge a case, or that of a seed. A process that dies or hangs is a finding, unless in ONNX Runtime."""
        try:
            judgement = self._request(request, limit_s)
            assert isinstance(judgement, Judgement)
            return judgement
        except ProcessDeath as death:
            ops: tuple[str, ...] = ()
            if death.stage != DRAWING:
                case = request if isinstance(request, FuzzCase) else generate_case(request)
                ops = tuple(case.ops())
            if death.stage == JUDGING and death.hangs:
                return Judgement(CaseVerdict(None, (TOO_SLOW,)), ops)
            if death.stage == RUNTIME:
                return Judgement(CaseVerdict(None, (f"ONNX Runtime {death}",)), ops)
            who = f" ({death.stage})" if death.stage != OURS else ""
            return Judgement(CaseVerdict(Finding(f"{death}{who}", "", death.log)), ops)

    def values(self, case: FuzzCase) -> Mapping[str, Any]:
        """The values of all tensors of a case for its first feed; none where that fails."""
        try:
            tensors = self._request(EvaluationRequest(case), LIMIT_S)
        except ProcessDeath:
            return {}
        assert isinstance(tensors, TensorValues)
        return tensors.values

    def _request(self, request: int | FuzzCase | EvaluationRequest, limit_s: float) -> Judgement | TensorValues:
        if self._process is None or self._left <= 0:
            self._start()
        self._left -= 1
        stage, deadline_s = DRAWING, time.monotonic() + limit_s
        try:
            self._connection.send(request)
            while True:
                if not self._connection.poll(max(0.0, deadline_s - time.monotonic())):
                    raise self._end(f"hangs for {limit_s:.0f} s", stage, hangs=True)
                message = self._connection.recv()
                if isinstance(message, Judgement | TensorValues):
                    return message
                stage = message
                deadline_s = time.monotonic() + (max(JUDGING_S, limit_s) if stage == JUDGING else limit_s)
        except (EOFError, OSError):
            process = self._process
            assert process is not None
            process.join(5)
            raise self._end(f"dies with code {process.exitcode}", stage) from None

    def _start(self) -> None:
        self.close()
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(theirs, self._log), daemon=True)
        self._process.start()
        theirs.close()
        self._left = CASES

    def _end(self, reason: str, stage: str, *, hangs: bool = False) -> ProcessDeath:
        self.close()
        log = self._log.read_text(errors="replace")[-LOG_LETTERS:] if self._log.exists() else ""
        return ProcessDeath(reason, stage, log, hangs=hangs)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The judgement of a seed. `smaller`: a shrunk case with the same finding, if any."""

    seed: int
    judgement: Judgement
    smaller: FuzzCase | None = None
    detail: str = ""  # what is wrong with the smaller one


def judge_seeds(
    seeds: Iterator[int],
    workers: int,
    hear: Callable[[SeedResult], object],
    wants_smaller: Callable[[Finding], bool],
    stop: threading.Event,
) -> None:
    """Judge the cases of seeds until they end or `stop` is set. `hear` is called by one thread at a time.

    `wants_smaller` says whether to shrink a finding. An exception ends all and is raised.
    """
    lock = threading.Lock()

    def run(folder: Path) -> None:
        folder.mkdir()
        worker = JudgeWorker(folder)
        try:
            while not stop.is_set():
                with lock:
                    seed = next(seeds, None)
                if seed is None:
                    return
                result = _judge_seed(worker, seed, wants_smaller, stop)
                with lock:
                    hear(result)
        except Exception:
            stop.set()
            raise
        finally:
            worker.close()

    with TemporaryDirectory(prefix="tunewright-differential-") as folder, ThreadPoolExecutor(workers) as pool:
        try:
            for _ in pool.map(run, [Path(folder) / str(number) for number in range(workers)]):
                pass
        finally:  # also after Ctrl-C
            stop.set()


def _judge_seed(
    worker: JudgeWorker, seed: int, wants_smaller: Callable[[Finding], bool], stop: threading.Event
) -> SeedResult:
    judgement = worker.judge(seed)
    finding = judgement.verdict.finding
    if finding is None or not wants_smaller(finding):
        return SeedResult(seed, judgement)
    smaller, detail = shrink_finding(worker, generate_case(seed), judgement.verdict, stop)
    return SeedResult(seed, judgement, smaller, detail)


def shrink_finding(
    worker: JudgeWorker, case: FuzzCase, verdict: CaseVerdict, stop: threading.Event
) -> tuple[FuzzCase, str]:
    """A smaller case with the same finding, and the finding's detail. Who answered still does."""
    deadline_s = time.monotonic() + SHRINKING_S
    finding = verdict.finding
    assert finding is not None
    detail = finding.detail

    def shows(smaller: FuzzCase) -> bool:
        nonlocal detail
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or stop.is_set():
            return False
        new_verdict = worker.judge(smaller, min(LIMIT_S, max(left_s, 5.0))).verdict
        if (
            new_verdict.finding is None
            or not _is_same_finding(new_verdict.finding, finding)
            or not set(verdict.runtimes) <= set(new_verdict.runtimes)
        ):
            return False
        detail = new_verdict.finding.detail
        return True

    return shrink(case, shows, worker.values), detail


def _is_same_finding(other: Finding, finding: Finding) -> bool:
    if finding.kind.startswith("hangs"):
        return other.kind.startswith("hangs")
    return other.signature == finding.signature
