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
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import IO, Any, NamedTuple, TypeVar

from tunewright.codegen.fields import check_type, json_fault, quote, read_json, word
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space.counts import counted
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

from .errors import StoreError

Item = TypeVar("Item")

SCHEMA, SCHEMA_VOIDED = 2, 3
"""Versions of this format, the second for lines of records that are taken back. A version grows when an old reader
would misunderstand a line, not when a field is added."""

SCHEMA_RULE = f"lines of what is taken back are of version {SCHEMA_VOIDED}, and no others"

READABLE_SCHEMAS = (1, 2, 3)
"""Versions that `parse` reads."""

LONGEST_REASON = 500
"""Characters of the reason of a void."""

LONGEST_NAME, LONGEST_TEXT = 100, 2000
"""Characters of a name in a provenance, and of what it says or of an error."""

MOST_FACTS, MOST_KNOBS = 100, 100
"""Entries of a provenance, and knobs of a schedule; real ones have some dozens at most."""

PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]{0,63}", re.ASCII)
"""Name of a sketch or a knob, also of one that this version does not know: it is shown wherever the record is."""

CACHE_SIZE = 512
"""Tasks, and targets, that `parse` caches, as many lines have the same."""

MAX_CACHED = 1 << 16
"""Characters of JSON of a cached task or target: hostile lines must not fill the memory."""

LATER_FIELDS = {"incumbent_s", "warm_s", "warm_samples_s"}
"""Fields of a measurement that not every version has told."""

GZIP_MAGIC = b"\x1f\x8b"
"""Begin of every gzip file."""

TRUNCATED = "it is cut short"
"""Error of `parse` for a line that is cut short."""

TOKEN_PREFIX = re.compile(r"|-|\.|[eE][+-]?|t|tr|tru|f|fa|fal|fals|n|nu|nul|\\|\\?u[0-9a-fA-F]{0,3}")
"""Incomplete words, numbers and escapes of JSON."""


class BadLine(StoreError):
    """A line of an import that is no record; those before it are stored."""

    def __init__(self, number: int, reason: str, stored: int, *, is_foreign: bool = False) -> None:
        super().__init__(f"line {number}: {reason}")
        self.number = number  # 1, 2, ...; blank lines count
        self.reason = reason  # what is wrong with it, one line
        self.stored = stored  # records on the lines before it
        self.is_foreign = is_foreign  # whether it is a ForeignLine


class ForeignLine(ValueError):
    """A line that no export has, of any version."""


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """The result of an import."""

    added: int
    known: int  # were there already and stayed as they were


class Lines:
    """The lines of an export for a store, up to the first that is no text or is a wrong summary.

    The summary at the end of `export --json` must agree with the number of records before it. It is yielded as a blank
    line, so that the store counts lines as the file does.
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
            if number == 1:
                line = line.removeprefix(BOM_UTF8)  # as editors on Windows write it
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                self._fault = BadLine(number, _undecodable(line, error.start), records, is_foreign=True)
                return
            is_summary = text.lstrip().startswith('{"exported"')
            if is_summary and text.strip() != f'{{"exported": {records}}}':
                preceding = counted(records, "record precedes", "records precede")
                reason = f"it says {text.strip()[:80]}, but {preceding} it"
                self._fault = BadLine(number, reason, records)
                return
            records += not is_summary and bool(text.strip())
            yield "" if is_summary else text

    def check(self) -> None:
        """Raises BadLine for the line that ended them. To be called when those before it are stored."""
        if self._fault is not None:
            raise self._fault


class EntryKind(StrEnum):
    """The kind of record on a line."""

    TRIAL = "trial"
    CONFIRMATION = "confirmation"


class Void(NamedTuple):
    """A record is taken back."""

    at: datetime  # UTC
    reason: str  # for people


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One trial or confirmation with its task and target."""

    kind: EntryKind
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
    kind: EntryKind = EntryKind.TRIAL,
    void: Void | None = None,
) -> dict[str, Any]:
    """The JSON data of a trial or a confirmation; `task` and `target` are JSON data already.

    Its texts are such as `parse` takes, whatever a compiler or a person said.
    """
    data = {
        "schema": SCHEMA_VOIDED if void else SCHEMA,
        "kind": kind.value,
        "task_key": record.task_key,
        "task": task,
        "target_key": record.target_key,
        "target": target,
        "schedule": record.schedule.to_json(),
        **record.measurement.to_json(),
        "error": _line(record.measurement.error, LONGEST_TEXT),
        "provenance": _facts(record.measurement.provenance),
        "created_at": created_at.astimezone(UTC).isoformat(),
        "voided_at": void.at.astimezone(UTC).isoformat() if void else None,
        "void_reason": _line(void.reason, LONGEST_REASON) if void else "",
    }
    if data["max_rel_err"] == math.inf:
        data["max_rel_err"] = "inf"
    return data


