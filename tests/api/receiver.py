"""A receiver of webhooks: a real HTTP server on loopback that keeps what it was sent."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..waiting import wait_for


@dataclass(frozen=True)
class Received:
    """A request."""

    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


Answer = Callable[[BaseHTTPRequestHandler], None]


def status(code: int, **headers: str) -> Answer:
    """Answers with a status and no body."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@dataclass
class Receiver:
    """What came, and what each request is answered with: the next of `answers`, else that it is well."""

    port: int
    requests: list[Received] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def wait(self, count: int) -> list[Received]:
        """The requests, once there are so many."""
        wait_for(lambda: len(self.requests) >= count)
        return list(self.requests)

    def url(self, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}/hook"


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.answers.pop(0) if receiver.answers else status(204)
            receiver.requests.append(Received(self.path, headers, body))
            with suppress(OSError):  # it hangs up where it was told enough
                answer(self)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        receiver = Receiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
