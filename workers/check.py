"""Whether an artifact computes its task: run between guards on example inputs, and compared with the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, prod, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.dtype import DType
from tunewright.codegen.host import host_caches
from tunewright.codegen.ir import Buffer, Matrix, Packing
from tunewright.codegen.runtime.memory import Guarded, Recycler, address_of, guarded_empty
from tunewright.codegen.runtime.native import Operand, Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.graph.oracle import either_way, example_inputs, reference, written
from tunewright.graph.task import Task, Tensor

from .cold import OWN, Copies, Distance, Evicted, Runs, copies, copy_bytes, distance, evictor
from .recent import Recent

SEED = 0
"""Of the example inputs: one for all, so that every candidate of a task meets the same."""

TOLERANCE = {
    DType.F64.numpy: 1e-10,
    DType.F32.numpy: 1e-4,
    DType.F16.numpy: 2e-3,
    DType.BF16.numpy: 1.6e-2,
}
"""Largest error of an output, relative to its largest magnitude, as long as the sums in it are short. Of the narrow
types, whose values are computed in float32, it is two units in the last place: what is nearly half way between two of
them may be rounded either way.
"""

SHORT = 4096
"""Terms of a sum from which on the tolerance grows, as errors do, with the root of their number."""

PACKED_BYTES = 256 << 20
"""Packed inputs that are kept for the next candidate; there is always room for those of one."""

COPIES_BYTES = 96 << 20
"""Copies of constants that are kept for the next candidate; there is always room for those of one."""

SCRATCH_BYTES = 64 << 20
"""Scratch memory that is kept for the next candidate; there is always room for that of one."""

STEP_BYTES = 16 << 20
"""Memory for copies comes in multiples of it, so that what one candidate leaves has room for those of the next. What is
not written to takes no memory."""

PIECE = 1 << 16
"""Elements that are compared at once: their differences stay in a core's cache."""

Array = NDArray[Any]

Packed = tuple[int, Packing | None]
"""An input by its number, and how it is packed."""

Maps = tuple[tuple[int, Matrix], ...]

_caches = cache(host_caches)


def tolerance_factor(task: Task) -> float:
    """How many times TOLERANCE the outputs of a task may be off."""
    terms = max((prod(axis.extent for axis in stage.reduce) for stage in task.stages), default=1)
    return max(1.0, sqrt(terms / SHORT))


