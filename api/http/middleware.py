"""Gate and Envelope: what every request passes through, as plain ASGI so that it costs little.

server -> Envelope (an id, a log line, metrics, headers) -> Gate (may it come in?) -> routes
"""

from __future__ import annotations

import logging
import re
import secrets
import time

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars, clear_contextvars

from tunewright.codegen.fields import quote
from tunewright.db.access import Key
from tunewright.db.errors import StoreError

from ..client.loopback import is_this_machine
from .access import (
    OPEN,
    SAFE,
    Hosts,
    KeyCache,
    RateLimits,
    check_own_page,
    check_site,
    find_key,
    network_of,
    request_token,
)
from .paths import LOGIN, is_for_people
from .problems import NO_KEY_SENT, ONLY_HERE, Problem, ProblemKind, internal, no_key, response, unavailable
from .service import Service

CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
"""A request id that a proxy may have given."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, browsers call the origin of a form "null"
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What every answer says unless its route says otherwise."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages. What is at `blob:` their own scripts made: charts become pictures by it."""

CLOSED = "default-src 'none'; frame-ancestors 'none'"
"""The Content-Security-Policy of what is no page."""

LONGEST_PATH = 1000
"""Longest path, in characters: no route has so many, and Python converts no number of thousands of digits."""

LEAST_BYTES_S = 16 << 10
"""A body that comes more slowly on the whole is given up: it would keep others from sending theirs."""

QUIET = frozenset({"/livez", "/readyz", "/metrics", "/v1/work/{operation}", "/v1/work/wait"})
"""Routes that are asked every few seconds, or more often: no line in the log unless they fail."""

STATIC = "/static/"
"""Where the files are that pages load: those of the package, and no secret. The page for strangers has them too."""

LOGIN_BYTES = 16 << 10
"""The largest form with a key: beside that it has the address of a page."""

STREAMS = ("/events", "/changes")
"""How the paths of routes end that answer for as long as somebody listens."""

_log = logging.getLogger("tunewright.api")


class Envelope:
    """Gives each request an id, and tells log and metrics what came of it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if CLIENT_ID.fullmatch(client_id) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        state["request_id"], state["address"] = request_id, network_of(_peer(scope))
        clear_contextvars()
        bind_contextvars(request_id=request_id)
        started_s = time.monotonic()
        status, has_begun = 500, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                # By its path alone: browsers apply that of a 304 to the page they kept, so all answers say the same.
                headers["Content-Security-Policy"] = POLICY if is_for_people(scope["path"]) else CLOSED
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:  # a bug: told to the log, and to the client without its details
            _log.exception("a fault of the service")
            if has_begun:
                raise  # the server cuts the answer off
            await response(internal(), scope)(scope, receive, send_with_headers)
        finally:
            self._log_request(scope, status, time.monotonic() - started_s)

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        route = getattr(scope.get("route"), "path_format", "") or "unmatched"
        metrics = self._service.metrics
        metrics.requests.labels(method, route, str(status)).inc()
        if not route.endswith(STREAMS):
            metrics.seconds.labels(method, route).observe(seconds)
        problem = scope["state"].get("problem", "")
        if problem:
            metrics.refused.labels(problem).inc()
        if status >= 400 or route not in QUIET:
            key: Key | None = scope["state"].get("key")
            _log.log(
                logging.INFO if status < 500 else logging.WARNING,
                "request",
                extra={
                    "method": method,
                    "path": scope["path"],
                    "route": route,
                    "status": status,
                    "problem": problem,
                    "ms": round(1e3 * seconds, 3),
                    "key_id": key.id if key else "",
                    "address": scope["state"]["address"],
                },
            )


def _peer(scope: Scope) -> str:
    """The address that a request comes from, by the word of a proxy where that is trusted."""
    return str((scope.get("client") or ("unknown",))[0])


class Gate:
    """Lets in requests for this service that carry a key, and answers the others."""

    def __init__(self, app: ASGIApp, service: Service, keys: KeyCache, rates: RateLimits) -> None:
        self._app = app
        self._service = service
        self._keys = keys
        self._rates = rates
        options = service.options
        self._hosts = Hosts(options.host, options.allow_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._check(scope)
            _check_encoding(scope)
        except Problem as problem:
            await response(problem, scope)(scope, receive, send)
        except StoreError as error:
            await response(unavailable(error), scope)(scope, receive, send)
        else:
            await self._app(scope, BodyReader(scope, receive, self._service).receive, send)

    async def _check(self, scope: Scope) -> None:
        """Raises Problem where the request may not come in, StoreError where that can't be known."""
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        if len(path) > LONGEST_PATH:
            raise Problem(ProblemKind.NOT_FOUND, "there is no path as long as this one")
        if path in OPEN:
            return
        if not self._hosts.answers_for(headers.get("host", "")):
            raise Problem(ProblemKind.WRONG_HOST, "the header Host names another service")
        check_site(method, path, headers)
        if path.startswith(STATIC) and method == "GET":
            return
        if path == LOGIN and method in ("GET", "POST"):  # the code in its query, or the key in its form
            check_own_page(method, headers)
            self._rates.check_failures(scope["state"]["address"])
            return
        token, is_session = request_token(headers)
        key = await self._key(scope, token, is_session)
        if key.is_local and not is_this_machine(_peer(scope)):
            raise no_key(ONLY_HERE)
        if is_session:
            check_own_page(method, headers)
        self._rates.count(key.owner)
        scope["state"]["key"] = key

    async def _key(self, scope: Scope, token: str | None, is_session: bool) -> Key:
        if token is None:
            raise no_key(NO_KEY_SENT)
        key = await find_key(self._keys, self._rates, token, scope["state"]["address"])
        if key is None:
            raise no_key("the session has ended" if is_session else "the key is unknown, expired or revoked")
        return key


