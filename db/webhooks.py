"""Webhooks: addresses that are told of jobs, and the deliveries to them.

A delivery is stored in the transaction of its event. From then on it is due, until an attempt succeeds or the last one
fails. Who makes an attempt takes it first: it becomes due again a while later, should that process die meanwhile, and
the outcome counts only where nobody has taken it since. So nothing is lost, no two processes send it at the same time,
and a receiver may get it twice.
"""

from __future__ import annotations

import base64
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, case, delete, func, select, update
from sqlalchemy.orm import Session

from .database import DatabasePart, read_session, write_session
from .errors import NotFound, StoreError
from .job import EventKind
from .schema import LOCK
from .tables import DeliveryRow, JobRow, JobTagRow, KeyRow, WebhookRow
from .translate import clean, from_row

WEBHOOK_KINDS = (EventKind.SUCCEEDED, EventKind.FAILED, EventKind.CANCELLED, EventKind.REGRESSED)
"""Events that webhooks can be told of."""

TEST = "test"
"""The kind of a delivery that is about no job."""

MOST_WEBHOOKS = 16
"""Webhooks of an owner."""

SECRET_MARK, SECRET_BYTES = "whsec_", 32
"""What a secret begins with, before its bytes in base64: libraries for Standard Webhooks take it as it is."""

PAUSES_S = (10.0, 60.0, 600.0, 3600.0, 6 * 3600.0)
"""Pauses before the attempts after the first one."""

TAKEN_S = 60.0
"""How long a delivery that was taken is left to who took it: longer than any attempt lasts."""

ATTEMPTS_OF_OWNER = 4
"""Attempts of an owner that one process has under way at once: slow receivers keep no other owner waiting."""

MOST_WAITING = 1000
"""Deliveries of a webhook that wait. What comes beyond is given up at once."""

DELIVERIES_KEPT = 1000
"""The newest of a webhook that are kept once they are over."""

OF_RESULT = ("speedup", "speedup_interval", "outcome", "default_ms", "tuned_ms")
"""What a delivery has of a job's result, where that has it."""


class TooManyWebhooks(StoreError):
    """The owner has as many webhooks as one may have."""


class TooManyDeliveries(StoreError):
    """As many deliveries wait as may."""


class NoLastingKey(StoreError):
    """The owner is no key that is valid and lasts."""


class DeliveryState(StrEnum):
    """Where a delivery stands. The last two are final."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that is told of the jobs of its owner, without its secret."""

    id: str
    url: str
    kinds: tuple[str, ...]  # of events, see `WEBHOOK_KINDS`
    owner: str  # id of the API key
    created_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class Delivery:
    """Something that a webhook is told, and what came of that so far."""

    number: int
    webhook_id: str
    kind: str  # of the event; or `TEST`
    data: Mapping[str, Any]
    created_at: datetime  # UTC
    attempts: int
    due_at: datetime | None  # UTC; of the next attempt; None: it is over
    status: int | None  # HTTP status that the last attempt was answered with
    error: str  # why that failed, one line

    @property
    def id(self) -> str:
        """Its name in all the world: receivers hear of several databases."""
        return f"{self.webhook_id}-{self.number}"

    @property
    def state(self) -> DeliveryState:
        if self.due_at is not None:
            return DeliveryState.WAITING
        return DeliveryState.DELIVERED if is_success(self.status) else DeliveryState.GIVEN_UP

    def content(self) -> dict[str, Any]:
        """What is sent, as JSON data: the same at each attempt."""
        return {"id": self.id, "kind": self.kind, "created_at": self.created_at.isoformat(), **self.data}


@dataclass(frozen=True, slots=True)
class Attempt:
    """The right to send a delivery once."""

    delivery: Delivery  # its `attempts` count this one
    url: str
    secret: str
    owner: str  # of the webhook


