"""Types of columns: what the tables keep values as, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, String, TypeDecorator
from sqlalchemy.sql.operators import OperatorType

from .errors import Unreadable

Value = TypeVar("Value")

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only what is declared INTEGER
Key = String(64)  # a SHA-256 in hexadecimal


class ReadType(TypeDecorator[Value]):
    """A type whose values are read from text, which damage may have changed: then Unreadable says where."""

    __abstract__ = True
    place = "", ""  # the names of the table and the column

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Value | None] | None:
        read = super().result_processor(dialect, coltype)
        if read is None:  # the driver reads
            return None

        def process(value: Any) -> Value | None:
            try:
                return read(value)
            except (ValueError, TypeError) as error:
                raise Unreadable(*self.place) from error

        return process


class Json(ReadType[Any]):
    """JSON data."""

    impl = JSON
    cache_ok = True

    def coerce_compared_value(self, op: OperatorType | None, value: Any) -> Any:
        return self.impl_instance.coerce_compared_value(op, value)


class Instant(ReadType[datetime]):
    """A moment in UTC. SQLite has no time zones: there it is stored without, and read back with UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)
