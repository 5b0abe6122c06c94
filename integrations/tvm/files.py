"""Files: what MetaSchedule and AutoTVM left in files, as entries of the log. Nothing here needs TVM.

- `database_workload.json` and `database_tuning_record.json` of MetaSchedule: a line of JSON for each workload, and for
  each record, which tells the number of its workload. Either is found beside the other.
- logs of AutoTVM: lines of JSON with `input`, `config` and `result`. Its first format had pickles; it is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tunewright.db.logs.entry import UNKNOWN, LogEntry, digest

from . import form

AUTOTVM = "autotvm"
"""The toolchain of AutoTVM's entries, and what their keys begin with."""

LONGEST_NAME = 200
"""Characters of the name of a task in a key."""

NOT_DECIDING = ("-keys=", "-host=", "-libs=")
"""Words of a target that follow from the others, or change no kernel that AutoTVM tuned."""

Result = TypeVar("Result")

_log = logging.getLogger("tunewright.tvm")


def entries_of(files: Iterable[Path | str]) -> Iterator[LogEntry]:
    """The entries that files of these kinds say, a workload ahead of its records.

    What is longer than a value may be is told to the logger `tunewright.tvm` and left out. Raises OSError, and
    ValueError, with the file and the line, for what is of no such kind.
    """
    done: set[Path] = set()
    for file in map(Path, files):
        if file in done:
            continue
        if _is_autotvm(file):
            done.add(file)
            yield from _autotvm(file)
        else:
            workloads, records = _pair(file)
            done |= {workloads, records}
            yield from _metaschedule(workloads, records)


def _is_autotvm(file: Path) -> bool:
    _, first = next(_lines(file), ("", None))
    return isinstance(first, dict)


def _pair(file: Path) -> tuple[Path, Path]:
    """The files of workloads and of records that one of them is named for. Raises ValueError."""
    workload, record = "workload", "tuning_record"
    if record in file.name:
        return file.with_name(file.name.replace(record, workload)), file
    if workload in file.name:
        return file, file.with_name(file.name.replace(workload, record))
    raise ValueError(
        f"{file}: this is neither a log of AutoTVM nor a file of MetaSchedule's, which its name would tell"
    )


def _metaschedule(workloads_file: Path, records_file: Path) -> Iterator[LogEntry]:
    workloads: list[tuple[int, str]] = []
    for where, line in _lines(workloads_file):
        workloads.append(_read_at(where, partial(_workload, line)))
        yield from _entries_at(where, partial(_workload_entry, line, *workloads[-1]))
    if records_file.exists():
        for where, line in _lines(records_file):
            yield from _entries_at(where, partial(_record_entry, line, workloads))


def _workload(line: Any) -> tuple[int, str]:
    """The structural hash of a workload, and the version of TVM that wrote it. Raises ValueError."""
    if not isinstance(line, list) or len(line) != 2 or not all(isinstance(part, str) for part in line):
        raise ValueError("a workload is a list of its hash and its module")
    try:
        packed = base64.b64decode(line[1], validate=True)
        module = json.loads(packed if packed[:1] == b"{" else packed[8:])  # its length stands before it
    except (binascii.Error, RecursionError) as error:
        raise ValueError("the module of the workload can't be read") from error
    about = (module.get("metadata") or module.get("attrs")) if isinstance(module, dict) else None
    version = about.get("tvm_version") if isinstance(about, dict) else None
    return int(line[0]), version if isinstance(version, str) else ""


def _workload_entry(line: Any, structural_hash: int, version: str) -> LogEntry:
    key = form.key_of(form.WORKLOADS, structural_hash)
    return LogEntry(key, form.pack(form.text_of(line)), form.environment_of("", version))


def _record_entry(line: Any, workloads: list[tuple[int, str]]) -> LogEntry:
    """The entry of a line of records. Raises ValueError."""
    if not isinstance(line, list) or len(line) != 2 or type(line[0]) is not int:
        raise ValueError("a line has the number of a workload and a record of it")
    number, record = line
    if not 0 <= number < len(workloads):
        raise ValueError(f"there is no workload {number}")
    value = form.pack(form.text_of(form.without_times(record)))
    _, run_secs, target, _ = record
    if not isinstance(target, dict):
        raise ValueError("the record has no target")
    structural_hash, version = workloads[number]
    environment = form.environment_of(form.device_of(target), version)
    return LogEntry(form.key_of(form.RECORDS, structural_hash), value, environment, form.cost_of(_times_s(run_secs)))


def _autotvm(file: Path) -> Iterator[LogEntry]:
    for where, line in _lines(file):
        target, task, times_s = _read_at(where, partial(_trial, line))
        cost = form.cost_of(times_s)
        if cost != UNKNOWN:  # it did not fail
            yield from _entries_at(where, partial(_trial_entry, line, target, task, cost))


def _trial(line: Any) -> tuple[str, str, list[float]]:
    """Target, task and times of a line of AutoTVM's; no times where it failed. Raises ValueError."""
    asked, result = (line.get("input"), line.get("result")) if isinstance(line, dict) else (None, None)
    if not isinstance(asked, list) or len(asked) < 3 or not isinstance(result, list) or len(result) < 2:
        raise ValueError("a line of AutoTVM's has an input, a config and a result; one with pickles is not read")
    if not isinstance(asked[0], str) or not isinstance(asked[1], str):
        raise ValueError("an input of AutoTVM has a target and the name of a task")
    return asked[0], asked[1], [] if result[1] else _times_s(result[0])


def _trial_entry(line: Any, target: str, task: str, cost: Any) -> LogEntry:
    words = [word for word in target.split() if not word.startswith(NOT_DECIDING)]
    environment = form.environment_of(form.device_of({"kind": " ".join(words)}), _version(line), AUTOTVM)
    named = digest(form.text_of(line["input"][1:])).hex()
    value = form.pack(form.text_of({"input": line["input"], "config": line.get("config")}))
    name = form.device_of({"kind": task})[:LONGEST_NAME]
    return LogEntry(f"{AUTOTVM}-{name}-{named}", value, environment, cost)


def _version(line: Any) -> str:
    version = line.get("tvm_version", "")
    return version if isinstance(version, str) else ""


def _times_s(data: Any) -> list[float]:
    if data is None:
        return []
    if not isinstance(data, list) or any(type(one) not in (int, float) for one in data):
        raise ValueError("times are a list of numbers")
    return [float(one) for one in data]


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    """Where a line is, and its JSON data. Raises ValueError."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{file}, line {number}"
                yield where, _read_at(where, partial(json.loads, line))


def _read_at(where: str, read: Callable[[], Result]) -> Result:
    """What `read` returns. Raises ValueError that tells where."""
    try:
        return read()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: {error}") from error


def _entries_at(where: str, make: Callable[[], LogEntry]) -> Iterator[LogEntry]:
    """The entry, if it is not too long for one. Raises ValueError that tells where."""
    try:
        yield _read_at(where, make)
    except ValueError as error:
        if not isinstance(error.__cause__, form.TooLong):
            raise
        _log.warning(str(error))
