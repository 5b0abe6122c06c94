"""BackgroundTuning: a group of nodes that is tuned while it runs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tunewright.tuner.arguments import LEAST_MINUTES
from tunewright.tuner.errors import message, refusals
from tunewright.tuner.files import as_file
from tunewright.tuner.session.compilation import NICENESS

if TYPE_CHECKING:
    from tunewright.tuner import InferenceSession

    from .options import ProviderOptions

MOST_SIZES = 4
"""Sizes of an open group that are tuned: those that were run last."""

END_S = 5.0
"""What a process is given to end when it is interrupted."""

_PROGRAM = f"import os; os.nice({NICENESS}); from tunewright.tuner.cli import main; main()"

_log = logging.getLogger("tunewright.onnxruntime")


class BackgroundTuning:
    """Tunes a group in a process of its own, which steps back behind others, and calls `found` when that has ended.

    It begins when the kernels of `session` are there. The database has what was found until this is closed.
    """

    def __init__(
        self, model: Path | bytes, options: ProviderOptions, session: InferenceSession, found: Callable[[], None]
    ) -> None:
        self._model, self._options, self._session, self._found = model, options, session, found
        self._process: subprocess.Popen[str] | None = None
        self._is_closed, self._starting, self._owner = False, threading.Lock(), os.getpid()
        self._thread = threading.Thread(target=self._work, name="tunewright-tuning", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._session.wait()
            sizes = self._session.sizes[-MOST_SIZES:] or [{}]
            with as_file(self._model) as path:
                has_ended_well = all(self._tune(path, dims, len(sizes)) for dims in sizes)
            if has_ended_well:
                self._found()
        except refusals() as error:
            _log.warning("a group of nodes is not tuned while it runs: %s", message(error))

    def _tune(self, path: Path, dims: Mapping[str, int], count: int) -> bool:
        """Tune for one of so many sizes; whether that ended as it should."""
        minutes = max(LEAST_MINUTES, (self._options.tune_minutes or 0.0) / count)
        command = [sys.executable, "-P", "-c", _PROGRAM, "tune", str(path), "--json", f"--minutes={minutes}"]
        command += [f"--dim={name}={size}" for name, size in dims.items()]
        command += [] if self._options.threads is None else [f"--threads={self._options.threads}"]
        variables = {} if self._options.db is None else {"TUNEWRIGHT_DB": self._options.db}  # may have a password
        with self._starting:
            if self._is_closed:
                return False
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
        return not self._process.returncode

    def close(self) -> None:
        """End the process. A child of a fork leaves it to its parent."""
        if os.getpid() != self._owner:
            return
        with self._starting:
            self._is_closed = True
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join()
