"""Connection: requests to a server, repeated where that is harmless, and checked responses.

What goes wrong ends in a `ServiceError`, which is one line for people.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import settings
from tunewright.tuner.text import printable

from .address import is_local

ANSWER_BYTES = 128 << 20
"""Largest response."""

LINE_BYTES = 32 << 20
"""How long a line of an event stream may be: the last event of a job has its whole result."""

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""Between two attempts, unless the server says how long."""

PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that may be others when asked again."""

NO_CONTENT = 204
"""The status of an answer that has no body, whatever its headers say."""

PATIENCE_S = 60.0
"""How long requests are repeated unless the caller says otherwise."""

MOST_CAUSES = 10
"""Causes of an error that are looked through, each that of the one before."""

MOST_LETTERS = 500
"""Longest message of a server that is shown, in characters."""

NO_KEY = "no API key: set TUNEWRIGHT_API_KEY to one that `tunewright key create` made where the server is"
"""The message for a server that refuses a request without a key."""


class TooLarge(httpx.DecodingError):
    """An answer, or a line of one, that is larger than any of this service. The message is for people."""


class ServiceError(Refused):
    """What a server refused, or why there was no answer.

    `kind` is the name of the problem, such as "no-such-job" (see `/problems/no-such-job`); empty where the server did
    not answer with a problem. `status` is that of HTTP; 0 where there was no answer. `faults` are those of an invalid
    request: the JSON pointer to each in the body, and what is wrong there.
    """

    def __init__(
        self,
        text: str,
        kind: str = "",
        status: int = 0,
        title: str = "",
        detail: str = "",
        faults: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(printable(text)[:MOST_LETTERS])
        self.kind = kind
        self.status = status
        self.title = title
        self.detail = detail
        self.faults = faults

    @staticmethod
    def of(server: str, answer: Reply) -> ServiceError:
        """The error of a response that is no success."""
        data = answer.data
        if not isinstance(data, dict) or not isinstance(data.get("type"), str):
            return ServiceError(f"{server} answers {answer.status}: is that a tunewright server?", status=answer.status)
        title, detail = (str(data.get(name, ""))[:MOST_LETTERS] for name in ("title", "detail"))
        kind = data["type"].rpartition("/")[2]
        text = f"{title}: {detail}" if detail and title else title or detail or f"{server} answers {answer.status}"
        return ServiceError(text, kind, answer.status, title, detail, _faults(data.get("errors")))


def _faults(errors: object) -> tuple[tuple[str, str], ...]:
    """Pointer and detail of each fault of a body, of what a server lists as faults."""
    entries = errors if isinstance(errors, list) else []
    faults = [fault for fault in entries if isinstance(fault, dict) and fault.get("in") == "body"]
    return tuple((str(fault.get("pointer")), str(fault.get("detail"))[:MOST_LETTERS]) for fault in faults)


class Reply:
    """A response: status, headers, and the body as JSON data, None where it is not JSON."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data: Any = None
        if status != NO_CONTENT and "json" in headers.get("content-type", ""):
            try:
                self.data = json.loads(body)
            except (ValueError, RecursionError):
                self.status = max(status, 502)  # whatever it says, it is no answer of a server


def key_for(server: str) -> str | None:
    """The API key to show a server: TUNEWRIGHT_API_KEY, else on this machine the one that `serve` left; None."""
    config = settings()
    if config.api_key:
        return config.api_key
    if not is_local(server):
        return None
    try:
        return config.local_key.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def http_client(server: str, key: str | None, timeout_s: float) -> httpx.Client:
    """An HTTP client for one server. Raises ServiceError for a malformed key."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "tunewright"}
    if key:
        if not (key.isascii() and key.isprintable()):
            raise ServiceError("the API key has letters that no key has")
        headers["Authorization"] = f"Bearer {key}"
    return httpx.Client(
        base_url=server,
        headers=headers,
        timeout=timeout_s,
        verify=_tls_settings(server),
        follow_redirects=False,  # the key is for this server
        trust_env=not is_local(server),  # what is on this machine is not reached through a proxy
    )


def _tls_settings(server: str) -> ssl.SSLContext | bool:
    """How a certificate is verified. Without TLS no authorities are read: that takes longer than most requests."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if urlsplit(server).scheme == "http" else True


