"""Sync: each of a folder and the log gets what it lacks and the other has.

Where both have a file, and not the same one, neither is changed: `SyncDirection.PUSH` is for those who say that the
folder's is to be served from now on, `PULL` for those who say that the log's is to be taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from tunewright.db.logs.entry import LogEntry
from tunewright.tuner.errors import Refused

from ..log import ENTRIES_AT_ONCE, LogClient
from .folder_format import FolderFormat
from .sync_report import SyncReport
from .tuned_folder import Place, TunedFolder

LIMIT_S = 60.0
"""What listing, and each request to write, may take of a server that has just answered."""

MOST_ENTRIES = 20_000
"""Entries of a namespace that are looked at, the last changed first."""


class SyncDirection(StrEnum):
    """What goes where."""

    BOTH = "both"
    PUSH = "push"
    PULL = "pull"


def sync(
    kind: FolderFormat,
    root: Path,
    namespace: str,
    server: str,
    direction: SyncDirection = SyncDirection.BOTH,
    only: Mapping[str, str] | None = None,
) -> SyncReport:
    """Bring a folder and a namespace of the log together. Nothing is raised for what a server does.

    `only`: what is pulled is for these, `device` or a version by its name, as far as it says. Raises OSError where the
    folder can't be read or written.
    """
    check_root(root)
    brief, patient = LogClient(namespace, server), LogClient(namespace, server, LIMIT_S)
    brief.entries(most=1)  # one that is not there costs a second, and not what a long list may take
    listed = [] if brief.is_resting else patient.entries(MOST_ENTRIES)
    if brief.is_resting or patient.is_resting:
        fault = brief.key_fault or patient.key_fault
        return SyncReport(is_reached=bool(fault), key_fault=fault)
    work = FolderSync(kind, TunedFolder(root), patient, listed)
    if direction is not SyncDirection.PULL:
        work.push(replaces=direction is SyncDirection.PUSH)
    if direction is not SyncDirection.PUSH:
        work.pull(only or {}, replaces=direction is SyncDirection.PULL)
    return work.report()


def check_root(root: Path) -> None:
    """Raises Refused where the folder is something else."""
    if root.exists() and not root.is_dir():
        raise Refused(f"--root {str(root)!r} is no folder")


class FolderSync:
    """One folder, and what the log has for it."""

    def __init__(self, kind: FolderFormat, folder: TunedFolder, client: LogClient, listed: list[LogEntry]) -> None:
        self._kind = kind
        self._folder = folder
        self._client = client
        self._listed = listed
        self._files = {file.place: file.entry for file in kind.files(folder)}
        self._served = {_name(entry): entry for entry in listed if entry.is_served}
        self._report = SyncReport()
        self._moved: set[Place] = set()
        if len(listed) == MOST_ENTRIES:
            self._report.notes.append(f"only the {MOST_ENTRIES:,} entries that changed last were looked at")

    def push(self, *, replaces: bool) -> None:
        """Add files that the log lacks; with `replaces` also those of which it has others."""
        known = {(*_name(entry), entry.choice) for entry in self._listed}
        lacked = [
            (place, entry)
            for place, entry in self._files.items()
            if (*_name(entry), entry.choice) not in known and (replaces or _name(entry) not in self._served)
        ]
        for start in range(0, len(lacked), ENTRIES_AT_ONCE):
            part = lacked[start : start + ENTRIES_AT_ONCE]
            if not self._client.write([entry for _, entry in part]):
                self._report.key_fault = self._client.key_fault
                self._report.is_reached = bool(self._client.key_fault)
                return
            self._report.pushed += len(part)
            self._moved |= {place for place, _ in part}

    def pull(self, only: Mapping[str, str], *, replaces: bool) -> None:
        """Write files that the folder lacks; with `replaces` also over those that differ."""
        for place, entries in self._places(only).items():
            values = {entry.value for entry in entries}
            is_new = self._folder.is_free(place)
            if place in self._files and self._files[place].value in values:
                continue
            if not is_new and not replaces:
                continue
            if len(values) > 1:
                self._leave_out(place, _choice_words(entries))
                continue
            try:
                self._folder.write(place, values.pop())
            except ValueError as error:
                self._leave_out(place, str(error))
                continue
            self._moved.add(place)
            self._report.pulled += 1
            self._report.replaced += not is_new

    def _places(self, only: Mapping[str, str]) -> dict[Place, list[LogEntry]]:
        """What is served, by the file that it is for."""
        places: dict[Place, list[LogEntry]] = {}
        for entry in self._served.values():
            if all(_facts(entry).get(name, wanted) == wanted for name, wanted in only.items()):
                try:
                    places.setdefault(self._kind.place(entry), []).append(entry)
                except ValueError as error:
                    self._leave_out((entry.key,), f"what the log has can't be written here: {error}")
        return places

    def _leave_out(self, place: Place, reason: str) -> None:
        self._report.left_out["/".join(place)] = reason

    def report(self) -> SyncReport:
        """What came of it; also of the files that neither went nor came."""
        for place, reason in self._folder.left_out.items():
            self._leave_out(place, reason)
        for place, entry in self._files.items():
            theirs = self._served.get(_name(entry))
            if theirs is not None and place not in self._moved:
                self._report.same += entry.value == theirs.value
                self._report.differing += entry.value != theirs.value
        return self._report


def _name(entry: LogEntry) -> tuple[str, bytes]:
    """What the log knows one by, whatever its value."""
    return entry.key, entry.environment.digest


def _facts(entry: LogEntry) -> dict[str, str]:
    """What an entry says of where it holds, by name."""
    return dict(entry.environment.versions) | {"device": entry.environment.device}


def _choice_words(entries: Iterable[LogEntry]) -> str:
    facts = [_facts(entry) for entry in entries]
    names = sorted({name for one in facts for name in one if len({other.get(name) for other in facts}) > 1})
    return f"the log has it for several of {', '.join(names)}: --only picks one" if names else "the log has several"
