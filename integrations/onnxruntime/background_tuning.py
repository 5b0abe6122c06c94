"""BackgroundTuning: the groups of a session are tuned while it runs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tunewright.tuner.arguments import LEAST_MINUTES
from tunewright.tuner.errors import message, refusals
from tunewright.tuner.session.compilation import NICENESS

if TYPE_CHECKING:
    from .fused_group import FusedGroup
    from .options import ProviderOptions

SLICES = 4
"""Jobs, one after the other, of a group with open dimensions: each is for the size that was run last when it begins."""

END_S = 5.0
"""What a process is given to end when it is interrupted."""

_PROGRAM = f"""
import os, signal, sys
from tunewright.workers.sandbox.child import die_with
die_with(int(sys.argv.pop(1)))
os.nice({NICENESS})
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the program ignores it
from tunewright.tuner.cli import main
main()
"""

_log = logging.getLogger("tunewright.onnxruntime")


class BackgroundTuning:
    """Tunes groups one after the other, in a process that steps back behind others. Sessions opened later are faster.

    `groups` gives those of the session. What is found is in the database, also where this is closed ahead.
    """

    def __init__(self, options: ProviderOptions, groups: Callable[[], Sequence[FusedGroup]]) -> None:
        self._options, self._groups = options, groups
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed, self._starting, self._owner = False, threading.Lock(), os.getpid()

    def begin(self) -> None:
        """Begin, if that was not done: when the session is run, as then there are sizes."""
        if self._thread is not None or os.getpid() != self._owner:
            return
        with self._starting:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="tunewright-tuning", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        groups = self._groups()
        try:
            with TemporaryDirectory(prefix="tunewright-") as folder:
                for number, group in enumerate(groups, start=1):
                    model = group.model
                    path = Path(folder) / f"model.group{number}.onnx" if isinstance(model, bytes) else model
                    if isinstance(model, bytes):
                        path.write_bytes(model)
                    self._tune_group(group, path, (self._options.tune_minutes or 0.0) / len(groups))
        except refusals() as error:
            _log.warning("groups of nodes are not tuned any more while they run: %s", message(error))

    def _tune_group(self, group: FusedGroup, path: Path, minutes: float) -> None:
        group.wait(None)
        session = group.session
        if session is None:
            return
        is_open = any(not isinstance(extent, int) for port in session.get_inputs() for extent in port.shape or ())
        for _ in range(SLICES if is_open else 1):
            sizes = session.sizes if is_open else [{}]
            if sizes:
                self._tune(path, sizes[-1], max(LEAST_MINUTES, minutes / SLICES if is_open else minutes))

    def _tune(self, path: Path, dims: Mapping[str, int], minutes: float) -> None:
        command = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), "tune", str(path), f"--minutes={minutes}"]
        command += [f"--dim={name}={size}" for name, size in dims.items()]
        command += [] if self._options.threads is None else [f"--threads={self._options.threads}"]
        variables = {} if self._options.db is None else {"TUNEWRIGHT_DB": self._options.db}  # may have a password
        with self._starting:
            if self._is_closed:
                return
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the program, which ends this
            )
        _, said = self._process.communicate()
        if self._process.returncode and not self._is_closed:
            _log.warning("tuning in the background has failed: %s", said.strip().rpartition("\n")[2])

    def close(self) -> None:
        """End the process. A child of a fork leaves it to its parent."""
        if os.getpid() != self._owner:
            return
        with self._starting:
            self._is_closed = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # it gives its job back
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            self._process.kill()
