"""The tasks that the base cost model learns from: those of real networks, and random ones of the same kinds.

Sizes have uniform logarithms. Half of them are multiples of 8 or 16, as in networks; the others are any number, odd and
prime ones too. Slow tasks are left out: they teach no more than quick ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import numpy as np

from tunewright.bench.search_parts.workloads import UNSEEN, WORKLOADS
from tunewright.bench.suite import MODELS
from tunewright.bench.suite.network import Network, batched_product, model_of
from tunewright.costmodel.validation import is_held_out
from tunewright.graph.numerics import Numerics
from tunewright.graph.task import Task
from tunewright.tuner.models.model import open_model

MOST_FLOPS = 6e8
"""The most operations of a task: 2 ms at the peak of one core."""

LEAST_POINTS = 2_000
"""The least results of a task: below that only the call is measured."""

MOST_BYTES = 24_000_000
"""The most bytes of the inputs and outputs of a task."""

KERNELS = ((1, 0.35), (3, 0.45), (5, 0.1), (7, 0.1))
"""Extents of the windows of convolutions, with their probabilities."""

Rng = np.random.Generator

Loops = tuple[tuple[int, ...], tuple[int, ...], str]
"""See `loops`."""


def training_tasks(count: int, seed: int = 0) -> dict[str, Task]:
    """Tasks by key: those of all networks of the suite, and `count` random ones that follow from the seed."""
    tasks: dict[str, Task] = {}
    for build in MODELS.values():
        tasks |= _useful_tasks(build())
    return tasks_of_models(random_models(np.random.default_rng(seed)), count, tasks)


def tasks_of_models(models: Iterator[bytes], count: int, tasks: Mapping[str, Task]) -> dict[str, Task]:
    """Tasks by key, and `count` further ones of these models, which have no end."""
    tasks = dict(tasks)
    total = len(tasks) + count
    for model in models:
        tasks |= _useful_tasks(model)
        if len(tasks) >= total:
            return dict(list(tasks.items())[:total])
    raise AssertionError("random models have no end")


def _useful_tasks(model: bytes) -> dict[str, Task]:
    """The tasks of a model that are neither too large nor too small."""
    tasks = open_model(model, numerics=Numerics(dots=True)).tasks
    return {key: task for key, (task, _) in tasks.items() if _is_useful(task)}


def _is_useful(task: Task) -> bool:
    points = sum(stage.points for stage in task.stages if stage.output in {tensor.name for tensor in task.outputs})
    return task.flops <= MOST_FLOPS and points >= LEAST_POINTS and task.traffic_bytes <= MOST_BYTES


def reserved_loops() -> frozenset[Loops]:
    """The loops of all tasks of `search_parts.workloads`, from which no base model learns.

    Nor does it learn from tasks with these loops in another layout or with another epilogue.
    """
    models = [*(workload.build for workload in WORKLOADS.values()), *UNSEEN.values()]
    return frozenset(loops(task) for build in models for task, _ in open_model(build()).tasks.values())


def is_held_out_or_reserved(task: Task, reserved_loops: Collection[Loops]) -> bool:
    """Whether a task is held out, by its key or for its loops."""
    return is_held_out(task.key) or loops(task) in reserved_loops


def loops(task: Task) -> Loops:
    """The sorted extents of the largest stage's axes and reduction axes, and its combiner."""
    stage = max(task.stages, key=lambda stage: stage.points)
    spatial, reduced = (tuple(sorted(a.extent for a in axes if a.extent > 1)) for axes in (stage.axes, stage.reduce))
    return spatial, reduced, stage.combiner


def random_models(rng: Rng) -> Iterator[bytes]:
    """Endless models of one operator, or a few that fuse: the families in turn."""
    while True:
        for make in FAMILIES.values():
            yield make(rng)


