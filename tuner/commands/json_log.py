"""JsonLines: a log whose lines are JSON objects, for processes that nobody watches."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Formats a record as one line of ASCII, so that no text in it can begin another line or command a terminal.

    It has `timestamp` (UTC), `level`, `logger` and `event`; `job_id` where the record is about a job, and `exception`,
    a whole traceback, where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if (job_id := getattr(record, "job_id", None)) is not None:
            line["job_id"] = job_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
