"""T4: the results of a tuner of kernels, a JSON object whose `results` are a configuration each with what it took.

The format tells neither the kernel nor the device, so who adds them says both. A configuration that failed, or was
wrong, is no entry. Schema: https://github.com/odgaard/TuningSchema, version 1.0.0, as Kernel Tuner writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tunewright.codegen.fields import quote
from tunewright.db.logs.entry import LONGEST_S, UNKNOWN, Cost, CostEvidence, LogEntry, LogEnvironment

UNITS_S = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "microseconds": 1e-6, "ns": 1e-9}
"""Units of time, in seconds."""

CORRECT = "correct"
"""The `invalidity` of a configuration that works."""


def entries_of(files: Iterable[Path | str], key: str, environment: LogEnvironment) -> Iterator[LogEntry]:
    """The configurations of a kernel, which `key` names, that files say work, with what they took in `environment`.

    Raises OSError, and ValueError, with the file and the number of the result, for what is no T4.
    """
    for file in map(Path, files):
        for number, result in enumerate(_results(file), 1):
            try:
                if (entry := _entry(result, key, environment)) is not None:
                    yield entry
            except ValueError as error:
                raise ValueError(f"{file}, result {number}: {error}") from error


def _results(file: Path) -> list[Any]:
    try:
        data = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: this is no JSON") from error
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise ValueError(f"{file}: this is no T4, which is an object with an array of results")
    return results


def _entry(result: Any, key: str, environment: LogEnvironment) -> LogEntry | None:
    """The entry of a result; None where it does not work. Raises ValueError."""
    configuration = result.get("configuration") if isinstance(result, dict) else None
    if not isinstance(configuration, dict) or not configuration:
        raise ValueError("it has no configuration")
    if result.get("invalidity") != CORRECT:
        return None
    value = json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return LogEntry(key, value.encode(), environment, _cost(result))


def _cost(result: Mapping[str, Any]) -> Cost:
    """What a configuration took: what was measured under the name of its objective, where that is a time.

    The times of its runs are in the same unit, and bound it. Unknown where it has another objective than time.
    """
    unit_s, time_s = _objective(result)
    if unit_s is None or time_s is None:
        return UNKNOWN
    times = result.get("times")
    runs = times.get("runtimes") if isinstance(times, dict) else None
    runs_s = sorted(unit_s * run for run in runs if _is_time(run)) if isinstance(runs, list) else []
    if len(runs_s) > 1 and runs_s[0] <= time_s <= runs_s[-1]:
        return Cost(time_s, runs_s[0], runs_s[-1], len(runs_s), CostEvidence.TIMED)
    return Cost(time_s, samples=len(runs_s), evidence=CostEvidence.TIMED)


def _objective(result: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The unit of the first objective, in seconds, and its value; None where it is no time."""
    objectives, measurements = (result.get(name) or [] for name in ("objectives", "measurements"))
    if not isinstance(objectives, list) or not isinstance(measurements, list):
        raise ValueError("objectives and measurements are arrays")
    for measured in measurements:
        if isinstance(measured, dict) and measured.get("name") == next(iter(objectives), None):
            unit, value = measured.get("unit"), measured.get("value")
            if not isinstance(unit, str) or unit not in UNITS_S:
                return None, None
            values = value if isinstance(value, list) else [value]
            if not values or not all(map(_is_time, values)):
                raise ValueError(f"{quote(value)} is no time")
            return UNITS_S[unit], UNITS_S[unit] * median(values)
    return None, None


def _is_time(value: object) -> bool:
    """Whether it is a number of seconds, or of what is shorter, that an entry may have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LONGEST_S
