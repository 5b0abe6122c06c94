"""A whole model on a GPU of this machine: each task searched, then all of it timed beside PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

import numpy as np

from tunewright.bench.entries import Entry
from tunewright.bench.suite.convolutional import resnet50
from tunewright.bench.suite.network import Form
from tunewright.bench.suite.sequential import bert_base_s128
from tunewright.codegen.cuda.driver import CupyDriver
from tunewright.codegen.target import Target
from tunewright.tuner.models.inputs import example_feeds
from tunewright.tuner.models.model import open_model
from tunewright.tuner.running.compiling import build_kernels, compile_model
from tunewright.tuner.running.device_model import DeviceModel
from tunewright.workers.pool import Pool

from . import torch_peers
from .searching import searched
from .side_by_side import side_by_side

MODELS: Mapping[str, Callable[[], bytes]] = {
    f"{build.__name__} float16 batch {batch}": partial(build, Form(batch, np.float16))
    for build in (resnet50, bert_base_s128)
    for batch in (1, 16)
}


def timed(name: str, target: Target, pool: Pool, driver: CupyDriver, trials: int) -> Entry:
    """Milliseconds of a run of ours and of PyTorch's, `trials` of each task after."""
    data = MODELS[name]()
    model = open_model(data, widen=False)
    begun_s = time.perf_counter()
    found = {key: searched(pool, task, target, trials) for key, (task, _) in model.tasks.items()}
    search_s = time.perf_counter() - begun_s
    best = {key: one.best for key, one in found.items() if any(m.median_s is not None for _, m in one.tried)}
    chosen = model.chosen({key: best[key][1] if key in best else inf for key in model.tasks})
    schedules = {key: best[key][0] for key in chosen.tasks}
    image = compile_model(chosen, build_kernels(chosen, schedules, target, None))
    ours = DeviceModel(image, driver)
    arrays = list(example_feeds(model).values())
    samples = {"ours": lambda: ours.times_s(arrays, torch_peers.RUNS, 1)} | torch_peers.models(data, arrays, driver)
    times_s = side_by_side(samples)
    ours_s = times_s.pop("ours")
    return {
        "tasks": len(chosen.tasks),
        "trials": sum(len(one.tried) for one in found.values()),
        "search_s": round(search_s, 1),
        "fallback": chosen.fallback_ops,
        "ours_ms": 1e3 * ours_s,
        "peers_ms": {peer: 1e3 * time_s for peer, time_s in times_s.items()},
        "ratios": {peer: time_s / ours_s for peer, time_s in times_s.items()},
        "clock_mhz": driver.clock().hz // 10**6,
    }
