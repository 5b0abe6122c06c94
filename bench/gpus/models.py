"""A whole model on a GPU of this machine: search each task, then time the model beside PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.bench.entries import Entry
from tunewright.bench.suite.convolutional import resnet50
from tunewright.bench.suite.network import NetworkForm
from tunewright.bench.suite.sequential import bert_base_s128
from tunewright.bench.turns import sample_in_turn
from tunewright.codegen.cuda.driver import Driver
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.target import Target
from tunewright.tuner.models.model import example_feeds, open_for
from tunewright.tuner.peers.torch_cuda import RUNS
from tunewright.tuner.session.compile import build_kernels, compile_model
from tunewright.tuner.session.device_model import DeviceModel
from tunewright.workers.pool import Pool

from . import torch_peers
from .search import search_task

MODELS: Mapping[str, Callable[[], bytes]] = {
    f"{build.__name__} float16 batch {batch}": partial(build, NetworkForm(batch, np.float16))
    for build in (resnet50, bert_base_s128)
    for batch in (1, 16)
}


MOST_ERROR = 0.02
"""The largest error of a float16 output, relative to its largest magnitude. PyTorch rounds elsewhere."""


def measure_model(name: str, target: Target, pool: Pool, driver: Driver, objects: ObjectCache, trials: int) -> Entry:
    """Milliseconds of a run of ours, after `trials` of each task, and of PyTorch's; an `error` where ours fails.

    `missing`, and the exceptions, are as in `kernels.measure_kernel`.
    """
    data = MODELS[name]()
    model = open_for(target, data)
    start_s = time.perf_counter()
    searches = {key: search_task(pool, task, target, trials) for key, (task, _) in model.tasks.items()}
    search_s = time.perf_counter() - start_s
    best = {
        key: search.best for key, search in searches.items() if any(m.median_s is not None for _, m in search.trials)
    }
    chosen_model = model.fastest({key: best[key][1] if key in best else inf for key in model.tasks})
    broken_ops = [task.op for key, (task, _) in chosen_model.tasks.items() if key not in best]
    if broken_ops:
        return {"error": f"no schedule works for {', '.join(broken_ops)}"}
    schedules = {key: best[key][0] for key in chosen_model.tasks}
    image = compile_model(chosen_model, build_kernels(chosen_model, schedules, target, objects))
    ours = DeviceModel(image, driver)
    feeds = example_feeds(model)
    arrays = list(feeds.values())
    expected, peers = torch_peers.models(data, feeds, driver)
    error = float(np.max(list(map(relative_error, ours.run(arrays), expected))))  # NaN if one is
    if not error <= MOST_ERROR:
        return {"error": f"outputs are off by {error:.3g} of the largest magnitude; {MOST_ERROR} is tolerated"}
    samples = {"ours": lambda: median(ours.times_s(arrays, RUNS, 1))} | peers.samples
    times_s = {name: median(samples_s) for name, samples_s in sample_in_turn(samples, torch_peers.ROUNDS).items()}
    ours_s = times_s.pop("ours")
    return {
        "tasks": len(chosen_model.tasks),
        "trials": sum(len(search.trials) for search in searches.values()),
        "search_s": round(search_s, 1),
        "fallback": chosen_model.fallback_ops,
        "max_rel_err": error,
        "ours_ms": 1e3 * ours_s,
        "peers_ms": {peer: 1e3 * time_s for peer, time_s in times_s.items()},
        "ratios": {peer: time_s / ours_s for peer, time_s in times_s.items()},
        "missing": peers.missing,
        "clock_mhz": clock.hz // 10**6 if (clock := driver.clock()) else None,
    }


def relative_error(output: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, relative to the largest expected magnitude."""
    expected = expected.astype(np.float64)
    difference = np.abs(output.astype(np.float64).reshape(expected.shape) - expected).max()
    return float(difference / max(np.abs(expected).max(), 1e-12))
