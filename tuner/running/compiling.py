"""A model and its kernels -> an Image: what runs, where in memory everything is, constants as kernels read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.build import ObjectCache, build
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.build import build as gpu_build
from tunewright.codegen.cuda.gpu import WIDEST_BYTES
from tunewright.codegen.ir import Packing
from tunewright.codegen.runtime.memory import aligned_block, room_bytes
from tunewright.codegen.runtime.plan import Access, Memory, plan
from tunewright.codegen.runtime.plan import View as MemoryView
from tunewright.codegen.runtime.residence import trim_heap
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.fusion import Call, Fallback
from tunewright.graph.ops import View
from tunewright.graph.task import Tensor, in_place
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower

from ..models.model import Model
from .image import Area, Array, Built, Copy, Evaluation, Image, KernelCall, Port, Spot, Step, Value, size_bytes

TRIMMED_BYTES = 16 << 20
"""Of constants that were packed are given back to the system at once."""


def build_kernels(
    model: Model, schedules: Mapping[str, Schedule], target: Target, cache: ObjectCache | None
) -> dict[str, Built]:
    """Task key -> the code of its schedule, the same that was measured. Raises BuildError; of a GPU NoCompiler too."""
    built = gpu_build if target.kind == CUDA else build
    return {
        key: built(lower(Candidate(task, target, schedules[key])), target, cache)
        for key, (task, _) in model.tasks.items()
    }


def compile_model(model: Model, artifacts: Mapping[str, Built], packers: int = 1) -> Image:
    """Put the kernels (by task key), constants and memory of a model together. `packers` threads pack constants.

    A model in its `last_use` loses each constant that has been packed, so that memory does not hold all of them twice.
    """
    return _Compiler(model, artifacts).image(packers)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A constant in one layout, at `offset_bytes` of all. The next one begins where the room for it ends."""

    tensor: str
    shape: tuple[int, ...]  # that a task sees it under
    packing: Packing | None
    offset_bytes: int
    size_bytes: int

    def write(self, array: Array, block: NDArray[np.uint8]) -> None:
        """Fill the room, with zeros behind the constant: it is kept on disk with whatever is in there."""
        end_bytes = self.offset_bytes + self.size_bytes
        room = block[self.offset_bytes : end_bytes].view(array.dtype)
        if self.packing is None:
            room.reshape(array.shape)[...] = array
        else:
            room.reshape(self.packing.shape)[...] = self.packing.arranged(array.reshape(self.shape))
        block[end_bytes : self.offset_bytes + room_bytes(self.size_bytes)] = 0


class _Release:
    """Forgets constants, and gives their memory back to the system now and then."""

    def __init__(self, constants: MutableMapping[str, Array]) -> None:
        self._constants = constants
        self._free_bytes = 0

    def __call__(self, name: str) -> None:
        self._free_bytes += self._constants.pop(name).nbytes
        if self._free_bytes >= TRIMMED_BYTES:
            self._free_bytes = 0
            trim_heap()


