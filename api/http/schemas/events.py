"""Schemas of what happens while somebody listens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from tunewright.db.job import EventKind

from .base import EXAMPLE_MOMENT, EXAMPLE_TASK, Answer


class EventShown(Answer):
    """Something that happened to a job: the `data` of a server-sent event."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job": 42,
                    "number": 7,
                    "kind": "improved",
                    "data": {
                        "task_key": EXAMPLE_TASK,
                        "op": "Conv",
                        "best_ms": 0.81,
                        "best_interval_ms": [0.8, 0.82],
                        "noise": "",
                        "default_ms": 1.9,
                        "default_interval_ms": [1.87, 1.93],
                        "default_confirmed": False,
                        "default_noise": "",
                        "apart_noise": "",
                        "trial": 120,
                    },
                    "created_at": EXAMPLE_MOMENT,
                }
            ]
        }
    )

    job: int = Field(validation_alias="job_id")
    number: int = Field(description="1, 2, 3, ... without a gap: the event's `id`.")
    kind: EventKind = Field(description="The event's `event`.")
    data: dict[str, Any] = Field(description="What there is to say about an event of this kind.")
    created_at: datetime


class ChangeShown(Answer):
    """Something changed: the `data` of a server-sent event."""

    number: int = Field(description="Grows with each change that this process of the service heard of.", examples=[7])
