"""What tests of sketches share: machines, models in text, runs of kernels, and the comparison with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.cuda import interp as grid_interp
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import detect
from tunewright.codegen.ir import interp
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.llvm.build import build
from tunewright.codegen.runtime.memory import guarded_empty
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import CUDA, Target
from tunewright.codegen.verify import verify
from tunewright.graph.fusion.fusion import TaskCall, partition
from tunewright.graph.ir import Graph
from tunewright.graph.onnx_import import load
from tunewright.graph.oracle import example_inputs, reference
from tunewright.graph.rewrites import rewrite
from tunewright.graph.task import Task
from tunewright.search_space.sketch import Sketch

HOST = detect(2)
WIDE = Target("cpu", "x86_64-unknown-linux-gnu", "znver5", "", 512, 32, 2, 48 << 10, 1 << 20, 32 << 20)
DOTS = replace(WIDE, features="+avx512bf16,+avx512vnni")
MATRICES = replace(WIDE, cpu="sapphirerapids", features="+amx-bf16,+amx-int8,+amx-tile,+avx512bf16,+avx512vnni")
NARROW = Target("cpu", "aarch64-unknown-linux-gnu", "cortex-a72", "", 128, 32, 4, 32 << 10, 1 << 20, 0)
ARM_DOTS = replace(NARROW, features="+bf16,+i8mm")
GPU = Target.of_gpu(KNOWN["sm_90a"])
SMALL_GPU = Target.of_gpu(replace(KNOWN["sm_90a"], sms=7))  # few tiles are more than it computes at once


def graph_of(nodes: str, inputs: Mapping[str, str], constants: Mapping[str, str], **known: float) -> Graph:
    """The graph of nodes that come to y, rewritten, with what they read of some tensors, whose shapes are given.

    Constants are random but for those of a `known` value.
    """
    words = set(nodes.translate(str.maketrans("(),", "   ")).split())
    shapes = {name: shape for name, shape in {**inputs, **constants}.items() if name in words}
    head = ", ".join(f"float{f'[{shape}]' if shape else ''} {name}" for name, shape in shapes.items())
    body = nodes.replace(") ", ")\n")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> m ({head}) => (float y) {{ {body} }}')
    rng = np.random.default_rng(0)
    for value in [v for v in model.graph.input if v.name in constants]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = np.asarray(known.get(value.name, rng.standard_normal(shape)), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    return rewrite(load(model.SerializeToString()))


def tasks_of(graph: Graph) -> list[Task]:
    """The tasks that a graph is cut into."""
    return [step.task for step in partition(graph) if isinstance(step, TaskCall)]


def operands(task: Task, kernel: Kernel, arrays: Sequence[Any]) -> list[Any]:
    """The inputs of a task as a kernel reads them."""
    return [
        kernel.packings[tensor.name].apply(array) if tensor.name in kernel.packings else array
        for tensor, array in zip(task.inputs, arrays, strict=True)
    ]


Interpreter = Callable[[Kernel, Sequence[Any]], None]


def interpret(task: Task, kernel: Kernel, arrays: Sequence[Any], run: Interpreter = interp.run) -> list[Any]:
    """The outputs of a kernel in the interpreter."""
    outputs = [guarded_empty(b.shape, b.dtype).array for b in kernel.params[len(task.inputs) :]]
    run(kernel, [*operands(task, kernel, arrays), *outputs])
    return outputs


def native(
    task: Task, kernel: Kernel, arrays: Sequence[Any], target: Target = HOST, artifact: Artifact | None = None
) -> list[Any]:
    """The outputs of a kernel in native code, which keeps to its memory."""
    memory = [guarded_empty(b.shape, b.dtype) for b in kernel.params]
    for place, array in zip(memory, operands(task, kernel, arrays), strict=False):
        place.array[...] = array.reshape(place.array.shape)
    call = artifact or build(kernel, target), [place.array for place in memory]
    with Program([call], shared_pool(HOST.threads)) as program:
        program.run()
    assert [place.check() for place in memory] == [None] * len(memory)
    return [place.array for place in memory[len(task.inputs) :]]


def agree_exactly(sketch: Sketch, task: Task, target: Target, count: int, machines: Sequence[Target]) -> None:
    """The default and random schedules come to just what the oracle does, in the interpreter and on these machines."""
    space, arrays = sketch.space(task, target), example_inputs(task, 1)
    [expected] = reference(task, arrays)
    for row in [space.row(space.default), *space.sample(count, np.random.default_rng(2))]:
        kernel = sketch.lower(task, space.schedule(row), target)
        verify(kernel)
        for [result] in (interpret(task, kernel, arrays), *(native(task, kernel, arrays, m) for m in machines)):
            np.testing.assert_array_equal(result.reshape(expected.shape), expected)


def agree(sketch: Sketch, task: Task, target: Target, seed: int, count: int, tolerance: float = 2e-5) -> None:
    """The default and random schedules are in bounds, read nothing undefined, and come to what the oracle does."""
    space = sketch.space(task, target)
    arrays = example_inputs(task, seed)
    expected: NDArray[Any] = reference(task, arrays)[0]
    scale = max(float(np.abs(expected).max()), 1e-6)
    for schedule in (space.default, *map(space.schedule, space.sample(count, np.random.default_rng(seed)))):
        kernel = sketch.lower(task, schedule, target)
        verify(kernel)
        [actual] = interpret(task, kernel, arrays, (grid_interp if target.kind == CUDA else interp).run)
        np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=0, atol=tolerance * scale)
