"""A device and its canary: whose fault a failure is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.search_space.measurement import Measurement, Status
from tunewright.workers.device import device as devices
from tunewright.workers.device.builder import Build, Setup
from tunewright.workers.device.device import (
    DeviceHealth,
    DeviceQuarantined,
    TimingDevice,
    canary,
    own_identity,
    own_name,
)
from tunewright.workers.device.timer import Timer
from tunewright.workers.local import LocalMachine
from tunewright.workers.pool import Limits, Machines, PoolError, Unfit, can_time

BUILT = Build({"sha256": "0" * 64}, "identity", 0.1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def test_people_begin_and_end_quarantines(target: Target) -> None:
    health = DeviceHealth(Clock())
    assert (health.left_s, health.needs_canary) == (0, False)
    health.rest("its fan", 300.0)
    assert (health.left_s, health.state("name", target).reason) == (300.0, "its fan")
    health.rest("", 0.0)
    assert (health.left_s, health.needs_canary) == (0, True)
    health.quarantine("broken", 60)
    assert (health.left_s, health.reason) == (60, "broken")
    health.rest("", 0.0)
    assert (health.left_s, health.needs_canary) == (0, True)
    health.end_quarantine()
    assert (health.left_s, health.needs_canary) == (0, False)


def test_no_canary_takes_an_order_back(target: Target) -> None:
    """People order while the canary runs, or just before it fails."""
    clock = Clock()
    health = DeviceHealth(clock)
    health.rest("its fan", 3600.0)
    until = datetime.fromtimestamp(clock.now_s + 3600, UTC)
    for happens in (health.end_quarantine, lambda: health.quarantine("broken", 30), health.note_success):
        happens()
        assert (health.left_s, health.reason) == (3600.0, "its fan")
        assert health.state("name", target).quarantined_until == until
    health.set_quarantine("elsewhere", 5000.0)
    assert (health.left_s, health.reason) == (5000.0, "elsewhere")
    health.end_quarantine()
    clock.now_s += 3600
    assert health.left_s == 0 and health.needs_canary, "the canary before was one before the end"


def test_quarantines_grow_until_a_candidate_works(target: Target) -> None:
    clock = Clock()
    health = DeviceHealth(clock)
    assert health.left_s == 0
    for expected_s in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        health.quarantine("broken", 60)
        assert health.left_s == expected_s
        clock.now_s += expected_s
        assert health.left_s == 0 and health.reason == "broken"
        health.end_quarantine()
        assert not health.reason
    for _ in range(2000):
        health.quarantine("broken", 60)
    health.note_success()
    health.quarantine("again", 60)
    assert health.left_s == 60
    state = health.state("name", target)
    assert state.quarantined_until == datetime.fromtimestamp(clock.now_s + 60, UTC)
    assert (state.name, state.target, state.reason) == ("name", target, "again")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_device(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> Callable[..., TimingDevice]:
    """A device whose timer finds these statuses for candidates, and these faults of the canary; then no more.

    What is an exception is raised.
    """

    def next_of(outcomes: list[Any]) -> Any:
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return outcome

    def of(statuses: list[Status | Unfit], faults: list[str | Unfit | None]) -> TimingDevice:
        monkeypatch.setattr(Timer, "measure", lambda *_: Measurement(next_of(statuses)))
        monkeypatch.setattr(Timer, "compare", lambda *_: [Measurement(next_of(statuses)) for _ in range(2)])
        monkeypatch.setattr(Timer, "run_canary", lambda *_: next_of(faults))
        return TimingDevice(target, Setup(tmp_path, Limits(), ()), DeviceHealth(clock))

    return of


def test_a_sound_canary_puts_the_failure_down_to_the_candidate(make_device, task) -> None:
    faults: list[str | None] = [None, None, None]
    failures = [Status.CRASH, Status.TIMEOUT, Status.OUT_OF_MEMORY]
    device = make_device([*failures, Status.OK], faults)
    assert [device.measure(task, BUILT).status for _ in range(4)] == [*failures, Status.OK]
    assert not faults, "each failure was followed by a canary, success by none"


def test_an_order_while_the_canary_runs_is_kept(make_device, task, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[str | None] = [None]
    device = make_device([Status.OK, Status.OK], faults)
    device._health.quarantine("broken", 30)
    clock.now_s += 30
    run_canary = Timer.run_canary

    def order_meanwhile(*arguments: Any) -> str | None:
        device._health.rest("its fan", 600.0)
        return run_canary(*arguments)

    monkeypatch.setattr(Timer, "run_canary", order_meanwhile)
    assert device.measure(task, BUILT).status is Status.OK
    with pytest.raises(DeviceQuarantined, match="its fan"):
        device.measure(task, BUILT)
    clock.now_s += 600
    monkeypatch.setattr(Timer, "run_canary", run_canary)
    faults.append(None)
    assert device.measure(task, BUILT).status is Status.OK
    assert not faults, "the canary came first"


def test_a_canary_may_fail_once(make_device, task) -> None:
    device = make_device([Status.CRASH], ["once", None])
    assert device.measure(task, BUILT).status is Status.CRASH


def test_a_canary_that_fails_twice_takes_the_blame_from_the_candidate(make_device, task, clock: Clock) -> None:
    faults: list[str | None] = ["one", "two", "three", "four", None]
    device = make_device([Status.CRASH, Status.OK], faults)
    with pytest.raises(DeviceQuarantined, match="known to work fails on it: two"):
        device.measure(task, BUILT)
    clock.now_s += 59
    with pytest.raises(DeviceQuarantined) as error:
        device.measure(task, BUILT)
    assert error.value.left_s == 1
    clock.now_s += 1
    with pytest.raises(DeviceQuarantined, match="four"):
        device.compare(task, [BUILT])
    clock.now_s += 120
    assert device.measure(task, BUILT).status is Status.OK
    assert not faults


def test_a_device_that_is_in_no_state_to_time_blames_no_candidate(make_device, task, clock: Clock) -> None:
    """Neither where a candidate is timed, nor where others are compared, nor where the canary is to tell."""
    hot = Unfit("it is hot")
    device = make_device([hot, hot, Status.CRASH, Status.OK], [None, hot, None, hot, None])
    for timed in (
        lambda: device.measure(task, BUILT),
        lambda: device.compare(task, [BUILT, BUILT]),
        lambda: device.measure(task, BUILT),
        lambda: device.measure(task, BUILT),
    ):
        with pytest.raises(DeviceQuarantined, match="it is hot"):
            timed()
        clock.now_s += 3600
    assert device.measure(task, BUILT).status is Status.OK


def test_one_failure_in_a_comparison_is_looked_into(make_device, task) -> None:
    device = make_device([Status.OK, Status.WRONG_RESULT], ["one", "two"])
    with pytest.raises(DeviceQuarantined):
        device.compare(task, [BUILT, BUILT])


def test_the_canary_works_here(tmp_path: Path, limits: Limits) -> None:
    timer = Timer(detect(1), Setup(tmp_path, limits))
    try:
        assert timer.run_canary(canary(detect(1))) is None
    finally:
        timer.close()


def test_a_device_whose_child_does_not_start_is_quarantined(target: Target, tmp_path: Path, task) -> None:
    device = TimingDevice(target, Setup(tmp_path, Limits(), ("not_a_plugin",)), DeviceHealth())
    with pytest.raises(DeviceQuarantined, match="no child process") as error:
        device.measure(task, BUILT)
    assert "\n" not in error.value.reason


def test_a_target_is_had_by_its_processor_with_cores_enough(target: Target) -> None:
    many = replace(target, threads=8)
    assert can_time(many, target) and can_time(many, many)
    assert not can_time(target, many)
    assert not can_time(many, replace(target, cpu="i386"))
    assert can_time(many, replace(target, l3_bytes=target.l3_bytes + 1))


def test_this_machine(tmp_path: Path, limits: Limits, target: Target, make) -> None:
    with LocalMachine(tmp_path, limits) as machine:
        opened: Machines = machine
        assert opened.targets() == [detect()]
        with opened.pool(target) as pool:
            assert make.sound(make.measured(pool, make.default()))
        with pytest.raises(PoolError, match=f"this machine is a {detect()}, not a cpu:i386"):
            opened.pool(replace(target, cpu="i386"))


def test_what_is_found_of_this_machine_outlives_its_pools(tmp_path: Path, limits: Limits, make, broken) -> None:
    with LocalMachine(tmp_path, limits, ["planted"]) as machine:
        with broken("own"), machine.pool(make.target) as pool, pytest.raises(PoolError):
            list(pool.measure([make.default()]))
        assert machine.targets() == []
        with machine.pool(make.target) as pool, pytest.raises(PoolError, match="in quarantine"):
            list(pool.measure([make.default()]))
        [state] = machine.devices()
        assert state.quarantined_until is not None


def test_devices_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEWRIGHT_DEVICE", raising=False)
    assert own_identity().endswith(":" + own_name().rpartition(":")[2])
    assert devices.BOOT_ID.read_text().strip() in own_identity()
    monkeypatch.setenv("TUNEWRIGHT_DEVICE", "left half")
    assert own_identity() == "left half"
    assert own_name().endswith(":left half")


@pytest.mark.parametrize(("cores", "text"), [([0], "0"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 8], "0,2-3,8")])
def test_cores_in_short(cores: list[int], text: str) -> None:
    assert devices._ranges(cores) == text
