"""Webhook hosts: which addresses deliveries may be sent to.

Anybody with a key names a URL, and this service calls it: it must not be led to what only the service can reach. So
every address of the URL's host must be one of the public Internet, unless who runs the service allowed it. Names are
resolved here, and connections are made to the addresses that were checked: a name that is looked up again may lead
elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpx

LONGEST_URL = 2048

LONGEST_HOST = 253

RESOLVING_S = 5.0
"""How long a name may take to be resolved."""

MOST_RESOLVING = 32
"""Names that are being resolved at once: a thread that takes longer than is waited for can't be ended."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
"""What the Internet's addresses of version 6 are in; others are of a network's own, or of no use yet."""

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Where gateways put the addresses of version 4."""


OTHER_HOSTS = "TUNEWRIGHT_WEBHOOK_HOSTS of the service allows others by name"
"""What is to be done about an address of one's own."""


class UnfitAddress(Exception):
    """Nothing is sent to a URL: why not, in one line for people."""


class TooManyNames(UnfitAddress):
    """As many names are being resolved as may: that may be over soon."""


@dataclass(frozen=True, slots=True)
class WebhookHosts:
    """The hosts that are allowed whatever their addresses are, also without TLS, besides all public ones with it."""

    names: frozenset[str] = frozenset()
    networks: tuple[IpNetwork, ...] = ()

    @staticmethod
    def of(text: str) -> WebhookHosts:
        """Those of a list of names and networks with commas between. Raises ValueError, in one line."""
        names, networks = set[str](), []
        for part in filter(None, (part.strip() for part in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(part))
            except ValueError:
                if "/" in part or not _is_name(part):
                    raise ValueError(f"{part!r} is neither the name of a host nor a network like 10.1.0.0/16") from None
                names.add(part.lower().rstrip("."))
        return WebhookHosts(frozenset(names), tuple(networks))

    async def addresses(self, url: httpx.URL) -> list[str]:
        """The addresses of the host of a URL that `parse_url` made. Raises UnfitAddress unless each is allowed."""
        host = url.raw_host.decode()
        addresses = await resolve(host, _port(url))
        if host.lower().rstrip(".") in self.names:
            return addresses
        for address in map(ipaddress.ip_address, addresses):
            if any(address in network for network in self.networks):
                continue
            if url.scheme != "https":
                raise UnfitAddress(f"the URL must begin with https://; {OTHER_HOSTS}")
            if not is_public(address):
                raise UnfitAddress(
                    f"the host of the URL has an address that is not of the public Internet; {OTHER_HOSTS}"
                )
        return addresses


DEFAULT_PORTS = {"https": 443, "http": 80}


def parse_url(text: str) -> httpx.URL:
    """The URL of a webhook, as far as its form tells. Raises UnfitAddress."""
    if len(text) > LONGEST_URL:
        raise UnfitAddress(f"the URL has {len(text):,} characters; at most {LONGEST_URL:,} are allowed")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise UnfitAddress("this is no URL") from error
    if url.scheme not in DEFAULT_PORTS:
        raise UnfitAddress("the URL must begin with https://")
    if url.userinfo:
        raise UnfitAddress("the URL must have no user and password: deliveries are signed")
    if url.fragment:
        raise UnfitAddress("the URL must have no #: what is behind it is never sent")
    if not 0 < len(url.raw_host) <= LONGEST_HOST or not 0 < _port(url) < 2**16:
        raise UnfitAddress("the URL has no host that can be reached")
    return url


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises UnfitAddress where it has none, and TooManyNames."""
    apart = anyio.CapacityLimiter(1)  # from the threads of requests, which names that hang would use up
    try:
        with anyio.fail_after(RESOLVING_S):
            work = partial(_look_up, host, port)
            entries = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=apart)
    except (OSError, UnicodeError) as error:  # TimeoutError is one
        raise UnfitAddress("the host of the URL can't be resolved now") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


_resolving = threading.BoundedSemaphore(MOST_RESOLVING)


def _look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    """What the system says of a host. It counts until it is done, also where nobody waits any more."""
    if not _resolving.acquire(blocking=False):
        raise TooManyNames("too many names are being resolved at once")
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    finally:
        _resolving.release()


def is_public(address: IpAddress) -> bool:
    """Whether an address is of a host on the public Internet; of one that stands for another, whether that is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    inner = _inner_address(address)
    if inner is not None:
        return is_public(inner)
    return address in PUBLIC_IPV6 and address.is_global and not address.is_reserved


def _inner_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The address of version 4 that packets to this one go to in the end."""
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _port(url: httpx.URL) -> int:
    return DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def _is_name(text: str) -> bool:
    labels: Sequence[str] = text.rstrip(".").split(".")
    is_plain = all(label and label.replace("-", "a").replace("_", "a").isalnum() for label in labels)
    return text.isascii() and len(text) <= LONGEST_HOST and is_plain
