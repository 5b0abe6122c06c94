"""Wire: lookups on a server that may be down, slow, hostile or something else altogether."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

from .conversation import Conversation, ExchangeError

if TYPE_CHECKING:
    import httpx

KEYS_AT_ONCE = 1024
"""Tasks in one request."""

MOST_OTHERS = 1 << 14
"""Further tasks of the model in it: of one with more it is not asked whether it keeps its defaults."""

DEFINITIONS_AT_ONCE, DEFINITION_BYTES_AT_ONCE = 128, 1 << 20
"""Tasks in one request that carries their definitions, and how long those may be together."""

ANSWER_BYTES, ANSWER_BYTES_A_TASK = 1 << 16, 1 << 14
"""How long an answer may be: so much, and so much more for each task asked for."""

SNAPSHOT_BYTES = 1 << 30
"""How long a snapshot may be when it is unpacked."""

LINE_BYTES = 1 << 20


class Exchange(Conversation):
    """Lookups on one server, within `timeout_s` in all."""

    def __init__(self, server: str, key: str | None, timeout_s: float) -> None:
        super().__init__(server, key, timeout_s)
        self.model_verdict: Any = {}  # as JSON data, the verdict on a model that a server told

    def lookups(
        self, tasks: Sequence[Task], target: Target, is_model: bool = False
    ) -> tuple[dict[str, Any], str | None]:
        """Task key -> answer as JSON data, of those that came in time; and what went wrong, if something did.

        Where `is_model` these are all tasks of one, and `model_verdict` is the verdict on it then.
        """
        answers: dict[str, Any] = {}

        def talk(client: httpx.Client) -> None:
            unknown: list[Task] = []
            others = [task.key for task in tasks[KEYS_AT_ONCE:]]
            of_model = others if is_model and len(others) <= MOST_OTHERS else None
            for batch in _batches(tasks, KEYS_AT_ONCE):
                items = self._items(client, batch, target, others=of_model)
                of_model = None  # the first request has asked for all
                for task, item in zip(batch, items, strict=True):
                    if item.get("match") == "unknown":
                        unknown.append(task)
                    else:
                        answers[task.key] = item
            for batch, definitions in _definition_batches(unknown):
                for task, item in zip(batch, self._items(client, batch, target, definitions=definitions), strict=True):
                    answers[task.key] = item

        try:
            self._within_limit(talk)
        except ExchangeError as error:
            return dict(answers), str(error)
        return answers, None

    def snapshot(self, target_key: str) -> list[Any]:
        """The lines of a snapshot as JSON data, those that are none left out. Raises ExchangeError."""

        from .connection import lines

        def talk(client: httpx.Client) -> list[Any]:
            rows = []
            with client.stream(
                "GET", f"/v1/snapshots/{target_key}", headers={"Accept-Encoding": "gzip"}, extensions=self._extensions()
            ) as answer:
                self._check_status(answer.status_code)
                for line in lines(self._unpack(answer), LINE_BYTES):
                    with suppress(ValueError, RecursionError):
                        rows.append(json.loads(line))
            return rows

        return self._within_limit(talk)

    # In the thread

    def _items(
        self,
        client: httpx.Client,
        tasks: Sequence[Task],
        target: Target,
        others: Sequence[str] | None = None,
        definitions: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """The answers to one request, in the order of the tasks. Raises ExchangeError.

        Where `others` is given, these and those keys are all tasks of a model; `model_verdict` is the verdict on it
        then.
        """
        body: dict[str, Any] = {"target": target.to_json(), "tasks": [task.key for task in tasks]}
        if definitions:
            body["definitions"] = definitions
        if others is not None:
            body["is_model"] = True
        if others:  # a server of before there were any refuses the field
            body["others"] = others
        limit_bytes = ANSWER_BYTES + ANSWER_BYTES_A_TASK * len(tasks)
        data = self._ask(client, "POST", "/v1/lookups", limit_bytes, json=body)
        items: Any = data.get("items") if isinstance(data, dict) else None
        fits = isinstance(items, list) and len(items) == len(tasks) and all(isinstance(item, dict) for item in items)
        if not fits or data.get("target") != target.key:
            raise ExchangeError("its answer is not what was asked for: is that a tunewright server?")
        if others is not None:
            self.model_verdict = data
        return list(items)

    def _unpack(self, answer: httpx.Response) -> Iterator[bytes]:
        """The content, unpacked where it is packed, no matter how far what is packed unpacks."""
        is_packed = answer.headers.get("content-encoding") == "gzip"
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 16) if is_packed else None
        total_bytes = 0
        for chunk in answer.iter_raw():
            rest = chunk
            while rest:
                if inflate is None:
                    piece, rest = rest, b""
                else:
                    piece = inflate.decompress(rest, LINE_BYTES)
                    rest = inflate.unconsumed_tail
                total_bytes += len(piece)
                self._check_limits(total_bytes, SNAPSHOT_BYTES)
                yield piece
                if not piece:
                    break
        if inflate is not None and not inflate.eof:
            raise ExchangeError("its answer is cut short")


def _batches(tasks: Sequence[Task], size: int) -> Iterator[Sequence[Task]]:
    for start in range(0, len(tasks), size):
        yield tasks[start : start + size]


def _definition_batches(tasks: Sequence[Task]) -> Iterator[tuple[list[Task], dict[str, Any]]]:
    """The tasks in parts that are small enough for one request with their definitions."""
    part: list[Task] = []
    definitions: dict[str, Any] = {}
    size_bytes = 0
    for task in tasks:
        data = task.to_json()
        task_bytes = len(json.dumps(data))
        if task_bytes > DEFINITION_BYTES_AT_ONCE:
            continue
        if part and (len(part) == DEFINITIONS_AT_ONCE or size_bytes + task_bytes > DEFINITION_BYTES_AT_ONCE):
            yield part, definitions
            part, definitions, size_bytes = [], {}, 0
        part.append(task)
        definitions[task.key] = data
        size_bytes += task_bytes
    if part:
        yield part, definitions
