"""Wire: a bounded conversation with a server that may be down, slow, hostile or something else altogether.

It runs in a thread of its own, for nothing else bounds the whole of it: resolving a name has no time limit, and the
limits of HTTP clients begin anew with every byte received. When the time is over, the connection is cut.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tunewright.codegen.target import Target
from tunewright.graph.task import Task

if TYPE_CHECKING:
    import socket

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

STATUSES = {
    401: "it refuses the API key (401)",
    403: "the API key lacks the scope records:read (403)",
    404: "it has no such route, or knows nothing of this target (404)",
    429: "it is asked too often (429)",
}
"""Messages for some statuses."""

Result = TypeVar("Result")


class ExchangeError(Exception):
    """A failed exchange with the server. The message completes the sentence that begins with its address."""


class Exchange:
    """Requests to one server, within `timeout_s` in all."""

    def __init__(self, server: str, key: str | None, timeout_s: float) -> None:
        self._server = server
        self._key = key
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._deadline_s = 0.0
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
        with client.stream("POST", "/v1/lookups", json=body, extensions=self._extensions()) as answer:
            self._check_status(answer.status_code)
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ExchangeError("it packs answers although it was asked not to")
            content = bytearray()
            for chunk in answer.iter_raw():
                content += chunk
                self._check_limits(len(content), limit_bytes)
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ExchangeError("its answer is no JSON: is that a tunewright server?") from error
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

    def _check_status(self, status: int) -> None:
        if status == 401 and not self._key:
            from .connection import NO_KEY

            raise ExchangeError(NO_KEY)
        if status != 200:
            raise ExchangeError(STATUSES.get(status, f"it answers {status}"))

    def _check_limits(self, size_bytes: int, limit_bytes: int) -> None:
        if size_bytes > limit_bytes:
            raise ExchangeError(f"its answer is longer than {limit_bytes} bytes")
        if self._over.is_set() or time.monotonic() > self._deadline_s:
            raise ExchangeError(self._too_slow)

    # Around the thread

    @property
    def _too_slow(self) -> str:
        return f"no answer within {self._timeout_s:g} s"

    def _within_limit(self, talk: Callable[[httpx.Client], Result]) -> Result:
        """The result of `talk`. Raises ExchangeError where it takes too long or the server fails."""
        import httpx

        from .connection import ServiceError, failure_text, http_client

        outcome: list[Result | BaseException] = []

        def work() -> None:
            try:
                with http_client(self._server, self._key, self._timeout_s) as client:
                    outcome.append(talk(client))
            except (httpx.HTTPError, httpx.InvalidURL, zlib.error, OSError) as error:
                outcome.append(ExchangeError(failure_text(error)))
            except ServiceError as error:
                outcome.append(ExchangeError(str(error)))
            except BaseException as error:  # noqa: BLE001 - raised again where the caller is
                outcome.append(error)

        self._deadline_s = time.monotonic() + self._timeout_s
        thread = threading.Thread(target=work, name="tunewright-lookup", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if not outcome:
            self._abort()
            raise ExchangeError(self._too_slow)
        result = outcome[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def _extensions(self) -> dict[str, Any]:
        """An extension of httpx that notes sockets as they are opened, so that they can be shut."""

        def trace(event: str, info: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                connection = info["return_value"].get_extra_info("socket")
                self._sockets.append(connection)
                if self._over.is_set():
                    _shut(connection)

        return {"trace": trace}

    def _abort(self) -> None:
        """Shut the sockets: the thread ends by itself then."""
        self._over.set()
        for connection in list(self._sockets):
            _shut(connection)


def _shut(connection: socket.socket) -> None:
    import socket

    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


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
