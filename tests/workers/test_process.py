"""The child: it answers, it can be killed, it comes back, and it dies with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tunewright.search_space.measurement import Status
from tunewright.search_space.schedule import Illegal
from tunewright.workers.sandbox.process import Child, ChildError, ChildLimits, RequestFailed, RequestStopped
from tunewright.workers.wire import candidate_json

from ..waiting import gone

MEMORY_BYTES = 1 << 30

LIMITS = ChildLimits(MEMORY_BYTES)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child(LIMITS, ["planted"]) as process:
        yield process


def test_it_answers(child: Child) -> None:
    assert child.request("echo", 10, value={"a": [1, 2.5, None, "é\n"]}) == {"a": [1, 2.5, None, "é\n"]}
    assert child.provenance["python"]


def test_large_messages_pass_both_ways(child: Child) -> None:
    text = "0123456789" * 300_000
    assert child.request("echo", 10, value=text) == text


def test_it_starts_in_less_than_a_second() -> None:
    start_s = time.monotonic()
    with Child(LIMITS) as child:
        with pytest.raises(ChildError, match="KeyError"):
            child.request("nothing", 10)
        assert child.pid
    assert time.monotonic() - start_s < 5  # a third of a second alone; the machine may be busy


def test_what_it_prints_is_no_reply(child: Child) -> None:
    assert child.request("shout", 10, text="\0\0\0\5hello\n" * 100_000) is None
    assert child.request("echo", 10, value=1) == 1


def test_a_crash_is_told_by_its_signal_and_the_child_comes_back(child: Child) -> None:
    with pytest.raises(RequestFailed, match="crash: SIGSEGV") as error:
        child.request("crash", 10)
    assert error.value.status is Status.CRASH
    assert child.pid is None
    assert child.request("echo", 10, value=2) == 2


def test_an_exit_is_a_crash(child: Child) -> None:
    with pytest.raises(RequestFailed, match="exit code 3") as error:
        child.request("end", 10, code=3)
    assert error.value.status is Status.CRASH


def test_last_words_are_kept(child: Child) -> None:
    with pytest.raises(RequestFailed, match="SIGABRT: no way out") as error:
        child.request("abort", 10, last_words="fine so far\nno way out\n")
    assert error.value.status is Status.CRASH


def test_a_hang_is_stopped(child: Child) -> None:
    pid = child.request("pid", 10)
    with pytest.raises(RequestFailed, match=r"hang: stopped after 0\.2 s") as error:
        child.request("hang", 0.2)
    assert error.value.status is Status.TIMEOUT
    assert gone(pid, 0)


def test_memory_is_limited(child: Child) -> None:
    assert child.request("allocate", 10, size_bytes=1 << 24) == 1 << 24
    pid = child.pid
    with pytest.raises(RequestFailed, match="allocate: Unable to allocate") as error:
        child.request("allocate", 10, size_bytes=MEMORY_BYTES)
    assert error.value.status is Status.OUT_OF_MEMORY
    assert child.pid == pid  # it survives


def test_dying_for_want_of_memory_is_no_crash(child: Child) -> None:
    with pytest.raises(RequestFailed) as error:
        child.request("abort", 10, last_words="LLVM ERROR: out of memory\n")
    assert error.value.status is Status.OUT_OF_MEMORY


def test_the_kernels_killer_is_taken_to_be_short_of_memory(child: Child) -> None:
    pid = child.request("pid", 10)
    killer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(RequestFailed, match="memory runs out") as error:
        child.request("hang", 10)
    assert error.value.status is Status.OUT_OF_MEMORY


def test_illegal_and_bugs_propagate(child: Child, make, tmp_path) -> None:
    with pytest.raises(Illegal, match="no sketch is called"):
        child.request("build", 10, candidate=candidate_json(make.planted("unheard_of")), objects=str(tmp_path))
    with pytest.raises(ChildError, match="IndexError"):
        child.request("sample", 10, number=7)


def test_an_interrupted_request_leaves_no_late_reply() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Child(LIMITS, ["planted"]) as child:
        child.request("echo", 10, value=0)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                child.request("hang", 10)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert child.request("echo", 10, value=1) == 1


def test_kill_from_another_thread_ends_a_request(child: Child) -> None:
    child.request("echo", 10, value=0)
    killer = threading.Timer(0.1, child.kill)
    killer.start()
    with pytest.raises(RequestStopped):
        child.request("hang", 10)


@pytest.mark.parametrize("by_kill", [True, False])
def test_death_between_requests_is_no_fault_of_the_next(child: Child, by_kill: bool) -> None:
    pid = child.request("pid", 10)
    if by_kill:
        child.kill()
    else:
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
    assert child.request("pid", 10) != pid


def test_it_outlives_the_thread_that_started_it() -> None:
    with Child(LIMITS, ["planted"]) as child:
        pids = []
        starter = threading.Thread(target=lambda: pids.append(child.request("pid", 10)))
        starter.start()
        starter.join()
        assert not gone(pids[0], 0.2)
        assert child.request("pid", 10) == pids[0]


def test_a_child_that_cannot_start_says_why() -> None:
    with pytest.raises(ChildError, match="No module named 'not_a_plugin'"):
        Child(LIMITS, ["not_a_plugin"]).request("echo", 10, value=1)


def test_it_dies_with_its_parent() -> None:
    code = """
from tunewright.workers.sandbox.process import Child, ChildLimits
child = Child(ChildLimits(1 << 30), ["planted"])
print(child.request("pid", 10), flush=True)
child.request("hang", 60)
"""
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
        assert gone(pid)


def test_closing_twice_is_harmless() -> None:
    child = Child(LIMITS, ["planted"])
    child.close()
    pid = child.request("pid", 10)
    child.close()
    child.close()
    assert gone(pid, 0)
