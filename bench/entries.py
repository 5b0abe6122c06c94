"""Entries: results by case and number of threads, in a JSON file that is complete after each of them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeVar

from tunewright.bench.files import ROOT, write_whole
from tunewright.costmodel.base import base

SHAPING = ("codegen", "graph", "search_space", "workers", "costmodel", "tuner")
"""Folders whose code decides how fast a model runs."""

Entry = dict[str, Any]

Case = TypeVar("Case")


class Entries:
    """Measurements in the order of the cases. The file need not exist yet."""

    def __init__(self, path: Path, order: Sequence[str]) -> None:
        self._path, self._order = path, order
        self._entries: dict[str, dict[str, Entry]] = json.loads(path.read_text())["cases"] if path.exists() else {}

    def get(self, case: str, threads: int) -> Entry | None:
        """The entry, if there is one."""
        return self._entries.get(case, {}).get(str(threads))

    def has(self, case: str, threads: int, settings: Mapping[str, Any]) -> bool:
        """Whether there is a measurement under these settings."""
        entry = self.get(case, threads)
        return entry is not None and "error" not in entry and settings.items() <= entry.items()

    def put(self, case: str, threads: int, entry: Entry) -> None:
        """Replace an entry, in the file too. The summary is dropped."""
        self._entries.setdefault(case, {})[str(threads)] = entry
        self.write({})

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write the file with a summary of all entries."""
        places = {name: place for place, name in enumerate(self._order)}
        cases = {
            name: dict(sorted(self._entries[name].items(), key=lambda item: int(item[0])))
            for name in sorted(self._entries, key=lambda name: places.get(name, len(places)))
        }
        write_whole(self._path, f"{json.dumps({'summary': summary, 'cases': cases}, indent=1)}\n".encode())

    def of(self, threads: int) -> Iterator[tuple[str, Entry]]:
        """Cases and entries on that many threads, in order, without those that failed."""
        for case in self._order:
            entry = self.get(case, threads)
            if entry is not None and "error" not in entry:
                yield case, entry


def announce(
    cases: Sequence[Case], title: Callable[[Case], str], say: Callable[[str], None], within_minutes: float
) -> Iterator[Case]:
    """Yield the cases one by one, each announced by `say`, until the time is over."""
    deadline_s = time.monotonic() + 60 * within_minutes
    for number, case in enumerate(cases):
        if time.monotonic() > deadline_s:
            say(f"{len(cases) - number} are left for the next run: the time is over")
            return
        say(f"[{number + 1}/{len(cases)}] {title(case)}")
        yield case


@cache
def code_sha256(folders: tuple[str, ...] = SHAPING) -> str:
    """A digest of the code in these folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".ll"):
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def base_model_sha256(target_kind: str = "cpu") -> str | None:
    """The digest of the base model that searches begin with; None where there is none."""
    base_model = base(target_kind)
    return base_model.sha256 if base_model else None


def best_peer(entry: Mapping[str, Any]) -> tuple[str, float] | None:
    """The fastest peer and its milliseconds; None where no peer runs the model."""
    return min(entry["peers"].items(), key=lambda item: item[1], default=None)


def gain(entry: Mapping[str, Any]) -> float | None:
    """Our speed in units of the best peer's; None without a peer."""
    best = best_peer(entry)
    return best[1] / entry["tunewright_ms"] if best else None


def geometric(values: Sequence[float]) -> float | None:
    """The geometric mean; None of an empty sequence."""
    return geometric_mean(values) if values else None
