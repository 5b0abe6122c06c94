"""A trial or a confirmation as one JSON object that stands alone, for export and import between databases.

    {"schema": 2, "kind", "task_key", "task": {...}, "target_key", "target": {...}, "schedule": {...}, "status",
     "samples_s", "median_s", "low_s", "high_s", "max_rel_err", "error", "build_s", "object_sha256", "provenance",
     "incumbent_s", "warm_s", "created_at", "voided_at", "void_reason"}

Version 1 knew trials only and had no `kind`. A line of what was taken back is of version 3, as readers of 2 would use
it. docs/records.md says what the fields mean.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, Any, NamedTuple, TypeVar

from tunewright.codegen.given import word
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .errors import StoreError

Item = TypeVar("Item")

SCHEMA, SCHEMA_VOIDED = 2, 3
"""Versions of this format, the second of a line of what was taken back. It grows when an old reader would misunderstand
a line, not when a field is added."""

READABLE = (1, 2, 3)
"""Versions that `parse` reads."""

LONGEST_REASON = 500
"""Characters of why something was taken back."""

KEPT = 512
"""Tasks, and targets, that `parse` keeps, to understand those of many lines once."""

LONGEST_KEPT = 1 << 16
"""Characters of JSON of a task or target that is kept: hostile lines must not fill the memory."""

CUT_SHORT = "it is cut short"
"""What `parse` says of the begin of a line of JSON."""

BEGUN = re.compile(r"|-|\.|[eE][+-]?|t|tr|tru|f|fa|fal|fals|n|nu|nul|\\|\\?u[0-9a-fA-F]{0,3}")
"""What JSON breaks off with where a word, a number or an escape was begun."""


class BadLine(StoreError):
    """A line of an import that is no record; those before it are stored."""

    def __init__(self, number: int, said: str, stored: int) -> None:
        super().__init__(f"line {number}: {said}")
        self.number = number  # 1, 2, ...; blank lines count
        self.said = said  # what is wrong with it, one line
        self.stored = stored  # records on the lines before it


class Lines:
    """The lines of an export as a store reads them, up to the first that is no text or a summary that is wrong.

    The summary that `export --json` ends with must agree with the number of records before it. What is no record counts
    as a blank line, so that the store counts lines as the file does.
    """

    def __init__(self, file: IO[bytes], longest_bytes: int) -> None:
        self._file = file
        self._longest_bytes = longest_bytes
        self._fault: BadLine | None = None

    def __iter__(self) -> Iterator[str]:
        records = 0
        for number, line in enumerate(iter(lambda: self._file.readline(self._longest_bytes + 1), b""), 1):
            if len(line) > self._longest_bytes:
                self._fault = BadLine(number, f"it is longer than {self._longest_bytes >> 20} MiB", records)
                return
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                self._fault = BadLine(number, f"this is no text: {error}", records)
                return
            summed = text.startswith('{"exported"')
            if summed and text.strip() != f'{{"exported": {records}}}':
                said = f"it says {text.strip()[:80]}, but {records} records precede it"
                self._fault = BadLine(number, said, records)
                return
            records += not summed and bool(text.strip())
            yield "" if summed else text

    def check(self) -> None:
        """Raises BadLine for the line that ended them. To be called when those before it are stored."""
        if self._fault is not None:
            raise self._fault


class Kind(StrEnum):
    """What a line says."""

    TRIAL = "trial"
    CONFIRMATION = "confirmation"


class Void(NamedTuple):
    """That a record is taken back."""

    at: datetime  # UTC
    reason: str  # for people


@dataclass(frozen=True, slots=True)
class Entry:
    """One trial or confirmation with all that it names."""

    kind: Kind
    task: Task
    target: Target
    record: Record
    created_at: datetime  # UTC
    void: Void | None = None


def to_json(
    task: Mapping[str, Any],
    target: Mapping[str, Any],
    record: Record,
    created_at: datetime,
    kind: Kind = Kind.TRIAL,
    void: Void | None = None,
) -> dict[str, Any]:
    """The object for a trial or a confirmation; `task` and `target` are JSON data already."""
    data = {
        "schema": SCHEMA_VOIDED if void else SCHEMA,
        "kind": kind.value,
        "task_key": record.task_key,
        "task": task,
        "target_key": record.target_key,
        "target": target,
        "schedule": record.schedule.to_json(),
        **record.measurement.to_json(),
        "created_at": created_at.astimezone(UTC).isoformat(),
        "voided_at": void.at.astimezone(UTC).isoformat() if void else None,
        "void_reason": void.reason if void else "",
    }
    if data["max_rel_err"] == math.inf:
        data["max_rel_err"] = "inf"
    return data


def parse(line: str) -> Entry:
    """The trial or confirmation on a line of JSON. Raises ValueError that says what is wrong with it."""
    try:
        return _entry(json.loads(line, parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        raise ValueError(_broken(error)) from error
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, OverflowError) as error:
        raise ValueError("it has not the form of a record: docs/records.md tells of it") from error
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check(measurement: Measurement) -> None:
    """Raises ValueError for a measurement that contradicts itself: no store keeps it."""
    times = (measurement.median_s, measurement.low_s, measurement.high_s, measurement.build_s, *measurement.samples_s)
    for value in times:
        if value is not None and not (0 <= value < math.inf):
            raise ValueError(f"{value} is no time in seconds")
    for name, value in (("incumbent_s", measurement.incumbent_s), ("warm_s", measurement.warm_s)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, no time above zero")
    if measurement.status is Status.VOIDED:
        raise ValueError("the status is voided, which is no way for a measurement to end")
    if measurement.status is Status.OK and not measurement.median_s:
        raise ValueError("the status is ok, but there is no median_s above zero")


def _broken(error: json.JSONDecodeError) -> str:
    """What is wrong with a line that is no JSON."""
    text = error.doc.strip()
    rest = error.doc[error.pos :].strip()
    if text and (error.msg.startswith("Unterminated string") or (rest != text and BEGUN.fullmatch(rest))):
        return CUT_SHORT
    return f"this is no JSON: {error.msg}, column {error.colno}"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _entry(data: Any) -> Entry:
    data = _object("the line", data)
    kind = _kind(data)
    task = _task(json.dumps(_object("task", data["task"])))
    target, target_key = _target(json.dumps(_object("target", data["target"])))
    for name, key, given in (("task", task.key, data["task_key"]), ("target", target_key, data["target_key"])):
        if key != given:
            raise ValueError(f"{name}_key is {given!r}, but that {name} has the key {key}")
    schedule = _schedule(_object("schedule", data["schedule"]))
    record = Record(task.key, target_key, schedule, _measurement(data))
    return Entry(kind, task, target, record, _moment("created_at", data["created_at"]), _void(data))


def _moment(name: str, value: Any) -> datetime:
    """A moment with its time zone, in UTC. Raises ValueError."""
    text = _typed(name, value, str)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {text[:40]!r}, not a moment as 2026-11-20T09:30:00+00:00") from None
    raise ValueError(f"{name} names no time zone")


def _void(data: dict[str, Any]) -> Void | None:
    """That it is taken back; versions before 3 knew nothing of that."""
    if data.get("voided_at") is None:
        return None
    reason = _typed("void_reason", data["void_reason"], str)
    return Void(_moment("voided_at", data["voided_at"]), reason[:LONGEST_REASON])


def _kind(data: dict[str, Any]) -> Kind:
    schema = data["schema"]
    if isinstance(schema, bool) or schema not in READABLE:
        known = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
        raise ValueError(f"its schema is {str(schema)[:40]!r}; this version reads {known}")
    if schema == 1:
        return Kind.TRIAL
    kind = _typed("kind", data["kind"], str)
    if kind not in [one.value for one in Kind]:
        raise ValueError(f"kind is {kind[:40]!r}, not one of {', '.join(Kind)}")
    return Kind(kind)


def _keeping(read: Callable[[str], Item]) -> Callable[[str], Item]:
    """`read`, remembering what it made of short texts."""
    kept = functools.lru_cache(KEPT)(read)
    return functools.wraps(read)(lambda text: kept(text) if len(text) <= LONGEST_KEPT else read(text))


@_keeping
def _task(text: str) -> Task:
    return Task.from_json(json.loads(text))


@_keeping
def _target(text: str) -> tuple[Target, str]:
    """The target and its key."""
    target = Target.from_json(json.loads(text))
    for field in fields(Target):
        if field.name == "gpu":  # it looks at its figures itself
            continue
        _typed(f"target.{field.name}", getattr(target, field.name), {"str": str, "int": int}[str(field.type)])
    return target, target.key


def _schedule(data: dict[str, Any]) -> Schedule:
    _typed("schedule.sketch", data["sketch"], str)
    _small("schedule.version", data["version"])
    for name, value in _object("schedule.values", data["values"]).items():
        _typed(f"schedule.values.{name}", value, int)
    return Schedule.from_json(data)


def _measurement(data: dict[str, Any]) -> Measurement:
    err = data["max_rel_err"]
    provenance = _object("provenance", data["provenance"])
    measurement = Measurement(
        status=word("status", data["status"], Status),
        samples_s=tuple(_number("samples_s", value) for value in _typed("samples_s", data["samples_s"], list)),
        median_s=_number_or_none("median_s", data["median_s"]),
        low_s=_number_or_none("low_s", data["low_s"]),
        high_s=_number_or_none("high_s", data["high_s"]),
        max_rel_err=math.inf if err == "inf" else _number_or_none("max_rel_err", err),
        error=_typed("error", data["error"], str),
        build_s=_number("build_s", data["build_s"]),
        object_sha256=_typed("object_sha256", data["object_sha256"], str),
        provenance={name: _typed(f"provenance.{name}", value, str) for name, value in provenance.items()},
        incumbent_s=_number_or_none("incumbent_s", data.get("incumbent_s")),  # older versions knew of neither
        warm_s=_number_or_none("warm_s", data.get("warm_s")),
    )
    check(measurement)
    return measurement


def _object(name: str, value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _typed(name, value, dict)
    return found


def _typed(name: str, value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is {str(value)[:40]!r}, not {JSON_NAMES[kind]}")
    return value


JSON_NAMES: dict[type[Any], str] = {dict: "an object", list: "an array", str: "a text", int: "an integer"}


def _small(name: str, value: Any) -> None:
    if not 0 <= _typed(name, value, int) < 2**31:
        raise ValueError(f"{name} is {value}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is {str(value)[:40]!r}, too large for a number") from None


def _number_or_none(name: str, value: Any) -> float | None:
    return None if value is None else _number(name, value)
