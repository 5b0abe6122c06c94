"""Thread pools: workers that sleep, keep to their places and leave signals alone; forks, closed pools, few threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool, shared_pool

from ..waiting import wait_for
from .phases import COUNTING, LATE, THERE_AND_BACK, artifact, integers, there_and_back


def test_close_and_reopen():
    before = workers()  # of the pools that the process shares
    counts = integers()
    kernel = artifact(COUNTING, [("count", 4)], (64,))
    for _ in range(20):
        with ThreadPool(3) as pool, Program([(kernel, [counts])], pool) as program:
            program.run()
        program.close()
        pool.close()
    assert counts[:5].tolist() == [20] * 4 + [0]
    with pytest.raises(RuntimeError, match="program is closed"):
        program.run()
    program = Program([(kernel, [counts])], pool)
    with pytest.raises(RuntimeError, match="pool is closed"):
        program.run()
    assert workers() == before


def test_collected_pools_end_their_workers():
    before = workers()
    for _ in range(20):
        ThreadPool(3)
    assert workers() == before


def test_the_shared_pool_is_one():
    assert shared_pool(2) is shared_pool(2)
    assert shared_pool(1) is not shared_pool(1)


def test_threads_are_counted():
    for threads in (0, -1, 5000):
        with pytest.raises(ValueError, match="threads"):
            ThreadPool(threads)
    assert pool_functions().create(3, 0, 0, 0, 1 << 46, None) is None  # no room for such a stack


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_programs_of_many_python_threads_share_a_pool(threads):
    kernel = artifact(THERE_AND_BACK, [("there", 64), ("back", 64)])
    results: dict[int, np.ndarray] = {}

    def work(number):
        a, b = integers(value=number), integers()
        program = Program([(kernel, [a, b])], pool)
        for _ in range(200):
            program.run()
        results[number] = a

    with ThreadPool(threads) as pool:
        python_threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in python_threads:
            thread.start()
        for thread in python_threads:
            thread.join()
    for number in range(4):
        expected = np.zeros(64, np.int64) + number
        for _ in range(200):
            expected = there_and_back(expected)
        assert (results[number] == expected).all()


def workers() -> set[Path]:
    """The folders in /proc of this process's workers."""
    return {task for task in Path("/proc/self/task").iterdir() if name(task) == "tunewright"}


