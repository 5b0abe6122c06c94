"""Processes that hang."""

from __future__ import annotations

import signal
import subprocess
import time

from tunewright.db.errors import StoreError
from tunewright.db.sql_store import open_store

from .told import TARGET


def freeze(child: subprocess.Popen[str], url: str) -> None:
    """Stop a process, though not in the middle of writing to a SQLite file: all others would wait for it."""
    while True:
        child.send_signal(signal.SIGSTOP)
        try:
            with open_store(url, wait_s=0.2) as store:
                store.add_target(TARGET)
                return
        except StoreError:
            child.send_signal(signal.SIGCONT)
            time.sleep(0.01)
