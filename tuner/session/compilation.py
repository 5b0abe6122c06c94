"""Compilation: a model compiled in the background, in a process of its own. Light to import.

A process takes no turns from the interpreter that goes on meanwhile, its memory is gone with it, and it can be ended at
any moment. What it makes comes over as an image, which is kept on disk anyway.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.host import NICENESS, available_memory_bytes
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.graph.numerics import Precision
from tunewright.workers.sandbox.process import Child, ChildError, ChildLimits, RequestFailed

from ..errors import Refused
from .execution import CompiledModel
from .image_store import CacheEntry, ImageStore
from .origin import Origin

if TYPE_CHECKING:
    from .across_sizes import AcrossSizes
    from .executable import Executable

TIME_S = 3600.0
"""Time limit of the process."""

JOIN_S = 0.05
"""Seconds between two looks whether the thread has ended."""


class Compiled(NamedTuple):
    """A model ready to run, and what is to be told of it."""

    model: CompiledModel
    entry: CacheEntry


class Compilation(Closeable):
    """Compiles a model, from now on. Any thread may ask for the result.

    A thread waits for the process, and loads what it has kept in `images`. Where it keeps nothing, as a model that has
    nodes without a kernel, or ends in any other way, the thread compiles by `compile_here`, which takes from disk what
    the process has built: so errors are those of this process. In a fork, which has no such thread, whoever asks for
    the result compiles. The process is one of its own, unless one is given that others use before and after: one
    compilation at a time.
    """

    def __init__(
        self, origin: Origin, images: ImageStore, compile_here: Callable[[], Executable], process: Child | None = None
    ) -> None:
        self._origin, self._images, self._compile_here = origin, images, compile_here
        self._child, self._owns_child = process or compiling_process(), process is None
        self._compiled: Compiled | None = None
        self._error: BaseException | None = None
        self._over, self._is_closed = threading.Event(), False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name="tunewright-compile", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the result is there, or the error."""
        return self._over.is_set() or self._process != os.getpid()

    @property
    def has_failed(self) -> bool:
        """Whether there is an error in place of a result."""
        return self._error is not None

    def result(self, timeout_s: float | None = None) -> Compiled | None:
        """The compiled model; None where it is not there in time.

        Raises what `compile_here` raises, and Refused where this was closed before.
        """
        if self._process != os.getpid() and self._compiled is None:
            return self._here()
        if not self._over.wait(timeout_s):
            return None
        if self._error is not None:
            raise self._error.with_traceback(None)  # which would hold on to the arrays of each run that raised it
        return self._compiled

    def close(self) -> None:
        """End the process and the thread, and unload what was compiled. A child of a fork leaves both alone."""
        self._is_closed = True
        if self._process != os.getpid() or threading.current_thread() is self._thread:
            return
        while self._thread.is_alive():  # it may be about to start the process
            self._child.kill()
            self._thread.join(JOIN_S)
        if self._compiled is not None:
            self._compiled.model.close()

    def _work(self) -> None:
        try:
            self._compiled = self._from_child() or self._here()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        self._over.set()

    def _from_child(self) -> Compiled | None:
        """What the process makes; None where it keeps no image."""
        try:
            with self._child if self._owns_child else nullcontext(), _as_file(self._origin.model) as path:
                entry = CacheEntry.from_json(self._child.request("compile", TIME_S, **_plain(self._origin, path)))
        except (RequestFailed, ChildError):
            return None
        stored = self._images.get(entry.image) if entry.image else None
        if stored is None:
            return None
        pool_functions(stored.pool_code)
        return Compiled(CompiledModel(stored.image, shared_pool(entry.threads)), entry)

    def _here(self) -> Compiled:
        """What this process makes."""
        if self._is_closed:
            raise Refused("the session was closed before its model was compiled; open the model again to run it")
        executable = self._compile_here()
        return Compiled(CompiledModel(executable.image, shared_pool(executable.target.threads)), executable.entry)


def compiling_process() -> Child:
    """A process for compilations, which the first one starts."""
    return Child(ChildLimits(memory_bytes=available_memory_bytes()), calls=__name__)


@contextmanager
def _as_file(model: Path | bytes) -> Iterator[Path]:
    """The file of a model; one for a while, where there are bytes alone."""
    if isinstance(model, Path):
        yield model
        return
    with NamedTemporaryFile(prefix="tunewright-", suffix=".onnx") as file:
        file.write(model)
        file.flush()
        yield Path(file.name)


def _plain(origin: Origin, model: Path) -> dict[str, Any]:
    """The arguments of `compile_kept`. Children are started without the variables that may carry passwords."""
    return {
        "model": str(model),
        "source": [origin.db, origin.server, None if origin.lock is None else str(origin.lock)],
        "dims": dict(origin.dims),
        "threads": origin.threads,
        "target": origin.target,
        "precision": origin.precision,
        "variables": {name: text for name, text in os.environ.items() if name.startswith("TUNEWRIGHT_")},
    }


# In the child


def compile_kept(
    model: str,
    source: tuple[str | None, str | None, str | None],
    dims: Mapping[str, int],
    threads: int | None,
    target: str,
    precision: str,
    variables: Mapping[str, str],
) -> dict[str, Any]:
    """Compile a model and keep its image. Its cache entry, whose image has no name where none could be kept."""
    from ..lookup.source import ScheduleSource
    from .caches import image_store, object_cache
    from .executable import open_executable
    from .image_store import wait_for_writes

    os.nice(NICENESS - os.nice(0))  # it may be nice already
    os.environ.update(variables)
    db, server, lock = source
    lock_path = None if lock is None else Path(lock)
    executable = open_executable(
        Path(model),
        ScheduleSource(db, server, lock_path, across_sizes().picks),
        dims,
        threads,
        target,
        Precision(precision),
        object_cache(),
        image_store(),
        across_sizes(),
    )
    wait_for_writes()
    return asdict(executable.entry)


@cache
def across_sizes() -> AcrossSizes:
    """What this process, which is for one model, keeps of it from one size to the next."""
    from .across_sizes import AcrossSizes

    return AcrossSizes()


CALLS: dict[str, Callable[..., dict[str, Any]]] = {"compile": compile_kept}
