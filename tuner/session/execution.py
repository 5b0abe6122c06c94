"""CompiledModel: an image in this process, ready to run. Light to import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import available_cores
from tunewright.codegen.runtime.control import Control
from tunewright.codegen.runtime.memory import Recycler, address_of, aligned_block, aligned_empty
from tunewright.codegen.runtime.native import BindingSlice, Code, MovingOperand, Operand, Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.graph.evaluation.sizes import cut
from tunewright.graph.ir import TensorType

from .evaluation import NodeRunner
from .image import (
    Area,
    Array,
    Evaluation,
    Image,
    ImagePort,
    KernelCall,
    Location,
    TensorValue,
    is_whole_output,
    view_of,
)
from .native_run import NativeRun, native_run

SIZE = TensorType("int64", (1,))
"""What holds a size that only a run tells."""

STAGED_BYTES = 16 << 10
"""Inputs and outputs up to here are copied through memory of the model's own: that costs less than binding theirs."""


class CompiledModel:
    """Runs an image: native programs, and between them the nodes that have no kernel.

    Tensors between steps live in one arena. Results are the caller's to keep. Threads may share it, in a forked child
    too: while one of them runs, others run in copies that have arenas and threads of their own, `most_runs` in all, and
    take turns beyond. `code` is the code of a model that this one is a copy of.
    """

    def __init__(self, image: Image, pool: ThreadPool, code: Code | None = None, most_runs: int | None = None) -> None:
        self.image = image
        self._threads = pool.threads
        self._most_runs = len(available_cores()) // pool.threads if most_runs is None else most_runs
        self._copies, self._idle_copies = list[CompiledModel](), list[CompiledModel]()
        self._copying = Lock()
        self._arena = aligned_block(max(image.arena_bytes, 1))
        self._inputs = [_staging_block(port.value.kind) for port in image.inputs]
        self._feeds = [(number, _name(Area.INPUT, number), block) for number, block in enumerate(self._inputs)]
        self._rooms = {number: _staging_block(kind) for number, kind in image.output_types.items()}
        self._output_recyclers = [
            (_name(Area.OUTPUT, number), Recycler(kind.shape or (), DType(kind.dtype)))
            for number, kind in image.output_types.items()
            if self._rooms[number] is None
        ]
        self._results = [self._fixed_output(port.value) for port in image.outputs]
        self._turn = Lock()
        _models.add(self)
        artifacts = (step.artifact for step in image.steps if isinstance(step, KernelCall))
        kernels = [artifact for artifact in artifacts if isinstance(artifact, Artifact)]
        self._code = code or (Code(kernels) if kernels else None)  # one for all programs, of which there may be many
        self._parts: list[Program | NodeRunner] = []
        calls: list[tuple[Artifact, Sequence[Operand]] | Control[Operand]] = []
        for step in image.steps:
            match step:
                case KernelCall(artifact, locations):
                    assert isinstance(artifact, Artifact)
                    calls.append((artifact, [self._operand(location) for location in locations]))
                case Control():
                    calls.append(step.map(self._operand))
                case Evaluation():
                    self._close_program(calls, pool)
                    calls = []
                    self._parts.append(NodeRunner(step, pool.threads))
        self._close_program(calls, pool)

    def copy(self, pool: ThreadPool) -> CompiledModel:
        """The same model with memory of its own between steps, on another pool."""
        return CompiledModel(self.image, pool, None if self._code is None else self._code.share(), most_runs=1)

    def native_run(self) -> NativeRun | None:
        """What native code has to do for a run; None where a run takes Python.

        Who makes use of it must keep the model, and run nothing else on it.
        """
        return native_run(self._parts, self._feeds, list(map(self._memory_of, self.image.outputs)), self.image)

    def _memory_of(self, port: ImagePort) -> Array | str | None:
        """As `_fixed_output`, and the name too where the output has all of the memory under another shape."""
        location = port.value.location
        if location is None or location.area is not Area.OUTPUT:
            return self._fixed_output(port.value)
        block = self._block(location)
        if block is not None:
            return view_of(block, port.value)
        is_whole = is_whole_output(self.image, port)
        return _name(location.area, location.number) if is_whole else None

    def _close_program(
        self, calls: Sequence[tuple[Artifact, Sequence[Operand]] | Control[Operand]], pool: ThreadPool
    ) -> None:
        if calls:
            self._parts.append(Program(calls, pool, self._code))

    def _operand(self, location: Location) -> Operand:
        block = self._block(location)
        base = (
            BindingSlice(_name(location.area, location.number), location.offset_bytes)
            if block is None
            else address_of(block) + location.offset_bytes
        )
        return MovingOperand(base, location.moves) if location.moves else base

    def _block(self, location: Location) -> Array | None:
        """The memory that a spot lies in; None where each run has another one."""
        match location.area:
            case Area.ARENA:
                return self._arena
            case Area.CONSTANTS:
                return self.image.constants[location.number]
            case Area.KEPT:
                return self.image.kept[location.number]
            case Area.INPUT:
                return self._inputs[location.number]
            case Area.OUTPUT:
                return self._rooms[location.number]

    def _fixed_output(self, value: TensorValue) -> Array | str | None:
        """An output in memory that is the same in every run, or the name of what each makes for it alone, or None."""
        block = None if value.location is None else self._block(value.location)
        if block is not None:
            return view_of(block, value)
        location = value.location
        if (
            location is not None
            and location.area is Area.OUTPUT
            and value.kind == self.image.output_types[location.number]
        ):
            return _name(location.area, location.number)
        return None

    def run(self, inputs: Sequence[Array]) -> list[Any]:
        """The outputs, each of the type that the image gives it, for inputs of the types that it gives them, in order.

        Raises EvaluationError where a node without a kernel can't be computed, ProgramStop where a branch is taken that
        no operands of the model's sizes fit.
        """
        if not self._turn.acquire(blocking=False):
            copy = self._idle_copy()
            if copy is not None:
                try:
                    return copy.run(inputs)
                finally:
                    self._idle_copies.append(copy)
            self._turn.acquire()
        try:
            return self._run(inputs)
        finally:
            self._turn.release()

    def _run(self, inputs: Sequence[Array]) -> list[Any]:
        bound, addresses = self._bind(inputs)
        results: dict[str, Any] = {}  # what fallbacks returned, where no memory was planned
        for part in self._parts:
            if isinstance(part, Program):
                part.run(_addresses_of(addresses, part))
            else:
                self._evaluate(part, bound, results)
        return [self._result(number, bound, results) for number in range(len(self._results))]

    def _idle_copy(self) -> CompiledModel | None:
        """A copy that nobody runs, made where there is none; None where there are as many as may run."""
        with self._copying:
            if self._idle_copies:
                return self._idle_copies.pop()
            if len(self._copies) + 1 >= self._most_runs:
                return None
            copy = self.copy(ThreadPool(self._threads, pinned=False))
            self._copies.append(copy)
            return copy

    def times_s(self, inputs: Sequence[Array], samples: int, repeats: int) -> list[float]:
        """Seconds that the kernels take in a run like `run`, without what Python and nodes without kernels take.

        A sample is the mean of `repeats` runs in a row of each native program, summed over them.
        """
        with self._turn:
            _bound, addresses = self._bind(inputs)  # the arrays at these addresses must outlive the loop
            sums_s = np.zeros(samples)
            for part in self._parts:
                if isinstance(part, Program):
                    sums_s += part.time(samples, repeats, bindings=_addresses_of(addresses, part))
            times_s: list[float] = sums_s.tolist()
            return times_s

    def _bind(self, inputs: Sequence[Array]) -> tuple[dict[str, Array], dict[str, int]]:
        """Memory of what has another one in each run, and where it begins; copies the other inputs."""
        bound: dict[str, Array] = {}
        addresses: dict[str, int] = {}
        for number, name, block in self._feeds:
            if block is not None:
                block[...] = inputs[number]
                continue
            array = bound[name] = _readable_array(inputs[number])
            addresses[name] = address_of(array)
        for name, recycler in self._output_recyclers:
            bound[name], addresses[name] = recycler.array()
        return bound, addresses

    def _evaluate(self, runner: NodeRunner, bound: Mapping[str, Array], results: dict[str, Any]) -> None:
        step = runner.step
        for name, result in runner.run(lambda name: self._value(name, step.inputs[name], bound, results)):
            if step.outputs[name].location is None:
                results[name] = result
            else:
                self._value(name, step.outputs[name], bound, results)[...] = result

    def _value(self, name: str, value: TensorValue, bound: Mapping[str, Array], results: Mapping[str, Any]) -> Any:
        """A tensor's value: an array in place, or what a fallback returned."""
        if value.location is None:
            return results[name]
        block = self._block(value.location)
        if block is None:
            block = bound[_name(value.location.area, value.location.number)]
        return view_of(block, value)

    def _result(self, number: int, bound: Mapping[str, Array], results: Mapping[str, Any]) -> Any:
        """An output that is the caller's alone from now on."""
        port = self.image.outputs[number]
        if port.sizes:
            whole = self._value(port.tensor, port.value, bound, results)
            sizes = (TensorValue(SIZE, location) for _, location in port.sizes)
            extents = [self._value("", size, bound, results) for size in sizes]
            return cut(whole, zip((axis for axis, _ in port.sizes), extents, strict=True))
        fixed = self._results[number]
        if isinstance(fixed, str):
            return bound[fixed]
        if fixed is not None:
            return fixed.copy()
        value = self._value(port.tensor, port.value, bound, results)
        own = port.value.location is not None and port.value.location.area is Area.OUTPUT
        return value if own or not isinstance(value, np.ndarray) else value.copy()

    @property
    def vendor_ops(self) -> list[str]:
        """The ops of the nodes that ONNX Runtime runs, once a node."""
        return [op for part in self._parts if isinstance(part, NodeRunner) for op in part.vendor_ops]

    def close(self) -> None:
        """Unload the code, when runs under way have ended."""
        with self._copying:
            self._most_runs = 1
        for copy in self._copies:
            copy.close()
        with self._turn:
            for part in self._parts:
                if isinstance(part, Program):
                    part.close()
            code, self._code = self._code, None
            if code is not None:
                code.close()

    def renew_turn(self) -> None:
        """In the child of a fork: threads that hold locks or run copies may not exist here."""
        self._turn, self._copying = Lock(), Lock()
        self._idle_copies = list(self._copies)


_models: WeakSet[CompiledModel] = WeakSet()


def _renew_turns() -> None:
    for model in list(_models):
        model.renew_turn()


os.register_at_fork(after_in_child=_renew_turns)


def _name(area: Area, number: int) -> str:
    """The name of an input's or output's memory among the operands of programs."""
    return f"{area} {number}"


def _addresses_of(addresses: Mapping[str, int], part: Program) -> Mapping[str, int]:
    """The addresses of a program's operands."""
    if len(part.names) == len(addresses):
        return addresses
    return {name: addresses[name] for name in part.names}


def _staging_block(kind: TensorType) -> Array | None:
    """Memory of the model's own for a small input or output."""
    if not 0 < kind.size_bytes <= STAGED_BYTES:
        return None
    return aligned_empty(kind.shape or (), DType(kind.dtype))


def _readable_array(array: Array) -> Array:
    """The array itself if kernels can read it or never will, else a copy that they can."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    dtype = DType.of(array.dtype.name)  # the name tells nothing of the byte order
    if dtype is None:
        return array
    copy = aligned_empty(array.shape, dtype)
    copy[...] = array
    return copy
