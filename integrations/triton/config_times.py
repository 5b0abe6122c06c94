"""The time of each config, apart from the list that it was tried in.

Triton keeps the results of its autotuner by a key that holds every config, so a list that changes by one is measured
anew (triton-lang/triton#9822). Here each config's time is an entry of its own, under what Triton's key has besides the
list: the compiler, the backend, the function, the environment and the tuning key. What is known is not measured.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from triton.runtime import autotuner
from triton.runtime.autotuner import Autotuner, Config

from tunewright.db.logs.entry import Cost, CostEvidence, LogEntry, LogEnvironment
from tunewright.db.logs.formats import are_times

from .cache_manager import environment, log_client

PARAMETERS = ["self", "tuning_key", "configs", "bench_fn"]
"""Of the method of Triton that is wrapped: another version may have others."""

KNOWN = "_tunewright_times_ms"
"""Name of an autotuner's attribute: config -> median, 20% and 80% quantile, of those that need no measurement now."""


def install() -> bool:
    """Have Triton's autotuner use known times. Whether this version of it can."""
    inner, bench = getattr(Autotuner, "check_disk_cache", None), getattr(Autotuner, "_bench", None)
    if inner is None or bench is None or list(inspect.signature(inner).parameters) != PARAMETERS:
        return False
    if not hasattr(inner, "__wrapped__"):
        Autotuner.check_disk_cache = _with_known_times(inner)
        Autotuner._bench = _without_known(bench)  # noqa: SLF001 - there is no other way in
    return True


def _with_known_times(inner: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(inner)
    def check_disk_cache(self: Any, tuning_key: Any, configs: Sequence[Config], bench_fn: Callable[[], None]) -> bool:
        client = log_client()
        if client is None or not tuning_key or any(config.pre_hook for config in configs):
            return inner(self, tuning_key, configs, bench_fn)
        where = environment()

        def bench() -> None:
            keys = {config: entry_key(_identity(self, tuning_key), config) for config in configs}
            hits = client.look_up(keys.values(), where)
            known = {config: read_times(hits[key].entry.value) for config, key in keys.items() if key in hits}
            setattr(self, KNOWN, {config: times_ms for config, times_ms in known.items() if times_ms})
            try:
                bench_fn()
            finally:
                fresh = set(configs) - set(getattr(self, KNOWN))
                setattr(self, KNOWN, {})
            timings: Mapping[Config, Any] = getattr(self, "configs_timings", None) or {}
            found = [(keys[config], timings[config]) for config in configs if config in fresh and config in timings]
            client.write([entry for key, times in found if (entry := entry_of(key, times, where))])

        return inner(self, tuning_key, configs, bench)

    return check_disk_cache


def _without_known(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def _bench(self: Any, *args: Any, config: Config, **meta: Any) -> Any:
        known: Mapping[Config, list[float]] = getattr(self, KNOWN, {})
        return known[config] if config in known else inner(self, *args, config=config, **meta)

    return _bench


def _identity(tuner: Any, tuning_key: Any) -> str:
    """What Triton's own key of the results has, but for the configs."""
    from triton.compiler.compiler import make_backend

    fn = tuner.fn
    while not isinstance(fn, autotuner.JITFunction):
        fn = fn.fn
    variables = sorted(autotuner.get_cache_invalidating_env_vars().items())
    backend = make_backend(autotuner.driver.active.get_current_target()).hash()
    return "-".join([autotuner.triton_key(), backend, fn.cache_key, str(variables), str(tuning_key)])


def entry_key(identity: str, config: Config) -> str:
    """The key of a config's time."""
    return f"config:{hashlib.sha256(f'{identity}-{config}'.encode()).hexdigest()}"


def entry_of(key: str, times: Any, where: LogEnvironment) -> LogEntry | None:
    """The entry of a config that was timed: median, 20% and 80% quantile in ms; None where it could not run."""
    try:
        median_ms, low_ms, high_ms = map(float, times)
    except (TypeError, ValueError):
        return None
    value = json.dumps([median_ms, low_ms, high_ms]).encode()
    if not 0 < low_ms <= median_ms <= high_ms < math.inf:
        return LogEntry(key, value, where)  # it fails, which is worth as much to know
    cost = Cost(median_ms / 1e3, low_ms / 1e3, high_ms / 1e3, evidence=CostEvidence.TIMED)
    return LogEntry(key, value, where, cost)


def read_times(value: bytes) -> list[float] | None:
    """The times in ms that bytes of any origin tell; None where they tell none."""
    try:
        data = json.loads(value)
        return [float(time_ms) for time_ms in data] if are_times(data) else None
    except (ValueError, RecursionError, OverflowError):
        return None