def parse(line: str) -> RecordEntry:
    """The trial or confirmation on a line of JSON. Raises ValueError with what is wrong with it."""
    try:
        return _entry(read_json(line))
    except json.JSONDecodeError as error:
        reason = _describe(error)
        raise (ValueError if reason == TRUNCATED else ForeignLine)(reason) from error
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, OverflowError) as error:
        raise ValueError("it has not the form of a record: docs/records.md tells of it") from error
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_measurement(measurement: Measurement) -> None:
    """Raises ValueError for a measurement that contradicts itself, which no store keeps."""
    times = {name: getattr(measurement, name) for name in ("median_s", "low_s", "high_s", "build_s")}
    samples = (("samples_s", value) for value in measurement.samples_s)
    for name, value in (*times.items(), *samples):
        if value is not None and not (0 <= value < math.inf):
            raise ValueError(f"{name} is {quote(value)}, no time in seconds")
    if measurement.max_rel_err is not None and measurement.max_rel_err < 0:
        raise ValueError(f"max_rel_err is {measurement.max_rel_err}; an error is never below zero")
    for name, value in (("incumbent_s", measurement.incumbent_s), ("warm_s", measurement.warm_s)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {quote(value)}, no time above zero")
    if measurement.status is Status.VOIDED:
        raise ValueError("the status is voided, which is no way for a measurement to end")
    if measurement.status is Status.OK and not measurement.median_s:
        raise ValueError("the status is ok, but there is no median_s above zero")


def _undecodable(line: bytes, place: int) -> str:
    """What a line that is no text is."""
    if line.startswith(GZIP_MAGIC):
        return "this is no text: it is packed by gzip, so unpack it first"
    return f"this is no text: byte {place + 1} is {line[place]:#04x}, which is no UTF-8"


def _describe(error: json.JSONDecodeError) -> str:
    """What is wrong with a line that is not JSON."""
    text = error.doc.strip()
    remainder = error.doc[error.pos :].strip()
    if text and (
        error.msg.startswith("Unterminated string") or (remainder != text and TOKEN_PREFIX.fullmatch(remainder))
    ):
        return TRUNCATED
    return f"this is no JSON: {json_fault(error.msg)}, column {error.colno}"


def _entry(data: Any) -> RecordEntry:
    if not isinstance(data, dict):
        raise ForeignLine(f"the line is {quote(data)}, not an object")
    if "schema" not in data:
        raise ForeignLine("'schema' is missing")
    kind = _kind(data)
    task = _task(json.dumps(_object("task", data["task"])))
    target, target_key = _target(json.dumps(_object("target", data["target"])))
    for name, key, stated_key in (("task", task.key, data["task_key"]), ("target", target_key, data["target_key"])):
        if key != stated_key:
            raise ValueError(f"{name}_key is {quote(stated_key)}, but that {name} has the key {key}")
    schedule = _schedule(_object("schedule", data["schedule"]))
    record = Record(task.key, target_key, schedule, _measurement(data))
    return RecordEntry(kind, task, target, record, _moment("created_at", data["created_at"]), _void(data))


def _moment(name: str, value: Any) -> datetime:
    """A moment with its time zone, in UTC. Raises ValueError."""
    text = check_type(name, value, str)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {quote(text)}, not a moment as 2026-11-20T09:30:00+00:00") from None
    raise ValueError(f"{name} names no time zone")


def _void(data: dict[str, Any]) -> Void | None:
    """The void of a record, which lines of version 3 have, and no others."""
    is_voided = data.get("voided_at") is not None
    if is_voided is not (data["schema"] == SCHEMA_VOIDED):
        raise ValueError(f"its schema is {data['schema']}, and voided_at {quote(data.get('voided_at'))}; {SCHEMA_RULE}")
    if not is_voided:
        if data.get("void_reason"):
            raise ValueError(f"void_reason is {quote(data['void_reason'])}, but there is no voided_at")
        return None
    reason = _check_line("void_reason", data["void_reason"], LONGEST_REASON)
    return Void(_moment("voided_at", data["voided_at"]), reason)


def _kind(data: dict[str, Any]) -> EntryKind:
    schema = data["schema"]
    if isinstance(schema, bool) or schema not in READABLE_SCHEMAS:
        versions = f"{', '.join(map(str, READABLE_SCHEMAS[:-1]))} and {READABLE_SCHEMAS[-1]}"
        raise ValueError(f"its schema is {quote(schema)}; this version reads {versions}")
    if schema == 1:
        return EntryKind.TRIAL
    return word("kind", data["kind"], EntryKind)


def _cache_short(read: Callable[[str], Item]) -> Callable[[str], Item]:
    """Cache `read` for short texts."""
    memory = functools.lru_cache(CACHE_SIZE)(read)
    return functools.wraps(read)(lambda text: memory(text) if len(text) <= MAX_CACHED else read(text))


@_cache_short
def _task(text: str) -> Task:
    return Task.from_json(json.loads(text))


@_cache_short
def _target(text: str) -> tuple[Target, str]:
    """The target and its key."""
    target = Target.from_json(json.loads(text))
    for field in fields(Target):
        if field.name == "gpu":  # it checks its figures itself
            continue
        check_type(f"target.{field.name}", getattr(target, field.name), {"str": str, "int": int}[str(field.type)])
    return target, target.key


def _schedule(data: dict[str, Any]) -> Schedule:
    _check_name("schedule.sketch", data["sketch"])
    _check_whole("schedule.version", data["version"], 0, 2**31 - 1)
    values = _object("schedule.values", data["values"])
    _check_count("schedule.values", values, MOST_KNOBS)
    for name, value in values.items():
        _check_name("a name in schedule.values", name)
        _check_whole(f"schedule.values.{name}", value, -(2**63), 2**63 - 1)
    return Schedule.from_json(data)


def _measurement(data: dict[str, Any]) -> Measurement:
    missing = [field.name for field in fields(Measurement) if field.name not in data.keys() | LATER_FIELDS]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    word("status", data["status"], Status, besides=[Status.VOIDED])  # a void stands beside the status that was measured
    _check_texts(data)
    own = {name: value for name, value in data.items() if name != "warm_samples_s"}
    measurement = Measurement.from_json(own | {"max_rel_err": math.inf} if data["max_rel_err"] == "inf" else own)
    check_measurement(measurement)
    return measurement


def _check_texts(data: dict[str, Any]) -> None:
    _check_line("error", data["error"], LONGEST_TEXT)
    provenance = _object("provenance", data["provenance"])
    _check_count("provenance", provenance, MOST_FACTS)
    for name, text in provenance.items():
        _check_line("a name in provenance", name, LONGEST_NAME)
        _check_line(f"provenance.{name}", text, LONGEST_TEXT)


def _object(name: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = check_type(name, value, dict)
    return data


def _check_whole(name: str, value: Any, least: int, most: int) -> None:
    if not least <= check_type(name, value, int) <= most:
        raise ValueError(f"{name} is {quote(value)}, not in {least} .. {most}")


def _check_name(what: str, name: Any) -> None:
    if not PLAIN_NAME.fullmatch(check_type(what, name, str)):
        raise ValueError(f"{what} is {quote(name)}, not a name of 1 to 64 letters, digits, underscores and dots")


def _check_count(name: str, entries: Mapping[str, Any], most: int) -> None:
    if len(entries) > most:
        raise ValueError(f"{name} has {len(entries)} entries; it may have {most}")


def check_reason(name: str, reason: Any) -> str:
    """The reason of a void, if it is a line of text that says something. Raises ValueError; `name` is in its words."""
    text = _check_line(name, reason, LONGEST_REASON)
    if not text.strip():
        raise ValueError(f"{name} is blank; say why, for those who come later")
    return text


def _check_line(name: str, value: Any, most: int) -> str:
    """The value, if it is a short line of text, as pages and tables show it. Raises ValueError."""
    text: str = check_type(name, value, str)
    if len(text) > most:
        raise ValueError(f"{name} has {len(text)} characters; it may have {most}")
    if not text.isprintable():
        raise ValueError(f"{name} is {quote(text)}, not one line of printable characters")
    return text


def _line(text: str, most: int) -> str:
    """A text of any origin as `_check_line` takes it."""
    if len(text) <= most and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _facts(provenance: Mapping[str, str]) -> dict[str, str]:
    """A provenance of any origin as `parse` takes it."""
    facts = islice(provenance.items(), MOST_FACTS)
    return {_line(name, LONGEST_NAME): _line(text, LONGEST_TEXT) for name, text in facts}
