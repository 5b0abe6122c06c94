"""TimingDevice: a timer, and whether its machine can be trusted.

A broken device (its memory, its driver, a full disk) makes every candidate on it fail, and each failure would be stored
for good. So after each failure a canary runs: a candidate that is known to work. If it works, the failure was the
candidate's own. If it fails twice in a row, the device is quarantined, longer each time, and the failure is dropped.
The first run after a quarantine is the canary again. A device that reports itself unfit is quarantined at once.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import Load, Var
from tunewright.codegen.host import available_cores
from tunewright.codegen.target import Target
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.sketches import default_schedule

from ..pool import DeviceState, ReferenceFailed, Unfit
from ..sandbox.process import ChildStartError
from .builder import Build, Setup
from .timer import Timer

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The id of this boot of this machine, by Linux."""

CANARY_TRIES = 2
"""Failures of the canary after which the device is to blame."""

MAX_QUARANTINE_S = 3600.0
"""The longest quarantine."""


class DeviceQuarantined(Exception):
    """The device is not to be used for `left_s` seconds. `reason` is one line for people."""

    def __init__(self, reason: str, left_s: float) -> None:
        super().__init__(reason, left_s)
        self.reason = reason
        self.left_s = left_s


class DeviceHealth:
    """The results of the canaries of a device, and what people want of it. `now_s` is the clock, in seconds since 1970.

    People order from another thread than the one that times: what `rest` writes nothing else does, so that no result
    of a canary takes an order back.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._reason = ""  # of a quarantine that no canary has ended yet
        self._until_s = 0.0
        self._rest_reason = ""
        self._rest_until_s = 0.0
        self._sound_at_s = 0.0  # when the canary last ended a quarantine
        self._failures = 0  # quarantines since a candidate last worked

    @property
    def left_s(self) -> float:
        """Seconds of quarantine that are left; 0 if there is none."""
        return max(self._end_s - self._now_s(), 0.0)

    @property
    def reason(self) -> str:
        """Of the quarantine that ends last."""
        return self._rest_reason if self._rest_until_s > self._until_s else self._reason

    @property
    def needs_canary(self) -> bool:
        """Whether the canary comes first, after a quarantine."""
        return bool(self._reason) or self._rest_until_s > self._sound_at_s

    @property
    def _end_s(self) -> float:
        return max(self._until_s, self._rest_until_s)

    def quarantine(self, reason: str, first_s: float) -> None:
        """Begin a quarantine of `first_s` seconds, twice as long after each without a success."""
        self._reason = reason
        doublings = min(self._failures, 20)  # the longest by then; more may overflow a float
        self._until_s = self._now_s() + min(first_s * 2**doublings, MAX_QUARANTINE_S)
        self._failures += 1

    def set_quarantine(self, reason: str, left_s: float) -> None:
        """Note a quarantine that another process has begun."""
        self._reason = reason
        self._until_s = self._now_s() + left_s

    def rest(self, reason: str, left_s: float) -> None:
        """Begin a quarantine that people want, or end each one where nothing is left. The canary comes first then."""
        self._rest_reason = reason
        self._rest_until_s = self._now_s() + left_s
        if not left_s:
            self._until_s = 0.0
        self._failures = 0

    def end_quarantine(self) -> None:
        """Note that the canary works."""
        self._reason = ""
        self._until_s = 0.0
        self._sound_at_s = self._now_s()

    def note_success(self) -> None:
        """Note that a candidate works."""
        self._failures = 0

    def state(self, name: str, target: Target) -> DeviceState:
        """The state for other processes."""
        if not self.left_s:
            return DeviceState(name, target)
        return DeviceState(name, target, datetime.fromtimestamp(self._end_s, UTC), self.reason)


class TimingDevice:
    """The timer of one target's threads on this machine, guarded by its canary. `health` outlives it."""

    def __init__(self, target: Target, setup: Setup, health: DeviceHealth) -> None:
        self._canary = canary(target)
        self._quarantine_s = setup.limits.quarantine_s
        self._timer = Timer(target, setup)
        self._health = health

    def prepare(self, task: Task) -> None:
        """See `Timer.prepare`. A failure counts only when a candidate repeats it."""
        self._timer.prepare(task)

    def measure(self, task: Task, build: Build, best_s: float | None = None) -> Measurement:
        """See `Timer.measure`. Raises DeviceQuarantined too."""
        [measurement] = self._guard(lambda: [self._timer.measure(task, build, best_s)])
        return measurement

    def compare(self, task: Task, builds: Sequence[Build]) -> list[Measurement]:
        """See `Timer.compare`. Raises DeviceQuarantined too."""
        return self._guard(lambda: self._timer.compare(task, builds))

    def admit(self) -> None:
        """Raises DeviceQuarantined, also where the time is over and the canary fails again."""
        if left_s := self._health.left_s:
            raise DeviceQuarantined(self._health.reason, left_s)
        if self._health.needs_canary:
            self._run_canary()
            self._health.end_quarantine()

    def _guard(self, measure: Callable[[], list[Measurement]]) -> list[Measurement]:
        """Measure, and run the canary after a failure. Raises DeviceQuarantined."""
        self.admit()
        try:
            measurements = measure()
        except (ChildStartError, ReferenceFailed):
            self._run_canary()
            raise
        except Unfit as unfit:
            self._quarantine(str(unfit))
        if any(measurement.status is not Status.OK for measurement in measurements):
            self._run_canary()
        elif measurements:
            self._health.note_success()
        return measurements

    def _run_canary(self) -> None:
        """Raises DeviceQuarantined unless the canary works."""
        for _ in range(CANARY_TRIES):
            try:
                fault = self._timer.run_canary(self._canary)
            except Unfit as unfit:
                self._quarantine(str(unfit))
            if fault is None:
                return
        self._quarantine(f"a candidate that is known to work fails on it: {fault}")

    def _quarantine(self, reason: str) -> NoReturn:
        self._timer.forget_failures()
        self._timer.close()  # its child may hold memory of the device
        self._health.quarantine(reason, self._quarantine_s)
        raise DeviceQuarantined(self._health.reason, self._health.left_s)

    def kill(self) -> None:
        """Stop the current request, from any thread."""
        self._timer.kill()

    def close(self) -> None:
        """End its child."""
        self._timer.close()


