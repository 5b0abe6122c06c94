"""The log of other compilers: values by namespace, key and environment; keys of the API for some namespaces alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(16)
MOMENT = sa.DateTime(timezone=True)
LOCAL = "local key in "


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("namespaces", sa.JSON(), nullable=True))
    _let_local_keys_in()
    op.create_table(
        "log_namespaces",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_namespaces"),
        sa.UniqueConstraint("name", name="uq_log_namespaces_name"),
    )
    op.create_table(
        "log_environments",
        sa.Column("id", ID, nullable=False),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_environments"),
        sa.UniqueConstraint("digest", name="uq_log_environments_digest"),
    )
    _create_entries()


def _let_local_keys_in() -> None:
    """Keys for the commands of a service's own machine may do everything."""
    keys = sa.table("api_keys", sa.column("id"), sa.column("name"), sa.column("scopes", sa.JSON()))
    connection = op.get_bind()
    local = sa.select(keys.c.id, keys.c.scopes).where(sa.func.substr(keys.c.name, 1, len(LOCAL)) == LOCAL)
    for key_id, scopes in connection.execute(local).all():
        every = sorted({*scopes, "logs:read", "logs:write", "logs:decide"})
        connection.execute(sa.update(keys).where(keys.c.id == key_id).values(scopes=every))


def _create_entries() -> None:
    op.create_table(
        "log_entries",
        sa.Column("id", ID, nullable=False),
        sa.Column("namespace_id", ID, nullable=False),
        sa.Column("key_digest", DIGEST, nullable=False),
        sa.Column("environment_id", ID, nullable=False),
        sa.Column("choice", DIGEST, nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("is_served", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("evidence", sa.String(16), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=True),
        sa.Column("low_s", sa.Double(), nullable=True),
        sa.Column("high_s", sa.Double(), nullable=True),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_entries"),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["log_namespaces.id"], name="fk_log_entries_namespace_id_log_namespaces"
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["log_environments.id"], name="fk_log_entries_environment_id_log_environments"
        ),
        sa.UniqueConstraint(
            "namespace_id",
            "key_digest",
            "environment_id",
            "choice",
            name="uq_log_entries_namespace_id_key_digest_environment_id_choice",
        ),
    )
    op.create_index("ix_log_entries_namespace_id_revision", "log_entries", ["namespace_id", "revision"])
    op.create_index(
        "ix_log_entries_namespace_id_environment_id_revision",
        "log_entries",
        ["namespace_id", "environment_id", "revision"],
    )
