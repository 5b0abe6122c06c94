"""CompiledModel: an image in this process, ready to run. Light to import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.dtype import DType
from tunewright.codegen.runtime.memory import Recycler, address_of, aligned_block, aligned_empty
from tunewright.codegen.runtime.native import Code, Operand, Part, Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.graph.ir import TensorType

from .evaluation import evaluated
from .image import Area, Array, Evaluation, Image, KernelCall, Spot, Value, seen, size_bytes

STAGED_BYTES = 16 << 10
"""Inputs and outputs up to here are copied through memory of the model's own: that costs less than binding theirs."""


class CompiledModel:
    """Runs an image: native programs, and between them the nodes that have no kernel.

    Tensors between steps live in one arena. Results are the caller's to keep. Threads may share it; their runs take
    turns, in a forked child too.
    """

    def __init__(self, image: Image, pool: ThreadPool) -> None:
        self.image = image
        self._arena = aligned_block(max(image.arena_bytes, 1))
        self._inputs = [_staging(port.value.kind) for port in image.inputs]
        self._feeds = [(number, _name(Area.INPUT, number), staged) for number, staged in enumerate(self._inputs)]
        self._rooms = {number: _staging(kind) for number, kind in image.rooms.items()}
        self._fresh = [
            (_name(Area.OUTPUT, number), Recycler(kind.shape or (), DType(kind.dtype)))
            for number, kind in image.rooms.items()
            if self._rooms[number] is None
        ]
        self._results = [self._whole(port.value) for port in image.outputs]
        self._turn = Lock()
        _models.add(self)
        called = (step.artifact for step in image.steps if isinstance(step, KernelCall))
        kernels = [artifact for artifact in called if isinstance(artifact, Artifact)]
        self._code = Code(kernels) if kernels else None  # one for all programs, of which there may be very many
        self._parts: list[Program | Evaluation] = []
        calls: list[tuple[Artifact, Sequence[Operand]]] = []
        for step in image.steps:
            match step:
                case KernelCall(artifact, spots):
                    assert isinstance(artifact, Artifact)
                    calls.append((artifact, [self._operand(spot) for spot in spots]))
                case Evaluation():
                    self._close_program(calls, pool)
                    calls = []
                    self._parts.append(step)
        self._close_program(calls, pool)

    def _close_program(self, calls: Sequence[tuple[Artifact, Sequence[Operand]]], pool: ThreadPool) -> None:
        if calls:
            self._parts.append(Program(calls, pool, self._code))

    def _operand(self, spot: Spot) -> Operand:
        block = self._block(spot)
        if block is None:
            return Part(_name(spot.area, spot.number), spot.offset_bytes)
        return address_of(block) + spot.offset_bytes

    def _block(self, spot: Spot) -> Array | None:
        """The memory that a spot lies in; None where each run has another one."""
        match spot.area:
            case Area.ARENA:
                return self._arena
            case Area.CONSTANTS:
                return self.image.constants
            case Area.KEPT:
                return self.image.kept[spot.number]
            case Area.INPUT:
                return self._inputs[spot.number]
            case Area.OUTPUT:
                return self._rooms[spot.number]

    def _whole(self, value: Value) -> Array | str | None:
        """An output in memory that is the same in every run, or the name of what each makes for it alone, or None."""
        block = None if value.spot is None else self._block(value.spot)
        if block is not None:
            return seen(block, value)
        spot = value.spot
        if spot is not None and spot.area is Area.OUTPUT and value.kind == self.image.rooms[spot.number]:
            return _name(spot.area, spot.number)
        return None

    def run(self, inputs: Sequence[Array]) -> list[Any]:
        """The outputs, each of the type that the image gives it, for inputs of the types that it gives them, in order.

        Raises EvaluationError where a node without a kernel can't be computed.
        """
        with self._turn:
            bound, addresses = self._bound(inputs)
            found: dict[str, Any] = {}  # what fallbacks returned, where no memory was planned
            for part in self._parts:
                if isinstance(part, Program):
                    part.run(_named(addresses, part))
                else:
                    self._evaluate(part, bound, found)
            return [self._result(number, bound, found) for number in range(len(self._results))]

    def times_s(self, inputs: Sequence[Array], samples: int, repeats: int) -> list[float]:
        """Seconds that the kernels take in a run like `run`, without what Python and nodes without kernels take.

        A sample is the mean of `repeats` runs in a row of each native program, summed over them.
        """
        with self._turn:
            _bound, addresses = self._bound(inputs)  # the arrays at these addresses must outlive the loop
            sums_s = np.zeros(samples)
            for part in self._parts:
                if isinstance(part, Program):
                    sums_s += part.time(samples, repeats, bindings=_named(addresses, part))
            found: list[float] = sums_s.tolist()
            return found

    def _bound(self, inputs: Sequence[Array]) -> tuple[dict[str, Array], dict[str, int]]:
        """Memory of what has another one in each run, and where it begins; copies the other inputs."""
        bound: dict[str, Array] = {}
        addresses: dict[str, int] = {}
        for number, name, staged in self._feeds:
            if staged is not None:
                staged[...] = inputs[number]
                continue
            array = bound[name] = _readable(inputs[number])
            addresses[name] = address_of(array)
        for name, recycler in self._fresh:
            bound[name], addresses[name] = recycler.array()
        return bound, addresses

    def _evaluate(self, step: Evaluation, bound: Mapping[str, Array], found: dict[str, Any]) -> None:
        def value(name: str) -> Any:
            return self._value(name, step.values[name], bound, found)

        for name, result in evaluated(step, value):
            if step.values[name].spot is None:
                found[name] = result
            else:
                value(name)[...] = result

    def _value(self, name: str, value: Value, bound: Mapping[str, Array], found: Mapping[str, Any]) -> Any:
        """A tensor's value: an array in place, or what a fallback returned."""
        if value.spot is None:
            return found[name]
        block = self._block(value.spot)
        if block is None:
            block = bound[_name(value.spot.area, value.spot.number)]
        return seen(block, value)

    def _result(self, number: int, bound: Mapping[str, Array], found: Mapping[str, Any]) -> Any:
        """An output that is the caller's alone from now on."""
        whole = self._results[number]
        if isinstance(whole, str):
            return bound[whole]
        if whole is not None:
            return whole.copy()
        port = self.image.outputs[number]
        value = self._value(port.tensor, port.value, bound, found)
        own = port.value.spot is not None and port.value.spot.area is Area.OUTPUT
        return value if own or not isinstance(value, np.ndarray) else value.copy()

    def close(self) -> None:
        """Unload the code, when a run under way has ended."""
        with self._turn:
            for part in self._parts:
                if isinstance(part, Program):
                    part.close()
            if self._code is not None:
                self._code.close()

    def renew_turn(self) -> None:
        """In the child of a fork: who holds the turn may not be here."""
        self._turn = Lock()


_models: WeakSet[CompiledModel] = WeakSet()


def _renew_turns() -> None:
    for model in list(_models):
        model.renew_turn()


os.register_at_fork(after_in_child=_renew_turns)


def _name(area: Area, number: int) -> str:
    """What the memory of an input or output is called among the operands of programs."""
    return f"{area} {number}"


def _named(addresses: Mapping[str, int], part: Program) -> Mapping[str, int]:
    """Those addresses that a program has names for."""
    if len(part.names) == len(addresses):
        return addresses
    return {name: addresses[name] for name in part.names}


def _staging(kind: TensorType) -> Array | None:
    """Memory of the model's own for a small input or output."""
    if not 0 < size_bytes(kind) <= STAGED_BYTES:
        return None
    return aligned_empty(kind.shape or (), DType(kind.dtype))


def _readable(array: Array) -> Array:
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
