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
from tunewright.workers.sandbox import fork_server as fork_server_module
from tunewright.workers.sandbox import process
from tunewright.workers.sandbox.child import MEASURE_CALLS
from tunewright.workers.sandbox.fork_server import ForkedProcess, ForkError, ForkServer
from tunewright.workers.sandbox.process import Child, ChildLimits, ChildStartError, RequestFailed

from ..waiting import gone

LIMITS = ChildLimits(1 << 30)

SETTINGS: dict[str, Any] = {
    "memory_bytes": 1 << 30,
    "cpu_s": None,
    "confined": False,
    "plugins": [],
    "calls": MEASURE_CALLS,
}

REFUSING = """
import os
fork, turns = os.fork, iter([True, False, True])
def limited():
    if not next(turns):
        raise BlockingIOError(11, "no process is left")
    return fork()
os.fork = limited
from tunewright.workers.sandbox.fork_server import main
main()
"""
"""A fork server to which the system refuses the second fork."""


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
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server._end()


@pytest.fixture
def refusing_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork servers that start from here on can't fork a second time."""

    def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command[:2], "-c", REFUSING, command[-1]], **options)

    monkeypatch.setattr(fork_server_module, "subprocess", SimpleNamespace(Popen=started, DEVNULL=subprocess.DEVNULL))


def fork_child(fork_server: ForkServer, stack: ExitStack) -> ForkedProcess:
    """A child that serves until the stack closes its pipes."""
    requests_in, requests = os.pipe()
    replies, replies_out = os.pipe()
    stack.callback(os.close, requests)
    stack.callback(os.close, replies)
    try:
        child = fork_server.fork(SETTINGS, (requests_in, replies_out, replies_out))
    finally:
        os.close(requests_in)
        os.close(replies_out)
    assert os.read(replies, 1), "it has begun"
    return child


@pytest.fixture
def children() -> Iterator[list[Child]]:
    children = [Child(LIMITS, ["planted"]) for _ in range(2)]
    yield children
    for child in children:
        child.close()


def test_children_have_one_parent(children: list[Child]) -> None:
    first, second = (child.request("pid", 10) for child in children)
    assert first != second
    assert parent_of(first) == parent_of(second) != os.getpid()


def test_where_their_parent_dies_they_do_and_come_back(children: list[Child]) -> None:
    first, second = (child.request("pid", 10) for child in children)
    fork_server = parent_of(first)
    os.kill(fork_server, signal.SIGKILL)
    assert gone(first) and gone(second)
    assert children[0].request("pid", 10) not in (first, second)
    with pytest.raises(RequestFailed) as error:
        children[0].request("end", 10, code=3)
    assert error.value.status is Status.CRASH


def test_an_orphan_that_the_system_has_reaped_is_let_go() -> None:
    orphan = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    orphan.wait()
    process._kill_group(orphan.pid)


@pytest.mark.slow
def test_the_end_of_their_parent_is_no_fault_of_what_was_requested(children: list[Child]) -> None:
    fork_server = parent_of(children[0].request("pid", 10))
    killer = threading.Timer(0.1, os.kill, (fork_server, signal.SIGKILL))
    killer.start()
    with pytest.raises(ChildStartError, match="the process that forks children has ended"):
        children[0].request("hang", 10)
    assert children[0].request("echo", 10, value=1) == 1


def test_a_fork_that_fails_costs_no_other_child(refusing_server: None, fork_server: ForkServer) -> None:
    with ExitStack() as stack:
        first = fork_child(fork_server, stack)
        with pytest.raises(ForkError, match="no process is left"):
            fork_child(fork_server, stack)
        second = fork_child(fork_server, stack)
        assert first.poll() is second.poll() is None
    assert first.wait() == second.wait() == 0


def test_where_a_fork_fails_a_child_is_started_otherwise(
    refusing_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_fork_server", None)
    with Child(LIMITS, ["planted"]) as first, Child(LIMITS, ["planted"]) as second:
        assert parent_of(first.request("pid", 10)) != os.getpid()
        assert parent_of(second.request("pid", 10)) == os.getpid()
        assert first.request("echo", 10, value=1) == 1


def test_a_child_that_the_system_refuses_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(11, "no process is left")

    monkeypatch.setattr(process, "_spawn", refused)
    with pytest.raises(ChildStartError, match="no process is left"):
        Child(LIMITS).request("echo", 10, value=1)


def test_a_dead_fork_server_raises(fork_server: ForkServer) -> None:
    with ExitStack() as stack:
        child = fork_child(fork_server, stack)
        os.kill(parent_of(child.pid), signal.SIGKILL)
        assert gone(child.pid)
        with pytest.raises(ForkError):
            fork_child(fork_server, stack)
        assert child.poll() == -signal.SIGKILL and child.is_orphan
        assert not fork_server.is_usable(fork_server_module.child_environment())


def test_a_child_of_an_interrupted_request_ends(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        first = fork_child(fork_server, stack)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(fork_server, "_socket", Interrupting(fork_server._socket))
            with pytest.raises(KeyboardInterrupt):
                fork_child(fork_server, stack)
        pids = {child.pid for child in (first, fork_child(fork_server, stack), fork_child(fork_server, stack))}
        assert len(pids) == 3
        assert children_of(parent_of(first.pid)) == pids


def test_the_reply_to_an_interrupted_request_is_no_other_ones(
    fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        first = fork_child(fork_server, stack)
        with monkeypatch.context() as interrupting:
            interrupting.setattr(fork_server, "_socket", Interrupting(fork_server._socket))
            os.kill(first.pid, signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                first.wait()
        second = fork_child(fork_server, stack)
        assert second.poll() is None and second.pid != first.pid
        assert first.poll() is not None, "it is not asked for again: its id may be another's"
    assert second.wait() == 0


def test_a_new_child_has_the_environment_of_its_time(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    before = children[0].request("pid", 10)
    monkeypatch.setenv("TUNEWRIGHT_TEST_OF_CHILDREN", "new")
    after = children[1].request("pid", 10)
    assert b"TUNEWRIGHT_TEST_OF_CHILDREN=new" in Path(f"/proc/{after}/environ").read_bytes()
    assert b"TUNEWRIGHT_TEST_OF_CHILDREN" not in Path(f"/proc/{before}/environ").read_bytes()
    assert children[0].request("pid", 10) == before, "it goes on"


def test_a_fork_of_this_process_has_children_of_its_own() -> None:
    code = """
import os
from tunewright.workers.sandbox.process import Child, ChildLimits
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
    completed = subprocess.run(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert completed.stdout.split() == ["0", "7"]