class Webhooks(DatabasePart):
    """Webhooks and their deliveries. Every method may raise StoreError."""

    def create(self, url: str, kinds: Collection[EventKind], owner: str) -> tuple[Webhook, str]:
        """A new webhook and its secret, which no other method returns. Raises NoLastingKey and TooManyWebhooks.

        Whether anything may be sent to the address is for the caller to know.
        """
        secret = SECRET_MARK + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        names = [kind.value for kind in WEBHOOK_KINDS if kind in kinds]
        values = {"id": secrets.token_hex(8), "url": clean(url), "secret": secret, "events": names, "owner": owner}
        return self._create(values), secret

    @write_session
    def _create(self, session: Session, values: dict[str, Any]) -> Webhook:
        row = session.get(WebhookRow, values["id"])  # where this is repeated
        if row is None:
            now = self.database.now(session)
            self._check_owner(session, values["owner"], now)
            self._check_count(session, values["owner"])
            row = WebhookRow(**values, created_at=now)
            session.add(row)
        return _webhook(row)

    def _check_owner(self, session: Session, owner: str, now: datetime) -> None:
        """Raises NoLastingKey where the webhook would not end with a key."""
        # Locked, so that the key is not revoked before this transaction ends: who revokes it finds the webhook then.
        key = session.get(KeyRow, owner, with_for_update={"read": True, "key_share": True})
        if key is None or not key.is_valid(now):
            raise NoLastingKey("the key is unknown, expired or revoked")
        if key.is_passing:  # it is forgotten when it is over
            raise NoLastingKey("webhooks are of keys, and a session that began with a link is of none")

    def _check_count(self, session: Session, owner: str) -> None:
        if not self.database.is_sqlite:  # SQLite has one writer; here those of an owner are made one after the other
            session.execute(select(func.pg_advisory_xact_lock(LOCK, func.hashtext(owner))))
        query = select(func.count()).select_from(WebhookRow).where(WebhookRow.owner == owner)
        if (session.scalar(query) or 0) >= MOST_WEBHOOKS:
            raise TooManyWebhooks(f"there are {MOST_WEBHOOKS} webhooks, as many as one may have")

    @read_session
    def list(self, session: Session, owner: str) -> list[Webhook]:
        """Those of an owner, the newest first."""
        query = select(WebhookRow).where(WebhookRow.owner == owner)
        return [_webhook(row) for row in session.scalars(query.order_by(WebhookRow.created_at.desc(), WebhookRow.id))]

    @read_session
    def get(self, session: Session, webhook_id: str, owner: str) -> Webhook:
        """One of an owner. Raises NotFound."""
        return _webhook(self._row(session, webhook_id, owner))

    @write_session
    def delete(self, session: Session, webhook_id: str, owner: str) -> Webhook:
        """Delete one of an owner with its deliveries. Raises NotFound."""
        webhook = _webhook(self._row(session, webhook_id, owner))
        delete_webhooks(session, [webhook.id])
        return webhook

    @read_session
    def deliveries(
        self, session: Session, webhook_id: str, owner: str, *, before: int | None = None, limit: int = 100
    ) -> Sequence[Delivery]:
        """Deliveries to one of an owner, the newest first: those with numbers below `before`. Raises NotFound."""
        query = select(DeliveryRow).where(DeliveryRow.webhook_id == self._row(session, webhook_id, owner).id)
        if before is not None:
            query = query.where(DeliveryRow.id < before)
        return [_delivery(row) for row in session.scalars(query.order_by(DeliveryRow.id.desc()).limit(limit))]

    @write_session
    def test(self, session: Session, webhook_id: str, owner: str) -> Delivery:
        """Queue a delivery that is about no job. Raises NotFound and TooManyDeliveries."""
        webhook = self._row(session, webhook_id, owner, lock=True)
        if _count_waiting(session, [webhook.id]).get(webhook.id, 0) >= MOST_WAITING:
            raise TooManyDeliveries(f"{MOST_WAITING:,} deliveries are {DeliveryState.WAITING}, as many as may")
        row = _new_delivery(webhook.id, TEST, {}, self.database.now(session))
        session.add(row)
        session.flush()
        return _delivery(row)

    @read_session
    def count_due(self, session: Session) -> int:
        """How many deliveries could be sent now."""
        query = select(func.count()).select_from(DeliveryRow)
        return session.scalar(query.where(DeliveryRow.due_at <= self.database.now(session))) or 0

    def take(self, limit: int, under_way: Collection[Attempt] = ()) -> Sequence[Attempt]:
        """Take deliveries that are due, of each webhook the first. Give each to `settle`.

        `under_way` is what the caller is sending: their webhooks get nothing else meanwhile, their owners at most
        `ATTEMPTS_OF_OWNER` with them, and others' deliveries are taken before theirs.
        """
        webhooks = {attempt.delivery.webhook_id for attempt in under_way}
        owners = Counter(attempt.owner for attempt in under_way)
        # Looking locks nothing.
        return self._take(limit, webhooks, owners) if self._is_any_due(webhooks, owners) else []

    @read_session
    def _is_any_due(self, session: Session, webhooks: Collection[str], owners: Mapping[str, int]) -> bool:
        return session.scalar(_first_due(self.database.now(session), webhooks, owners).limit(1)) is not None

    @write_session
    def _take(
        self, session: Session, limit: int, webhooks: Collection[str], owners: Mapping[str, int]
    ) -> Sequence[Attempt]:
        now = self.database.now(session)
        first = _first_due(now, webhooks, owners).subquery()
        oldest = DeliveryRow.due_at, DeliveryRow.id
        turn: ColumnElement[int] = func.row_number().over(partition_by=WebhookRow.owner, order_by=oldest)
        if owners:
            turn += case(owners, value=WebhookRow.owner, else_=0)
        turns = (
            select(DeliveryRow.id, turn.label("turn"))
            .join(first, first.c.id == DeliveryRow.id)
            .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
            .subquery()
        )
        query = (
            select(DeliveryRow, WebhookRow)
            .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
            .join(turns, turns.c.id == DeliveryRow.id)
            # Due still, once it is locked: another process may have taken it in between.
            .where(turns.c.turn <= ATTEMPTS_OF_OWNER, DeliveryRow.due_at <= now)
            .order_by(turns.c.turn, *oldest)
            .limit(limit)
            .with_for_update(of=DeliveryRow, skip_locked=True)
        )
        attempts = []
        for row, webhook in session.execute(query).all():
            row.attempts += 1
            row.due_at = now + timedelta(seconds=TAKEN_S)
            attempts.append(Attempt(_delivery(row), webhook.url, webhook.secret, webhook.owner))
        return attempts

    @write_session
    def settle(self, session: Session, attempt: Attempt, status: int | None, error: str = "") -> DeliveryState | None:
        """Store what came of an attempt. None where it no longer counts: others took the delivery, or it is gone."""
        row = session.get(DeliveryRow, attempt.delivery.number, with_for_update=True)
        if row is None or row.attempts != attempt.delivery.attempts or row.due_at is None:
            return None
        row.status, row.error = status, clean(" ".join(error.split()))
        if is_success(status) or row.attempts > len(PAUSES_S):
            row.due_at = None
            session.flush()
            _forget_old(session, row.webhook_id)
        else:
            row.due_at = self.database.now(session) + timedelta(seconds=PAUSES_S[row.attempts - 1])
        return _delivery(row).state

    def _row(self, session: Session, webhook_id: str, owner: str, lock: bool = False) -> WebhookRow:
        query = select(WebhookRow).where(WebhookRow.id == clean(webhook_id), WebhookRow.owner == owner)
        row = session.scalar(query.with_for_update(read=True, key_share=True) if lock else query)
        if row is None:
            raise NotFound(f"{self.database}: there is no webhook {webhook_id} of this owner")
        return row