def canary(target: Target) -> Candidate:
    """A small matrix product with its default schedule, which works on any sound machine of the target."""
    rows, depth, columns = 16, 16, 16
    x = Tensor("x", (rows, depth), DType.F32)
    w = Tensor("w", (depth, columns), DType.F32)
    y = Tensor("y", (rows, columns), DType.F32)
    i, j, k = Var("i"), Var("j"), Var("k")
    body = Load("x", (i, k), DType.F32) * Load("w", (k, j), DType.F32)
    axes = (Axis("i", rows), Axis("j", columns))
    task = Task("MatMul", (x, w), (y,), (), (Stage("y", axes, body, (Axis("k", depth),), "sum"),))
    return Candidate(task, target, default_schedule(task, target))


def own_name() -> str:
    """The name of the device of this process: machine, and cores that it may use."""
    return f"{platform.node() or 'host'}:{_operator_name() or _ranges(available_cores())}"


def own_identity() -> str:
    """The identity of the device of this process: the same for two processes on the same cores of one machine."""
    if name := _operator_name():
        return name
    try:
        machine = BOOT_ID.read_text().strip()
    except OSError:
        machine = platform.node()
    return f"{machine}:{_ranges(available_cores())}"


def own_gpus() -> list[Target]:
    """The GPUs that this process sees, in CUDA's order; none where CUDA is not installed."""
    from tunewright.codegen.cuda.device import NoDevice, devices  # not needed for processors
    from tunewright.codegen.cuda.nvrtc import NoCompiler

    try:
        return [Target.of_gpu(device.gpu) for device in devices()]
    except (NoDevice, NoCompiler):
        return []


def _operator_name() -> str:
    """The operator's name of this device, for one machine that is several devices, or the other way round."""
    return os.environ.get("TUNEWRIGHT_DEVICE", "")


def _ranges(cores: Sequence[int]) -> str:
    """Ascending numbers in short: 0-3,8."""
    starts = [n for n, core in enumerate(cores) if n == 0 or cores[n - 1] != core - 1]
    spans = [(cores[start], cores[end - 1]) for start, end in zip(starts, [*starts[1:], len(cores)], strict=True)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
