"""Waiting for what comes from other processes."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], timeout_s: float = 120.0) -> T:
    """What it sees as soon as it sees anything. The limit only ends what hangs: a busy machine may take a minute."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = 0.001  # between two looks: nothing tells of what others do
    while not (seen := look()):
        assert time.monotonic() < deadline_s
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)  # soon, at first: a server in this process takes some milliseconds to start
    return seen


def gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Whether a process has ended, or does so in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)
