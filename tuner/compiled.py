"""CompiledModel: a model's kernels, constants and memory in one native program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.build import Artifact, ObjectCache, build
from tunewright.codegen.dtype import DType
from tunewright.codegen.ir import Packing
from tunewright.codegen.runtime.memory import ALIGN_BYTES, aligned_empty
from tunewright.codegen.runtime.native import Operand, Program
from tunewright.codegen.runtime.plan import Access, Memory, plan
from tunewright.codegen.runtime.plan import View as MemoryView
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target
from tunewright.graph.fallback import EvaluationError, evaluate
from tunewright.graph.fusion import Call, Fallback
from tunewright.graph.ir import Node
from tunewright.graph.ops import View
from tunewright.graph.task import Tensor, in_place
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import lower

from .model import Model

Array = NDArray[np.generic]


def build_kernels(
    model: Model, schedules: Mapping[str, Schedule], target: Target, cache: ObjectCache | None
) -> dict[str, Artifact]:
    """Task key -> the object code of its schedule, the same that was measured."""
    return {
        key: build(lower(Candidate(task, target, schedules[key])), target, cache)
        for key, (task, _) in model.tasks.items()
    }


class CompiledModel:
    """Runs a model: native programs, and between them the nodes that have no kernel.

    Tensors between steps live in one arena, planned once. Inputs and outputs are bound anew by every run, so results
    are the caller's to keep. Threads may share it; their runs take turns, in a forked child too.
    """

    def __init__(self, model: Model, artifacts: Mapping[str, Artifact], pool: ThreadPool) -> None:
        self._graph = model.graph
        self._memory = _memory(model, artifacts)
        self._plan = plan(self._memory)
        self._arena = aligned_empty((max(self._plan.size_bytes, 1),), DType.U8)
        self._constants = _Constants(model.graph.constants)
        self._turn = Lock()
        _models.add(self)
        self._parts: list[Program | Node] = []
        calls: list[tuple[Artifact, Sequence[Operand]]] = []
        for number, step in enumerate(_executed(model)):
            match step:
                case Call(task):
                    calls.append((artifacts[task.key], self._operands(number, step, artifacts[task.key])))
                case Fallback(node):
                    self._close_program(calls, pool)
                    calls = []
                    self._parts.append(node)
        self._close_program(calls, pool)

    def _close_program(self, calls: Sequence[tuple[Artifact, Sequence[Operand]]], pool: ThreadPool) -> None:
        if calls:
            self._parts.append(Program(calls, pool))

    def _operands(self, number: int, call: Call, artifact: Artifact) -> list[Operand]:
        tensors = call.task.inputs + call.task.outputs
        operands = [
            self._operand(name, tensor, artifact)
            for name, tensor in zip((*call.inputs, *call.outputs), tensors, strict=True)
        ]
        return [*operands, *(self._arena.ctypes.data + offset for offset in self._plan.scratch[number])]

    def _operand(self, name: str, tensor: Tensor, artifact: Artifact) -> Operand:
        root, _ = self._memory.locate(name)
        if root in self._graph.constants:
            return self._constants.laid_out(root, tensor.shape, artifact.packings.get(tensor.name))
        if root in self._memory.pinned:
            return root
        return self._arena.ctypes.data + self._plan.offsets[name]

    def run(self, inputs: Mapping[str, Array]) -> list[Any]:
        """The outputs for inputs by tensor, each of the type that the graph gives it.

        Raises EvaluationError where a node without a kernel can't be computed.
        """
        bound = {name: _aligned(array) for name, array in inputs.items()}
        with self._turn:
            return self._run(bound)

    def _run(self, bound: dict[str, Array]) -> list[Any]:
        own = {}
        for value in self._graph.outputs:
            root, _ = self._memory.locate(value.tensor)
            if root in self._memory.pinned and root not in bound and root not in self._graph.constants:
                kind = self._graph.type(root)
                own[root] = aligned_empty(kind.shape or (), DType(kind.dtype))
        bound.update(own)
        others: dict[str, Any] = {}  # values outside of the plan
        for part in self._parts:
            if isinstance(part, Program):
                part.run({name: bound[name] for name in part.names})
            else:
                self._evaluate(part, bound, others)
        return [self._result(value.tensor, bound, others, own) for value in self._graph.outputs]

    def _evaluate(self, node: Node, bound: Mapping[str, Array], others: dict[str, Any]) -> None:
        results = evaluate(node, [self._value(name, bound, others) if name else None for name in node.inputs])
        for name, result in zip(node.outputs, results, strict=True):
            if not name:
                continue
            if name not in self._memory.sizes_bytes:
                others[name] = result
                continue
            kind = self._graph.type(name)
            if result.shape != kind.shape or result.dtype != kind.dtype:
                raise EvaluationError(f"{node.op} made {result.dtype}{list(result.shape)} where {kind} was inferred")
            self._value(name, bound, others)[...] = result

    def _value(self, name: str, bound: Mapping[str, Array], others: Mapping[str, Any]) -> Any:
        """A tensor's value: an array in place, or what a fallback returned."""
        if name in others:
            return others[name]
        root, _ = self._memory.locate(name)
        shape = self._graph.type(name).shape or ()
        if root in self._graph.constants:
            return self._graph.constants[root].reshape(shape)
        if root in bound:
            return bound[root].reshape(shape)
        kind = DType(self._graph.type(name).dtype)
        start = self._plan.offsets[name]
        return self._arena[start : start + prod(shape) * kind.size_bytes].view(kind.numpy).reshape(shape)

    def _result(
        self, name: str, bound: Mapping[str, Array], others: Mapping[str, Any], own: Mapping[str, Array]
    ) -> Any:
        value = self._value(name, bound, others)
        root, _ = self._memory.locate(name)
        return value if root in own or name in others else np.array(value)

    def close(self) -> None:
        """Unload the code, when a run under way has ended."""
        with self._turn:
            for part in self._parts:
                if isinstance(part, Program):
                    part.close()

    def renew_turn(self) -> None:
        """In the child of a fork: who holds the turn may not be here."""
        self._turn = Lock()


