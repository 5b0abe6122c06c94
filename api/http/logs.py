"""Logs: one JSON object a line on standard error, with the id of the request it belongs to.

All loggers write this way, those of uvicorn and of the database too. A text that users or clients chose is data in it:
JSON in ASCII alone escapes control characters, and whatever looks like a key loses its secret.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter
from structlog.types import EventDict, Processor, WrappedLogger

SECRET = re.compile(r"(tw_[A-Za-z0-9]{1,32}_)[A-Za-z0-9_-]{4,}")
"""A key: what names it, and behind that what nobody may read."""

LONGEST = 20_000
"""Longest text in a log line, in characters."""


def configure(level: int = logging.INFO) -> None:
    """Have all loggers of this process write JSON lines."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                _without_uvicorns_colours,
                ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redact,
                structlog.processors.JSONRenderer(serializer=_json),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tunewright").setLevel(level)
    logging.getLogger("uvicorn").setLevel(level)


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Take the secrets out of a line, wherever in it they are."""
    return {_redact_value(name): _redact_value(value) for name, value in event.items()}


def _redact_value(value: Any) -> Any:
    match value:
        case str():
            return SECRET.sub(r"\1***", value[:LONGEST])
        case dict():
            return {_redact_value(name): _redact_value(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_redact_value(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return _redact_value(str(value))


def _json(event: EventDict, **_: Any) -> str:
    return json.dumps(event, ensure_ascii=True, default=str)


def _without_uvicorns_colours(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event.pop("color_message", None)
    return event
