"""ServedProcess: a process pinned to cores, called by JSON lines, that may send events before its result."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

LOG_LETTERS = 800
"""Letters of the end of the log in an error."""

CHUNK_BYTES = 1 << 16

GRACE_S = 5.0
"""Time limit for a process to end after it has closed its output."""


class ServedProcessError(Exception):
    """The process died, or sent a malformed message. The text ends with that of its log."""


class RequestTimeout(Exception):
    """A call took longer than it may; the process was killed."""


class ServedProcess:
    """Runs `argv` with the cores and this process's id behind it: a program that calls `serving.serve`.

    What it prints beside its answers goes to the file `log`. `environment` is added to this process's. It and all that
    it starts end with `close`.
    """

    def __init__(
        self, argv: Sequence[str], cores: Sequence[int], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as log_file:
            self._process = subprocess.Popen(
                [*argv, ",".join(map(str, cores)), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # so that all of its processes can be ended together
            )
        self._buffer = bytearray()

    def request(
        self, call: str, timeout_s: float, hear: Callable[[dict[str, Any]], object] | None = None, **arguments: Any
    ) -> Any:
        """The result of a call. `hear` gets each event; where it returns True, the process is killed.

        Raises RequestTimeout, if killed or after `timeout_s`, and ServedProcessError.
        """
        deadline_s = time.monotonic() + timeout_s
        self._send({"call": call, "arguments": arguments})
        while True:
            message = self._receive(deadline_s)
            if "result" in message:
                return message["result"]
            if hear is not None and hear(message["event"]) is True:
                self.close()
                raise RequestTimeout(f"{call}: stopped")

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    self.close()
                    raise RequestTimeout("its time is over")
                chunk = os.read(descriptor, CHUNK_BYTES)
                if not chunk:
                    raise self._death()
                self._buffer += chunk
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(line)
            if not isinstance(message, dict) or not message.keys() & {"event", "result"}:
                raise ValueError("neither an event nor a result")
        except ValueError as error:
            self.close()
            raise ServedProcessError(f"it sent {line[:80]!r}: {error}") from error
        return message

    def _death(self) -> ServedProcessError:
        with suppress(subprocess.TimeoutExpired):  # it may still write its traceback
            self._process.wait(GRACE_S)
        self.close()
        end = self._log.read_text(errors="replace").strip()[-LOG_LETTERS:]
        return ServedProcessError(f"it ended with code {self._process.returncode}; {self._log} ends:\n{end}")

    def close(self) -> None:
        """End the process and what it started. Closing twice is harmless."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # its children may outlive it
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
