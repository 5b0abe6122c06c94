"""Compiled kernels in this process: a `Program` runs calls of kernels one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ..artifact import Artifact
from ..closeable import Closeable
from ..expr.dtype import DType
from ..ir.ir import Buffer
from .library import Library, pool_functions
from .memory import address_of, aligned_block, room_bytes
from .pool import ThreadPool

_FOREVER_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BindingSlice:
    """A part of the memory that a name is bound to, from an offset on."""

    name: str
    offset_bytes: int


Operand = NDArray[np.generic] | int | str | BindingSlice
"""Memory of one parameter: an array, an address that the caller keeps alive, or what each run binds to a name anew."""

Bindings = Mapping[str, NDArray[np.generic] | int]
"""Memory for names: arrays, or addresses that the caller keeps alive and that nothing can check."""

_NOTHING: Bindings = MappingProxyType({})


class _Cells:
    """The cells of the arrays of pointers that hold addresses in a name's memory; there may be thousands."""

    def __init__(self) -> None:
        self._cells: list[int] = []
        self._offsets_bytes: list[int] = []
        self._wholes: dict[tuple[DType, int], Buffer] = {}
        self._ends_bytes: dict[DType, int] = {}  # where the parts of a type end

    def add(self, cell: int, buffer: Buffer, offset_bytes: int | None) -> None:
        """Add a cell: for all of the memory (None), or for a part that begins at an offset."""
        self._cells.append(cell)
        self._offsets_bytes.append(offset_bytes or 0)
        if offset_bytes is None:
            self._wholes[buffer.dtype, buffer.size_bytes] = buffer
        else:
            end_bytes = offset_bytes + buffer.size_bytes
            self._ends_bytes[buffer.dtype] = max(self._ends_bytes.get(buffer.dtype, 0), end_bytes)

    def fill(self, arguments: NDArray[np.int64], memory: NDArray[np.generic] | int) -> None:
        """Write the addresses of all cells. Raises ValueError if an array is too small or of another type."""
        start = memory if isinstance(memory, int) else self._check(memory)
        if len(self._cells) == 1:
            arguments[self._cells[0]] = start + self._offsets_bytes[0]
        else:
            arguments[self._cells] = np.add(self._offsets_bytes, start)

    def _check(self, array: NDArray[np.generic]) -> int:
        """The address of an array, which must hold all buffers and parts."""
        for buffer in self._wholes.values():
            _check(buffer, array)
        for dtype, end_bytes in self._ends_bytes.items():
            if array.dtype != dtype.numpy or array.nbytes < end_bytes:
                raise ValueError(f"{end_bytes} bytes of {dtype} can't be in {array.dtype}{list(array.shape)}")
        return _readable_at(array)


class Code:
    """The code of artifacts, loaded into this process, equal ones once. Raises RuntimeError if it can't be loaded."""

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        symbols: dict[tuple[bytes, ...], dict[str, None]] = {}
        for artifact in artifacts:
            symbols.setdefault(artifact.objects, {}).update((phase.symbol, None) for phase in artifact.phases)
        self._library = Library([(objects, list(names)) for objects, names in symbols.items()])
        self._addresses = dict(zip(symbols, self._library.addresses, strict=True))

    def addresses(self, artifact: Artifact) -> Mapping[str, int]:
        """The addresses of the functions of one of the artifacts, by symbol."""
        return self._addresses[artifact.objects]

    def close(self) -> None:
        """Unload it. Closing twice is harmless."""
        self._library.close()


