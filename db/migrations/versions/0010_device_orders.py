"""What people want of devices, for processes that start later too."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    orders = op.create_table(
        "device_orders",
        sa.Column("id", ID, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("until", MOMENT, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("given_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_device_orders"),
    )
    if newest := _newest():
        op.bulk_insert(orders, newest)


def _newest() -> list[dict[str, Any]]:
    """The newest order of each device, out of the rows of tuners, where orders were among the devices."""
    newest: dict[str, tuple[str, dict[str, Any]]] = {}
    for (devices,) in op.get_bind().execute(sa.text("SELECT devices FROM tuners")):
        for entry in json.loads(devices) if isinstance(devices, str) else devices:
            if isinstance(entry, list) and len(entry) == 5 and entry[0] == "order":
                _, device, until, reason, given_at = entry
                values = {"device": device, "until": _moment(until), "reason": reason, "given_at": _moment(given_at)}
                newest[device] = max(newest.get(device, ("", {})), (given_at, values), key=lambda order: order[0])
    return [values for _, values in newest.values()]


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
