"""Schemas of webhooks and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from tunewright.db.job import EventKind
from tunewright.db.webhooks import Delivery, DeliveryState

from ..webhook_hosts import LONGEST_URL
from .base import EXAMPLE_MOMENT, NOT_BLANK, Answer, RequestModel

WebhookKind = Literal["succeeded", "failed", "cancelled", "regressed"]
"""`db.webhooks.WEBHOOK_KINDS`."""

EXAMPLE_WEBHOOK = "3f0a5b1f9b1c0d2e"
EXAMPLE_URL = "https://hooks.example.org/tunewright"

KINDS = "A job that succeeded, failed or was cancelled, and `regressed`: a task was confirmed to be slower than before."


class WebhookAsked(RequestModel):
    """An address, and what to tell it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": EXAMPLE_URL, "on": ["failed", "regressed"]}]})

    url: str = Field(
        max_length=LONGEST_URL,
        pattern=NOT_BLANK,
        description="Where to: `https://`, with a host on the public Internet, unless who runs the service allows it.",
    )
    on: Annotated[list[WebhookKind], Field(min_length=1, max_length=4)] = Field(
        ["succeeded", "failed", "cancelled", "regressed"],
        description=f"{KINDS} By default all of them.",
    )

    @property
    def kinds(self) -> list[EventKind]:
        """What to tell it."""
        return [EventKind(kind) for kind in self.on]


EXAMPLE_SHOWN: JsonDict = {
    "id": EXAMPLE_WEBHOOK,
    "url": EXAMPLE_URL,
    "on": ["failed", "regressed"],
    "created_at": EXAMPLE_MOMENT,
}


EXAMPLE_CREATED: JsonDict = EXAMPLE_SHOWN | {"secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD8QIk8NRl1wM="}


class WebhookShown(Answer):
    """An address that is told of the jobs of its key."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SHOWN]})

    id: str
    url: str
    on: list[str] = Field(validation_alias="kinds", description=KINDS)
    created_at: datetime


class WebhookCreated(WebhookShown):
    """A new webhook with its secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_CREATED]})

    secret: str = Field(description="What its deliveries are signed with. It is never shown again.")


class DeliveryShown(Answer):
    """Something that a webhook is told, and what came of that so far."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": f"{EXAMPLE_WEBHOOK}-7",
                    "kind": "succeeded",
                    "job": 42,
                    "state": "waiting",
                    "attempts": 1,
                    "due_at": EXAMPLE_MOMENT,
                    "status": 503,
                    "error": "it was answered with 503",
                    "created_at": EXAMPLE_MOMENT,
                }
            ]
        }
    )

    id: str = Field(description="The header `webhook-id` of all its attempts.")
    kind: str = Field(description="As in `on`; or `test`.")
    job: int | None = Field(description="Number of the job; null: it is about none.")
    state: DeliveryState = Field(
        description="It is `waiting` for an attempt, or was `delivered`, or `given up` after the last one."
    )
    attempts: int = Field(description="How many there were, with one that is under way.")
    due_at: datetime | None = Field(description="When the next attempt is made; null: there is none.")
    status: int | None = Field(description="Status that the last attempt was answered with; null: it was not.")
    error: str = Field(description="Why the last attempt failed, in one line.")
    created_at: datetime

    @staticmethod
    def of(delivery: Delivery) -> DeliveryShown:
        """A delivery as the API shows it."""
        return DeliveryShown.show(delivery, job=delivery.data.get("job", {}).get("id"))
