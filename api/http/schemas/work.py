"""Schemas of the calls of tuner processes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from ...client.work.operations import FORM
from .base import AS_WHOLE, Answer, Digest, RequestModel

LONGEST_WAIT_S = 20.0
"""Seconds for which an answer may be held back until there are jobs."""

MOST_SEEN = 10_000
"""Targets that a tuner process may know to have queued jobs."""

FormNumber = Annotated[
    int, Field(ge=1, le=1_000_000, description="Number of the form of all calls, which versions of Tunewright share.")
]


class CallAsked(RequestModel):
    """A call of an operation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"form": FORM, "arguments": {"job_id": 7}, "write": "8f3c5d7e90a1b2c4"}]}
    )

    form: Annotated[FormNumber, AS_WHOLE]
    arguments: dict[str, Any] = Field(description="By name, in the form that the types of the method tell.")
    write: Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")] | None = Field(
        None, description="Of a write under a lease: sent again with the same one, it is done once."
    )


class CallAnswer(Answer):
    """What an operation returned."""

    result: Any = Field(description="In the form that the type of the method's result tells.")


class WaitAsked(RequestModel):
    """What a tuner process knows of the queue."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"form": FORM, "seen": [None], "timeout_s": 5.0}]})

    form: Annotated[FormNumber, AS_WHOLE]
    seen: list[Digest | None] = Field(
        max_length=MOST_SEEN, description="Keys of the targets with queued jobs; null: there are jobs for any device."
    )
    timeout_s: float = Field(ge=0, le=LONGEST_WAIT_S, description="How long the answer may be held back.")


class WaitAnswer(Answer):
    """Whether the queue is another one by now."""

    result: bool
