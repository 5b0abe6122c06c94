"""A whole model on a GPU of this machine: each task searched, then all of it timed beside PyTorch."""

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
from tunewright.bench.suite.network import Form
from tunewright.bench.suite.sequential import bert_base_s128
from tunewright.bench.turns import in_turn
from tunewright.codegen.build import ObjectCache
from tunewright.codegen.cuda.driver import CupyDriver
from tunewright.codegen.target import Target
from tunewright.tuner.models.inputs import example_feeds
from tunewright.tuner.models.model import open_model
from tunewright.tuner.running.compiling import build_kernels, compile_model
from tunewright.tuner.running.device_model import DeviceModel
from tunewright.workers.pool import Pool

from . import torch_peers
from .searching import searched

MODELS: Mapping[str, Callable[[], bytes]] = {
    f"{build.__name__} float16 batch {batch}": partial(build, Form(batch, np.float16))
    for build in (resnet50, bert_base_s128)
    for batch in (1, 16)
}


MOST_ERROR = 0.02
"""Of an output in float16, relative to its largest magnitude, as against PyTorch's, which rounds elsewhere."""


def timed(name: str, target: Target, pool: Pool, driver: CupyDriver, objects: ObjectCache, trials: int) -> Entry:
    """Milliseconds of a run of ours and of PyTorch's, `trials` of each task after; an `error` where that can't be.

    `missing` and what it raises: as `kernels.timed`.
    """
    data = MODELS[name]()
    model = open_model(data, widen=False)
    begun_s = time.perf_counter()
    found = {key: searched(pool, task, target, trials) for key, (task, _) in model.tasks.items()}
    search_s = time.perf_counter() - begun_s
    best = {key: one.best for key, one in found.items() if any(m.median_s is not None for _, m in one.tried)}
    chosen = model.chosen({key: best[key][1] if key in best else inf for key in model.tasks})
    broken = [task.op for key, (task, _) in chosen.tasks.items() if key not in best]
    if broken:
        return {"error": f"no schedule works for {', '.join(broken)}"}
    schedules = {key: best[key][0] for key in chosen.tasks}
    image = compile_model(chosen, build_kernels(chosen, schedules, target, objects))
    ours = DeviceModel(image, driver)
    arrays = list(example_feeds(model).values())
    wanted, peers = torch_peers.models(data, arrays, driver)
    error = max(map(relative_error, ours.run(arrays), wanted))
    if not error <= MOST_ERROR:
        return {"error": f"outputs are off by {error:.3g} of the largest magnitude; {MOST_ERROR} is tolerated"}
    samples = {"ours": lambda: median(ours.times_s(arrays, torch_peers.RUNS, 1))} | peers.samples
    times_s = {name: median(taken) for name, taken in in_turn(samples, torch_peers.ROUNDS).items()}
    ours_s = times_s.pop("ours")
    return {
        "tasks": len(chosen.tasks),
        "trials": sum(len(one.tried) for one in found.values()),
        "search_s": round(search_s, 1),
        "fallback": chosen.fallback_ops,
        "max_rel_err": error,
        "ours_ms": 1e3 * ours_s,
        "peers_ms": {peer: 1e3 * time_s for peer, time_s in times_s.items()},
        "ratios": {peer: time_s / ours_s for peer, time_s in times_s.items()},
        "missing": peers.missing,
        "clock_mhz": clock.hz // 10**6 if (clock := driver.clock()) else None,
    }


def relative_error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The largest difference, relative to the largest magnitude wanted."""
    wanted = wanted.astype(np.float64)
    difference = np.abs(found.astype(np.float64).reshape(wanted.shape) - wanted).max()
    return float(difference / max(np.abs(wanted).max(), 1e-12))
