"""Branches, loops and copies between the kernels of programs, on one thread and several."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.runtime.control import ENDLESS, RING, Control, ControlKind, Move, ProgramStop
from tunewright.codegen.runtime.memory import aligned_empty
from tunewright.codegen.runtime.native import BindingSlice, MovingOperand, Operand, Program
from tunewright.codegen.runtime.pool import ThreadPool

from .phases import COUNTING, LOOP, artifact, integers

THREADS = pytest.mark.parametrize("threads", [1, 2, 3])

# args[0][i] = args[1][i] + 1
NEXT = """
  %in = getelementptr i64, ptr %b, i64 %i
  %x = load i64, ptr %in
  %y = add i64 %x, 1
  %out = getelementptr i64, ptr %a, i64 %i
  store i64 %y, ptr %out"""

# args[0][i] = args[1][i] > 0, as bytes
LEFT = """
  %in = getelementptr i64, ptr %b, i64 %i
  %x = load i64, ptr %in
  %y = icmp sgt i64 %x, 0
  %z = zext i1 %y to i8
  %out = getelementptr i8, ptr %a, i64 %i
  store i8 %z, ptr %out"""

# args[0][i] -= 1, args[1] unused
LESS = """
  %at = getelementptr i64, ptr %a, i64 %i
  %x = load i64, ptr %at
  %y = sub i64 %x, 1
  store i64 %y, ptr %at"""


def words() -> Any:
    return aligned_empty((4,), DType.I64)


def byte(value: bool) -> Any:
    return np.array([value, *[1] * 7], np.uint8).view(np.int64)


def at(array: Any) -> int:
    address: int = array.ctypes.data
    return address


def count(array: Any, iterations: int = 64) -> Any:
    return artifact(COUNTING, [("count", iterations)], (64,)), [array]


def step(kind: ControlKind, *operands: Operand | None, loop: int = 0, size: int = 0) -> Control[Operand]:
    return Control(kind, operands, loop, size)


def run(steps: Sequence[Any], threads: int, runs: int = 3) -> None:
    with ThreadPool(threads) as pool, Program(steps, pool) as program:
        for _ in range(runs):
            program.run()
        assert len(program.time(2, 5)) == 2


@THREADS
@pytest.mark.parametrize("value", [False, True])
def test_a_branch(threads: int, value: bool) -> None:
    condition, a, b, c = byte(value), np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(64, np.int64)
    steps = [
        step(ControlKind.IF, at(condition)),
        count(a),
        step(ControlKind.ELSE),
        count(b, 1),
        step(ControlKind.END_IF),
        count(c),
    ]
    run(steps, threads)
    assert a.tolist() == [13 * value] * 64
    assert b[0] == 13 * (not value)
    assert c.tolist() == [13] * 64


@THREADS
def test_a_stop_ends_a_run(threads: int) -> None:
    """Each run anew, and whatever loops it is in."""
    condition, own, a, b = byte(True), words(), np.zeros(64, np.int64), np.zeros(64, np.int64)
    steps = [
        step(ControlKind.LOOP, at(own), None, None, size=3),
        count(a),
        step(ControlKind.IF, at(condition)),
        Control(ControlKind.STOP, note="a reason"),
        step(ControlKind.ELSE),
        step(ControlKind.IF, at(condition)),
        Control(ControlKind.STOP, note="another"),
        step(ControlKind.END_IF),
        step(ControlKind.END_IF),
        step(ControlKind.END_LOOP, None),
        count(b),
    ]
    with ThreadPool(threads) as pool, Program(steps, pool) as program:
        for runs in range(1, 3):
            with pytest.raises(ProgramStop, match="a reason"):
                program.run()
            assert (a.tolist(), b.tolist()) == ([runs] * 64, [0] * 64)
        assert len(program.time(1)) == 1
        condition[:] = 0
        program.run()
    assert (a.tolist(), b.tolist()) == ([6] * 64, [1] * 64)


@THREADS
@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_a_loop_counts(threads: int, trips: int) -> None:
    a, own, limit = np.zeros(64, np.int64), words(), np.array([trips])
    for given, size in ((at(limit), ENDLESS), (None, trips)):
        a[:] = 0
        loop = [step(ControlKind.LOOP, at(own), given, None, size=size), count(a), count(a, 1)]
        run([*loop, step(ControlKind.END_LOOP, None)], threads)
        assert a.tolist() == [26 * trips] + [13 * trips] * 63
        assert own[0] == trips


@THREADS
@pytest.mark.parametrize("trips", [0, 5])
def test_a_loop_without_steps(threads: int, trips: int) -> None:
    own, a = words(), np.zeros(64, np.int64)
    loop = [step(ControlKind.LOOP, at(own), None, None, size=trips), step(ControlKind.END_LOOP, None)]
    run([count(a), *loop, count(a)], threads)
    assert own[0] == trips
    assert a.tolist() == [26] * 64


@THREADS
def test_a_condition_ends_a_loop(threads: int) -> None:
    left, given, condition, own, rounds = np.array([6] * 64), np.array([6] * 64), byte(True), words(), np.zeros(64, int)
    is_left = artifact(LOOP.format(symbol="left", body=LEFT), [("left", 1)], (1, 64))
    less = artifact(LOOP.format(symbol="less", body=LESS), [("less", 64)])
    steps = [
        step(ControlKind.COPY, at(left), at(given), size=left.nbytes),
        step(ControlKind.LOOP, at(own), None, at(condition), size=ENDLESS),
        (less, [left, left]),
        (is_left, [at(condition), left]),
        count(rounds),
        step(ControlKind.END_LOOP, at(condition)),
    ]
    with ThreadPool(threads) as pool, Program(steps, pool) as program:
        program.run()
        assert rounds.tolist() == [6] * 64
        assert not condition.view(np.uint8)[0]
        program.run()  # the condition is false from the start
        assert rounds.tolist() == [6] * 64
        assert left.tolist() == [6] * 64
        assert own[0] == 0


@THREADS
def test_a_state_changes_between_two_buffers(threads: int) -> None:
    ring, own, initial, result = np.zeros(128, np.int64), words(), np.arange(64), np.zeros(64, np.int64)
    rows = np.zeros((5, 64), np.int64)
    follow = artifact(LOOP.format(symbol="f", body=NEXT), [("f", 64)])
    here, there = (MovingOperand(at(ring), (Move(3, 512, RING, phase),)) for phase in (0, 1))
    steps = [
        step(ControlKind.COPY, at(ring), at(initial), size=512),
        step(ControlKind.LOOP, at(own), None, None, loop=3, size=5),
        (follow, [there, here]),
        step(ControlKind.COPY, MovingOperand(at(rows) + 4 * 512, (Move(3, -512),)), there, size=512),
        step(ControlKind.END_LOOP, None, loop=3),
        step(ControlKind.COPY, at(result), here, size=512),
    ]
    run(steps, threads)
    assert (result == np.arange(64) + 5).all()
    assert (rows == [np.arange(64) + n for n in (5, 4, 3, 2, 1)]).all()


@THREADS
def test_loops_in_loops_move_what_is_bound(threads: int) -> None:
    """Element [i, j] of what a run binds, where the inner loop goes backwards."""
    outer, inner, target = words(), words(), np.zeros((3, 4, 64), np.int64)
    follow = artifact(LOOP.format(symbol="f", body=NEXT), [("f", 64)])
    source = MovingOperand(BindingSlice("x", 3 * 512), (Move(0, 4 * 512), Move(1, -512)))
    own = MovingOperand(at(target), (Move(0, 4 * 512), Move(1, 512)))
    steps: list[Any] = [
        step(ControlKind.LOOP, at(outer), None, None, loop=0, size=3),
        step(ControlKind.LOOP, at(inner), at(outer), None, loop=1, size=ENDLESS),
        (follow, [own, source]),
        step(ControlKind.END_LOOP, None, loop=1),
        step(ControlKind.LOOP, at(inner), None, None, loop=1, size=4),
        (follow, [own, source]),
        step(ControlKind.END_LOOP, None, loop=1),
        step(ControlKind.END_LOOP, None, loop=0),
    ]
    with ThreadPool(threads) as pool, Program(steps, pool) as program:
        for seed in range(3):
            x = np.random.default_rng(seed).integers(0, 99, (3, 4, 64))
            program.run({"x": at(x)})
            assert (target == x[:, ::-1] + 1).all()


@THREADS
@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 1_000_001])
def test_a_copy(threads: int, size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size + 1, np.uint8)
    to = np.zeros(size + 1, np.uint8)
    run([step(ControlKind.COPY, at(to), at(source), size=size), count(integers())], threads)
    assert (to[:-1] == source[:-1]).all()
    assert to[-1] == 0


LONG = 10**11
"""Iterations that take minutes."""


@contextmanager
def interrupt_when(is_due: Callable[[], bool]) -> Iterator[None]:
    """A signal as Ctrl-C sends it, once something is so."""

    def interrupt() -> None:
        while not is_due():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@THREADS
def test_an_interrupt_ends_a_loop(threads: int) -> None:
    a, outer, inner, limit = np.zeros(64, np.int64), words(), words(), np.array([LONG])
    loops = [
        step(ControlKind.LOOP, at(outer), at(limit), None, loop=0, size=ENDLESS),
        step(ControlKind.LOOP, at(inner), at(limit), None, loop=1, size=ENDLESS),
        count(a),
        *(step(ControlKind.END_LOOP, None, loop=number) for number in (1, 0)),
    ]
    with ThreadPool(threads) as pool, Program(loops, pool) as program:
        for _ in range(2):
            a[:] = 0
            with interrupt_when(lambda: a[0] > 50), pytest.raises(KeyboardInterrupt):
                program.run()
            assert outer[0] == 1
        a[:], limit[0] = 0, 3
        program.run()
        assert a.tolist() == [9] * 64
        assert len(program.time(2)) == 2
        assert a.tolist() == [27] * 64


@THREADS
def test_an_interrupt_comes_to_the_handler_of_the_process(threads: int) -> None:
    a, own = np.zeros(64, np.int64), words()
    loop = [step(ControlKind.LOOP, at(own), None, None, size=LONG), count(a), step(ControlKind.END_LOOP, None)]
    heard: list[int] = []
    with ThreadPool(threads) as pool, Program(loop, pool) as program:
        before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
        try:
            with interrupt_when(lambda: a[0] > 0), pytest.raises(KeyboardInterrupt):
                program.run()
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT] * 2


def test_a_process_that_ignores_interrupts_is_not_interrupted() -> None:
    a, own = np.zeros(64, np.int64), words()
    loop = [step(ControlKind.LOOP, at(own), None, None, size=100_000), count(a), step(ControlKind.END_LOOP, None)]
    with ThreadPool(1) as pool, Program(loop, pool) as program:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with interrupt_when(lambda: a[0] > 0):
                program.run()
        finally:
            signal.signal(signal.SIGINT, before)
    assert a.tolist() == [100_000] * 64


def test_other_threads_are_not_interrupted() -> None:
    a, own = np.zeros(64, np.int64), words()
    loop = [step(ControlKind.LOOP, at(own), None, None, size=100_000), count(a), step(ControlKind.END_LOOP, None)]
    with ThreadPool(1) as pool, Program(loop, pool) as program:
        thread = threading.Thread(target=program.run)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        thread.join()
    assert a.tolist() == [100_000] * 64


@pytest.mark.parametrize(
    "kinds", [["if"], ["end if"], ["else"], ["loop"], ["end loop"], ["if", "end loop"]], ids="-".join
)
def test_blocks_that_do_not_nest(kinds: list[str]) -> None:
    own = words()
    operands = {"if": (at(own),), "loop": (at(own), None, None), "end loop": (None,)}
    steps = [step(ControlKind(kind), *operands.get(kind, ())) for kind in kinds]
    with ThreadPool(1) as pool, pytest.raises(ValueError, match=r"block|loop"):
        Program(steps, pool)


# Routines, whose number of results only a run tells


@THREADS
@pytest.mark.parametrize("size", [0, 1, 7, 64, 1009])
def test_places_of_what_is_true(threads: int, size: int) -> None:
    flags = np.random.default_rng(size).random(size) < 0.4
    places, number = np.full(size + 1, -1), np.zeros(1, np.int64)
    routine: Control[Operand] = Control(
        ControlKind.ROUTINE, (at(flags), at(places), at(number)), size=1, note="tw_find_true", numbers=(size,)
    )
    run([routine], threads)
    found = np.flatnonzero(flags)
    assert number[0] == len(found)
    assert places.tolist() == [*found.tolist(), *[0] * (size - len(found)), -1]


@THREADS
@pytest.mark.parametrize("is_largest", [False, True])
@pytest.mark.parametrize(("count", "most"), [(1, 1), (7, 3), (9, 9), (64, 5), (1009, 100), (1009, 1009)])
def test_places_of_the_largest(threads: int, is_largest: bool, count: int, most: int) -> None:
    """Equal ones in their order, NaN before all numbers or behind them, and nothing beyond what is wanted."""
    rng = np.random.default_rng(count)
    rows = rng.integers(-30, 30, (3, count)).astype(np.float32)
    rows[0] = np.sort(rows[0])
    rows[1, rng.random(count) < 0.3] = np.nan
    rows[2, rng.random(count) < 0.3] = -0.0
    order = np.where(np.isnan(rows), np.inf, rows) * (-1 if is_largest else 1)
    expected = np.argsort(order, axis=1, kind="stable")
    for wanted in {0, 1, most - 1, most, most + 5}:
        places, number = np.full(3 * most + 1, -1), np.array([wanted])
        routine: Control[Operand] = Control(
            ControlKind.ROUTINE,
            (at(rows), at(number), at(places)),
            size=3,
            note="tw_find_largest",
            numbers=(count, most, int(is_largest)),
        )
        run([routine], threads)
        found = min(wanted, most)
        assert places[-1] == -1
        assert np.array_equal(places[:-1].reshape(3, most)[:, :found], expected[:, :found])
        assert not places[:-1].reshape(3, most)[:, found:].any()


@THREADS
def test_boxes_by_score_each_beside_those_before(threads: int) -> None:
    """Boxes of one row along a line: of neighbours that overlap the better one is left."""
    left = np.arange(13, dtype=np.float32)
    corners = np.stack([np.zeros(13), left, np.ones(13), left + 2], -1).astype(np.float32)
    scores = np.random.default_rng(3).permuted(np.tile(np.arange(13, dtype=np.float32), (2, 1)), axis=1)
    overlap, least, wanted = np.array([0.2], np.float32), np.array([1.5], np.float32), np.array([5])
    places, taken, heap = np.full((2, 6), -1), np.ones((2, 6), bool), np.zeros((2, 13), np.int64)
    operands = tuple(map(at, (corners, scores, overlap, least, wanted, places, taken, heap)))
    routine: Control[Operand] = Control(
        ControlKind.ROUTINE, operands, size=2, note="tw_suppress_boxes", numbers=(13, 2, 6)
    )
    run([routine], threads)
    for row in range(2):
        expected: list[int] = []
        for place in np.argsort(-scores[row]).tolist():
            if scores[row, place] > 1.5 and all(abs(place - other) > 1 for other in expected) and len(expected) < 5:
                expected.append(place)
        assert places[row].tolist() == [*expected, *[0] * (6 - len(expected))]
        assert taken[row].tolist() == [place < len(expected) for place in range(6)]


@THREADS
@pytest.mark.parametrize("is_ascending", [False, True])
@pytest.mark.parametrize(("items", "each"), [(0, 1), (1, 1), (7, 1), (64, 2), (301, 3), (1009, 1)])
def test_what_is_different(threads: int, is_ascending: bool, items: int, each: int) -> None:
    """Rows of numbers, the last two of which are not looked at."""
    rows = np.random.default_rng(items).integers(-3, 4, (items + 2, each)) << 40
    values, first, rank, counts = np.unique(rows[:items], True, True, True, axis=0)
    order = np.arange(len(first)) if is_ascending else np.argsort(first)
    places, ranks, times, memory = (np.full(items + 2, -1) for _ in range(4))
    number, size, keys = np.array([-1]), np.array([items]), np.zeros_like(rows)
    operands = tuple(map(at, (rows, size, places, number, ranks, times, keys, memory)))
    routine: Control[Operand] = Control(
        ControlKind.ROUTINE, operands, size=1, note="tw_find_unique", numbers=(items + 2, each, 0, int(is_ascending))
    )
    run([routine], threads)
    padding = [0] * (items + 2 - len(values))
    assert number[0] == len(values)
    assert places.tolist() == [*first[order].tolist(), *padding]
    assert ranks.tolist() == [*np.argsort(order)[rank.reshape(-1)].tolist(), 0, 0]
    assert times.tolist() == [*counts[order].tolist(), *padding]


# Rows that are written


@THREADS
@pytest.mark.parametrize("width", [1, 4, 8, 12, 100])
def test_rows_in_the_places_of_others(threads: int, width: int) -> None:
    """The last one stays; what is for no place is not written, nor is anything beside the rows."""
    rng = np.random.default_rng(width)
    places, sources = rng.integers(-3, 40, 200), rng.integers(0, 256, (200, width)).astype(np.uint8)
    rows = rng.integers(0, 256, (37 + 2, width)).astype(np.uint8)
    expected = rows.copy()
    for place, source in zip(places, sources, strict=True):
        if 0 <= place < 37:
            expected[1 + place] = source
    part = 16
    routine: Control[Operand] = Control(
        ControlKind.ROUTINE,
        (at(places), at(sources), at(rows[1:])),
        size=-(-width // part),
        note="tw_write_rows",
        numbers=(200, 37, width, part),
    )
    run([routine], threads)
    assert np.array_equal(rows, expected)


# Routines, whose number of rounds only a run tells


@THREADS
@pytest.mark.parametrize("classes", [2, 3, 11])
def test_probabilities_of_pairs(threads: int, classes: int) -> None:
    """What all pairs agree on, or else what has errors that are alike. NaN leaves classes as likely as others."""
    rng = np.random.default_rng(classes)
    own = rng.random((37, classes)) + 0.01
    wins = own[:, :, None] / (own[:, :, None] + own[:, None, :])
    wins[:20] = rng.uniform(1e-7, 1, (20, classes, classes))
    wins[3] = np.nan
    upper = np.triu(wins, 1)
    wins = (upper + np.tril(1 - np.swapaxes(upper, 1, 2), -1)).astype(np.float32)
    turned = np.swapaxes(wins, 1, 2)
    q = np.where(np.eye(classes) > 0, (turned * turned).sum(2, keepdims=True), -turned * wins).astype(np.float32)
    results = np.full((2, 37, classes), np.nan, np.float32)
    routine: Control[Operand] = Control(
        ControlKind.ROUTINE, (at(q), at(results)), size=37, note="tw_couple_pairs", numbers=(37, classes)
    )
    run([routine], threads)
    np.testing.assert_allclose(results[0, 20:], own[20:] / own[20:].sum(1, keepdims=True), atol=0.01)
    np.testing.assert_allclose(results[0].sum(1), 1, rtol=1e-5)
    assert (results[0, 3] == np.float32(1 / classes)).all()
    errors = np.einsum("rij,rj->ri", q, results[0])
    errors -= (errors * results[0]).sum(1, keepdims=True)
    assert np.abs(np.delete(errors, 3, 0)).max() < 0.005 / classes + 1e-6
