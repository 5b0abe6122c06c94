"""Snapshot: a cost model that learned from a database's trials, with how well it predicted held-out tasks.

A model is bytes here, which only the cost model's code reads. They are returned only if their digest matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LARGEST_BYTES = 16 << 20
"""Largest content of a model."""

MAX_CONTENTS = 4
"""Newest models of a kind of target whose content stays; that of older ones is dropped."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A cost model to be stored."""

    target_kind: str  # of the targets that it is for: "cpu", "cuda"
    features_version: str  # the meaning of its inputs
    content: bytes = field(repr=False)
    trials: int  # how many of this database it learned from
    newest_trial_id: int  # it learned from trials up to this id; 0: from none of this database
    metrics: Mapping[str, Any]  # JSON: how well such a model predicts tasks that it did not learn from
    parent_sha256: str | None = None  # of the content of the model that it extends, in this database or not
    job_id: int | None = None  # the job whose trials it learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(NewSnapshot):
    """A stored cost model. Its content is empty where it was not read, or was dropped."""

    id: int  # ascends with time
    made_at: datetime  # UTC
    sha256: str  # of the content
    size_bytes: int  # of the content
    has_content: bool  # False: it was dropped, and the rest is history
