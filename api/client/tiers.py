"""Lookups: what a server knows of tasks, for programs that must go on without it.

Three tiers, the nearest first: this process's memory, files in the data folder, the server. An answer is never worse
than having asked nobody: whatever is wrong with the server costs at most one time limit, and ends in what was kept
before or in the default schedule. Nothing here needs ONNX, LLVM, a database, XGBoost or Ray.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunewright.codegen.fields import quote
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.sketches import current
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.result import LookupResult, Match, read, unmeasured_result
from tunewright.tuner.lookup.verdict import ModelVerdict, default_results

from .address import normal
from .breaker import breaker_of
from .conversation import ExchangeError
from .wire import Exchange

REMEMBERED = 8192
"""Answers kept in memory."""

KEPT = 20_000
"""Answers of one target kept in files; the oldest go first."""

CONFIRMED_FRESH_S, FRESH_S = 3600.0, 60.0
"""How long an answer is used without asking again: one that won a comparison, and another that was measured."""

LARGEST_FILE_BYTES = 1 << 20

HEX = re.compile("[0-9a-f]{64}")

_log = logging.getLogger("tunewright.lookup")

NO_VERDICT = ModelVerdict()
"""That of a model of which nothing was told."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The results for tasks, and which of them the server did not answer."""

    found: Mapping[str, LookupResult]  # by task key, for each task
    unanswered: Mapping[str, str]  # task key -> why the server said nothing of it, where no answer was kept either
    verdict: ModelVerdict = NO_VERDICT  # what was told of their model


@dataclass(frozen=True, slots=True)
class KnownVerdict:
    """The verdict on a model as a server answered, and when it did."""

    verdict: ModelVerdict
    received_s: float


_shared: dict[str, Lookups] = {}
_logged_notes: set[str] = set()


def lookups(server: str) -> Lookups:
    """This process's `Lookups` of a server, with the API key and the folder of the settings."""
    address = normal(server)
    if address not in _shared:
        _shared[address] = Lookups(address)
    return _shared[address]


