"""Check that an artifact computes its task: run it between guards on example inputs, and compare with the oracle."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.artifact import Artifact
from tunewright.codegen.closeable import Closeable
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.host import host_caches
from tunewright.codegen.ir.ir import AxisMatrix, Buffer, Packing
from tunewright.codegen.lru_cache import LruCache
from tunewright.codegen.runtime.memory import Recycler, address_of, guarded_empty
from tunewright.codegen.runtime.native import Operand as NativeOperand
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.graph.oracle import example_inputs, reference, rounding_bounds, written_masks
from tunewright.graph.task import Task
from tunewright.graph.tolerance import TOLERANCE, tolerance_factor

from .cache_flush import OWN, Copies, Distance, Eviction, Runs, copy_bytes, copy_count, distance, evictor
from .sampling import Timeable

SEED = 0
"""Seed of the example inputs: the same for all candidates of a task."""

PACKED_BYTES = 256 << 20
"""Limit of the packed inputs that stay for the next candidate; those of one candidate may exceed it."""

COPIES_BYTES = 96 << 20
"""The same for copies of constants."""

SCRATCH_BYTES = 64 << 20
"""The same for scratch memory."""

STEP_BYTES = 16 << 20
"""Memory for copies is a multiple of this, so that the next candidate can reuse it. Pages that are not written take no
memory."""

PIECE = 1 << 16
"""Elements that are compared at once: their differences fit into a core's cache."""

Array = NDArray[Any]

PackedInput = tuple[int, Packing | None]
"""The number of an input, and its packing."""

Maps = tuple[tuple[int, AxisMatrix], ...]

_caches = cache(host_caches)


