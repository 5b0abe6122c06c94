"""Programs on real threads. The kernels are small phases written in LLVM text."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tunewright.codegen.artifact import Artifact, Phase
from tunewright.codegen.dtype import DType
from tunewright.codegen.ir import Buffer
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.memory import aligned_empty, guarded_empty
from tunewright.codegen.runtime.native import Part, Program
from tunewright.codegen.runtime.pool import ThreadPool, shared_pool

THREADS = [1, 2, 3, 4]

LOOP = """
define void @{symbol}(ptr %args, i64 %begin, i64 %end) nounwind {{
entry:
  %a = load ptr, ptr %args
  %b.at = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %b.at
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
{body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""

# args[1][i] = args[0][(i + 1) % 64] + i: reads what another thread wrote in the phase before.
NEIGHBOUR = """
  %n = add i64 %i, 1
  %m = and i64 %n, 63
  %in = getelementptr i64, ptr {source}, i64 %m
  %x = load i64, ptr %in
  %y = add i64 %x, %i
  %out = getelementptr i64, ptr {target}, i64 %i
  store i64 %y, ptr %out"""

# args[0][0] = args[0][0] * 3 + 1: wrong if two run at once or in another order than the others.
ALONE = """
  %x = load i64, ptr %a
  %t = mul i64 %x, 3
  %y = add i64 %t, 1
  store i64 %y, ptr %a"""

# args[0][i] += 1
COUNT = """
  %at = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %at
  %y = add i64 %x, 1
  store i64 %y, ptr %at"""


def compiled(text: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc="pic", codemodel="small")
    code: bytes = machine.emit_object(llvm.parse_assembly(text))
    return code


def artifact(
    text: str, phases: list[tuple[str, int]], params: tuple[int, ...] = (64, 64), scratch: tuple[int, ...] = ()
) -> Artifact:
    code = compiled(text)
    return Artifact(
        object_code=code,
        sha256=hashlib.sha256(code).hexdigest(),
        phases=tuple(Phase(*phase) for phase in phases),
        params=tuple(Buffer(f"p{n}", (size,), DType.I64) for n, size in enumerate(params)),
        scratch=tuple(Buffer(f"s{n}", (size,), DType.I64) for n, size in enumerate(scratch)),
        packings={},
    )


def integers(size: int = 64, value: int = 0):
    array = aligned_empty((size,), DType.I64)
    array[:] = value
    return array


COUNTING = LOOP.format(symbol="count", body=COUNT)
THERE_AND_BACK = "".join(
    LOOP.format(symbol=symbol, body=NEIGHBOUR.format(source=source, target=target))
    for symbol, source, target in [("there", "%a", "%b"), ("back", "%b", "%a")]
)
MIXED = THERE_AND_BACK + LOOP.format(symbol="alone", body=ALONE)


def there_and_back(values):
    index = np.arange(64)
    for _ in range(2):
        values = np.roll(values, -1) + index
    return values


@pytest.mark.parametrize("threads", [*THREADS, 7])
@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 64])
def test_every_iteration_runs_once(threads, iterations):
    counts = integers()
    with (
        ThreadPool(threads) as pool,
        Program([(artifact(COUNTING, [("count", iterations)], (64,)), [counts])], pool) as p,
    ):
        for _ in range(50):
            p.run()
    assert counts.tolist() == [50] * iterations + [0] * (64 - iterations)


@pytest.mark.parametrize("threads", THREADS)
def test_a_phase_sees_what_all_threads_wrote_before(threads):
    a, b = integers(), integers()
    phases = [("there", 64), ("back", 64)] * 10
    expected = a.copy()
    with ThreadPool(threads) as pool, Program([(artifact(THERE_AND_BACK, phases), [a, b])], pool) as program:
        for _ in range(100):
            program.run()
            for _ in range(10):
                expected = there_and_back(expected)
            assert (a == expected).all()


@pytest.mark.parametrize("threads", THREADS)
def test_thousands_of_runs_in_native_code(threads):
    a, b = integers(), integers()
    expected = a.copy()
    runs = 4000
    for _ in range(runs):
        expected = there_and_back(expected)
    with ThreadPool(threads) as pool:
        program = Program([(artifact(THERE_AND_BACK, [("there", 64), ("back", 64)]), [a, b])], pool)
        assert len(program.time(samples=4, repeats=runs // 4)) == 4
    assert (a == expected).all()


@pytest.mark.parametrize("threads", THREADS)
def test_phases_of_one_iteration_keep_their_place(threads):
    a, b = integers(), integers()
    phases = [
        ("alone", 1),
        ("alone", 1),
        ("there", 64),
        ("alone", 1),
        ("back", 64),
        ("there", 64),
        ("alone", 1),
        ("alone", 1),
    ]
    expected, other = a.copy(), b.copy()
    index = np.arange(64)
    with ThreadPool(threads) as pool, Program([(artifact(MIXED, phases), [a, b])], pool) as program:
        for _ in range(300):
            program.run()
            for symbol, _ in phases:
                match symbol:
                    case "alone":
                        expected[:1] = expected[:1] * 3 + 1
                    case "there":
                        other = np.roll(expected, -1) + index
                    case "back":
                        expected = np.roll(other, -1) + index
            assert (a == expected).all()
            assert (b == other).all()


def test_a_program_without_steps_runs():
    with ThreadPool(2) as pool:
        program = Program([], pool)
        program.run()
        assert len(program.time(2)) == 2


def test_a_phase_without_iterations_is_left_out():
    counts = integers()
    with ThreadPool(2) as pool:
        Program([(artifact(COUNTING, [("count", 0), ("count", 2)], (64,)), [counts])], pool).run()
    assert counts[:3].tolist() == [1, 1, 0]


def test_calls_of_many_artifacts_with_the_same_symbols():
    """Each object has its own namespace, and equal ones are loaded once."""
    a, b = integers(), integers()
    forward = artifact(LOOP.format(symbol="f", body=NEIGHBOUR.format(source="%a", target="%b")), [("f", 64)])
    back = artifact(LOOP.format(symbol="f", body=NEIGHBOUR.format(source="%b", target="%a")), [("f", 64)])
    with ThreadPool(2) as pool, Program([(forward, [a, b]), (back, [a, b])] * 3, pool) as program:
        program.run()
        assert len(program._library.addresses) == 2
    expected = np.zeros(64, np.int64)
    for _ in range(3):
        expected = there_and_back(expected)
    assert (a == expected).all()


def test_scratch_is_found_or_given():
    """The second buffer is scratch: allocated by the program, or at an address of the caller's."""
    a, given = integers(), integers()
    kernel = artifact(THERE_AND_BACK, [("there", 64), ("back", 64)], params=(64,), scratch=(64,))
    larger = artifact(THERE_AND_BACK, [("there", 64), ("back", 64)], params=(64,), scratch=(64, 1000))
    with ThreadPool(2) as pool:
        Program([(kernel, [a]), (larger, [a]), (kernel, [a, given.ctypes.data])], pool).run()
    expected = np.zeros(64, np.int64)
    for _ in range(3):
        before, expected = expected, there_and_back(expected)
    assert (a == expected).all()
    assert (given == np.roll(before, -1) + np.arange(64)).all()


def test_operands_must_match():
    kernel = artifact(COUNTING, [("count", 2)], (64,))
    bytes_from_one_on = integers(65).view(np.uint8)[1:513].view(np.int64)
    with ThreadPool(1) as pool:
        for wrong in (integers(63), integers().astype(np.float64), bytes_from_one_on, integers(128)[::2]):
            with pytest.raises(ValueError, match="can't be an array"):
                Program([(kernel, [wrong])], pool)
        with pytest.raises(ValueError, match="0 operands for 1 params"):
            Program([(kernel, [])], pool)
        Program([(kernel, [integers().reshape(8, 8)])], pool).run()


def test_names_are_bound_for_one_run():
    kernel = artifact(THERE_AND_BACK, [("there", 64)])
    with ThreadPool(2) as pool:
        program = Program([(kernel, ["x", "y"]), (kernel, ["y", "z"])], pool)
        for start in range(3):
            x, y, z = integers(value=start), integers(), integers()
            program.run({"x": x, "y": y, "z": z})
            assert (z == there_and_back(x)).all()
        assert len(program.time(2, bindings={"x": x, "y": y, "z": z})) == 2
        for bindings in ({}, {"x": x, "y": y}, {"x": x, "y": y, "z": z, "other": x}):
            with pytest.raises(ValueError, match="the names are"):
                program.run(bindings)
        with pytest.raises(ValueError, match="can't be an array"):
            program.run({"x": x, "y": y, "z": integers(8)})
        program.run({"x": x, "y": y.ctypes.data, "z": z.ctypes.data})
        assert (z == there_and_back(x)).all()


def test_parts_of_a_name():
    kernel = artifact(THERE_AND_BACK, [("there", 64)])
    parts = [Part("all", 8 * start) for start in (0, 67, 131)]  # a kernel may write anywhere
    with ThreadPool(2) as pool:
        program = Program([(kernel, [parts[0], parts[1]]), (kernel, [parts[1], parts[2]])], pool)
        for start in range(2):
            block = integers(195, value=start)
            program.run({"all": block})
            assert (block[131:] == there_and_back(integers(64, value=start))).all()
        for wrong in (integers(194), integers(195).astype(np.float64)):
            with pytest.raises(ValueError, match="can't be in"):
                program.run({"all": wrong})


def test_parts_of_what_a_name_is_bound_to():
    kernel = artifact(COUNTING, [("count", 4)], (8,))
    with ThreadPool(2) as pool:
        program = Program([(kernel, [Part("x", offset_bytes)]) for offset_bytes in (0, 64, 64)], pool)
        x = integers(16)
        program.run({"x": x})
        assert x.tolist() == [1] * 4 + [0] * 4 + [2] * 4 + [0] * 4
        for wrong in (integers(15), integers(32)[::2], integers(32).view(np.float64)):
            with pytest.raises(ValueError, match="can't be"):
                program.run({"x": wrong})


def test_time_stops_early():
    counts = integers()
    with ThreadPool(2) as pool:
        program = Program([(artifact(COUNTING, [("count", 2)], (64,)), [counts])], pool)
        times_s = program.time(samples=20, repeats=5)
        assert len(times_s) == 20
        assert all(0 <= time_s < 1 for time_s in times_s)
        assert counts[0] == 100
        assert len(program.time(samples=20, minimum=4, limit_s=1e-12)) == 4
        assert len(program.time(samples=20, minimum=4, limit_s=10)) == 20
        assert len(program.time(samples=20, deadline_s=time.monotonic())) == 1
        assert len(program.time(samples=20, deadline_s=time.monotonic() + 60)) == 20
        for samples, repeats in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match="at least one"):
                program.time(samples, repeats)


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
    return {task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "tunewright\n"}


@pytest.fixture
def alone():
    """No other pool's workers in the process."""
    from tunewright.codegen.runtime import pool

    for shared in pool._shared.values():
        shared.close()
    pool._shared.clear()
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


@pytest.mark.usefixtures("alone")
def test_workers_leave_signals_to_python():
    counts = integers()
    with ThreadPool(2) as pool:
        Program([(artifact(COUNTING, [("count", 2)], (64,)), [counts])], pool).run()
        [task] = workers()
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        blocked = int(status["SigBlk"], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
        assert blocked >> (number - 1) & 1
    assert not blocked >> (signal.SIGSEGV - 1) & 1
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
    with ThreadPool(2, placed=False) as pool, Program([(kernel, [counts])], pool) as program:
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


def test_guards_see_a_kernel_that_writes_too_far():
    guarded = guarded_empty((64,), DType.I64)
    guarded.array[:] = 0
    kernel = artifact(COUNTING, [("count", 64)], (64,))
    beyond = artifact(COUNTING, [("count", 65)], (64,))
    with ThreadPool(2) as pool:
        Program([(kernel, [guarded.array])], pool).run()
        assert guarded.check() is None
        Program([(beyond, [guarded.array])], pool).run()
    assert "after the array, the nearest at distance 1" in (guarded.check() or "")
