"""Schemas of the fleet and of this process: targets, tuner processes, whether all is well."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.errors import Reason

from .base import Answer, Digest


class TargetShown(Answer):
    """A kind of machine."""

    key: Digest
    name: str = Field(description="For people.", examples=["cpu:znver5:2x512"])
    target: dict[str, Any] = Field(description="The hardware numbers whose digest is the key.")

    @staticmethod
    def of(target: Target) -> TargetShown:
        """A target as the API shows it."""
        return TargetShown(key=target.key, name=str(target), target=target.to_json())


class DeviceShown(Answer):
    """A processor or GPU that candidates are timed on."""

    name: str = Field(examples=["worker-3/cpu"])
    target: Digest = Field(validation_alias="target_key")
    quarantined_until: datetime | None = Field(description="It failed too often and rests until then.")
    reason: str


class WorkerShown(Answer):
    """A tuner process."""

    id: str
    host: str
    pid: int
    version: str = Field(description="Of Tunewright.")
    pool: str = Field(description="Where it measures: `local` or `ray`.")
    started_at: datetime
    seen_at: datetime
    devices: list[DeviceShown]
    job: int | None = Field(validation_alias="job_id", description="The job it is at work on.")
    draining: bool = Field(description="It was asked to end, and takes no more jobs.")


class Alive(Answer):
    """The process answers."""

    status: Literal["ok", "late"]
    loop_lag_ms: float = Field(description="How late the event loop was when it was last looked at.")


IsReady = Literal["ready", "ready, no devices"]
"""What a process says that takes requests."""


class Ready(Answer):
    """Whether requests should be sent to this process, and what there is to tune on."""

    status: Literal[IsReady, "draining", "database unavailable", "other schema", Reason]
    tuners: int | None = Field(default=None, description="Tuner processes heard of; null where that is not known.")
    devices: int | None = Field(
        default=None, description="Devices that can be tuned on now. Without one, jobs wait, and lookups are answered."
    )

    @property
    def is_ready(self) -> bool:
        """Whether they should."""
        return self.status in get_args(IsReady)