class Example:
    """Example inputs of a task, between guards, and the expected outputs.

    All candidates of the task share one. Computing the reference can take seconds.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.inputs: list[Array] = example_inputs(task, SEED)
        self.outputs: list[Array] = reference(task, self.inputs)
        self.alternatives = rounding_bounds(task, self.inputs)
        floats = [tensor.dtype.is_float for tensor in task.outputs]
        self.scales = [_magnitude(r) if is_float else 1.0 for r, is_float in zip(self.outputs, floats, strict=True)]
        self.written = written_masks(task)
        self.tolerance_factor = tolerance_factor(task)
        self._plain: dict[int, Operand] = {}
        self._packed: LruCache[PackedInput, Operand] = LruCache(PACKED_BYTES)
        self._ordered: LruCache[tuple[int, tuple[int, ...], Maps], Array] = LruCache(PACKED_BYTES)
        self._copies: LruCache[tuple[int, tuple[PackedInput, ...]], Copies] = LruCache(COPIES_BYTES)
        self._results: dict[tuple[int, DType, int], Operand] = {}
        self._scratch: LruCache[tuple[int, tuple[int, ...], DType], Operand] = LruCache(SCRATCH_BYTES)

    def input(self, number: int, packing: Packing | None) -> Operand:
        """An input, packed if `packing` is given, in memory that kernels may read."""
        dtype = self.task.inputs[number].dtype
        if packing is not None:
            size_bytes = prod(packing.shape) * dtype.size_bytes
            return self._packed.get(
                (number, packing), lambda: _input(dtype, self._arrange(number, packing)), size_bytes
            )
        if number not in self._plain:
            self._plain[number] = _input(dtype, self.inputs[number])
        return self._plain[number]

    def _arrange(self, number: int, packing: Packing) -> Array:
        """An input in its packed order: a view of an array that all packings with the same first steps share.

        The first steps take longest: products with matrices, and gathering distant elements.
        """
        shape = dict(enumerate(self.inputs[number].shape)) | {axis: len(matrix) for axis, matrix in packing.maps}
        extents = tuple(shape[axis] for axis in packing.order)
        prefix = Packing.in_order(packing.order, extents, packing.maps)
        array = self._ordered.get(
            (number, packing.order, packing.maps),
            lambda: prefix.apply(self.inputs[number]),
            prod(extents) * self.inputs[number].itemsize,
        )
        return replace(packing, order=tuple(range(len(extents))), maps=()).arrange(array)

    def flush(self, packings: Sequence[PackedInput], pool: ThreadPool) -> Copies | Eviction | None:
        """The cache flush of constants, in the packing that a kernel reads. None where none is needed.

        `packings` are the numbers of these inputs, and their packings.
        """
        inputs = [self.input(number, packing) for number, packing in packings]
        arrays = [operand.array() for operand in inputs]
        constant_bytes = sum(array.nbytes for array in arrays)
        match distance(constant_bytes, _caches(), pool.threads):
            case Distance.ANY:
                return None
            case Distance.MEMORY:
                return Eviction([operand.evictor(pool) for operand in inputs])
            case Distance.LAST_LEVEL:
                count = copy_count(constant_bytes, _caches(), pool.threads)
                size_bytes = count * copy_bytes(arrays)
                return self._copies.get(
                    (count, tuple(packings)), lambda: Copies(arrays, _copies_memory(size_bytes)), size_bytes
                )

    def result(self, number: int, buffer: Buffer) -> Operand:
        """Memory for an output. All kernels share it, so that they find it in the same cache."""
        key = number, buffer.dtype, buffer.size_bytes
        if key not in self._results:
            self._results[key] = Operand(buffer.shape, buffer.dtype)
        return self._results[key]

    def compare(self, outputs: Sequence[Array]) -> tuple[str | None, float | None]:
        """Compare outputs with the reference: a fault or None, and the largest relative error.

        All bits of the outputs' memory were set before the run.
        """
        fault: str | None = None
        max_error = 0.0
        either: Sequence[tuple[Array, Array] | None] = self.alternatives or [None] * len(outputs)
        expectations = zip(self.outputs, either, self.written, self.scales, strict=True)
        for tensor, output, (expected, bounds, mask, scale) in zip(
            self.task.outputs, outputs, expectations, strict=True
        ):
            tolerance = TOLERANCE.get(expected.dtype, 0.0) * self.tolerance_factor
            output_array: Array = output.reshape(expected.shape)
            if mask is not None:
                damage = find_damage(output_array, mask)
                fault = fault or (damage and f"{tensor.name}: {damage}")
                output_array = np.where(mask, output_array, expected)
            if bounds is not None:
                output_array = with_alternatives(output_array, expected, bounds, tolerance * scale)
            difference_text, error = difference(output_array, expected, tolerance, scale)
            max_error = max(max_error, error)
            fault = fault or (difference_text and f"{tensor.name}: {difference_text}")
        return fault, max_error if np.isfinite(max_error) else None

    def scratch(self, number: int, buffer: Buffer) -> Operand:
        """Memory for a scratch buffer with all bits set. All kernels share it."""
        key = number, buffer.shape, buffer.dtype
        operand = self._scratch.get(key, lambda: Operand(buffer.shape, buffer.dtype), buffer.size_bytes)
        operand.clear()
        return operand


def _input(dtype: DType, content: Array) -> Operand:
    return Operand(content.shape, dtype, content)


def _copies_memory(size_bytes: int) -> NDArray[np.uint8]:
    """Memory for copies, reused if possible: allocating fresh memory takes longer than copying."""
    block, _ = _recycler(ceil(size_bytes / STEP_BYTES) * STEP_BYTES).array()
    return block.view(np.uint8)[:size_bytes]


@cache
def _recycler(size_bytes: int) -> Recycler:
    return Recycler((size_bytes,), DType.U8)


class Operand:
    """Memory of a parameter or scratch buffer, between guards. An input, which has a content, has a checksum too."""

    def __init__(self, shape: tuple[int, ...], dtype: DType, content: Array | None = None) -> None:
        self.guarded = guarded_empty(shape, dtype)
        self._sum: int | None = None
        if content is not None:
            self.guarded.array[...] = content
            self._sum = checksum(self.guarded.array)
        self._evictors: dict[int, Program] = {}  # by threads

    def evictor(self, pool: ThreadPool) -> Program:
        """The program that evicts it from all caches, on as many threads as the pool has."""
        if pool.threads not in self._evictors:
            self._evictors[pool.threads] = evictor(self.guarded.array, pool)
        return self._evictors[pool.threads]

    def clear(self) -> None:
        """Set all bits, as if nothing had written to it."""
        self.guarded.array.reshape(-1).view(np.uint8).fill(0xFF)

    def array(self) -> Array:
        """Its content."""
        return self.guarded.array

    def fault(self) -> str | None:
        """A write beside it, or to it if it is an input; None if there was none."""
        changed = self._sum is not None and checksum(self.guarded.array) != self._sum
        return "an input was changed" if changed else self.guarded.check()


def checksum(array: Array) -> int:
    """The sum over all bytes of a C-contiguous array: any single change shows, at the speed of memory."""
    raw = array.reshape(-1).view(np.uint8)
    whole = len(raw) // 8 * 8
    return int(raw[:whole].view(np.uint64).sum(dtype=np.uint64)) + int(raw[whole:].sum(dtype=np.uint64))


class LoadedKernel(Closeable):
    """An artifact in memory, with the operands of its task: `check` it, time it, `recheck` it.

    Kernels of a task may share the memory of outputs, so `recheck` before another one runs. Raises RuntimeError on code
    that can't be loaded. Nothing may run after `close`.
    """

    cold: Timeable  # runs with constants as far away as in a model
    warm: Timeable  # runs with all operands in the caches

    def __init__(
        self, example: Example, inputs: Sequence[Operand], outputs: Sequence[Operand], scratch: Sequence[Operand]
    ) -> None:
        self._example = example
        self._outputs = outputs
        names = [tensor.name for tensor in (*example.task.inputs, *example.task.outputs)] + ["scratch"] * len(scratch)
        self._operands = list(zip(names, (*inputs, *outputs, *scratch), strict=True))
        self._sums: list[int] | None = None
        self.once_s = 0.0  # about what a run takes: what that of the check took

    @property
    def provenance(self) -> Mapping[str, str]:
        """What is to be known of its times, besides the machine."""
        return {}

    @abstractmethod
    def fill(self) -> None:
        """Bring inputs and outputs into the caches, as the neighbouring kernels of a model do."""

    @abstractmethod
    def run_s(self) -> float:
        """Run once with cold constants: the seconds."""

    def rerun(self) -> None:
        """Run once more as in `check`; the faster run counts, as one alone may be disturbed."""
        self.once_s = min(self.once_s, self.run_s())

    def check(self) -> tuple[str | None, float | None]:
        """Run once and compare with the reference: a fault or None, and the largest relative error.

        Writes to other memory show in `recheck`, or here if they may explain a wrong result.
        """
        for output in self._outputs:
            output.clear()
        self.once_s = self.run_s()
        outputs = [output.array() for output in self._outputs]
        fault, error = self._example.compare(outputs)
        self._sums = list(map(checksum, outputs))
        return fault and (self.damage() or fault), error

    def recheck(self) -> str | None:
        """The fault of later runs: other outputs than the first run, or writes to other memory; else None."""
        return self.damage() or self.recheck_outputs()

    def recheck_outputs(self) -> str | None:
        """The fault if the last run gave other bits than the first; else None."""
        sums = [checksum(output.array()) for output in self._outputs]
        return "the result differs from run to run" if sums != self._sums else None

    def damage(self) -> str | None:
        """Writes to other memory than the outputs, by this kernel or others of the task; None if there are none."""
        faults = ((name, operand.fault()) for name, operand in self._operands)
        return next((f"{name}: {fault}" for name, fault in faults if fault), None)


class CpuKernel(LoadedKernel):
    """A kernel of this processor. Kernels of a task share the memory of outputs."""

    def __init__(self, example: Example, artifact: Artifact, pool: ThreadPool) -> None:
        count = len(example.inputs)
        packings = [(n, artifact.packings.get(buffer.name)) for n, buffer in enumerate(artifact.params[:count])]
        inputs = [example.input(number, packing) for number, packing in packings]
        outputs = [example.result(n, buffer) for n, buffer in enumerate(artifact.params[count:])]
        scratch = [example.scratch(n, buffer) for n, buffer in enumerate(artifact.scratch)]
        super().__init__(example, inputs, outputs, scratch)
        memory = [operand.array() for operand in (*inputs, *outputs, *scratch)]
        constants = [n for n, tensor in enumerate(example.task.inputs) if tensor.constant]
        self._flush = example.flush([packings[n] for n in constants], pool)
        calls: list[tuple[Artifact, Sequence[NativeOperand]]] = [(artifact, memory)]
        if isinstance(self._flush, Copies):
            calls += ((artifact, operands) for operands in _operands_of_copies(memory, constants, self._flush))
        self._program = Program(calls, pool)
        self.cold, self.warm = Runs(self._program, self._flush), Runs(self._program, None)

    def fill(self) -> None:
        self._program.time(1, calls=OWN)

    def run_s(self) -> float:
        if isinstance(self._flush, Eviction):
            self._flush.evict()
        [run_s] = self._program.time(1, calls=OWN)
        return run_s

    def close(self) -> None:
        self._program.close()


def _operands_of_copies(memory: Sequence[Array], constants: Sequence[int], copies: Copies) -> Iterator[list[int]]:
    """Addresses of the operands, for each copy of the constants."""
    originals = [address_of(array) for array in memory]
    for addresses in copies.addresses:
        operands = list(originals)
        for number, address in zip(constants, addresses, strict=True):
            operands[number] = address
        yield operands


def find_damage(array: Array, mask: NDArray[np.bool_]) -> str | None:
    """Writes to elements outside of `mask`, in an array that had all bits set; None if there are none."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(*array.shape, -1)
    changed = (raw != 0xFF).any(axis=-1) & ~mask
    if not changed.any():
        return None
    index = list(map(int, np.argwhere(changed)[0]))
    return f"{int(changed.sum())} elements changed that belong to others, the first at {index}"