class ServerConnection:
    """Talks to one server. `timeout_s` is for each answer to begin, `patience_s` for all attempts of a request.

    A server that nobody answers for at the first attempt is not there, and not waited for. `waits` hears why a request
    is going to be repeated.
    """

    def __init__(
        self,
        server: str,
        key: str | None,
        timeout_s: float,
        patience_s: float = PATIENCE_S,
        waits: Callable[[ServiceError], None] = lambda error: None,
    ) -> None:
        self.server = server
        self.patience_s = patience_s
        self.waits = waits
        self._timeout_s = timeout_s
        self._has_answered = False
        self._has_key = bool(key)
        self._http = http_client(server, key, timeout_s)

    def close(self) -> None:
        """End all connections."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        content: Callable[[], Iterator[bytes]] | None = None,
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Reply:
        """The answer, which is a success. Raises ServiceError.

        Repeated while there is no answer or one that may pass, so it must be harmless to send twice. `content` makes
        the body, anew for each attempt; `arguments` are httpx's.
        """
        deadline_s = time.monotonic() + self.patience_s
        pauses = Pauses()
        while True:
            least_s = 0.0
            try:
                answer = self._once(method, path, content, timeout_s or self._timeout_s, arguments)
                if answer.status < 300:
                    return answer
                error = self._refusal(answer)
                least_s = _seconds(answer.headers.get("retry-after", ""))
                if answer.status not in PASSING:
                    raise error
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as fault:
                error = self.unreachable(fault)
                if not self._has_answered or isinstance(fault, httpx.UnsupportedProtocol | httpx.InvalidURL):
                    raise error from fault
            pause_s = max(least_s, pauses.next_s())
            if time.monotonic() + pause_s > deadline_s:
                raise error
            self.waits(error)
            time.sleep(pause_s)

    def _once(
        self,
        method: str,
        path: str,
        content: Callable[[], Iterator[bytes]] | None,
        timeout_s: float,
        arguments: Mapping[str, Any],
    ) -> Reply:
        body = None if content is None else content()
        limits = httpx.Timeout(self._timeout_s, read=timeout_s)
        with self._http.stream(method, path, content=body, timeout=limits, **arguments) as response:
            self._has_answered = True
            return Reply(response.status_code, response.headers, _read_body(response))

    @contextmanager
    def stream(self, path: str, silent_s: float, **arguments: Any) -> Iterator[Iterator[bytes] | None]:
        """The lines of an endless answer; None where there is nothing (204). Raises ServiceError for a refusal.

        Raises httpx.HTTPError and OSError as they come, also while lines are read: a silence of `silent_s` is one.
        """
        limits = httpx.Timeout(self._timeout_s, read=silent_s)
        with self._http.stream("GET", path, timeout=limits, **arguments) as response:
            if response.status_code == 204:
                yield None
            elif response.status_code == 200:
                yield lines(response.iter_raw(), LINE_BYTES)
            else:
                raise self._refusal(Reply(response.status_code, response.headers, _read_body(response)))

    def _refusal(self, answer: Reply) -> ServiceError:
        """The error of an answer that is no success."""
        error = ServiceError.of(self.server, answer)
        return error if self._has_key or error.kind != "no-key" else ServiceError(NO_KEY, error.kind, error.status)

    def unreachable(self, error: Exception) -> ServiceError:
        """The error of a connection that failed."""
        match error:
            case httpx.TimeoutException():
                why = f"no answer within {self._timeout_s:g} s"
            case _:
                why = failure_text(error)
        return ServiceError(f"{self.server}: {why}")


def failure_text(error: BaseException) -> str:
    """What went wrong with a connection, in one short line for people."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < MOST_CAUSES:
        causes.append(cause)
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "its certificate, or how it encrypts, is not trusted here"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "there is no such host"
    match error:
        case TooLarge():
            return str(error)
        case httpx.ConnectError():
            return "nobody answers there; is `tunewright serve` running?"
        case httpx.TimeoutException():
            return "no answer in time"
        case httpx.InvalidURL() | httpx.UnsupportedProtocol():
            return "this is no address"
        case httpx.RemoteProtocolError() | httpx.DecodingError() | zlib.error():
            return "what answers there is no server of this kind, or broke off"
    return "the connection broke"


class Pauses:
    """How long to wait before each further attempt: longer and longer, and not at the same time as others."""

    def __init__(self) -> None:
        self._longest_s = SHORTEST_PAUSE_S

    def next_s(self) -> float:
        """Seconds."""
        self._longest_s = min(2 * self._longest_s, LONGEST_PAUSE_S)
        return self._longest_s * random.uniform(0.5, 1.0)


def _read_body(response: httpx.Response) -> bytes:
    body = bytearray()
    for piece in response.iter_raw():
        body += piece
        if len(body) > ANSWER_BYTES:
            raise TooLarge(f"an answer of more than {ANSWER_BYTES} bytes")
    return bytes(body)


def lines(pieces: Iterator[bytes], limit_bytes: int) -> Iterator[bytes]:
    """The lines of a text that comes in pieces, without what ends them. Raises httpx.DecodingError for a longer one."""
    rest = bytearray()
    for piece in pieces:
        rest += piece
        *whole, last = rest.split(b"\n") if b"\n" in piece else [rest]
        rest = bytearray(last)
        if len(rest) > limit_bytes:
            raise TooLarge(f"a line of more than {limit_bytes} bytes")
        for line in whole:
            yield bytes(line).removesuffix(b"\r")
    if rest:
        yield bytes(rest)


def _seconds(header: str) -> float:
    """The seconds of a header Retry-After; 0 where it is a date or malformed."""
    return float(header) if header.isascii() and header.isdigit() and len(header) < 6 else 0.0
