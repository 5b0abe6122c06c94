"""Kept trials: what base models have learned from, as a part of the source, so that another can be made at any time.

A file is an export of a database (docs/records.md) of the trials on one processor, compressed, without what nothing is
learned from.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tunewright.bench.files import write_whole
from tunewright.db.exchange import Entry, parse
from tunewright.tuner.errors import Refused

MEASURED = Path(__file__).parent / "measured"

TOLD = Path(__file__).parent / "told"
"""What an older base model says of processors whose own trials are gone, as if these were trials: the times that it
expects of schedules that are chosen like others. The provenance of each line names it. A model that learns from the
trials of one processor alone forgets how others differ: see Robins, "Catastrophic Forgetting, Rehearsal and
Pseudorehearsal", 1995.
"""

DIGITS = 4
"""Of a time: its interval is wider."""

UNTAUGHT: Mapping[str, Any] = {
    "samples_s": [], "max_rel_err": None, "build_s": 0.0, "object_sha256": "", "incumbent_s": None, "warm_s": None,
}  # fmt: skip
"""What no cost model learns from, so that the same is said of all trials. The machine's pace beside each is left out,
too."""


def keep(path: Path, exported: Iterable[Mapping[str, Any]]) -> int:
    """Write a file; how many trials it has."""
    lines = [json.dumps(_short(data), separators=(",", ":")) for data in exported]
    write_whole(path, lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9))
    return len(lines)


def lines(path: Path) -> Iterator[str]:
    """Of a file, as `Store.import_` reads them. Raises Refused for what is no such file."""
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from file
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise Refused(f"{path} can't be read: {error}") from error


def told() -> list[Entry]:
    """What is told of processors that nothing is measured of. Raises as `entries`."""
    return entries(TOLD, {path.name for path in MEASURED.glob("*.xz")})


def entries(folder: Path, but: Collection[str] = ()) -> list[Entry]:
    """The trials of all files in a folder, but for those of some names. Raises Refused for what can't be read."""
    found = []
    for path in sorted(path for path in folder.glob("*.xz") if path.name not in but):
        for number, line in enumerate(lines(path), 1):
            try:
                found.append(parse(line))
            except ValueError as error:
                raise Refused(f"{path}, line {number}: {error}") from error
    return found


def _short(data: Mapping[str, Any]) -> dict[str, Any]:
    times_s = {name: _rounded(data[name]) for name in ("median_s", "low_s", "high_s")}
    day = data["created_at"].partition("T")[0]
    machine = {name: text for name, text in data["provenance"].items() if name != "pace"}
    return {**data, **UNTAUGHT, **times_s, "provenance": machine, "created_at": f"{day}T00:00:00+00:00"}


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else float(f"{time_s:.{DIGITS}g}")
