"""The tasks that the base cost model of GPUs learns from and is judged by: those of networks, of the workloads, and
random ones of the same kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from tunewright.bench.training.tasks import Loops, loops
from tunewright.codegen.target import Target
from tunewright.graph.task import Task
from tunewright.tuner.models.model import open_for

from .models import MODELS
from .workloads import (
    BUILD_WORKLOADS,
    KERNEL_WORKLOADS,
    attention_text,
    byte_product_text,
    constant_text,
    depthwise_text,
    heaviest_task,
    layer_norm_text,
    product_text,
    softmax_text,
)

MOST_FLOPS = 6e11
"""The most operations of a task: a millisecond of the tensor cores of a large GPU."""

MOST_BYTES = 600_000_000
"""The most bytes of the inputs and outputs of a task."""

LEAST_POINTS = 2_000
"""The least results of a task: below that only the launch is measured."""

RANDOM_TASKS = 400
"""Number of random tasks."""

TYPES = (("float16", 10), ("bfloat16", 16), ("float", 1))
"""Types of floats, and the numbers that ONNX has for them."""

CHANCES = (0.6, 0.15, 0.25)
"""Of these types."""

Rng = np.random.Generator


def training_tasks(target: Target, count: int = RANDOM_TASKS) -> dict[str, Task]:
    """Tasks of a target by key, in a random order that is always the same: so any first part of them is a fair one."""
    texts = [workload.text for workload in KERNEL_WORKLOADS.values()]
    texts += [workload.text for workload in BUILD_WORKLOADS.values()]
    tasks = [heaviest_task(text) for text in texts]
    for build_model in MODELS.values():
        tasks += [task for task, _ in open_for(target, build_model()).tasks.values()]
    useful_tasks = {task.key: task for task in tasks if _is_useful(task)}
    total = len(useful_tasks) + count
    for text in random_texts(np.random.default_rng(0)):
        task = heaviest_task(text)
        if _is_useful(task):
            useful_tasks[task.key] = task
        if len(useful_tasks) >= total:
            break
    keys: list[str] = np.random.default_rng(1).permutation(sorted(useful_tasks)).tolist()
    return {key: useful_tasks[key] for key in keys}


def reserved_loops() -> frozenset[Loops]:
    """The loops of the kernels that `bench gpu kernels` times, from which no base model learns."""
    return frozenset(loops(heaviest_task(workload.text)) for workload in KERNEL_WORKLOADS.values())


def _is_useful(task: Task) -> bool:
    points = max(stage.points for stage in task.stages)
    return task.flops <= MOST_FLOPS and task.traffic_bytes <= MOST_BYTES and points >= LEAST_POINTS


def random_texts(rng: Rng) -> Iterator[str]:
    """Endless models in ONNX's text form: the families in turn."""
    while True:
        for make in FAMILIES.values():
            yield make(rng)