class Example:
    """Inputs to try a task on, between guards, and what its outputs must be.

    Everything is made once and shared by the candidates of the task. Computing the reference can take seconds.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.inputs: list[Array] = example_inputs(task, SEED)
        self.outputs: list[Array] = reference(task, self.inputs)
        self.either = either_way(task, self.inputs)
        floats = [tensor.dtype.is_float for tensor in task.outputs]
        self.scales = [_magnitude(r) if is_float else 1.0 for r, is_float in zip(self.outputs, floats, strict=True)]
        self.written = written(task)
        self.tolerance_factor = tolerance_factor(task)
        self._plain: dict[int, Input] = {}
        self._packed: Recent[Packed, Input] = Recent(PACKED_BYTES)
        self._ordered: Recent[tuple[int, tuple[int, ...], Maps], Array] = Recent(PACKED_BYTES)
        self._copies: Recent[tuple[int, tuple[Packed, ...]], Copies] = Recent(COPIES_BYTES)
        self._results: dict[tuple[int, DType, int], Guarded] = {}
        self._scratch: Recent[tuple[int, tuple[int, ...], DType], Guarded] = Recent(SCRATCH_BYTES)

    def input(self, number: int, packing: Packing | None) -> Input:
        """An input, packed if asked for, in memory that kernels may read."""
        tensor = self.task.inputs[number]
        if packing is not None:
            size_bytes = prod(packing.shape) * tensor.dtype.size_bytes
            return self._packed.get(
                (number, packing), size_bytes, lambda: Input(tensor, self._arranged(number, packing))
            )
        if number not in self._plain:
            self._plain[number] = Input(tensor, self.inputs[number])
        return self._plain[number]

    def _arranged(self, number: int, packing: Packing) -> Array:
        """An input in its packed order, as a view of an array that all forms share which begin in the same way.

        What comes first takes longest: products with matrices, and elements from where they are far apart to where they
        are neighbours.
        """
        extents = tuple(self._extent(number, packing.maps, axis) for axis in packing.order)
        begin = Packing.in_order(packing.order, extents, packing.maps)
        begun = self._ordered.get(
            (number, packing.order, packing.maps),
            prod(extents) * self.inputs[number].itemsize,
            lambda: begin.apply(self.inputs[number]),
        )
        return replace(packing, order=tuple(range(len(extents))), maps=()).arranged(begun)

    def _extent(self, number: int, maps: Maps, axis: int) -> int:
        return next((len(matrix) for mapped, matrix in maps if mapped == axis), self.inputs[number].shape[axis])

    def away(self, packings: Sequence[Packed], pool: ThreadPool) -> Copies | Evicted | None:
        """What puts the constants, in the form in which a kernel reads them, as far away as they are in a model.

        `packings` are the numbers of these inputs, and how each is packed. None where they are there already.
        """
        inputs = [self.input(number, packing) for number, packing in packings]
        arrays = [one.guarded.array for one in inputs]
        constant_bytes = sum(array.nbytes for array in arrays)
        match distance(constant_bytes, _caches(), pool.threads):
            case Distance.ANY:
                return None
            case Distance.MEMORY:
                return Evicted([one.evictor(pool) for one in inputs])
            case Distance.LAST_LEVEL:
                count = copies(constant_bytes, _caches(), pool.threads)
                size_bytes = count * copy_bytes(arrays)
                return self._copies.get((count, tuple(packings)), size_bytes, lambda: Copies(arrays, _room(size_bytes)))

    def result(self, number: int, buffer: Buffer) -> Guarded:
        """Memory for an output. That of one kernel is the next one's: so both find it in the same cache."""
        key = number, buffer.dtype, buffer.size_bytes
        if key not in self._results:
            self._results[key] = guarded_empty(buffer.shape, buffer.dtype)
        return self._results[key]

    def compared(self, outputs: Sequence[Array]) -> tuple[str | None, float | None]:
        """What is wrong with the outputs of a run, whose memory began with all bits set, and the largest relative
        error.
        """
        fault: str | None = None
        largest = 0.0
        either: Sequence[tuple[Array, Array] | None] = self.either or [None] * len(outputs)
        expected = zip(self.outputs, either, self.written, self.scales, strict=True)
        for tensor, output, (right, ends, own, scale) in zip(self.task.outputs, outputs, expected, strict=True):
            tolerance = TOLERANCE.get(right.dtype, 0.0) * self.tolerance_factor
            array: Array = output.reshape(right.shape)
            if own is not None:
                damage = spoilt(array, own)
                fault = fault or (damage and f"{tensor.name}: {damage}")
                array = np.where(own, array, right)
            if ends is not None:
                array = with_alternatives(array, right, ends, tolerance * scale)
            wrong, error = difference(array, right, tolerance, scale)
            largest = max(largest, error)
            fault = fault or (wrong and f"{tensor.name}: {wrong}")
        return fault, largest if np.isfinite(largest) else None

    def scratch(self, number: int, buffer: Buffer) -> Guarded:
        """Memory for a scratch buffer, as if nobody had written to it. That of one kernel is the next one's."""
        key = number, buffer.shape, buffer.dtype
        guarded = self._scratch.get(key, buffer.size_bytes, lambda: guarded_empty(buffer.shape, buffer.dtype))
        guarded.array.reshape(-1).view(np.uint8).fill(0xFF)
        return guarded


def _room(size_bytes: int) -> NDArray[np.uint8]:
    """Memory for copies: that of others that are gone, if there is some. Fresh memory takes longer than to copy."""
    block, _ = _recycler(ceil(size_bytes / STEP_BYTES) * STEP_BYTES).array()
    return block.view(np.uint8)[:size_bytes]


@cache
def _recycler(size_bytes: int) -> Recycler:
    return Recycler((size_bytes,), DType.U8)