def name(task: Path) -> str:
    """Of a thread; "" when it ended since its folder was listed."""
    try:
        return (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def alone():
    """No other pool's workers in the process."""
    from tunewright.codegen.runtime import pool

    for shared in pool._shared_pools.values():
        shared.close()
    pool._shared_pools.clear()
    assert not workers()


def state(task: Path) -> str:
    """R when running, S when asleep."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.usefixtures("alone")
def test_idle_workers_sleep_and_wake_up():
    counts = integers()
    with ThreadPool(3, idle_s=1e-4) as pool:
        program = Program([(artifact(COUNTING, [("count", 3)], (64,)), [counts])], pool)
        for runs in range(1, 20):
            program.run()
            assert counts[:4].tolist() == [runs] * 3 + [0]
            deadline_s = time.monotonic() + 30
            while any(state(task) != "S" for task in workers()):
                assert time.monotonic() < deadline_s
        assert len(workers()) == 2


@pytest.mark.usefixtures("alone")
def test_waits_inside_a_run_may_sleep():
    """Without patience each barrier is a sleep, unless all others are there already."""
    a, b = integers(), integers()
    expected = a.copy()
    with ThreadPool(4, patience_s=0, idle_s=0) as pool:
        program = Program([(artifact(THERE_AND_BACK, [("there", 64), ("back", 64)]), [a, b])], pool)
        for _ in range(500):
            program.run()
            expected = there_and_back(expected)
    assert (a == expected).all()


class Late:
    """Runs of the phase LATE on two threads."""

    def __init__(self, pool: ThreadPool) -> None:
        self.counts, self.state = integers(), integers()
        self.program = Program([(artifact(LATE, [("late", 64)]), [self.counts, self.state])], pool)
        self.runs = 0

    def run(self, *, meets: bool = False, caller_turns: int = 0, worker_turns: int = 0) -> int:
        """How many of the 64 iterations the worker did."""
        self.state[:7] = [threading.get_ident(), 0, 0, 0, int(meets), caller_turns, worker_turns]
        self.program.run()
        self.runs += 1
        assert self.counts.tolist() == [self.runs] * 64
        return int(self.state[2])


@pytest.mark.usefixtures("alone")
def test_a_share_is_done_without_its_owner():
    """A worker that is stuck amid what it took holds up these iterations alone: a quarter of its half.

    Each time in a new pool: one whose worker loses its processor would do the next run without it, and never meet it.
    """
    for _ in range(20):
        with ThreadPool(2) as pool:
            assert Late(pool).run(meets=True) == 8


@pytest.mark.usefixtures("alone")
def test_who_holds_all_up_for_long_is_left_out_for_some_time():
    with ThreadPool(2) as pool:
        late = Late(pool)
        assert late.run(meets=True, worker_turns=200_000_000) == 8
        assert [late.run() for _ in range(20)] == [0] * 20
        deadline_s = time.monotonic() + 60
        while not late.run(caller_turns=1_000_000):
            assert time.monotonic() < deadline_s


@pytest.mark.usefixtures("alone")
def test_a_pool_ends_while_a_worker_is_left_out():
    with ThreadPool(2) as pool:
        Late(pool).run(meets=True, worker_turns=200_000_000)
    assert not workers()


def settled(task):
    """The signals that a thread blocks, as a mask; 0 while it begins, when the C library has it block all."""
    status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
    blocked = int(status["SigBlk"], 16)
    return 0 if blocked >> (signal.SIGSEGV - 1) & 1 else blocked


@pytest.mark.usefixtures("alone")
def test_workers_leave_signals_to_python():
    counts = integers()
    with ThreadPool(2) as pool:
        Program([(artifact(COUNTING, [("count", 2)], (64,)), [counts])], pool).run()
        [task] = workers()
        blocked = wait_for(lambda: settled(task))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
        assert blocked >> (number - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.usefixtures("alone")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_workers_keep_off_the_callers_processor():
    allowed = os.sched_getaffinity(0)
    counts = integers()
    kernel = artifact(COUNTING, [("count", 2)], (64,))
    with ThreadPool(2) as pool, Program([(kernel, [counts])], pool) as program:
        [task] = workers()
        try:
            for processor in sorted(allowed)[:2] * 3:
                os.sched_setaffinity(0, {processor})
                program.run()
                places = os.sched_getaffinity(int(task.name))
                assert places < allowed
                assert processor not in places
        finally:
            os.sched_setaffinity(0, allowed)
    with ThreadPool(2, pinned=False) as pool, Program([(kernel, [counts])], pool) as program:
        [task] = workers()
        program.run()
        assert os.sched_getaffinity(int(task.name)) == allowed


def in_child(check) -> int:
    """Exit status of a forked child in which `check` answers whether all is well; it gets 60 seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 2
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_gets_its_own_workers():
    a, b = integers(), integers()
    with ThreadPool(2) as pool:
        program = Program([(artifact(THERE_AND_BACK, [("there", 64), ("back", 64)]), [a, b])], pool)
        program.run()

        def grandchild():
            program.run()
            return (a == there_and_back(there_and_back(there_and_back(np.zeros(64, np.int64))))).all()

        def child():
            program.run()
            twice = there_and_back(there_and_back(np.zeros(64, np.int64)))
            good = (a == twice).all() and in_child(grandchild) == 0 and (a == twice).all()
            pool.close()
            return good and not workers()

        assert in_child(child) == 0
        program.run()
        assert in_child(child) == 1  # a has had one run more: the check can fail
        assert (a == there_and_back(there_and_back(np.zeros(64, np.int64)))).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_while_another_thread_runs():
    """The child has a copy of a lock that nobody there will release."""
    kernel = artifact(COUNTING, [("count", 2)], (64,))
    counts, own = integers(), integers()
    with ThreadPool(2) as pool:
        busy, program = Program([(kernel, [counts])], pool), Program([(kernel, [own])], pool)
        stop = threading.Event()

        def work():
            while not stop.is_set():
                busy.time(samples=1, repeats=200)

        thread = threading.Thread(target=work)
        thread.start()

        def child():
            program.run()
            return own[0] == 1

        try:
            for _ in range(10):
                assert in_child(child) == 0
        finally:
            stop.set()
            thread.join()
        program.run()


SCRIPT = """
import resource, sys
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.pool import ThreadPool
"""


def script(text: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + text], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_interpreter_ends_with_workers_waiting():
    done = script("pool = ThreadPool(4); other = ThreadPool(2, idle_s=10); print('ready')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


def test_no_thread_to_be_had_is_an_error():
    """Room for the stacks of two workers out of five: those started are ended again."""
    done = script(
        """
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (5 << 29), resource.RLIM_INFINITY))
print(pool_functions().create(6, 0, 0, 0, 1 << 30, None))
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
try:
    ThreadPool(6)
except OSError as error:
    print(error)
"""
    )
    assert (done.returncode, done.stdout) == (0, "None\ncan't start 5 threads\n")
