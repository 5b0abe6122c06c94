"""Calls of a child that do what a hostile upload would, if it took over the process that reads it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def write(path: str) -> None:
    Path(path).write_text("x")


def without_size_limit(call: str, **arguments: Any) -> Any:
    """The same for one that got past the limit of file sizes, which would be the first to stop it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (0, 0)
    return CALLS[call](**arguments)


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), 5).close()


def listen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))


def start() -> None:
    subprocess.run(["/bin/true"], check=True)


def spin() -> None:
    while True:
        pass


def environment() -> dict[str, str]:
    return dict(os.environ)


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text(errors="replace")


def end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def privileges() -> str:
    return next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("NoNewPrivs"))


def nest(depth: int) -> None:
    """A reply that is too deep for a parser, past the functions that write replies."""
    body = b"[" * depth + b"]" * depth
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    for descriptor in descriptors:
        if descriptor > 2 and is_reply(descriptor):
            os.write(descriptor, len(body).to_bytes(4, "big") + body)
    signal.pause()


def is_reply(descriptor: int) -> bool:
    """Whether it is a pipe that can be written."""
    import fcntl
    import stat

    try:
        mode = os.fstat(descriptor).st_mode
        return stat.S_ISFIFO(mode) and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except OSError:
        return False


def total(numbers: list[int]) -> int:
    return sum(numbers)


def large(size: int) -> str:
    return "x" * size


def read(path: str) -> str:
    return Path(path).read_text()


def make_folder() -> str:
    return tempfile.mkdtemp()


CALLS: dict[str, Callable[..., Any]] = {
    "write": write,
    "without_size_limit": without_size_limit,
    "connect": connect,
    "listen": listen,
    "start": start,
    "spin": spin,
    "environment": environment,
    "environment_of": environment_of,
    "end": end,
    "privileges": privileges,
    "nest": nest,
    "large": large,
    "read": read,
    "make_folder": make_folder,
    "allocate": lambda size_bytes: int(np.ones(size_bytes, np.uint8).size),
    "sum": total,
    "say_and_die": lambda text: (os.write(2, text.encode()), os.abort()),
}