class Input:
    """An input between guards, and how to tell whether it was changed."""

    def __init__(self, tensor: Tensor, array: Array) -> None:
        self.name = tensor.name
        self.guarded = guarded_empty(array.shape, tensor.dtype)
        self.guarded.array[...] = array
        self._sum = checksum(self.guarded.array)
        self._evictors: dict[int, Program] = {}  # by threads

    def evictor(self, pool: ThreadPool) -> Program:
        """What puts it out of all caches, on as many threads as the pool has."""
        if pool.threads not in self._evictors:
            self._evictors[pool.threads] = evictor(self.guarded.array, pool)
        return self._evictors[pool.threads]

    def fault(self) -> str | None:
        """What was written to it, or beside it."""
        changed = checksum(self.guarded.array) != self._sum
        return "an input was changed" if changed else self.guarded.check()


def checksum(array: Array) -> int:
    """A sum over all bytes of a C-contiguous array: any one change shows, and it is as fast as memory."""
    raw = array.reshape(-1).view(np.uint8)
    whole = len(raw) // 8 * 8
    return int(raw[:whole].view(np.uint64).sum(dtype=np.uint64)) + int(raw[whole:].sum(dtype=np.uint64))


class Loaded:
    """One artifact of a processor in memory, with the operands of its task: `check` it, time it, `recheck` it.

    The memory of its outputs is that of the others of its task, so `recheck` before another one runs. Raises
    RuntimeError on object code that can't be loaded. Nothing may run once it is closed.
    """

    def __init__(self, example: Example, artifact: Artifact, pool: ThreadPool) -> None:
        self._example = example
        inputs = len(example.inputs)
        packings = [(n, artifact.packings.get(buffer.name)) for n, buffer in enumerate(artifact.params[:inputs])]
        self._inputs = [example.input(number, packing) for number, packing in packings]
        self._outputs = [example.result(n, buffer) for n, buffer in enumerate(artifact.params[inputs:])]
        self._scratch = [example.scratch(n, buffer) for n, buffer in enumerate(artifact.scratch)]
        guarded = [*(one.guarded for one in self._inputs), *self._outputs, *self._scratch]
        memory = [one.array for one in guarded]
        constants = [n for n, tensor in enumerate(example.task.inputs) if tensor.constant]
        away = example.away([packings[n] for n in constants], pool)
        calls: list[tuple[Artifact, Sequence[Operand]]] = [(artifact, memory)]
        if isinstance(away, Copies):
            calls += ((artifact, operands) for operands in _with_copies(memory, constants, away))
        self._program = Program(calls, pool)
        self._sums: list[int] | None = None
        self.once_s = 0.0  # about what a run takes: what that of the check took
        self.cold = Runs(self._program, away)
        self.warm = Runs(self._program, None)
        self.provenance: Mapping[str, str] = {}  # besides that of the machine

    def fill(self) -> None:
        """Bring inputs and outputs where the kernels before and behind find them: others may have run meanwhile."""
        self._program.time(1, calls=OWN)

    def again(self) -> None:
        """Run once more as for the check, and let the faster run count: one alone may have been disturbed."""
        if isinstance(self.cold.away, Evicted):
            self.cold.away.evict()
        self.once_s = min(self.once_s, *self._program.time(1, calls=OWN))

    def check(self) -> tuple[str | None, float | None]:
        """Run once, compare with the reference: what is wrong, and the largest relative error.

        What else was written to shows in `recheck`, or here where it may be why the result is wrong.
        """
        for output in self._outputs:
            output.array.reshape(-1).view(np.uint8).fill(0xFF)  # as if nobody had written to it
        if isinstance(self.cold.away, Evicted):
            self.cold.away.evict()
        [self.once_s] = self._program.time(1, calls=OWN)
        fault, error = self._example.compared([output.array for output in self._outputs])
        self._sums = self._output_sums()
        return fault and (self.damage() or fault), error

    def recheck(self) -> str | None:
        """What is wrong after further runs: all must have given the same bits, and written nowhere else."""
        return self.damage() or self.recheck_outputs()

    def recheck_outputs(self) -> str | None:
        """Whether the last run gave the same bits."""
        return "the result differs from run to run" if self._output_sums() != self._sums else None

    def _output_sums(self) -> list[int]:
        return [checksum(output.array) for output in self._outputs]

    def damage(self) -> str | None:
        """What was written to beside the outputs, by this one or by others of the task."""
        named: Sequence[tuple[str, str | None]] = [
            *((one.name, one.fault()) for one in self._inputs),
            *zip((t.name for t in self._example.task.outputs), _checks(self._outputs), strict=True),
            *(("scratch", fault) for fault in _checks(self._scratch)),
        ]
        return next((f"{name}: {fault}" for name, fault in named if fault), None)

    def close(self) -> None:
        """Unload the code."""
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _with_copies(memory: Sequence[Array], constants: Sequence[int], turns: Copies) -> Iterator[list[int]]:
    """Addresses of the operands, for each copy of the constants."""
    own = [address_of(array) for array in memory]
    for addresses in turns.addresses:
        operands = list(own)
        for number, address in zip(constants, addresses, strict=True):
            operands[number] = address
        yield operands


