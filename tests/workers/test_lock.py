from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tunewright.workers.local import LocalPool
from tunewright.workers.lock import HostLock

HOLDER = """
import sys
from pathlib import Path
from tunewright.workers.lock import HostLock
with HostLock(Path(sys.argv[1])).exclusive():
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
    """Each in a thread of its own: one that holds it may take it again in any case."""
    lock, other = HostLock(tmp_path), HostLock(tmp_path)
    met = threading.Barrier(3, timeout=60)

    def build(host_lock: HostLock) -> None:
        with host_lock.shared():
            met.wait()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(build, (lock, lock, other)))


def test_one_times_and_nobody_builds_meanwhile(tmp_path: Path) -> None:
    for first, second in (("exclusive", "exclusive"), ("exclusive", "shared"), ("shared", "exclusive")):
        release = threading.Event()
        with getattr(HostLock(tmp_path), first)():
            thread = waits(HostLock(tmp_path), second, release)
            release.set()
        thread.join(60)
        assert not thread.is_alive()


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        release = threading.Event()
        thread = waits(HostLock(tmp_path), "shared", release)
        release.set()
        holder.kill()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("outer", "inner"), [("exclusive", "exclusive"), ("exclusive", "shared"), ("shared", "shared")]
)
def test_a_thread_that_holds_it_may_take_it_again(tmp_path: Path, outer: str, inner: str) -> None:
    """In a thread of its own: if it waited, it would wait for ever. It holds it until the outer one ends."""
    threads: list[threading.Thread] = []

    def nest() -> None:
        with getattr(HostLock(tmp_path), outer)():
            with getattr(HostLock(tmp_path / "x" / ".."), inner)():
                pass
            threads.append(waits(HostLock(tmp_path), "exclusive", release))
            release.set()

    release = threading.Event()
    thread = threading.Thread(target=nest, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_a_thread_that_builds_is_told_that_it_cannot_time(tmp_path: Path) -> None:
    lock = HostLock(tmp_path)
    with lock.shared():
        with pytest.raises(RuntimeError, match="can't time"), lock.exclusive():
            pass
        with lock.shared():
            pass
    with lock.exclusive():
        pass


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@pytest.mark.parametrize("call", ["measure", "compare"])
def test_a_pool_is_not_waited_for_with_the_lock_in_hand(make, tmp_path: Path, kind: str, call: str) -> None:
    candidates = [make.default()]
    with (
        LocalPool(candidates[0].target, tmp_path) as pool,
        getattr(HostLock(tmp_path), kind)(),
        pytest.raises(RuntimeError, match="holds the lock"),
    ):
        list(getattr(pool, call)(candidates))


def test_the_lock_of_another_folder_is_in_nobodys_way(make, tmp_path: Path) -> None:
    candidate = make.default()
    with LocalPool(candidate.target, tmp_path / "one") as pool, HostLock(tmp_path / "other").exclusive():
        assert make.sound(make.measured(pool, candidate))
