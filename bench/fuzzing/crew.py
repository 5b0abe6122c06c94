"""The crew: processes that judge cases side by side, each with a thread here that knows what it has in hand."""

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
from .case import Case
from .drawing import drawn
from .judging import Finding, Verdict
from .shrinking import shrunk
from .worker import DRAWING, JUDGING, Evaluate, Evaluated, Judged, serve

CASES = 400
"""What a process judges before a fresh one takes its place."""

LIMIT_S = 60.0
"""What each stage of a case may take."""

JUDGING_S = 240.0
"""What judging may: in Python, with the evaluator, many times over."""

TOO_SLOW = "too slow to judge"
"""The reason of cases for which that was not enough."""

SHRINKING_S = 60.0
"""What making one smaller may take."""

LOG_LETTERS = 1500
"""How much of what a process said last is kept."""


class Dead(Exception):
    """A process ended, or did not, where it should have answered; the text says how, `stage` who was at work."""

    def __init__(self, how: str, stage: str, log: str, *, hangs: bool = False) -> None:
        super().__init__(how)
        self.stage, self.log, self.hangs = stage, log, hangs


class Worker:
    """A process, replaced by a fresh one when it has died or judged enough."""

    def __init__(self, folder: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tunewright.bench.fuzzing.worker"])
        self._log = folder / "log"
        self._left = 0
        self._process: multiprocessing.process.BaseProcess | None = None

    def judged(self, asked: int | Case, limit_s: float = LIMIT_S) -> Judged:
        """A case, or that of a seed, judged: a process that dies or hangs is a finding, or ONNX Runtime's affair."""
        try:
            found = self._asked(asked, limit_s)
            assert isinstance(found, Judged)
            return found
        except Dead as death:
            ops = tuple((asked if isinstance(asked, Case) else drawn(asked)).ops()) if death.stage != DRAWING else ()
            if death.stage == JUDGING and death.hangs:
                return Judged(Verdict(None, (TOO_SLOW,)), ops)
            if death.stage == RUNTIME:
                return Judged(Verdict(None, (f"ONNX Runtime {death}",)), ops)
            who = f" ({death.stage})" if death.stage != OURS else ""
            return Judged(Verdict(Finding(f"{death}{who}", "", death.log)), ops)

    def values(self, case: Case) -> Mapping[str, Any]:
        """The value of every tensor of a case for its first feed; none where they could not be computed."""
        try:
            found = self._asked(Evaluate(case), LIMIT_S)
        except Dead:
            return {}
        assert isinstance(found, Evaluated)
        return found.values

    def _asked(self, asked: int | Case | Evaluate, limit_s: float) -> Judged | Evaluated:
        if self._process is None or self._left <= 0:
            self._start()
        self._left -= 1
        stage, deadline_s = DRAWING, time.monotonic() + limit_s
        try:
            self._connection.send(asked)
            while True:
                if not self._connection.poll(max(0.0, deadline_s - time.monotonic())):
                    raise self._end(f"hangs for {limit_s:.0f} s", stage, hangs=True)
                heard = self._connection.recv()
                if isinstance(heard, Judged | Evaluated):
                    return heard
                stage = heard
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

    def _end(self, how: str, stage: str, *, hangs: bool = False) -> Dead:
        self.close()
        log = self._log.read_text(errors="replace")[-LOG_LETTERS:] if self._log.exists() else ""
        return Dead(how, stage, log, hangs=hangs)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a seed. `smaller` shows the same finding, where it was looked for."""

    seed: int
    judged: Judged
    smaller: Case | None = None
    told: str = ""  # what is wrong with the smaller one


def work(
    seeds: Iterator[int],
    workers: int,
    hear: Callable[[Result], object],
    wants_smaller: Callable[[Finding], bool],
    stop: threading.Event,
) -> None:
    """Judge the cases of seeds until they end or `stop` is set. `hear` is called by one thread at a time.

    `wants_smaller` says whether a finding is worth shrinking. An exception in here ends all and is raised.
    """
    lock = threading.Lock()

    def run(folder: Path) -> None:
        folder.mkdir()
        worker = Worker(folder)
        try:
            while not stop.is_set():
                with lock:
                    seed = next(seeds, None)
                if seed is None:
                    return
                result = _result(worker, seed, wants_smaller, stop)
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
        finally:  # Ctrl-C comes here
            stop.set()


def _result(worker: Worker, seed: int, wants_smaller: Callable[[Finding], bool], stop: threading.Event) -> Result:
    judged = worker.judged(seed)
    finding = judged.verdict.finding
    if finding is None or not wants_smaller(finding):
        return Result(seed, judged)
    smaller, told = made_smaller(worker, drawn(seed), judged.verdict, stop)
    return Result(seed, judged, smaller, told)


def made_smaller(worker: Worker, case: Case, verdict: Verdict, stop: threading.Event) -> tuple[Case, str]:
    """A smaller case with the same finding, and what is wrong with it. Whoever gave an answer still does."""
    deadline_s = time.monotonic() + SHRINKING_S
    finding = verdict.finding
    assert finding is not None
    told = finding.detail

    def shows(tried: Case) -> bool:
        nonlocal told
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or stop.is_set():
            return False
        found = worker.judged(tried, min(LIMIT_S, max(left_s, 5.0))).verdict
        if (
            found.finding is None
            or not _same(found.finding, finding)
            or not set(verdict.answered) <= set(found.answered)
        ):
            return False
        told = found.finding.detail
        return True

    return shrunk(case, shows, worker.values), told


def _same(found: Finding, finding: Finding) -> bool:
    if finding.kind.startswith("hangs"):
        return found.kind.startswith("hangs")
    return found.signature == finding.signature