class _Compiler:
    """Makes one image."""

    def __init__(self, model: Model, artifacts: Mapping[str, Built]) -> None:
        self._model, self._graph, self._artifacts = model, model.graph, artifacts
        self._memory = _memory(model, artifacts)
        self._plan = plan(self._memory)
        self._packed: dict[tuple[str, tuple[int, ...], Packing | None], _Packed] = {}
        self._packed_bytes = 0
        self._kept: dict[str, int] = {}  # constant -> its number
        self._inputs = {value.tensor: number for number, value in enumerate(self._graph.inputs)}
        apart = self._memory.pinned - self._inputs.keys() - self._graph.constants.keys()
        self._outputs: dict[str, int] = {}  # root of outputs -> the number of the first of them
        for number, value in enumerate(self._graph.outputs):
            root, _ = self._memory.locate(value.tensor)
            if root in apart:
                self._outputs.setdefault(root, number)

    def image(self, packers: int) -> Image:
        graph = self._graph
        steps = tuple(one for number, step in enumerate(_executed(self._model)) for one in self._steps(number, step))
        inputs, outputs = (
            tuple(Port(value.label, value.tensor, self._value(value.tensor)) for value in values)
            for values in (graph.inputs, graph.outputs)
        )
        rooms = {number: graph.type(root) for root, number in self._outputs.items()}
        kept = tuple(graph.constants[name] for name in self._kept)
        return Image(inputs, outputs, rooms, steps, self._plan.size_bytes, self._pack(packers), kept)

    def _pack(self, packers: int) -> NDArray[np.uint8]:
        block = aligned_block(self._packed_bytes)
        layouts: dict[str, list[_Packed]] = {}
        for packed in self._packed.values():
            layouts.setdefault(packed.tensor, []).append(packed)
        constants = self._graph.constants
        release = _Release(constants) if self._model.last_use else None

        def write(tensor: str) -> None:
            for packed in layouts[tensor]:
                packed.write(constants[tensor], block)
            if release is not None:
                release(tensor)

        largest_first = sorted(layouts, key=lambda tensor: -constants[tensor].nbytes)
        with ThreadPoolExecutor(packers) as threads:
            list(threads.map(write, largest_first))
        return block

    def _steps(self, number: int, step: Call | Fallback) -> Iterator[Step]:
        match step:
            case Call():
                yield from self._calls(number, step)
            case Fallback(node):
                names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
                yield Evaluation(node, {name: self._value(name) for name in names})

    def _calls(self, number: int, call: Call) -> Iterator[Step]:
        """A kernel, and what has to be copied for it, in its scratch."""
        task, names = call.task, (*call.inputs, *call.outputs)
        artifact = self._artifacts[task.key]
        tensors = zip(names, task.inputs + task.outputs, strict=True)
        spots = [self._operand(name, tensor, artifact) for name, tensor in tensors]
        scratch = [Spot(Area.ARENA, offset_bytes) for offset_bytes in self._plan.scratch[number]]
        own = scratch[: len(artifact.scratch)]
        before, after = [], []
        for place, room in zip(_uneven(self._memory, names, artifact), scratch[len(own) :], strict=True):
            there, of_bytes = spots[place], artifact.params[place].size_bytes
            if place < len(call.inputs):
                before.append(Copy(there, room, of_bytes))
            else:
                after.append(Copy(room, there, of_bytes))
            spots[place] = room
        yield from before
        yield KernelCall(artifact, (*spots, *own))
        yield from after

    def _operand(self, name: str, tensor: Tensor, artifact: Built) -> Spot:
        root, offset_bytes = self._memory.locate(name)
        if root not in self._graph.constants:
            return self._spot(name)
        if offset_bytes:  # a part of it, which no kernel wants packed
            return Spot(Area.CONSTANTS, self._constant(root, (), None) + offset_bytes)
        return Spot(Area.CONSTANTS, self._constant(root, tensor.shape, artifact.packings.get(tensor.name)))

    def _constant(self, root: str, shape: tuple[int, ...], packing: Packing | None) -> int:
        """Where a constant lies in the layout that a kernel reads; each layout is there once."""
        key = root, shape if packing else (), packing
        if key not in self._packed:
            array = self._graph.constants[root]
            size_bytes = (prod(packing.shape) if packing else array.size) * array.itemsize
            self._packed[key] = _Packed(root, shape, packing, self._packed_bytes, size_bytes)
            self._packed_bytes += room_bytes(size_bytes)
        return self._packed[key].offset_bytes

    def _value(self, name: str) -> Value:
        kind = self._graph.type(name)
        root, offset_bytes = self._memory.locate(name)
        if root in self._graph.constants:
            return Value(kind, Spot(Area.KEPT, offset_bytes, self._kept.setdefault(root, len(self._kept))))
        known = root in self._inputs or name in self._memory.sizes_bytes
        return Value(kind, self._spot(name) if known else None)

    def _spot(self, name: str) -> Spot:
        root, offset_bytes = self._memory.locate(name)
        if root in self._inputs:
            return Spot(Area.INPUT, offset_bytes, self._inputs[root])
        if root in self._outputs:
            return Spot(Area.OUTPUT, offset_bytes, self._outputs[root])
        return Spot(Area.ARENA, self._plan.offsets[name])


def _executed(model: Model) -> list[Call | Fallback]:
    """The steps that do something."""
    return [step for step in model.steps if not isinstance(step, View)]


def _uneven(memory: Memory, names: Sequence[str], artifact: Built) -> list[int]:
    """Which of its operands a kernel can't be given where they lie, in the midst of others. A processor's can be."""
    if not isinstance(artifact, GpuArtifact):
        return []
    return [place for place, name in enumerate(names) if memory.locate(name)[1] % WIDEST_BYTES]


def _memory(model: Model, artifacts: Mapping[str, Built]) -> Memory:
    """What there is to plan. Tensors whose size only running tells, or of types without kernels, stay outside."""
    graph = model.graph
    sizes = _sizes_bytes(model)
    views = {s.output: MemoryView(s.input, s.offset_bytes) for s in model.steps if isinstance(s, View)}
    unpinned = Memory((), sizes, (), views)
    results = {unpinned.locate(value.tensor)[0] for value in graph.outputs if value.tensor in sizes}
    pinned = {value.tensor for value in graph.inputs} | set(graph.constants) | results
    accesses = []
    pairs = {key: in_place(task) for key, (task, _) in model.tasks.items()}
    for step in _executed(model):
        match step:
            case Call(task, inputs, outputs):
                names = dict(zip((t.name for t in task.inputs + task.outputs), (*inputs, *outputs), strict=True))
                artifact = artifacts[task.key]
                staged = [artifact.params[place] for place in _uneven(unpinned, (*inputs, *outputs), artifact)]
                scratch = tuple(buffer.size_bytes for buffer in (*artifact.scratch, *staged))
                shared = tuple((names[write], names[read]) for write, read in pairs[task.key])
                accesses.append(Access(tuple(inputs), tuple(outputs), scratch, shared))
            case Fallback(node):
                reads = tuple(name for name in node.inputs if name in sizes)
                accesses.append(Access(reads, tuple(name for name in node.outputs if name in sizes)))
    return Memory(tuple(accesses), sizes, pinned, views)


def _sizes_bytes(model: Model) -> dict[str, int]:
    """What tensors take: those of the graph, and those that the calls of one node pass on to each other."""
    sizes = {}
    for name, kind in model.graph.types.items():
        if taken_bytes := size_bytes(kind):
            sizes[name] = taken_bytes
    for step in model.steps:
        if isinstance(step, Call):
            tensors = zip((*step.inputs, *step.outputs), step.task.inputs + step.task.outputs, strict=True)
            sizes.update((name, tensor.size_bytes) for name, tensor in tensors if name not in sizes)
    return sizes
