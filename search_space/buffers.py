"""The buffers of a task's kernel: parameters, temporaries, and outputs of fused stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from tunewright.codegen.ir.ir import Alloc, Block, Buffer, Kernel, Packing, Stmt
from tunewright.graph.task import Task, Tensor

from .patterns.fused_stage import FusedStage

NOTHING: Mapping[str, Packing] = MappingProxyType({})
"""No packings."""


def buffer(tensor: Tensor) -> Buffer:
    """The buffer of a task's tensor in its plain layout."""
    return Buffer(tensor.name, tensor.shape, tensor.dtype)


def own_buffer(fused_stage: FusedStage) -> Buffer:
    """The buffer of an output that is no tensor of the task: one element for each index of the axes."""
    return Buffer(fused_stage.output, tuple(a.extent for a in fused_stage.stage.axes), fused_stage.stage.body.dtype)


def temporaries(task: Task, fused_stages: Iterable[FusedStage]) -> tuple[Buffer, ...]:
    """The buffers of the temporaries that these fused stages write; what was fused needs none."""
    names = {fused_stage.output for fused_stage in fused_stages}
    return tuple(buffer(t) for t in task.temporaries if t.name in names)


def params(task: Task, packings: Mapping[str, Packing]) -> tuple[Buffer, ...]:
    """The parameters of a task's kernel, packed ones in their packed layout."""
    return tuple(
        Buffer(t.name, packings[t.name].shape, t.dtype) if t.name in packings else buffer(t)
        for t in task.inputs + task.outputs
    )


def allocate(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
    """A statement within the memory that it needs, that of the last buffer outermost."""
    for one in buffers:
        body = Alloc(one, body)
    return body


def kernel_around(
    main: Sequence[Stmt],
    task: Task,
    stages: tuple[Sequence[FusedStage], FusedStage, Sequence[FusedStage]],
    plain: Callable[[FusedStage], Stmt],
    packings: Mapping[str, Packing] = NOTHING,
    scratch: Iterable[Buffer] = (),
) -> Kernel:
    """A task's kernel: `main`, which computes a fused stage, between phases for those before and after it.

    `plain` writes such a phase. `scratch`: memory beside that of the temporaries.
    """
    before, fused_stage, after = stages
    body = Block((*map(plain, before), *main, *map(plain, after)))
    memory = (*temporaries(task, (*before, fused_stage, *after)), *scratch)
    return Kernel(params(task, packings), memory, body, dict(packings))
