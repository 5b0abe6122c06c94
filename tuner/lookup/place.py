"""Place: where the schedules of a model come from: a database, a server, or a lock file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from tunewright.codegen.target import CUDA, Target

from ..errors import Refused
from ..models.model import Model, open_model
from ..settings import settings
from ..targets import local_target
from . import Found, look_up_in, measured_s
from .kept import Kept, on_defaults
from .lockfile import read_lock

KEPT = (
    "the last tuning job did not see this model become faster as a whole, so it keeps its defaults; "
    "tuned again on a quiet machine it may not"
)
"""What a session says of such a model."""

TIERS = "tunewright.api.client.tiers"
"""The client of a server. It is above this folder, so it is found by its name when it is needed."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model, the machine it is to run on, and what was found for it."""

    model: Model
    target: Target
    dims: Mapping[str, int]
    found: Mapping[str, Found]  # by task key, as this model uses it
    notes: tuple[str, ...] = ()  # what people should know, a line each
    unanswered: Mapping[str, str] = field(default_factory=dict)  # task key -> why the server said nothing of it
    other: Mapping[str, Found] | None = None  # what is best for the tasks, where this model keeps its defaults

    @property
    def best(self) -> Mapping[str, Found]:
        """What is best for each task, in whatever model."""
        return self.found if self.other is None else self.other

    @property
    def chosen(self) -> Model:
        """The model as it is run: with what is fastest by the times found."""
        return self.model.chosen(measured_s(self.found))


@dataclass(frozen=True, slots=True)
class Place:
    """At most one of them; the default database where none is given. Raises Refused for more."""

    db: str | None = None  # SQLAlchemy URL
    server: str | None = None  # URL
    lock: Path | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("db", "server", "lock") if getattr(self, name) is not None]
        if len(given) > 1:
            raise Refused(f"schedules come from one place, so give one of {' and '.join(given)}")

    @staticmethod
    def of_options(db: str | None = None, server: str | None = None, lock: Path | None = None) -> Place:
        """The place that options name; where there are none, the server that the environment names."""
        if db is None and server is None and lock is None:
            server = settings().server or None
        return Place(db, server, lock)

    def prepare(
        self,
        source: Path | str | bytes,
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        target_name: str = "auto",
        given: Collection[str] = (),
    ) -> Prepared:
        """Read a model and find schedules for it. A lock file also says dimensions and threads that aren't given.

        Weights of the names `given` are inputs, as in `load`.

        Raises ModelError for a model that can't be read, StoreError for a database that can't, Refused for a device
        that is not here and for a lock file that is not of this model. A server that can't be asked is no error: see
        `notes`.
        """
        lock = read_lock(self.lock) if self.lock is not None else None
        dims = dict(dims or {})
        if lock is not None:
            dims = dims or dict(lock.dims)
            threads = threads or (lock.threads if target_name != CUDA else None)
        target = local_target(target_name, threads)
        if lock is not None and lock.target.kind != target.kind:
            made = f"{str(lock.path)!r} was made for {lock.target}, this is {target}"
            raise Refused(f"{made}; its target is {CUDA if lock.target.kind == CUDA else 'cpu'}")
        model = open_model(source, dims, widen=target.kind != CUDA, given=given)
        if lock is not None:
            model = lock.chosen(model)
            found, notes = lock.found(model, target)
            return Prepared(model, target, dims, found, tuple(notes))
        tasks = [task for task, _ in model.tasks.values()]
        if self.server is None:
            found, kept = look_up_in(self.db, tasks, target)
            return _prepared(Prepared(model, target, dims, found), kept)
        client = import_module(TIERS).lookups(self.server)
        answers = client.answers(tasks, target, is_model=True)
        prepared = Prepared(model, target, dims, answers.found, tuple(client.notes), answers.unanswered)
        return _prepared(prepared, answers.kept)


def _prepared(prepared: Prepared, kept: Kept | None) -> Prepared:
    """As the model uses what was found for its tasks: on its defaults where these were kept."""
    found = None if kept is None else on_defaults(prepared.found, prepared.target, kept)
    if found is None:
        return prepared
    return replace(prepared, found=found, notes=(*prepared.notes, KEPT), other=prepared.found)


def download(place: Place, threads: int | None = None, target_name: str = "auto") -> int:
    """Keep everything that a server knows of a device of this machine; how many tasks that are.

    Raises Refused where the place is no server, there is no such device, or that fails.
    """
    if place.server is None:
        raise Refused("a snapshot is taken of a server: --server URL")
    kept: int = import_module(TIERS).lookups(place.server).download(local_target(target_name, threads))
    return kept


DEFAULT_PLACE = Place()
"""The default database."""
