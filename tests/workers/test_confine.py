"""A confined child: what it can't do, though everything in it tries."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunewright.search_space.measurement import Status
from tunewright.workers.sandbox.confine import confinement, environment, landlock_version
from tunewright.workers.sandbox.process import Child, ChildError, ChildLimits, RequestFailed

LIMITS = ChildLimits(memory_bytes=512 << 20, cpu_s=1, reply_bytes=1 << 20, confined=True)

needs_landlock = pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock")


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNEWRIGHT_API_KEY", "tw_planted")
        patch.setenv("TUNEWRIGHT_DB", "postgresql://user:password@host/db")
        with Child(LIMITS, calls="stranger") as process:
            process.request("sum", 10, numbers=[1])
            yield process


def test_it_serves_the_calls_of_its_module(child: Child) -> None:
    assert child.request("sum", 10, numbers=[1, 2]) == 3
    with pytest.raises(ChildError, match="KeyError: 'build'"):
        child.request("build", 10)


def test_it_reads(child: Child, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    assert child.request("read", 10, path=str(tmp_path / "file")) == "content"


def test_it_writes_no_file(child: Child, tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=r"PermissionError|File too large"):
        child.request("write", 10, path=str(tmp_path / "file"))
    (tmp_path / "there").write_text("before")
    with pytest.raises(ChildError, match=r"PermissionError|File too large"):
        child.request("write", 10, path=str(tmp_path / "there"))
    if landlock_version() >= 3:
        assert (tmp_path / "there").read_text() == "before"
    assert not (tmp_path / "file").exists() or not (tmp_path / "file").stat().st_size


@needs_landlock
def test_it_makes_no_folder_and_starts_no_program(child: Child) -> None:
    for call in ("make_folder", "start"):
        with pytest.raises(ChildError, match=r"PermissionError|No usable temporary directory"):
            child.request(call, 10)


@pytest.mark.skipif(landlock_version() < 4, reason="the kernel's Landlock knows no TCP")
def test_it_opens_no_connection(child: Child) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ChildError, match="PermissionError"):
        child.request("connect", 10, port=server.getsockname()[1])
    with pytest.raises(ChildError, match="PermissionError"):
        child.request("listen", 10)


@pytest.mark.skipif(landlock_version() < 6, reason="the kernel's Landlock knows no signals")
def test_it_signals_nobody(child: Child) -> None:
    with pytest.raises(ChildError, match="PermissionError"):
        child.request("end", 10, pid=os.getpid())


def test_it_knows_no_secret(child: Child) -> None:
    environment = child.request("environment", 10)
    assert not {name for name in environment if name.startswith(("TUNEWRIGHT", "RAY", "HOME"))}
    assert environment["PATH"] == os.environ["PATH"]


@needs_landlock
def test_it_does_not_look_into_its_parent(child: Child) -> None:
    with pytest.raises(ChildError, match="PermissionError"):
        child.request("environment_of", 10, pid=os.getpid())


@pytest.mark.slow
def test_its_processor_time_is_limited_for_each_request(child: Child) -> None:
    for _ in range(2):
        start_s = time.monotonic()
        with pytest.raises(RequestFailed, match="spin: stopped, its processor time was over") as error:
            child.request("spin", 20)
        assert error.value.status is Status.TIMEOUT
        assert time.monotonic() - start_s < 15
    assert child.request("sum", 10, numbers=[]) == 0


def test_its_memory_is_limited(child: Child) -> None:
    with pytest.raises(RequestFailed, match="allocate") as error:
        child.request("allocate", 10, size_bytes=1 << 30)
    assert error.value.status is Status.OUT_OF_MEMORY


def test_its_replies_are_limited(child: Child) -> None:
    with pytest.raises(RequestFailed, match="a message of") as error:
        child.request("large", 10, size=2 << 20)
    assert error.value.status is Status.CRASH
    with pytest.raises(RequestFailed, match="not JSON"):
        child.request("nest", 10, depth=100_000)
    assert child.request("large", 10, size=5) == "xxxxx"


def test_its_last_words_move_no_cursor(child: Child) -> None:
    with pytest.raises(RequestFailed, match="SIGABRT: \N{REPLACEMENT CHARACTER}\\[2Jgone"):
        child.request("say_and_die", 10, text="\x1b[2Jgone\n")


def test_every_child_gives_up_privileges_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", "tw_planted")
    monkeypatch.setenv("TUNEWRIGHT_DB", "postgresql://user:password@host/db")
    with Child(ChildLimits(1 << 30), calls="stranger") as child:
        assert child.request("privileges", 10).split() == ["NoNewPrivs:", "1"]
        assert not {"TUNEWRIGHT_API_KEY", "TUNEWRIGHT_DB"} & child.request("environment", 10).keys()


@pytest.mark.parametrize(
    "name",
    ["TUNEWRIGHT_API_KEY", "RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DB_PASS", "SENTRY_DSN", "apikey"],
)
def test_names_of_secrets(name: str) -> None:
    assert environment({name: "planted", "PATH": "/bin"}, confined=False) == {"PATH": "/bin"}


def test_what_is_no_secret_stays() -> None:
    plain = {"TUNEWRIGHT_HOME": "/data", "PATH": "/bin", "KEYBOARD": "us", "COMPASS": "north"}
    assert environment(plain, confined=False) == plain
    assert environment({"ANY": "redis://:secret@host"}, confined=False) == {}


def test_confinement_is_told_in_a_line() -> None:
    assert "\n" not in confinement()
    assert confinement().startswith("limits")
