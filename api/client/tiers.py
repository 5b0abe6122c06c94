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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.sketches import current
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.found import Found, Match, read, unmeasured
from tunewright.tuner.lookup.kept import Kept, on_defaults

from .address import normal
from .wire import Exchange, Failed

OPEN_S, LONGEST_OPEN_S = 60.0, 3600.0
"""How long a server that failed is left alone; twice as long after each further failure, up to the second."""

PROBE_S = 0.25
"""What a server may take that failed when it was asked last."""

REMEMBERED = 8192
"""Answers kept in memory."""

KEPT = 20_000
"""Answers of one target kept in files; the oldest go first."""

CONFIRMED_FRESH_S, FRESH_S = 3600.0, 60.0
"""How long an answer is used without asking again: one that won a comparison, and another that was measured."""

LARGEST_FILE_BYTES = 1 << 20

HEX = re.compile("[0-9a-f]{64}")

_log = logging.getLogger("tunewright.lookup")


@dataclass(frozen=True, slots=True)
class Answers:
    """What to use for tasks, and how far that rests on the server."""

    found: Mapping[str, Found]  # by task key, for each task
    unanswered: Mapping[str, str]  # task key -> why the server said nothing of it, where no answer was kept either
    kept: Kept | None = None  # what was told of them where they are of a model that keeps its defaults


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a server told of a model, and when: whether it keeps its defaults."""

    kept: Kept | None
    told_s: float

    @staticmethod
    def read(data: Any, told_s: float) -> Verdict | None:
        """From JSON data; None where it is none."""
        if data is None:
            return Verdict(None, told_s)
        if not isinstance(data, list) or not all(isinstance(one, dict) and "key" in one for one in data):
            return None
        return Verdict({str(one["key"]): one for one in data}, told_s)


class Breaker:
    """Remembers for the whole process that a server failed, so that it is not waited for again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0  # in a row
        self._open_until_s = 0.0  # by time.monotonic

    @property
    def rest_s(self) -> float:
        """Seconds until the server may be asked again."""
        return max(self._open_until_s - time.monotonic(), 0.0)

    def limit_s(self, timeout_s: float) -> float:
        """How long the server may take now."""
        return min(timeout_s, PROBE_S) if self._failures else timeout_s

    def failed(self) -> None:
        """It did: leave it alone for a while."""
        with self._lock:
            pause_s = min(OPEN_S * 2.0**self._failures, LONGEST_OPEN_S)
            self._failures += 1
            self._open_until_s = time.monotonic() + pause_s

    def answered(self) -> None:
        """It works."""
        with self._lock:
            self._failures, self._open_until_s = 0, 0.0


_breakers: dict[str, Breaker] = {}
_shared: dict[str, Lookups] = {}
_said: set[str] = set()


def lookups(server: str) -> Lookups:
    """This process's `Lookups` of a server, with the key and the folder that are found by themselves."""
    address = normal(server)
    if address not in _shared:
        _shared[address] = Lookups(address)
    return _shared[address]