def with_alternatives(array: Array, reference: Array, bounds: tuple[Array, Array], margin: float) -> Array:
    """The array with the reference wherever an element lies within the `bounds` of `graph.oracle.rounding_bounds`."""
    low, high = bounds
    is_open = low != high
    if DType(reference.dtype.name).is_float:
        low, high = low - low.dtype.type(margin), high + high.dtype.type(margin)
    return np.where(is_open & (array >= low) & (array <= high), reference, array)


def difference(
    array: Array, reference: Array, tolerance: float, scale: float | None = None
) -> tuple[str | None, float]:
    """The first error above the tolerance, or None; and the largest error.

    `scale` is the magnitude of `reference`, where that is known.

    Floats: the largest error relative to the largest finite magnitude of the reference; NaN and infinity must be at the
    same places. Other types must be equal; their error is the part of elements that are not.
    """
    if not DType(reference.dtype.name).is_float:
        unequal = array != reference
        part = float(unequal.mean()) if unequal.size else 0.0
        return (f"{_describe_first(unequal, array, reference)}; {part:.3%} of all differ" if part else None), part
    if DType(reference.dtype.name).is_narrow:
        array, reference = array.astype(np.float32), reference.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        max_difference, scale = _largest_difference(array, reference), _magnitude(reference) if scale is None else scale
    differences: Array | None = None
    if not (np.isfinite(max_difference) and np.isfinite(scale)):
        finite = np.isfinite(reference)
        is_special = ~finite & ~(
            (array == reference) | (np.isnan(array) & np.isnan(reference))
        ) | finite & ~np.isfinite(array)
        if is_special.any():
            return _describe_first(is_special, array, reference), np.inf
        with np.errstate(over="ignore"):
            differences = np.where(finite, array, 0) - np.where(finite, reference, 0)
        max_difference, scale = _magnitude(differences), _magnitude(reference[finite])
    error = max_difference / (scale or 1.0)
    if error <= tolerance:
        return None, error
    if differences is None:
        differences = array - reference
    is_wrong = np.abs(differences) > tolerance * (scale or 1.0)
    return f"{_describe_first(is_wrong, array, reference)}; error {error:.3g} > {tolerance:.3g}", error


