"""Roles in turns: one at a time, in an order that nothing else changes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tunewright.codegen.cuda.barriers import Turns
from tunewright.codegen.ir.access import RaceError


class Relay:
    """Some roles that hand a number on: each waits until it is its own, some times."""

    def __init__(self, count: int, rounds: int) -> None:
        self.turns = Turns(count)
        self.number = 0
        self.log: list[str] = []
        self._count = count
        self._rounds = rounds

    def run(self) -> list[str]:
        self.turns.run([partial(self._play, role) for role in range(self._count)])
        return self.log

    def _play(self, role: int) -> None:
        for n in range(self._rounds):
            self.log.append(f"{role} waits")
            self.turns.wait(partial(self._is_own, n * self._count + role), "number")
            self.log.append(f"{role} goes on")
            self.number += 1
            self.turns.progress()

    def _is_own(self, number: int) -> bool:
        return self.number == number


def test_the_order_is_always_the_same():
    log = Relay(3, 4).run()
    assert all(Relay(3, 4).run() == log for _ in range(20))
    assert log[:6] == ["0 waits", "0 goes on", "0 waits", "1 waits", "1 goes on", "1 waits"]
    assert [line for line in log if "on" in line] == [f"{n % 3} goes on" for n in range(12)]


def test_a_role_goes_on_until_it_waits():
    log: list[int] = []
    turns = Turns(3)
    turns.run([partial(log.append, role) for role in range(3)])
    assert log == [0, 1, 2]


def test_one_role_alone_that_waits_for_nobody():
    turns = Turns(1)
    with pytest.raises(RaceError, match="the door: threads wait for what nobody brings"):
        turns.run([lambda: turns.wait(lambda: False, "the door")])


def test_roles_that_wait_for_each_other():
    turns = Turns(2)
    with pytest.raises(RaceError, match="threads wait for what nobody brings"):
        turns.run([lambda: turns.wait(lambda: False, "a"), lambda: turns.wait(lambda: False, "b")])


def test_a_role_that_waits_for_one_that_has_ended():
    turns = Turns(2)
    with pytest.raises(RaceError, match="a: threads wait for what nobody brings"):
        turns.run([lambda: turns.wait(lambda: False, "a"), lambda: None])


class Failure(Exception):
    pass


def fail(message: str) -> None:
    raise Failure(message)


def test_a_role_that_fails_ends_the_others():
    turns, log = Turns(3), []

    def wait() -> None:
        log.append("begins")
        try:
            turns.wait(lambda: False, "a")
        finally:
            log.append("ends")
        log.append("goes on")

    with pytest.raises(Failure, match="second"):
        turns.run([wait, partial(fail, "second"), partial(log.append, "third")])
    assert log == ["begins", "ends"]


def test_of_several_failures_the_first_is_raised():
    turns = Turns(2)

    def wait() -> None:
        try:
            turns.wait(lambda: False, "a")
        finally:
            fail("first role, second failure")

    with pytest.raises(Failure, match="second role, first failure"):
        turns.run([wait, partial(fail, "second role, first failure")])


def test_roles_have_the_error_state_of_who_runs_them():
    """As the interpreter is silent where numbers are infinite."""

    def divide() -> None:
        assert np.geterr()["divide"] == "ignore"

    with np.errstate(all="ignore"):
        Turns(2).run([divide, divide])
