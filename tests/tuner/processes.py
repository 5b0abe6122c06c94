"""The program in processes of its own, which hang and are waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tunewright.db.errors import StoreError
from tunewright.db.store import Store, open_store
from tunewright.tuner import cli

from .. import short_timing
from .fake_pool import TARGET

PROGRAM = (sys.executable, "-P", "-m", "tunewright.tuner.cli")

BRIEF_PROGRAM = (sys.executable, "-P", short_timing.__file__)
"""The same, but that it times whole models in short."""

LIMIT_S = 60.0
"""How long anything is waited for."""


def python_path() -> dict[str, str]:
    """So that a child finds the package where it is not installed."""
    return {"PYTHONPATH": os.pathsep.join([str(Path(cli.__file__).parents[3]), *sys.path])}


def until(store: Store, met: Callable[[], bool]) -> None:
    """Wait for a condition on what is stored."""
    deadline_s = time.monotonic() + LIMIT_S
    while not met():
        assert time.monotonic() < deadline_s
        store.jobs.wait(0.1)


def freeze(child: subprocess.Popen[str], url: str) -> None:
    """Stop a process, though not in the middle of writing to a SQLite file: all others would wait for it."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        child.send_signal(signal.SIGSTOP)
        try:
            with open_store(url, wait_s=0.2) as store:
                store.add_target(TARGET)
                return
        except StoreError:
            child.send_signal(signal.SIGCONT)
            time.sleep(0.01)  # for it to get on with its write
    raise AssertionError("it never stopped writing")
