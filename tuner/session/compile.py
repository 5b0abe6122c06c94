"""A model and its kernels -> an Image: what runs, where in memory everything is, constants as kernels read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.build import build as gpu_build
from tunewright.codegen.gpu import WIDEST_BYTES
from tunewright.codegen.ir.fill import fill
from tunewright.codegen.ir.ir import Packing
from tunewright.codegen.llvm.build import ObjectCache
from tunewright.codegen.runtime.control import ALL, ENDLESS, RING, Control, ControlKind, Move
from tunewright.codegen.runtime.memory import aligned_block, room_bytes, trim_heap
from tunewright.codegen.runtime.plan import Access, ArenaProblem, plan
from tunewright.codegen.runtime.plan import View as MemoryView
from tunewright.codegen.target import CUDA, Target
from tunewright.graph.control.steps import (
    Branch,
    EndBranch,
    LoopEnd,
    LoopStart,
    MovingView,
    Otherwise,
    Routine,
    Stop,
    TensorCopy,
)
from tunewright.graph.fusion.fusion import Fallback, TaskCall
from tunewright.graph.ir import GraphPort, Node
from tunewright.graph.ops import TensorView
from tunewright.graph.task import Tensor, in_place
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower

from ..models.model import Model
from .evaluation import suits
from .image import (
    WEIGHT_BYTES,
    Area,
    Array,
    Copy,
    Evaluation,
    Image,
    ImagePort,
    KernelCall,
    KernelCode,
    Location,
    Step,
    TensorValue,
)
from .kernel_families import KernelFamilies
from .lifetimes import control_access, keep_through_loops
from .packed_weights import Key, PackedWeights

TRIMMED_BYTES = 16 << 20
"""Bytes of packed constants that are given back to the system at once."""


def build_kernels(
    model: Model,
    schedules: Mapping[str, Schedule],
    target: Target,
    cache: ObjectCache | None,
    families: KernelFamilies | None = None,
) -> dict[str, KernelCode]:
    """Task key -> the code of its schedule, the same that was measured. Raises BuildError; of a GPU NoCompiler too.

    `families` are those of the model at other sizes, on a processor.
    """
    tasks = {key: task for key, (task, _) in model.tasks.items()}
    if target.kind != CUDA:
        return {**(families or KernelFamilies()).build(tasks, schedules, target, cache)}
    return {
        key: gpu_build(lower(Candidate(task, target, schedules[key])), target, cache) for key, task in tasks.items()
    }


def compile_model(
    model: Model, artifacts: Mapping[str, KernelCode], packers: int = 1, weights: PackedWeights | None = None
) -> Image:
    """Put the kernels (by task key), constants and memory of a model together. `packers` threads pack constants.

    Those that `weights` has are not packed again; it gets the others.

    A model in its `last_use` loses each constant that has been packed, so that memory does not hold all of them twice.
    """
    return _Compiler(model, artifacts, weights).image(packers)


@dataclass(frozen=True, slots=True)
class _PackedConstant:
    """A constant in one layout, at `offset_bytes` of all. The next one begins where the room for it ends."""

    tensor: str
    shape: tuple[int, ...]  # that a task sees it under
    packing: Packing | None
    number: int  # of the block
    offset_bytes: int  # there
    size_bytes: int

    def write(self, array: Array, block: NDArray[np.uint8]) -> None:
        """Fill the room, with zeros behind the constant: it is kept on disk with whatever is in there."""
        end_bytes = self.offset_bytes + self.size_bytes
        room = block[self.offset_bytes : end_bytes].view(array.dtype)
        if self.packing is None:
            room.reshape(array.shape)[...] = array
        else:
            fill(room.reshape(self.packing.shape), array.reshape(self.shape), self.packing)
        block[end_bytes : self.offset_bytes + room_bytes(self.size_bytes)] = 0


class _Release:
    """Drops constants, and gives their memory back to the system now and then."""

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

    def __init__(self, model: Model, artifacts: Mapping[str, KernelCode], weights: PackedWeights | None) -> None:
        self._model, self._graph, self._artifacts, self._weights = model, model.graph, artifacts, weights
        self._memory = _memory(model, artifacts)
        self._plan = plan(self._memory)
        self._moving = {step.output: step for step in model.steps if isinstance(step, MovingView)}
        self._packed_constants: dict[tuple[str, tuple[int, ...], Packing | None], _PackedConstant] = {}
        self._blocks_bytes = [0]  # of small constants, then of each weight
        self._plain_constants: dict[str, int] = {}  # constant -> its number
        self._inputs = {value.tensor: number for number, value in enumerate(self._graph.inputs)}
        apart = self._memory.pinned - self._inputs.keys() - self._graph.constants.keys()
        self._outputs: dict[str, int] = {}  # root of outputs -> the number of the first of them
        for number, value in enumerate(self._graph.outputs):
            root, _ = self._memory.locate(value.tensor)
            if root in apart:
                self._outputs.setdefault(root, number)

    def image(self, packers: int) -> Image:
        graph = self._graph
        steps = tuple(
            item for number, step in enumerate(_compute_steps(self._model)) for item in self._steps(number, step)
        )
        inputs, outputs = (
            tuple(self._port(value) for value in values if not value.is_size)
            for values in (graph.inputs, graph.outputs)
        )
        rooms = {number: graph.type(root) for root, number in self._outputs.items()}
        plain_constants = tuple(graph.constants[name] for name in self._plain_constants)
        return Image(inputs, outputs, rooms, steps, self._plan.size_bytes, self._pack(packers), plain_constants)

    def _port(self, port: GraphPort) -> ImagePort:
        sizes = ((axis, self._plain(self._graph.outputs[place].tensor)) for axis, place in port.sizes)
        return ImagePort(port.label, port.tensor, self._value(port.tensor), port.keys, tuple(sizes), port.map)

    def _pack(self, packers: int) -> tuple[NDArray[np.uint8], ...]:
        constants, kept = self._graph.constants, self._weights or PackedWeights()
        kept.begin_size()
        with ThreadPoolExecutor(packers) as threads:
            own = self._own_blocks()
            keys = dict(zip(own, threads.map(self._key, own), strict=True))
        known = {packed.number: block for packed, key in keys.items() if (block := kept.get(key)) is not None}
        sizes_bytes = [0 if number in known else size for number, size in enumerate(self._blocks_bytes)]
        fresh = np.split(aligned_block(sum(sizes_bytes)), np.cumsum(sizes_bytes)[:-1])
        blocks = tuple(known.get(number, block) for number, block in enumerate(fresh))
        layouts: dict[str, list[_PackedConstant]] = {}
        for packed in self._packed_constants.values():
            layouts.setdefault(packed.tensor, []).append(packed)
        release = _Release(constants) if self._model.last_use else None

        def write(tensor: str) -> None:
            for packed in layouts[tensor]:
                if packed.number not in known:
                    packed.write(constants[tensor], blocks[packed.number])
            if release is not None:
                release(tensor)

        largest_first = sorted(layouts, key=lambda tensor: -constants[tensor].nbytes)
        with ThreadPoolExecutor(packers) as threads:
            list(threads.map(write, largest_first))
        for packed, key in keys.items():
            kept.put(key, blocks[packed.number])
        return blocks

    def _own_blocks(self) -> list[_PackedConstant]:
        """The weights that others may have packed, or want: none where that is not kept."""
        return [packed for packed in self._packed_constants.values() if packed.number and self._weights is not None]

    def _key(self, packed: _PackedConstant) -> Key:
        return PackedWeights.key(self._graph.constants[packed.tensor], packed.shape, packed.packing)

    def _steps(self, number: int, step: ComputeStep) -> Iterator[Step]:
        match step:
            case TaskCall():
                yield from self._calls(number, step)
            case Branch(condition):
                yield Control(ControlKind.IF, (self._plain(condition),))
            case Otherwise():
                yield Control(ControlKind.ELSE)
            case EndBranch():
                yield Control(ControlKind.END_IF)
            case Stop(reason):
                yield Control(ControlKind.STOP, note=reason)
            case LoopStart(number, words, trips, condition, count):
                operands = tuple(self._plain(name) if name else None for name in (words, trips, condition))
                yield Control(ControlKind.LOOP, operands, number, ENDLESS if count is None else count)
            case LoopEnd(number, condition):
                yield Control(ControlKind.END_LOOP, (self._plain(condition) if condition else None,), number)
            case Routine(symbol, reads, writes, iterations, numbers):
                operands = tuple(map(self._plain, (*reads, *writes)))
                yield Control(ControlKind.ROUTINE, operands, size=iterations, note=symbol, numbers=numbers)
            case TensorCopy(source, output):
                operands = self._plain(output), self._plain(source)
                yield Control(ControlKind.COPY, operands, size=self._graph.type(source).size_bytes)
            case NodeGroup(nodes, inputs, outputs):
                names = dict.fromkeys(name for node in nodes for name in (*node.inputs, *node.outputs) if name)
                types = {name: self._graph.type(name) for name in names}
                taken, made = ({name: self._value(name) for name in of_group} for of_group in (inputs, outputs))
                yield Evaluation(nodes, taken, made, types)

    def _calls(self, number: int, call: TaskCall) -> Iterator[Step]:
        """A kernel, and what has to be copied for it, in its scratch."""
        task, names = call.task, (*call.inputs, *call.outputs)
        artifact = self._artifacts[task.key]
        tensors = zip(names, task.inputs + task.outputs, strict=True)
        locations = [self._operand(name, tensor, artifact) for name, tensor in tensors]
        scratch = [Location(Area.ARENA, offset_bytes) for offset_bytes in self._plan.scratch[number]]
        own = scratch[: len(artifact.scratch)]
        before, after = [], []
        for operand, room in zip(_misaligned(self._memory, names, artifact), scratch[len(own) :], strict=True):
            location, of_bytes = locations[operand], artifact.params[operand].size_bytes
            if operand < len(call.inputs):
                before.append(Copy(location, room, of_bytes))
            else:
                after.append(Copy(room, location, of_bytes))
            locations[operand] = room
        yield from before
        yield KernelCall(artifact, (*locations, *own))
        yield from after

    def _operand(self, name: str, tensor: Tensor, artifact: KernelCode) -> Location:
        root, offset_bytes = self._memory.locate(name)
        if root not in self._graph.constants or offset_bytes or self._moves(name):  # none that a kernel wants packed
            return self._plain(name)
        return self._constant(root, tensor.shape, artifact.packings.get(tensor.name))

    def _plain(self, name: str) -> Location:
        """Where a tensor lies as it is."""
        root, offset_bytes = self._memory.locate(name)
        if root not in self._graph.constants:
            return self._location(name)
        start = self._constant(root, (), None)
        return replace(start, offset_bytes=start.offset_bytes + offset_bytes, moves=self._moves(name))

    def _moves(self, name: str) -> tuple[Move, ...]:
        """How a tensor moves with the loops around, the outermost first."""
        moves: list[Move] = []
        while (view := self._memory.views.get(name)) is not None:
            if (moving := self._moving.get(name)) is not None:
                mask = RING if moving.is_ring else ALL
                moves.append(Move(moving.loop, moving.stride_bytes, mask, moving.phase))
            name = view.of
        return tuple(reversed(moves))

    def _constant(self, root: str, shape: tuple[int, ...], packing: Packing | None) -> Location:
        """Where a constant begins in the layout that a kernel reads; each layout is stored once."""
        key = root, shape if packing else (), packing
        if key not in self._packed_constants:
            array = self._graph.constants[root]
            size_bytes = (prod(packing.shape) if packing else array.size) * array.itemsize
            if size_bytes >= WEIGHT_BYTES:
                self._blocks_bytes.append(0)
            number = len(self._blocks_bytes) - 1 if size_bytes >= WEIGHT_BYTES else 0
            offset_bytes = self._blocks_bytes[number]
            self._packed_constants[key] = _PackedConstant(root, shape, packing, number, offset_bytes, size_bytes)
            self._blocks_bytes[number] += room_bytes(size_bytes)
        packed = self._packed_constants[key]
        return Location(Area.CONSTANTS, packed.offset_bytes, packed.number)

    def _value(self, name: str) -> TensorValue:
        kind = self._graph.type(name)
        root, offset_bytes = self._memory.locate(name)
        if root in self._graph.constants:
            return TensorValue(
                kind,
                Location(Area.KEPT, offset_bytes, self._plain_constants.setdefault(root, len(self._plain_constants))),
            )
        known = root in self._inputs or name in self._memory.sizes_bytes
        return TensorValue(kind, self._location(name) if known else None)

    def _location(self, name: str) -> Location:
        root, offset_bytes = self._memory.locate(name)
        moves = self._moves(name)
        if root in self._inputs:
            return Location(Area.INPUT, offset_bytes, self._inputs[root], moves)
        if root in self._outputs:
            return Location(Area.OUTPUT, offset_bytes, self._outputs[root], moves)
        return Location(Area.ARENA, self._plan.offsets[name], moves=moves)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Neighbouring nodes without a kernel: what they take, and what others take of them."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


ComputeStep = TaskCall | NodeGroup | Branch | Otherwise | EndBranch | Stop | LoopStart | LoopEnd | TensorCopy | Routine
"""A step that does something when a model runs."""


def _compute_steps(model: Model) -> list[ComputeStep]:
    """The steps that do something."""
    steps: list[ComputeStep | list[Node]] = []
    made: set[str] = set()  # by the group of nodes to which another may be added
    for step in model.steps:
        match step:
            case TensorView(source) | MovingView(of=source):
                if source in made:  # who reads a view needs what it is a view of in memory
                    made = set()
            case Fallback(node):
                group = steps[-1] if steps else None
                if isinstance(group, list) and made and suits([*group, node]):
                    group.append(node)
                else:
                    steps.append([node])
                    made = set()
                made.update(node.outputs)
            case _:
                steps.append(step)
    readers = _readers(model)
    return [_group(step, readers) if isinstance(step, list) else step for step in steps]


def _readers(model: Model) -> dict[str, int]:
    """Tensor -> how many steps take it, and the model as its output."""
    names = [value.tensor for value in model.graph.outputs]
    for step in model.steps:
        match step:
            case TaskCall(inputs=inputs):
                names += inputs
            case TensorView(source) | MovingView(of=source):
                names.append(source)
            case Fallback(node):
                names += set(node.inputs)
            case _:
                names += control_access(step).reads
    return Counter(names)


def _group(nodes: Sequence[Node], readers: Mapping[str, int]) -> NodeGroup:
    taken = Counter(name for node in nodes for name in set(node.inputs) if name)
    made = {name for node in nodes for name in node.outputs if name}
    inputs = tuple(name for name in dict.fromkeys(name for node in nodes for name in node.inputs) if name not in made)
    outputs = [name for node in nodes for name in node.outputs if name and readers.get(name, 0) > taken.get(name, 0)]
    return NodeGroup(tuple(nodes), tuple(filter(None, inputs)), tuple(outputs))


def _misaligned(memory: ArenaProblem, names: Sequence[str], artifact: KernelCode) -> list[int]:
    """The operands of a GPU kernel that lie misaligned within other tensors. A processor's kernel takes any."""
    if not isinstance(artifact, GpuArtifact):
        return []
    return [place for place, name in enumerate(names) if memory.locate(name)[1] % WIDEST_BYTES]


