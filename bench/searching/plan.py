"""Plan: what a run of the bench is to measure, with which budgets, and the processes that it asks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tunewright.bench.entries import Entries, Entry, base_model_sha256, code_sha256
from tunewright.bench.files import FOLDER, ROOT, file_name, model_file
from tunewright.bench.rivals.environment import tvm_python
from tunewright.bench.rivals.process import Served
from tunewright.codegen.host import available_cores, detect, machine

from .workloads import workloads_sha256

CHILD = "tunewright.bench.searching.child"
METASCHEDULE = "tunewright.bench.rivals.metaschedule"

Say = Callable[[str], None]
"""Prints a line of progress."""


class Missing(Exception):
    """What a part needs was not measured yet, or is gone. The text says what to do."""


class Fruitless(Exception):
    """A search found no kernel that runs."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """How far each search goes."""

    trials: int = 64  # of ours, for the best after so many
    seconds: float = 60.0  # of ours, for the best after so long
    rival_trials: int = 256
    rival_seconds: float = 600.0
    whole_trials: int = 200  # of a job that has nothing else to go by: the default of `tunewright tune`
    model_trials: int = 1000  # of a whole model from a cold start
    rounds: int = 15  # of one kernel as two candidates
    starts: int = 5  # of processes, to time kernels in other places of memory


@dataclass(frozen=True)
class Plan:
    """Where everything is kept, and what the searches may spend."""

    folder: Path
    entries: Entries
    budgets: Budgets
    say: Say
    tvm: Path | None = None  # an interpreter that has TVM; None: one of an environment made here

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What an entry of ours depends on."""
        return {
            "machine": machine(),
            "code_sha256": code_sha256(),
            "base_model_sha256": base_model_sha256(),
            "workloads_sha256": workloads_sha256(),
        }

    @cached_property
    def hardware(self) -> dict[str, Any]:
        """What an entry of a rival depends on: not on our code."""
        return {"machine": {name: machine()[name] for name in ("processor", "system")}}

    @cached_property
    def tvm_python(self) -> Path:
        """Raises NoEnvironment."""
        return self.tvm or tvm_python(FOLDER / "tvm")

    def ours(self, name: str, threads: int, *, fresh: bool = False) -> Served:
        """A process of ours on its own cores. `fresh`: nothing that was built before is at hand."""
        home = self.place(name, threads) / "home" if fresh else self.folder / "home"
        if fresh:
            shutil.rmtree(home, ignore_errors=True)
        environment = self._environment(threads) | {"TUNEWRIGHT_HOME": str(home)}
        argv = [sys.executable, "-P", "-m", CHILD]
        return Served(argv, self.cores(threads), self.place(name, threads) / "ours.log", environment)

    def rival(self, name: str, threads: int) -> Served:
        """TVM on the same cores, with an empty folder for what it leaves behind. Raises NoEnvironment."""
        left = self.place(name, threads) / "tmp"
        shutil.rmtree(left, ignore_errors=True)
        left.mkdir()
        environment = self._environment(threads) | {"TVM_NUM_THREADS": str(threads), "TMPDIR": str(left)}
        argv = [str(self.tvm_python), "-P", "-m", METASCHEDULE]
        return Served(argv, self.cores(threads), self.place(name, threads) / "tvm.log", environment)

    def _environment(self, threads: int) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT / ".types"), "OMP_NUM_THREADS": str(threads)}

    def cores(self, threads: int) -> list[int]:
        """The same ones for all that is compared."""
        return available_cores()[:threads]

    def place(self, name: str, threads: int) -> Path:
        """The folder of a case."""
        path = self.folder / f"{file_name(name)}-{threads}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def model(self, name: str, build: Callable[[], bytes]) -> str:
        """The path of a model."""
        return str(model_file(self.folder / "models", name, build))

    def database(self, name: str, threads: int, label: str, *, fresh: bool = False) -> str:
        """The URL of a database of a case, emptied where it is to be `fresh`."""
        path = self.place(name, threads) / f"{label}.db"
        if fresh:
            for old in path.parent.glob(f"{label}.db*"):
                old.unlink()
        return f"sqlite:///{path}"

    def empty(self, name: str, threads: int) -> str:
        """The URL of a database in which nothing is."""
        return self.database(name, threads, "nothing", fresh=True)

    def known(self, part: str, name: str, threads: int) -> Mapping[str, Any]:
        """What a part has measured of a case. Raises Missing."""
        entry = self.entries.get(case(part, name), threads)
        if entry is None:
            raise Missing(f"{part} of {name} on {threads} comes first: ./dev bench search {part} '{name}'")
        if "error" in entry:
            raise Missing(f"{part} of {name} on {threads} has failed: {entry['error']}")
        return entry

    @property
    def cpu(self) -> str:
        """What LLVM calls this processor."""
        return detect(1).cpu


def case(part: str, name: str) -> str:
    """What an entry is called."""
    return f"{part}: {name}"


def of_part(entries: Entries, part: str, threads: int) -> dict[str, Entry]:
    """The measurements of a part, by name."""
    prefix = case(part, "")
    return {name.removeprefix(prefix): entry for name, entry in entries.of(threads) if name.startswith(prefix)}
