"""Triton's cache in its own folder, with the results of its autotuner in the log too."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import Any

from triton.runtime.autotuner import Config
from triton.runtime.cache import FileCacheManager
from triton.runtime.driver import driver

from tunewright.api.client.log import LogClient
from tunewright.db.logs.entry import VALUE_BYTES, LogEntry, LogEnvironment
from tunewright.db.logs.formats import check_value, format_of
from tunewright.tuner.errors import Refused

NAMESPACE = "triton"

_log = logging.getLogger("tunewright.log")


@cache
def log_client() -> LogClient | None:
    """The log that this process reads and writes; None where the setting is no address."""
    try:
        return LogClient(NAMESPACE)
    except Refused as error:
        _log.warning("the log is not used: %s", error)
        return None


class CacheManager(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton's own cache manager. What its folder has is used; what it lacks of the autotuner, the log is asked for."""

    def get_file(self, filename: str) -> str | None:
        """The path of a file; None where it is not there."""
        path: str | None = super().get_file(filename)
        client, key = log_client(), self._log_key(filename)
        if path is not None or client is None or key is None:
            return path
        value = client.get(key, environment())
        if value is None or not is_result(key, value):
            return None
        own: str = super().put(value, filename)
        return own

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Store a file. Its path."""
        path: str = super().put(data, filename, binary)
        value = data if isinstance(data, bytes) else str(data).encode()
        client, key = log_client(), self._log_key(filename)
        if client is not None and key is not None and is_result(key, value):
            client.write([LogEntry(key, value, environment())])
        return path

    def _log_key(self, filename: str) -> str | None:
        """The key of a file of the autotuner, as clients of Redis have it too; None for all others, which are code."""
        key = f"triton:{self.key}:{filename}"
        return None if format_of(NAMESPACE, key) is None else key


def is_result(key: str, value: bytes) -> bool:
    """Whether bytes of any origin are a file of the autotuner that this version of Triton reads, and no code."""
    try:
        check_value(NAMESPACE, key, value)
        configs = [Config(**config) for config, _ in json.loads(value)["configs_timings"]]
    except (ValueError, TypeError):
        return False
    return len(value) <= VALUE_BYTES and bool(configs)


def environment() -> LogEnvironment:
    """Where times hold: Triton's keys tell the architecture, which several devices have."""
    return LogEnvironment(device=device())


def device() -> str:
    """The device that kernels run on, as PyTorch names it; else its architecture, as Triton does."""
    try:
        from torch import cuda
    except ImportError:
        target = driver.active.get_current_target()
        return f"{target.backend}:{target.arch}"
    return str(cuda.get_device_name()) if cuda.is_available() else "cpu"