def _memory(model: Model, artifacts: Mapping[str, KernelCode]) -> ArenaProblem:
    """The tensors and accesses to plan, without tensors of unknown size or of types without kernels."""
    graph = model.graph
    sizes = _sizes_bytes(model)
    views = {s.output: MemoryView(s.input, s.offset_bytes) for s in model.steps if isinstance(s, TensorView)}
    views |= {s.output: MemoryView(s.of, s.offset_bytes) for s in model.steps if isinstance(s, MovingView)}
    unpinned = ArenaProblem((), sizes, (), views)
    results = {unpinned.locate(value.tensor)[0] for value in graph.outputs if value.tensor in sizes}
    pinned = {value.tensor for value in graph.inputs} | set(graph.constants) | results
    accesses, steps = [], _compute_steps(model)
    pairs = {key: in_place(task) for key, (task, _) in model.tasks.items()}
    for step in steps:
        match step:
            case TaskCall(task, inputs, outputs):
                names = dict(zip((t.name for t in task.inputs + task.outputs), (*inputs, *outputs), strict=True))
                artifact = artifacts[task.key]
                staged = [artifact.params[place] for place in _misaligned(unpinned, (*inputs, *outputs), artifact)]
                scratch = tuple(buffer.size_bytes for buffer in (*artifact.scratch, *staged))
                shared = tuple((names[write], names[read]) for write, read in pairs[task.key])
                accesses.append(Access(tuple(inputs), tuple(outputs), scratch, shared))
            case NodeGroup(inputs=inputs, outputs=outputs):
                reads, writes = (tuple(name for name in names if name in sizes) for names in (inputs, outputs))
                accesses.append(Access(reads, writes))
            case _:
                accesses.append(control_access(step))
    moving_views = [step for step in model.steps if isinstance(step, MovingView)]
    kept = keep_through_loops(steps, accesses, moving_views, lambda name: unpinned.locate(name)[0])
    return ArenaProblem(tuple(kept), sizes, pinned, views)


def _sizes_bytes(model: Model) -> dict[str, int]:
    """Sizes of the tensors of the graph, and of those that the calls of one node pass on to each other."""
    sizes = {}
    for name, kind in model.graph.types.items():
        if tensor_bytes := kind.size_bytes:
            sizes[name] = tensor_bytes
    for step in model.steps:
        if isinstance(step, TaskCall):
            tensors = zip((*step.inputs, *step.outputs), step.task.inputs + step.task.outputs, strict=True)
            sizes.update((name, tensor.size_bytes) for name, tensor in tensors if name not in sizes)
    return sizes
