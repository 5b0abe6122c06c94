"""Children are forked by one process, which may die, and whose environment may become old."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunewright.search_space.measurement import Status
from tunewright.workers import nursery as nurseries
from tunewright.workers import process
from tunewright.workers.child import MEASURING
from tunewright.workers.nursery import Barren, Nursery, Offspring
from tunewright.workers.process import Child, ChildLimits, Failed, NotStarted

from ..waiting import gone

LIMITS = ChildLimits(1 << 30)

SETTINGS: dict[str, Any] = {
    "memory_bytes": 1 << 30,
    "cpu_s": None,
    "confined": False,
    "plugins": [],
    "calls": MEASURING,
}

REFUSING = """
import os
fork, turns = os.fork, iter([True, False, True])
def limited():
    if not next(turns):
        raise BlockingIOError(11, "no process is left")
    return fork()
os.fork = limited
from tunewright.workers.forking import main
main()
"""
"""What forks children, where the system refuses the second."""


def parent_of(pid: int) -> int:
    """The process id of what forked it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def children_of(pid: int) -> set[int]:
    """The process ids of what it forked, and did not reap."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


class Interrupting:
    """A socket on which the first wait for an answer is interrupted."""

    def __init__(self, whole: socket.socket) -> None:
        self._whole, self._is_first = whole, True

    def recv(self, size_bytes: int) -> bytes:
        if self._is_first:
            self._is_first = False
            raise KeyboardInterrupt
        return self._whole.recv(size_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one._end()


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nurseries that are made from here on can't fork a second time."""

    def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command[:2], "-c", REFUSING, command[-1]], **options)

    monkeypatch.setattr(nurseries, "subprocess", SimpleNamespace(Popen=started, DEVNULL=subprocess.DEVNULL))


def born(nursery: Nursery, held: ExitStack) -> Offspring:
    """A child that serves as long as what it is given is held."""
    requests_in, requests = os.pipe()
    replies, replies_out = os.pipe()
    held.callback(os.close, requests)
    held.callback(os.close, replies)
    try:
        one = nursery.bear(SETTINGS, (requests_in, replies_out, replies_out))
    finally:
        os.close(requests_in)
        os.close(replies_out)
    assert os.read(replies, 1), "it has begun"
    return one


@pytest.fixture
def several() -> Iterator[list[Child]]:
    children = [Child(LIMITS, ["planted"]) for _ in range(2)]
    yield children
    for child in children:
        child.close()


def test_children_have_one_parent(several: list[Child]) -> None:
    first, second = (child.request("pid", 10) for child in several)
    assert first != second
    assert parent_of(first) == parent_of(second) != os.getpid()


def test_where_their_parent_dies_they_do_and_come_back(several: list[Child]) -> None:
    first, second = (child.request("pid", 10) for child in several)
    nursery = parent_of(first)
    os.kill(nursery, signal.SIGKILL)
    assert gone(first) and gone(second)
    assert several[0].request("pid", 10) not in (first, second)
    with pytest.raises(Failed) as raised:
        several[0].request("end", 10, code=3)
    assert raised.value.status is Status.CRASH


def test_an_orphan_that_the_system_has_reaped_is_let_go() -> None:
    one = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    one.wait()
    process._kill_group(one.pid)


def test_the_end_of_their_parent_is_no_fault_of_what_was_requested(several: list[Child]) -> None:
    nursery = parent_of(several[0].request("pid", 10))
    killer = threading.Timer(0.1, os.kill, (nursery, signal.SIGKILL))
    killer.start()
    with pytest.raises(NotStarted, match="the process that forks children has ended"):
        several[0].request("hang", 10)
    assert several[0].request("echo", 10, value=1) == 1


def test_a_fork_that_fails_costs_no_other_child(refusing: None, nursery: Nursery) -> None:
    with ExitStack() as held:
        first = born(nursery, held)
        with pytest.raises(Barren, match="no process is left"):
            born(nursery, held)
        second = born(nursery, held)
        assert first.poll() is second.poll() is None
    assert first.wait() == second.wait() == 0


def test_where_a_fork_fails_a_child_is_started_otherwise(refusing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_nursery", None)
    with Child(LIMITS, ["planted"]) as first, Child(LIMITS, ["planted"]) as second:
        assert parent_of(first.request("pid", 10)) != os.getpid()
        assert parent_of(second.request("pid", 10)) == os.getpid()
        assert first.request("echo", 10, value=1) == 1


def test_a_child_that_the_system_refuses_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(11, "no process is left")

    monkeypatch.setattr(process, "_spawn", refused)
    with pytest.raises(NotStarted, match="no process is left"):
        Child(LIMITS).request("echo", 10, value=1)


def test_a_nursery_that_has_ended_is_barren(nursery: Nursery) -> None:
    with ExitStack() as held:
        one = born(nursery, held)
        os.kill(parent_of(one.pid), signal.SIGKILL)
        assert gone(one.pid)
        with pytest.raises(Barren):
            born(nursery, held)
        assert one.poll() == -signal.SIGKILL and one.is_orphan
        assert not nursery.serves(nurseries.inherited())


def test_a_child_of_an_interrupted_request_ends(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as held:
        first = born(nursery, held)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(nursery, "_socket", Interrupting(nursery._socket))
            with pytest.raises(KeyboardInterrupt):
                born(nursery, held)
        known = {one.pid for one in (first, born(nursery, held), born(nursery, held))}
        assert len(known) == 3
        assert children_of(parent_of(first.pid)) == known


def test_the_reply_to_an_interrupted_request_is_no_other_ones(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as held:
        first = born(nursery, held)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(nursery, "_socket", Interrupting(nursery._socket))
            os.kill(first.pid, signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                first.wait()
        second = born(nursery, held)
        assert second.poll() is None and second.pid != first.pid
        assert first.poll() is not None, "it is not asked for again: its id may be another's"
    assert second.wait() == 0


def test_a_new_child_has_the_environment_of_its_time(several: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    before = several[0].request("pid", 10)
    monkeypatch.setenv("TUNEWRIGHT_TEST_OF_CHILDREN", "new")
    after = several[1].request("pid", 10)
    assert b"TUNEWRIGHT_TEST_OF_CHILDREN=new" in Path(f"/proc/{after}/environ").read_bytes()
    assert b"TUNEWRIGHT_TEST_OF_CHILDREN" not in Path(f"/proc/{before}/environ").read_bytes()
    assert several[0].request("pid", 10) == before, "it goes on"


def test_a_fork_of_this_process_has_children_of_its_own() -> None:
    code = """
import os
from tunewright.workers.process import Child, ChildLimits
limits = ChildLimits(1 << 30)
first = Child(limits, ["planted"])
first.request("pid", 10)
pid = os.fork()
if pid == 0:
    second = Child(limits, ["planted"])
    second.request("pid", 10)
    second.close()
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(status, first.request("echo", 10, value=7))
"""
    run = subprocess.run([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert run.stdout.split() == ["0", "7"]
