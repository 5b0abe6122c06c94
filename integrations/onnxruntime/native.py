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
from tunewright.codegen.runtime.native import Program
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.tuner.session.execution import CompiledModel
from tunewright.tuner.session.native_run import NativePort

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
        _slots.add(self)

    def renew(self) -> None:
        """In the child of a fork: who held it may not be there."""
        self._mutex[:] = 0


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
        self._plans: list[Plan] = []
        _infos.add(self)

    def add(self, model: CompiledModel, slot: Slot, inputs: Sequence[str], outputs: Sequence[str]) -> Plan | None:
        """Have runs of the sizes of a model go through a copy of it in this slot; None where they take Python.

        `inputs` and `outputs` are the labels of what a run is given, in its order. Where the slot is taken, the plan
        that was added before is tried, unless this one is told to wait.
        """
        copy = model.copy(slot.pool)
        run = copy.native_run()
        ports = None if run is None else [_in_order(run.inputs, inputs), _in_order(run.outputs, outputs)]
        if run is None or ports is None or ports[0] is None or ports[1] is None:
            return None
        plan = Plan(copy, run.program, ports[0], ports[1], slot, int(self._words[5]))
        self._plans.append(plan)
        self._words[5] = plan.address  # one aligned word: other threads see the plan before or behind
        return plan

    def forget(self) -> None:
        """Run through Python from now on. Plans stay in memory, as runs may be under way."""
        self._words[5] = 0


def _in_order(ports: Sequence[NativePort], labels: Sequence[str]) -> list[NativePort] | None:
    """The ports in the order of their labels; None where they are others, or have more axes than there is room for."""
    by_label = {port.label: port for port in ports}
    if (
        len(ports) != len(labels)
        or by_label.keys() != set(labels)
        or any(len(port.shape) > MOST_RANK for port in ports)
    ):
        return None
    return [by_label[label] for label in labels]


class Plan:
    """The words of a plan, and all that they point to."""

    def __init__(
        self,
        model: CompiledModel,
        program: Program,
        inputs: Sequence[NativePort],
        outputs: Sequence[NativePort],
        slot: Slot,
        following: int,
    ) -> None:
        self._model, self._slot = model, slot
        self._kept: list[NDArray[np.int64]] = []
        steps_at, count = program.rows
        words = (
            following, slot.mutex_at, 0, program.handle or 0, steps_at, count,
            len(inputs), self._rows(inputs), len(outputs), self._rows(outputs), pool_functions().run_at,
        )  # fmt: skip
        self.address = self._keep(words)

    def wait(self) -> None:
        """Have runs wait where the slot is taken: no plan comes behind this one."""
        self._kept[-1][2] = 1

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
_slots: WeakSet[Slot] = WeakSet()


def _forget_plans() -> None:
    """In the child of a fork: the threads of the pools are not there."""
    for info in list(_infos):
        info.forget()
    for slot in list(_slots):
        slot.renew()


os.register_at_fork(after_in_child=_forget_plans)
