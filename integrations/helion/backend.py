"""HelionBackend: what Helion finds goes to the log of a server, and what others found is used before it searches.

    HELION_AUTOTUNE_CACHE=RemoteAutotuneCache
    HELION_REMOTE_CACHE_BACKEND=tunewright.integrations.helion.Backend

Helion makes one without arguments for each kernel, and waits for it. So nothing here raises, nothing takes longer than
the client of the log lets it, and importing this imports neither the client nor Helion.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from .payload import is_payload

if TYPE_CHECKING:
    from tunewright.api.client.log import LogClient

NAMESPACE = "helion"
"""Of the log, unless TUNEWRIGHT_HELION_NAMESPACE names another."""

MOST_LISTED = 1000
"""Entries that are looked through for those to list."""

_log = logging.getLogger("tunewright.log")


class HelionBackend:
    """A `RemoteCacheBackend` of Helion's, which takes it as a subclass without its being one."""

    def get(self, key: str) -> str | None:
        """The payload of a key; None where there is none that Helion can read."""
        client = _client()
        return None if client is None else _text(client.get(key))

    def put(self, key: str, data: str) -> None:
        """Keep a payload."""
        from tunewright.db.logs.entry import LogEntry

        client = _client()
        if client is None or not is_payload(data):
            return
        try:
            entry = LogEntry(key, data.encode())
        except ValueError as error:
            _log.warning(f"what Helion found is not kept in the log: {error}")
            return
        client.write([entry])

    def list(self, max_results: int | None = None) -> Iterable[str]:
        """Payloads of all kernels, the newest first."""
        client = _client()
        if client is None or (max_results is not None and max_results < 1):
            return []
        entries = client.entries(MOST_LISTED)
        texts = [text for entry in entries if entry.is_served and (text := _text(entry.value)) is not None]
        return texts[:max_results]


def _text(value: bytes | None) -> str | None:
    """A value as a payload; None where it is none."""
    try:
        text = None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
    return text if text is not None and is_payload(text) else None


def _client() -> LogClient | None:
    """The client of the log by today's settings; None where they name no server, or mean nothing."""
    return _client_of(os.environ.get("TUNEWRIGHT_SERVER", ""), os.environ.get("TUNEWRIGHT_HELION_NAMESPACE", ""))


@cache
def _client_of(server: str, namespace: str) -> LogClient | None:
    from tunewright.api.client.log import LogClient
    from tunewright.tuner.errors import Refused
    from tunewright.tuner.settings import settings

    try:
        settings()  # a client reads them again with each request
        return LogClient(namespace or NAMESPACE, server) if server else None
    except (Refused, ValueError) as error:
        _log.warning(f"Helion goes on without the log: {error}")
        return None