def _checks(memory: Sequence[Guarded]) -> list[str | None]:
    return [guarded.check() for guarded in memory]


def spoilt(array: Array, own: NDArray[np.bool_]) -> str | None:
    """What was written of an array that began with all bits set, besides the elements that may be."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(*array.shape, -1)
    changed = (raw != 0xFF).any(axis=-1) & ~own
    if not changed.any():
        return None
    index = list(map(int, np.argwhere(changed)[0]))
    return f"{int(changed.sum())} elements changed that belong to others, the first at {index}"


def with_alternatives(array: Array, right: Array, ends: tuple[Array, Array], margin: float) -> Array:
    """The array with what is right wherever something else may be so too, and it is that: see `either_way`."""
    low, high = ends
    is_open = low != high
    if DType(right.dtype.name).is_float:
        low, high = low - low.dtype.type(margin), high + high.dtype.type(margin)
    return np.where(is_open & (array >= low) & (array <= high), right, array)


def difference(array: Array, right: Array, tolerance: float, scale: float | None = None) -> tuple[str | None, float]:
    """Where an array differs from what it must be by more than is tolerated, or None; and by how much it differs.

    `scale` is the magnitude of `right`, where that is known.

    Floats: the largest error relative to the largest finite magnitude in `right`; NaN and infinity must be at the same
    places. Others must be equal, and the second value is the part of elements that are not.
    """
    if not DType(right.dtype.name).is_float:
        unequal = array != right
        part = float(unequal.mean()) if unequal.size else 0.0
        return (f"{_first(unequal, array, right)}; {part:.3%} of all differ" if part else None), part
    if DType(right.dtype.name).is_narrow:
        array, right = array.astype(np.float32), right.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        largest, scale = _largest_apart(array, right), _magnitude(right) if scale is None else scale
    apart: Array | None = None
    if not (np.isfinite(largest) and np.isfinite(scale)):
        finite = np.isfinite(right)
        special = ~finite & ~((array == right) | (np.isnan(array) & np.isnan(right))) | finite & ~np.isfinite(array)
        if special.any():
            return _first(special, array, right), np.inf
        with np.errstate(over="ignore"):
            apart = np.where(finite, array, 0) - np.where(finite, right, 0)
        largest, scale = _magnitude(apart), _magnitude(right[finite])
    error = largest / (scale or 1.0)
    if error <= tolerance:
        return None, error
    if apart is None:
        apart = array - right
    wrong = np.abs(apart) > tolerance * (scale or 1.0)
    return f"{_first(wrong, array, right)}; error {error:.3g} > {tolerance:.3g}", error


def _largest_apart(array: Array, right: Array) -> float:
    """The magnitude of the largest difference, NaN if there is a NaN. Piece by piece: fresh memory for all takes longer
    than to compare.
    """
    some, others = array.reshape(-1), right.reshape(-1)
    room = _room_apart(right.dtype)
    found = []
    for begin in range(0, len(some), len(room)):
        piece = some[begin : begin + len(room)]
        apart = np.subtract(piece, others[begin : begin + len(room)], out=room[: len(piece)])
        found.append(_magnitude(apart))
    return float(np.max(found, initial=0.0))


@cache
def _room_apart(dtype: np.dtype[Any]) -> Array:
    return np.empty(PIECE, dtype)


def _magnitude(array: Array) -> float:
    """That of the largest element, NaN if there is a NaN. An array of all of them would take longer."""
    return float(np.maximum(array.max(initial=0.0), -array.min(initial=0.0)))


def _first(wrong: NDArray[np.bool_], array: Array, right: Array) -> str:
    index = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), wrong.shape)))
    form = ".7g" if right.dtype.kind == "f" else ""
    return f"{array[index]:{form}} at {list(index)}, not {right[index]:{form}}"
