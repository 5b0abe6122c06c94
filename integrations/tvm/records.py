"""Records: what is known of workloads on targets, by this process and by the log, as objects of TVM.

What the log says is rebuilt once and kept in memory, which is all there is where no server can be reached.
"""

from __future__ import annotations

import json
import logging
import platform
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload
from tvm.target import Target
from tvm_ffi import structural_hash

from tunewright.api.client.log import LogClient
from tunewright.db.logs.entry import LONGEST_TEXT, EntryState, LogEntry, LogEnvironment, digest

from . import form
from .outbox import Outbox

TIMEOUT_S = 0.8
"""Most seconds that a question to the server takes; the first that takes as long is the last one for a while."""

LISTING_TIMEOUT_S = 30.0
"""Most seconds that listing everything takes, which nothing but people ask for."""

MOST_OF_A_WORKLOAD, MOST_IN_ALL = 2000, 100_000
"""Records that are listed at most, those that were written last."""

MOST_COUNTED = 200
"""A page. Each build counts the records, for TVM asks whether its database is false, which an empty one is."""

UNUSABLE = (ValueError, TypeError, RuntimeError, LookupError, AttributeError)
"""What TVM raises for JSON that is none of its own; its errors are some of these."""

_log = logging.getLogger("tunewright.tvm")


@dataclass(frozen=True, slots=True)
class RecordsPlace:
    """A workload on a target, as the log has it."""

    key: str
    environment: LogEnvironment

    @property
    def name(self) -> tuple[str, str]:
        """Another with this name is the same."""
        return self.key, self.environment.fingerprint


@dataclass(slots=True)
class _Known:
    """The records of a place, by the digest of the candidate, and the entries that were read."""

    records: dict[bytes, TuningRecord] = field(default_factory=dict)
    choices: set[str] = field(default_factory=set)


