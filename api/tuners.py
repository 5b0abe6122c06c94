"""Tuners: the tuner processes that `serve` starts beside itself, and starts again when they die.

python -m tunewright.api.tuners PARENT work ...    # such a process: it drains when its parent is gone
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunewright.tuner.interrupts import DRAINED

LOOK_S = 0.2
"""How often it is looked whether one has died."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 20.0
"""Before one is started again: longer each time, so that one that can't start does not burn the machine.

With the time that it takes to notice a lost cluster and to start another, the longest is well below a minute.
"""

SETTLED_S = 120.0
"""One that lived this long had no trouble starting: the next pause is the first one again."""

KEPT = ("job_id", "exception")
"""What the line of a tuner process's log may have that its line in the log of the service has too."""

_log = logging.getLogger("tunewright.tuners")


class Tuners:
    """So many processes of one command. A thread starts and watches them until `stop`.

    Where one has ended before it was asked to, another thread calls `ended`, which may take its time: once for several
    that end meanwhile.
    """

    def __init__(
        self,
        count: int,
        arguments: Sequence[str],
        env: Mapping[str, str],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._ended = on_end
        self._some_ended = threading.Event()
        self._places = [ProcessSlot(arguments, env, self._some_ended.set) for _ in range(count)]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tunewright-tuners")
        # Nothing waits for what it does, so it must not keep the service from ending either.
        self._telling = threading.Thread(target=self._tell, name="tunewright-tuners-ended", daemon=True)

    @property
    def pids(self) -> list[int]:
        """Process ids of the live ones."""
        return [pid for place in self._places if (pid := place.pid) is not None]

    def start(self) -> None:
        """Start all of them."""
        self._telling.start()
        self._thread.start()

    def stop(self) -> None:
        """Ask them to end, soon. From any thread, or a signal handler."""
        self._stopped.set()

    def close(self, patience_s: float) -> None:
        """Stop, wait, and kill those that take longer."""
        self.stop()
        if not self._thread.is_alive():
            return
        self._thread.join(patience_s)
        for place in self._places:
            place.kill()
        self._thread.join()

    def _watch(self) -> None:  # the system tells a process that the *thread* which started it ended: this one stays
        while not self._stopped.wait(LOOK_S if self._places else None):
            for place in self._places:
                place.look()
        for place in self._places:
            place.ask_to_end()
        for place in self._places:
            place.wait()
        self._some_ended.set()  # so that the other thread sees that this is over

    def _tell(self) -> None:
        while self._some_ended.wait() and not self._stopped.is_set():
            self._some_ended.clear()
            self._ended()


class ProcessSlot:
    """A slot for one tuner process after the other."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], on_end: Callable[[], None]) -> None:
        self._ended = on_end
        self._command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), *arguments]
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at_s = 0.0
        self._start_at_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._is_drained = False  # its process ended as people ordered

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def look(self) -> None:
        """Start a process where it is time to, and see whether it lives."""
        now_s = time.monotonic()
        if self._is_drained:
            return
        if self._process is None:
            if now_s >= self._start_at_s:
                self._begin(now_s)
            return
        code = self._process.poll()
        if code is None:
            return
        if now_s - self._started_at_s > SETTLED_S:
            self._pause_s = FIRST_PAUSE_S
        if code == DRAINED:  # whatever else ends one, SIGTERM too, has another status
            _log.info("a tuner process was drained: none takes its place", extra={"pid": self._process.pid})
            self._process, self._is_drained = None, True
            return
        _log.warning(
            "a tuner process ended", extra={"pid": self._process.pid, "code": code, "again_in_s": self._pause_s}
        )
        self._process = None
        self._start_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._ended()

    def _begin(self, now_s: float) -> None:
        # A session of its own: Ctrl-C reaches the service alone, which then asks its tuners to end.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
        )
        self._started_at_s = now_s
        threading.Thread(target=_pass_on, args=(self._process,), name="tunewright-tuner-log", daemon=True).start()

    def ask_to_end(self) -> None:
        """Have it finish the candidate in hand, give its job back, and end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once. Its lease runs out, and another process takes the job up."""
        if self._process is not None:
            self._process.kill()

    def wait(self) -> None:
        """Until it has ended."""
        if self._process is not None:
            self._process.wait()


def _pass_on(process: subprocess.Popen[bytes]) -> None:
    """Have what a tuner process says in the log of the service."""
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            text = line.decode(errors="replace").rstrip()
            level, event, more = _parse_line(text)
            _log.log(level, "%s", event, extra=more | {"pid": process.pid})


def _parse_line(text: str) -> tuple[int, str, dict[str, Any]]:
    """Level, event and fields of a JSON log line; any other line is an event by itself."""
    levels = logging.getLevelNamesMapping()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    match record:
        case {"level": str(level), "event": str(event)} if level.upper() in levels:
            return levels[level.upper()], event, {name: record[name] for name in KEPT if name in record}
        case _:
            return logging.INFO, text, {}


def _end_with(parent: int) -> None:
    """Have this process asked to end, once, when its parent has ended, however that happens.

    The system's own signal for that (PR_SET_PDEATHSIG) comes for each thread of a parent that is killed, and the second
    one already means: at once.
    """
    if sys.platform == "linux":
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            sys.exit(1)
        threading.Thread(target=_ask_when_gone, args=(descriptor,), name="tunewright-parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)


def _ask_when_gone(descriptor: int) -> None:
    select.select([descriptor], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def main(parent: str, *arguments: str) -> int:
    """The command line of a tuner process, whose end is tied to that of its parent."""
    _end_with(int(parent))
    from tunewright.tuner.cli import execute

    return execute(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
