"""Database: what MetaSchedule takes for its database, and has its records in the log."""

from __future__ import annotations

from typing import Any

from tvm.ir import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase, TuningRecord, Workload
from tvm.target import Target

from .form import NAMESPACE
from .records import Records


@derived_object
class LogDatabase(PyDatabase):  # type: ignore[misc]
    """The records of one target in a namespace of the log.

    Goes where MetaSchedule wants a database: `tune_tir(..., database=Database(target))`, and `with Database(target):`
    around a build. Nothing of another target is ever returned. `server` is by default that of the setting; without
    one, or while it is away, the records of this process are all there are.
    """

    def __init__(self, target: Any, server: str | None = None, namespace: str = NAMESPACE) -> None:
        super().__init__()
        self.target = Target(target)
        self.records = Records(namespace, server)

    def has_workload(self, mod: IRModule) -> bool:
        """Whether somebody tuned it."""
        return self.records.has_workload(mod)

    def commit_workload(self, mod: IRModule) -> Workload:
        """The workload of a module, added if it is new."""
        return self.records.add_workload(mod)

    def commit_tuning_record(self, record: TuningRecord) -> None:
        """Keep a record."""
        self.records.add(record, self.target)

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        """The fastest records of a workload on the target."""
        place = self.records.place(workload.mod, self.target)
        self.records.read(place, workload)
        return self.records.best(place, int(top_k))

    def get_all_tuning_records(self) -> list[TuningRecord]:
        """All records on the target, the fastest first."""
        return self.records.all(self.records.environment(self.target))

    def query_tuning_record(
        self, mod: IRModule, target: Target, workload_name: str | None = None
    ) -> TuningRecord | None:
        """The record of a module on a target that the log serves: the same to all who build."""
        return self.records.served(self.records.place(mod, target), mod)

    def __len__(self) -> int:
        """How many records of the target there are."""
        return self.records.count(self.records.environment(self.target))


Database = LogDatabase
