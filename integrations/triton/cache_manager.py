"""Triton's cache in its own folder, with the results of its autotuner in the log too."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from triton.runtime.autotuner import Config
from triton.runtime.cache import FileCacheManager

from tunewright.api.client.log import LogClient
from tunewright.db.logs.entry import VALUE_BYTES, LogEntry

NAMESPACE = "triton"

RESULTS = ".autotune.json"
"""How the names of the autotuner's files end; all others are code."""


@cache
def log_client() -> LogClient:
    """The log that this process reads and writes."""
    return LogClient(NAMESPACE)


class CacheManager(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's own cache manager. What its folder has is used; what it lacks of the autotuner, the log is asked for."""

    def get_file(self, filename: str) -> str | None:
        """The path of a file; None where it is not there."""
        path: str | None = super().get_file(filename)
        if path is not None or not filename.endswith(RESULTS):
            return path
        value = log_client().get(self._log_key(filename))
        if value is None or not is_result(value):
            return None
        own: str = super().put(value, filename)
        return own

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Store a file. Its path."""
        path: str = super().put(data, filename, binary)
        value = data if isinstance(data, bytes) else str(data).encode()
        if filename.endswith(RESULTS) and len(value) <= VALUE_BYTES:
            log_client().write([LogEntry(self._log_key(filename), value)])
        return path

    def _log_key(self, filename: str) -> str:
        """The key that clients of Redis have for it, too."""
        return f"triton:{self.key}:{filename}"


def is_result(value: bytes) -> bool:
    """Whether bytes of any origin are a file of the autotuner that Triton reads without an error, and no code."""
    try:
        data = json.loads(value)
        timings = [
            (read_config(config), [float(time_ms) for time_ms in times]) for config, times in data["configs_timings"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return bool(timings) and all(len(times_ms) == 3 for _, times_ms in timings)


def read_config(data: Any) -> Config:
    """The config that data of any origin describe. Raises ValueError or TypeError.

    Hooks are code, and `ir_override` names a file of it: no config from elsewhere has any.
    """
    config = Config(**data)
    if config.pre_hook is not None or config.ir_override is not None:
        raise ValueError("a config with code")
    hash(config)
    return config
