"""ScheduleSource: a database, a server, or a lock file with the schedules of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tunewright.codegen.target import CUDA, Target
from tunewright.graph.numerics import Precision

from ..errors import Refused
from ..models.model import Model, open_for
from ..settings import settings
from ..targets import local_target
from ..text import counted
from .ladder import lookup_in_database
from .lockfile import read_lock
from .result import LookupResult, measured_times_s
from .verdict import ModelVerdict, VendorTime, default_results

KEPT_NOTE = (
    "the last tuning job did not see this model become faster as a whole, so it keeps its defaults; "
    "tuned again on a quiet machine it may not"
)
"""The note of a session whose model keeps its defaults."""

VOIDED_NOTE = "the defaults of {} were taken back since; what is best beside them is run"
"""A further one where it does not keep all of them."""

TIERS = "tunewright.api.client.tiers"
"""The client of a server. It is above this folder, so it is found by its name when it is needed."""

if TYPE_CHECKING:
    from .near_picks import NearPicks


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model, its target, and the lookup results of its tasks."""

    model: Model
    target: Target
    dims: Mapping[str, int]
    results: Mapping[str, LookupResult]  # by task key, as this model uses it
    notes: tuple[str, ...] = ()  # what people should know, a line each
    unanswered: Mapping[str, str] = field(default_factory=dict)  # task key -> why the server said nothing of it
    other: Mapping[str, LookupResult] | None = None  # what is best for the tasks, where this model keeps its defaults
    vendor: VendorTime | None = None  # the runtime that runs the model by its last job, where it is installed

    @property
    def best(self) -> Mapping[str, LookupResult]:
        """The best results of the tasks, also where this model keeps its defaults: of these with the time they have."""
        if self.other is None:
            return self.results
        kept = {key: result for key, result in self.results.items() if result.schedule == self.other[key].schedule}
        return {**self.other, **kept}

    @property
    def fastest_model(self) -> Model:
        """The model as it is run: with the fastest segments by the results."""
        return self.model.fastest(measured_times_s(self.results))


@dataclass(frozen=True, slots=True)
class ScheduleSource:
    """At most one of a database, a server and a lock file; else the default database. Raises Refused for more."""

    db: str | None = None  # SQLAlchemy URL
    server: str | None = None  # URL
    lock: Path | None = None
    near: NearPicks | None = None  # picks for the model at other sizes

    def __post_init__(self) -> None:
        names = [name for name in ("db", "server", "lock") if getattr(self, name) is not None]
        if len(names) > 1:
            raise Refused(f"schedules come from one place, so give one of {' and '.join(names)}")

    @staticmethod
    def of_options(db: str | None = None, server: str | None = None, lock: Path | None = None) -> ScheduleSource:
        """The source that options name; where there are none, the server of the environment."""
        if db is None and server is None and lock is None:
            server = settings().server or None
        return ScheduleSource(db, server, lock)

    def check(self) -> None:
        """See to it that it can be asked, where it was named.

        Raises NoDatabase, StoreError, and Refused for what is no URL of a server; a server that is down is no error.
        """
        if self.server is not None:
            import_module(TIERS).lookups(self.server)
        elif self.db is not None:
            from tunewright.db.reader import open_reader

            open_reader(self.db).close()

    def prepare(
        self,
        source: Path | str | bytes,
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        target_name: str = "auto",
        overrides: Collection[str] = (),
        precision: Precision = Precision.AS_GIVEN,
    ) -> PreparedModel:
        """Read a model and find schedules for it. A lock file also says dimensions and threads that aren't given.

        Weights named in `overrides` are inputs, as in `graph.onnx_import.load`.

        Raises ModelError for a model that can't be read, StoreError for a database that can't, Refused for a device
        that is not here and for a lock file that is not of this model or precision. A server that can't be asked is no
        error: see `notes`.
        """
        lock = read_lock(self.lock) if self.lock is not None else None
        dims = dict(dims or {})
        if lock is not None:
            dims = dims or dict(lock.dims)
            lock.check_precision(precision)
            threads = threads or (lock.threads if target_name != CUDA else None)
        target = local_target(target_name, threads)
        if lock is not None and lock.target.kind != target.kind:
            text = f"{str(lock.path)!r} was made for {lock.target}, this is {target}"
            raise Refused(f"{text}; its target is {CUDA if lock.target.kind == CUDA else 'cpu'}")
        model = open_for(target, source, dims, overrides, precision)
        if lock is not None:
            model = lock.merge_segments(model)
            results, notes = lock.results(model, target)
            pinned = PreparedModel(model, target, dims, results, tuple(notes))
            return _apply_verdict(pinned, ModelVerdict(vendor=lock.vendor if target == lock.target else None))
        tasks = [task for task, _ in model.tasks.values()]
        if self.server is None:
            results, verdict = lookup_in_database(self.db, tasks, target, self.near)
            return _apply_verdict(PreparedModel(model, target, dims, results), verdict)
        client = import_module(TIERS).lookups(self.server)
        answers = client.answers(tasks, target, is_model=True)
        prepared = PreparedModel(model, target, dims, answers.found, tuple(client.notes), answers.unanswered)
        return _apply_verdict(prepared, answers.verdict)


def _apply_verdict(prepared: PreparedModel, verdict: ModelVerdict) -> PreparedModel:
    """The prepared model with the vendor's runtime that its last job took; on its defaults, where that kept them.

    A vendor's runtime computes a model as it is given, and runs none of another precision.
    """
    vendor = verdict.vendor if prepared.model.precision is Precision.AS_GIVEN else None
    prepared, kept = replace(prepared, vendor=vendor), verdict.kept
    results = None if kept is None else default_results(prepared.results, prepared.target, kept)
    if kept is None or results is None:
        return prepared
    notes = [*prepared.notes, *([] if vendor else [KEPT_NOTE])]
    if voided := len(results) - len(kept):
        notes.append(VOIDED_NOTE.format(counted(voided, "task")))
    return replace(prepared, results=results, notes=tuple(notes), other=prepared.results)


def download(source: ScheduleSource, threads: int | None = None, target_name: str = "auto") -> int:
    """Keep all results of a server for a device of this machine; returns the number of tasks.

    Raises Refused where the source is no server, there is no such device, or the download fails.
    """
    if source.server is None:
        raise Refused("a snapshot is taken of a server: --server URL")
    count: int = import_module(TIERS).lookups(source.server).download(local_target(target_name, threads))
    return count


DEFAULT_SOURCE = ScheduleSource()
"""The default database."""
