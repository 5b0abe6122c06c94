"""Schemas of the fleet and of this process: targets, tuner processes, whether all is well."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, StringConstraints

from tunewright.codegen.target import Target
from tunewright.db.errors import Reason
from tunewright.db.fleet import LONGEST_REASON, MOST_REST_S, TunerWish

from .base import NOT_BLANK, Answer, Digest, RequestModel

DeviceName = Annotated[
    str,
    StringConstraints(max_length=300, pattern=NOT_BLANK),
    Field(description="Its name, as `GET /v1/workers` lists it."),
]


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
    wish: TunerWish | None = Field(description="What it was asked for; it hears of that with its next report.")


class RestAsked(RequestModel):
    """A device that is to be left alone for a while."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"device": "worker-3/cpu", "minutes": 60, "reason": "its fan is loud"}]}
    )

    device: DeviceName
    minutes: float = Field(ge=1, le=MOST_REST_S / 60, description="How long; a week at most.")
    reason: str = Field("", max_length=LONGEST_REASON, description="For people.")


class DeviceAsked(RequestModel):
    """A device that may be used again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"device": "worker-3/cpu"}]})

    device: DeviceName


class RestOrdered(Answer):
    """What was ordered of a device."""

    device: str
    tuners: list[str] = Field(description="Ids of the tuner processes that have it, and hear of it when they report.")


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