_models: WeakSet[CompiledModel] = WeakSet()


def _renew_turns() -> None:
    for model in list(_models):
        model.renew_turn()


os.register_at_fork(after_in_child=_renew_turns)


class _Constants:
    """The constants in the layouts that kernels read, each layout made once."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._made: dict[tuple[str, tuple[int, ...], Packing | None], Array] = {}

    def laid_out(self, name: str, shape: tuple[int, ...], packing: Packing | None) -> Array:
        """A constant seen under a task's shape, then packed."""
        key = name, shape if packing else (), packing
        if key not in self._made:
            array = self._arrays[name]
            self._made[key] = _aligned(packing.apply(array.reshape(shape)) if packing else array)
        return self._made[key]


def _executed(model: Model) -> list[Call | Fallback]:
    """The steps that do something."""
    return [step for step in model.steps if not isinstance(step, View)]


def _memory(model: Model, artifacts: Mapping[str, Artifact]) -> Memory:
    """What there is to plan. Tensors whose size only running tells, or of types without kernels, stay outside."""
    graph = model.graph
    sizes = {}
    for name, kind in graph.types.items():
        dtype = DType.of(kind.dtype)
        if kind.shape is not None and dtype is not None and 0 not in kind.shape:
            sizes[name] = prod(kind.shape) * dtype.size_bytes
    views = {s.output: MemoryView(s.input) for s in model.steps if isinstance(s, View)}
    accesses = []
    for step in _executed(model):
        match step:
            case Call(task, inputs, outputs):
                names = dict(zip((t.name for t in task.inputs + task.outputs), (*inputs, *outputs), strict=True))
                scratch = tuple(b.size_bytes for b in artifacts[task.key].scratch)
                pairs = tuple((names[write], names[read]) for write, read in in_place(task))
                accesses.append(Access(tuple(inputs), tuple(outputs), scratch, pairs))
            case Fallback(node):
                reads = tuple(name for name in node.inputs if name in sizes)
                accesses.append(Access(reads, tuple(name for name in node.outputs if name in sizes)))
    pinned = {value.tensor for value in graph.inputs} | set(graph.constants)
    unpinned = Memory((), sizes, (), views)
    pinned |= {unpinned.locate(value.tensor)[0] for value in graph.outputs if value.tensor in sizes}
    return Memory(tuple(accesses), sizes, pinned, views)


def _aligned(array: Array) -> Array:
    """The array itself if kernels can read it or never will, else a copy that they can."""
    dtype = DType.of(array.dtype.name)  # the name tells nothing of the byte order
    fits = array.dtype.isnative and array.flags.c_contiguous and array.ctypes.data % ALIGN_BYTES == 0
    if dtype is None or fits:
        return array
    copy = aligned_empty(array.shape, dtype)
    copy[...] = array
    return copy
