"""DeviceTimes: what runs of a model take on a GPU alone, ours and the peers', in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunewright.workers.measure.call_latency import CallLatency, sample_latencies
from tunewright.workers.measure.sampling import interval

if TYPE_CHECKING:
    from tunewright.codegen.cuda.driver import Clock, Driver


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Times by name, the clocks at which they were taken, as far as they are known, and what the device is."""

    latencies: Mapping[str, CallLatency]
    clocks: tuple[Clock, ...]
    name: str
    release: str  # of NVIDIA's driver
    cuda_version: str  # the newest that it takes

    @property
    def fault(self) -> str:
        """The reason why the times can't be relied on, for people, without a full stop; empty if they can."""
        slowed = any(clock.is_slowed for clock in self.clocks)
        return f"{self.name} lowered its clock: it was hot, or its machine lacks power" if slowed else ""

    def to_json(self) -> dict[str, Any]:
        """Plain data. `clock_mhz` is the lowest and the highest clock; null where it is not known."""
        mhz = [clock.hz // 10**6 for clock in self.clocks]
        return {
            "name": self.name,
            "driver": self.release,
            "cuda": self.cuda_version,
            "clock_mhz": [min(mhz), max(mhz)] if mhz else None,
            "ms": {name: latency.median_ms for name, latency in self.latencies.items()},
            "intervals_ms": {name: interval_ms(latency) for name, latency in self.latencies.items()},
            "samples": min(len(latency.samples_s) for latency in self.latencies.values()),
        }


def time_on_device(driver: Driver, samplers: Mapping[str, Callable[[], float]]) -> DeviceTimes:
    """Take samples, in seconds, by name, and look at the clock after each. Raises what they raise, and DeviceFault."""
    clocks: list[Clock] = []

    def with_clock(sampler: Callable[[], float]) -> Callable[[], float]:
        def sample_s() -> float:
            time_s = sampler()
            if (clock := driver.clock()) is not None:
                clocks.append(clock)
            return time_s

        return sample_s

    latencies = sample_latencies({name: with_clock(sampler) for name, sampler in samplers.items()})
    return DeviceTimes(latencies, tuple(clocks), driver.name, driver.release, driver.cuda_version)


def interval_ms(latency: CallLatency) -> list[float]:
    """The ends of the 95% interval of the median."""
    interval_s = interval(latency.samples_s)
    return [1e3 * interval_s.low_s, 1e3 * interval_s.high_s]
