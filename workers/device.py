"""Device: a timer, and whether its machine can be trusted.

A device that breaks (its memory, its driver, a disk that is full) makes every candidate on it fail, and each failure
would be kept for good. So after each failure a canary is tried out: a candidate that is known to work. Where it works,
the failure was the candidate's own. Where it fails twice in a row, the device is quarantined, for longer each time, and
the failure is forgotten: nothing is known of the candidate. The first thing after a quarantine is the canary again.
A device that says itself that it is in no state to time anything is quarantined at once.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from tunewright.codegen.dtype import DType
from tunewright.codegen.expr import Load, Var
from tunewright.codegen.host import available_cores
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.task import Axis, Stage, Task, Tensor
from tunewright.search_space.measurement import Candidate, Measurement, Status
from tunewright.search_space.sketches import default_schedule

from .builder import Built
from .pool import DeviceState, Limits, ReferenceFailed, Unfit
from .process import NotStarted
from .timer import Timer

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Where Linux tells a machine that runs from all others, and from itself before it was started."""

TRIES = 2
"""How often the canary fails before the device is to blame."""

LONGEST_S = 3600.0
"""No quarantine is longer."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Of timers and builders: the folder of the object cache, limits, and modules that children import."""

    objects: Path
    limits: Limits
    plugins: tuple[str, ...]


class Quarantined(Exception):
    """The device is not to be used for `left_s` seconds. `reason` is one line for people."""

    def __init__(self, reason: str, left_s: float) -> None:
        super().__init__(reason, left_s)
        self.reason = reason
        self.left_s = left_s


class Health:
    """What the canaries of a device came to. `now_s` is the clock, in seconds since 1970."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self.reason = ""  # of a quarantine whose end no canary has confirmed
        self._now_s = now_s
        self._until_s = 0.0
        self._failures = 0  # quarantines since a candidate last worked

    @property
    def left_s(self) -> float:
        """Seconds of quarantine that are left; 0 if there is none."""
        return max(self._until_s - self._now_s(), 0.0)

    def fail(self, reason: str, first_s: float) -> None:
        """Quarantine it: for `first_s` seconds the first time."""
        self.reason = reason
        doublings = min(self._failures, 20)  # by then it is the longest, and more might be too large for a float
        self._until_s = self._now_s() + min(first_s * 2**doublings, LONGEST_S)
        self._failures += 1

    def hold(self, reason: str, left_s: float) -> None:
        """Another process has quarantined it."""
        self.reason = reason
        self._until_s = self._now_s() + left_s

    def return_to_work(self) -> None:
        """The canary works."""
        self.reason = ""
        self._until_s = 0.0

    def work(self) -> None:
        """A candidate works."""
        self._failures = 0

    def state(self, name: str, target: Target) -> DeviceState:
        """As others see it."""
        if not self.left_s:
            return DeviceState(name, target)
        return DeviceState(name, target, datetime.fromtimestamp(self._until_s, UTC), self.reason)


class Device:
    """The timer of one target's threads on this machine, behind its canary. `health` outlives it."""

    def __init__(self, target: Target, setup: Setup, health: Health) -> None:
        self._canary = canary(target)
        self._quarantine_s = setup.limits.quarantine_s
        is_gpu = target.kind == CUDA
        self._timer = Timer(target.threads, setup.objects, setup.limits, setup.plugins, is_gpu=is_gpu)
        self._health = health

    def prepare(self, task: Task) -> None:
        """See `Timer.prepare`. Its failure is no verdict yet: that of the first candidate is."""
        self._timer.prepare(task)

    def measure(self, task: Task, built: Built, best_s: float | None = None) -> Measurement:
        """See `Timer.measure`. Raises Quarantined too."""
        [measured] = self._judged(lambda: [self._timer.measure(task, built, best_s)])
        return measured

    def compare(self, task: Task, several: Sequence[Built]) -> list[Measurement]:
        """See `Timer.compare`. Raises Quarantined too."""
        return self._judged(lambda: self._timer.compare(task, several))

    def admit(self) -> None:
        """Raises Quarantined, also where the time is over and the canary fails again."""
        if left_s := self._health.left_s:
            raise Quarantined(self._health.reason, left_s)
        if self._health.reason:
            self._try_out()
            self._health.return_to_work()

    def _judged(self, measure: Callable[[], list[Measurement]]) -> list[Measurement]:
        """What is measured, if the device can be trusted with it. Raises Quarantined if not."""
        self.admit()
        try:
            measured = measure()
        except (NotStarted, ReferenceFailed):
            self._try_out()
            raise
        except Unfit as unfit:
            self._quarantine(str(unfit))
        if any(one.status is not Status.OK for one in measured):
            self._try_out()
        elif measured:
            self._health.work()
        return measured

    def _try_out(self) -> None:
        """Raises Quarantined unless the canary works."""
        for _ in range(TRIES):
            try:
                why = self._timer.try_out(self._canary)
            except Unfit as unfit:
                self._quarantine(str(unfit))
            if why is None:
                return
        self._quarantine(f"a candidate that is known to work fails on it: {why}")

    def _quarantine(self, reason: str) -> NoReturn:
        self._timer.forget_failures()
        self._timer.close()  # what its child holds may be memory of the device
        self._health.fail(reason, self._quarantine_s)
        raise Quarantined(self._health.reason, self._health.left_s)

    def kill(self) -> None:
        """Stop what is under way, from any thread."""
        self._timer.kill()

    def close(self) -> None:
        """End its child."""
        self._timer.close()


def canary(target: Target) -> Candidate:
    """A small product with its default schedule: it works on any machine of the target, or nothing does."""
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
    """The name of the device that this process is on: of the machine, and of the cores that it may use."""
    return f"{platform.node() or 'host'}:{_given_name() or _ranges(available_cores())}"


def own_identity() -> str:
    """What tells that device from all others: two processes that use the same cores of one machine find the same."""
    if named := _given_name():
        return named
    try:
        machine = BOOT_ID.read_text().strip()
    except OSError:
        machine = platform.node()
    return f"{machine}:{_ranges(available_cores())}"


def own_gpus() -> list[Target]:
    """The GPUs that this process sees, in CUDA's order; none where what they need is not installed."""
    from tunewright.codegen.cuda.device import NoDevice, devices  # a processor's processes start without
    from tunewright.codegen.cuda.nvrtc import NoCompiler

    try:
        return [Target.of_gpu(device.gpu) for device in devices()]
    except (NoDevice, NoCompiler):
        return []


def _given_name() -> str:
    """What the operator calls this device, where machines that look like one are several, or the other way round."""
    return os.environ.get("TUNEWRIGHT_DEVICE", "")


def _ranges(cores: Sequence[int]) -> str:
    """Ascending numbers in short: 0-3,8."""
    starts = [n for n, core in enumerate(cores) if n == 0 or cores[n - 1] != core - 1]
    spans = [(cores[start], cores[end - 1]) for start, end in zip(starts, [*starts[1:], len(cores)], strict=True)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
