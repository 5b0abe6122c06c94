"""Operations: the methods of a store that tuner processes call over HTTP, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tunewright.db.catalog import Catalog
from tunewright.db.fleet import Fleet
from tunewright.db.jobs import Jobs
from tunewright.db.snapshots import Snapshots
from tunewright.db.staleness import Staleness
from tunewright.db.store import Store
from tunewright.db.trials import TrialLog
from tunewright.db.uploads import Uploads

from .call_form import CallForm

FORM = 2
"""The number of the form of all calls. It rises with every change of an operation: server and tuner are then to be of
one version."""

LEASE = "lease"
"""The argument of writes for a job. Without one nothing is stored, so that a tuner stores what is of its jobs alone."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "jobs.list": ("states", "model_sha256", "target_key", "limit"),
    "jobs.events": ("job_id", "limit", "kinds"),
    "store.hints": ("task_key", "target_key"),
    "fleet.enlist": ("tuner_id", "host", "pid", "version", "pool"),
    "fleet.report": ("tuner_id", "devices", "job_id", "draining"),
    "fleet.leave": ("tuner_id",),
    "staleness.tasks": ("target_key", "versions", "task_keys", "limit"),
}
"""The arguments of operations whose methods have more, which tuner processes don't need."""

PARTS: Mapping[str, tuple[type[Any], tuple[str, ...]]] = {
    "store": (
        Store,
        (
            "tasks",
            "target",
            "targets",
            "add_target",
            "records",
            "schedule_keys",
            "hints",
            "best_many",
            "confirmations",
            "comparisons",
            "standings",
            "example_page",
            "newest_trial",
            "record",
            "confirm",
        ),
    ),
    "jobs": (
        Jobs,
        (
            "get",
            "list",
            "orders",
            "events",
            "tried_at",
            "statuses",
            "queued_targets",
            "lease",
            "renew",
            "give_back",
            "pause_leased",
            "finish",
            "claim",
            "release_claims",
        ),
    ),
    "trials": (TrialLog, ("counts",)),
    "catalog": (Catalog, ("best", "fastest", "failures", "relatives", "definitions")),
    "fleet": (Fleet, ("enlist", "report", "leave")),
    "snapshots": (Snapshots, ("newest", "keep")),
    "staleness": (Staleness, ("tasks", "tuning_s")),
    "uploads": (Uploads, ("get", "piece")),
}
"""Part of a store -> its class, and the methods of it that are operations."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a part of a store that may be called."""

    part: str
    method: str
    form: CallForm

    @property
    def name(self) -> str:
        return f"{self.part}.{self.method}"

    @property
    def is_leased_write(self) -> bool:
        """Whether it writes for a job. Repeated with the same id it changes nothing a second time."""
        return LEASE in self.form.kinds

    def of(self, store: Store) -> Callable[..., Any]:
        """The method of a store."""
        method: Callable[..., Any] = getattr(store if self.part == "store" else getattr(store, self.part), self.method)
        return method


@cache
def operations() -> Mapping[str, Operation]:
    """The operations by name."""
    found = [
        Operation(part, method, CallForm.of(getattr(kind, method), ARGUMENTS.get(f"{part}.{method}")))
        for part, (kind, methods) in PARTS.items()
        for method in methods
    ]
    return {operation.name: operation for operation in found}