class Records:
    """The records of a namespace. Where the server is away, slow or none at all: those of this process."""

    def __init__(self, namespace: str, server: str | None) -> None:
        self._client = LogClient(namespace, server, TIMEOUT_S)
        self._listing = LogClient(namespace, server, LISTING_TIMEOUT_S)
        self._outbox = Outbox(self._client)
        self._workloads: dict[str, Workload] = {}
        self._known: dict[tuple[str, str], _Known] = {}
        self._told: set[str] = set()

    def environment(self, target: Target) -> LogEnvironment:
        """Where the records of a target hold."""
        return form.environment_of(form.device_of(json.loads(str(target))), tvm.__version__)

    def place(self, mod: IRModule, target: Target) -> RecordsPlace:
        """Where the records of a module on a target are."""
        return RecordsPlace(form.key_of(form.RECORDS, structural_hash(mod)), self.environment(target))

    def has_workload(self, mod: IRModule) -> bool:
        """Whether somebody tuned it, on any target."""
        key = form.key_of(form.WORKLOADS, structural_hash(mod))
        return key in self._workloads or bool(self._client.look_up([key], _anywhere()))

    def add_workload(self, mod: IRModule) -> Workload:
        """The workload of a module, which is kept if it is new here."""
        key = form.key_of(form.WORKLOADS, structural_hash(mod))
        if key not in self._workloads:
            self._workloads[key] = workload = Workload(mod)
            self._keep(f"the workload {key}", lambda: LogEntry(key, _packed(workload), _anywhere()))
        return self._workloads[key]

    def add(self, record: TuningRecord, target: Target) -> None:
        """Keep a record; `target` is that of one which tells none."""
        place = self.place(record.workload.mod, record.target or target)
        text = form.text_of(form.without_times(record.as_json()))
        self._of(place).records[digest(text)] = record
        cost = form.cost_of(_times_s(record))
        self._keep(
            f"a record of {place.key}",
            lambda: LogEntry(place.key, form.pack(text), place.environment, cost, machine=_machine()),
        )

    def best(self, place: RecordsPlace, most: int) -> list[TuningRecord]:
        """The fastest that this process knows."""
        good = [record for record in self._of(place).records.values() if time_of(record) < form.UNTIMED_S]
        return sorted(good, key=time_of)[:most]

    def candidates(self, place: RecordsPlace) -> dict[bytes, TuningRecord]:
        """All that this process knows, those that failed too, by a digest of the candidate."""
        return self._of(place).records

    def read(self, place: RecordsPlace, workload: Workload) -> None:
        """Learn what others wrote since the last time."""
        known = self._of(place)
        entries = self._client.values(place.key, place.environment, MOST_OF_A_WORKLOAD, known.choices)
        for entry in entries:
            self._learn(entry, workload)

    def served(self, place: RecordsPlace, mod: IRModule) -> TuningRecord | None:
        """The record that everybody gets; where the server can't be asked, or lacks ours, the best one known here."""
        arrived = self._outbox.flush(TIMEOUT_S)
        hit = self._client.look_up([place.key], place.environment).get(place.key)
        record = hit and self._rebuilt(hit.entry, lambda: self._workload(place) or Workload(mod))
        if record is not None and arrived and time_of(record) < form.UNTIMED_S:
            return record
        if hit is not None and record is None:  # it can't be read: others may
            self.read(place, self._workload(place) or Workload(mod))
        return next(iter(self.best(place, 1)), None)

    def all(self, environment: LogEnvironment) -> list[TuningRecord]:
        """All records of an environment, the fastest first."""
        self._outbox.flush(TIMEOUT_S)
        entries = _usable(self._listing.entries(MOST_IN_ALL, environment))
        self._fetch_workloads({form.hash_of(entry.key) or 0 for entry in entries})
        for entry in entries:
            place = RecordsPlace(entry.key, entry.environment)
            if workload := self._workload(place):
                self._learn(entry, workload)
        found = [record for _, known in self._known_in(environment) for record in known.records.values()]
        return sorted(found, key=time_of)

    def count(self, environment: LogEnvironment) -> int:
        """How many records of an environment there are; of those that only the log has, up to `MOST_COUNTED`."""
        self._outbox.flush(TIMEOUT_S)
        listed = _usable(self._client.entries(MOST_COUNTED, environment))
        names = {(entry.key, _candidate(entry)) for entry in listed}
        for key, known in self._known_in(environment):
            names |= {(key, candidate) for candidate in known.records}
        return len(names)

    def _known_in(self, environment: LogEnvironment) -> list[tuple[str, _Known]]:
        wanted = environment.fingerprint
        return [(key, known) for (key, fingerprint), known in self._known.items() if fingerprint == wanted]

    def _learn(self, entry: LogEntry, workload: Workload) -> None:
        known = self._of(RecordsPlace(entry.key, entry.environment))
        if entry.choice in known.choices or _is_out(entry):
            return
        known.choices.add(entry.choice)
        candidate = _candidate(entry)
        if candidate is None or candidate in known.records:
            return
        record = self._rebuilt(entry, lambda: workload)
        if record is not None:
            known.records[candidate] = record

    def _rebuilt(self, entry: LogEntry, workload: Callable[[], Workload]) -> TuningRecord | None:
        try:
            return TuningRecord.from_json(form.with_time(form.unpack(entry.value), entry.cost), workload())
        except UNUSABLE as error:
            self._tell(f"{entry.key} has a value that is no record of this TVM: {error}")
            return None

    def _fetch_workloads(self, hashes: Iterable[int]) -> None:
        keys = {form.key_of(form.WORKLOADS, one): one for one in hashes}
        wanted = {key: one for key, one in keys.items() if key not in self._workloads}
        for key, hit in self._listing.look_up(wanted, _anywhere()).items():
            try:
                workload = Workload.from_json(form.unpack(hit.entry.value))
            except UNUSABLE as error:
                self._tell(f"{key} has a value that is no workload of this TVM: {error}")
                continue
            if structural_hash(workload.mod) % (1 << 64) == wanted[key]:
                self._workloads[key] = workload

    def _keep(self, name: str, entry: Callable[[], LogEntry]) -> None:
        try:
            self._outbox.add([entry()])
        except ValueError as error:
            self._tell(f"{name} is not kept in the log: {error}")

    def _workload(self, place: RecordsPlace) -> Workload | None:
        return self._workloads.get(form.key_of(form.WORKLOADS, form.hash_of(place.key) or 0))

    def _of(self, place: RecordsPlace) -> _Known:
        return self._known.setdefault(place.name, _Known())

    def _tell(self, text: str) -> None:
        text = text[:LONGEST_TEXT]
        if text not in self._told:
            self._told.add(text)
            _log.warning(text)


def time_of(record: TuningRecord) -> float:
    """The time that records are compared by; that of a failure where there is none."""
    times_s = _times_s(record)
    return min(statistics.fmean(times_s), form.UNTIMED_S) if times_s else form.UNTIMED_S


def _times_s(record: TuningRecord) -> list[float]:
    return [float(time_s) for time_s in _numbers(record.run_secs or ())]


def _numbers(times: Iterable[Any]) -> list[Any]:
    return [getattr(time_s, "value", time_s) for time_s in times]


def _usable(entries: Iterable[LogEntry]) -> list[LogEntry]:
    return [entry for entry in entries if entry.key.startswith(form.RECORDS) and not _is_out(entry)]


def _is_out(entry: LogEntry) -> bool:
    return entry.state is EntryState.RETIRED


def _candidate(entry: LogEntry) -> bytes | None:
    """A digest of what was tried, the same however the value is packed."""
    try:
        return digest(form.text_of(form.unpack(entry.value)))
    except ValueError:
        return None


def _packed(workload: Workload) -> bytes:
    return form.pack(form.text_of(workload.as_json()))


def _anywhere() -> LogEnvironment:
    return form.environment_of("", tvm.__version__)


def _machine() -> str:
    return platform.node().encode("ascii", "replace").decode()[:LONGEST_TEXT]
