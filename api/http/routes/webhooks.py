"""Routes of webhooks: addresses that are told of the jobs of a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from tunewright.db.access import Key, KeyScope
from tunewright.db.errors import NotFound
from tunewright.db.webhooks import NoLastingKey, TooManyDeliveries, TooManyWebhooks

from ..access import count_as_change, needs
from ..openapi import problems
from ..paging import Cursor, Limit, Page, cut, number_of
from ..problems import Problem, ProblemKind, invalid, no_key
from ..schemas.webhooks import DeliveryShown, WebhookAsked, WebhookCreated, WebhookShown
from ..service import ServiceDep, in_thread
from ..webhook_hosts import TooManyNames, UnfitAddress, parse_url

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

Reader = Annotated[Key, needs(KeyScope.JOBS_READ)]
Writer = Annotated[Key, needs(KeyScope.JOBS_WRITE)]
CHANGES = [Depends(count_as_change)]

WebhookId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="Name of the webhook.")]


@router.post(
    "",
    status_code=201,
    summary="Create a webhook",
    responses=problems(ProblemKind.INVALID, ProblemKind.TOO_MANY_WEBHOOKS, ProblemKind.UNWRITABLE, ProblemKind.BUSY),
    dependencies=CHANGES,
)
async def create_webhook(request: WebhookAsked, answer: Response, service: ServiceDep, key: Writer) -> WebhookCreated:
    """Have an address told of the jobs that this key submits, from now on. Its secret is in this answer alone."""
    try:
        url = parse_url(request.url)
        await service.options.webhook_hosts.addresses(url)
    except TooManyNames as fault:
        raise Problem(ProblemKind.BUSY, str(fault), retry_after_s=10) from fault
    except UnfitAddress as fault:
        raise invalid("body", ["url"], str(fault)) from fault
    create = partial(service.store.webhooks.create, str(url), request.kinds, key.owner)
    try:
        webhook, secret = await in_thread(create)
    except NoLastingKey as error:  # it was good a moment ago
        raise no_key(str(error)) from error
    except TooManyWebhooks as error:
        raise Problem(ProblemKind.TOO_MANY_WEBHOOKS, str(error)) from error
    answer.headers["Location"] = f"/v1/webhooks/{webhook.id}"
    return WebhookCreated.show(webhook, secret=secret)


@router.get("", summary="List the webhooks")
def list_webhooks(service: ServiceDep, key: Reader) -> list[WebhookShown]:
    """Those of this key, the newest first."""
    return [WebhookShown.show(webhook) for webhook in service.store.webhooks.list(key.owner)]


@router.get(
    "/{webhook_id}",
    summary="Look at a webhook",
    responses=problems(ProblemKind.NO_SUCH_WEBHOOK, ProblemKind.INVALID),
)
def get_webhook(service: ServiceDep, key: Reader, webhook_id: WebhookId) -> WebhookShown:
    """A webhook of this key."""
    with of_key():
        return WebhookShown.show(service.store.webhooks.get(webhook_id, key.owner))


@router.delete(
    "/{webhook_id}",
    summary="Delete a webhook",
    responses=problems(ProblemKind.NO_SUCH_WEBHOOK, ProblemKind.INVALID, ProblemKind.UNWRITABLE),
    dependencies=CHANGES,
)
def delete_webhook(service: ServiceDep, key: Writer, webhook_id: WebhookId) -> WebhookShown:
    """Delete a webhook of this key with its deliveries: what is waiting is not sent any more."""
    with of_key():
        return WebhookShown.show(service.store.webhooks.delete(webhook_id, key.owner))


@router.post(
    "/{webhook_id}:test",
    status_code=202,
    summary="Test a webhook",
    responses=problems(
        ProblemKind.NO_SUCH_WEBHOOK, ProblemKind.TOO_MANY_DELIVERIES, ProblemKind.INVALID, ProblemKind.UNWRITABLE
    ),
    dependencies=CHANGES,
)
def test_webhook(service: ServiceDep, key: Writer, webhook_id: WebhookId) -> DeliveryShown:
    """Queue a delivery of the kind `test`, which is about no job. Its deliveries tell what comes of it."""
    with of_key():
        try:
            return DeliveryShown.of(service.store.webhooks.test(webhook_id, key.owner))
        except TooManyDeliveries as error:
            raise Problem(ProblemKind.TOO_MANY_DELIVERIES, str(error)) from error


@router.get(
    "/{webhook_id}/deliveries",
    summary="List the deliveries to a webhook",
    responses=problems(ProblemKind.NO_SUCH_WEBHOOK, ProblemKind.INVALID),
)
def list_deliveries(
    service: ServiceDep, key: Reader, webhook_id: WebhookId, cursor: Cursor = None, limit: Limit = 50
) -> Page[DeliveryShown]:
    """What a webhook of this key was told or is to be told, the newest first. The newest 1,000 are kept."""
    with of_key():
        rows = service.store.webhooks.deliveries(webhook_id, key.owner, before=number_of(cursor), limit=limit + 1)
    page, following = cut(rows, limit, lambda delivery: delivery.number)
    return Page(items=[DeliveryShown.of(delivery) for delivery in page], next=following)


@contextmanager
def of_key() -> Iterator[None]:
    """Raises Problem where the key has no such webhook: the same whether another one has it."""
    try:
        yield
    except NotFound as error:
        raise Problem(ProblemKind.NO_SUCH_WEBHOOK, "this key has no such webhook") from error
