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

from tunewright.codegen.host import NICENESS
from tunewright.tuner.arguments import LEAST_MINUTES
from tunewright.tuner.errors import message, refusals

if TYPE_CHECKING:
    from .fused_group import FusedGroup
    from .options import ProviderOptions

PARTS = 4
"""Jobs of a group with open dimensions: each is for the size that was run last when it begins."""

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

    `groups` gives those of the session, `name` that of its model. What is found is in the database, also where this is
    closed ahead.
    """

    def __init__(
        self, options: ProviderOptions, groups: Callable[[], Sequence[FusedGroup]], name: Callable[[], str]
    ) -> None:
        self._options, self._groups, self._name = options, groups, name
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed, self._starting, self._owner = False, threading.Lock(), os.getpid()

    def begin(self) -> None:
        """Begin, if that is wanted and was not done: when the session is run, as then there are sizes."""
        if self._options.tune_minutes is None or self._thread is not None or os.getpid() != self._owner:
            return
        with self._starting:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name="tunewright-tuning", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        groups = self._groups()
        minutes = (self._options.tune_minutes or 0.0) / len(groups)
        try:
            with TemporaryDirectory(prefix="tunewright-") as folder:
                paths = [self._path(group, Path(folder), number) for number, group in enumerate(groups, start=1)]
                for part in range(PARTS):
                    for group, path in zip(groups, paths, strict=True):
                        self._tune_part(group, path, minutes, part)
        except refusals() as error:
            _log.warning("groups of nodes are not tuned any more while they run: %s", message(error))

    def _path(self, group: FusedGroup, folder: Path, number: int) -> Path:
        """The file of a group."""
        if isinstance(group.model, Path):
            return group.model
        path = folder / f"{self._name()}.group{number}.onnx"
        path.write_bytes(group.model)
        return path

    def _tune_part(self, group: FusedGroup, path: Path, minutes: float, part: int) -> None:
        """Tune for a part of the group's minutes; all of them at once, where it has one size."""
        group.wait(None)
        session = group.session
        if session is None:
            return
        is_open = any(not isinstance(extent, int) for port in session.get_inputs() for extent in port.shape or ())
        if is_open and (sizes := session.sizes):
            self._tune(path, sizes[-1], max(LEAST_MINUTES, minutes / PARTS))
        elif not is_open and part == 0:
            self._tune(path, {}, max(LEAST_MINUTES, minutes))

    def _tune(self, path: Path, dims: Mapping[str, int], minutes: float) -> None:
        command = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), "tune", str(path), f"--minutes={minutes}"]
        command += [f"--dim={name}={size}" for name, size in dims.items()]
        command += [f"--precision={self._options.precision}"]
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
        _log.info("%s is tuned in the background for %.2g minutes", path.name, minutes)
        _, said = self._process.communicate()
        if not self._process.returncode:
            _log.info("%s was tuned; sessions that are opened now run on what was found", path.name)
        elif not self._is_closed:
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
