"""The tasks that the base cost model learns from: those of real networks, and random ones of the same kinds.

Sizes are drawn with logarithms spread evenly. Half of them are what networks have, multiples of 8 or 16; the others are
any number, odd and prime ones too. What takes long to run is left out: it teaches no more than what is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

import numpy as np

from tunewright.bench.searching.workloads import UNSEEN, WORKLOADS
from tunewright.bench.suite import MODELS
from tunewright.bench.suite.network import Network, batched_product, model_of
from tunewright.costmodel.judging import is_held_out
from tunewright.graph.task import Task
from tunewright.tuner.models.model import open_model

MOST_FLOPS = 6e8
"""Of a task: 2 ms at the peak of one core."""

LEAST_POINTS = 2_000
"""Results of a task, at least: below that nothing but the call is measured."""

MOST_BYTES = 24_000_000
"""Of the inputs and outputs of a task."""

KERNELS = ((1, 0.35), (3, 0.45), (5, 0.1), (7, 0.1))
"""Extents of the windows of convolutions, and how frequent they are."""

Rng = np.random.Generator

Loops = tuple[tuple[int, ...], tuple[int, ...], str]
"""See `loops`."""


def training_tasks(count: int, seed: int = 0) -> dict[str, Task]:
    """By key: the tasks of all networks of the suite, and `count` random ones, always the same for a seed."""
    found: dict[str, Task] = {}
    for build in MODELS.values():
        found |= _teaching(build())
    wanted = len(found) + count
    for model in _random_models(np.random.default_rng(seed)):
        found |= _teaching(model)
        if len(found) >= wanted:
            return dict(list(found.items())[:wanted])
    raise AssertionError("random models have no end")


def _teaching(model: bytes) -> dict[str, Task]:
    """The tasks of a model that are neither too large nor too small to learn from."""
    return {key: task for key, (task, _) in open_model(model).tasks.items() if _teaches(task)}


def _teaches(task: Task) -> bool:
    points = sum(stage.points for stage in task.stages if stage.output in {tensor.name for tensor in task.outputs})
    return task.flops <= MOST_FLOPS and points >= LEAST_POINTS and task.traffic_bytes <= MOST_BYTES


def reserved() -> frozenset[Loops]:
    """The loops of all tasks that the search is measured by, see `searching.workloads`: no base model learns of them.

    Nor of those in another layout or with another epilogue.
    """
    models = [*(workload.build for workload in WORKLOADS.values()), *UNSEEN.values()]
    return frozenset(loops(task) for build in models for task, _ in open_model(build()).tasks.values())


def is_held_out_or_reserved(task: Task, reserved_loops: Collection[Loops]) -> bool:
    """Whether a task is held out: by its key, or for its loops, see `reserved`."""
    return is_held_out(task.key) or loops(task) in reserved_loops


def loops(task: Task) -> Loops:
    """The extents of the stage where the work is, whatever their order: of the axes, of the reduction, and its kind."""
    stage = max(task.stages, key=lambda stage: stage.points)
    spatial, reduced = (tuple(sorted(a.extent for a in axes if a.extent > 1)) for axes in (stage.axes, stage.reduce))
    return spatial, reduced, stage.combiner


def _random_models(rng: Rng) -> Iterator[bytes]:
    """Models of one operator, or a few that fuse, without end: the families in turn."""
    while True:
        for make in FAMILIES.values():
            yield make(rng)


def _size(rng: Rng, low: int, high: int, step: int = 8) -> int:
    """A size, by its logarithm anywhere between; one of two is a multiple of `step`."""
    size = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
    return max(size // step * step, step) if rng.random() < 0.5 else max(size, 1)


def _seeded(rng: Rng, *shape: int, add: Callable[[Network, str], str]) -> bytes:
    return model_of(add, *shape, seed=int(rng.integers(1 << 30)))


def _ending(rng: Rng, net: Network, x: str) -> str:
    """What follows a product in networks: nothing, a rectifier, a gate."""
    match int(rng.integers(4)):
        case 0:
            return net.add("Relu", x)
        case 1:
            return net.add("Sigmoid", x) if rng.random() < 0.5 else net.gelu(x)
        case _:
            return x


def _gemm(rng: Rng) -> bytes:
    rows, inner, columns = _size(rng, 1, 1024), _size(rng, 16, 2048, 16), _size(rng, 16, 2048, 16)
    return _seeded(rng, rows, inner, add=lambda net, x: _ending(rng, net, net.gemm(x, inner, columns)))


def _batched(rng: Rng) -> bytes:
    batch, rows, inner, columns = _size(rng, 2, 32, 4), _size(rng, 8, 512), _size(rng, 8, 256), _size(rng, 8, 512)
    return batched_product(batch, rows, inner, columns)


def _conv(rng: Rng) -> bytes:
    kernels, chances = zip(*KERNELS, strict=True)
    kernel = int(rng.choice(kernels, p=chances))
    inputs, outputs, stride = _size(rng, 3, 768), _size(rng, 8, 768, 16), 1 + int(rng.random() < 0.25)
    extent = _size(rng, 7, 112, 7)

    def add(net: Network, x: str) -> str:
        return _ending(rng, net, net.conv(x, inputs, outputs, kernel, stride))

    return _seeded(rng, 1, inputs, extent, extent, add=add)


def _depthwise(rng: Rng) -> bytes:
    channels, extent = _size(rng, 16, 1152, 16), _size(rng, 7, 112, 7)
    kernel, stride = int(rng.choice((3, 3, 5, 7))), 1 + int(rng.random() < 0.3)
    add = partial(Network.conv, inputs=channels, outputs=channels, kernel=kernel, stride=stride, groups=channels)
    return _seeded(rng, 1, channels, extent, extent, add=lambda net, x: _ending(rng, net, add(net, x)))


def _rows(rng: Rng) -> bytes:
    rows, columns = _size(rng, 16, 4096), _size(rng, 32, 2048, 16)
    if rng.random() < 0.5:
        return _seeded(rng, rows, columns, add=lambda net, x: net.add("Softmax", x))
    return _seeded(rng, rows, columns, add=lambda net, x: net.layer_norm(x, columns))


def _reduction(rng: Rng) -> bytes:
    channels, extent = _size(rng, 16, 1024, 16), _size(rng, 7, 56, 7)
    return _seeded(rng, 1, channels, extent, extent, add=lambda net, x: net.mean(x, 2, 3))


def _pool(rng: Rng) -> bytes:
    channels, extent = _size(rng, 16, 512, 16), _size(rng, 8, 112)
    kernel, stride = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    return _seeded(rng, 1, channels, extent, extent, add=lambda net, x: net.max_pool(x, kernel, stride))


def _elementwise(rng: Rng) -> bytes:
    rows, columns = _size(rng, 16, 4096), _size(rng, 32, 2048, 16)
    one: Callable[[Network, str], str] = Network.gelu if rng.random() < 0.5 else Network.silu
    return _seeded(rng, rows, columns, add=one)


def _separable(rng: Rng) -> bytes:
    inputs, outputs, extent = _size(rng, 16, 384, 16), _size(rng, 16, 384, 16), _size(rng, 7, 56, 7)

    def add(net: Network, x: str) -> str:
        return net.conv(net.add("Relu", net.conv(x, inputs, inputs, 3, groups=inputs)), inputs, outputs)

    return _seeded(rng, 1, inputs, extent, extent, add=add)


FAMILIES: Mapping[str, Callable[[Rng], bytes]] = {
    "gemm": _gemm,
    "conv": _conv,
    "depthwise": _depthwise,
    "rows": _rows,
    "batched matmul": _batched,
    "conv again": _conv,
    "reduction": _reduction,
    "separable": _separable,
    "pooling": _pool,
    "elementwise": _elementwise,
}
"""What makes a random model of a kind; convolutions come twice, since networks are mostly these."""
