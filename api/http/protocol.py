"""Protocol: HTTP/1.1 as uvicorn speaks it, with bounds on what anybody may send before a key is looked at.

uvicorn alone keeps the head of a request in memory however long it is, and waits for the rest of it for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 << 10
"""Longest head of a request: its line and its headers. Trailers and extensions of chunks count as one too."""

HEAD_S = 10.0
"""How long a head may take to come, and the rest of a body that nobody reads because it was answered already."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection: the first request should come soon."""
        super().connection_made(transport)
        self._overhead_bytes = 0  # received since the last piece of a body
        self._is_between = True  # no request has begun whose end is still to come
        self._limit: asyncio.TimerHandle | None = None
        self._hurry()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._relax()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Refuses the connection where too much comes that is no body."""
        if self._is_between:
            self._hurry()
        self._overhead_bytes += len(data)
        super().data_received(data)
        if self._overhead_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A head begins, perhaps behind another request that came with it."""
        self._hurry()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """From here on `middleware.BodyReader` sees to it that the body comes."""
        self._relax()
        self._is_between = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._overhead_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has come as a whole."""
        self._relax()
        self._overhead_bytes, self._is_between = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent."""
        super().on_response_complete()
        if not self._is_between:
            self._hurry()

    def _hurry(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(HEAD_S, self.transport.close)

    def _relax(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
