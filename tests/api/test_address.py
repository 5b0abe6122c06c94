"""Addresses of servers: which are some, and which are of this machine."""

from __future__ import annotations

import pytest

from tunewright.api.client import Client
from tunewright.api.client.address import is_local, normal
from tunewright.api.client.tiers import Lookups
from tunewright.tuner.errors import Refused


@pytest.mark.parametrize("server", ["http://h.org", " http://h.org/ ", "https://h.org:8433/below", "http://[::1]:1"])
def test_an_address(server: str) -> None:
    assert normal(server) == server.strip().rstrip("/")


@pytest.mark.parametrize(
    "server",
    [
        "", "h.org", "localhost:8433", "ftp://h.org", "http://", "http://user@host", "http://a:b@c",
        "http://h:x", "http://a:99999", "http://h?q",
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [Client, Lookups])
def test_an_address_that_is_none(make: type[Client | Lookups], server: str) -> None:
    with pytest.raises(Refused, match="a server is http"):
        make(server)


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("http://localhost", True),
        ("http://127.0.0.1:1", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:8433", True),
        ("http://[::ffff:127.0.0.1]", True),
        ("http://127.0.0.1.example.org", False),
        ("http://localhost.example.org", False),
        ("http://10.0.0.1", False),
    ],
)
def test_what_is_local(server: str, local: bool) -> None:
    assert is_local(server) is local
