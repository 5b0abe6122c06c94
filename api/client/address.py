"""Addresses of servers."""

from __future__ import annotations

from urllib.parse import urlsplit

from tunewright.tuner.errors import Refused
from tunewright.tuner.settings import settings

from .loopback import is_loopback


def server_address(server: str | None, otherwise: str = "tunewright serve starts one") -> str:
    """The address of the server named on a command line, or else by TUNEWRIGHT_SERVER.

    Raises Refused where there is none; `otherwise` is what it says of that.
    """
    address = settings().server if server is None else server
    if not address.strip():
        raise Refused(f"which server? Give --server URL or set TUNEWRIGHT_SERVER; {otherwise}")
    return normal(address)


def normal(server: str) -> str:
    """The address without a slash at its end. Raises Refused where it is none."""
    try:
        parts = urlsplit(server.strip())
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        sound = sound and (parts.port is None or parts.port > 0) and parts.username is None
    except ValueError:
        sound = False
    if not sound:
        raise Refused(f"a server is http://HOST:PORT or https://HOST, not {server!r}")
    return server.strip().rstrip("/")


def is_local(server: str) -> bool:
    """Whether a server is on this machine, going by its name."""
    return is_loopback(urlsplit(server).hostname or "")
