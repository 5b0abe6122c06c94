"""CostModels: snapshots of what a database's trials taught, each with how well it did on tasks held out.

A model is bytes here, which nobody in `db` reads: whoever made them knows what they mean. They are handed out only if
their digest is the one that was stored beside them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

LARGEST_BYTES = 16 << 20
"""Of a model's content."""

CONTENTS = 4
"""How many models of a kind of target are there to be loaded, the newest; of older ones the content is dropped."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A cost model to be kept."""

    target_kind: str  # of the targets that it is for: "cpu", "cuda"
    features_version: str  # what its inputs mean: another model's inputs may mean something else
    content: bytes = field(repr=False)
    trials: int  # how many of this database it learned from
    newest_trial_id: int  # it learned from trials up to this id; 0: from none of this database
    metrics: Mapping[str, Any]  # JSON: what one like it reached on tasks that were left out of what it learned from
    parent_sha256: str | None = None  # of the content of the model that it stands on, in this database or not
    job_id: int | None = None  # the job that taught it

    @property
    def sha256(self) -> str:
        """Of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cost model that is kept; see `NewSnapshot`."""

    id: int  # ascends with time
    target_kind: str
    features_version: str
    made_at: datetime  # UTC
    sha256: str
    size_bytes: int  # of the content
    trials: int
    newest_trial_id: int
    metrics: dict[str, Any]
    parent_sha256: str | None
    job_id: int | None
    has_content: bool  # False: it was dropped, and the rest is history
    content: bytes = field(default=b"", repr=False)  # empty where it was not asked for


class CostModels(Protocol):
    """Snapshots of cost models. Every method may raise StoreError."""

    def keep(self, snapshot: NewSnapshot) -> Snapshot:
        """Keep a model, and drop the contents of all but the newest `CONTENTS` of its kind of target.

        One whose content is known for the kind of target stays as it was stored first, and is returned so. Raises
        ValueError for a content that is empty or larger than LARGEST_BYTES and for metrics that are no JSON, NotFound
        where there is no such job.
        """
        ...

    def newest(self, target_kind: str, features_version: str, parent_sha256: str | None = None) -> Snapshot | None:
        """The newest model with these inputs that goes on from that one and has its content, with it; None: there is
        none. One whose content is not what was stored is passed over.
        """
        ...

    def list(self, target_kind: str | None = None, limit: int = 100, before: int | None = None) -> list[Snapshot]:
        """The snapshots of a kind of target or of all, the newest first, without content; `before`: of lower ids."""
        ...