def _largest_difference(array: Array, right: Array) -> float:
    """The magnitude of the largest difference, NaN if there is a NaN. In chunks, which is faster than at once."""
    values, expected = array.reshape(-1), right.reshape(-1)
    scratch = _difference_buffer(right.dtype)
    maxima = []
    for begin in range(0, len(values), len(scratch)):
        chunk = values[begin : begin + len(scratch)]
        differences = np.subtract(chunk, expected[begin : begin + len(scratch)], out=scratch[: len(chunk)])
        maxima.append(_magnitude(differences))
    return float(np.max(maxima, initial=0.0))


@cache
def _difference_buffer(dtype: np.dtype[Any]) -> Array:
    return np.empty(PIECE, dtype)


def _magnitude(array: Array) -> float:
    """The magnitude of the largest element, NaN if there is a NaN. Faster than an array of magnitudes."""
    return float(np.maximum(array.max(initial=0.0), -array.min(initial=0.0)))


def _describe_first(is_wrong: NDArray[np.bool_], array: Array, reference: Array) -> str:
    index = tuple(map(int, np.unravel_index(int(np.argmax(is_wrong)), is_wrong.shape)))
    form = ".7g" if reference.dtype.kind == "f" else ""
    return f"{array[index]:{form}} at {list(index)}, not {reference[index]:{form}}"
