"""Origin: what a session was opened from. Light to import."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunewright.graph.numerics import Precision

from ..errors import Refused
from ..files import file_state

if TYPE_CHECKING:
    from tunewright.codegen.llvm.build import ObjectCache
    from tunewright.search_space.schedule import Schedule

    from .executable import Executable


def check_state(file: Path | bytes, state: list[int] | None) -> None:
    """Raises Refused where a file is not in this state any more, which it had when a session was opened."""
    if (now := Origin.state_of(file)) != state:
        change = "is gone" if now is None else "has changed since the session was opened; open it again"
        raise Refused(f"{str(file)!r} {change}")


@dataclass(frozen=True, slots=True)
class Origin:
    """The arguments of a session, by which its model can be opened again, with other weights.

    A weight that is also an input of the model is what the input is by default: whoever runs the model may give
    another. Hardly anybody does, and old files list all of their weights so. They are constants therefore, folded and
    packed like any; a run that is given some has a plan of its own, in which these are inputs.
    """

    model: Path | bytes
    db: str | None
    server: str | None
    lock: Path | None
    dims: Mapping[str, int]
    threads: int | None
    target: str
    precision: Precision
    state: list[int] | None  # of the model's file, when the session was opened

    @property
    def has_one_place(self) -> bool:
        """Whether schedules come from one place, as they must."""
        return (self.db, self.server, self.lock).count(None) >= 2

    @staticmethod
    def state_of(model: Path | bytes) -> list[int] | None:
        """The state of the model's file, which changes with the file."""
        return None if isinstance(model, bytes) else file_state(model)

    def check_unchanged(self) -> None:
        """Raises Refused where the model's file has changed since the session was opened."""
        check_state(self.model, self.state)

    def executable(
        self, weights: Collection[str], schedules: Mapping[str, Schedule], objects: ObjectCache | None
    ) -> Executable:
        """The model with these weights as inputs. Where a lock file pins `schedules`, other tasks run on their default.

        Raises what `open_executable` raises, and Refused where the file has changed.
        """
        from ..lookup.lockfile import read_lock
        from ..lookup.source import ScheduleSource
        from ..models.model import open_for
        from ..targets import local_target
        from .executable import executable_of_results, executable_of_schedules

        self.check_unchanged()
        if self.lock is None:
            source = ScheduleSource(self.db, self.server)
            prepared = source.prepare(self.model, self.dims, self.threads, self.target, weights, self.precision)
            return executable_of_results(prepared.model, prepared.target, prepared.results, objects)
        target = local_target(self.target, self.threads)
        dims = self.dims or read_lock(self.lock).dims
        model = open_for(target, self.model, dims, weights, self.precision)
        return executable_of_schedules(model, target, schedules, objects)
