"""Audit of the schedules: tasks that machines with the same processor would run differently.

Targets with the same processor, or GPU, are of one fleet. They are different targets where they differ in threads or
caches, and what was measured on them may come from different compilers; so lookups may give each another schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from tunewright.codegen.target import Target
from tunewright.search_space.schedule import Schedule

from .database import DatabasePart, read_session
from .tables import BestRow, TargetRow, TaskRow
from .translate import to_schedule, to_target

TASKS_AT_ONCE = 200
"""Tasks that are looked at in one transaction."""

TARGETS_AT_ONCE = 500
"""Targets of a fleet that are looked at."""

HARDWARE = ("threads", "l1_bytes", "l2_bytes", "l3_bytes")
"""What targets with the same processor may differ in."""

COMPILERS = ("tunewright", "llvm", "llvmlite", "nvrtc", "driver")
"""What the provenance of a measurement says of where its code came from."""

GPU = "gpu"
"""The name of a GPU in the provenance of what was measured on it."""


@dataclass(frozen=True, slots=True)
class TargetBest:
    """What lookups of a task get for a target."""

    target: Target
    schedule: Schedule
    median_s: float
    provenance: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "target": self.target.key,
            "name": str(self.target),
            **{name: getattr(self.target, name) for name in HARDWARE},
            **{name: self.provenance[name] for name in COMPILERS if name in self.provenance},
            "schedule": self.schedule.to_json(),
            "median_s": self.median_s,
        }


@dataclass(frozen=True, slots=True)
class ScheduleFinding:
    """A task that targets with the same processor have different schedules for."""

    task_key: str
    op: str
    shape: str
    bests: tuple[TargetBest, ...]

    @property
    def processor(self) -> str:
        """The name of the GPU, else what LLVM calls the processor."""
        first = self.bests[0]
        return first.provenance.get(GPU) or first.target.cpu

    @property
    def differences(self) -> tuple[str, ...]:
        """Names of what the targets, or the compilers of what was measured there, differ in."""
        hardware = [name for name in HARDWARE if len({getattr(best.target, name) for best in self.bests}) > 1]
        compilers = [name for name in COMPILERS if len({best.provenance.get(name) for best in self.bests}) > 1]
        return (*hardware, *compilers)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "task": self.task_key,
            "op": self.op,
            "shape": self.shape,
            "processor": self.processor,
            "differences": list(self.differences),
            "bests": [best.to_json() for best in self.bests],
        }


class ScheduleAudit(DatabasePart):
    """Each page of tasks is one transaction. Raises StoreError."""

    def findings(self) -> Iterator[ScheduleFinding]:
        """All of them, fleet by fleet."""
        for targets in self._fleets():
            after = ""
            while rows := self._page(list(targets), after):
                after = rows[-1].task_key
                for _, of_task in groupby(rows, lambda row: row.task_key):
                    yield from _findings(list(of_task), targets)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The findings as JSON data, and at last a summary: how many there are."""
        count = 0
        for finding in self.findings():
            count += 1
            yield finding.to_json()
        yield {"summary": {"disagreement": count}}

    @read_session
    def _fleets(self, session: Session) -> Sequence[dict[str, Target]]:
        """The targets of each fleet that has several, by key."""
        fleets: dict[tuple[str, ...], dict[str, Target]] = defaultdict(dict)
        for row in session.scalars(select(TargetRow).order_by(TargetRow.key)):
            target = to_target(row.data)
            fleet = fleets[target.kind, target.triple, target.cpu, target.features]
            if len(fleet) < TARGETS_AT_ONCE:
                fleet[target.key] = target
        return [targets for targets in fleets.values() if len(targets) > 1]

    @read_session
    def _page(self, session: Session, target_keys: Sequence[str], after: str) -> Sequence[Row[Any]]:
        """The bests of some tasks behind one that have several."""
        is_of_fleet = BestRow.target_key.in_(target_keys)
        tasks = select(BestRow.task_key).where(is_of_fleet, BestRow.task_key > after).group_by(BestRow.task_key)
        several = tasks.having(func.count() > 1).order_by(BestRow.task_key).limit(TASKS_AT_ONCE)
        columns = BestRow.task_key, BestRow.target_key, BestRow.schedule, BestRow.median_s, BestRow.provenance
        query = select(*columns, TaskRow.op, TaskRow.shape).join(TaskRow, TaskRow.key == BestRow.task_key)
        keys = list(session.scalars(several))
        query = query.where(is_of_fleet, BestRow.task_key.in_(keys)).order_by(BestRow.task_key, BestRow.target_key)
        return session.execute(query).all()


def _findings(rows: Sequence[Row[Any]], targets: Mapping[str, Target]) -> Iterator[ScheduleFinding]:
    """What is found of a task, of its bests on targets of a fleet: GPUs of different names are no fleet."""
    fleets: dict[str, list[TargetBest]] = defaultdict(list)
    for row in rows:
        best = TargetBest(targets[row.target_key], to_schedule(row.schedule, BestRow), row.median_s, row.provenance)
        fleets[best.provenance.get(GPU, "")].append(best)
    for bests in fleets.values():
        if len({best.schedule.key for best in bests}) > 1:
            yield ScheduleFinding(rows[0].task_key, rows[0].op, rows[0].shape, tuple(bests))
