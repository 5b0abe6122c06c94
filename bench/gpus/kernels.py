"""One task on a GPU of this machine: search its kernel, then time it beside PyTorch's."""

from __future__ import annotations

import time
from statistics import median

from tunewright.bench.entries import Entry
from tunewright.bench.turns import Sample, sample_in_turn
from tunewright.codegen.cuda.build import build
from tunewright.codegen.cuda.driver import Driver
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.target import Target
from tunewright.graph.oracle import example_inputs
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower
from tunewright.tuner.peers.torch_cuda import RUNS
from tunewright.workers.pool import Pool

from . import torch_peers
from .search import first_pick, search_task
from .workloads import KERNEL_WORKLOADS, heaviest_task

FIRST_PICK, BEST = "first pick", "best of the search"


def measure_kernel(
    name: str, target: Target, pool: Pool, driver: Driver, objects: ObjectCache, trials: int, *, compiles: bool
) -> Entry:
    """Milliseconds of our kernel and of each peer's, from a cold second-level cache, and how ours was found.

    Peers are libraries and, if `compiles`, compilers. The first pick is the schedule that a model has
    without any trial. `missing` has the peers that can't run it, with what they say; `algorithms`, of those that choose
    one by its time, how many they tried. Raises DeviceFault, PeerFailed where even PyTorch as it comes can't,
    NoWorkingSchedule, and as `build` and `Pool.measure`.
    """
    workload = KERNEL_WORKLOADS[name]
    task = heaviest_task(workload.text)
    start_s = time.perf_counter()
    search = search_task(pool, task, target, trials)
    search_s = time.perf_counter() - start_s
    schedule, _ = search.best
    peers = torch_peers.kernels(workload.kind, example_inputs(task, seed=0), driver, compiles=compiles)
    own_schedules = {"ours": schedule, FIRST_PICK: first_pick(task, target)}
    samples = {
        name: sample(driver, objects, task, target, own_schedule) for name, own_schedule in own_schedules.items()
    } | peers.samples
    times_s = {name: median(samples_s) for name, samples_s in sample_in_turn(samples, torch_peers.ROUNDS).items()}
    ours_s, first_s = times_s.pop("ours"), times_s.pop(FIRST_PICK)
    return {
        "schedule": schedule.to_json(),
        "trials": len(search.trials),
        "search_s": round(search_s, 1),
        "statuses": search.statuses,
        "ours_ms": 1e3 * ours_s,
        "first_pick_ms": 1e3 * first_s,
        "peers_ms": {peer: 1e3 * time_s for peer, time_s in times_s.items()},
        "ratios": {peer: time_s / ours_s for peer, time_s in times_s.items()} | {BEST: ours_s / first_s},
        "missing": peers.missing,
        "algorithms": peers.algorithms,
        "tflops": task.flops / ours_s / 1e12,
        "gb_s": task.traffic_bytes / ours_s / 1e9,
        "clock_mhz": clock.hz // 10**6 if (clock := driver.clock()) else None,
    }


def sample(driver: Driver, objects: ObjectCache, task: Task, target: Target, schedule: Schedule) -> Sample:
    """A sample of one of our schedules, on example inputs."""
    artifact = build(lower(Candidate(task, target, schedule)), target, objects)
    inputs = [driver.input_memory(artifact, n, array) for n, array in enumerate(example_inputs(task, seed=0))]
    others = [driver.memory(buffer.size_bytes) for buffer in (*artifact.params[len(inputs) :], *artifact.scratch)]
    run = driver.capture(driver.program(artifact, [*inputs, *others]))
    return lambda: median(driver.time(run, RUNS))
