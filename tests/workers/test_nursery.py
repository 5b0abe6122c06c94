"""Children are forked by one process, which may die, and whose environment may become old."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunewright.search_space.measurement import Status
from tunewright.workers.process import Child, ChildLimits, Failed

from ..waiting import gone

LIMITS = ChildLimits(1 << 30)


def parent_of(pid: int) -> int:
    """The process id of what forked it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


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
