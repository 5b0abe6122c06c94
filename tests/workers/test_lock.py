from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tunewright.workers.lock import HostLock

HOLDER = """
import sys
from pathlib import Path
from tunewright.workers.lock import HostLock
with HostLock(Path(sys.argv[1])).timing():
    print("held", flush=True)
    sys.stdin.read()
"""


def waits(lock: HostLock, kind: str, release: threading.Event) -> threading.Thread:
    """A thread that gets the lock, which takes until `release` is set."""

    def get() -> None:
        with getattr(lock, kind)():
            assert release.is_set()
            got.set()

    got = threading.Event()
    thread = threading.Thread(target=get)
    thread.start()
    assert not got.wait(0.1)
    return thread


def test_many_build_at_once(tmp_path: Path) -> None:
    lock, other = HostLock(tmp_path), HostLock(tmp_path)
    with lock.building(), lock.building(), other.building():
        pass


def test_one_times_and_nobody_builds_meanwhile(tmp_path: Path) -> None:
    for first, second in (("timing", "timing"), ("timing", "building"), ("building", "timing")):
        release = threading.Event()
        with getattr(HostLock(tmp_path), first)():
            thread = waits(HostLock(tmp_path), second, release)
            release.set()
        thread.join(10)
        assert not thread.is_alive()


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        release = threading.Event()
        thread = waits(HostLock(tmp_path), "building", release)
        release.set()
        holder.kill()
        thread.join(10)
        assert not thread.is_alive()