class Lookups:
    """Looks tasks up in memory, in files, on the server; see the module. Threads may share one.

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
        self._breaker = _breakers.setdefault(self.server, Breaker())
        self._lock = threading.Lock()
        self._memory: OrderedDict[tuple[str, str], tuple[Found, float]] = OrderedDict()  # with when it was kept
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # by target and model
        self._pruned: set[str] = set()

    def lookup(self, tasks: Iterable[Task], target: Target | Mapping[str, Any]) -> dict[str, Found]:
        """Task key -> what to use for it, for each of the tasks. Raises ValueError where `target` describes none."""
        return dict(self.answers(tasks, target).found)

    def answers(self, tasks: Iterable[Task], target: Target | Mapping[str, Any], *, is_model: bool = False) -> Answers:
        """As `lookup`, and which tasks nobody answered for: those have their default.

        Where `is_model` these are all tasks of one: also whether that keeps its defaults, see `tuner.lookup.kept`.
        """
        wanted = {task.key: task for task in tasks}
        device = _target(target)
        found: dict[str, Found] = {}
        stale: dict[str, Found] = {}
        unanswered: dict[str, str] = {}
        for key, task in wanted.items():
            if (kept := self._kept(task, device)) is not None:
                one, kept_s = kept
                (found if 0 <= time.time() - kept_s < _fresh_s(one) else stale)[key] = one
        model = _model_key(wanted) if is_model else ""
        verdict = self._verdict(model, device)
        is_open = is_model and not (verdict and 0 <= time.time() - verdict.told_s < FRESH_S)
        asked = [task for key, task in wanted.items() if is_open or key not in found]
        if asked:
            fresh, reasons, told = self._ask(asked, device, is_model=is_open)
            for one in fresh.values():
                self._keep(one, device)
            if told is not None:
                verdict = told
                self._keep_verdict(model, device, told)
            found = stale | found | fresh
            unanswered = {key: reason for key, reason in reasons.items() if key not in found}
        complete = {key: found.get(key) or unmeasured(task, device) for key, task in wanted.items()}
        return Answers(complete, unanswered, self._usable(verdict, complete, device))

    def _usable(self, verdict: Verdict | None, found: Mapping[str, Found], target: Target) -> Kept | None:
        """What was told of a model that keeps its defaults, if it is of these tasks."""
        if verdict is None or verdict.kept is None:
            return None
        try:
            on_defaults(found, target, verdict.kept)
        except ValueError as error:
            self._note(f"{self.server}: what it says of the model can't be used: {error}")
            return None
        return verdict.kept

    def download(self, target: Target | Mapping[str, Any], timeout_s: float = 60.0) -> int:
        """Keep everything that the server knows of a target, so that it need not be asked; how many tasks that are.

        Schedules are checked when they are used, as tasks are not known before. One of a sketch that this version has
        not displaces nothing that is kept. Raises Refused where that fails.
        """
        device = _target(target)
        exchange = Exchange(self.server, self._found_key(), timeout_s)
        try:
            lines = exchange.snapshot(device.key)
        except Failed as error:
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
    ) -> tuple[dict[str, Found], dict[str, str], Verdict | None]:
        """What the server says, without what it leaves to us; why it said nothing, or nothing of use, of others; and
        what it says of the model that they are of, if they are.
        """
        if self._breaker.rest_s:
            self._note(f"{self.server} failed before, so it is not asked for a while", is_news=False)
            return {}, dict.fromkeys((task.key for task in tasks), "it failed before"), None
        exchange = Exchange(self.server, self._found_key(), self._breaker.limit_s(self._timeout_s))
        answers, failure = exchange.lookups(tasks, target, is_model)
        if failure is None:
            self._breaker.answered()
        else:
            self._breaker.failed()
            self._note(f"{self.server}: {failure}; kept answers and defaults are used")
        found, reasons = {}, {}
        for task in tasks:
            if task.key not in answers:
                reasons[task.key] = failure or "it left tasks out"
            elif not _is_left_to_us(answers[task.key]):
                try:
                    found[task.key] = read(task, target, answers[task.key])
                except ValueError as error:
                    reasons[task.key] = f"an answer can't be used: {error}"
                    self._note(f"{self.server}: {reasons[task.key]}")
        told = Verdict.read(exchange.kept, time.time()) if is_model and failure is None else None
        return found, reasons, told

    def _found_key(self) -> str | None:
        if self._key is None:
            from .connection import key_for

            return key_for(self.server)
        return self._key

    def _note(self, text: str, *, is_news: bool = True) -> None:
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)
            if not is_news or text in _said:
                return
            _said.add(text)
        _log.warning("%s", text)

    # What is kept

    def _kept(self, task: Task, target: Target) -> tuple[Found, float] | None:
        """From memory or a file, with the moment when it was kept; None where there is nothing that can be used."""
        place = target.key, task.key
        with self._lock:
            if place in self._memory:
                self._memory.move_to_end(place)
                return self._memory[place]
        try:
            data = json.loads(_small_file(self._path(task.key, target)))
            kept_s = float(data["kept_s"])
            found = read(task, target, data["answer"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # not there, damaged, not one of these files, or of another version
        self._remember(found, target, kept_s)
        return found, kept_s

    def _keep(self, found: Found, target: Target) -> None:
        if _fresh_s(found) or found.match is Match.PREDICTED:
            now_s = time.time()
            self._remember(found, target, now_s)
            self._write(found.task.key, target, found.to_json(), now_s)

    def _remember(self, found: Found, target: Target, kept_s: float) -> None:
        with self._lock:
            self._memory[target.key, found.task.key] = found, kept_s
            self._memory.move_to_end((target.key, found.task.key))
            while len(self._memory) > REMEMBERED:
                self._memory.popitem(last=False)

    def _verdict(self, model: str, target: Target) -> Verdict | None:
        """What was told of a model; None where nothing was kept of it that can be used."""
        if not model:
            return None
        place = target.key, model
        with self._lock:
            if place in self._verdicts:
                return self._verdicts[place]
        try:
            data = json.loads(_small_file(self._path(f"model-{model}", target)))
            return Verdict.read(data["answer"]["kept"], float(data["kept_s"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _keep_verdict(self, model: str, target: Target, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[target.key, model] = verdict
        kept = None if verdict.kept is None else list(verdict.kept.values())
        self._write(f"model-{model}", target, {"kept": kept}, verdict.told_s)

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
    """What a model is called by its tasks."""
    return hashlib.sha256(" ".join(sorted(task_keys)).encode()).hexdigest()


def _fresh_s(found: Found) -> float:
    """How long an answer is used without asking again. What nobody measured is asked for every time."""
    if found.confirmed:
        return CONFIRMED_FRESH_S
    return FRESH_S if found.match in (Match.EXACT, Match.SIBLING, Match.NEAREST) else 0.0


def _is_left_to_us(answer: Any) -> bool:
    """Whether it says that the default is to be used, which the server had no time to make."""
    return isinstance(answer, dict) and answer.get("match") == Match.DEFAULT and answer.get("schedule") is None


def _is_of_this_version(answer: Mapping[str, Any]) -> bool:
    """Whether its schedule is of a sketch that is known here, in its version."""
    schedule = answer.get("schedule")
    if not isinstance(schedule, Mapping):
        return False
    return any(schedule.get("sketch") == name and schedule.get("version") == version for name, version in current())


def _target(target: Target | Mapping[str, Any]) -> Target:
    if isinstance(target, Target):
        return target
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
