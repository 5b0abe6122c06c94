"""SearchPlan: folders, results and budgets of a run of the bench, and the processes that it calls."""

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
from tunewright.bench.rivals.process import ServedProcess
from tunewright.codegen.host import available_cores, detect, machine

from .workloads import workloads_sha256

CHILD = "tunewright.bench.search_parts.child"
METASCHEDULE = "tunewright.bench.rivals.metaschedule"

Say = Callable[[str], None]
"""Prints a line of progress."""


class MissingEntry(Exception):
    """An entry that a part needs is missing. The text says what to do."""


class NoKernel(Exception):
    """A search found no kernel that runs."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of the searches and repetitions of the timings."""

    trials: int = 64  # of our search, for its best after so many
    seconds: float = 60.0  # of our search, for its best after so many
    rival_trials: int = 256
    rival_seconds: float = 600.0
    whole_trials: int = 200  # of a job without other limits: the default of `tunewright tune`
    model_trials: int = 1000  # of a whole model from a cold start
    rounds: int = 15  # comparisons of one kernel as two candidates
    starts: int = 5  # processes in which kernels are timed, at other addresses in each


@dataclass(frozen=True)
class SearchPlan:
    """Folders, results and budgets of a run."""

    folder: Path
    entries: Entries
    budgets: Budgets
    say: Say
    tvm: Path | None = None  # an interpreter with TVM; None: that of an environment made on demand

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that an entry of ours depends on."""
        return {
            "machine": machine(),
            "code_sha256": code_sha256(),
            "base_model_sha256": base_model_sha256(),
            "workloads_sha256": workloads_sha256(),
        }

    @cached_property
    def hardware(self) -> dict[str, Any]:
        """The settings that an entry of a rival depends on; our code is none."""
        return {"machine": {name: machine()[name] for name in ("processor", "system")}}

    @cached_property
    def tvm_python(self) -> Path:
        """The interpreter that has TVM. Raises NoEnvironment."""
        return self.tvm or tvm_python(FOLDER / "tvm")

    def ours(self, name: str, threads: int, *, fresh: bool = False) -> ServedProcess:
        """A process of ours pinned to cores. `fresh`: with an empty object cache."""
        home = self.case_folder(name, threads) / "home" if fresh else self.folder / "home"
        if fresh:
            shutil.rmtree(home, ignore_errors=True)
        environment = self._environment(threads) | {"TUNEWRIGHT_HOME": str(home)}
        argv = [sys.executable, "-P", "-m", CHILD]
        return ServedProcess(argv, self.cores(threads), self.case_folder(name, threads) / "ours.log", environment)

    def rival(self, name: str, threads: int) -> ServedProcess:
        """A process of TVM on the same cores, with an empty temporary folder. Raises NoEnvironment."""
        temporary = self.case_folder(name, threads) / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        environment = self._environment(threads) | {"TVM_NUM_THREADS": str(threads), "TMPDIR": str(temporary)}
        argv = [str(self.tvm_python), "-P", "-m", METASCHEDULE]
        return ServedProcess(argv, self.cores(threads), self.case_folder(name, threads) / "tvm.log", environment)

    def _environment(self, threads: int) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT / ".types"), "OMP_NUM_THREADS": str(threads)}

    def cores(self, threads: int) -> list[int]:
        """The cores of all processes that are compared."""
        return available_cores()[:threads]

    def case_folder(self, name: str, threads: int) -> Path:
        """The folder of a case."""
        path = self.folder / f"{file_name(name)}-{threads}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def model(self, name: str, build: Callable[[], bytes]) -> str:
        """The path of a model's file, which is written anew."""
        return str(model_file(self.folder / "models", name, build))

    def database(self, name: str, threads: int, label: str, *, fresh: bool = False) -> str:
        """The URL of a database of a case; an empty one if `fresh`."""
        path = self.case_folder(name, threads) / f"{label}.db"
        if fresh:
            for file in path.parent.glob(f"{label}.db*"):
                file.unlink()
        return f"sqlite:///{path}"

    def empty_database(self, name: str, threads: int) -> str:
        """The URL of an empty database."""
        return self.database(name, threads, "nothing", fresh=True)

    def require_entry(self, part: str, name: str, threads: int) -> Mapping[str, Any]:
        """The entry of a case in a part. Raises MissingEntry."""
        entry = self.entries.get(case_name(part, name), threads)
        if entry is None:
            raise MissingEntry(f"{part} of {name} on {threads} comes first: ./dev bench search {part} '{name}'")
        if "error" in entry:
            raise MissingEntry(f"{part} of {name} on {threads} has failed: {entry['error']}")
        return entry

    @property
    def cpu(self) -> str:
        """LLVM's name of this processor."""
        return detect(1).cpu


def case_name(part: str, name: str) -> str:
    """The name of an entry."""
    return f"{part}: {name}"


def part_entries(entries: Entries, part: str, threads: int) -> dict[str, Entry]:
    """The measurements of a part, by name."""
    prefix = case_name(part, "")
    return {name.removeprefix(prefix): entry for name, entry in entries.of(threads) if name.startswith(prefix)}
