"""Giving a model other weights than its own. Light to import.

A weight that is also an input of the model is what the input is by default: whoever runs the model may give another.
Hardly anybody does, and old files list all of their weights so. They are constants therefore, folded and packed like
any; a run that is given some has a plan of its own, in which these are inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunewright.codegen.target import CUDA

from ..errors import Refused
from .question import file_state

if TYPE_CHECKING:
    from tunewright.codegen.build import ObjectCache
    from tunewright.search_space.schedule import Schedule

    from .starting import Started


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a session's model and schedules come from: the arguments of the session."""

    model: Path | bytes
    db: str | None
    server: str | None
    lock: Path | None
    dims: Mapping[str, int]
    threads: int | None
    target: str
    state: list[int] | None  # of the model's file, when the session was opened

    @staticmethod
    def of(
        model: Path | str | bytes,
        db: str | None,
        server: str | None,
        lock: Path | None,
        dims: Mapping[str, int],
        threads: int | None,
        target: str,
    ) -> Origin:
        """Of these arguments, which mean the same files wherever the process is later."""
        source = model if isinstance(model, bytes) else Path(model).absolute()
        lock = lock.absolute() if lock is not None else None
        return Origin(source, db, server, lock, dims, threads, target, Origin.state_of(source))

    @staticmethod
    def state_of(model: Path | bytes) -> list[int] | None:
        """What a change of the model's file shows in."""
        return None if isinstance(model, bytes) else file_state(model)

    def started(
        self, given: Collection[str], schedules: Mapping[str, Schedule], objects: ObjectCache | None
    ) -> Started:
        """The model with these weights as inputs. Where a lock file pins `schedules`, other tasks run on their default.

        Raises as `start` does, and Refused where the file has changed.
        """
        from ..lookup.lockfile import read_lock
        from ..lookup.place import Place
        from ..models.model import open_model
        from ..targets import local_target
        from .starting import start_found, start_with

        if (state := self.state_of(self.model)) != self.state:
            happened = "is gone" if state is None else "has changed since the session was opened; open it again"
            raise Refused(f"{str(self.model)!r} {happened}")
        if self.lock is None:
            place = Place(self.db, self.server)
            prepared = place.prepare(self.model, self.dims, self.threads, self.target, given)
            return start_found(prepared.model, prepared.target, prepared.found, objects)
        target = local_target(self.target, self.threads)
        dims = self.dims or read_lock(self.lock).dims
        model = open_model(self.model, dims, widen=target.kind != CUDA, given=given)
        return start_with(model, target, schedules, objects)