class Program(Closeable):
    """Calls of kernels in order, in native code: a run goes through all of them without Python.

    `calls` pairs each artifact with the memory of its params and, if the caller plans it, of its scratch. Scratch that
    is not given is allocated here, one block that all calls share. Arrays are kept alive; they must be C-contiguous,
    aligned to their elements, and have their buffer's dtype and size (the shape may differ). `code` has that of all
    artifacts, and is closed by who made it; without it, the program loads its own.

    Raises ValueError on operands that don't match, RuntimeError on object code that can't be loaded.
    """

    def __init__(
        self, calls: Sequence[tuple[Artifact, Sequence[Operand]]], pool: ThreadPool, code: Code | None = None
    ) -> None:
        artifacts = [artifact for artifact, _ in calls]
        self._pool = pool
        self._native = pool_functions()
        self._owned: list[object] = []
        self._names: dict[str, _Cells] = {}
        self._arguments, starts = self._lay_out(calls)
        self._owns_code = code is None
        self._code = code or Code(artifacts)
        addresses = [self._code.addresses(artifact) for artifact in artifacts]
        self._steps, self._firsts = _steps(artifacts, addresses, starts)
        self._steps_at, self._count = self._steps.ctypes.data, len(self._steps)
        self._parallel = pool.threads > 1 and bool((self._steps[:, 2] > 1).any())
        self._is_closed = False

    def _lay_out(self, calls: Sequence[tuple[Artifact, Sequence[Operand]]]) -> tuple[NDArray[np.int64], list[int]]:
        """The arrays of pointers of all calls, one behind the other, and the address of each."""
        scratch_at = self._scratch(calls)
        cells: list[int] = []
        starts = []
        for artifact, operands in calls:
            starts.append(len(cells))
            buffers = [*artifact.params, *artifact.scratch]
            if len(operands) == len(artifact.params):
                sizes_bytes = (room_bytes(buffer.size_bytes) for buffer in artifact.scratch)
                operands = [*operands, *list(accumulate(sizes_bytes, initial=scratch_at))[:-1]]
            if len(operands) != len(buffers):
                raise ValueError(f"{len(operands)} operands for {len(artifact.params)} params")
            for buffer, operand in zip(buffers, operands, strict=True):
                cells.append(self._address(buffer, operand, len(cells)))
        arguments = np.array(cells, np.int64)
        return arguments, [arguments.ctypes.data + 8 * start for start in starts]

    def _scratch(self, calls: Sequence[tuple[Artifact, Sequence[Operand]]]) -> int:
        """Address of a block with room for the scratch of any one call: calls don't overlap in time."""
        sizes = [
            sum(room_bytes(b.size_bytes) for b in a.scratch) for a, operands in calls if len(operands) == len(a.params)
        ]
        block = aligned_block(max(sizes, default=0))
        self._owned.append(block)
        return block.ctypes.data

    def _address(self, buffer: Buffer, operand: Operand, cell: int) -> int:
        match operand:
            case str():
                self._names.setdefault(operand, _Cells()).add(cell, buffer, None)
                return 0
            case BindingSlice(name, offset_bytes):
                self._names.setdefault(name, _Cells()).add(cell, buffer, offset_bytes)
                return 0
            case int():
                return operand
            case _:
                self._owned.append(operand)
                return _check(buffer, operand)

    @property
    def names(self) -> Collection[str]:
        """The names that each run must bind."""
        return self._names.keys()

    def run(self, bindings: Bindings = _NOTHING) -> None:
        """Run all calls once. `bindings` gives memory for each name among the operands.

        Other threads may call it too: runs on one pool wait for each other. Raises RuntimeError if the program or its
        pool is closed, ValueError if names are missing or unknown or arrays don't match.
        """
        pool = self._pool
        with pool.lock:
            self._prepare(bindings)
            self._native.run(pool.handle() if self._parallel else None, self._steps_at, self._count)

    def time(
        self,
        samples: int,
        repeats: int = 1,
        *,
        deadline_s: float = inf,
        calls: range | None = None,
        bindings: Bindings = _NOTHING,
    ) -> list[float]:
        """Seconds that a run takes, once a sample, each the mean of `repeats` runs in a row; the loop is native.

        A run goes through all calls, or those with the numbers in `calls`, which has no gaps. Fewer samples, but one at
        least, once `deadline_s` of time.monotonic() is past. Nothing is warmed up. Raises as `run` does.
        """
        if samples < 1 or repeats < 1:
            raise ValueError(f"{samples} samples of {repeats} runs: at least one of one")
        out_ns = np.empty(samples, np.int64)
        pool = self._pool
        with pool.lock:
            self._prepare(bindings)
            handle = pool.handle() if self._parallel else None
            steps = (self._steps_at, self._count) if calls is None else self._window(calls)
            deadline_ns = round(deadline_s * 1e9) if deadline_s * 1e9 < _FOREVER_NS else _FOREVER_NS
            count = self._native.time(handle, *steps, repeats, samples, deadline_ns, out_ns.ctypes.data)
        return [sample_ns / repeats * 1e-9 for sample_ns in out_ns[:count].tolist()]

    def _window(self, calls: range) -> tuple[int, int]:
        """Address and number of the steps of some calls. The last of them has a barrier from now on: see %Step."""
        begin, end = self._firsts[calls.start], self._firsts[calls.stop]
        if end > begin:
            self._steps[end - 1, 3] = 1
        return self._steps_at + begin * self._steps.strides[0], end - begin

    def _prepare(self, bindings: Bindings) -> None:
        if self._is_closed:
            raise RuntimeError("the program is closed; open the model again to run it")
        if not bindings and not self._names:
            return
        if bindings.keys() != self._names.keys():
            raise ValueError(f"bound {sorted(bindings)}, but the names are {sorted(self._names)}")
        for name, cells in self._names.items():
            cells.fill(self._arguments, bindings[name])

    def close(self) -> None:
        """Unload its own code, once the current run is over. Closing twice is harmless."""
        with self._pool.lock:
            self._is_closed = True
            if self._owns_code:
                self._code.close()
            self._owned.clear()


def _steps(
    artifacts: Sequence[Artifact], addresses: Sequence[Mapping[str, int]], starts: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """The rows that pool.ll calls %Step: function, arguments, iterations, whether a barrier follows.

    And the number of the first of each call, with that of all behind the last.
    """
    rows = [
        (functions[phase.symbol], start, phase.iterations, 1)
        for artifact, functions, start in zip(artifacts, addresses, starts, strict=True)
        for phase in artifact.phases
        if phase.iterations > 0
    ]
    steps = np.array(rows, np.int64).reshape(-1, 4)
    # Neighbours that both run on thread 0 are in order without one.
    alone = steps[:, 2] == 1
    steps[:-1, 3] = ~(alone[:-1] & alone[1:])
    counts = (sum(phase.iterations > 0 for phase in artifact.phases) for artifact in artifacts)
    return steps, list(accumulate(counts, initial=0))


def _check(buffer: Buffer, array: NDArray[np.generic]) -> int:
    """The address of an array that serves as memory of `buffer`. Raises ValueError if it doesn't match."""
    if array.dtype != buffer.dtype.numpy or array.nbytes != buffer.size_bytes:
        raise ValueError(f"{buffer} can't be an array of {array.dtype}{list(array.shape)}")
    return _readable_at(array)


def _readable_at(array: NDArray[np.generic]) -> int:
    """Where an array begins that kernels can read. Raises ValueError for any other."""
    if not (array.flags.c_contiguous and array.flags.aligned):
        shape = list(array.shape)
        raise ValueError(f"a buffer can't be an array of {shape} that is not contiguous or not aligned to its elements")
    return address_of(array)