def draw_size(rng: Rng, low: int, high: int, step: int = 8) -> int:
    """A size with a uniform logarithm; one of two is a multiple of `step`."""
    size = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
    return max(size // step * step, step) if rng.random() < 0.5 else max(size, 1)


def _random_model(rng: Rng, *shape: int, add: Callable[[Network, str], str]) -> bytes:
    return model_of(add, *shape, seed=int(rng.integers(1 << 30)))


def _add_activation(rng: Rng, net: Network, x: str) -> str:
    """The activation after a product in networks: none, a rectifier, a gate."""
    match int(rng.integers(4)):
        case 0:
            return net.add("Relu", x)
        case 1:
            return net.add("Sigmoid", x) if rng.random() < 0.5 else net.gelu(x)
        case _:
            return x


def _gemm(rng: Rng) -> bytes:
    rows, inner, columns = draw_size(rng, 1, 1024), draw_size(rng, 16, 2048, 16), draw_size(rng, 16, 2048, 16)
    return _random_model(rng, rows, inner, add=lambda net, x: _add_activation(rng, net, net.gemm(x, inner, columns)))


def _batched_product(rng: Rng) -> bytes:
    batch, rows, inner, columns = (
        draw_size(rng, 2, 32, 4),
        draw_size(rng, 8, 512),
        draw_size(rng, 8, 256),
        draw_size(rng, 8, 512),
    )
    return batched_product(batch, rows, inner, columns)


def _conv(rng: Rng) -> bytes:
    kernels, chances = zip(*KERNELS, strict=True)
    kernel = int(rng.choice(kernels, p=chances))
    inputs, outputs, stride = draw_size(rng, 3, 768), draw_size(rng, 8, 768, 16), 1 + int(rng.random() < 0.25)
    extent = draw_size(rng, 7, 112, 7)

    def add(net: Network, x: str) -> str:
        return _add_activation(rng, net, net.conv(x, inputs, outputs, kernel, stride))

    return _random_model(rng, 1, inputs, extent, extent, add=add)


def _depthwise(rng: Rng) -> bytes:
    channels, extent = draw_size(rng, 16, 1152, 16), draw_size(rng, 7, 112, 7)
    kernel, stride = int(rng.choice((3, 3, 5, 7))), 1 + int(rng.random() < 0.3)
    add = partial(Network.conv, inputs=channels, outputs=channels, kernel=kernel, stride=stride, groups=channels)
    return _random_model(rng, 1, channels, extent, extent, add=lambda net, x: _add_activation(rng, net, add(net, x)))


def _rows(rng: Rng) -> bytes:
    rows, columns = draw_size(rng, 16, 4096), draw_size(rng, 32, 2048, 16)
    if rng.random() < 0.5:
        return _random_model(rng, rows, columns, add=lambda net, x: net.add("Softmax", x))
    return _random_model(rng, rows, columns, add=lambda net, x: net.layer_norm(x, columns))


def _reduction(rng: Rng) -> bytes:
    channels, extent = draw_size(rng, 16, 1024, 16), draw_size(rng, 7, 56, 7)
    return _random_model(rng, 1, channels, extent, extent, add=lambda net, x: net.mean(x, 2, 3))


def _pool(rng: Rng) -> bytes:
    channels, extent = draw_size(rng, 16, 512, 16), draw_size(rng, 8, 112)
    kernel, stride = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    return _random_model(rng, 1, channels, extent, extent, add=lambda net, x: net.max_pool(x, kernel, stride))


def _elementwise(rng: Rng) -> bytes:
    rows, columns = draw_size(rng, 16, 4096), draw_size(rng, 32, 2048, 16)
    add: Callable[[Network, str], str] = Network.gelu if rng.random() < 0.5 else Network.silu
    return _random_model(rng, rows, columns, add=add)


def _separable(rng: Rng) -> bytes:
    inputs, outputs, extent = draw_size(rng, 16, 384, 16), draw_size(rng, 16, 384, 16), draw_size(rng, 7, 56, 7)

    def add(net: Network, x: str) -> str:
        return net.conv(net.add("Relu", net.conv(x, inputs, inputs, 3, groups=inputs)), inputs, outputs)

    return _random_model(rng, 1, inputs, extent, extent, add=add)


FAMILIES: Mapping[str, Callable[[Rng], bytes]] = {
    "gemm": _gemm,
    "conv": _conv,
    "depthwise": _depthwise,
    "rows": _rows,
    "batched matmul": _batched_product,
    "conv again": _conv,
    "reduction": _reduction,
    "separable": _separable,
    "pooling": _pool,
    "elementwise": _elementwise,
}
"""Functions that make a random model; convolutions come twice, as networks are mostly these."""
