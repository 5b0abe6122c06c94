"""Plans: runs of a group as compute.ll does them, without Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import resources
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.host import available_cores
from tunewright.codegen.runtime.library import Library, emit_object, pool_functions
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.tuner.session.execution import CompiledModel
from tunewright.tuner.session.native_run import NativePort, NativeRun

SYMBOL = "tw_compute"

MUTEX_BYTES = 64
"""More than a pthread_mutex_t takes. All zeros, it is free."""

MOST_RANK = 16
"""As many extents as compute.ll has room for."""


@cache
def _library() -> Library:
    text = (resources.files(__package__) / "compute.ll").read_text(encoding="utf-8")
    return Library([([emit_object(text)], [SYMBOL])])


def compute_address() -> int:
    """The address of the function that ONNX Runtime calls."""
    return _library().addresses[0][SYMBOL]


class Slot:
    """A pool for plans, on which one runs at a time: its mutex is held meanwhile."""

    def __init__(self, threads: int, *, pinned: bool) -> None:
        self.pool = ThreadPool(threads, pinned=pinned)
        self._mutex = np.zeros(MUTEX_BYTES, np.uint8)
        self.mutex_at: int = self._mutex.ctypes.data


class Slots:
    """As many slots as may run at a time on this machine, made when they are wanted."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.most = max(1, len(available_cores()) // threads)
        self._slots: list[Slot] = []

    def slot(self, number: int) -> Slot:
        """The slot of a number below `most`."""
        while len(self._slots) <= number:
            self._slots.append(Slot(self._threads, pinned=self.most == 1))
        return self._slots[number]


class ComputeInfo:
    """An `OrtNodeComputeInfo` with the plans of a group behind it. `python` computes what no plan fits."""

    def __init__(self, version: int, create: int, release: int, api_table: int, python: int) -> None:
        words = (version, create, compute_address(), release, api_table, 0, python)
        self._words = np.array(words, np.int64)
        self.address: int = self._words.ctypes.data
        self._plans: list[_Plan] = []
        _infos.add(self)

    def add(self, model: CompiledModel, slot: Slot, *, waits: bool) -> bool:
        """Have runs of the sizes of a model go through a copy of it in this slot; False where they take Python.

        Where the slot is taken, a plan that `waits` takes its turn; else the next one is tried.
        """
        copy = model.copy(slot.pool)
        run = copy.native_run()
        if run is None or any(len(port.shape) > MOST_RANK for port in (*run.inputs, *run.outputs)):
            return False
        plan = _Plan(copy, run, slot, int(self._words[5]), waits=waits)
        self._plans.append(plan)
        self._words[5] = plan.address  # one aligned word: other threads see the plan before or behind
        return True

    def forget(self) -> None:
        """Run through Python from now on. Plans stay in memory, as runs may be under way."""
        self._words[5] = 0


class _Plan:
    """The words of a plan, and all that they point to."""

    def __init__(self, model: CompiledModel, run: NativeRun, slot: Slot, following: int, *, waits: bool) -> None:
        self._model, self._slot = model, slot
        self._kept: list[NDArray[np.int64]] = []
        inputs, outputs = (self._rows(ports) for ports in (run.inputs, run.outputs))
        steps_at, count = run.program.rows
        words = (
            following, slot.mutex_at, int(waits), run.program.handle or 0, steps_at, count,
            len(run.inputs), inputs, len(run.outputs), outputs, pool_functions().run_at,
        )  # fmt: skip
        self.address = self._keep(words)

    def _rows(self, ports: Sequence[NativePort]) -> int:
        rows: list[int] = []
        for port in ports:
            cells = self._keep([word for cell in port.cells for word in cell])
            rows += (len(port.shape), self._keep(port.shape), port.size_bytes, port.fixed_at, len(port.cells), cells)
        return self._keep(rows)

    def _keep(self, words: Sequence[int]) -> int:
        """The address of words in memory that stays."""
        self._kept.append(np.array([*words, 0], np.int64))
        address: int = self._kept[-1].ctypes.data
        return address


_infos: WeakSet[ComputeInfo] = WeakSet()


def _forget_plans() -> None:
    """In the child of a fork: the threads of the pools are not there."""
    for info in list(_infos):
        info.forget()


os.register_at_fork(after_in_child=_forget_plans)
