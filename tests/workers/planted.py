"""A plugin for the children of a pool: sketches whose kernels do what no kernel should, and calls that do the same.

The sketch "planted.<fault>" lowers to the default kernel of the task, spoiled.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tunewright.codegen import verify as rules
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Const, Load, Op, const
from tunewright.codegen.ir.ir import Block, Buffer, For, Kernel, Stmt, Store
from tunewright.codegen.llvm import build
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.search_space import sketches
from tunewright.search_space.description import SchedulePoint
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketch import Sketch, find_space
from tunewright.search_space.space import Space
from tunewright.workers.measure import measure

FAULTS = (
    "ok",
    "same",
    "twin",
    "slow",
    "wrong_result",
    "out_of_bounds",
    "changed_input",
    "segfault",
    "hang",
    "hang_longer",
    "build_error",
    "out_of_memory",
    "crash_in_build",
    "hang_in_build",
    "memory_in_build",
    "bug",
    "unverified",
    "kill_worker",
)

EXEMPT: list[Kernel] = []
"""Kernels that are built though they break the rules: what they do then is the matter of the tests."""

DEVICES = "PLANTED_DEVICES"
"""Variable that names a folder: a file NAME.broken in it breaks a device, and NAME.timing tells that it has timed."""

SLOWER = 8
"""How often the slow kernel computes the same."""

FOREVER = threading.Event()


def add_one(output: Buffer, index: tuple[int, ...]) -> Stmt:
    at = tuple(const(i) for i in index)
    return Store(output.name, at, Load(output.name, at, output.dtype) + Const(1.0, output.dtype))


def spoiled(kernel: Kernel, fault: str) -> Kernel:
    """The kernel with more phases, or with memory that it has no use for or can't have."""
    output = kernel.params[-1]
    first = (0,) * len(output.shape)
    index = tuple(const(i) for i in first)
    extra: Stmt
    match fault:
        case "ok" | "same":
            return kernel
        case "slow":
            return replace(kernel, body=Block(kernel.body.body * SLOWER))
        case "twin":  # as fast, but called with memory that it has no use for
            spare = Buffer("spare", (len(fault),), DType.F32)
            return replace(kernel, scratch=(*kernel.scratch, spare))
        case "wrong_result":
            extra = add_one(output, tuple(extent - 1 for extent in output.shape))
        case "out_of_bounds":
            extra = Store(output.name, (const(output.shape[0]), *index[1:]), Const(1.0, output.dtype))
        case "changed_input":
            extra = Store(kernel.params[0].name, (const(0),) * len(kernel.params[0].shape), Const(7.0, DType.F32))
        case "segfault":
            extra = Store(output.name, (const(1 << 40), *index[1:]), Const(1.0, output.dtype))
        case "hang" | "hang_longer":
            extra = For("forever", 1 << (50 if fault == "hang" else 51), add_one(output, first))
        case "build_error":
            mixed = Op("add", (Const(0.1, DType.F64), Load(output.name, index, output.dtype)), output.dtype)
            extra = Store(output.name, index, mixed)
        case "out_of_memory":
            huge = Buffer("huge", (1 << 42,), DType.F32)
            return replace(kernel, scratch=(*kernel.scratch, huge))
        case _:
            raise ValueError(f"no fault is called {fault}")
    return replace(kernel, body=Block((*kernel.body.body, extra)))


@dataclass(frozen=True)
class Planted:
    fault: str
    version: int = 1

    @property
    def name(self) -> str:
        return f"planted.{self.fault}"

    def applies(self, task: Task, target: Target) -> bool:
        return True

    def space(self, task: Task, target: Target) -> Space:
        return real(task, target).space(task, target)

    def lower(self, task: Task, schedule: Schedule, target: Target) -> Kernel:
        match self.fault:
            case "crash_in_build":
                crash()
            case "hang_in_build":
                FOREVER.wait()
            case "memory_in_build":
                np.ones(1 << 42)
            case "bug":
                raise KeyError("no such axis")
            case "kill_worker":
                os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the parent is what forked this process for it
                FOREVER.wait()
            case "unverified":
                return self.kernel(task, target, "out_of_bounds")
        kernel = self.kernel(task, target, self.fault)
        EXEMPT.append(kernel)
        return kernel

    def describe(self, point: SchedulePoint) -> Iterator[str]:
        yield f"The fault {self.fault}."

    @staticmethod
    def kernel(task: Task, target: Target, fault: str) -> Kernel:
        sketch = real(task, target)
        return spoiled(sketch.lower(task, sketch.space(task, target).default, target), fault)


def real(task: Task, target: Target) -> Sketch:
    """The first sketch of the project that is offered for a task."""
    return next(sketch for sketch in REAL if find_space(sketch, task, target))


def verify(kernel: Kernel) -> None:
    if not any(kernel is exempt for exempt in EXEMPT):
        verify_soundly(kernel)


def parent_of(pid: int) -> int:
    """The process id of what started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def crash() -> None:
    """End as a wild pointer does."""
    ctypes.string_at(8)


def shout(text: str) -> None:
    """Print as native code does, past Python's buffers, in the way of whatever protocol there is."""
    os.write(1, text.encode())
    os.write(2, text.encode())


def end(code: int) -> None:
    os._exit(code)


def device_file(suffix: str) -> Path:
    """That of the device of this process."""
    return Path(os.environ[DEVICES]) / f"{os.environ.get('TUNEWRIGHT_DEVICE', 'own')}.{suffix}"


def noted_measure(**arguments: Any) -> Any:
    """See the fixture `as_it_times`."""
    device_file("timing").touch()
    return measure_soundly(**arguments)


def prepare(task: dict[str, Any]) -> None:
    """A task "Lost" has no reference, since its process dies of it; one "TooLarge" has no room for it."""
    if device_file("broken").exists():  # see the fixture `broken`
        crash()
    match task["op"]:
        case "Lost":
            crash()
        case "TooLarge":
            allocate(1 << 42)
    prepare_soundly(task)


def allocate(size_bytes: int) -> int:
    return int(np.ones(size_bytes, np.uint8).size)


def abort(last_words: str) -> None:
    shout(last_words)
    os.abort()


REAL = sketches.SKETCHES
verify_soundly = rules.verify
setattr(build, "verify", verify)  # noqa: B010 - a name that it imports
prepare_soundly, measure_soundly = measure.prepare, measure.measure
sketches.SKETCHES = (*(Planted(fault) for fault in FAULTS), *REAL)
measure.CALLS |= {
    "prepare": prepare,
    "measure": noted_measure,
    "echo": lambda value: value,
    "pid": os.getpid,
    "crash": crash,
    "hang": FOREVER.wait,
    "shout": shout,
    "end": end,
    "allocate": allocate,
    "abort": abort,
}
