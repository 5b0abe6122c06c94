"""How the provider comes into a process, and into the options of a session."""

from __future__ import annotations

import atexit
import ctypes
import json
import threading
import time
from collections.abc import Iterable, Sequence
from ctypes import POINTER, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tunewright.db.store import open_store
from tunewright.graph.numerics import Precision
from tunewright.tuner.arguments import (
    check_flag,
    check_minutes,
    check_path,
    check_precision,
    check_source,
    check_threads,
    check_timeout,
)
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.lockfile import read_lock
from tunewright.tuner.lookup.source import ScheduleSource

from .compiled_group import CompiledGroup
from .fused_group import FusedGroup
from .library import connect, write_library
from .options import GIVEN_KEY, NAME, OPTIONS_KEY, ProviderOptions
from .provider import Callbacks, Factory

REGISTRATION = "tunewright"
"""The name of the library among those of the process."""

_lock = threading.Lock()
_factories: list[Factory] = []
_kept: list[Any] = []
"""What else C goes on to call: the callbacks, the library."""


def session_options(
    threads: int | None = None,
    *,
    db: str | None = None,
    server: str | None = None,
    lock: Path | str | None = None,
    precision: str = Precision.AS_GIVEN,
    background: bool = True,
    tune_minutes: float | None = None,
) -> Any:
    """Options for `onnxruntime.InferenceSession`, by which what can be of a model runs on our kernels.

    `threads` are those of our kernels and of ONNX Runtime's. With `tune_minutes` its groups of nodes
    are tuned for so long in the background, for sessions that are opened later. The other arguments are those of
    `tunewright.tuner.InferenceSession`. What else is to be set can be set in the result.

    Raises Refused for arguments that mean nothing, a file that is no lock file or one of another precision, and where
    ONNX Runtime is not there or too old; StoreError for a database that is not there, or can't be used; OSError.
    """
    check_source(db, server)
    path, minutes = check_path("lock", lock), check_minutes(tune_minutes)
    if minutes is not None and (server is not None or path is not None):
        raise Refused("tune_minutes keeps what it finds in a database, and schedules are to come from elsewhere")
    if minutes is not None and db is not None:
        with open_store(db):  # makes it, as tuning does
            pass
    ScheduleSource(db, server).check()
    precision = check_precision(precision)
    if path is not None:
        read_lock(path).check_precision(precision)
    file = None if path is None else str(path.absolute())
    is_early = check_flag("background", background)
    return options_with(ProviderOptions(check_threads(threads), db, server, file, is_early, precision, minutes))


def options_with(own: ProviderOptions) -> Any:
    """Options for a session of ONNX Runtime's that has a provider of these. Raises Refused as `session_options`."""
    devices = register()
    options = _options_type()()
    if own.threads is not None:
        options.intra_op_num_threads = own.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # our kernels need the cores
    options.add_provider_for_devices(devices, {OPTIONS_KEY: own.to_json()})
    return options


def groups() -> list[FusedGroup | CompiledGroup]:
    """The groups of nodes that are ours, of all sessions of this process."""
    return [group for factory in _factories for group in factory.groups]


def wait(timeout_s: float | None = None) -> bool:
    """Wait until no session of this process compiles kernels any more, for ever where no time is given; whether so.

    Raises Refused where `timeout_s` is no number.
    """
    timeout_s = check_timeout(timeout_s)
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    return all(group.wait(None if end_s is None else max(0.0, end_s - time.monotonic())) for group in groups())


def register() -> list[Any]:
    """Make the provider known to ONNX Runtime in this process, once; the devices for `add_provider_for_devices`.

    Raises Refused where ONNX Runtime is not there or too old.
    """
    onnxruntime = _onnxruntime()
    with _lock:
        if not _kept:
            _register(onnxruntime)
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]


@cache
def _options_type() -> Any:
    """The type of options that tell the provider which weights a session is given beside the model's file."""
    onnxruntime = _onnxruntime()

    class FileOptions(onnxruntime.SessionOptions):  # type: ignore[misc, name-defined]
        _given: tuple[str, ...] = ()

        def _note(self, names: Iterable[str]) -> None:
            self._given = (*self._given, *names)
            self.add_session_config_entry(f"ep.{NAME.lower()}.{GIVEN_KEY}", json.dumps(self._given))

        def add_initializer(self, name: str, value: Any) -> None:
            self._note([name])
            super().add_initializer(name, value)

        def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
            self._note(names)
            super().add_external_initializers(names, values)

        def add_external_initializers_from_files_in_memory(self, *arguments: Any) -> None:
            self._note(())  # they are the graph's when we see it
            super().add_external_initializers_from_files_in_memory(*arguments)

    return FileOptions


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise Refused("ONNX Runtime is not installed; pip install 'tunewright[onnxruntime]'") from error
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise Refused(
            f"ONNX Runtime {onnxruntime.__version__} loads no execution providers; 1.23 and later do: "
            "pip install --upgrade onnxruntime"
        )
    return onnxruntime


def _register(onnxruntime: Any) -> None:
    callbacks = Callbacks()

    def create(name: int, base: int, logger: int, found: int, most: int, count: int) -> int | None:
        ctypes.cast(count, POINTER(c_size_t))[0] = 0  # where the next line fails
        factory = Factory(base)
        _factories.append(factory)
        atexit.register(factory.close)
        ctypes.cast(found, POINTER(c_void_p))[0] = factory.address
        ctypes.cast(count, POINTER(c_size_t))[0] = 1
        return None

    addresses = (
        callbacks.add(c_void_p, create, *[c_void_p] * 4, c_size_t, c_void_p),
        callbacks.add(c_void_p, lambda _factory: None, c_void_p),
    )
    with TemporaryDirectory(prefix="tunewright-") as folder:
        path = Path(folder) / "libtunewright_onnxruntime.so"
        try:
            write_library(path)
            library = connect(path, *addresses)
        except OSError as error:
            raise Refused(f"the library of the provider can't be loaded from {folder}: {error}; set TMPDIR") from error
        onnxruntime.register_execution_provider_library(REGISTRATION, str(path))
    _kept.extend((callbacks, library))