def _size(rng: Rng, low: int, high: int, step: int = 8) -> int:
    """A size with a uniform logarithm; three of four are multiples of `step`, as in networks."""
    size = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
    return max(size // step * step, step) if rng.random() < 0.75 else max(size, 1)


def _type(rng: Rng) -> tuple[str, int]:
    return TYPES[int(rng.choice(len(TYPES), p=CHANCES))]


def _window_type(rng: Rng) -> tuple[str, int]:
    """A type of convolutions and poolings, which bfloat16 is not until opset 22."""
    dtype, number = _type(rng)
    return TYPES[0] if dtype == "bfloat16" else (dtype, number)


def _choice(rng: Rng, choices: Collection[str]) -> str:
    return str(rng.choice(list(choices)))


def _weights(name: str, number: int, *shape: int) -> str:
    """A constant tensor of floats of a type, by ONNX's number of it."""
    return f"{constant_text(f'{name}v', 'float[1] {1.0}', shape)} {name} = Cast<to = {number}>({name}v)"


def _product(rng: Rng) -> str:
    return product_text(_type(rng)[0], _size(rng, 1, 8192), _size(rng, 32, 8192, 16), _size(rng, 16, 8192, 16))


def _dense(rng: Rng) -> str:
    """A product with constant weights, a bias and what follows it in networks."""
    (dtype, number), rows = _type(rng), _size(rng, 1, 4096)
    depth, columns = _size(rng, 32, 4096, 16), _size(rng, 16, 4096, 16)
    weights = f"{_weights('w', number, depth, columns)} {_weights('b', number, columns)}"
    inputs, result = f"{dtype}[{rows}, {depth}] x", "u = Gelu(t)"
    if rng.random() < 0.5:
        inputs, result = f"{inputs}, {dtype}[{rows}, {columns}] z", "u = Add(t, z)"
    return f"({inputs}) => ({dtype} y) {{ {weights} p = MatMul(x, w) t = Add(p, b) {result} y = Identity(u) }}"


def _bytes(rng: Rng) -> str:
    return byte_product_text(_size(rng, 1, 4096), _size(rng, 32, 4096, 16), _size(rng, 16, 4096, 16))


def _batched_product(rng: Rng) -> str:
    dtype, batch = _type(rng)[0], _size(rng, 2, 192, 4)
    rows, depth, columns = _size(rng, 8, 1024), _size(rng, 16, 512), _size(rng, 8, 1024)
    operands = f"{dtype}[{batch}, {rows}, {depth}] x, {dtype}[{batch}, {depth}, {columns}] w"
    return f"({operands}) => ({dtype} y) {{ y = MatMul(x, w) }}"


def _conv(rng: Rng) -> str:
    """A convolution whose channels lie last, as between others."""
    (dtype, number), batch = _window_type(rng), int(rng.choice((1, 1, 4, 16)))
    kernel, stride = int(rng.choice((1, 3, 3, 5, 7))), int(rng.choice((1, 1, 1, 2)))
    inputs, outputs, extent = _size(rng, 3, 1024, 16), _size(rng, 16, 1024, 16), _size(rng, 7, 128, 7)
    weights = f"{_weights('w', number, outputs, inputs, kernel, kernel)} {_weights('b', number, outputs)}"
    pads = f"pads = {[kernel // 2] * 4}, strides = {[stride] * 2}"
    body = f"{weights} c = Transpose<perm = [0, 3, 1, 2]>(x) t = Conv<{pads}>(c, w, b) r = Relu(t)"
    return (
        f"({dtype}[{batch}, {extent}, {extent}, {inputs}] x) => ({dtype} y) "
        f"{{ {body} y = Transpose<perm = [0, 2, 3, 1]>(r) }}"
    )


def _softmax(rng: Rng) -> str:
    return softmax_text(_type(rng)[0], _size(rng, 16, 32768), _size(rng, 32, 8192, 16))


def _layer_norm(rng: Rng) -> str:
    return layer_norm_text(_type(rng)[0], _size(rng, 16, 32768), _size(rng, 32, 8192, 16))


def _attention(rng: Rng) -> str:
    dtype = _choice(rng, ("float16", "bfloat16"))
    return attention_text(dtype, _size(rng, 4, 256, 4), _size(rng, 64, 2048, 64), int(rng.choice((32, 64, 96, 128))))


def _depthwise(rng: Rng) -> str:
    extent, channels = _size(rng, 7, 112, 7), _size(rng, 16, 1152, 16)
    return depthwise_text(_choice(rng, ("float16", "float")), extent, channels, int(rng.choice((3, 3, 5, 7))))


def _pool(rng: Rng) -> str:
    dtype, batch = _window_type(rng)[0], int(rng.choice((1, 4, 16)))
    channels, extent = _size(rng, 16, 1024, 16), _size(rng, 8, 112)
    kernel, stride = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    window = f"<kernel_shape = {[kernel] * 2}, strides = {[stride] * 2}>"
    call = _choice(rng, (f"MaxPool{window}", f"AveragePool{window}", "GlobalAveragePool"))
    return f"({dtype}[{batch}, {channels}, {extent}, {extent}] x) => ({dtype} y) {{ y = {call}(x) }}"


def _elementwise(rng: Rng) -> str:
    dtype, shape = _type(rng)[0], [_size(rng, 16, 16384), _size(rng, 32, 8192, 16)]
    body = _choice(rng, ("y = Gelu(x)", "t = Add(x, z) y = Relu(t)", "t = Sigmoid(x) y = Mul(t, z)"))
    inputs = f"{dtype}{shape} x" + (f", {dtype}{shape} z" if "z" in body else "")
    return f"({inputs}) => ({dtype} y) {{ {body} }}"


def _transpose(rng: Rng) -> str:
    dtype, shape = _type(rng)[0], [_size(rng, 2, 32, 2), _size(rng, 16, 1024), _size(rng, 16, 1024)]
    order = _choice(rng, ("[0, 2, 1]", "[1, 0, 2]", "[2, 0, 1]", "[2, 1, 0]"))
    return f"({dtype}{shape} x) => ({dtype} y) {{ y = Transpose<perm = {order}>(x) }}"


FAMILIES: Mapping[str, Callable[[Rng], str]] = {
    "product": _product,
    "dense": _dense,
    "conv": _conv,
    "batched product": _batched_product,
    "softmax": _softmax,
    "dense again": _dense,
    "attention": _attention,
    "conv again": _conv,
    "bytes": _bytes,
    "layer norm": _layer_norm,
    "depthwise": _depthwise,
    "pool": _pool,
    "elementwise": _elementwise,
    "transpose": _transpose,
}
"""Functions that make a random model's text; what networks mostly are comes twice."""
