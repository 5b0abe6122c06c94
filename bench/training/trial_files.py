"""Files of the trials that base models learn from, kept in the source so that a model can be made at any time.

A file is a compressed export of a database (docs/records.md) of the trials on one processor, without fields that no
model uses.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tunewright.bench.files import write_whole
from tunewright.db.exchange import RecordEntry, parse
from tunewright.search_space.measurement import DRIFT, Candidate, Measurement
from tunewright.tuner.errors import Refused

MEASURED = Path(__file__).parent / "measured"

EXPECTED = Path(__file__).parent / "told"
"""Predictions of an older base model for processors whose own trials are gone, in the form of trials: the times that it
expects of schedules that are chosen like others. The provenance of each line names it. A model that learns from the
trials of one processor alone forgets how others differ: see Robins, "Catastrophic Forgetting, Rehearsal and
Pseudorehearsal", 1995.
"""

DIGITS = 4
"""Significant digits of a time, whose interval is wider."""

UNUSED_FIELDS: Mapping[str, Any] = {
    "samples_s": [], "max_rel_err": None, "build_s": 0.0, "object_sha256": "", "incumbent_s": None, "warm_s": None,
}  # fmt: skip
"""Fields that no cost model uses, with one value for all trials. The machine's pace is left out too."""


def write_trials(path: Path, exported: Iterable[Mapping[str, Any]]) -> int:
    """Write a file. Returns the number of its trials."""
    lines = [json.dumps(_shorten(data), separators=(",", ":")) for data in exported]
    write_whole(path, lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))
    return len(lines)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, as `Store.import_` reads them. Raises Refused for a damaged file."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from file
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise Refused(f"{path} can't be read: {error}") from error


def read_expected() -> list[RecordEntry]:
    """The predictions for processors without measurements. Raises as `read_entries`."""
    return read_entries(EXPECTED, {path.name for path in MEASURED.glob("*.xz")})


def read_entries(folder: Path, excluded: Collection[str] = ()) -> list[RecordEntry]:
    """The trials of all files in a folder without those `excluded` by name. Raises Refused for damaged files."""
    entries = []
    for path in sorted(path for path in folder.glob("*.xz") if path.name not in excluded):
        for number, line in enumerate(read_lines(path), 1):
            try:
                entries.append(parse(line))
            except ValueError as error:
                raise Refused(f"{path}, line {number}: {error}") from error
    return entries


def example(entry: RecordEntry) -> tuple[Candidate, Measurement]:
    """The candidate and its measurement, as a cost model learns them."""
    return Candidate(entry.task, entry.target, entry.record.schedule), entry.record.measurement


def _shorten(data: Mapping[str, Any]) -> dict[str, Any]:
    times_s = {name: _round(data[name]) for name in ("median_s", "low_s", "high_s")}
    day = data["created_at"].partition("T")[0]
    machine = {name: text for name, text in data["provenance"].items() if name != DRIFT}
    return {**data, **UNUSED_FIELDS, **times_s, "provenance": machine, "created_at": f"{day}T00:00:00+00:00"}


def _round(time_s: float | None) -> float | None:
    return None if time_s is None else float(f"{time_s:.{DIGITS}g}")
