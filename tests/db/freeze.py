"""Write frozen/REVISION.sqlite, a small database of the newest schema, for the tests of later ones.

Run it once, when a migration is added. A file of a schema that was released is never written again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
import tempfile
from pathlib import Path

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.target import Target
from tunewright.db.access import KeyScope
from tunewright.db.fleet import TunerDevice
from tunewright.db.job import EventKind, Idempotency, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.db.logs.entry import Cost, CostEvidence, LogEntry, LogEnvironment
from tunewright.db.schema import HEAD
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import Store, open_store
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule


def fill(store: Store) -> None:
    """One finished job of three trials, the second being the best and confirmed, the third a failure.

    And one that a tuner is at work on, of a model that was sent to the service.
    """
    x, y = Tensor("t0", (8,), DType.F32), Tensor("t1", (8,), DType.F32)
    stage = Stage("t1", (Axis("a0", 8),), op("max", Load("t0", (Var("a0"),), DType.F32), 0.0))
    task = Task("Relu", (x,), (y,), (), (stage,))
    target = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 49152, 1 << 20, 1 << 25)
    store.add_task(task)
    store.add_target(target)
    spec = JobSpec("ab" * 32, target.key, (SpecTask(task.key, 2),), {"seed": 3})
    lease = store.jobs.open(spec, "frozen.onnx", SearchBudget(3), "holder")
    assert lease is not None
    ok = Measurement(Status.OK, (2e-6, 2e-6, 3e-6), 2e-6, 2e-6, 3e-6, 0.0, "", 0.01, "cd" * 32, {"machine": "m1"})
    measurements = (
        ok,
        dataclasses.replace(ok, median_s=1.5e-6, low_s=1.4e-6, incumbent_s=2e-6, warm_s=1.2e-6),
        Measurement(Status.WRONG_RESULT, max_rel_err=float("inf"), error="output differs"),
    )
    for number, measurement in enumerate(measurements):
        schedule = Schedule("tiled", 1, (("tile_m", number), ("a", 1)))
        store.record(Record(task.key, target.key, schedule, measurement), lease)
    chosen = Record(task.key, target.key, Schedule("tiled", 1, (("tile_m", 1), ("a", 1))), measurements[1])
    store.confirm(chosen, lease)
    store.jobs.finish(lease, JobState.SUCCEEDED, result={"tuned_ms": 1.5})
    metrics = {"pairwise": 0.9, "tasks": [task.key]}
    store.snapshots.keep(NewSnapshot("cpu", "1", b"a cost model", 3, 3, metrics, "12" * 32, lease.job_id))
    cost = Cost(2e-6, 1e-6, 3e-6, 9, CostEvidence.TIMED)
    store.logs.write("frozen", [LogEntry("key", b"value", LogEnvironment("gpu", "compiler", {"driver": "1"}), cost)])
    _fill_service(store, dataclasses.replace(spec, model_sha256=MODEL_SHA256), target)


MODEL = b"a model"
MODEL_SHA256 = hashlib.sha256(MODEL).hexdigest()


def _fill_service(store: Store, spec: JobSpec, target: Target) -> None:
    key, _ = store.keys.create("frozen key", [KeyScope.JOBS_READ, KeyScope.JOBS_WRITE])
    store.uploads.add(
        MODEL_SHA256, [MODEL], label="sent.onnx", with_weights=False, description={"inputs": []}, owner=key.id
    )
    once = Idempotency(key.id, "once", "ef" * 32)
    job = store.jobs.submit(spec, "sent.onnx", SearchBudget(9), priority=2, owner=key.id, idempotency=once).job
    store.fleet.enlist("tuner", "host", 42, "0.1", "ray")
    lease = store.jobs.lease([target.key], "host:42")
    assert lease is not None and lease.job_id == job.id
    store.jobs.claim(lease, spec.tasks[0].task_key)
    store.jobs.renew(lease, progress={"trials": 0}, events=[NewEvent(EventKind.STAGE, {"stage": "search"})])
    store.fleet.report("tuner", [TunerDevice("host/cpu", target.key)], job.id)


def main() -> None:
    """Fill a database and keep a compact copy."""
    frozen = Path(__file__).parent / "frozen" / f"{HEAD}.sqlite"
    frozen.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "made.sqlite"
        with open_store(f"sqlite:///{fresh}") as store:
            fill(store)
        connection = sqlite3.connect(fresh, isolation_level=None)
        for statement in ("PRAGMA journal_mode=delete", "PRAGMA page_size=1024", "VACUUM"):
            connection.execute(statement)
        connection.close()
        fresh.rename(frozen)


if __name__ == "__main__":
    main()