class Lookups:
    """Looks tasks up in memory, then in files, then on the server. Threads may share one.

    `key` is the API key (None: found as `connection.key_for` says), `folder` where answers are kept (None: in the data
    folder), `timeout_s` what one call of `lookup` may wait for the server in all. `notes` tells what went wrong, a line
    each. Raises Refused for an address that is none.
    """

    def __init__(self, server: str, key: str | None = None, folder: Path | None = None, timeout_s: float = 1.0) -> None:
        self.server = normal(server)
        self.notes: list[str] = []
        self._key = key
        self._timeout_s = timeout_s
        self._folder = (folder or _home()) / hashlib.sha256(self.server.encode()).hexdigest()
        self._breaker = breaker_of(self.server)
        self._lock = threading.Lock()
        self._memory: OrderedDict[tuple[str, str], tuple[LookupResult, float]] = OrderedDict()  # with when it was kept
        self._verdicts: dict[tuple[str, str], KnownVerdict] = {}  # by target and model
        self._pruned: set[str] = set()

    def lookup(
        self, tasks: Iterable[Task | Mapping[str, Any]], target: Target | Mapping[str, Any]
    ) -> dict[str, LookupResult]:
        """Task key -> what to use for it, for each of the tasks. Both may be JSON objects; tasks, in the form that
        `Task.to_json` has, under any names: see `Task.renamed`. Raises ValueError for what is none.
        """
        return dict(self.answers(tasks, target).found)

    def answers(
        self,
        tasks: Iterable[Task | Mapping[str, Any]],
        target: Target | Mapping[str, Any],
        *,
        is_model: bool = False,
    ) -> Answers:
        """The results of `lookup`, and which tasks nobody answered for: those have their default.

        Where `is_model` these are all tasks of one: also the verdict on it.
        """
        tasks_by_key = {task.key: task for task in map(_task, tasks)}
        device = _target(target)
        results: dict[str, LookupResult] = {}
        stale: dict[str, LookupResult] = {}
        unanswered: dict[str, str] = {}
        for key, task in tasks_by_key.items():
            if (stored := self._stored_answer(task, device)) is not None:
                result, stored_s = stored
                (results if 0 <= time.time() - stored_s < _fresh_s(result) else stale)[key] = result
        model = _model_key(tasks_by_key) if is_model else ""
        known = self._verdict(model, device)
        is_open = is_model and not (known and 0 <= time.time() - known.received_s < FRESH_S)
        questions = [task for key, task in tasks_by_key.items() if is_open or key not in results]
        if questions:
            fresh, reasons, verdict = self._ask(questions, device, is_model=is_open)
            for result in fresh.values():
                self._store_answer(result, device)
            if verdict is not None:
                known = KnownVerdict(verdict, time.time())
                self._store_verdict(model, device, known)
            results = stale | results | fresh
            unanswered = {key: reason for key, reason in reasons.items() if key not in results}
        complete = {key: results.get(key) or unmeasured_result(task, device) for key, task in tasks_by_key.items()}
        verdict = NO_VERDICT if known is None else known.verdict
        return Answers(complete, unanswered, self._check_verdict(verdict, complete, device))

    def _check_verdict(
        self, verdict: ModelVerdict, results: Mapping[str, LookupResult], target: Target
    ) -> ModelVerdict:
        """The verdict, without the defaults that a model keeps where these are not of its tasks."""
        if verdict.kept is None:
            return verdict
        try:
            default_results(results, target, verdict.kept)
        except ValueError as error:
            self._note_verdict(error)
            return replace(verdict, kept=None)
        return verdict

    def _note_verdict(self, error: ValueError) -> None:
        self._note(f"{self.server}: what it says of the model can't be used: {error}")

    def download(self, target: Target | Mapping[str, Any], timeout_s: float = 60.0) -> int:
        """Keep everything that the server knows of a target, so that it need not be asked; how many tasks that are.

        Schedules are checked when they are used, as tasks are not known before. One of a sketch that this version has
        not displaces nothing that is kept. Raises Refused where that fails.
        """
        device = _target(target)
        exchange = Exchange(self.server, self._api_key(), timeout_s)
        try:
            lines = exchange.snapshot(device.key)
        except ExchangeError as error:
            raise Refused(f"{self.server}: {error}") from error
        count, now_s = 0, time.time()
        for data in lines:
            key = data.get("key") if isinstance(data, dict) else None
            if not (isinstance(key, str) and HEX.fullmatch(key) and _is_of_this_version(data)):
                continue
            count += self._write(key, device, data, now_s)
        with self._lock:
            self._memory.clear()
        return count

    # The server

    def _ask(
        self, tasks: Sequence[Task], target: Target, *, is_model: bool
    ) -> tuple[dict[str, LookupResult], dict[str, str], ModelVerdict | None]:
        """The server's results, without those that it leaves to the client; by task key why others have none; and the
        verdict on their model.
        """
        if self._breaker.rest_s:
            self._note(f"{self.server} failed before, so it is not asked for a while", is_news=False)
            return {}, dict.fromkeys((task.key for task in tasks), "it failed before"), None
        exchange = Exchange(self.server, self._api_key(), self._breaker.limit_s(self._timeout_s))
        answers, failure = exchange.lookups(tasks, target, is_model)
        if failure is None:
            self._breaker.record_answer()
        else:
            self._breaker.record_failure()
            self._note(f"{self.server}: {failure}; kept answers and defaults are used")
        results, reasons = {}, {}
        for task in tasks:
            if task.key not in answers:
                reasons[task.key] = failure or "it left tasks out"
            elif not _is_left_to_us(answers[task.key]):
                try:
                    results[task.key] = read(task, target, answers[task.key])
                except ValueError as error:
                    reasons[task.key] = f"an answer can't be used: {error}"
                    self._note(f"{self.server}: {reasons[task.key]}")
        if not is_model or failure is not None:
            return results, reasons, None
        try:
            return results, reasons, ModelVerdict.read(exchange.model_verdict)
        except ValueError as error:
            self._note_verdict(error)
            return results, reasons, None

    def _api_key(self) -> str | None:
        if self._key is None:
            from .connection import key_for

            return key_for(self.server)
        return self._key

    def _note(self, text: str, *, is_news: bool = True) -> None:
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)
            if not is_news or text in _logged_notes:
                return
            _logged_notes.add(text)
        _log.warning("%s", text)

    # What is kept

    def _stored_answer(self, task: Task, target: Target) -> tuple[LookupResult, float] | None:
        """From memory or a file, with the moment when it was kept; None where there is nothing that can be used."""
        place = target.key, task.key
        with self._lock:
            if place in self._memory:
                self._memory.move_to_end(place)
                return self._memory[place]
        try:
            data = json.loads(_small_file(self._path(task.key, target)))
            kept_s = float(data["kept_s"])
            result = read(task, target, data["answer"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # not there, damaged, not one of these files, or of another version
        self._remember(result, target, kept_s)
        return result, kept_s

    def _store_answer(self, result: LookupResult, target: Target) -> None:
        """Keep it in the place of an older one, or nothing where it is not worth keeping."""
        if not (_fresh_s(result) or result.match is Match.PREDICTED):
            self._forget(result.task.key, target)
            return
        now_s = time.time()
        self._remember(result, target, now_s)
        self._write(result.task.key, target, result.to_json(), now_s)

    def _forget(self, task_key: str, target: Target) -> None:
        """Keep nothing of a task: its record was taken back, or the server has another database now."""
        with self._lock:
            self._memory.pop((target.key, task_key), None)
        path = self._path(task_key, target)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._note(f"an old answer can't be removed from {str(path.parent)!r}: {error.strerror}")

    def _remember(self, result: LookupResult, target: Target, kept_s: float) -> None:
        with self._lock:
            self._memory[target.key, result.task.key] = result, kept_s
            self._memory.move_to_end((target.key, result.task.key))
            while len(self._memory) > REMEMBERED:
                self._memory.popitem(last=False)

    def _verdict(self, model: str, target: Target) -> KnownVerdict | None:
        """The stored verdict on a model; None where there is none that can be used."""
        if not model:
            return None
        place = target.key, model
        with self._lock:
            if place in self._verdicts:
                return self._verdicts[place]
        try:
            data = json.loads(_small_file(self._path(f"model-{model}", target)))
            return KnownVerdict(ModelVerdict.read(data["answer"]), float(data["kept_s"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _store_verdict(self, model: str, target: Target, known: KnownVerdict) -> None:
        with self._lock:
            self._verdicts[target.key, model] = known
        self._write(f"model-{model}", target, known.verdict.to_json(), known.received_s)

    def _path(self, task_key: str, target: Target) -> Path:
        return self._folder / target.key / f"{task_key}.json"

    def _write(self, task_key: str, target: Target, answer: Mapping[str, Any], now_s: float) -> bool:
        """Whether it could be kept. A reader sees the old file or the whole new one."""
        path = self._path(task_key, target)
        fresh = path.with_name(f".{task_key}.{os.getpid()}.{threading.get_ident():x}")
        try:
            self._prepare(path.parent)
            fresh.write_text(json.dumps({"kept_s": now_s, "answer": answer}), encoding="utf-8")
            fresh.replace(path)
        except (OSError, ValueError) as error:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            if isinstance(error, OSError):
                self._note(f"answers can't be kept in {str(path.parent)!r}: {error.strerror}")
            return False
        return True

    def _prepare(self, folder: Path) -> None:
        """Make the folder when it is first written to, and see then that it does not grow for ever."""
        if folder.name in self._pruned:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._pruned.add(folder.name)
        files = list(folder.iterdir())
        if len(files) > KEPT:
            ages = sorted((path.stat().st_mtime, path) for path in files)
            for _, path in ages[: len(files) - KEPT]:
                path.unlink(missing_ok=True)


def _model_key(task_keys: Iterable[str]) -> str:
    """The key of a model: a digest of its task keys."""
    return hashlib.sha256(" ".join(sorted(task_keys)).encode()).hexdigest()


def _fresh_s(result: LookupResult) -> float:
    """How long an answer is used without asking again. What nobody measured is asked for every time."""
    if result.confirmed:
        return CONFIRMED_FRESH_S
    return FRESH_S if result.match in (Match.EXACT, Match.SIBLING, Match.NEAREST) else 0.0


def _is_left_to_us(answer: Any) -> bool:
    """Whether it says that the default is to be used, which the server had no time to make."""
    return isinstance(answer, dict) and answer.get("match") == Match.DEFAULT and answer.get("schedule") is None


def _is_of_this_version(answer: Mapping[str, Any]) -> bool:
    """Whether its schedule is of a sketch that is known here, in its version."""
    schedule = answer.get("schedule")
    if not isinstance(schedule, Mapping):
        return False
    return any(schedule.get("sketch") == name and schedule.get("version") == version for name, version in current())


def _task(task: Task | Mapping[str, Any]) -> Task:
    if isinstance(task, Task):
        return task
    if not isinstance(task, Mapping):
        raise ValueError(f"a task is {quote(task)}; give a Task, or the JSON object of one")
    try:
        return Task.from_json(dict(task)).renamed()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"that is no task: {error}") from error


def _target(target: Target | Mapping[str, Any]) -> Target:
    if isinstance(target, Target):
        return target
    if not isinstance(target, Mapping):
        raise ValueError(f"target is {quote(target)}; give a Target, or the JSON object of one")
    try:
        return Target.from_json(dict(target))
    except (TypeError, ValueError) as error:
        raise ValueError(f"that is no target: {error}") from error


def _small_file(path: Path) -> bytes:
    """The content. Raises OSError where it can't be read, or is too large for one of these files."""
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise OSError(f"{str(path)!r} is too large")
    return content


def _home() -> Path:
    from tunewright.tuner.settings import settings

    return settings().home / "lookups"
