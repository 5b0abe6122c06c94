"""A task with something to choose, its trials, and a shower without a child: for tests of the pages of tasks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Any

from tunewright.codegen.argument import Argument, Role
from tunewright.codegen.artifact import Phase
from tunewright.codegen.cuda.emit import Launch
from tunewright.codegen.cuda.launchable import Launchable
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var, op
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.codegen.llvm.linkable import Linkable
from tunewright.codegen.target import Target
from tunewright.db.job import Lease
from tunewright.db.store import Store
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.outline import LoopOutline
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.explain.describer import DescriptionError, ScheduleDescriber, ScheduleDescription
from tunewright.tuner.explain.nest import NestLoop, NestStep
from tunewright.tuner.explain.texts import DiffLine, difference

HOSTILE = "</title><script>alert(1)</script>\u202e\"' onclick='x"


def product(rows: int = 64, label: str = "MatMul") -> Task:
    """y = x w, square."""
    x = Tensor("t0", (rows, 64), DType.F32)
    w = Tensor("t1", (64, 64), DType.F32, constant=True)
    y = Tensor("t2", (rows, 64), DType.F32)
    body = op("mul", Load("t0", (Var("a0"), Var("a2")), DType.F32), Load("t1", (Var("a2"), Var("a1")), DType.F32))
    stage = Stage("t2", (Axis("a0", rows), Axis("a1", 64)), body, (Axis("a2", 64),), "sum")
    return Task(label, (x, w), (y,), (), (stage,))


def others(task: Task, target: Target, count: int) -> list[Schedule]:
    """So many points of the space that is searched first, the default not among them."""
    space, default = spaces(task, target)[0], default_schedule(task, target)
    found = (space.schedule(row) for row in space.points)
    return [schedule for schedule, _ in zip((one for one in found if one != default), range(count), strict=False)]


def good(median_s: float, samples: int = 5) -> Measurement:
    """A run that worked."""
    times_s = tuple(median_s * (1 + 0.01 * (n % 3 - 1)) for n in range(samples))
    return Measurement(
        Status.OK,
        times_s,
        median_s,
        0.99 * median_s,
        1.01 * median_s,
        3e-7,
        build_s=0.012,
        object_sha256="ab" * 32,
        provenance={"llvm": "22.1", "cpu": "znver5"},
        incumbent_s=1.1 * median_s,
        warm_s=0.9 * median_s,
    )


@dataclass
class Tried:
    """A task whose trials are stored: the default takes 2 ms, the others 1 ms and a little more each."""

    store: Store
    task: Task
    target: Target
    schedules: list[Schedule]  # the fastest first
    default: Schedule

    def path(self, schedule: Schedule | None = None) -> str:
        """Of the page of the task, or of a schedule."""
        return f"/tasks/{self.task.key}" + (f"/schedules/{schedule.key}" if schedule else "")

    def record(self, schedule: Schedule, measured: Measurement, lease: Lease | None = None) -> None:
        assert self.store.record(Record(self.task.key, self.target.key, schedule, measured), lease)


def tried(store: Store, target: Target, count: int = 4, task: Task | None = None) -> Tried:
    """Store `count` trials beside the default's."""
    task = task or product()
    store.add_task(task)
    store.add_target(target)
    made = Tried(store, task, target, others(task, target, count), default_schedule(task, target))
    made.record(made.default, good(2e-3))
    for number, schedule in enumerate(made.schedules):
        made.record(schedule, good(1e-3 * (1 + 0.05 * number)))
    return made


def failed(status: Status = Status.CRASH, error: str = HOSTILE) -> Measurement:
    """One that did not work."""
    return replace(Measurement(status, error=error), max_rel_err=inf if status is Status.WRONG_RESULT else None)


TENSOR_MAP = TensorMap("x", DType.F32, (4, 5), (8, 1), (64, 32))

LAUNCHABLE = Launchable(
    arch="sm_90a",
    cubin=b"\x7fELF",
    ptx=".version 9.0",
    launches=(Launch("k_p0", (3, 2, 1), 128, 4096), Launch("k_p1", (1, 1, 1), 384, 16640, (TENSOR_MAP,))),
    arguments=(Argument("x", Role.INPUT, "float32", (4, 5), 80), Argument("y", Role.OUTPUT, "float32", (4,), 16)),
)

LINKABLE = Linkable(
    triple="x86_64-unknown-linux-gnu",
    cpu="znver5",
    features="+avx2",
    objects=(b"\x7fELF", b"\x7fELF2"),
    llvm="define void @k_p0",
    functions=(Phase("k_p0", 12), Phase("k_p1", 1)),
    arguments=LAUNCHABLE.arguments,
)

OUTLINE = LoopOutline(
    "t2", {"i0": 64, "i1": 96}, {"r0": 32}, "i1", 16, ({"i0": 4, "i1": 32, "r0": 2},), 0, (12,), {"t1": (3, 32, 32)}
)


@dataclass
class PlainShower(ScheduleDescriber):
    """Shows what tests can tell, at once, or when it may."""

    may: threading.Event = field(default_factory=threading.Event)
    why: str = ""
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may.set()

    def picture(self, task: Task, target: Target, schedule: Schedule) -> ScheduleDescription:
        self._wait("picture")
        loop = NestLoop(
            "parallel", "chunk", 4, (NestStep("y[i] = 0"), NestLoop("serial", "k", 64, (NestStep("y[i] += x[k]"),)))
        )
        return ScheduleDescription(("Four threads share it.", f"It is {schedule}."[:300]), (loop,))

    def text(self, task: Task, target: Target, schedule: Schedule, part: str) -> str:
        self._wait(part)
        return f"{part} <begin>\n{schedule}\n" + "".join(f"line {n}\n" for n in range(20))

    def difference(
        self, task: Task, target: Target, schedule: Schedule, against: Schedule, part: str
    ) -> tuple[DiffLine, ...]:
        self._wait("difference")
        return tuple(difference(self.text(task, target, against, part), self.text(task, target, schedule, part)))

    def launchable(self, task: Task, target: Target, schedule: Schedule) -> Launchable:
        self._wait("launchable")
        return LAUNCHABLE

    def outline(self, task: Task, target: Target, schedule: Schedule) -> LoopOutline:
        self._wait("outline")
        return OUTLINE

    def linkable(self, task: Task, target: Target, schedule: Schedule) -> Linkable:
        self._wait("linkable")
        return LINKABLE

    def _wait(self, what: str) -> None:
        self.asked.append(what)
        assert self.may.wait(60)
        if self.why:
            raise DescriptionError(self.why)

    def close(self) -> None:
        pass


def record_line(
    task: Task, target: Target, schedule: Schedule, measurement: Measurement, kind: str = "trial"
) -> dict[str, Any]:
    """A record of now as an export has it."""
    return {
        "schema": 2,
        "kind": kind,
        "task_key": task.key,
        "task": task.to_json(),
        "target_key": target.key,
        "target": target.to_json(),
        "schedule": schedule.to_json(),
        **measurement.to_json(),
        "created_at": datetime.now(UTC).isoformat(),
    }
