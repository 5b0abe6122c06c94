"""One kernel on a GPU of this machine: searched, then timed beside what PyTorch has for it."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from tunewright.bench.entries import Entry
from tunewright.bench.turns import Sample, in_turn
from tunewright.codegen.build import ObjectCache
from tunewright.codegen.cuda.build import build
from tunewright.codegen.cuda.driver import CupyDriver, Driver
from tunewright.codegen.target import Target
from tunewright.graph.oracle import example_inputs
from tunewright.graph.task import Task
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower
from tunewright.workers.pool import Pool

from . import torch_peers
from .searching import searched
from .workloads import TIMED, task_of


def timed(name: str, target: Target, pool: Pool, driver: CupyDriver, objects: ObjectCache, trials: int) -> Entry:
    """Milliseconds of a run of ours and of each peer, from a cold second-level cache, and how ours was found.

    `missing` has the peers that can't run it, with what they say. Raises DeviceFault, PeerFailed where even PyTorch as
    it comes can't, NoneWorks, and as `build` and `Pool.measure`.
    """
    workload = TIMED[name]
    task = task_of(workload.text)
    begun_s = time.perf_counter()
    found = searched(pool, task, target, trials)
    search_s = time.perf_counter() - begun_s
    schedule, _ = found.best
    peers = torch_peers.kernels(workload.kind, example_inputs(task, seed=0), driver)
    samples = {"ours": sample(driver, objects, task, target, schedule)} | peers.samples
    times_s = {name: median(taken) for name, taken in in_turn(samples, torch_peers.ROUNDS).items()}
    ours_s = times_s.pop("ours")
    return {
        "schedule": schedule.to_json(),
        "trials": len(found.tried),
        "search_s": round(search_s, 1),
        "statuses": found.statuses,
        "ours_ms": 1e3 * ours_s,
        "peers_ms": {peer: 1e3 * time_s for peer, time_s in times_s.items()},
        "ratios": {peer: time_s / ours_s for peer, time_s in times_s.items()},
        "missing": peers.missing,
        "tflops": task.flops / ours_s / 1e12,
        "gb_s": task.traffic_bytes / ours_s / 1e9,
        "clock_mhz": clock.hz // 10**6 if (clock := driver.clock()) else None,
    }


def sample(driver: Driver, objects: ObjectCache, task: Task, target: Target, schedule: Schedule) -> Sample:
    """Of a schedule of ours, on made-up inputs."""
    artifact = build(lower(Candidate(task, target, schedule)), target, objects)
    operands = [driver.memory(buffer.size_bytes) for buffer in (*artifact.params, *artifact.scratch)]
    for tensor, array, memory in zip(task.inputs, example_inputs(task, seed=0), operands, strict=False):
        packing = artifact.packings.get(tensor.name)
        laid = np.ascontiguousarray(array if packing is None else packing.arranged(array))
        memory.write(laid.reshape(-1).view(np.uint8))
    run = driver.recorded(driver.program(artifact, operands))
    return lambda: median(driver.time(run, torch_peers.RUNS))