def _check_encoding(scope: Scope) -> None:
    """Raises Problem for a body that is packed: no route unpacks any, so it would be taken for something else."""
    coding = Headers(scope=scope).get("content-encoding", "").strip()
    if scope["method"] not in SAFE and coding.lower() not in ("", "identity"):
        detail = f"its Content-Encoding is {quote(coding)}; bodies are taken as they are alone"
        raise Problem(ProblemKind.PACKED, detail, headers={"Accept-Encoding": "identity"})


class BodyReader:
    """A request's body, as much of it as its route takes, and no slower than is decent.

    FastAPI has such a limit itself, but answers a declared length above it in plain text.
    """

    def __init__(self, scope: Scope, receive: Receive, service: Service) -> None:
        self._receive = receive
        self._service = service
        self._scope = scope
        self._left_bytes = self._limit_bytes = _limit_bytes(scope, service)
        length = Headers(scope=scope).get("content-length", "0")
        self._declared_bytes = int(length) if length.isdecimal() else 0
        self._patience_s = service.options.body_s
        self._is_complete = False

    async def receive(self) -> Message:
        """The next piece. Raises Problem where it is one too many, or does not come."""
        if self._is_complete:
            return await self._receive()
        if self._declared_bytes > self._limit_bytes:
            raise self._too_large()
        try:
            message = await self._next()
        except TimeoutError:
            raise Problem(
                ProblemKind.TOO_SLOW, f"nothing came for long, or less than {LEAST_BYTES_S >> 10} kB a second"
            ) from None
        if message["type"] == "http.request":
            self._left_bytes -= len(message.get("body", b""))
            self._patience_s += len(message.get("body", b"")) / LEAST_BYTES_S
            if self._left_bytes < 0:
                raise self._too_large()
            self._is_complete = not message.get("more_body", False)
        return message

    async def _next(self) -> Message:
        """The next piece. Raises TimeoutError."""
        began_s = time.monotonic()
        with anyio.fail_after(min(self._patience_s, self._service.options.body_s)):
            message = await self._receive()
        self._patience_s -= time.monotonic() - began_s
        return message

    def _too_large(self) -> Problem:
        # The rest is not read, so the connection can carry no further request.
        return Problem(
            ProblemKind.TOO_LARGE, f"the route takes {self._limit_bytes} bytes", headers={"Connection": "close"}
        )


def _limit_bytes(scope: Scope, service: Service) -> int:
    """The largest body of a request, by its path: that is known before its route is."""
    options = service.options
    match scope["method"], scope["path"].split("/")[1:]:
        case ("PUT", ["v1", "models", _]) | ("POST", ["v1", "models"]):
            return options.upload_bytes
        case "POST", ["login"]:
            return LOGIN_BYTES
        case "POST", ["v1", "records"]:
            return options.import_bytes
        case "POST", ["v1", "logs", name] if name.endswith(":import"):
            return options.import_bytes
        case _:
            return options.body_bytes