def is_success(status: int | None) -> bool:
    """Whether a delivery that was answered so has arrived."""
    return status is not None and 200 <= status < 300


def _first_due(now: datetime, webhooks: Collection[str], owners: Mapping[str, int]) -> Select[int]:
    """The first delivery that is due of each webhook but these, of owners that have not as many attempts as one may."""
    full = [owner for owner, count in owners.items() if count >= ATTEMPTS_OF_OWNER]
    return (
        select(func.min(DeliveryRow.id).label("id"))
        .join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        .where(DeliveryRow.due_at <= now, DeliveryRow.webhook_id.not_in(webhooks), WebhookRow.owner.not_in(full))
        .group_by(DeliveryRow.webhook_id)
    )


def queue_deliveries(session: Session, job: JobRow, events: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Store the deliveries of new events of a job, given as the columns of EventRows, to the webhooks of its owner."""
    events = [event for event in events if event["kind"] in WEBHOOK_KINDS]
    if not events or not job.owner:
        return
    # Locked, so that none of them is deleted before this transaction ends.
    query = select(WebhookRow).where(WebhookRow.owner == job.owner).with_for_update(read=True, key_share=True)
    webhooks = session.scalars(query).all()
    if not webhooks:
        return
    waiting = _count_waiting(session, [webhook.id for webhook in webhooks])
    tags = session.scalars(select(JobTagRow.tag).where(JobTagRow.job_id == job.id).order_by(JobTagRow.tag)).all()
    for event in events:
        data = {"job": _job_data(job, tags), "event": _event_data(event)}
        for webhook in webhooks:
            if event["kind"] not in webhook.events:
                continue
            row = _new_delivery(webhook.id, event["kind"], data, now)
            session.add(row)
            if waiting[webhook.id] < MOST_WAITING:
                waiting[webhook.id] += 1
            else:
                row.due_at, row.error = None, f"{MOST_WAITING:,} others were {DeliveryState.WAITING}"
                session.flush()
                _forget_old(session, webhook.id)


def _count_waiting(session: Session, ids: Collection[str]) -> Counter[str]:
    """How many deliveries wait by webhook. Others may add some at the same time: the bound may be passed by a few."""
    is_waiting = DeliveryRow.webhook_id.in_(ids), DeliveryRow.due_at.is_not(None)
    query = select(DeliveryRow.webhook_id, func.count()).where(*is_waiting).group_by(DeliveryRow.webhook_id)
    return Counter(dict(session.execute(query).all()))


def give_up_waiting(session: Session, error: str) -> None:
    """Give up all deliveries that wait."""
    is_waiting = DeliveryRow.due_at.is_not(None)
    session.execute(update(DeliveryRow).where(is_waiting).values(due_at=None, error=error))


def delete_webhooks(session: Session, ids: Collection[str]) -> None:
    """Delete webhooks with their deliveries."""
    # Locked first: a transaction that adds a delivery is waited for, and one that is about to finds them gone.
    session.execute(select(WebhookRow.id).where(WebhookRow.id.in_(ids)).order_by(WebhookRow.id).with_for_update())
    session.execute(delete(DeliveryRow).where(DeliveryRow.webhook_id.in_(ids)))
    session.execute(delete(WebhookRow).where(WebhookRow.id.in_(ids)))


def _job_data(job: JobRow, tags: Sequence[str]) -> dict[str, Any]:
    """What a delivery tells of its job."""
    return {
        "id": job.id,
        "label": job.label,
        "state": job.state,
        "model": job.model_sha256,
        "target": job.target_key or "",
        "tags": list(tags),
    }


def _event_data(event: Mapping[str, Any]) -> dict[str, Any]:
    """What a delivery tells of its event: of a result, which may be large, only what it came to."""
    data = event["data"]
    if event["kind"] == EventKind.SUCCEEDED:
        data = {name: data[name] for name in OF_RESULT if name in data}
    return {"number": event["number"], "data": data}


def _new_delivery(webhook_id: str, kind: str, data: Mapping[str, Any], now: datetime) -> DeliveryRow:
    return DeliveryRow(
        webhook_id=webhook_id, kind=kind, data=dict(data), created_at=now, attempts=0, due_at=now, status=None, error=""
    )


def _forget_old(session: Session, webhook_id: str) -> None:
    """Delete what is over of a webhook, but for the newest."""
    newest = select(DeliveryRow.id).where(DeliveryRow.webhook_id == webhook_id).order_by(DeliveryRow.id.desc())
    last = session.scalar(newest.offset(DELIVERIES_KEPT).limit(1))
    if last is not None:
        is_old = DeliveryRow.webhook_id == webhook_id, DeliveryRow.id <= last, DeliveryRow.due_at.is_(None)
        # Those that another transaction is about to forget are left to it: it may lock them in another order.
        old = select(DeliveryRow.id).where(*is_old).with_for_update(skip_locked=True)
        session.execute(delete(DeliveryRow).where(DeliveryRow.id.in_(old)))


def _webhook(row: WebhookRow) -> Webhook:
    return from_row(Webhook, row, kinds=tuple(row.events))


def _delivery(row: DeliveryRow) -> Delivery:
    return from_row(Delivery, row, number=row.id)
