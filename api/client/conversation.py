"""Conversation: a bounded one with a server that may be down, slow, hostile or something else altogether.

It runs in a thread of its own, for nothing else bounds the whole of it: resolving a name has no time limit, and the
limits of HTTP clients begin anew with every byte received. When the time is over, the connection is cut.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tunewright.tuner.text import printable

if TYPE_CHECKING:
    import socket

    import httpx

STATUSES = {
    401: "it refuses the API key (401)",
    403: "the API key does not allow this (403)",
    404: "it has no such route, or knows nothing of this (404)",
    429: "it is asked too often (429)",
}
"""Messages for some statuses."""

PROBLEM = "application/problem+json"
"""What the service answers where it refuses something."""

MOST_LETTERS = 300
"""Of what a refusal says."""

Result = TypeVar("Result")


class ExchangeError(Exception):
    """A failed exchange with the server. The message completes the sentence that begins with its address."""


class Refusal(ExchangeError):
    """The server answers, and does not do what it was asked for: that is no failure of the server."""


class NotAllowed(Refusal):
    """The server answers, and the key, or none, does not allow what it was asked for."""


class NothingKnown(Refusal):
    """The server answers, and knows nothing of what it was asked for."""


class Conversation:
    """Requests to one server, within `timeout_s` in all."""

    def __init__(self, server: str, key: str | None, timeout_s: float) -> None:
        self._server = server
        self._key = key
        self._timeout_s = timeout_s
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._deadline_s = 0.0

    # In the thread

    def _ask(self, client: httpx.Client, method: str, path: str, limit_bytes: int, **request: Any) -> Any:
        """The answer to one request, as JSON data. Raises ExchangeError."""
        with client.stream(method, path, extensions=self._extensions(), **request) as answer:
            is_problem = answer.headers.get("content-type", "").startswith(PROBLEM)
            if not is_problem:  # of whatever else listens at an address
                self._check_status(answer.status_code)
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ExchangeError("it packs answers although it was asked not to")
            content = bytearray()
            for chunk in answer.iter_raw():
                content += chunk
                self._check_limits(len(content), limit_bytes)
        if is_problem:
            self._check_status(answer.status_code, bytes(content))
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ExchangeError("its answer is no JSON: is that a tunewright server?") from error

    def _check_status(self, status: int, problem: bytes | None = None) -> None:
        """Raises ExchangeError for what is no success; Refusal where the answer is a problem that the client has."""
        if status == 200:
            return
        reason = STATUSES.get(status, f"it answers {status}")
        if status == 401 and not self._key:
            from .connection import NO_KEY

            reason = NO_KEY
        if problem is None or status >= 500:
            raise ExchangeError(reason)
        if status == 403 and (detail := _detail(problem)):  # the key lacks a scope, or is for other namespaces
            reason = f"{detail} (403)"
        kinds = {401: NotAllowed, 403: NotAllowed, 404: NothingKnown}
        raise kinds.get(status, Refusal)(reason)

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


def _detail(problem: bytes) -> str:
    """What a problem says of this request, in one line; empty where it can't be read."""
    try:
        data = json.loads(problem)
    except (ValueError, RecursionError):
        return ""
    detail = data.get("detail") if isinstance(data, dict) else None
    return printable(detail)[:MOST_LETTERS] if isinstance(detail, str) else ""


def _shut(connection: socket.socket) -> None:
    import socket

    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
