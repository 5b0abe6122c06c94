"""Loopback: whether a host or a peer is this machine. Used by the service and its client."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host, by its name or address, is this machine as only it can reach it."""
    return host == "localhost" or is_this_machine(host)


def is_this_machine(peer: str) -> bool:
    """Whether what comes from an address comes from this machine."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
