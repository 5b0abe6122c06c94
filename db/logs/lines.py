"""An entry as a JSON object that stands alone: a line of an export, and what the service sends and takes.

    {"key", "value" or "value_base64", "environment": {"device", "toolchain", "versions": {...}}, "time_s", "low_s",
     "high_s", "samples", "evidence", "state", "machine"}

A value that is no text in UTF-8 is told in base64. All but the key and the value may be left out.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from tunewright.codegen.fields import check_names, check_type, json_fault, read_json, word

from .entry import ANYWHERE, LONGEST_S, Cost, CostEvidence, EntryState, LogEntry, LogEnvironment

VALUES = "value", "value_base64"
"""The two fields of which an entry has one."""

FIELDS = {*VALUES, "key", "environment", "time_s", "low_s", "high_s", "samples", "evidence", "state", "machine"}


def entry_to_json(entry: LogEntry) -> dict[str, Any]:
    """An entry as JSON data."""
    return {
        "key": entry.key,
        **value_to_json(entry.value),
        "environment": entry.environment.to_json(),
        **cost_to_json(entry.cost),
        "state": entry.state.value,
        "machine": entry.machine,
    }


def entry_from_json(data: Any) -> LogEntry:
    """An entry from JSON data of any origin. Raises ValueError."""
    check_names(check_type("the entry", data, dict), {"key"}, FIELDS)
    return LogEntry(
        key=check_type("key", data["key"], str),
        value=value_from_json(data),
        environment=LogEnvironment.from_json(data["environment"]) if "environment" in data else ANYWHERE,
        cost=cost_from_json(data),
        state=word("state", data.get("state", EntryState.CANDIDATE), EntryState),
        machine=check_type("machine", data.get("machine", ""), str),
    )


def parse_line(line: str) -> LogEntry:
    """The entry of a line. Raises ValueError."""
    try:
        return entry_from_json(read_json(line))
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON: {json_fault(error.msg)}") from error
    except RecursionError as error:
        raise ValueError("this is nested too deeply") from error


def value_to_json(value: bytes) -> dict[str, str]:
    """A value as the one field that holds it."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def value_from_json(data: Mapping[str, Any]) -> bytes:
    """The value of an entry as JSON data. Raises ValueError."""
    given = [name for name in VALUES if data.get(name) is not None]
    if len(given) != 1:
        raise ValueError("an entry has a value as a text, or as value_base64: one of them")
    text: str = check_type(given[0], data[given[0]], str)
    try:
        return text.encode() if given[0] == "value" else base64.b64decode(text, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError(f"{given[0]} can't be read") from error


def cost_to_json(cost: Cost) -> dict[str, Any]:
    """A cost as the fields that hold it."""
    return {
        "time_s": cost.time_s,
        "low_s": cost.low_s,
        "high_s": cost.high_s,
        "samples": cost.samples,
        "evidence": cost.evidence.value,
    }


def cost_from_json(data: Mapping[str, Any]) -> Cost:
    """The cost of an entry as JSON data. A time without evidence was timed once. Raises ValueError."""
    time_s, low_s, high_s = (_number(name, data.get(name)) for name in ("time_s", "low_s", "high_s"))
    usual = CostEvidence.NONE if time_s is None else CostEvidence.TIMED
    samples: int = check_type("samples", data.get("samples", 0), int)
    return Cost(time_s, low_s, high_s, samples, word("evidence", data.get("evidence", usual), CostEvidence))


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LONGEST_S:
        raise ValueError(f"{name} is no number of seconds up to {LONGEST_S:g}")
    return float(value)
