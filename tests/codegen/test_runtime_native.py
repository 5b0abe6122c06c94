"""Programs on real threads. The kernels are small phases written in LLVM text."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.runtime.memory import guarded_empty
from tunewright.codegen.runtime.native import BindingSlice, Code, Program
from tunewright.codegen.runtime.pool import ThreadPool

from .phases import COUNTING, LOOP, MIXED, NEIGHBOUR, THERE_AND_BACK, artifact, integers, there_and_back

THREADS = [1, 2, 3, 4]


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
    code = Code([forward, back] * 3)
    assert len(code._library.addresses) == 2
    with ThreadPool(2) as pool, Program([(forward, [a, b]), (back, [a, b])] * 3, pool, code) as program:
        program.run()
    expected = np.zeros(64, np.int64)
    for _ in range(3):
        expected = there_and_back(expected)
    assert (a == expected).all()


def test_programs_share_code_until_it_is_closed():
    a, b = integers(), integers()
    kernels = [
        artifact(LOOP.format(symbol="f", body=NEIGHBOUR.format(source=f"%{x}", target=f"%{y}")), [("f", 64)])
        for x, y in ("ab", "ba")
    ]
    code = Code(kernels)
    with ThreadPool(2) as pool:
        first, then = (Program([(kernel, [a, b])], pool, code) for kernel in kernels)
        first.run()
        first.close()
        then.run()
        then.close()
    code.close()
    assert (a == there_and_back(np.zeros(64, np.int64))).all()


def test_scratch_is_found_or_given():
    """The second buffer is scratch: allocated by the program, or at an address of the caller's."""
    a, scratch = integers(), integers()
    kernel = artifact(THERE_AND_BACK, [("there", 64), ("back", 64)], params=(64,), scratch=(64,))
    larger = artifact(THERE_AND_BACK, [("there", 64), ("back", 64)], params=(64,), scratch=(64, 1000))
    with ThreadPool(2) as pool:
        Program([(kernel, [a]), (larger, [a]), (kernel, [a, scratch.ctypes.data])], pool).run()
    expected = np.zeros(64, np.int64)
    for _ in range(3):
        before, expected = expected, there_and_back(expected)
    assert (a == expected).all()
    assert (scratch == np.roll(before, -1) + np.arange(64)).all()


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
    parts = [BindingSlice("all", 8 * start) for start in (0, 67, 131)]  # a kernel may write anywhere
    with ThreadPool(2) as pool:
        program = Program([(kernel, [parts[0], parts[1]]), (kernel, [parts[1], parts[2]])], pool)
        for start in range(2):
            block = integers(195, value=start)
            program.run({"all": block})
            assert (block[131:] == there_and_back(integers(64, value=start))).all()
        for wrong in (integers(194), integers(195).astype(np.float64), integers(390)[::2]):
            with pytest.raises(ValueError, match="can't be"):
                program.run({"all": wrong})


def test_time_stops_early():
    counts = integers()
    with ThreadPool(2) as pool:
        program = Program([(artifact(COUNTING, [("count", 2)], (64,)), [counts])], pool)
        times_s = program.time(samples=20, repeats=5)
        assert len(times_s) == 20
        assert all(0 <= time_s < 1 for time_s in times_s)
        assert counts[0] == 100
        assert len(program.time(samples=20, deadline_s=time.monotonic())) == 1
        assert len(program.time(samples=20, deadline_s=time.monotonic() + 60)) == 20
        for samples, repeats in ((0, 1), (1, 0)):
            with pytest.raises(ValueError, match="at least one"):
                program.time(samples, repeats)


@pytest.mark.parametrize("threads", THREADS)
def test_some_calls_alone_can_be_timed(threads):
    """Also where none of them but the last has a barrier behind it: neighbours of one iteration need none."""
    arrays = [integers() for _ in range(4)]
    with ThreadPool(threads) as pool:
        calls = [(artifact(COUNTING, [("count", n), ("count", 1)], (64,)), [counts]) for n, counts in enumerate(arrays)]
        for counts in arrays:
            counts[:] = 0
        program = Program(calls, pool)
        for _ in range(50):
            assert len(program.time(2, 3, calls=range(1, 3))) == 2
            program.time(1, calls=range(3))
        program.time(1, calls=range(2, 2))
        program.run()
    for n, (counts, runs) in enumerate(zip(arrays, (50, 350, 350, 0), strict=True)):
        first = (2 if n else 1) * (runs + 1)  # by both phases, if the first has any iterations
        assert counts.tolist() == [first] + [runs + 1] * (n - 1) + [0] * (64 - max(n, 1))


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
